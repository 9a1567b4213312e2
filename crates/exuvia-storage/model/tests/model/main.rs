//! The protocol, checked over every small world: two objects, three versions, two API servers, a few faults anywhere.

#![allow(clippy::unwrap_used)] // a test may panic
#![allow(clippy::too_many_lines)] // one match over all steps reads better than ten functions

mod built_in;
mod steps;
mod world;

use exuvia_model::{Model, consequences, explore};
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
    let mut state = begun(world.clone());
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

struct Storage;

impl Model for Storage {
    type State = ModelState;
    type Mistake = Mistake;
    const ENDS_EVERY: usize = 7;

    fn process(state: &ModelState, mistake: Option<Mistake>) -> Result<Vec<ModelState>, String> {
        protocol(state, mistake)
    }

    fn others(state: &ModelState) -> Result<Vec<ModelState>, String> {
        Ok(environment(state))
    }

    fn decision(state: &ModelState) -> Option<String> {
        match next(state, None) {
            NextStep::Wait(_) => None,
            _ if state.sweep.is_some() => None,
            next => Some(format!("{next:?}")),
        }
    }

    fn ends(state: &ModelState, mistake: Option<Mistake>) -> Result<(), String> {
        ends(state, mistake)
    }

    fn in_short(state: ModelState) -> ModelState {
        state.in_short()
    }
}

/// What each mistake leads to; with few faults first: most need no more than one.
fn found_of(mistakes: &[Mistake]) -> Vec<Option<String>> {
    let worlds_with = |most: u8| {
        worlds().into_iter().map(move |world| {
            let faults_left = world.faults_left.min(most);
            begun(World { faults_left, ..world })
        })
    };
    consequences::<Storage>((0..=FAULTS).flat_map(worlds_with), mistakes)
}

/// A world in which nothing was done yet.
fn begun(world: World) -> ModelState {
    ModelState {
        world,
        pass: None,
        sweep: None,
    }
}

#[test]
fn every_world_is_safe_and_ends() {
    let mut states = 0;
    for world in worlds() {
        let found = explore::<Storage>(begun(world.clone())).unwrap();
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
    let mistakes: Vec<Mistake> = (0..RULES.len()).map(Mistake::LeaveOut).collect();
    for (rule, found) in RULES.iter().zip(found_of(&mistakes)) {
        let found = found.unwrap_or_else(|| panic!("without {:?} nothing goes wrong", rule.name));
        println!("without {:?}: {found}", rule.name);
    }
}

#[test]
fn a_mistake_is_noticed() {
    let mistakes = [
        Mistake::NeverPutBack,
        Mistake::TrustWhatWasVerifiedInFull,
        Mistake::TakeAnyNotFoundForGone,
    ];
    for (mistake, found) in mistakes.into_iter().zip(found_of(&mistakes)) {
        let found = found.unwrap_or_else(|| panic!("{mistake:?} goes unnoticed"));
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
