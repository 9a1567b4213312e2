//! Carries one migration out: drives its engine as far as it can go now, and keeps it while it waits.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use exuvia_api::{
    DatastoreMigration, DatastorePhase, MIGRATION_UID_ANNOTATION, datastore_reason as reason, parse_duration,
};
use exuvia_runtime::machine::{Ended, drive};
use exuvia_runtime::publish::StallCause;
use exuvia_runtime::servers::ApiServers;
use exuvia_runtime::{EventKind, Next, Signal};
use exuvia_sweep::Control;
use exuvia_write::{ErrorClass, Redacted, redacted};
use kube::ResourceExt;

use super::DatastoreController;
use super::metrics::Counted;
use super::status::{StatusUpdate, stalled_for};
use super::teller::StatusTeller;
use super::words::moved;
use crate::freeze;
use crate::lock::lock;
use crate::protocol::Hold;
use crate::rights::may_list_policies;
use crate::{Engine, Error};

/// A server that fails so often in a row is worth a word in the status; once is a hiccup.
const WORTH_A_WORD: u32 = 3;

/// A migration in work. Between two reconciles it is kept: the freeze remembers what API servers have shown.
pub(super) struct Work {
    pub(super) engine: Engine,
    pub(super) control: Control,
    pub(super) counted: Arc<Mutex<Counted>>,
    uid: Option<String>,
    failed: u32,
}

impl DatastoreController {
    /// Brings the migration as far as it can go now.
    pub(super) async fn migrate(&self, name: &str, signal: &Signal) -> Result<Next, Error> {
        let Some(mut migration) = self.migrations().get_opt(name).await? else {
            self.forget_migration(name);
            self.release_abandoned(name).await?;
            return Ok(Next::Await);
        };
        if let Some(other) = self.other_driver(&migration) {
            self.leave_to(&migration, &other).await;
            return Ok(Next::Await);
        }
        let phase = migration.status.as_ref().and_then(|status| status.phase);
        // Nothing is left to do, and the rights for it may have been taken back.
        if phase == Some(DatastorePhase::Complete) && migration.metadata.deletion_timestamp.is_none() {
            self.world().hold(name, false);
            self.awaiting.set(name, &BTreeSet::new());
            lock(&self.works).remove(name);
            self.meters.show_frozen(&migration);
            let update = complete(&migration);
            self.publisher.publish(&mut migration, &update).await?;
            return Ok(Next::Await);
        }
        let Some(migration) = self.mark(migration).await? else {
            return Ok(Next::Retry); // somebody wrote to it meanwhile, perhaps another operator
        };
        let mut work = self.take_up(migration);
        let began = Instant::now();
        let mut teller = StatusTeller::new(self, &work, signal);
        let ended = Box::pin(drive(&mut work.engine, &mut teller)).await;
        drop(teller);
        let is_cancelled = work.control.is_cancelled();
        let ended = match ended {
            Ok(ended) => ended,
            Err(_) if is_cancelled => Ended::Stopped,
            Err(Error::Changed(why)) => {
                tracing::debug!(migration = name, why, "looking again");
                self.keep(name, work);
                return Ok(Next::Retry);
            }
            Err(error) => {
                work.failed += 1;
                self.tell_of(&work, &error, signal).await;
                self.keep(name, work);
                return Err(error);
            }
        };
        work.failed = 0;
        let is_held = matches!(
            ended,
            Ended::Held(
                Hold::Blocked | Hold::Conflicts | Hold::WaitingFor | Hold::CleanupBlocked | Hold::CopiesLeft
            )
        );
        self.world().hold(name, is_held);
        self.await_for(name, &work.engine, &ended).await;
        Ok(match ended {
            Ended::Waits(left) => {
                self.keep(name, work);
                Next::After(left)
            }
            Ended::Held(hold) => {
                let pause = self.pause(hold, work.engine.migration(), began.elapsed());
                self.keep(name, work);
                Next::After(pause)
            }
            Ended::Done => {
                if work.engine.migration().metadata.deletion_timestamp.is_some() {
                    self.forget_migration(name);
                }
                Next::Await
            }
            // What made it void has queued it again, or the operator is shutting down.
            Ended::Stopped => {
                tracing::debug!(migration = name, "stopped");
                Next::Await
            }
        })
    }

    /// What migrations that are gone have left, as far as it may be looked for.
    pub(super) async fn abandoned(&self) -> Result<Vec<freeze::Abandoned>, Error> {
        if !may_list_policies(&self.client).await? {
            return Ok(Vec::new());
        }
        match freeze::abandoned(&self.client).await {
            // Some servers have no policies.
            Err(error) if error.class() == ErrorClass::Missing => Ok(Vec::new()),
            found => Ok(found?),
        }
    }

    /// Lets go what a migration has left whose finalizer somebody took off. After the commit the locks keep writers away from
    /// data that nobody reads: then a person decides.
    async fn release_abandoned(&self, name: &str) -> Result<(), Error> {
        for abandoned in self
            .abandoned()
            .await?
            .iter()
            .filter(|left| left.migration == name)
        {
            let uid = &abandoned.uid;
            if abandoned.is_before_commit {
                freeze::release(&self.client, &self.writer, abandoned).await?;
                tracing::warn!(
                    migration = name,
                    uid,
                    "the migration was removed under its freeze: the source can be written again; copies with the \
                     annotation {MIGRATION_UID_ANNOTATION} may be left in the target"
                );
            } else {
                tracing::warn!(
                    migration = name,
                    uid,
                    "the migration was removed after its commit, and its source stays frozen: \
                     `exuvia datastore thaw` ends that"
                );
            }
        }
        Ok(())
    }

    /// The engine that was kept, or a new one, which goes on from what is on record.
    fn take_up(&self, migration: DatastoreMigration) -> Work {
        let kept = lock(&self.works).remove(&migration.name_any());
        let uid = migration.uid();
        if let Some(kept) = kept.filter(|kept| kept.uid == uid && !kept.control.is_cancelled()) {
            return kept;
        }
        let control = Control::new();
        let servers = ApiServers::new(&self.config, &self.settings.api_servers, &[]);
        let writer = self.writer.clone().also_observe(self.meters.observe_writes());
        let engine = Engine::with_servers(servers, self.client.clone(), &writer, migration)
            .controlled_by(control.clone());
        Work {
            engine,
            control,
            counted: Arc::default(),
            uid,
            failed: 0,
        }
    }

    /// Lets what it waits for be watched. What that is may be unknown for a moment: then it is looked at again, as always.
    async fn await_for(&self, name: &str, engine: &Engine, ended: &Ended<Hold>) {
        let awaited = match ended {
            Ended::Held(hold) => engine.awaited(*hold).await,
            _ => Ok(BTreeSet::new()),
        };
        match awaited {
            Ok(awaited) => self.awaiting.set(name, &awaited),
            Err(error) => {
                let error = Redacted::from_error(&error);
                tracing::debug!(migration = name, %error, "what it waits for is not known");
            }
        }
    }

    /// When to look at a hold again. What takes long to look at is looked at less often.
    fn pause(&self, hold: Hold, migration: &DatastoreMigration, took: Duration) -> Duration {
        let interval = match hold {
            Hold::Conflicts => parse_duration(&migration.spec.conflicts.poll_interval).ok(),
            _ => None,
        };
        interval.unwrap_or(self.settings.look_again).max(took)
    }

    fn keep(&self, name: &str, work: Work) {
        lock(&self.works).insert(name.to_owned(), work);
    }

    /// Puts an error that comes back again and again, or one that no waiting cures, into the status.
    async fn tell_of(&self, work: &Work, error: &Error, signal: &Signal) {
        if let Error::Unfinished { objects, .. } = error {
            let current = work.engine.progress().current_type;
            self.meters.failed(&current, *objects);
        }
        let reason = match error {
            Error::Invalid(_) => reason::INVALID_SPEC,
            _ if is_forbidden(error) => reason::FORBIDDEN,
            _ => reason::SERVER_ERRORS,
        };
        let is_hiccup = reason == reason::SERVER_ERRORS && work.failed < WORTH_A_WORD;
        if is_hiccup || signal.is_stopping() {
            return;
        }
        let mut migration = work.engine.migration().clone();
        let status = migration.status.clone().unwrap_or_default();
        let cause = StallCause {
            reason,
            message: redacted!("{}; it is tried again", Redacted::from_error(error)),
        };
        if stalled_for(&migration) != Some(reason) {
            let note = redacted!("{}: {}", reason, cause.message.clone());
            self.publisher
                .event(&migration, None, EventKind::Warning, "Blocked", &note)
                .await;
        }
        let update = StatusUpdate {
            decided_in: status.phase,
            phase: status.phase.unwrap_or_default(),
            step: status.step,
            message: cause.message.clone(),
            reason: None,
            is_working: false,
            stall_cause: Some(cause),
            progress: None,
            conflicts: None,
            blockers: None,
        };
        // It may well fail for the same reason: then the log is all there is.
        let _ = self.publisher.publish(&mut migration, &update).await;
    }
}

fn is_forbidden(error: &Error) -> bool {
    match error {
        Error::Read(kube::Error::Api(status)) => status.code == 403,
        Error::List(error) => error.class == ErrorClass::Denied,
        Error::Write(error) => error.class() == ErrorClass::Denied,
        _ => false,
    }
}

/// What a migration that is complete says.
fn complete(migration: &DatastoreMigration) -> StatusUpdate {
    let status = migration.status.clone().unwrap_or_default();
    StatusUpdate {
        decided_in: status.phase,
        phase: DatastorePhase::Complete,
        step: String::new(),
        message: Redacted::ours(moved(&status)),
        reason: None,
        is_working: false,
        stall_cause: None,
        progress: None,
        conflicts: Some(Vec::new()),
        blockers: Some(Vec::new()),
    }
}
