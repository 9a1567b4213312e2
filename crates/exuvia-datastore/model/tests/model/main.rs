//! The protocol, checked over small worlds: one or two objects, two API servers, and a few faults and people anywhere.

#![allow(clippy::unwrap_used)] // a test may panic
#![allow(clippy::too_many_lines)] // one match over all steps reads better than ten functions

mod checks;
mod environment;
mod objects;
mod state;
mod steps;
mod synced;
mod world;
mod worlds;

use exuvia_api::DatastorePhase;
use exuvia_datastore::protocol::{
    Checked, Hold, MAX_RETREATS, Next, NextStep, RULES, Route, Step, Tried, Verified, Waits, next_without,
};
use exuvia_model::{Model, consequences, explore};

use crate::environment::environment;
use crate::state::{Doing, State};
use crate::steps::carry_on;
use crate::world::{Bad, MAX_DURATION, World};
use crate::worlds::worlds;

/// A way to do it wrong that the check must notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mistake {
    /// One of the [`RULES`] is not there.
    LeaveOut(usize),
    ProbeOneServer,
    CopyBeforeTheDrain,
    DrainTooShort,
    TrustWhatWasSeenBeforeTheProbe,
    TrustWhatWasSeenBeforeTheSwitch,
    CommitWithoutLooking,
    OverwriteForeignTargets,
    DeleteChangedTargets,
    DeleteEqualTargets,
    TakeAnyListForOurs,
    KeepTheFreezeForCopies,
    PutTheRouteBackFirst,
    FreezeAnyValue,
    ForgetFlagsTooEarly,
    KeepSavedFlags,
    ThawByReplacing,
    LetSourcesBeDeletedTooEarly,
    CleanUpWithItsCrd,
    DeleteUnmovedSources,
    DeleteWithoutLooking,
    TakeALostAnswerForARefusal,
    TakeAWatchForComplete,
    TrustAWatchThatWasCut,
    FollowTheSourceAlone,
    DropVersionFirst,
}

const MISTAKES: [Mistake; 25] = [
    Mistake::ProbeOneServer,
    Mistake::CopyBeforeTheDrain,
    Mistake::DrainTooShort,
    Mistake::TrustWhatWasSeenBeforeTheProbe,
    Mistake::TrustWhatWasSeenBeforeTheSwitch,
    Mistake::CommitWithoutLooking,
    Mistake::OverwriteForeignTargets,
    Mistake::DeleteChangedTargets,
    Mistake::DeleteEqualTargets,
    Mistake::TakeAnyListForOurs,
    Mistake::KeepTheFreezeForCopies,
    Mistake::PutTheRouteBackFirst,
    Mistake::FreezeAnyValue,
    Mistake::ForgetFlagsTooEarly,
    Mistake::KeepSavedFlags,
    Mistake::ThawByReplacing,
    Mistake::LetSourcesBeDeletedTooEarly,
    Mistake::CleanUpWithItsCrd,
    Mistake::DeleteUnmovedSources,
    Mistake::DeleteWithoutLooking,
    Mistake::TakeALostAnswerForARefusal,
    Mistake::TakeAWatchForComplete,
    Mistake::TrustAWatchThatWasCut,
    Mistake::FollowTheSourceAlone,
    Mistake::DropVersionFirst,
];

/// What the process does next. The first state is the one in which it goes well.
fn protocol(state: &State, mistake: Option<Mistake>) -> Result<Vec<State>, String> {
    if state.doing.is_some() {
        return carry_on(state, mistake);
    }
    let next = decide(state, mistake)?;
    let mut after = state.clone();
    match next {
        NextStep::Do(step) => {
            after.doing = Some(Doing {
                step,
                at: 0,
                stale: false,
                found: Verified::No,
            });
            if matches!(step, Step::Verify | Step::CatchUp) {
                after.world.bypassed = false;
            }
        }
        NextStep::Hold(hold) => look_again(&mut after, hold),
        NextStep::Wait(_) | NextStep::Done => {}
    }
    Ok(vec![after])
}

fn decide(state: &State, mistake: Option<Mistake>) -> Result<Next, String> {
    let left_out = match mistake {
        Some(Mistake::LeaveOut(index)) => Some(index),
        _ => None,
    };
    let observed = state.observe();
    let next = next_without(&observed, left_out);
    checks::decision(state, &observed, &next)?;
    Ok(next)
}

/// What is forgotten when a hold is tried again.
fn look_again(state: &mut State, hold: Hold) {
    let seen = &mut state.seen;
    match hold {
        Hold::Blocked | Hold::Conflicts => {
            (seen.checked, seen.tried) = (Checked::Unknown, Tried::Unknown);
        }
        Hold::WaitingFor => seen.waits = Waits::Unknown,
        Hold::CleanupBlocked => seen.cleaned = None,
        Hold::CopiesLeft => seen.tried_copies_left = false,
        Hold::Suspended | Hold::Failed | Hold::BeforeCutover => {}
    }
}

/// Without further events it ends, done or at a hold that somebody has to end, and does not freeze again and again.
fn ends(state: &State, mistake: Option<Mistake>) -> Result<State, String> {
    ends_under(state, mistake, |_, _| ())
}

/// The same while somebody does something all the time.
fn ends_under(
    state: &State,
    mistake: Option<Mistake>,
    somebody: impl Fn(usize, &mut World),
) -> Result<State, String> {
    let mut state = state.clone();
    state.world.events_left = 0;
    let (mut freezes, mut last) = (0, None);
    for turn in 0..600 {
        let world = &mut state.world;
        somebody(turn, world);
        while world.learn_policies() || world.learn_route() || world.learn_shield() {}
        if !world.exists {
            return Ok(state);
        }
        if turn % 4 == 0 {
            state.tick();
        }
        if let Some(doing) = state.doing {
            freezes += u8::from(doing.step == Step::MarkFreeze);
            // Somebody may have asked for one more attempt, and a write that comes too late is done again.
            if freezes > 2 * MAX_RETREATS + 1 {
                return Err(format!("freezes again and again: {state:?}"));
            }
        } else {
            match decide(&state, mistake)? {
                NextStep::Done => return Ok(state),
                NextStep::Wait(_) => state.tick(),
                NextStep::Do(_) => {}
                NextStep::Hold(Hold::Suspended | Hold::BeforeCutover)
                    if state.world.is_frozen_for_a_time() =>
                {
                    state.world.record.frozen_for = Some(MAX_DURATION);
                }
                NextStep::Hold(hold) if last == Some((hold, freezes)) => return Ok(state),
                NextStep::Hold(hold) => last = Some((hold, freezes)),
            }
        }
        state = protocol(&state, mistake)?.swap_remove(0);
    }
    Err(format!("never ends: {state:?}"))
}

/// Left alone, a migration that nothing stands in the way of is completed.
fn completes(world: &World, mistake: Option<Mistake>) -> Result<(), String> {
    let conflict = world.objects().any(|object| world.conflict(object));
    if world.bad != Bad::Nothing || conflict || !world.ready {
        return Ok(());
    }
    let calm = World {
        events_left: 0,
        ..world.clone()
    };
    let end = ends(&calm.state(), mistake)?;
    if end.world.record.phase == DatastorePhase::Complete {
        Ok(())
    } else {
        Err(format!("it does not complete: {end:?}"))
    }
}

struct Datastore;

impl Model for Datastore {
    type State = State;
    type Mistake = Mistake;
    const ENDS_EVERY: usize = 31;

    fn process(state: &State, mistake: Option<Mistake>) -> Result<Vec<State>, String> {
        if state.world.exists {
            protocol(state, mistake)
        } else {
            Ok(Vec::new())
        }
    }

    fn others(state: &State) -> Result<Vec<State>, String> {
        environment(state)
    }

    fn decision(state: &State) -> Option<String> {
        let is_free = state.world.exists && state.doing.is_none();
        match decide(state, None).ok().filter(|_| is_free)? {
            NextStep::Wait(_) => None,
            next => Some(format!("{next:?}")),
        }
    }

    fn ends(state: &State, mistake: Option<Mistake>) -> Result<(), String> {
        ends(state, mistake).map(drop)
    }

    fn holds(state: &State) -> Result<(), String> {
        checks::invariants(state)
    }

    fn completes(state: &State, mistake: Option<Mistake>) -> Result<(), String> {
        completes(&state.world, mistake)
    }

    fn in_short(state: State) -> State {
        state.in_short()
    }
}

/// What each mistake leads to; with few events first: most need no more than one.
fn found_of(mistakes: &[Mistake]) -> Vec<Option<String>> {
    let worlds_with = |most: u8| {
        worlds().into_iter().map(move |world| {
            let events_left = world.events_left.min(most);
            World { events_left, ..world }.state()
        })
    };
    consequences::<Datastore>((0..=3).flat_map(worlds_with), mistakes)
}

#[test]
fn every_world_is_safe_and_ends() {
    let mut states = 0;
    for world in worlds() {
        let found = explore::<Datastore>(world.clone().state()).unwrap_or_else(|wrong| panic!("{wrong}"));
        println!(
            "{found} states: {:?}, {} events",
            world.setting, world.events_left
        );
        states += found;
    }
    println!("{states} states");
    assert!(
        states > 100_000,
        "the worlds are too small to show anything: {states} states"
    );
}

#[test]
fn no_rule_is_there_for_nothing() {
    let mistakes: Vec<Mistake> = (0..RULES.len()).map(Mistake::LeaveOut).collect();
    let mut idle = Vec::new();
    for (rule, found) in RULES.iter().zip(found_of(&mistakes)) {
        match found {
            Some(found) => println!("without {:?}: {}", rule.name, in_brief(&found)),
            None => idle.push(rule.name),
        }
    }
    assert!(idle.is_empty(), "without these nothing goes wrong: {idle:#?}");
}

#[test]
fn a_mistake_is_noticed() {
    let mut unnoticed = Vec::new();
    for (mistake, found) in MISTAKES.into_iter().zip(found_of(&MISTAKES)) {
        match found {
            Some(found) => println!("{mistake:?}: {}", in_brief(&found)),
            None => unnoticed.push(mistake),
        }
    }
    assert!(unnoticed.is_empty(), "these go unnoticed: {unnoticed:?}");
}

#[test]
fn an_operator_that_never_gives_up_gets_its_apiservice_back() {
    let worlds = worlds();
    let unguarded = worlds
        .iter()
        .filter(|world| world.aliased && !world.setting.admission);
    let mut failed = 0;
    for world in unguarded {
        // One that is faster than an undo could keep it from ever finding a target.
        for period in 12..80 {
            let operator = |turn: usize, world: &mut World| {
                if turn.is_multiple_of(period) && world.route == Route::Crds && !world.is_committed() {
                    world.put_back_route();
                }
            };
            let end = ends_under(&world.clone().state(), None, operator).unwrap();
            let phase = end.world.record.phase;
            assert!(
                matches!(phase, DatastorePhase::Failed | DatastorePhase::Complete),
                "{phase:?} with an operator that looks every {period} turns"
            );
            failed += u8::from(phase == DatastorePhase::Failed);
        }
    }
    assert!(failed > 0, "nobody ever gave up");
}

/// What went wrong, without the state in which it did.
fn in_brief(found: &str) -> &str {
    found.split([';', ':']).next().unwrap_or(found)
}
