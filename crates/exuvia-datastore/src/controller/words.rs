//! What people are told before a step, or instead of one. Pure, given what the engine has seen.

use exuvia_api::{
    Blocker, ConflictStatus, DatastoreMigration, DatastoreMigrationStatus, DatastorePhase, DatastoreProgress,
    counted, datastore_reason as reason,
};
use exuvia_runtime::publish::StallCause;
use exuvia_write::{Redacted, redacted};

use super::status::{StatusUpdate, before_the_copy, known_reason, last_reason};
use crate::Engine;
use crate::freeze::{Tight, tight};
use crate::protocol::{Checked, Hold, Next, NextStep, Stage, Step, StepKind};

/// The step that is shown while the spec asks to wait before the commit.
const VERIFIED: &str = "Verified";

/// While writes drain, the API servers are probed again and again: that is still draining to people.
pub(super) fn shown_kind(step: Step, shown: &str) -> StepKind {
    match step {
        Step::Probe if shown == StepKind::Draining.as_str() => StepKind::Draining,
        _ => step.kind(),
    }
}

/// What an engine knows of a migration.
pub(super) struct Known<'a> {
    pub(super) migration: &'a DatastoreMigration,
    pub(super) stage: Stage,
    pub(super) is_checked: bool,
    pub(super) message: Option<&'a Redacted>,
    pub(super) blockers: &'a [Blocker],
    pub(super) blocked: u64,
    pub(super) conflicts: Vec<ConflictStatus>,
    pub(super) progress: DatastoreProgress,
}

impl<'a> Known<'a> {
    pub(super) fn of(engine: &'a Engine) -> Self {
        let found = engine.found();
        Self {
            migration: engine.migration(),
            stage: stage_of(engine.migration()),
            is_checked: engine.observed().seen.checked == Checked::Passed,
            message: engine.message(),
            blockers: engine.blockers(),
            blocked: found.blocked,
            conflicts: found.conflicts,
            progress: found.progress,
        }
    }

    fn status(&self) -> DatastoreMigrationStatus {
        self.migration.status.clone().unwrap_or_default()
    }

    fn phase(&self) -> Option<DatastorePhase> {
        self.migration.status.as_ref().and_then(|status| status.phase)
    }

    /// The update that goes with what is next.
    pub(super) fn update(&self, next: &Next) -> StatusUpdate {
        let (step, message) = match next {
            NextStep::Do(step) => {
                let kind = shown_kind(*step, &self.status().step);
                (kind.as_str().to_owned(), self.doing(*step))
            }
            NextStep::Wait(_) => {
                let kind = waiting(&self.status());
                let words = self.message.cloned();
                (
                    kind.as_str().to_owned(),
                    words.unwrap_or_else(|| match kind {
                        // Nothing is locked before the beginning of the freeze is on record.
                        StepKind::Freezing => {
                            "counting writes to the source before it is frozen; nothing is refused yet".into()
                        }
                        kind => kind.doing().into(),
                    }),
                )
            }
            NextStep::Hold(hold) => (self.held_step(*hold), self.held(*hold)),
            NextStep::Done => (String::new(), self.done()),
        };
        let message = match next {
            NextStep::Do(_) | NextStep::Wait(_) => self.with_note(message),
            NextStep::Hold(_) | NextStep::Done => message,
        };
        let stall_cause = match next {
            NextStep::Hold(hold) => self.stall_reason(*hold).map(|reason| StallCause {
                reason,
                message: message.clone(),
            }),
            _ => None,
        };
        let is_idle = self.stage == Stage::Idle;
        let is_working = match next {
            NextStep::Do(_) | NextStep::Wait(_) | NextStep::Hold(Hold::WaitingFor) => true,
            NextStep::Hold(_) | NextStep::Done => false,
        };
        let progress = Some(self.progress.clone()).filter(|progress| !progress.types.is_empty());
        let is_blocked = matches!(
            next,
            NextStep::Hold(Hold::Blocked | Hold::CleanupBlocked | Hold::CopiesLeft)
        );
        StatusUpdate {
            decided_in: self.phase(),
            phase: self.shown_phase(next),
            step,
            message,
            // It outlives the undo, so that a failed migration still says why.
            reason: known_reason(&self.undo_reason().0).filter(|_| self.stage == Stage::Undoing),
            is_working,
            stall_cause,
            progress: if is_idle {
                progress.map(before_the_copy)
            } else {
                progress
            },
            conflicts: match next {
                NextStep::Hold(Hold::Conflicts) => Some(self.conflicts.clone()),
                NextStep::Hold(_) | NextStep::Done => Some(Vec::new()),
                NextStep::Do(_) | NextStep::Wait(_) => None,
            },
            blockers: match next {
                _ if is_blocked => Some(self.blockers.iter().take(32).cloned().collect()),
                NextStep::Hold(_) | NextStep::Done => Some(Vec::new()),
                NextStep::Do(_) | NextStep::Wait(_) => None,
            },
        }
    }

    fn shown_phase(&self, next: &Next) -> DatastorePhase {
        let now = self.phase().unwrap_or_default();
        match next {
            _ if self.stage != Stage::Idle || now == DatastorePhase::Failed => now,
            NextStep::Hold(Hold::Conflicts) => DatastorePhase::WaitingForConflictResolution,
            NextStep::Hold(Hold::Blocked) => DatastorePhase::Pending,
            _ => now,
        }
    }

    /// What may end the freeze too early is told as long as nobody is refused.
    fn with_note(&self, message: Redacted) -> Redacted {
        let is_before =
            matches!(self.stage, Stage::Idle | Stage::Moving) && self.status().frozen_at.is_none();
        match tight(&self.migration.spec.freeze) {
            Some(Tight::Perhaps(why)) if is_before => Redacted::ours(format!("{message}; note: {why}")),
            _ => message,
        }
    }

    fn doing(&self, step: Step) -> Redacted {
        let kind = step.kind();
        if kind == StepKind::Undoing || self.stage == Stage::Undoing {
            let why = self.undo_reason().1;
            return Redacted::ours(format!("{}: {why}", StepKind::Undoing.doing()));
        }
        match self.message {
            Some(message) => message.clone(),
            None => kind.doing().into(),
        }
    }

    /// Why everything is undone: a reason, and a sentence.
    pub(super) fn undo_reason(&self) -> (String, String) {
        match self
            .migration
            .status
            .as_ref()
            .and_then(|status| status.undo.as_ref())
        {
            Some(undo) => (undo.reason.clone(), undo.message.clone()),
            None => (
                reason::ABORTED.to_owned(),
                "the migration is being deleted".to_owned(),
            ),
        }
    }

    fn held_step(&self, hold: Hold) -> String {
        match hold {
            Hold::Blocked if self.is_checked => StepKind::Trying.as_str(),
            Hold::Blocked => StepKind::Checking.as_str(),
            Hold::Conflicts => StepKind::Trying.as_str(),
            Hold::BeforeCutover if self.status().frozen_at.is_none() => StepKind::Syncing.as_str(),
            Hold::BeforeCutover => VERIFIED,
            Hold::WaitingFor => StepKind::Waiting.as_str(),
            Hold::CleanupBlocked => StepKind::CleaningUp.as_str(),
            Hold::CopiesLeft => StepKind::Undoing.as_str(),
            Hold::Failed => "",
            Hold::Suspended => return self.status().step,
        }
        .to_owned()
    }

    fn held(&self, hold: Hold) -> Redacted {
        match hold {
            Hold::Suspended if self.stage == Stage::Moving => Redacted::ours(format!(
                "suspended: no further step begins, and the source stays as it is{}",
                frozen_until(self.migration)
            )),
            Hold::Suspended => "suspended: no further step begins".into(),
            Hold::Blocked | Hold::CleanupBlocked => self.blocked(),
            Hold::CopiesLeft => redacted!(
                "the source can be written again; copies are left, and are tried to be deleted again and again: {}",
                self.blocked()
            ),
            Hold::Conflicts => conflicting(&self.conflicts, self.progress.conflicts),
            Hold::BeforeCutover if self.status().frozen_at.is_none() => {
                "everything is copied and kept in step, and writes go on; the freeze begins when cutover.hold is false".into()
            }
            Hold::BeforeCutover => Redacted::ours(format!(
                "everything is copied and verified, and the source stays frozen until cutover.hold is false{}",
                frozen_until(self.migration)
            )),
            Hold::WaitingFor => match self.message {
                Some(message) => message.clone(),
                None => StepKind::Waiting.doing().into(),
            },
            // The engine has put it on record.
            Hold::Failed => Redacted::ours(self.status().message),
        }
    }

    fn blocked(&self) -> Redacted {
        let Some(first) = self.blockers.first() else {
            return "something stands in the way".into();
        };
        let listed = u64::try_from(self.blockers.len()).unwrap_or(u64::MAX);
        let more = self.blocked.max(listed) - 1;
        let object = match (first.namespace.as_str(), first.name.as_str()) {
            ("", "") => String::new(),
            ("", name) => format!("{} {name}: ", first.kind),
            (namespace, name) => format!("{} {namespace}/{name}: ", first.kind),
        };
        let rest = match more {
            0 => String::new(),
            more => format!(" (and {more} more, see status.blockers)"),
        };
        Redacted::ours(format!("{object}{}{rest}", first.message))
    }

    fn done(&self) -> Redacted {
        Redacted::ours(moved(&self.status()))
    }

    fn stall_reason(&self, hold: Hold) -> Option<&'static str> {
        match hold {
            Hold::Blocked | Hold::CleanupBlocked => {
                let first = self.blockers.first();
                Some(
                    first
                        .and_then(|first| known_reason(&first.reason))
                        .unwrap_or(reason::REFUSED),
                )
            }
            Hold::CopiesLeft => Some(reason::COPIES_LEFT),
            Hold::Conflicts => Some(reason::CONFLICT),
            Hold::Failed => Some(last_reason(self.migration).unwrap_or(reason::VERIFY_FAILED)),
            Hold::Suspended | Hold::BeforeCutover | Hold::WaitingFor => None,
        }
    }
}

/// Which part of the protocol applies, from what is on record.
fn stage_of(migration: &DatastoreMigration) -> Stage {
    let status = migration.status.as_ref();
    let is_undone = status.is_some_and(|status| status.undo.is_some());
    match status.and_then(|status| status.phase).unwrap_or_default() {
        DatastorePhase::Pending | DatastorePhase::WaitingForConflictResolution | DatastorePhase::Failed => {
            Stage::Idle
        }
        DatastorePhase::Migrating if is_undone || migration.metadata.deletion_timestamp.is_some() => {
            Stage::Undoing
        }
        DatastorePhase::Migrating => Stage::Moving,
        DatastorePhase::Converged | DatastorePhase::Complete => Stage::After,
    }
}

/// What a migration that must let time pass waits for.
fn waiting(status: &DatastoreMigrationStatus) -> StepKind {
    if status.phase.unwrap_or_default() != DatastorePhase::Migrating {
        StepKind::Checking
    } else if status.frozen_at.is_some() {
        StepKind::Draining
    } else {
        StepKind::Freezing
    }
}

fn frozen_until(migration: &DatastoreMigration) -> String {
    let frozen = migration
        .status
        .as_ref()
        .is_some_and(|status| status.frozen_at.is_some());
    match migration.spec.freeze.max_duration.as_str() {
        limit if frozen && !limit.starts_with('0') => {
            format!("; everything is undone when the freeze has lasted for {limit}")
        }
        _ => String::new(),
    }
}

fn conflicting(conflicts: &[ConflictStatus], total: i64) -> Redacted {
    let Some(first) = conflicts.first() else {
        return "targets exist that differ".into();
    };
    let place = if first.namespace.is_empty() {
        first.name.clone()
    } else {
        format!("{}/{}", first.namespace, first.name)
    };
    let count = match total {
        ..=1 => "a target exists and differs".to_owned(),
        many => format!("{many} targets exist and differ, the first"),
    };
    Redacted::ours(format!(
        "{count}: {} {place} in {}; make the target equal to its source, or delete the target; the migration goes on by itself",
        first.kind, first.field
    ))
}

/// What was moved, in a sentence.
pub(super) fn moved(status: &DatastoreMigrationStatus) -> String {
    let Some(progress) = &status.progress else {
        return "nothing is left to do".to_owned();
    };
    let skipped = match progress.skipped {
        0 => String::new(),
        1 => ", 1 was there already".to_owned(),
        skipped => format!(", {skipped} were there already"),
    };
    let are = if progress.migrated == 1 { "is" } else { "are" };
    format!(
        "{} of {} {are} moved{skipped}",
        counted(progress.migrated.unsigned_abs(), "object"),
        counted(progress.total_types.unsigned_abs().into(), "kind")
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_freeze_that_may_be_too_short_is_noted_until_it_begins() {
        let said = |max_duration: &str, status: Value| {
            let migration: DatastoreMigration = serde_json::from_value(json!({
                "apiVersion": "exuvia.dev/v1beta1", "kind": "DatastoreMigration", "metadata": {"name": "m"},
                "spec": {"mappings": [], "freeze": {"maxDuration": max_duration}}, "status": status,
            }))
            .unwrap();
            let known = Known {
                stage: stage_of(&migration),
                migration: &migration,
                is_checked: true,
                message: None,
                blockers: &[],
                blocked: 0,
                conflicts: Vec::new(),
                progress: DatastoreProgress::default(),
            };
            known.update(&NextStep::Do(Step::Try)).message.into_string()
        };
        let pending = json!({"phase": "Pending"});
        let note = "; note: freeze.maxDuration (30s) is short: ";
        assert!(said("30s", pending.clone()).contains(note));
        assert!(said("30s", json!({"phase": "Migrating"})).contains(note));
        let frozen = json!({"phase": "Migrating", "frozenAt": "2026-11-17T10:00:00Z"});
        for said in [said("15m", pending), said("30s", frozen)] {
            assert!(!said.contains("note: "), "{said}");
        }
    }
}
