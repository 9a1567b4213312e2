//! Does one step. Each can be repeated: a crash in the middle is a restart.

use std::time::{Duration, Instant};

use exuvia_api::{DATASTORE_FINALIZER, DatastorePhase, RETRY_ANNOTATION, datastore_condition as condition};
use exuvia_write::{Finalizer, Name, Redacted, redacted};
use kube::Api;
use kube::api::DynamicObject;

use super::Engine;
use super::work::Work;
use crate::Error;
use crate::check;
use crate::copy::Findings;
use crate::engine::observe::uid_of;
use crate::freeze::{
    Drain, Drained as DrainState, Form, WRITE_ENDS_WITHIN, freeze_flag, read_flag, save_flag,
};
use crate::kinds::Kind;
use crate::protocol::{Checked, Copied, Denies, Drained, Seen, Stage, Step, Tried, Verified};
use crate::route::{Alias, Removed};

const FINALIZER: Finalizer = Finalizer::new(DATASTORE_FINALIZER);

/// Between two looks at API servers that do not refuse yet: each learns of a policy within about a second (PITFALLS D10).
pub(super) const BETWEEN_PROBES: Duration = Duration::from_millis(250);

impl Engine {
    pub(super) async fn carry_out_step(&mut self, step: Step) -> Result<(), Error> {
        match step {
            Step::Check => self.check().await,
            Step::AddFinalizer => {
                let written = self
                    .writer
                    .ensure_finalizer(&self.api, &self.migration, FINALIZER)
                    .await?;
                self.migration = written.object;
                Ok(())
            }
            Step::RemoveFinalizer => {
                self.writer
                    .remove_finalizer(&self.api, &self.migration, FINALIZER)
                    .await?;
                Ok(())
            }
            Step::MakeClones => self.make_clones().await,
            Step::RemoveClones => {
                self.clones_ready = false;
                Ok(self.clones().remove().await?)
            }
            Step::Try => {
                let found = self.try_objects().await?;
                self.seen.tried = self.judge(&found);
                Ok(())
            }
            Step::TryAgain => {
                let found = self
                    .work()?
                    .mover
                    .try_all(&at_target(&self.client), false)
                    .await?;
                self.seen.tried_again = self.judge(&found);
                Ok(())
            }
            Step::Restart => self.restart().await,
            Step::Start => self.start().await,
            Step::Guard => self.count_writers().await,
            Step::MarkFreeze => {
                let now = self.now().await;
                self.record(|status, _| status.frozen_at = Some(now.clone()))
                    .await
            }
            Step::Lock => Ok(self
                .work()?
                .freeze
                .set(Form::Frozen, self.observed.locks.shield)
                .await?),
            Step::SaveFlags => self.save_flags().await,
            Step::SetFlags => self.set_flags().await,
            Step::Probe => self.probe().await,
            Step::Drain => self.drain().await,
            Step::RecordFrozen => {
                let message = "every API server refuses writes to the source, and none is under way";
                self.record_stage(condition::FROZEN, message, |_| {}).await
            }
            Step::SaveRoute => self.save_route().await,
            Step::Shield => self.shield().await,
            Step::RemoveRoute => self.remove_route().await,
            Step::AwaitRoute => self.await_route().await,
            Step::RecordRouted => {
                let message = "the target CRDs answer for their group";
                self.record_stage(condition::ROUTED, message, |_| {}).await
            }
            Step::Copy => self.copy().await,
            Step::Verify => self.verify().await,
            Step::Commit => self.commit().await,
            Step::Thaw => self.thaw().await,
            Step::RewriteReferences => self.rewrite_references().await,
            Step::LiftShield => Ok(self.work()?.freeze.set(Form::Converged, false).await?),
            Step::LookAtWaits => self.look_at_waits().await,
            Step::DropStamps => {
                self.work()?.mover.drop_marks().await?;
                self.seen.stamps_dropped = true;
                Ok(())
            }
            Step::Complete => {
                let now = self.now().await;
                self.record_stage(condition::COMPLETE, "nothing is left to do", |status| {
                    status.phase = Some(DatastorePhase::Complete);
                    status.completed_at = Some(now.clone());
                })
                .await
            }
            Step::Undo(undo) => self.record_undo(undo).await,
            Step::UndoTargets => self.undo_targets().await,
            Step::UndoRoute => self.undo_route().await,
            Step::AwaitBackend => self.await_backend().await,
            Step::UndoFlags => self.undo_flags().await,
            Step::UndoLocks => Ok(self.work()?.freeze.remove().await?),
            Step::EndUndo => self.end_undo().await,
            Step::CleanUp => self.clean_up().await,
        }
    }

    pub(super) fn work(&self) -> Result<&Work, Error> {
        self.work
            .as_ref()
            .ok_or(Error::Changed("the spec was not read yet"))
    }

    async fn check(&mut self) -> Result<(), Error> {
        let (checked, work) = check::check(
            &self.client,
            &self.writer,
            &self.servers,
            &self.control,
            &self.migration,
        )
        .await?;
        self.seen.checked = if checked.is_empty() {
            Checked::Passed
        } else {
            Checked::Blocked
        };
        self.blockers = checked;
        self.work = work;
        self.checked_generation = self.migration.metadata.generation;
        // Both would be among the blockers.
        self.invalid = None;
        self.refused.clear();
        Ok(())
    }

    async fn make_clones(&mut self) -> Result<(), Error> {
        let work = self.work()?;
        let targets = work.mover.kinds.targets().into_iter();
        let targets: Vec<_> = targets.map(|kind| kind.resource.clone()).collect();
        work.clones.ensure(&targets).await?;
        self.clones_ready = true;
        Ok(())
    }

    /// Tries every object: at its target, or at a clone of it where another API server answers for the target.
    async fn try_objects(&mut self) -> Result<Findings, Error> {
        let work = self.work()?;
        if !self.observed.wants.route {
            return work.mover.try_all(&at_target(&self.client), false).await;
        }
        let at_clone = |kind: &Kind| -> Api<DynamicObject> {
            Api::all_with(self.client.clone(), &work.clones.resource(&kind.resource))
        };
        work.mover.try_all(&at_clone, true).await
    }

    fn judge(&mut self, found: &Findings) -> Tried {
        self.found = found.clone();
        self.blockers.clone_from(&found.blockers);
        if found.blocked > 0 {
            Tried::Blocked
        } else if found.progress.conflicts > 0 {
            Tried::Conflicts
        } else {
            Tried::Clean
        }
    }

    async fn restart(&mut self) -> Result<(), Error> {
        let unasked = |migration: &mut exuvia_api::DatastoreMigration| {
            if let Some(annotations) = &mut migration.metadata.annotations {
                annotations.remove(RETRY_ANNOTATION);
            }
        };
        // The phase first: what somebody asked for is not forgotten before it is done.
        self.record(|status, migration| {
            status.phase = Some(DatastorePhase::Pending);
            status.retreats = 0;
            status.observed_generation = migration.metadata.generation;
        })
        .await?;
        self.seen = Seen::default();
        self.work = None;
        (self.undone, self.not_before) = (0, None);
        let written = self
            .writer
            .patch_with_retry(&self.api, &self.migration, unasked)
            .await?;
        self.migration = written.object;
        Ok(())
    }

    async fn start(&mut self) -> Result<(), Error> {
        let now = self.now().await;
        self.record_stage(
            condition::VALIDATED,
            "every object can be copied, as far as a dry run tells",
            |status| {
                status.phase = Some(DatastorePhase::Migrating);
                status.started_at = Some(now.clone());
                status.blockers.clear();
                status.conflicts.clear();
            },
        )
        .await
    }

    async fn count_writers(&mut self) -> Result<(), Error> {
        self.can_count = self.work()?.freeze.count_writers().await?;
        if self.can_count {
            self.counting_since.get_or_insert_with(Instant::now);
        }
        Ok(())
    }

    /// What a flag had before is saved once. One that somebody has changed since, before it was set, is saved again.
    async fn save_flags(&mut self) -> Result<(), Error> {
        let before = self.migration.status.clone().unwrap_or_default().saved.flags;
        let mut saved = Vec::new();
        for (index, flag) in self.migration.spec.freeze.flags.iter().enumerate() {
            let now = read_flag(&self.client, flag).await?;
            let known = before
                .iter()
                .find(|saved| usize::try_from(saved.index).is_ok_and(|at| at == index));
            saved.push(match known {
                Some(known) if now.value.as_ref() == Some(&flag.frozen) && now.uid == known.uid => {
                    known.clone()
                }
                _ => save_flag(index, &now),
            });
        }
        self.record(|status, _| status.saved.flags.clone_from(&saved))
            .await
    }

    async fn set_flags(&mut self) -> Result<(), Error> {
        let saved = self.migration.status.clone().unwrap_or_default().saved.flags;
        for (flag, saved) in self.migration.spec.freeze.flags.iter().zip(&saved) {
            freeze_flag(&self.client, &self.writer, flag, saved).await?;
        }
        self.flags_set_at.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// The shield must be up on every API server, or one of them lets the garbage collector pass.
    async fn shield(&mut self) -> Result<(), Error> {
        let freeze = &self.work()?.freeze;
        freeze.set(Form::Frozen, true).await?;
        if freeze.probe(Form::Frozen, true).await?.all_asked_deny() {
            self.seen.shielded = true;
        } else {
            tokio::time::sleep(BETWEEN_PROBES).await;
        }
        Ok(())
    }

    async fn probe(&mut self) -> Result<(), Error> {
        if !self.migration.spec.freeze.admission {
            self.seen.probed();
            return Ok(());
        }
        let form = match Stage::from_record(&self.observed.record) {
            Stage::After => Form::Converged,
            _ => Form::Frozen,
        };
        let before = self.our_locks().await?;
        let probed = self
            .work()?
            .freeze
            .probe(form, self.observed.locks.shield)
            .await?;
        // The same policies before and after: what was asked in between was about these.
        if probed.all_asked_deny() && self.our_locks().await? == before {
            self.locks_probed = before;
            self.probed_at = Some(Instant::now());
            self.seen.probed();
            return Ok(());
        }
        if let Some((server, why)) = probed.not_yet().next() {
            let why = why
                .first()
                .cloned()
                .unwrap_or_else(|| "does not refuse writes yet".into());
            self.message = Some(redacted!("{}: {}", Name(server), why));
        }
        tokio::time::sleep(BETWEEN_PROBES).await;
        Ok(())
    }

    async fn drain(&mut self) -> Result<(), Error> {
        let how = Drain::parse(&self.migration.spec.freeze.drain)
            .map_err(|error| Error::Invalid(error.to_string()))?;
        let is_after = Stage::from_record(&self.observed.record) == Stage::After;
        if is_after || !self.migration.spec.freeze.admission {
            let patience = match how {
                Drain::Auto => WRITE_ENDS_WITHIN,
                Drain::Fixed(time) => time,
            };
            let since = match self.probed_at.filter(|_| is_after) {
                Some(probed_at) => probed_at,
                None => *self.flags_set_at.get_or_insert_with(Instant::now),
            };
            let left = patience.saturating_sub(since.elapsed());
            self.seen.drained = if left.is_zero() {
                Drained::Yes
            } else {
                tokio::time::sleep(left.min(BETWEEN_PROBES)).await;
                Drained::NotYet // and looked at again
            };
            return Ok(());
        }
        self.seen.drained = match self.work()?.freeze.drained(how).await? {
            DrainState::ProvenByGauges | DrainState::WaitedOut => Drained::Yes,
            DrainState::WaitUntil { at, why } => {
                self.message = Some(Redacted::ours(why));
                let left = at.saturating_duration_since(Instant::now());
                tokio::time::sleep(left.min(BETWEEN_PROBES)).await;
                Drained::NotYet
            }
            DrainState::NotYet { why } => {
                self.message = Some(Redacted::ours(why));
                self.seen.denies = Denies::NotYet;
                tokio::time::sleep(BETWEEN_PROBES).await;
                Drained::NotYet
            }
        };
        Ok(())
    }

    /// The uids first, then the record: after a crash in between the uids are read again.
    async fn save_route(&mut self) -> Result<(), Error> {
        let work = self.work()?;
        let Some(route) = &work.route else {
            return Ok(());
        };
        let kinds = routed_kinds(work);
        let mut aliases = Vec::new();
        route.alias_uids(&kinds, |alias| aliases.push(alias)).await?;
        let saved = route.save().await?;
        if let Some(work) = &mut self.work {
            for Alias {
                kind,
                namespace,
                name,
                uid,
            } in aliases
            {
                work.mover.aliases.insert((kind, namespace, name), uid);
            }
        }
        self.record(|status, _| status.saved.api_service = saved.clone())
            .await?;
        self.seen.aliases = true;
        Ok(())
    }

    async fn remove_route(&mut self) -> Result<(), Error> {
        self.seen.routed_everywhere = false;
        let saved = self.migration.status.clone().unwrap_or_default().saved;
        let Some(route) = &self.work()?.route else {
            return Ok(());
        };
        match route.remove(&saved.api_service).await? {
            Removed::Gone => Ok(()),
            Removed::CameBack => {
                // What came back is what people want back in the end.
                let again = route_value(self.work()?).await?;
                self.record(|status, _| {
                    status.saved.api_service_returned += 1;
                    if let Some(again) = &again {
                        status.saved.api_service = again.clone();
                    }
                })
                .await
            }
            Removed::Changed => {
                let again = route_value(self.work()?).await?;
                self.record(|status, _| {
                    if let Some(again) = &again {
                        status.saved.api_service = again.clone();
                    }
                })
                .await
            }
        }
    }

    async fn await_route(&mut self) -> Result<(), Error> {
        let work = self.work()?;
        let Some(route) = &work.route else {
            self.seen.routed();
            return Ok(());
        };
        let by = uid_of(&route.observe().await?).to_owned();
        let aliases = work.mover.aliases.iter();
        let aliases: Vec<Alias> = aliases
            .take(1)
            .map(|((kind, namespace, name), uid)| Alias {
                kind: kind.clone(),
                namespace: namespace.clone(),
                name: name.clone(),
                uid: uid.clone(),
            })
            .collect();
        let answers = route.answered_by_crds(&routed_kinds(work), &aliases).await?;
        if answers.all_by_crds() && uid_of(&route.observe().await?) == by {
            self.routed_by = Some(by);
            self.seen.routed();
            return Ok(());
        }
        let is_stale = answers.is_discovery_stale();
        let first = answers.not_yet().into_iter().next();
        if is_stale {
            route.refresh_discovery().await?;
        }
        self.message = first;
        tokio::time::sleep(BETWEEN_PROBES).await;
        Ok(())
    }

    async fn copy(&mut self) -> Result<(), Error> {
        if self.seen.verified == Verified::SourceMoved {
            self.seen.copies = self.seen.copies.saturating_add(1);
        }
        let found = self.work()?.mover.copy_all().await?;
        self.seen.verified = Verified::No;
        self.seen.copied = match self.judge(&found) {
            Tried::Blocked => Copied::Refused,
            Tried::Conflicts => Copied::Conflicts,
            Tried::Clean | Tried::Unknown => Copied::Yes,
        };
        if self.seen.copied == Copied::Yes {
            let message = "every object has its target";
            let progress = found.progress.clone();
            self.record_stage(condition::COPIED, message, |status| {
                status.progress = Some(progress.clone());
            })
            .await?;
        }
        Ok(())
    }

    async fn verify(&mut self) -> Result<(), Error> {
        let found = self.work()?.mover.verify_all().await?;
        self.seen.verified = if found.wrong_total > 0 {
            self.message = found.wrong.first().map(|first| Redacted::ours(first.clone()));
            Verified::Failed
        } else if found.moved > 0 {
            Verified::SourceMoved
        } else {
            Verified::Yes
        };
        if self.seen.verified == Verified::Yes {
            let message = "every source and every target was read again";
            self.record_stage(condition::VERIFIED, message, |_| {}).await?;
        }
        Ok(())
    }

    /// The commit. Right before it: the policies are those under which everything was copied, every API server refuses, the
    /// flags are set and the target CRDs answer.
    async fn commit(&mut self) -> Result<(), Error> {
        let how = Drain::parse(&self.migration.spec.freeze.drain)
            .map_err(|error| Error::Invalid(error.to_string()))?;
        if self.migration.spec.freeze.admission {
            let still_drained = self.work()?.freeze.drained(how).await?.is_over();
            if !still_drained || self.our_locks().await? != self.locks_probed {
                self.locks_probed.clear();
                self.seen.denies = Denies::NotYet;
                return Ok(());
            }
        }
        if let Some(route) = self.route_handle().filter(|_| self.observed.wants.route) {
            let now = route.observe().await?;
            if self.routed_by.as_deref() != Some(uid_of(&now)) {
                self.routed_by = None;
                self.seen.routed_everywhere = false;
                return Ok(());
            }
        }
        for flag in &self.migration.spec.freeze.flags {
            if read_flag(&self.client, flag).await?.value.as_ref() != Some(&flag.frozen) {
                return Ok(()); // the next look decides what that means
            }
        }
        let now = self.now().await;
        self.record_stage(
            condition::CONVERGED,
            "everything is copied and verified",
            |status| {
                status.phase = Some(DatastorePhase::Converged);
                status.converged_at = Some(now.clone());
            },
        )
        .await
    }
}

fn at_target(client: &kube::Client) -> impl Fn(&Kind) -> Api<DynamicObject> + Send + Sync {
    let client = client.clone();
    move |kind| kind.all(&client)
}

/// The target kinds that the APIService answers for.
pub(super) fn routed_kinds(work: &Work) -> Vec<kube::api::ApiResource> {
    let kinds = work.mover.kinds.targets().into_iter();
    kinds.map(|kind| kind.resource.clone()).collect()
}

async fn route_value(work: &Work) -> Result<Option<serde_json::Value>, Error> {
    match &work.route {
        Some(route) => match route.save().await {
            Ok(value) => Ok(Some(value)),
            Err(crate::route::Error::NoBackend { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        },
        None => Ok(None),
    }
}
