//! The rules of the protocol, stage by stage, from top to bottom.

mod parts;

use exuvia_api::{CleanupSource, DatastorePhase};

pub use self::parts::cleanup;
use self::parts::{
    after, copied, hold_when, idle, is_converged, is_counting, is_deleted, moving, settle_when, settled,
    undoing, verified, when,
};
use super::{
    Checked, Clones, Denies, Drained, Guard, Hold, MAX_ROUTE_RETURNS, NextStep, Policy, Route, Rule, Second,
    Step, Synced, Tried, Undo, Waits,
};

/// The protocol.
pub const RULES: [Rule; 69] = [
    // Idle: nothing is locked or copied.
    // B15: somebody may have removed the status. Until the commit everything is undone; later on only a person knows whether
    // the targets were written since.
    idle("what is locked is on record", |o| match o.locks.policy {
        // Copies are made before anything is locked, and the shield goes last. As long as the other API server answers, nothing is committed.
        Policy::Absent | Policy::NotWanted => match o.locks.route {
            _ if o.locks.second == Second::Absent && !o.locks.shield => None,
            Route::Backend => Some(NextStep::Do(Step::Undo(Undo::Interrupted))),
            Route::Crds if is_deleted(o) => None,
            Route::Crds => Some(NextStep::Hold(Hold::Blocked)),
        },
        Policy::Frozen => Some(NextStep::Do(Step::Undo(Undo::Interrupted))),
        Policy::Partial | Policy::Committed | Policy::Converged if is_deleted(o) => None,
        Policy::Partial | Policy::Committed | Policy::Converged => Some(NextStep::Hold(Hold::Blocked)),
    }),
    idle("no clone appears after the migration is gone", |o| {
        settle_when(is_deleted(o) && o.record.has_finalizer, o)
    }),
    idle("a migration that is deleted leaves nothing behind", |o| {
        if !is_deleted(o) {
            return None;
        }
        when(o.locks.clones != Clones::Absent, Step::RemoveClones)
            .or_else(|| when(o.locks.second != Second::Absent, Step::UndoVersion))
            .or_else(|| when(o.record.has_finalizer, Step::RemoveFinalizer))
            .or(Some(NextStep::Done))
    }),
    // Behind an APIService a target that differs shows only under a freeze, so whether it is resolved cannot be seen from
    // here: to look again is to freeze again.
    idle("what failed begins again only if somebody asks", |o| {
        let hold = match o.record.phase {
            DatastorePhase::Failed => Hold::Failed,
            DatastorePhase::WaitingForConflictResolution if o.wants.route => Hold::Conflicts,
            _ => return None,
        };
        when(o.record.retry_asked, Step::Restart).or(Some(NextStep::Hold(hold)))
    }),
    idle("not suspended", |o| hold_when(o.wants.suspend, Hold::Suspended)),
    idle("the spec can be carried out", |o| match o.seen.checked {
        Checked::Unknown => Some(NextStep::Do(Step::Check)),
        // Clones of an earlier try are of no use while it is blocked.
        Checked::Blocked => {
            when(o.locks.clones != Clones::Absent, Step::RemoveClones).or(Some(NextStep::Hold(Hold::Blocked)))
        }
        Checked::Passed => None,
    }),
    idle("the finalizer is there before anything else is", |o| {
        when(!o.record.has_finalizer, Step::AddFinalizer)
    }),
    idle("objects are tried where the target CRDs answer", |o| {
        let needed = o.wants.clones && o.seen.tried == Tried::Unknown;
        when(needed && o.locks.clones != Clones::Ready, Step::MakeClones)
    }),
    idle("every object was tried", |o| {
        when(o.seen.tried == Tried::Unknown, Step::Try)
    }),
    idle("clones are removed as soon as everything is tried", |o| {
        when(o.locks.clones != Clones::Absent, Step::RemoveClones)
    }),
    idle("no object is refused", |o| {
        hold_when(o.seen.tried == Tried::Blocked, Hold::Blocked)
    }),
    // PITFALLS B18: a target that differs is never overwritten, and a person is waited for without a freeze.
    idle("no target differs", |o| {
        hold_when(o.seen.tried == Tried::Conflicts, Hold::Conflicts)
    }),
    idle("no clone appears after the beginning", |o| {
        settle_when(o.wants.clones, o)
    }),
    idle("the beginning is on record before anything is locked", |_| {
        Some(NextStep::Do(Step::Start))
    }),
    // Moving: up to the commit.
    moving("the freeze does not last longer than it may", |o| {
        let too_long = o
            .record
            .frozen_for
            .zip(o.wants.max_duration)
            .is_some_and(|(frozen, most)| frozen >= most);
        when(too_long, Step::Undo(Undo::MaxDuration))
    }),
    // B12: a lock that somebody took away is not a lock. What was copied meanwhile proves nothing.
    // Where the spec wants no policies, the flags are the lock.
    moving("nobody took our locks away", |o| {
        let taken = match o.locks.policy {
            Policy::Frozen => false,
            Policy::NotWanted => o.locks.flags.to_set,
            Policy::Absent | Policy::Partial | Policy::Committed | Policy::Converged => true,
        };
        when(o.record.frozen && taken, Step::Undo(Undo::PolicyRemoved))
    }),
    moving("not suspended", |o| hold_when(o.wants.suspend, Hold::Suspended)),
    // D14: it must have been there for 34 s, so it is made before anybody is refused.
    moving(
        "writes under way are counted from before the freeze",
        |o| match o.locks.guard {
            _ if o.record.frozen_for.is_some() => None,
            Guard::Absent => Some(NextStep::Do(Step::Guard)),
            // It grows old while objects are copied.
            Guard::Young(_) if o.wants.sync && o.seen.synced != Synced::Yes => None,
            Guard::Young(time) => Some(NextStep::Wait(time)),
            Guard::NotNeeded | Guard::Ready => None,
        },
    ),
    // Somebody else decides about their versions. To add it again and again helps nobody.
    moving("nobody takes the second version away", |o| {
        when(o.wants.second && o.seen.second_refused, Step::Undo(Undo::Refused))
    }),
    // D7: behind the APIService the old backend would take the copies.
    moving("targets can be reached before they are copied", |o| {
        let is_ready = o.locks.second == Second::Ready;
        when(o.wants.second && !is_ready, Step::AddVersion)
    }),
    // An undo looks for targets only where it is on record.
    moving("targets that are copied before the freeze are on record", |o| {
        when(o.wants.sync && !o.record.routed, Step::RecordRouted)
    }),
    // D32: the freeze lasts as long as what is left to copy then.
    moving("everything is in step before the freeze begins", |o| {
        if !o.wants.sync || o.record.frozen_for.is_some() {
            return None;
        }
        match o.seen.synced {
            Synced::No => Some(NextStep::Do(Step::Sync)),
            Synced::Conflicts => Some(NextStep::Do(Step::Undo(Undo::Conflict))),
            Synced::Refused => Some(NextStep::Do(Step::Undo(Undo::Refused))),
            Synced::Failed => Some(NextStep::Do(Step::Undo(Undo::VerifyFailed))),
            Synced::Yes => None,
        }
    }),
    // Where nobody needs to be refused while somebody makes up their mind, nobody is.
    moving("what is kept in step waits before the freeze", |o| {
        let waits = o.wants.sync && o.wants.hold && o.record.frozen_for.is_none();
        hold_when(waits, Hold::BeforeCutover)
    }),
    moving("the beginning of the freeze is on record before it begins", |o| {
        // What must be waited for anyway is waited for while nobody is refused.
        settle_when(o.wants.sync && o.record.frozen_for.is_none(), o)
            .or_else(|| when(o.record.frozen_for.is_none(), Step::MarkFreeze))
    }),
    moving("the policies refuse writes", |o| {
        let refuses = matches!(o.locks.policy, Policy::Frozen | Policy::NotWanted);
        when(!refuses, Step::Lock)
    }),
    moving("the flags' values are on record before they are set", |o| {
        when(!o.record.flags_saved || o.locks.flags.changed, Step::SaveFlags)
    }),
    moving("the flags tell controllers to stop", |o| {
        when(o.locks.flags.to_set, Step::SetFlags)
    }),
    // D10, D11: each API server learns of a policy on its own.
    moving("every API server refuses writes", |o| {
        when(o.seen.denies != Denies::All, Step::Probe)
    }),
    // D12: a write that passed the policy may commit up to 34 s later.
    moving("no write is under way any more", |o| match o.seen.drained {
        Drained::NotYet => Some(NextStep::Do(Step::Drain)),
        Drained::Yes => None,
    }),
    moving("it is on record that the source is frozen", |o| {
        when(!o.record.frozen, Step::RecordFrozen)
    }),
    // After a crash nothing knows any more under which uids dependents name the objects.
    moving("the switch is made by one process", |o| {
        let lost = o.wants.route && o.record.route_saved && !o.seen.aliases && o.locks.route == Route::Crds;
        when(lost, Step::Undo(Undo::Interrupted))
    }),
    moving(
        "the APIService and its server's uids are known before it is removed",
        |o| {
            let unknown = !o.record.route_saved || !o.seen.aliases;
            when(o.wants.route && unknown, Step::SaveRoute)
        },
    ),
    // B13: readers who come after the switch find everything. Through the second version nothing else is needed for it.
    moving(
        "with a second version everything is copied before the switch",
        |o| {
            if !o.wants.second || !o.wants.route {
                return None;
            }
            copied(o).or_else(|| settled(o)).or_else(|| verified(o))
        },
    ),
    // D23: a collector that lists again after the switch deletes dependents that name a former uid.
    moving("dependents are shielded before the switch", |o| {
        let shielded = o.locks.shield && o.seen.shielded;
        when(o.wants.route && !shielded, Step::Shield)
    }),
    moving("the APIService stays removed", |o| {
        if !o.wants.route || o.locks.route == Route::Crds {
            return None;
        }
        let contested = o.record.route_returned >= MAX_ROUTE_RETURNS;
        when(contested, Step::Undo(Undo::RouteContested)).or(Some(NextStep::Do(Step::RemoveRoute)))
    }),
    // B13, D3: as long as one server asks the old backend, its readers see another dataset.
    moving("the target CRDs answer on every API server", |o| {
        when(o.wants.route && !o.seen.routed_everywhere, Step::AwaitRoute)
    }),
    moving("every object was tried where it will be", |o| {
        match o.seen.tried_again {
            _ if !o.wants.route || o.wants.second => None,
            Tried::Unknown => Some(NextStep::Do(Step::TryAgain)),
            Tried::Conflicts => Some(NextStep::Do(Step::Undo(Undo::Conflict))),
            Tried::Blocked => Some(NextStep::Do(Step::Undo(Undo::Refused))),
            Tried::Clean => None,
        }
    }),
    moving("it is on record that targets may exist", |o| {
        when(!o.record.routed, Step::RecordRouted)
    }),
    moving("every object is copied", copied),
    // A create of a former process would bring a target back whose source is gone. With a second version everything was read
    // before the shield and the switch: what became of these is waited for, too.
    moving("no target appears after everything was read", |o| {
        settled(o).or_else(|| settle_when(o.wants.second, o))
    }),
    moving("every source and every target was read again", verified),
    moving("the spec does not ask to wait", |o| {
        hold_when(o.wants.hold, Hold::BeforeCutover)
    }),
    moving("the commit is on record before anything is let go", |_| {
        Some(NextStep::Do(Step::Commit))
    }),
    // Undoing: in the opposite order. Nothing is let go before what depends on it is gone.
    undoing("nothing of ours appears after it is undone", |o| {
        settle_when(true, o)
    }),
    // Readers of the target group would see objects vanish that exist.
    undoing(
        "with a second version the old backend answers before copies are deleted",
        |o| {
            if !o.wants.second || !o.wants.route || !o.record.route_saved {
                return None;
            }
            when(o.locks.route == Route::Crds, Step::UndoRoute)
                .or_else(|| when(!o.seen.backend_everywhere, Step::AwaitBackend))
        },
    ),
    // Behind the APIService the old backend would answer that there are none.
    undoing("targets can be reached to be deleted", |o| {
        if o.wants.second {
            let is_ready = o.locks.second == Second::Ready;
            return when(o.record.routed && !is_ready, Step::AddVersion);
        }
        if !o.wants.route || !o.record.routed {
            return None;
        }
        when(o.locks.route == Route::Backend, Step::RemoveRoute)
            .or_else(|| when(!o.seen.routed_everywhere, Step::AwaitRoute))
    }),
    // On record, or a crash would have to look again, and would remove the APIService for it when the locks are gone.
    undoing("it is on record which of our targets are left", |o| {
        when(o.record.routed, Step::UndoTargets)
    }),
    undoing("the APIService is back", |o| {
        let removed = o.wants.route && o.locks.route == Route::Crds;
        when(o.record.route_saved && removed, Step::UndoRoute)
    }),
    // A server that still lets the CRDs answer would take writes, and keep them where nobody reads them.
    undoing("the old backend answers on every API server", |o| {
        let stale = o.wants.route && !o.seen.backend_everywhere;
        when(o.record.route_saved && stale, Step::AwaitBackend)
    }),
    undoing("the flags are as they were", |o| {
        let held = o.locks.flags.source_held || o.locks.flags.target_held;
        when(held, Step::UndoFlags)
    }),
    // B15: no lock is left without an object that says so.
    undoing("no lock is left", |o| {
        let locked = !matches!(o.locks.policy, Policy::Absent | Policy::NotWanted);
        when(locked || is_counting(o), Step::UndoLocks)
    }),
    // It remembers what it did not find while the CRDs answered. Nobody else waits for it.
    undoing("the garbage collector finds an owner of every dependent", |o| {
        when(o.locks.shield && !o.seen.anchored, Step::AnchorDependents)
    }),
    undoing("the garbage collector is let go", |o| {
        when(o.locks.shield, Step::UndoShield)
    }),
    // After the copies: it is the way to them. Nobody waits for it.
    undoing("no second version is left", |o| {
        when(o.locks.second != Second::Absent, Step::UndoVersion)
    }),
    // A policy of somebody else may refuse it for good. Writers do not wait for that. Behind an APIService that is back they
    // cannot be reached any more.
    undoing("copies that were left are deleted", |o| {
        let left = o.record.copies_left && !o.wants.route && !o.wants.second;
        when(left && !o.seen.tried_copies_left, Step::UndoTargets)
            .or_else(|| hold_when(left, Hold::CopiesLeft))
    }),
    undoing("it is on record that everything is undone", |_| {
        Some(NextStep::Do(Step::EndUndo))
    }),
    // After the commit: nothing is undone.
    after("writers of the target are let go", |o| {
        let refuses = !matches!(
            o.locks.policy,
            Policy::Committed | Policy::Converged | Policy::NotWanted
        );
        let locked = refuses || o.locks.flags.target_held || is_counting(o);
        when(is_converged(o) && locked, Step::Thaw)
    }),
    after("not suspended", |o| {
        hold_when(
            is_converged(o) && o.wants.suspend && !is_deleted(o),
            Hold::Suspended,
        )
    }),
    // A7, D5: entries at a version that is gone break every later apply, and those who watched the old backend still see its
    // objects.
    after("targets name their own version, and no other is left", |o| {
        let is_left = o.locks.second != Second::Absent || !o.seen.retired;
        when(is_converged(o) && o.wants.second && is_left, Step::RetireVersion)
    }),
    // B17: a dependent that names a former owner would be collected with the source.
    after("dependents and references name the targets", |o| {
        when(is_converged(o) && !o.seen.references, Step::RewriteReferences)
    }),
    // D22: before that, the collector would take dependents along with a source that somebody deletes.
    after("sources can be deleted when nothing depends on them", |o| {
        let is_held = o.locks.policy == Policy::Committed;
        when(is_converged(o) && is_held, Step::ReleaseSource)
    }),
    after("the garbage collector is let go", |o| {
        when(o.locks.shield, Step::LiftShield)
    }),
    after("everything is as cutover.waitFor wants it", |o| {
        match o.seen.waits {
            _ if !is_converged(o) || is_deleted(o) => None,
            Waits::Unknown => Some(NextStep::Do(Step::LookAtWaits)),
            Waits::NotMet => Some(NextStep::Hold(Hold::WaitingFor)),
            Waits::Met => None,
        }
    }),
    after("our marks are off the targets", |o| {
        when(is_converged(o) && !o.seen.stamps_dropped, Step::DropStamps)
    }),
    after("it is on record that nothing is left to do", |o| {
        when(is_converged(o), Step::Complete)
    }),
    after("no lock appears after it was cleaned up", |o| {
        settle_when(is_deleted(o), o)
    }),
    // Somebody may have taken the policies away since. A write that is acknowledged between the look and the deletion is lost.
    after("nobody can write the source while it is deleted", |o| {
        let deletes = is_deleted(o) && cleanup(o) == CleanupSource::DeleteCrds && o.locks.source;
        match (o.locks.policy, o.seen.denies, o.seen.drained) {
            _ if !deletes => None,
            (Policy::NotWanted, ..) => None,
            (Policy::Absent | Policy::Partial | Policy::Frozen | Policy::Committed, ..) => {
                Some(NextStep::Do(Step::ReleaseSource))
            }
            (Policy::Converged, Denies::NotYet, _) => Some(NextStep::Do(Step::Probe)),
            (_, _, Drained::NotYet) => Some(NextStep::Do(Step::Drain)),
            (_, _, Drained::Yes) => None,
        }
    }),
    // B14: only a migration that moved everything itself may clean up, and never along with its own CRD.
    after("the source is as the spec wants it in the end", |o| {
        match o.seen.cleaned {
            _ if !is_deleted(o) => None,
            None => Some(NextStep::Do(Step::CleanUp)),
            Some(false) => Some(NextStep::Hold(Hold::CleanupBlocked)),
            Some(true) => None,
        }
    }),
    after("the finalizer is removed last", |o| {
        when(is_deleted(o) && o.record.has_finalizer, Step::RemoveFinalizer)
    }),
];
