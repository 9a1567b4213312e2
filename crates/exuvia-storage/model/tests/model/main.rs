//! The protocol, checked over every small world: two objects, three versions, two API servers, a few faults anywhere.

#![allow(clippy::unwrap_used)] // a test may panic
#![allow(clippy::too_many_lines)] // one match over all steps reads better than ten functions

mod built_in;
mod steps;
mod world;

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use exuvia_storage::protocol::{Hold, MAX_UNEXPLAINED, Next, NextStep, RULES, Step, next_without};

use crate::steps::{ModelState, carry_out, environment, sweep_on};
use crate::world::{Second, Setting, World};

/// More than the protocol tries, so that what comes after it gave up is reached as well.
const FAULTS: u8 = MAX_UNEXPLAINED + 2;

/// A way to do it wrong that the check must notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mistake {
    /// One of the [`RULES`] is not there.
    LeaveOut(usize),
    /// What moves after a trim is rewritten and nothing is said.
    NeverPutBack,
    /// The patrol trusts a full verification, which a server that was behind may itself have answered.
    TrustWhatWasVerifiedInFull,
    /// Any 404 counts as gone.
    TakeAnyNotFoundForGone,
}

fn protocol(state: &ModelState, mistake: Option<Mistake>) -> Result<Vec<ModelState>, String> {
    if state.sweep.is_some() {
        return sweep_on(state, mistake);
    }
    let step = next(state, mistake);
    carry_out(state, &step)
}

fn next(state: &ModelState, mistake: Option<Mistake>) -> Next {
    let left_out = match mistake {
        Some(Mistake::LeaveOut(index)) => Some(index),
        _ => None,
    };
    next_without(&state.world.observe(state.pass.as_ref()), left_out)
}

/// Without further faults it ends, done, within a bounded number of steps.
fn ends(state: &ModelState, mistake: Option<Mistake>) -> Result<(), String> {
    let mut state = state.clone();
    state.world.faults_left = 0;
    if let Second::Paused(version) = state.world.second {
        state.world.second = Second::Behind(version);
        state.world.awake_age = 0;
    }
    for _ in 0..200 {
        if state.sweep.is_none() {
            match next(&state, mistake) {
                NextStep::Done | NextStep::Hold(Hold::Suspended | Hold::Blocked(_)) => return Ok(()),
                // Time passes while it waits, and between two tries.
                NextStep::Wait(_) | NextStep::Hold(_) => state.world.tick(),
                NextStep::Do(_) => {}
            }
        }
        state = protocol(&state, mistake)?.swap_remove(0);
    }
    Err(format!("never ends: {state:?}"))
}

/// With somebody who writes at an old version all the time, on healthy servers: done, trimmed once, and nothing put back.
fn ends_under_a_writer(world: &World) {
    let mut state = ModelState {
        world: world.clone(),
        pass: None,
        sweep: None,
    };
    state.world.faults_left = 0;
    let (mut trims, mut listed) = (0, state.world.stored);
    for _ in 0..200 {
        if state.sweep.is_none() {
            match next(&state, None) {
                NextStep::Done => {
                    assert_eq!(trims, 1, "trimmed once");
                    return;
                }
                NextStep::Do(Step::Trim(_)) => trims += 1,
                NextStep::Wait(_) => state.world.tick(),
                NextStep::Hold(hold) => panic!("held by {hold:?}"),
                NextStep::Do(_) => {}
            }
        }
        let storage = state.world.storage;
        state.world.write(0, storage);
        (state.world.objects[0].dirty, state.world.objects[0].explained) = (true, true);
        state = protocol(&state, None).unwrap().swap_remove(0);
        assert_eq!(state.world.stored & !listed, 0, "a version was put back");
        listed = state.world.stored;
    }
    panic!("never ends: {state:?}");
}

fn worlds() -> Vec<World> {
    let operator = Setting {
        accounted: true,
        balanced: false,
        keeps: true,
        until_recorded: true,
        prunes: false,
        suspended: false,
        objects: 1,
    };
    let command = Setting {
        keeps: false,
        until_recorded: false,
        ..operator
    };
    let unknown = Setting {
        accounted: false,
        ..operator
    };
    let balanced = Setting {
        balanced: true,
        ..unknown
    };
    let prunes = Setting {
        prunes: true,
        ..operator
    };
    let suspended = Setting {
        suspended: true,
        ..operator
    };
    let two = |setting| Setting {
        objects: 2,
        ..setting
    };
    let flipped = |setting, faults, second| World::fresh(setting, faults).flipped(1, second);
    vec![
        flipped(operator, FAULTS, Second::Paused),
        flipped(command, FAULTS, Second::Behind),
        World::fresh(operator, 3),
        flipped(unknown, 3, Second::Paused),
        flipped(balanced, 3, Second::Behind),
        flipped(two(operator), 2, |_| Second::Quiet),
        flipped(two(unknown), 1, Second::Paused),
        flipped(prunes, 1, |_| Second::Quiet),
        flipped(suspended, 1, |_| Second::Quiet),
    ]
}

/// Looks for what a mistake leads to, with few faults first: most need no more than one.
fn consequence(mistake: Mistake) -> Option<String> {
    let found = |most: u8| {
        worlds().into_iter().find_map(|world| {
            let faults_left = world.faults_left.min(most);
            let world = World { faults_left, ..world };
            explore(world, Some(mistake)).err()
        })
    };
    (0..=FAULTS).find_map(found)
}

/// Explores a world; returns the number of states, or the first thing that went wrong.
fn explore(world: World, mistake: Option<Mistake>) -> Result<usize, String> {
    let mut seen = HashSet::new();
    let mut queue = VecDeque::new();
    let mut meet = |queue: &mut VecDeque<ModelState>, states: Vec<ModelState>| {
        for state in states.into_iter().map(ModelState::in_short) {
            let mut hasher = DefaultHasher::new();
            state.hash(&mut hasher);
            if seen.insert(hasher.finish()) {
                queue.push_back(state);
            }
        }
        seen.len()
    };
    let begun = ModelState {
        world,
        pass: None,
        sweep: None,
    };
    let mut states = meet(&mut queue, vec![begun]);
    let mut states_met = 0;
    while let Some(state) = queue.pop_front() {
        // From every few states is enough: whatever keeps it from ending shows in many.
        states_met += 1;
        if states_met % 7 == 0 {
            ends(&state, mistake).map_err(|e| format!("{e}; in the end after {state:?}"))?;
        }
        meet(&mut queue, environment(&state));
        let after = protocol(&state, mistake).map_err(|e| format!("{e}; after {state:?}"))?;
        states = meet(&mut queue, after);
    }
    Ok(states)
}

#[test]
fn every_world_is_safe_and_ends() {
    let mut states = 0;
    for world in worlds() {
        let found = explore(world.clone(), None).unwrap();
        println!(
            "{found} states: {:?}, {} faults",
            world.setting, world.faults_left
        );
        states += found;
    }
    assert!(
        states > 100_000,
        "the worlds are too small to show anything: {states} states"
    );
}

#[test]
fn no_rule_is_there_for_nothing() {
    for (index, rule) in RULES.iter().enumerate() {
        let found = consequence(Mistake::LeaveOut(index));
        let found = found.unwrap_or_else(|| panic!("without {:?} nothing goes wrong", rule.name));
        println!("without {:?}: {found}", rule.name);
    }
}

#[test]
fn a_mistake_is_noticed() {
    for mistake in [
        Mistake::NeverPutBack,
        Mistake::TrustWhatWasVerifiedInFull,
        Mistake::TakeAnyNotFoundForGone,
    ] {
        let found = consequence(mistake).unwrap_or_else(|| panic!("{mistake:?} goes unnoticed"));
        println!("{mistake:?}: {found}");
    }
}

#[test]
fn under_a_writer_at_an_old_version_it_ends_and_trims_once() {
    for world in worlds() {
        let healthy = world.second == Second::Quiet && world.storage > 0;
        if healthy && !world.setting.prunes && !world.setting.suspended {
            ends_under_a_writer(&world);
        }
    }
}
