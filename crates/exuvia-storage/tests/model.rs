//! The protocol, checked over every small world: two objects, three versions, two API servers, a few faults anywhere.
//!
//! The world is a caricature of DESIGN §3 and PITFALLS A4: one server understands a flip at once, the other may be
//! behind and then stores at the version before it; once awake it may still finish one request on its old ideas.

#![allow(clippy::unwrap_used)] // a test may panic
#![allow(clippy::too_many_lines)] // one match over all steps reads better than ten functions

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use exuvia_storage::protocol::{
    Blocked, Crd, Hold, Observed, Pass, Preflight, RULES, Settled, Step, SweepEnd, next_without, resume,
    verified,
};

const OBJECTS: usize = 2;
const SOON: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Object {
    version: u8,
    /// Its resourceVersion is above the R0 that was taken last.
    above_r0: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    // What never changes within a world.
    one_by_one: bool,
    /// The pass is kept in the cluster; without that a crash forgets it whole.
    keeps: bool,
    prunes: bool,
    suspended: bool,
    // The cluster.
    generation: u8,
    storage: u8,
    stored: u8,
    objects: [Object; OBJECTS],
    /// The second server is behind, and stores at this version.
    behind_at: Option<u8>,
    /// It is awake, but has one request to finish on its old ideas.
    in_flight_at: Option<u8>,
    /// A server was behind at some time: accusing one is fair.
    ever_behind: bool,
    /// A write by a server nobody knew of came after the trim.
    late_write_possible: Option<u8>,
    faults_left: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Sweep {
    verify: Option<bool>, // full?
    next: usize,
    unfinished: u64,
    moved: bool,
}

#[derive(Clone, PartialEq, Debug)]
struct State {
    world: World,
    pass: Option<Pass>,
    sweep: Option<Sweep>,
}

impl State {
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.world, &self.sweep, format!("{:?}", self.pass)).hash(&mut hasher);
        hasher.finish()
    }
}

impl World {
    fn quiet(&self) -> bool {
        self.behind_at.is_none() && self.in_flight_at.is_none()
    }

    fn observe(&self, pass: Option<&Pass>) -> Observed {
        // What time buys, and what is assumed of it: one settle time after R0, and after the trim, no server is behind.
        let in_time = if self.quiet() { Duration::ZERO } else { SOON };
        Observed {
            crd: Some(Crd {
                uid: "uid".into(),
                generation: self.generation.into(),
                storage: self.storage.to_string(),
                stored: (0..3)
                    .filter(|v| self.stored & (1 << v) != 0)
                    .map(|v: u8| v.to_string())
                    .collect(),
            }),
            pass: pass.cloned(),
            settled: match (self.one_by_one, self.behind_at, self.in_flight_at) {
                (false, ..) => Settled::Yes { one_by_one: false },
                (true, Some(_), _) => Settled::Behind(vec!["second".into()]),
                (true, None, Some(_)) => Settled::Wait(SOON),
                (true, None, None) => Settled::Yes { one_by_one: true },
            },
            full_verify_in: in_time,
            patrol_in: in_time,
            suspended: self.suspended,
        }
    }

    /// A write: at the storage version, or at the old one by the server that is behind.
    fn write(&mut self, index: usize, version: u8) {
        self.objects[index] = Object {
            version,
            above_r0: true,
        };
    }

    /// An empty patch: writes only if the bytes differ. Returns whether the object moved.
    fn patch(&mut self, index: usize, version: u8) -> bool {
        let moves = self.objects[index].version != version;
        if moves {
            self.write(index, version);
        }
        moves
    }

    /// The versions that our own request may be handled at: behind a load balancer it may meet the stale server.
    fn handled_at(&self) -> Vec<u8> {
        let stale = self.behind_at.filter(|_| !self.one_by_one);
        [Some(self.storage), stale].into_iter().flatten().collect()
    }

    fn lost(&self) -> Option<usize> {
        (0..OBJECTS).find(|index| self.stored & (1 << self.objects[*index].version) == 0)
    }
}

/// What the environment may do at any time.
fn environment(state: &State) -> Vec<State> {
    let mut after = Vec::new();
    let mut push = |world: World| {
        after.push(State {
            world,
            ..state.clone()
        });
    };
    let world = &state.world;
    if let Some(old) = world.behind_at {
        push(World {
            behind_at: None,
            ..world.clone()
        });
        push(World {
            behind_at: None,
            in_flight_at: Some(old),
            ..world.clone()
        });
    }
    if let Some(old) = world.behind_at.or(world.in_flight_at) {
        for index in 0..OBJECTS {
            let mut world = world.clone();
            world.in_flight_at = None;
            world.write(index, old);
            push(world);
        }
        if world.in_flight_at.is_some() {
            push(World {
                in_flight_at: None,
                ..world.clone()
            });
        }
    }
    if world.faults_left == 0 {
        return after;
    }
    let world = World {
        faults_left: world.faults_left - 1,
        ..world.clone()
    };
    if world.storage < 2 {
        let flipped = World {
            generation: world.generation + 1,
            storage: world.storage + 1,
            stored: world.stored | (1 << (world.storage + 1)),
            // A server that nobody knows of and that outlives a trim *and* the next flip is beyond any tool's sight.
            late_write_possible: None,
            ..world.clone()
        };
        push(flipped.clone());
        push(World {
            behind_at: Some(world.storage),
            ever_behind: true,
            ..flipped
        });
    }
    if world.storage > 0 {
        // Flipped back: the generation moves, the storage version is one that was there before.
        let storage = world.storage - 1;
        let stored = world.stored | (1 << storage);
        let late_write_possible = None;
        push(World {
            generation: world.generation + 1,
            storage,
            stored,
            late_write_possible,
            ..world.clone()
        });
    }
    // The spec changes and the storage version does not, as when a CA bundle is renewed.
    push(World {
        generation: world.generation + 1,
        ..world.clone()
    });
    for index in 0..OBJECTS {
        let mut world = world.clone();
        world.write(index, world.storage);
        push(world);
    }
    if let Some(old) = world.late_write_possible {
        for index in 0..OBJECTS {
            let mut world = World {
                ever_behind: true,
                ..world.clone()
            };
            world.write(index, old);
            push(world);
        }
    }
    // A crash between two steps. One in the middle of a step is in `carry_out` and `sweep_on`.
    let pass = state.pass.clone().filter(|_| world.keeps);
    after.push(State {
        world,
        pass,
        sweep: None,
    });
    after
}

/// Carries one step out; the second of each pair is the same world after a crash before the pass was kept.
fn carry_out(state: &State, step: &Step) -> Result<Vec<State>, String> {
    let State { world, pass, .. } = state;
    let remember = |change: &dyn Fn(&mut Pass)| {
        let mut pass = pass.clone().unwrap();
        change(&mut pass);
        State {
            world: world.clone(),
            pass: Some(pass),
            sweep: None,
        }
    };
    let sweep = |verify| State {
        sweep: Some(Sweep {
            verify,
            next: 0,
            unfinished: 0,
            moved: false,
        }),
        ..state.clone()
    };
    if world.suspended && !matches!(step, Step::Hold(Hold::Suspended) | Step::Begin) {
        return Err(format!("a suspended migration goes on with {step:?}"));
    }
    let mut after = vec![match step {
        Step::Begin => {
            let crd = world.observe(None).crd.unwrap();
            State {
                world: world.clone(),
                pass: Some(Pass::begin(&crd, pass.as_ref())),
                sweep: None,
            }
        }
        Step::Preflight => remember(&|pass| {
            if !pass.surveyed(&world.observe(None).crd.unwrap(), false) {
                return;
            }
            let blocked = Preflight::Blocked(Blocked::Pruning);
            pass.preflight = Some(if world.prunes { blocked } else { Preflight::Passed });
        }),
        Step::TakeR0 => {
            let mut taken = remember(&|pass| pass.r0 = "1".parse().ok());
            taken
                .world
                .objects
                .iter_mut()
                .for_each(|object| object.above_r0 = false);
            taken
        }
        Step::Rewrite if world.prunes => return Err("a rewrite erases fields".into()),
        Step::Rewrite
            if world.stored == 1 << world.storage && !pass.as_ref().is_some_and(|pass| pass.patrol_owed) =>
        {
            return Err("a clean CRD is swept".into());
        }
        Step::Rewrite => sweep(None),
        Step::Verify { full } => sweep(Some(*full)),
        Step::Trim(old) => {
            let mut trimmed = remember(&|pass| pass.trimmed = true);
            for version in old {
                trimmed.world.stored &= !(1 << version.parse::<u8>().unwrap());
            }
            if let Some(index) = trimmed.world.lost() {
                return Err(format!("object {index} is stored at a version that was trimmed"));
            }
            // Who forgets the trim in a crash cannot patrol after it, so only a migration that keeps its pass is put to it.
            let first = old.first().filter(|_| world.keeps);
            trimmed.world.late_write_possible = first.map(|version| version.parse().unwrap());
            trimmed
        }
        Step::Patrol => {
            let mut patrolled = remember(&|pass| pass.patrolled = true);
            for index in 0..OBJECTS {
                let version = patrolled.world.objects[index].version;
                if patrolled.world.patch(index, world.storage) {
                    patrolled.world.stored |= 1 << version;
                    patrolled.pass = None;
                }
            }
            patrolled.world.late_write_possible = None; // what comes later still is beyond any tool
            patrolled
        }
        Step::Hold(hold) => State {
            pass: resume(hold, pass.as_ref().unwrap()),
            ..state.clone()
        },
        Step::Wait(_) => state.clone(),
        Step::Done => {
            if let Some(index) = world.lost() {
                return Err(format!(
                    "done, but object {index} is stored at a version that was trimmed"
                ));
            }
            if world.stored != 1 << world.storage {
                return Err("done, but storedVersions is not trimmed".into());
            }
            state.clone()
        }
    }];
    if !matches!(step, Step::Done | Step::Hold(_)) {
        after.push(State {
            pass: pass.clone(),
            sweep: None,
            ..after[0].clone()
        });
    }
    Ok(after)
}

/// One more object of a sweep, or its end.
fn sweep_on(state: &State) -> Result<Vec<State>, String> {
    let sweep = state.sweep.as_ref().unwrap();
    let pass = state.pass.as_ref().unwrap();
    if sweep.next == OBJECTS {
        let end = SweepEnd {
            unfinished: sweep.unfinished,
        };
        let crd = state.world.observe(None).crd.unwrap();
        let pass = match sweep.verify {
            None => Pass {
                rewrite: Some(end),
                ..pass.clone()
            },
            Some(_) => verified(pass, &crd, end, sweep.moved),
        };
        if pass.times_behind > 0 && !state.world.ever_behind {
            return Err("a server is accused of being behind that never was".into());
        }
        return Ok(vec![
            State {
                pass: Some(pass),
                sweep: None,
                ..state.clone()
            },
            State {
                sweep: None,
                ..state.clone()
            },
        ]);
    }
    let mut after = Vec::new();
    let onward = |world: World, unfinished: u64, moved: bool| {
        let next = sweep.next + 1;
        let sweep = Sweep {
            next,
            unfinished: sweep.unfinished + unfinished,
            moved: sweep.moved || moved,
            ..sweep.clone()
        };
        State {
            world,
            pass: state.pass.clone(),
            sweep: Some(sweep),
        }
    };
    let world = &state.world;
    // Without an R0 every resourceVersion is above it.
    let above_r0 = world.objects[sweep.next].above_r0 || pass.r0.is_none();
    if above_r0 && sweep.verify != Some(true) {
        return Ok(vec![onward(world.clone(), 0, false)]);
    }
    for version in world.handled_at() {
        let mut world = world.clone();
        let moved = world.patch(sweep.next, version);
        after.push(onward(world, 0, moved));
    }
    if world.faults_left > 0 {
        let world = World {
            faults_left: world.faults_left - 1,
            ..world.clone()
        };
        after.push(onward(world, 1, false)); // refused, or in conflict for longer than we try
    }
    Ok(after)
}

fn protocol(state: &State, left_out: Option<usize>) -> Result<Vec<State>, String> {
    if state.sweep.is_some() {
        return sweep_on(state);
    }
    let step = next_without(&state.world.observe(state.pass.as_ref()), left_out);
    carry_out(state, &step)
}

/// Without further faults it ends, done, within a bounded number of steps.
fn ends(state: &State, left_out: Option<usize>) -> Result<(), String> {
    let mut state = state.clone();
    state.world = World {
        faults_left: 0,
        behind_at: None,
        in_flight_at: None,
        late_write_possible: None,
        ..state.world
    };
    for _ in 0..100 {
        if state.sweep.is_none() {
            match next_without(&state.world.observe(state.pass.as_ref()), left_out) {
                Step::Done | Step::Hold(Hold::Suspended | Hold::Blocked(_)) => return Ok(()),
                _ => {}
            }
        }
        state = protocol(&state, left_out)?.swap_remove(0);
    }
    Err(format!("never ends: {state:?}"))
}

/// Explores every world; returns the number of states, or the first thing that went wrong.
fn check(left_out: Option<usize>) -> Result<usize, String> {
    let mut seen = HashSet::new();
    let mut queue = VecDeque::new();
    let fresh = World {
        one_by_one: true,
        keeps: true,
        prunes: false,
        suspended: false,
        generation: 1,
        storage: 0,
        stored: 1,
        objects: [Object {
            version: 0,
            above_r0: false,
        }; OBJECTS],
        behind_at: None,
        in_flight_at: None,
        ever_behind: false,
        late_write_possible: None,
        faults_left: 3,
    };
    let flipped = World {
        generation: 2,
        storage: 1,
        stored: 0b11,
        ..fresh.clone()
    };
    let behind = World {
        behind_at: Some(0),
        ever_behind: true,
        ..flipped.clone()
    };
    for world in [
        fresh.clone(),
        flipped.clone(),
        behind.clone(),
        World {
            keeps: false,
            ..behind.clone()
        },
        World {
            one_by_one: false,
            ..flipped.clone()
        },
        World {
            one_by_one: false,
            ..behind
        },
        World {
            prunes: true,
            faults_left: 1,
            ..flipped.clone()
        },
        World {
            suspended: true,
            faults_left: 1,
            ..flipped
        },
    ] {
        queue.push_back(State {
            world,
            pass: None,
            sweep: None,
        });
    }
    while let Some(state) = queue.pop_front() {
        if !seen.insert(state.fingerprint()) {
            continue;
        }
        ends(&state, left_out).map_err(|e| format!("{e}; in the end after {state:?}"))?;
        queue.extend(environment(&state));
        let after = protocol(&state, left_out).map_err(|e| format!("{e}; after {state:?}"))?;
        queue.extend(after);
    }
    Ok(seen.len())
}

#[test]
fn every_world_is_safe_and_ends() {
    let states = check(None).unwrap();
    println!("{states} states");
    assert!(
        states > 10_000,
        "the worlds are too small to show anything: {states} states"
    );
}

#[test]
fn no_rule_is_there_for_nothing() {
    for (index, rule) in RULES.iter().enumerate() {
        let found = check(Some(index)).expect_err(&format!("without {:?} nothing goes wrong", rule.name));
        println!("without {:?}: {found}", rule.name);
    }
}
