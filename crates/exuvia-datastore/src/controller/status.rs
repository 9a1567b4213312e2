//! What the controller writes of a migration's status, and what it leaves to the engine. Pure.
//!
//! The engine puts on record what must survive a crash: phase, times, stages, what was saved, an undo. The rest is for people
//! and tools: step, message, progress, what stands in the way, and the conditions `Ready`, `Reconciling` and `Stalled`.

use exuvia_api::{
    Blocker, ConflictStatus, DatastoreMigration, DatastorePhase, DatastoreProgress, datastore_reason,
};
use exuvia_runtime::publish::{Published, READY, STALLED, StallCause, Summary, Update};
use exuvia_write::{Redacted, conditions};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// The longest message that the CRD takes.
const MESSAGE_BYTES: usize = 1024;

/// What is to be said of a migration.
#[derive(Clone, Debug)]
pub(super) struct StatusUpdate {
    /// The phase in which the migration was when this was decided.
    pub(super) decided_in: Option<DatastorePhase>,
    /// The phase that it shows. The controller changes it only while nothing is locked.
    pub(super) phase: DatastorePhase,
    pub(super) step: String,
    pub(super) message: Redacted,
    /// Why it is not ready, in one word; by default the phase.
    pub(super) reason: Option<&'static str>,
    pub(super) is_working: bool,
    pub(super) stall_cause: Option<StallCause>,
    /// `None`: as before.
    pub(super) progress: Option<DatastoreProgress>,
    pub(super) conflicts: Option<Vec<ConflictStatus>>,
    pub(super) blockers: Option<Vec<Blocker>>,
}

impl Update<DatastoreMigration> for StatusUpdate {
    fn phase(&self) -> &'static str {
        self.phase.as_str()
    }

    fn message(&self) -> &str {
        &self.message
    }

    fn stall_cause(&self) -> Option<&StallCause> {
        self.stall_cause.as_ref()
    }

    fn apply(&self, migration: &mut DatastoreMigration, generation: Option<i64>) {
        let status = migration.status.get_or_insert_default();
        if status.phase != self.decided_in {
            return; // another process has gone on from here
        }
        if may_set_phase(self.decided_in) {
            status.phase = Some(self.phase);
        }
        // A failed migration begins again when its generation is another one than this.
        if self.decided_in != Some(DatastorePhase::Failed) {
            status.observed_generation = generation;
        }
        status.step.clone_from(&self.step);
        let message = self.message.cut(MESSAGE_BYTES);
        status.message = message.to_string();
        if let Some(progress) = &self.progress {
            status.progress = Some(progress.clone());
        }
        if let Some(conflicts) = &self.conflicts {
            status.conflicts.clone_from(conflicts);
        }
        if let Some(blockers) = &self.blockers {
            status.blockers.clone_from(blockers);
        }
        let observed = status.observed_generation;
        let summary = Summary {
            is_ready: self.phase == DatastorePhase::Complete && self.stall_cause.is_none(),
            is_working: self.is_working,
            reason: self.reason.unwrap_or(self.phase.as_str()),
            message: &message,
            stall_cause: self.stall_cause.as_ref(),
        };
        let all = summary.conditions(migration, observed);
        let status = migration.status.get_or_insert_default();
        for condition in all {
            conditions::set(&mut status.conditions, condition);
        }
    }
}

/// Nothing is locked or copied in these phases, so the phase is only for people to read.
fn may_set_phase(phase: Option<DatastorePhase>) -> bool {
    matches!(
        phase,
        None | Some(DatastorePhase::Pending | DatastorePhase::WaitingForConflictResolution)
    )
}

/// What the publisher must know of a `DatastoreMigration`.
pub(super) enum Migrations {}

impl Published for Migrations {
    type Object = DatastoreMigration;

    const PHASES: &'static [&'static str] = &DatastorePhase::NAMES;
    const SHOWS_EVERY_PHASE: bool = true;
    const STALL_REASONS: &'static [&'static str] = &datastore_reason::ALL;
    const METRICS: &'static str = "exuvia_datastore";
    const PASS_METRIC: &'static str = "duration_seconds";
    const ACTION: &'static str = "Migrate";

    fn subject(migration: &DatastoreMigration) -> &str {
        migration.metadata.name.as_deref().unwrap_or_default()
    }

    fn phase(migration: &DatastoreMigration) -> Option<&'static str> {
        let phase = migration.status.as_ref()?.phase?;
        Some(phase.as_str())
    }

    fn conditions(migration: &DatastoreMigration) -> &[Condition] {
        let status = migration.status.as_ref();
        status.map_or(&[], |status| &status.conditions)
    }
}

/// Why the status says that the migration does not go on, if it says so.
pub(super) fn stalled_for(migration: &DatastoreMigration) -> Option<&str> {
    let conditions = Migrations::conditions(migration).iter();
    conditions
        .filter(|condition| condition.type_ == STALLED && condition.status == "True")
        .map(|condition| condition.reason.as_str())
        .next()
}

/// The reason that the condition `Ready` gives, if it is one of a stall.
pub(super) fn last_reason(migration: &DatastoreMigration) -> Option<&'static str> {
    let mut conditions = Migrations::conditions(migration).iter();
    let ready = conditions.find(|condition| condition.type_ == READY)?;
    known_reason(&ready.reason)
}

/// One of the reasons that metrics know.
pub(super) fn known_reason(reason: &str) -> Option<&'static str> {
    datastore_reason::ALL.into_iter().find(|known| *known == reason)
}

/// As it is while nothing is copied: the trial has counted objects, and none of them is moved.
pub(super) fn before_the_copy(mut progress: DatastoreProgress) -> DatastoreProgress {
    progress.completed_types = 0;
    progress.type_progress = format!("0 / {}", progress.total_types);
    progress.migrated = 0;
    for of_type in &mut progress.types {
        of_type.migrated = 0;
    }
    progress
}

/// A running copy counts objects as it comes by; how many there are is known from the trial.
pub(super) fn with_totals_of(
    mut progress: DatastoreProgress,
    trial: Option<&DatastoreProgress>,
) -> DatastoreProgress {
    let Some(trial) = trial else {
        return progress;
    };
    for of_type in &mut progress.types {
        let counted = trial
            .types
            .iter()
            .find(|other| other.kind == of_type.kind && other.mapping == of_type.mapping);
        of_type.total = of_type.total.max(counted.map_or(0, |counted| counted.total));
    }
    progress.total = progress.types.iter().map(|of_type| of_type.total).sum();
    progress
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
