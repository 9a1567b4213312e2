//! Tells what a migration's engine does: before each step events and status, while it runs progress, after it metrics.

use std::sync::Mutex;
use std::time::Instant;

use exuvia_api::{Phase, StorageMigration, StorageMigrationSpec, condition, reason};
use exuvia_runtime::machine::{Flow, Machine, Teller};
use exuvia_runtime::{EventKind, Signal};
use exuvia_sweep::{Control, Tally};
use exuvia_write::Redacted;
use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;

use super::StorageController;
use super::migrate::Work;
use super::running::{Cause, RunningStep};
use super::status::StatusUpdate;
use super::updates::{crd_of, update};
use super::verdict;
use super::world::SeenMigration;
use crate::Error;
use crate::engine::{Activity, Engine};
use crate::protocol::{self, Hold, NextStep, Pass, Step, StepKind};

/// Tells what an engine does through the status of its migration.
pub(super) struct StatusTeller<'a> {
    controller: &'a StorageController,
    seen: &'a SeenMigration,
    control: Control,
    activity: watch::Receiver<Option<Activity>>,
    signal: &'a Signal,
    /// The generation of the spec that is carried out.
    generation: Option<i64>,
    /// The migration as it was last written.
    pub(super) migration: StorageMigration,
    /// When the pass began, as far as this process knows.
    pub(super) began: Option<Instant>,
    /// Why the spec cannot be carried out.
    pub(super) refused: Option<String>,
    /// Why nothing can be rewritten now.
    pub(super) waits: Option<Redacted>,
    /// The CRD, freshly read, does not take part any more.
    pub(super) has_left: bool,
    /// The step that was told last, and what was remembered before it.
    step: Option<StepKind>,
    pass: Option<Pass>,
}

impl<'a> StatusTeller<'a> {
    pub(super) fn new(
        controller: &'a StorageController,
        seen: &'a SeenMigration,
        migration: StorageMigration,
        work: &Work,
        signal: &'a Signal,
    ) -> Self {
        Self {
            controller,
            seen,
            control: work.control.clone(),
            activity: work.activity.clone(),
            signal,
            generation: migration.metadata.generation,
            migration,
            began: work.began,
            refused: None,
            waits: None,
            has_left: false,
            step: None,
            pass: None,
        }
    }

    /// Whether the CRD, as the engine has just read it, still takes part: the watch may be late, and a trim is for good.
    fn still_takes_part(&self, engine: &Engine) -> bool {
        let crd = engine.definition().filter(|_| self.seen.is_made_by_operator());
        crd.is_none_or(|crd| self.controller.settings.opt_in.includes(crd))
    }

    /// Whether the spec is still the one that is carried out. A change has queued the migration again.
    fn go_on(&self, engine: &Engine) -> Flow {
        if engine.is_cancelled() || self.migration.metadata.generation != self.generation {
            Flow::Stop
        } else {
            Flow::GoOn
        }
    }
}

impl Teller<Engine> for StatusTeller<'_> {
    async fn tell(
        &mut self,
        engine: &Engine,
        next: &protocol::Next,
        retried: Option<&Hold>,
    ) -> Result<Flow, Error> {
        self.has_left = !self.still_takes_part(engine);
        if self.has_left {
            return Ok(Flow::Stop);
        }
        // One that is to do nothing has no use for a spec that can be carried out.
        let is_suspended = self.migration.spec.suspend;
        self.refused = refused_shed(&self.migration, engine).filter(|_| !is_suspended);
        if self.refused.is_some() {
            return Ok(Flow::Stop);
        }
        if let (NextStep::Do(_), Some(crd)) = (next, engine.definition()) {
            self.waits = self.controller.moved_by(&crd.group, &crd.kind).await?;
            if self.waits.is_some() {
                return Ok(Flow::Stop);
            }
        }
        (self.step, self.pass) = (None, engine.pass().cloned());
        match next {
            NextStep::Do(step) => {
                self.step = Some(step.kind());
                if *step == Step::Begin {
                    self.began = Some(Instant::now());
                }
            }
            // Before it is told: somebody who waits for that may look at the metrics next.
            NextStep::Done => {
                if let Some(began) = self.began.take() {
                    let gauges = self.controller.publisher.gauges();
                    gauges.pass(&self.seen.resource, began.elapsed());
                }
            }
            NextStep::Wait(_) | NextStep::Hold(_) => {}
        }
        let is_built_in = self.pass.as_ref().is_some_and(Pass::is_built_in);
        if worth_telling(next, retried, &self.migration, is_built_in) {
            let outlook = if *next == NextStep::Done {
                let cause = Cause {
                    seen: self.seen,
                    pass: self.pass.as_ref(),
                    control: &self.control,
                    signal: self.signal,
                };
                self.controller.verdict(&cause, &self.migration, engine).await?
            } else {
                verdict::so_far(engine, next)
            };
            if engine.is_cancelled() {
                return Ok(Flow::Stop);
            }
            let looked_at = outlook.as_ref().filter(|_| *next == NextStep::Done);
            let update = StatusUpdate {
                looked_at: looked_at.map(|_| Timestamp::now()),
                outlook,
                ..update(engine, &self.activity, next, &self.migration)
            };
            self.controller.tell(&mut self.migration, &update).await?;
        }
        Ok(self.go_on(engine))
    }

    async fn accompany<T: Send>(&mut self, doing: impl Future<Output = T> + Send) -> T {
        let started = Instant::now();
        let cause = Cause {
            seen: self.seen,
            pass: self.pass.as_ref(),
            control: &self.control,
            signal: self.signal,
        };
        let running = RunningStep {
            resource: &self.seen.resource,
            step: self.step,
            control: &self.control,
            activity: &self.activity,
            objects: &self.controller.objects,
            counted: Mutex::new(Tally::default()),
        };
        let accompanied = self
            .controller
            .accompany(&cause, &mut self.migration, &running, doing);
        let done = Box::pin(accompanied).await;
        if let Some(name) = self.step.and_then(StepKind::metric) {
            self.controller.publisher.gauges().step(name, started.elapsed());
        }
        done
    }

    async fn stepped(&mut self, engine: &Engine, _: Option<&Hold>) -> Result<Flow, Error> {
        if self.step == Some(StepKind::Patrol) && engine.pass().is_some_and(|pass| !pass.trimmed) {
            let note = "objects changed after the trim and nothing tells why, so an API server may have stored them at an old \
                        version: the version is back in storedVersions, and the migration starts over";
            tracing::warn!(resource = %self.seen.resource, reason = reason::NOT_PROVEN, "{note}");
            let crd = crd_of(&self.migration, self.pass.as_ref());
            self.controller
                .publisher
                .event(
                    &self.migration,
                    crd.as_ref(),
                    EventKind::Warning,
                    reason::NOT_PROVEN,
                    &note.into(),
                )
                .await;
        }
        Ok(self.go_on(engine))
    }

    fn is_worth_a_try(&self, hold: &Hold) -> bool {
        is_worth_a_try(hold)
    }
}

/// Why what the spec wants to shed cannot be. What a pass was already to shed was found to be a version then: once it is shed,
/// it may well be dropped from the CRD.
fn refused_shed(migration: &StorageMigration, engine: &Engine) -> Option<String> {
    let accepted = accepted_shed(migration);
    let is_accepted = |version: &&String| accepted.contains(version);
    let unknown = migration.spec.shed.iter().filter(|version| !is_accepted(version));
    let unknown: Vec<String> = unknown.cloned().collect();
    crate::unsheddable(&[engine.definition()?], &unknown).map(|why| format!("spec.shed: {why}"))
}

/// What the pass in the status sheds. The spec is judged before a pass begins, and not while it is suspended.
fn accepted_shed(migration: &StorageMigration) -> Vec<String> {
    let Some(status) = &migration.status else {
        return Vec::new();
    };
    let is_refused = status
        .conditions
        .iter()
        .any(|held| held.type_ == condition::STALLED && held.reason == reason::INVALID_SPEC);
    let is_suspended = status.phase == Some(Phase::Suspended);
    let pass = status.pass.as_ref();
    let pass = pass.filter(|pass| !is_refused && (!is_suspended || pass.preflight.is_some()));
    let spec = pass.and_then(|pass| pass.spec.as_ref());
    let spec = spec.and_then(|spec| serde_json::from_str::<StorageMigrationSpec>(&spec.json).ok());
    spec.map(|spec| spec.shed).unwrap_or_default()
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

/// Whether a step is told before it is done. One that tries again what failed is not: people would see a migration that
/// seems to recover every few minutes.
fn worth_telling(
    next: &protocol::Next,
    retried: Option<&Hold>,
    migration: &StorageMigration,
    is_built_in: bool,
) -> bool {
    let NextStep::Do(step) = next else {
        return true;
    };
    let phase = migration.status.as_ref().and_then(|status| status.phase);
    let is_again = match (step, retried) {
        (Step::Patrol, _) => phase == Some(Phase::Stalled),
        (Step::Preflight, Some(Hold::Blocked(_))) => true,
        (Step::Rewrite | Step::Verify { .. }, Some(Hold::Failures(_))) => true,
        // A built-in resource has no API servers to wait for.
        (Step::TakeR0, _) => is_built_in,
        _ => false,
    };
    step.kind().is_told() && !is_again
}
