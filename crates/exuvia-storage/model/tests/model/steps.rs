//! What the environment and the engine do to the world.

use exuvia_storage::protocol::{
    Blocked, Hold, MAX_UNEXPLAINED, Next, NextStep, Pass, Preflight, Step, SweepEnd, Verification, Wanted,
    resume,
};

use crate::Mistake;
use crate::world::{SETTLE, Second, World};

/// What any generation is called.
const NOW: u8 = 10;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Kind {
    Rewrite,
    Verify { full: bool },
    Patrol,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Sweep {
    pub(crate) kind: Kind,
    pub(crate) next: usize,
    pub(crate) unfinished: u64,
    pub(crate) unexplained: bool,
    pub(crate) came_back: bool,
    /// Whether `storedVersions` was clean when it began.
    pub(crate) clean: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ModelState {
    pub(crate) world: World,
    pub(crate) pass: Option<Pass>,
    pub(crate) sweep: Option<Sweep>,
}

impl ModelState {
    /// The same state with everything forgotten that makes no difference any more, so that it is gone through once.
    pub(crate) fn in_short(mut self) -> Self {
        let Self { world, pass, sweep } = &mut self;
        world.record = world.record.filter(|(at, _)| *at == world.generation);
        let same = |pass: &Pass| pass.generation == i64::from(world.generation);
        let is_same = pass.as_ref().is_some_and(same);
        let passed = pass.clone().unwrap_or_default();
        for object in &mut world.objects {
            object.since_r0 &= passed.r0.is_some();
            object.explained &= passed.r0.is_some() && !passed.patrolled;
            object.since_verified &= passed.verified_up_to.is_some();
            object.since_r1 &= passed.r1.is_some() && !passed.patrolled;
            object.since_list &= sweep.is_some();
        }
        if !passed.trimmed || passed.patrolled {
            world.trim_age = SETTLE;
        }
        if world.setting.accounted {
            world.awake_age = SETTLE;
        }
        // Only equality matters.
        world.generation = NOW;
        world.record = world.record.map(|(_, patrolled)| (NOW, patrolled));
        if let Some(pass) = pass {
            pass.generation = if is_same { NOW.into() } else { 9 };
            pass.unexplained = pass.unexplained.min(MAX_UNEXPLAINED);
        }
        self
    }

    /// The same after a crash: what was kept is taken up again.
    fn crashed(&self, kept: Option<&Pass>) -> Self {
        let mut world = self.world.clone();
        let pass = kept.cloned().filter(|_| world.setting.keeps);
        if pass
            .as_ref()
            .is_some_and(|pass| pass.unexplained > 0 || pass.patrol_owed)
        {
            world.unsettled_age = 0;
        }
        Self {
            world,
            pass,
            sweep: None,
        }
    }
}

/// What the environment may do at any time.
pub(crate) fn environment(state: &ModelState) -> Vec<ModelState> {
    let mut after = Vec::new();
    let mut push = |world: World| {
        after.push(ModelState {
            world,
            ..state.clone()
        });
    };
    let world = &state.world;
    let mut later = world.clone();
    later.tick();
    push(later);
    match world.second {
        Second::Quiet => {}
        Second::Paused(version) => push(World {
            second: Second::Behind(version),
            awake_age: 0,
            ..world.clone()
        }),
        Second::Behind(version) | Second::InFlight(version) => {
            for index in 0..world.setting.objects {
                for explained in [false, true] {
                    let mut world = world.clone();
                    world.write(index, version);
                    world.objects[index].explained |= explained;
                    push(world);
                }
            }
        }
    }
    if world.faults_left == 0 {
        return after;
    }
    let world = World {
        faults_left: world.faults_left - 1,
        ..world.clone()
    };
    if world.storage < 2 && world.second == Second::Quiet {
        let seconds: [fn(u8) -> Second; 3] = [|_| Second::Quiet, Second::Behind, Second::Paused];
        for second in seconds {
            push(world.clone().flipped(world.storage + 1, second));
        }
    }
    if world.storage > 0 && world.second == Second::Quiet {
        // Flipped back: the generation moves, the storage version is one that was there before.
        push(world.clone().flipped(world.storage - 1, |_| Second::Quiet));
    }
    // The spec changes and the storage version does not, as when a CA bundle is renewed.
    push(World {
        generation: world.generation + 1,
        ..world.clone()
    });
    // Somebody else trims, and does not look.
    push(World {
        stored: 1 << world.storage,
        ..world.clone()
    });
    for index in 0..world.setting.objects {
        let mut written = world.clone();
        written.write(index, written.storage);
        push(written.clone());
        // At an old version, through a healthy server: the storage version's default is missing.
        written.objects[index].dirty = true;
        push(written.clone());
        written.objects[index].explained = true;
        push(written);
    }
    let crashed = ModelState {
        world,
        ..state.clone()
    };
    after.push(crashed.crashed(state.pass.as_ref()));
    after
}

/// Carries one step out; the second state, if there is one, is the same world after a crash before the pass was kept.
pub(crate) fn carry_out(state: &ModelState, next: &Next) -> Result<Vec<ModelState>, String> {
    let ModelState { world, pass, .. } = state;
    let remember = |change: &dyn Fn(&mut Pass)| {
        let mut pass = pass.clone().unwrap();
        change(&mut pass);
        ModelState {
            world: world.clone(),
            pass: Some(pass),
            sweep: None,
        }
    };
    let sweep = |kind| {
        let mut begun = ModelState {
            sweep: Some(Sweep {
                kind,
                next: 0,
                unfinished: 0,
                unexplained: false,
                came_back: false,
                clean: world.is_clean(),
            }),
            ..state.clone()
        };
        for object in &mut begun.world.objects {
            object.since_list = false;
        }
        begun
    };
    if world.setting.suspended && !matches!(next, NextStep::Hold(Hold::Suspended) | NextStep::Do(Step::Begin))
    {
        return Err(format!("a suspended migration goes on with {next:?}"));
    }
    let mut after = vec![match next {
        NextStep::Do(Step::Begin) => {
            let mut begun = state.clone();
            let pass = Pass::begin(&world.crd(), pass.as_ref());
            if pass.patrol_owed {
                begun.world.unsettled_age = 0;
            }
            begun.pass = Some(pass);
            begun
        }
        NextStep::Do(Step::Preflight) => remember(&|pass| {
            let insisted =
                world.setting.until_recorded && world.record.is_none_or(|(at, _)| at != world.generation);
            let why = Wanted {
                insisted,
                has_old_owners: false,
            };
            if pass.surveyed(&world.crd(), why) {
                let blocked = Preflight::Blocked(Blocked::Pruning);
                pass.preflight = Some(if world.setting.prunes {
                    blocked
                } else {
                    Preflight::Passed
                });
            }
        }),
        NextStep::Do(Step::TakeR0) => {
            let mut taken = remember(&|pass| pass.r0 = "1".parse().ok());
            for object in &mut taken.world.objects {
                (object.since_r0, object.explained) = (false, false);
            }
            taken
        }
        NextStep::Do(Step::Rewrite) if world.setting.prunes => return Err("a rewrite erases fields".into()),
        NextStep::Do(Step::Rewrite) => sweep(Kind::Rewrite),
        NextStep::Do(Step::Verify { full }) => sweep(Kind::Verify { full: *full }),
        NextStep::Do(Step::Patrol) => sweep(Kind::Patrol),
        NextStep::Do(Step::Trim(_)) if pass.as_ref().unwrap().rewrite != Some(SweepEnd::default()) => {
            return Err("trimmed, but an object's owners were not moved by a rewrite".into());
        }
        NextStep::Do(Step::Trim(_)) if pass.as_ref().unwrap().verify != Some(SweepEnd::default()) => {
            return Err("trimmed, but no second sweep has found every object in order".into());
        }
        NextStep::Do(Step::Trim(old)) => {
            let mut trimmed = remember(&|pass| pass.trimmed = true);
            for version in old {
                trimmed.world.stored &= !(1 << version.parse::<u8>().unwrap());
            }
            trimmed.world.record = Some((world.generation, false));
            trimmed.world.trim_age = 0;
            // A server that sleeps unknown to all may still write; that is what the patrol is for.
            let may_be_wrong = !world.setting.accounted && world.ever_behind;
            if let Some(index) = trimmed.world.old().filter(|_| !may_be_wrong) {
                return Err(format!("trimmed, but object {index} is stored at an old version"));
            }
            trimmed
        }
        NextStep::Hold(Hold::ServerBehind(_)) if !world.ever_behind => {
            return Err("a server is accused of being behind that never was".into());
        }
        NextStep::Hold(hold) => ModelState {
            pass: Some(resume(hold, pass.as_ref().unwrap())),
            ..state.clone()
        },
        NextStep::Wait(_) => state.clone(),
        NextStep::Done => {
            if let Some(index) = world.old().filter(|_| world.setting.keeps) {
                return Err(format!("done, but object {index} is stored at an old version"));
            }
            if !world.is_clean() {
                return Err("done, but storedVersions is not trimmed".into());
            }
            if world.setting.until_recorded && world.record != Some((world.generation, true)) {
                return Err("done, but nothing is on record".into());
            }
            state.clone()
        }
    }];
    if matches!(next, NextStep::Do(_)) {
        let crashed = after[0].crashed(pass.as_ref());
        after.push(crashed);
    }
    Ok(after)
}

/// What came of one object.
#[derive(Clone, Copy, Default)]
struct Seen {
    unfinished: u64,
    unexplained: bool,
    came_back: bool,
    put_back: bool,
}

/// One more object of a sweep, or its end.
pub(crate) fn sweep_on(state: &ModelState, mistake: Option<Mistake>) -> Result<Vec<ModelState>, String> {
    let sweep = state.sweep.as_ref().unwrap();
    let pass = state.pass.as_ref().unwrap();
    if sweep.next == state.world.setting.objects {
        return Ok(sweep_end(state));
    }
    let mut after: Vec<ModelState> = Vec::new();
    let mut hidden = None;
    let mut onward = |mut world: World, seen: Seen| {
        if seen.put_back && mistake != Some(Mistake::NeverPutBack) {
            world.put_back(pass);
        }
        let same = i64::from(world.generation) == pass.generation;
        if let Some(index) = world.old().filter(|_| seen.put_back && same && world.is_clean()) {
            hidden = Some(index);
        }
        let sweep = Sweep {
            next: sweep.next + 1,
            unfinished: sweep.unfinished + seen.unfinished,
            unexplained: sweep.unexplained || seen.unexplained,
            came_back: sweep.came_back || seen.came_back,
            ..sweep.clone()
        };
        after.push(ModelState {
            world,
            pass: state.pass.clone(),
            sweep: Some(sweep),
        });
    };
    let world = &state.world;
    let object = world.objects[sweep.next];
    // Without an R0 every resourceVersion is above it.
    let above_r0 = object.since_r0 || pass.r0.is_none();
    let (may_skip, must_skip) = match sweep.kind {
        Kind::Rewrite => (above_r0, above_r0),
        Kind::Verify { full: false } => (above_r0, false), // a sample is patched anyway
        Kind::Verify { full: true } => {
            let verified = pass.verified_up_to.is_some() && !object.since_verified;
            (verified, verified)
        }
        Kind::Patrol => {
            let trusts = !pass.verified_in_full || mistake == Some(Mistake::TrustWhatWasVerifiedInFull);
            let verified = pass.r1.is_some() && trusts && !object.since_r1;
            (verified, verified)
        }
    };
    if may_skip {
        onward(world.clone(), Seen::default());
    }
    if must_skip {
        return Ok(after);
    }
    for first in world.handled_at() {
        let mut once = world.clone();
        let (moved, pure) = once.patch(sweep.next, first);
        if sweep.kind == Kind::Rewrite || !moved {
            let seen = Seen {
                put_back: sweep.kind == Kind::Rewrite && pure && sweep.clean,
                ..Seen::default()
            };
            onward(once, seen);
            continue;
        }
        for second in once.handled_at() {
            let mut twice = once.clone();
            let (again, pure) = twice.patch(sweep.next, second);
            let came_back = again && pure;
            let unexplained = !again && !object.explained;
            let suspicious = unexplained || came_back;
            let after_trim = sweep.kind == Kind::Patrol || sweep.clean;
            onward(
                twice,
                Seen {
                    unexplained,
                    came_back,
                    put_back: suspicious && after_trim,
                    ..Seen::default()
                },
            );
        }
    }
    if world.faults_left > 0 {
        let world = World {
            faults_left: world.faults_left - 1,
            ..world.clone()
        };
        // Refused, in conflict for longer than we try, or a 404 that is not about the object.
        let counted = u64::from(mistake != Some(Mistake::TakeAnyNotFoundForGone));
        onward(
            world,
            Seen {
                unfinished: counted,
                ..Seen::default()
            },
        );
    }
    // Cut off in the middle: the engine remembers what was suspicious, a crash does not.
    after.push(state.crashed(Some(pass)));
    match hidden {
        None => Ok(after),
        Some(index) => Err(format!(
            "storedVersions is known to be wrong and stays so, with object {index} at an old version"
        )),
    }
}

fn sweep_end(state: &ModelState) -> Vec<ModelState> {
    let sweep = state.sweep.as_ref().unwrap();
    let mut done = ModelState {
        sweep: None,
        ..state.clone()
    };
    let pass = done.pass.as_mut().unwrap();
    let before = pass.clone();
    let world = &mut done.world;
    let suspicious = sweep.unexplained || sweep.came_back;
    match sweep.kind {
        Kind::Rewrite if sweep.clean && !world.is_clean() => {} // listed again: once more, for their entries
        Kind::Rewrite => {
            pass.rewrite = Some(SweepEnd {
                unfinished: sweep.unfinished,
            });
        }
        Kind::Verify { full } => {
            pass.verified(
                &world.crd(),
                &Verification {
                    full,
                    complete: true,
                    unfinished: sweep.unfinished,
                    unexplained: sweep.unexplained,
                    came_back: sweep.came_back,
                    smallest_list: "1".parse().ok(),
                },
            );
            for object in &mut world.objects {
                if pass.verify.is_some() {
                    object.since_r1 = object.since_list;
                } else {
                    object.since_verified = object.since_list;
                }
            }
            if suspicious {
                world.unsettled_age = 0;
            }
        }
        Kind::Patrol if suspicious => {
            *pass = Pass {
                patrol_owed: true,
                unexplained: pass.unexplained.saturating_add(1),
                came_back: sweep.came_back,
                ..Pass::begin(&world.crd(), Some(&before))
            };
            world.unsettled_age = 0;
        }
        Kind::Patrol => {
            let same = i64::from(world.generation) == pass.generation && world.is_clean();
            if sweep.unfinished == 0 && same {
                pass.patrolled = true;
                world.record = Some((world.generation, true));
            }
        }
    }
    let crashed = done.crashed(Some(&before));
    vec![done, crashed]
}
