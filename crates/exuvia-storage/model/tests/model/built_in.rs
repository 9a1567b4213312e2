//! The protocol of a built-in resource, checked over every small world: two objects, writers, two API servers, a few faults
//! and crashes anywhere.
//!
//! Its promise is weaker than that for a CRD, because nothing tells when an API server's configuration changed: every object
//! was patched by two sweeps of the pass, none came back in an old form, and where no server was behind, none is old.

use exuvia_model::{Model, consequences, explore};
use exuvia_storage::protocol::{
    BUILT_IN_RULES, Blocked, Hold, MAX_UNEXPLAINED, Next, NextStep, Pass, Preflight, Step, SweepEnd,
    Verification, next_of_built_in_without, resume,
};

const OBJECTS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Object {
    /// etcd holds it in the form that the servers use now.
    is_new: bool,
    /// The next patch changes its content: a webhook's doing.
    is_dirty: bool,
    /// The rewrite sweep of this pass patched it.
    rewritten: bool,
    /// After that, the verify sweep patched it.
    verified: bool,
    /// Written since the list of the verify sweep that verified it.
    since_verified: bool,
}

/// What never changes within a world.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Setting {
    /// The pass is kept in the cluster; without that a crash forgets it whole.
    keeps: bool,
    /// The second server has the old configuration, and answers some of our requests.
    behind: bool,
    forbidden: bool,
    suspended: bool,
    comparable: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    setting: Setting,
    objects: [Object; OBJECTS],
    faults_left: u8,
    pass: Option<Pass>,
    sweep: Option<Sweep>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Sweep {
    verifies: bool,
    next: usize,
    unfinished: u64,
    came_back: bool,
}

impl World {
    fn crashed(&self, kept: Option<&Pass>) -> Self {
        Self {
            pass: kept.cloned().filter(|_| self.setting.keeps),
            sweep: None,
            ..self.clone()
        }
    }

    fn with_fault(&self) -> Option<Self> {
        let faults_left = self.faults_left.checked_sub(1)?;
        Some(Self {
            faults_left,
            ..self.clone()
        })
    }

    fn remember(&self, change: impl FnOnce(&mut Pass)) -> Self {
        let mut world = self.clone();
        change(world.pass.as_mut().unwrap());
        world
    }

    /// A patch of this object, answered by a server of the new or the old configuration; whether nothing but the form moved.
    fn patch(&mut self, index: usize, by_new: bool) -> (bool, bool) {
        let object = &mut self.objects[index];
        let (moves, is_pure) = (object.is_new != by_new || object.is_dirty, !object.is_dirty);
        if moves {
            (object.is_new, object.is_dirty, object.since_verified) = (by_new, false, true);
        }
        (moves, moves && is_pure)
    }

    fn servers(&self) -> Vec<bool> {
        if self.setting.behind {
            vec![true, false]
        } else {
            vec![true]
        }
    }
}

fn next(world: &World, left_out: Option<usize>) -> Next {
    next_of_built_in_without(world.pass.as_ref(), world.setting.suspended, left_out)
}

/// What others may do at any time.
fn environment(world: &World) -> Vec<World> {
    let Some(world) = world.with_fault() else {
        return Vec::new();
    };
    let mut after = vec![world.crashed(world.pass.as_ref())];
    for index in 0..OBJECTS {
        for by_new in world.servers() {
            for is_dirty in [false, true] {
                let mut written = world.clone();
                let object = &mut written.objects[index];
                (object.is_new, object.is_dirty, object.since_verified) = (by_new, is_dirty, true);
                after.push(written);
            }
        }
    }
    after
}

fn step(world: &World, left_out: Option<usize>) -> Result<Vec<World>, String> {
    if let Some(sweep) = &world.sweep {
        return Ok(if sweep.next < OBJECTS {
            sweep_on(world, sweep)
        } else {
            sweep_end(world, sweep)
        });
    }
    let next = next(world, left_out);
    let Setting {
        suspended, forbidden, ..
    } = world.setting;
    if suspended && !matches!(next, NextStep::Hold(Hold::Suspended) | NextStep::Do(Step::Begin)) {
        return Err(format!("a suspended migration goes on with {next:?}"));
    }
    let after = match &next {
        NextStep::Do(Step::Begin) => World {
            pass: Some(Pass::begin_built_in()),
            objects: world.objects.map(|object| Object {
                rewritten: false,
                verified: false,
                ..object
            }),
            ..world.clone()
        },
        NextStep::Do(Step::Preflight) => world.remember(|pass| {
            pass.preflight = Some(if forbidden {
                Preflight::Blocked(Blocked::Forbidden)
            } else {
                Preflight::Passed
            });
        }),
        // An error, and the next try finds the same.
        NextStep::Do(Step::TakeR0) if !world.setting.comparable => world.clone(),
        NextStep::Do(Step::TakeR0) => world.remember(|pass| pass.r0 = "1".parse().ok()),
        NextStep::Do(Step::Rewrite | Step::Verify { .. }) if forbidden => {
            return Err("a sweep begins, and every write will be refused".into());
        }
        NextStep::Do(Step::Rewrite | Step::Verify { .. }) if !world.setting.comparable => {
            return Err("a sweep begins although resourceVersions cannot be compared".into());
        }
        NextStep::Do(Step::Rewrite) => World {
            sweep: Some(Sweep::default()),
            ..world.clone()
        },
        NextStep::Do(Step::Verify { full: true }) => World {
            sweep: Some(Sweep {
                verifies: true,
                ..Sweep::default()
            }),
            ..world.clone()
        },
        NextStep::Hold(Hold::ServerBehind(_)) if !world.setting.behind => {
            return Err("a server is accused of being behind that never was".into());
        }
        NextStep::Hold(hold) => world.remember(|pass| *pass = resume(hold, pass)),
        NextStep::Done => {
            let object = |is_wrong: fn(&Object) -> bool| world.objects.iter().position(is_wrong);
            if let Some(index) = object(|object| !object.rewritten || !object.verified) {
                return Err(format!("done, but object {index} was not patched by two sweeps"));
            }
            if let Some(index) = object(|object| !object.is_new).filter(|_| !world.setting.behind) {
                return Err(format!("done, but object {index} is stored in an old form"));
            }
            return Ok(Vec::new());
        }
        other => return Err(format!("a built-in resource has no {other:?}")),
    };
    let crashed = after.crashed(world.pass.as_ref());
    Ok(match next {
        NextStep::Do(_) => vec![after, crashed],
        _ => vec![after],
    })
}

/// One more object of a sweep.
fn sweep_on(world: &World, sweep: &Sweep) -> Vec<World> {
    let pass = world.pass.as_ref().unwrap();
    let index = sweep.next;
    let mut after = Vec::new();
    let mut onward = |mut world: World, unfinished: u64, came_back: bool| {
        world.sweep = Some(Sweep {
            next: index + 1,
            unfinished: sweep.unfinished + unfinished,
            came_back: sweep.came_back || came_back,
            ..sweep.clone()
        });
        after.push(world);
    };
    let is_verified = pass.verified_up_to.is_some() && !world.objects[index].since_verified;
    if sweep.verifies && is_verified {
        onward(world.clone(), 0, false);
        return after;
    }
    for first in world.servers() {
        let mut once = world.clone();
        let (moved, _) = once.patch(index, first);
        let object = &mut once.objects[index];
        if !sweep.verifies {
            (object.rewritten, object.verified) = (true, false);
            onward(once, 0, false);
            continue;
        }
        object.verified = object.rewritten;
        if !moved {
            onward(once, 0, false);
            continue;
        }
        for second in once.servers() {
            let mut twice = once.clone();
            let (again, pure) = twice.patch(index, second);
            onward(twice, 0, again && pure);
        }
    }
    if let Some(failed) = world.with_fault() {
        onward(failed, 1, false);
    }
    after.push(world.crashed(Some(pass)));
    after
}

fn sweep_end(world: &World, sweep: &Sweep) -> Vec<World> {
    let mut done = World {
        sweep: None,
        ..world.clone()
    };
    let pass = done.pass.as_mut().unwrap();
    if sweep.verifies {
        pass.note_verification(&Verification {
            full: true,
            complete: true,
            unfinished: sweep.unfinished,
            unexplained: false,
            came_back: sweep.came_back,
            smallest_list: "1".parse().ok(),
        });
        for object in &mut done.objects {
            object.since_verified = false;
        }
    } else {
        pass.rewrite = Some(SweepEnd {
            unfinished: sweep.unfinished,
        });
    }
    let crashed = done.crashed(world.pass.as_ref());
    vec![done, crashed]
}

/// Without further faults it ends within a bounded number of steps.
fn ends(world: &World, left_out: Option<usize>) -> Result<(), String> {
    let mut world = World {
        faults_left: 0,
        ..world.clone()
    };
    for _ in 0..100 {
        if world.sweep.is_none() {
            match next(&world, left_out) {
                NextStep::Done | NextStep::Hold(Hold::Suspended | Hold::Blocked(_)) => return Ok(()),
                NextStep::Do(Step::TakeR0) if !world.setting.comparable => return Ok(()),
                _ => {}
            }
        }
        let Some(after) = step(&world, left_out)?.into_iter().next() else {
            return Ok(());
        };
        world = after;
    }
    Err(format!("never ends: {world:?}"))
}

fn worlds() -> Vec<World> {
    let plain = Setting {
        keeps: true,
        behind: false,
        forbidden: false,
        suspended: false,
        comparable: true,
    };
    let forgets = Setting {
        keeps: false,
        ..plain
    };
    let behind = Setting {
        behind: true,
        ..plain
    };
    let forbidden = Setting {
        forbidden: true,
        ..plain
    };
    let suspended = Setting {
        suspended: true,
        ..plain
    };
    let incomparable = Setting {
        comparable: false,
        ..plain
    };
    let world = |setting, faults_left| World {
        setting,
        objects: [Object::default(); OBJECTS],
        faults_left,
        pass: None,
        sweep: None,
    };
    // What is remembered is the pass of a CRD that had the same name.
    let of_a_crd = World {
        pass: Some(Pass {
            uid: "u".into(),
            generation: 1,
            wanted: true,
            preflight: Some(Preflight::Passed),
            r0: "1".parse().ok(),
            rewrite: Some(SweepEnd::default()),
            verify: Some(SweepEnd::default()),
            ..Pass::default()
        }),
        ..world(plain, 1)
    };
    vec![
        of_a_crd,
        world(plain, 5),
        world(forgets, 4),
        world(behind, 3),
        world(forbidden, 1),
        world(suspended, 1),
        world(incomparable, 1),
    ]
}

struct BuiltIn;

impl Model for BuiltIn {
    type State = World;
    /// The rule that is left out.
    type Mistake = usize;
    const ENDS_EVERY: usize = 1;

    fn process(world: &World, left_out: Option<usize>) -> Result<Vec<World>, String> {
        step(world, left_out)
    }

    fn others(world: &World) -> Result<Vec<World>, String> {
        Ok(environment(world))
    }

    fn decision(world: &World) -> Option<String> {
        let next = next(world, None);
        world.sweep.is_none().then(|| format!("{next:?}"))
    }

    fn ends(world: &World, left_out: Option<usize>) -> Result<(), String> {
        ends(world, left_out)
    }

    fn in_short(mut world: World) -> World {
        if let Some(pass) = &mut world.pass {
            pass.unexplained = pass.unexplained.min(MAX_UNEXPLAINED);
        }
        world
    }
}

#[test]
fn a_built_in_resource_is_safe_and_ends_in_every_world() {
    let mut states = 0;
    for world in worlds() {
        let found = explore::<BuiltIn>(world.clone()).unwrap();
        println!(
            "{found} states: {:?}, {} faults",
            world.setting, world.faults_left
        );
        states += found;
    }
    assert!(
        states > 10_000,
        "the worlds are too small to show anything: {states} states"
    );
}

#[test]
fn no_rule_of_a_built_in_resource_is_there_for_nothing() {
    let mistakes: Vec<usize> = (0..BUILT_IN_RULES.len()).collect();
    for (rule, found) in BUILT_IN_RULES
        .iter()
        .zip(consequences::<BuiltIn>(worlds(), &mistakes))
    {
        let found = found.unwrap_or_else(|| panic!("without {:?} nothing goes wrong", rule.name));
        println!("without {:?}: {found}", rule.name);
    }
}
