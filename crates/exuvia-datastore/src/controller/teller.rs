//! Tells what a migration's engine does: before each step events and status, while it runs progress, after it metrics.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use exuvia_api::{DatastoreMigration, MigrationMode, counted, datastore_reason as reason};
use exuvia_runtime::machine::{Flow, Machine, Teller};
use exuvia_runtime::{EventKind, Signal};
use exuvia_sweep::Control;
use exuvia_write::{ErrorClass, Redacted};
use k8s_openapi::jiff::Timestamp;

use super::DatastoreController;
use super::metrics::Counted;
use super::migrate::Work;
use super::running::RunningStep;
use super::status::{StatusUpdate, stalled_for};
use super::words::{Known, moved, shown_kind};
use crate::copy::Findings;
use crate::lock::lock;
use crate::protocol::{self, Hold, NextStep, Stage, Step, StepKind};
use crate::{Engine, Error};

/// Other words about the same step are written this often.
const SAME_STEP: Duration = Duration::from_secs(5);

/// Tells what an engine does through the status of its migration.
pub(super) struct StatusTeller<'a> {
    controller: &'a DatastoreController,
    signal: &'a Signal,
    control: Control,
    counted: Arc<Mutex<Counted>>,
    /// The migration as it was last read or written.
    migration: DatastoreMigration,
    findings: Option<Arc<Mutex<Findings>>>,
    step: Option<Step>,
    told_at: Option<Instant>,
}

impl<'a> StatusTeller<'a> {
    pub(super) fn new(controller: &'a DatastoreController, work: &Work, signal: &'a Signal) -> Self {
        Self {
            controller,
            signal,
            control: work.control.clone(),
            counted: Arc::clone(&work.counted),
            migration: work.engine.migration().clone(),
            findings: None,
            step: None,
            told_at: None,
        }
    }

    async fn event(&self, kind: EventKind, reason: &str, note: impl Into<Redacted>) {
        let publisher = &self.controller.publisher;
        publisher
            .event(&self.migration, None, kind, reason, &note.into())
            .await;
    }

    /// Events come before the status: after a crash in between the same event is published again, which changes nothing.
    async fn publish_events(&self, known: &Known<'_>, next: &protocol::Next, update: &StatusUpdate) {
        let status = self.migration.status.clone().unwrap_or_default();
        match next {
            NextStep::Do(Step::Start) => {
                let progress = &known.progress;
                let writes = match self.migration.spec.mode {
                    MigrationMode::FreezeAndCopy => "will be refused until they are copied",
                    MigrationMode::SyncThenFreeze => "go on while they are copied",
                };
                let note = format!(
                    "moving {} of {}: writes to the source {writes}",
                    counted(progress.total.unsigned_abs(), "object"),
                    counted(progress.total_types.unsigned_abs().into(), "kind")
                );
                self.event(EventKind::Normal, "Started", Redacted::ours(note))
                    .await;
            }
            NextStep::Do(Step::RecordFrozen) => {
                let note = "every API server refuses writes to the source, and none is under way";
                self.event(EventKind::Normal, "Frozen", note).await;
            }
            NextStep::Do(Step::Thaw) => {
                let note = format!(
                    "everything is copied and verified, and the targets can be written: {}",
                    moved(&status)
                );
                self.event(EventKind::Normal, "Converged", Redacted::ours(note))
                    .await;
            }
            NextStep::Do(Step::Complete) => {
                self.event(EventKind::Normal, "Complete", Redacted::ours(moved(&status)))
                    .await;
            }
            // The step before has put the reason on record.
            NextStep::Do(step)
                if known.stage == Stage::Undoing && status.step != StepKind::Undoing.as_str() =>
            {
                let (reason, why) = known.undo_reason();
                tracing::debug!(?step, "undoing");
                let kind = if reason == reason::ABORTED {
                    EventKind::Normal
                } else {
                    EventKind::Warning
                };
                self.event(kind, "Undoing", Redacted::ours(format!("{reason}: {why}")))
                    .await;
            }
            NextStep::Hold(hold) => {
                if let Some(cause) = &update.stall_cause
                    && stalled_for(&self.migration) != Some(cause.reason)
                {
                    let note = Redacted::ours(format!("{}: {}", cause.reason, cause.message));
                    let name = match hold {
                        Hold::Conflicts => "Conflict",
                        Hold::Failed => "Failed",
                        _ => "Blocked",
                    };
                    self.event(EventKind::Warning, name, note).await;
                }
            }
            _ => {}
        }
    }

    /// Whether the status is written before this. The same step in other words is not, or each probe of an API server would
    /// be a write; nor is what tries again what failed: people would see a migration that recovers every ten seconds.
    fn is_worth_telling(&self, next: &protocol::Next, retried: Option<&Hold>) -> bool {
        let NextStep::Do(step) = next else {
            return true;
        };
        // It puts the reason on record, and the next step tells it.
        if matches!(step, Step::Undo(_)) {
            return false;
        }
        let looks_again = matches!(
            step,
            Step::Check
                | Step::AddFinalizer
                | Step::MakeClones
                | Step::Try
                | Step::RemoveClones
                | Step::LookAtWaits
                | Step::CleanUp
        );
        if retried.is_some() && looks_again {
            return false;
        }
        let status = self.migration.status.clone().unwrap_or_default();
        let is_same = status.step == shown_kind(*step, &status.step).as_str()
            && status.observed_generation == self.migration.metadata.generation;
        let is_fresh = self.told_at.is_some_and(|told| told.elapsed() < SAME_STEP);
        !(is_same && (is_fresh || stalled_for(&self.migration).is_some()))
    }

    fn log(&self, next: &protocol::Next, update: &StatusUpdate) {
        let name = self.migration.metadata.name.as_deref().unwrap_or_default();
        let status = self.migration.status.as_ref();
        let (phase, step) = (update.phase.as_str(), &update.step);
        let is_told = status.is_some_and(|status| status.step == *step && status.phase == Some(update.phase));
        match (&update.stall_cause, next) {
            (Some(cause), _) if stalled_for(&self.migration) != Some(cause.reason) => {
                tracing::warn!(
                    migration = name,
                    phase,
                    reason = cause.reason,
                    "{}",
                    cause.message
                );
            }
            (Some(_), _) => {}
            (None, _) if !is_told => tracing::info!(migration = name, phase, step, "{}", update.message),
            (None, _) => {}
        }
    }

    async fn write(&mut self, update: &StatusUpdate) -> Result<Flow, Error> {
        let publisher = &self.controller.publisher;
        match publisher.publish(&mut self.migration, update).await {
            Ok(()) => Ok(Flow::GoOn),
            // It is gone, and nobody is left to tell.
            Err(error) if error.class() == ErrorClass::Gone => Ok(Flow::Stop),
            Err(error) => Err(error.into()),
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
        self.migration = engine.migration().clone();
        self.findings = engine.shared_findings();
        if let Some(kinds) = engine.kinds() {
            self.controller.meters.know(kinds);
        }
        self.step = match next {
            NextStep::Do(step) => Some(*step),
            _ => None,
        };
        self.controller.meters.show_frozen(&self.migration);
        // Its finalizer is off, or it was not there in the first place: the object is gone.
        if *next == NextStep::Done && self.migration.metadata.deletion_timestamp.is_some() {
            return Ok(Flow::GoOn);
        }
        if *next == NextStep::Do(Step::Complete)
            && let Some(started) = self
                .migration
                .status
                .as_ref()
                .and_then(|status| status.started_at.as_ref())
        {
            // Before it is told: somebody who waits for that may look at the metrics next.
            let took = Timestamp::now().duration_since(started.0).unsigned_abs();
            let name = self.migration.metadata.name.as_deref().unwrap_or_default();
            self.controller.publisher.gauges().pass(name, took);
        }
        let known = Known::of(engine);
        let update = known.update(next);
        self.publish_events(&known, next, &update).await;
        if !self.is_worth_telling(next, retried) {
            return Ok(Flow::GoOn);
        }
        self.log(next, &update);
        self.told_at = Some(Instant::now());
        self.write(&update).await
    }

    async fn accompany<T: Send>(&mut self, doing: impl Future<Output = T> + Send) -> T {
        let running = RunningStep {
            step: self.step,
            began: Instant::now(),
            migration: self.migration.clone(),
            findings: self.findings.clone(),
            control: &self.control,
            meters: &self.controller.meters,
            counted: &self.counted,
        };
        let accompanied = self
            .controller
            .accompany(&mut self.migration, &running, self.signal, doing);
        let done = Box::pin(accompanied).await;
        if let Some(step) = self.step {
            let gauges = self.controller.publisher.gauges();
            gauges.step(step.kind().as_str(), running.began.elapsed());
        }
        done
    }

    async fn stepped(&mut self, engine: &Engine, _: Option<&Hold>) -> Result<Flow, Error> {
        let meters = &self.controller.meters;
        match self.step {
            Some(Step::Copy) => {
                let found = engine.found();
                meters.count(&mut lock(&self.counted), &found.progress);
                for (kind, time) in &found.took {
                    meters.took(kind, *time);
                }
                for blocker in &found.blockers {
                    let kind = blocker.kind.split('.').next().unwrap_or_default();
                    meters.failed(kind, 1);
                }
            }
            Some(Step::Sync | Step::CatchUp) => {
                meters.count(&mut lock(&self.counted), &engine.found().progress);
            }
            Some(Step::Start) => lock(&self.counted).clear(),
            Some(Step::EndUndo) => {
                self.migration = engine.migration().clone();
                meters.show_frozen(&self.migration);
                let note = "everything is undone, and the source can be written again";
                self.event(EventKind::Normal, "Thawed", note).await;
            }
            Some(Step::Commit) => meters.show_frozen(engine.migration()),
            _ => {}
        }
        Ok(if engine.is_cancelled() {
            Flow::Stop
        } else {
            Flow::GoOn
        })
    }

    fn is_worth_a_try(&self, hold: &Hold) -> bool {
        match hold {
            Hold::Blocked | Hold::Conflicts | Hold::WaitingFor | Hold::CleanupBlocked | Hold::CopiesLeft => {
                true
            }
            Hold::Suspended | Hold::Failed | Hold::BeforeCutover => false,
        }
    }
}
