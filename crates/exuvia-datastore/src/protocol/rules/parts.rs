//! What the rules are made of: how one is written down, and what several of them ask.

use exuvia_api::{CleanupSource, DatastorePhase};

use super::super::{
    Copied, Deletion, Guard, Hold, MAX_COPIES, Next, NextStep, Observed, Rule, Stage, Step, Synced, Undo,
    Verified,
};

pub(super) const fn idle(name: &'static str, insists: fn(&Observed) -> Option<Next>) -> Rule {
    Rule {
        stage: Stage::Idle,
        name,
        insists,
    }
}

pub(super) const fn moving(name: &'static str, insists: fn(&Observed) -> Option<Next>) -> Rule {
    Rule {
        stage: Stage::Moving,
        name,
        insists,
    }
}

pub(super) const fn undoing(name: &'static str, insists: fn(&Observed) -> Option<Next>) -> Rule {
    Rule {
        stage: Stage::Undoing,
        name,
        insists,
    }
}

pub(super) const fn after(name: &'static str, insists: fn(&Observed) -> Option<Next>) -> Rule {
    Rule {
        stage: Stage::After,
        name,
        insists,
    }
}

pub(super) fn when(condition: bool, step: Step) -> Option<Next> {
    condition.then_some(NextStep::Do(step))
}

pub(super) fn hold_when(condition: bool, hold: Hold) -> Option<Next> {
    condition.then_some(NextStep::Hold(hold))
}

/// D13: a write of ours that nobody waits for any more may still take effect. What is looked at before that time has passed
/// is not yet how it stays.
pub(super) fn settle_when(condition: bool, o: &Observed) -> Option<Next> {
    o.seen.unsettled.filter(|_| condition).map(NextStep::Wait)
}

pub(super) fn copied(o: &Observed) -> Option<Next> {
    match o.seen.copied {
        Copied::No if is_followed(o) => None, // what is left is copied and read at once, below
        Copied::No => Some(NextStep::Do(Step::Copy)),
        Copied::Conflicts => Some(NextStep::Do(Step::Undo(Undo::Conflict))),
        Copied::Refused => Some(NextStep::Do(Step::Undo(Undo::Refused))),
        Copied::Yes => None,
    }
}

pub(super) fn settled(o: &Observed) -> Option<Next> {
    settle_when(o.seen.verified != Verified::Yes, o)
}

pub(super) fn verified(o: &Observed) -> Option<Next> {
    match o.seen.verified {
        Verified::No if is_followed(o) => Some(NextStep::Do(Step::CatchUp)),
        Verified::No => Some(NextStep::Do(Step::Verify)),
        Verified::SourceMoved if o.seen.copies < MAX_COPIES => Some(NextStep::Do(Step::Copy)),
        Verified::SourceMoved | Verified::Failed => Some(NextStep::Do(Step::Undo(Undo::VerifyFailed))),
        Verified::Yes => None,
    }
}

/// Whether every change since the last full look is known. After a crash it is not, and everything is read again.
pub(super) fn is_followed(observed: &Observed) -> bool {
    observed.wants.sync && observed.seen.synced == Synced::Yes
}

pub(super) fn is_deleted(observed: &Observed) -> bool {
    observed.record.deletion != Deletion::No
}

pub(super) fn is_counting(observed: &Observed) -> bool {
    matches!(observed.locks.guard, Guard::Young(_) | Guard::Ready)
}

pub(super) fn is_converged(observed: &Observed) -> bool {
    observed.record.phase == DatastorePhase::Converged
}

/// What becomes of the source in the end. A migration that goes along with its CRD was not asked to clean up.
pub fn cleanup(observed: &Observed) -> CleanupSource {
    match observed.record.deletion {
        Deletion::WithItsCrd => CleanupSource::KeepFrozen,
        Deletion::No | Deletion::Asked => observed.wants.cleanup,
    }
}
