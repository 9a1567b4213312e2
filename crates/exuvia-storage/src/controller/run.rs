//! Carries one migration out: asks the engine for the next step, tells of it, does it, until there is nothing to do but wait.

use std::time::{Duration, Instant};

use exuvia_api::{Phase, StorageMigration, reason};
use exuvia_runtime::{EventKind, Next, Signal};
use exuvia_sweep::{Control, Pressure};
use exuvia_write::{Outcome, Writer};
use kube::ResourceExt;
use kube::api::ApiResource;
use tokio::sync::watch;

use super::follow::Beside;
use super::options::options;
use super::status;
use super::verdict;
use super::world::SeenMigration;
use super::{StorageController, lock};
use crate::audience::Audience;
use crate::engine::{Activity, Advance, Engine};
use crate::protocol::{Hold, Step};
use crate::{Error, Options, builtin};

/// API servers are looked at again at least this often while a migration waits for them.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// An engine that waits for a time to pass. It knows since when each API server shows the new storage version.
pub(super) struct Parked {
    work: Work,
    /// The migration as it was last written: one that somebody else wrote since begins anew from its status.
    resource_version: Option<String>,
}

/// A migration in work.
pub(super) struct Work {
    pub(super) engine: Engine,
    pub(super) control: Control,
    pub(super) activity: watch::Receiver<Option<Activity>>,
    /// When this pass began, as far as this process knows.
    began: Option<Instant>,
}

/// What a migration is about.
enum Found {
    Crd,
    BuiltIn(ApiResource),
    Nothing,
}

/// How carrying out a step went.
enum Carried {
    On,
    Held(Hold),
    Cancelled,
}

impl StorageController {
    /// Brings the migration as far as it can go now.
    pub(super) async fn migrate(&self, seen: &SeenMigration, signal: &Signal) -> Result<Next, Error> {
        let found = self.migrations().get_opt(&seen.name).await?;
        let Some(mut migration) = found.filter(|migration| migration.uid().as_deref() == Some(&seen.uid))
        else {
            return Ok(Next::Await); // the watch will tell
        };
        let options = match options(&migration.spec, &self.settings.defaults) {
            Ok(options) => options,
            Err(message) => {
                return self.refuse(&mut migration, reason::INVALID_SPEC, message).await;
            }
        };
        let builtin = match self.builtin(seen, &mut migration).await? {
            Found::Crd => None,
            Found::BuiltIn(resource) => Some(resource),
            // A CRD would be seen; an aggregated API comes unseen.
            Found::Nothing => return Ok(Next::Retry),
        };
        if builtin.is_some()
            && let Some(why) = crate::unsheddable(&[], &migration.spec.shed)
        {
            let message = format!("spec.shed: {why}");
            return self.refuse(&mut migration, reason::INVALID_SPEC, message).await;
        }
        let generation = migration.metadata.generation;
        let mut work = self.take_up(&migration, options, builtin);
        let mut retried: Option<Hold> = None;
        loop {
            let mut step = work.engine.next().await?;
            if !self.still_takes_part(seen, &work.engine) {
                return Ok(stopped(seen)); // the watch will tell, if it has not
            }
            if let Some(message) = refused_shed(&migration, &work.engine) {
                return self.refuse(&mut migration, reason::INVALID_SPEC, message).await;
            }
            if let Step::Hold(hold) = &step
                && is_worth_a_try(hold)
                && retried.is_none()
            {
                // What was in the way when the last reconcile ended is tried again once, now.
                work.engine.retry(hold);
                retried = Some(hold.clone());
                step = work.engine.next().await?;
            }
            if matches!(step, Step::Begin) {
                work.began = Some(Instant::now());
            }
            // Before it is told: whoever waits for that may look at the metrics next.
            if matches!(step, Step::Done)
                && let Some(began) = work.began.take()
            {
                self.own_metrics.pass(&seen.resource, began.elapsed());
            }
            if worth_telling(&step, retried.as_ref(), &migration) {
                let outlook = if matches!(step, Step::Done) {
                    self.verdict(seen, &migration, &work, signal).await?
                } else {
                    verdict::so_far(&work.engine, &step)
                };
                if work.control.is_cancelled() {
                    return Ok(stopped(seen));
                }
                self.tell(&mut migration, &work, &step, outlook).await?;
            }
            if migration.metadata.generation != generation {
                return Ok(stopped(seen)); // whoever changed the spec has queued it again
            }
            match step {
                Step::Wait(left) => {
                    self.park(&migration, work);
                    return Ok(Next::After(left.min(LOOK_AGAIN)));
                }
                Step::Hold(hold) => return Ok(self.held(&migration, work, &hold)),
                Step::Done => return Ok(Next::Await),
                step => {
                    match Box::pin(self.carry_out(seen, &mut migration, &mut work, step, signal)).await? {
                        Carried::On => {}
                        Carried::Held(hold) => {
                            let step = Step::Hold(hold.clone());
                            let outlook = verdict::so_far(&work.engine, &step);
                            self.tell(&mut migration, &work, &step, outlook).await?;
                            return Ok(self.held(&migration, work, &hold));
                        }
                        // Who cancelled it has queued it again, or is shutting down.
                        Carried::Cancelled => return Ok(stopped(seen)),
                    }
                }
            }
        }
    }

    /// What the migration is about. One that names nothing says so.
    async fn builtin(&self, seen: &SeenMigration, migration: &mut StorageMigration) -> Result<Found, Error> {
        if self.world().crd(&seen.resource).is_some() {
            return Ok(Found::Crd);
        }
        let is_crd = |group: &str, plural: &str| self.world().crd(&format!("{plural}.{group}")).is_some();
        match builtin::find(&self.client, &seen.resource, is_crd).await {
            Err(Error::NotFound { .. }) => {
                let message = format!(
                    "there is no CRD or built-in resource named {}; it is taken up as soon as there is",
                    seen.resource
                );
                self.refuse(migration, reason::NO_SUCH_RESOURCE, message).await?;
                Ok(Found::Nothing)
            }
            found => Ok(Found::BuiltIn(found?)),
        }
    }

    /// An engine that was waiting, or one that goes on from what the status remembers.
    fn take_up(&self, migration: &StorageMigration, options: Options, builtin: Option<ApiResource>) -> Work {
        let resource = &migration.spec.resource;
        if let Some(parked) = lock(&self.parked).remove(resource)
            && parked.resource_version == migration.resource_version()
        {
            return parked.work;
        }
        let status = migration.status.clone().unwrap_or_default();
        // Somebody who changes the spec of a migration that is done wants something done, if not just now.
        let changed = status.observed_generation != migration.metadata.generation;
        let renew = changed && !migration.spec.suspend;
        let pass = status::pass_of(&status).filter(|pass| !(renew && status::is_over(pass)));
        if let Some(pass) = pass.as_ref().filter(|pass| !status::is_over(pass)) {
            let r0 = pass.r0.map(|r0| r0.to_string());
            tracing::info!(%resource, phase = status.phase.map(Phase::as_str), r0, "goes on with its pass");
        }
        let control = Control::new();
        let (send, activity) = watch::channel(None);
        let (client, writer) = (self.client.clone(), self.writer_for(&control));
        let engine = match builtin {
            Some(resource) => Engine::for_builtin(&self.config, client, writer, resource, options),
            None => Engine::new(&self.config, client, writer, resource, options),
        }
        .resume(pass)
        .suspended(migration.spec.suspend)
        .read_by(Audience::StorageMigration)
        .controlled_by(control.clone())
        .watched_by(move |activity| {
            send.send_replace(Some(activity));
        });
        Work {
            engine,
            control,
            activity,
            began: None,
        }
    }

    /// The writer of one migration: a 429 that it waits out by itself slows this migration's sweeps down at once.
    pub(super) fn writer_for(&self, control: &Control) -> Writer {
        let brake = control.clone();
        let count = self.metrics.observe_writes();
        self.writer.clone().observe(move |report| {
            count(report);
            if let Outcome::Failed(class) = report.outcome
                && let Some(pressure) = Pressure::of(class)
            {
                brake.slow_down(pressure, report.duration);
            }
        })
    }

    /// Does a step, with metrics and progress beside it; stops at the next object when there is no more reason for it.
    async fn carry_out(
        &self,
        seen: &SeenMigration,
        migration: &mut StorageMigration,
        work: &mut Work,
        step: Step,
        signal: &Signal,
    ) -> Result<Carried, Error> {
        let name = step_name(&step);
        let was_patrol = matches!(step, Step::Patrol);
        let started = Instant::now();
        let pass = work.engine.pass().cloned();
        let generation = migration.metadata.generation;
        let beside = Beside {
            seen,
            pass: pass.as_ref(),
            control: &work.control,
            activity: &work.activity,
            rewriting: matches!(step, Step::Rewrite),
            signal,
        };
        let doing = work.engine.carry_out(step);
        let advanced = Box::pin(self.accompany(&beside, migration, doing)).await;
        self.own_metrics.at_rest(&seen.resource);
        if let Some(name) = name {
            self.own_metrics.step(name, started.elapsed());
        }
        let advanced = advanced?;
        if was_patrol && work.engine.pass().is_some_and(|pass| !pass.trimmed) {
            let note = "objects changed after the trim and nothing tells why, so an API server may have stored them at an old \
                        version: the version is back in storedVersions, and the migration starts over";
            tracing::warn!(resource = %seen.resource, reason = reason::NOT_PROVEN, "{note}");
            self.event(
                migration,
                pass.as_ref(),
                EventKind::Warning,
                reason::NOT_PROVEN,
                note,
            )
            .await;
        }
        Ok(match advanced {
            // Nothing more is told either: it is about a CRD or a migration that is another by now, or gone.
            _ if work.control.is_cancelled() || migration.metadata.generation != generation => {
                Carried::Cancelled
            }
            Advance::Held(hold) => Carried::Held(hold),
            _ => Carried::On,
        })
    }

    /// Whether the CRD, as the engine has just read it, still takes part: the watch may be late, and a trim is for good.
    fn still_takes_part(&self, seen: &SeenMigration, engine: &Engine) -> bool {
        let crd = engine.definition().filter(|_| seen.is_made_by_operator());
        crd.is_none_or(|crd| self.settings.opt_in.includes(crd))
    }

    fn park(&self, migration: &StorageMigration, work: Work) {
        let parked = Parked {
            work,
            resource_version: migration.resource_version(),
        };
        lock(&self.parked).insert(migration.spec.resource.clone(), parked);
    }

    /// What to do about a hold.
    fn held(&self, migration: &StorageMigration, work: Work, hold: &Hold) -> Next {
        match hold {
            Hold::Gone | Hold::Suspended => Next::Await,
            Hold::ServerBehind(names) if !names.is_empty() => {
                self.park(migration, work);
                Next::After(LOOK_AGAIN)
            }
            _ => Next::Retry,
        }
    }
}

/// Why what the spec wants to shed cannot be. Only a spec that is new, or that was refused before, is looked at: once a version
/// is shed, it may well be dropped from the CRD.
fn refused_shed(migration: &StorageMigration, engine: &Engine) -> Option<String> {
    let status = migration.status.as_ref();
    let is_new = status.and_then(|status| status.observed_generation) != migration.metadata.generation;
    let conditions = status
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    let was_refused = conditions
        .iter()
        .any(|condition| condition.reason == reason::INVALID_SPEC && condition.status == "True");
    let crd = engine.definition().filter(|_| is_new || was_refused)?;
    crate::unsheddable(&[crd], &migration.spec.shed).map(|why| format!("spec.shed: {why}"))
}

fn stopped(seen: &SeenMigration) -> Next {
    tracing::info!(resource = %seen.resource, "stopped: asked to, or things have changed");
    Next::Await
}

/// Whether what was in the way when the last reconcile ended may be out of it without having been observed to be.
fn is_worth_a_try(hold: &Hold) -> bool {
    match hold {
        Hold::Blocked(_) | Hold::Failures(_) | Hold::NotProven => true,
        // Servers that were asked have just been asked again.
        Hold::ServerBehind(names) => names.is_empty(),
        Hold::Gone | Hold::Suspended => false,
    }
}

/// Whether a step is told of before it is done. One that tries again what failed is not: people would see a migration
/// that seems to recover every few minutes.
fn worth_telling(step: &Step, retried: Option<&Hold>, migration: &StorageMigration) -> bool {
    let phase = migration.status.as_ref().and_then(|status| status.phase);
    match (step, retried) {
        (Step::Begin | Step::TakeR0, _) => false,
        (Step::Patrol, _) if phase == Some(Phase::Stalled) => false,
        (Step::Preflight, Some(Hold::Blocked(_))) => false,
        (Step::Rewrite | Step::Verify { .. }, Some(Hold::Failures(_))) => false,
        _ => true,
    }
}

fn step_name(step: &Step) -> Option<&'static str> {
    match step {
        Step::Preflight => Some("preflight"),
        Step::Rewrite => Some("rewrite"),
        Step::Verify { .. } => Some("verify"),
        Step::Patrol => Some("patrol"),
        _ => None,
    }
}
