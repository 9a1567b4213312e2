//! What the engine does in each step: the contract that the check relies on.
//!
//! A step is a row of writes and looks, each of them atomic; everybody else acts in between. A write to the migration object
//! is *locked*: it fails if the object has changed since the step was decided. Every other write names what it expects to
//! find: a create fails if the name is taken, an update or delete names uid and resourceVersion.

use exuvia_api::DatastorePhase;
use exuvia_datastore::protocol::{
    Checked, Clones, Deletion, Denies, Drained, Policy, Record, Route, Second, Stage, Step, Synced, Tried,
    Verified, Waits,
};

use crate::Mistake;
use crate::checks;
use crate::objects::{clean_up, copy, release_source, restore_flag, thaw, tried, undo_targets, verify};
use crate::state::{Doing, State};
use crate::synced::{catch_up, sync};
use crate::world::{Bad, DRAIN, Form, Late, Shield, Value, World, ticks};

/// Some write of a step was done.
pub(crate) struct Done {
    pub(crate) after: State,
    /// The same write, if it takes effect later than its answer is waited for.
    pub(crate) late: Option<Late>,
}

impl State {
    /// The last look has begun or is over.
    pub(crate) fn looks_or_looked(&self) -> bool {
        let looks = |doing: Doing| matches!(doing.step, Step::Verify | Step::CatchUp | Step::Commit);
        self.seen.verified == Verified::Yes || self.doing.is_some_and(looks)
    }

    pub(crate) fn ends(mut self) -> Self {
        self.doing = None;
        self
    }
}

/// The next write or look of the step that is being carried out, and everything that may go wrong with it.
pub(crate) fn carry_on(state: &State, mistake: Option<Mistake>) -> Result<Vec<State>, String> {
    let doing = state.doing.expect("a step is being carried out");
    let observed = state.observe();
    let mut after = Vec::new();
    for done in parts(state, doing, mistake)? {
        checks::step(&state.world, &done.after.world, &observed, doing.step)?;
        if state.world.events_left > 0 {
            after.extend(failures(state, &done, mistake));
        }
        after.push(done.after);
    }
    // The first one is the one that went well.
    after.reverse();
    Ok(after)
}

fn failures(before: &State, done: &Done, mistake: Option<Mistake>) -> Vec<State> {
    let mut before = before.clone();
    before.world.events_left -= 1;
    if before.doing.is_some_and(|doing| doing.step == Step::SetFlags) {
        // Whether writers were let go in between is not known.
        (before.draining, before.seen.drained) = (None, Drained::NotYet);
    }
    // Nothing was done.
    let refused = before.clone().ends();
    // It was done, and nobody knows.
    let mut lost = before.clone().ends();
    lost.world = World {
        events_left: before.world.events_left,
        touched: before.world.touched || done.after.world.touched,
        route_touched: before.world.route_touched || done.after.world.route_touched,
        ..done.after.world.clone()
    };
    let settles = mistake != Some(Mistake::TakeALostAnswerForARefusal);
    if settles && done.late.is_some() {
        lost.seen.unsettled = Some(ticks(DRAIN));
    }
    let mut after = vec![refused, lost.clone(), lost.crashed()];
    // It will be done.
    if let Some(late) = done.late.filter(|_| before.world.late.is_none()) {
        let mut later = before.ends();
        later.world.late = Some((late, 0));
        if settles {
            later.seen.unsettled = Some(ticks(DRAIN));
        }
        after.push(later.clone());
        after.push(later.crashed());
    }
    after
}

fn parts(state: &State, doing: Doing, mistake: Option<Mistake>) -> Result<Vec<Done>, String> {
    let is = |other: Mistake| mistake == Some(other);
    let mut next = state.clone();
    // Only the shield is waited for within its step.
    let waits = doing.step == Step::Shield && doing.at > 0;
    next.doing = Some(Doing {
        at: doing.at + u8::from(!waits),
        ..doing
    });
    let mut late = None;
    let State {
        world,
        seen,
        draining,
        ..
    } = &mut next;
    // A locked write of the migration object.
    let record = |world: &mut World, change: &mut dyn FnMut(&mut Record)| {
        if !doing.stale {
            change(&mut world.record);
        }
        !doing.stale
    };
    let mut ends = true;
    match doing.step {
        Step::Check => {
            seen.checked = match world.bad {
                Bad::Spec => Checked::Blocked,
                _ => Checked::Passed,
            };
        }
        Step::AddFinalizer => {
            record(world, &mut |record| record.has_finalizer = true);
        }
        // One CRD after the other; done when all of them are established.
        Step::MakeClones => {
            ends = world.clones != Clones::Absent;
            late = (!ends).then_some(Late::Clone);
            world.clones = if ends { Clones::Ready } else { Clones::Partial };
        }
        // At the clones, or where the CRDs answer; if neither is so at the end of it, nothing is known.
        Step::Try => {
            if !world.wants().route || world.clones == Clones::Ready {
                seen.tried = tried(world, !world.wants().route);
            }
        }
        Step::RemoveClones => {
            ends = world.clones != Clones::Ready;
            world.clones = if ends { Clones::Absent } else { Clones::Partial };
        }
        Step::Restart => {
            if record(world, &mut |record| *record = record.restarted()) {
                *seen = seen.undone();
            }
        }
        Step::Start => {
            if seen.checked != Checked::Passed || seen.tried != Tried::Clean {
                return Err("it begins although not every object passed a try".into());
            }
            record(world, &mut |record| record.phase = DatastorePhase::Migrating);
        }
        // One CRD after the other; done when all of them are served.
        Step::AddVersion => {
            ends = world.second != Second::Absent;
            late = (!ends).then_some(Late::Version);
            world.second = if ends { Second::Ready } else { Second::Partial };
            let taken_away = std::mem::take(&mut world.reverted);
            seen.second_refused |= taken_away && Stage::from_record(&world.record) == Stage::Moving;
        }
        // What names it first, then the CRDs.
        Step::RetireVersion | Step::UndoVersion => {
            ends = doing.at == 1;
            if ends || is(Mistake::DropVersionFirst) {
                world.second = Second::Absent;
            } else {
                world.names_second = false;
            }
            seen.retired |= ends;
        }
        Step::Guard => {
            late = world.guard.is_none().then_some(Late::Guard);
            world.guard = world.guard.or(Some(0));
        }
        Step::MarkFreeze => {
            if world.setting.gauges && world.guard.is_none_or(|age| age < DRAIN) {
                return Err("the freeze begins before writes can be counted, and lasts longer for it".into());
            }
            if world.setting.sync && seen.synced != Synced::Yes {
                return Err("the freeze begins before everything is in step, and lasts longer for it".into());
            }
            record(world, &mut |record| record.frozen_for = Some(ticks(0)));
        }
        // One policy after the other; what was probed before does not count any more.
        Step::Lock => {
            ends = doing.at == 1;
            if !ends && world.source_policy == Form::Absent {
                (world.source_policy, world.touched) = (Form::Frozen, true);
                late = Some(Late::SourcePolicy);
            } else if ends && !world.target_policy {
                (world.target_policy, world.touched) = (true, true);
                late = Some(Late::TargetPolicy);
            }
        }
        // All values in one write. A flag that we froze keeps the value that it has on record.
        Step::SaveFlags => {
            let saved = [0, 1].map(|flag| match world.saved {
                Some(saved) if world.flags[flag] == Value::Frozen => saved[flag],
                _ => world.flags[flag],
            });
            if record(world, &mut |record| record.flags_saved = true) {
                world.saved = Some(saved);
            }
        }
        // One after the other, each only if it has the value on record.
        Step::SetFlags => {
            ends = doing.at == 1;
            let flag = usize::from(doing.at);
            let value = world.flags[flag];
            let known = world.saved.is_none_or(|saved| saved[flag] == value);
            if value != Value::Frozen && (known || is(Mistake::FreezeAnyValue)) {
                world.set_flag(flag, Value::Frozen);
                // Writers may have been let go in between.
                (*draining, seen.drained) = (Some(DRAIN), Drained::NotYet);
                late = Some(Late::Flag(flag));
            }
        }
        // Both policies, on every API server; they are the same before and after.
        Step::Probe => {
            let complete = matches!(state.observe().locks.policy, Policy::Frozen | Policy::Converged);
            let asked = world.every_server_denies() || is(Mistake::ProbeOneServer) && world.denying > 0;
            if complete && asked || !world.setting.admission {
                if is(Mistake::TrustWhatWasSeenBeforeTheProbe) {
                    seen.denies = Denies::All;
                } else {
                    seen.probed();
                }
                *draining = Some(DRAIN);
                world.touched = false;
            }
        }
        // By the count where what counts is old enough, else by time.
        Step::Drain => {
            let counts = world.setting.gauges && world.guard == Some(DRAIN);
            let counted = world.in_flight.is_some_and(|write| write.counted);
            let left = *draining.get_or_insert(DRAIN);
            let too_soon = u8::from(is(Mistake::DrainTooShort));
            seen.drained = match (counts, counted) {
                _ if is(Mistake::CopyBeforeTheDrain) => Drained::Yes,
                (false, _) if left <= too_soon => Drained::Yes,
                (true, false) => Drained::Yes,
                (false, _) | (true, true) => Drained::NotYet,
            };
        }
        Step::RecordFrozen => {
            record(world, &mut |record| record.frozen = true);
        }
        Step::SaveRoute => {
            if world.route == Route::Backend && record(world, &mut |record| record.route_saved = true) {
                (seen.aliases, world.route_known) = (true, true);
            }
        }
        // Made, then asked for on every API server.
        Step::Shield => {
            if world.shield == Shield::Absent {
                world.shield = Shield::Unproven;
                late = Some(Late::Shield);
            }
            ends = world.shield == Shield::Known;
            seen.shielded = ends;
        }
        // Only the one on record is removed. Another one is counted and put on record, in one write.
        Step::RemoveRoute => {
            if world.route == Route::Backend && world.route_known {
                if world.has_second() && seen.verified != Verified::Yes {
                    return Err("readers of the target group do not find what is not copied yet".into());
                }
                world.route = Route::Crds;
                (seen.routed_everywhere, seen.backend_everywhere) = (false, false);
                late = Some(Late::RemoveRoute);
            } else if world.route == Route::Backend {
                world.route_known = record(world, &mut |record| {
                    record.route_returned = record.route_returned.saturating_add(1);
                    record.route_saved = true;
                });
            }
        }
        Step::AwaitRoute => {
            if world.route == Route::Crds && world.every_server_asks_crds() {
                if is(Mistake::TrustWhatWasSeenBeforeTheSwitch) {
                    seen.routed_everywhere = true;
                } else {
                    seen.routed(&state.world.wants());
                }
                world.route_touched = false;
            }
        }
        // Where the old backend answers, everything is there and equal.
        Step::TryAgain => {
            let backend = world.reached().contains(&Route::Backend);
            seen.tried_again = tried(world, !backend);
        }
        Step::RecordRouted => {
            record(world, &mut |record| record.routed = true);
        }
        // The targets cannot be reached.
        Step::Sync | Step::CatchUp | Step::Copy | Step::Verify | Step::UndoTargets
            if world.has_second() && world.second == Second::Absent => {}
        Step::Copy => return copy(state, next, doing, mistake),
        Step::Verify => return Ok(verify(state, next, doing)),
        Step::Sync => return Ok(sync(state, next, doing, mistake)),
        Step::CatchUp => return Ok(catch_up(state, next, doing, mistake)),
        // The locks and the route are looked at once more, at the same moment.
        Step::Commit => {
            let observed = state.observe();
            let locked = matches!(observed.locks.policy, Policy::Frozen | Policy::NotWanted)
                && observed.seen.denies == Denies::All
                && !(world.setting.route && !observed.seen.routed_everywhere && observed.wants.route)
                && world.route == Route::Crds
                && !observed.locks.flags.to_set;
            if locked || is(Mistake::CommitWithoutLooking) {
                let sources = world.sources;
                if record(world, &mut |record| record.phase = DatastorePhase::Converged) {
                    world.committed = Some(sources);
                }
            }
        }
        Step::Thaw => {
            let absent = world.setting.admission && world.source_policy == Form::Absent;
            late = (absent && doing.at == 1).then_some(Late::ThawedPolicy(Form::Committed));
            ends = thaw(world, doing.at, mistake);
        }
        Step::ReleaseSource => {
            let absent = world.source_policy == Form::Absent;
            late = (absent && doing.at == 1).then_some(Late::ThawedPolicy(Form::Converged));
            ends = release_source(world, doing.at);
        }
        Step::RewriteReferences => {
            world.dependent_follows = true;
            seen.references = true;
        }
        Step::LiftShield | Step::UndoShield => world.shield = Shield::Absent,
        Step::LookAtWaits => {
            seen.waits = if world.ready { Waits::Met } else { Waits::NotMet };
        }
        Step::DropStamps => {
            world.stamped = false;
            seen.stamps_dropped = true;
        }
        Step::Complete => {
            let deleted = state.observe().record.deletion != Deletion::No;
            if seen.waits != Waits::Met && !deleted {
                return Err("complete, and nobody looked whether waitFor is met".into());
            }
            record(world, &mut |record| record.phase = DatastorePhase::Complete);
        }
        Step::Undo(undo) if Stage::from_record(&world.record) == Stage::Idle => {
            if record(world, &mut |record| *record = record.found_locked(undo)) {
                world.forgotten = false;
            }
        }
        Step::Undo(undo) => {
            if record(world, &mut |record| record.undo = Some(undo)) && is(Mistake::ForgetFlagsTooEarly) {
                (world.saved, world.record.flags_saved) = (None, !world.setting.flags);
            }
        }
        Step::UndoTargets => return Ok(undo_targets(state, next, doing, mistake)),
        Step::UndoRoute => {
            if world.route == Route::Crds {
                world.put_back_route();
                (seen.routed_everywhere, seen.backend_everywhere) = (false, false);
            }
        }
        Step::AwaitBackend => {
            if world.route == Route::Backend && world.crd_servers == 0 {
                (seen.backend_everywhere, world.route_touched) = (true, false);
            }
        }
        // One after the other, each only if it still has the frozen value.
        Step::UndoFlags => {
            ends = doing.at == 1;
            restore_flag(world, usize::from(doing.at));
        }
        // One after the other.
        Step::UndoLocks => {
            ends = doing.at == 2;
            match doing.at {
                0 => world.target_policy = false,
                1 => world.source_policy = Form::Absent,
                _ => world.guard = None,
            }
        }
        // Without the old backend nobody knows which object a dependent names.
        Step::AnchorDependents => {
            if world.route == Route::Backend && world.crd_servers == 0 {
                world.dependent_anchored = true;
            }
            seen.anchored = true;
        }
        // Everything in one write.
        Step::EndUndo => {
            if record(world, &mut |record| *record = record.undone()) {
                *seen = seen.undone();
                if is(Mistake::KeepSavedFlags) {
                    world.record.flags_saved = true;
                } else {
                    (world.saved, world.record.flags_saved) = (None, !world.setting.flags);
                }
            }
        }
        Step::CleanUp => ends = clean_up(state, world, seen, doing.at, mistake),
        Step::RemoveFinalizer => {
            if record(world, &mut |record| record.has_finalizer = false) {
                world.exists = false;
            }
        }
    }
    let after = if ends { next.ends() } else { next };
    Ok(vec![Done { after, late }])
}
