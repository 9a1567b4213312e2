//! The protocol: given what was observed, the next step, or why not. Pure: no client, no clock, no async.
//!
//! It is a list of [`RULES`] in four stages, read from top to bottom. The [`Stage`] follows from the phase on record; the first
//! rule of the stage that is not satisfied decides. Up to the commit every step has an undo, and afterwards nothing is undone.
//! Every rule is there for a way to lose data, to lock people out or to never end: the model check takes each one out and must
//! then find one.

mod observed;
mod rules;
mod steps;

use exuvia_api::{DatastorePhase, datastore_reason as reason};
pub use exuvia_runtime::machine::NextStep;

pub use self::observed::{
    Checked, Clones, Copied, Deletion, Denies, Drained, Flags, Guard, Locks, Observed, Policy, Record, Route,
    Second, Seen, Synced, Tried, Verified, Waits, Wants,
};
pub use self::rules::{RULES, cleanup};
pub use self::steps::{Step, StepKind};

/// What is next for a migration.
pub type Next = NextStep<Step, Hold>;

/// A line of the protocol: the step that it insists on, if it does.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// In which stage it is looked at.
    pub stage: Stage,
    /// What must hold before the rules below are looked at.
    pub name: &'static str,
    insists: fn(&Observed) -> Option<Next>,
}

/// Which part of the protocol applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing is locked or copied.
    Idle,
    /// On the way to the commit.
    Moving,
    /// On the way back.
    Undoing,
    /// After the commit.
    After,
}

impl Stage {
    /// The stage that follows from what is on record.
    pub fn from_record(record: &Record) -> Self {
        match record.phase {
            DatastorePhase::Pending
            | DatastorePhase::WaitingForConflictResolution
            | DatastorePhase::Failed => Self::Idle,
            DatastorePhase::Migrating if record.undo.is_some() || record.deletion != Deletion::No => {
                Self::Undoing
            }
            DatastorePhase::Migrating => Self::Moving,
            DatastorePhase::Converged | DatastorePhase::Complete => Self::After,
        }
    }
}

/// Why everything is undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Undo {
    /// The freeze lasted too long.
    MaxDuration,
    /// Somebody removed or changed our policies during the freeze.
    PolicyRemoved,
    /// Somebody puts the APIService back again and again.
    RouteContested,
    /// Targets are not as they were written.
    VerifyFailed,
    /// Targets exist that differ: a person must look, and nobody is waited for under a freeze.
    Conflict,
    /// An object cannot be copied.
    Refused,
    /// The process ended during the switch, and what it knew of the other API server's uids is lost.
    Interrupted,
}

impl Undo {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::MaxDuration,
        Self::PolicyRemoved,
        Self::RouteContested,
        Self::VerifyFailed,
        Self::Conflict,
        Self::Refused,
        Self::Interrupted,
    ];

    /// The phase that follows, unless it happens too often ([`MAX_RETREATS`]).
    pub fn then(self) -> DatastorePhase {
        match self {
            Self::MaxDuration | Self::PolicyRemoved | Self::RouteContested | Self::VerifyFailed => {
                DatastorePhase::Failed
            }
            Self::Conflict => DatastorePhase::WaitingForConflictResolution,
            Self::Refused | Self::Interrupted => DatastorePhase::Pending,
        }
    }

    /// The reason, as a condition gives it.
    pub fn reason(self) -> &'static str {
        match self {
            Self::MaxDuration => reason::MAX_DURATION,
            Self::PolicyRemoved => reason::POLICY_REMOVED,
            Self::RouteContested => reason::ROUTE_CONTESTED,
            Self::VerifyFailed => reason::VERIFY_FAILED,
            Self::Conflict => reason::CONFLICT,
            Self::Refused => reason::REFUSED,
            Self::Interrupted => reason::INTERRUPTED,
        }
    }

    /// The one with this reason.
    pub fn from_reason(reason: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|undo| undo.reason() == reason)
    }
}

/// Why a migration does not go on. It does, by itself, when the cause goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hold {
    /// The spec asks for it.
    Suspended,
    /// Something stands in the way; nothing is locked.
    Blocked,
    /// Targets exist that differ; nothing is locked.
    Conflicts,
    /// Everything was undone, and somebody should look.
    Failed,
    /// Everything is copied and verified, and the spec asks to wait before the commit.
    BeforeCutover,
    /// Objects are not yet as `cutover.waitFor` wants them.
    WaitingFor,
    /// The source cannot be cleaned up: not every object was moved.
    CleanupBlocked,
    /// Everything is undone and nothing is locked, but somebody keeps our copies from being deleted.
    CopiesLeft,
}

/// How often the APIService may come back before the migration gives up.
pub const MAX_ROUTE_RETURNS: u8 = 3;

/// How often everything is undone before the migration waits for somebody to ask: a freeze that fails again and again for
/// the same reason helps nobody.
pub const MAX_RETREATS: u8 = 3;

/// How often objects that were written during the copy are copied again before the migration gives up.
pub const MAX_COPIES: u8 = 3;

/// The next step.
pub fn next(observed: &Observed) -> Next {
    next_without(observed, None)
}

/// The next step if one rule, by its index, were not there: for the check that none is there for nothing.
pub fn next_without(observed: &Observed, left_out: Option<usize>) -> Next {
    let stage = Stage::from_record(&observed.record);
    RULES
        .iter()
        .enumerate()
        .filter(|(index, rule)| rule.stage == stage && Some(*index) != left_out)
        .find_map(|(_, rule)| (rule.insists)(observed))
        .unwrap_or(NextStep::Done)
}

#[cfg(test)]
mod tests;
