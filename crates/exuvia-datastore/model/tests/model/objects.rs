//! The steps that go through the objects one by one, and those that let the source and the target go.

use exuvia_api::{CleanupSource, DatastorePhase};
use exuvia_datastore::protocol::{Copied, Route, Seen, Tried, Verified, cleanup};

use crate::Mistake;
use crate::state::{Doing, State};
use crate::steps::Done;
use crate::world::{Bad, Form, Late, Target, World};

/// What a dry run of every object finds.
pub(crate) fn tried(world: &World, sees_targets: bool) -> Tried {
    if world.bad == Bad::Shown {
        Tried::Blocked
    } else if sees_targets && world.objects().any(|object| world.conflict(object)) {
        Tried::Conflicts
    } else {
        Tried::Clean
    }
}

/// One object after the other, each read again before it is written.
pub(crate) fn copy(
    state: &State,
    next: State,
    doing: Doing,
    mistake: Option<Mistake>,
) -> Result<Vec<Done>, String> {
    let object = usize::from(doing.at);
    let world = &state.world;
    if object == world.setting.objects {
        let mut next = next.ends();
        next.seen.copies = next
            .seen
            .copies
            .saturating_add(u8::from(next.seen.verified == Verified::SourceMoved));
        (next.seen.copied, next.seen.verified) = (Copied::Yes, Verified::No);
        return Ok(vec![Done {
            after: next,
            late: None,
        }]);
    }
    if world.aliased && !state.seen.aliases {
        return Err("a target is made and nobody knows under which uids dependents name it".into());
    }
    if world.aliased && !world.has_second() && state.seen.tried_again != Tried::Clean {
        return Err("targets are made although nobody looked what stands there".into());
    }
    let source = world.sources[object];
    let ours = Target::Ours {
        version: source.version,
        changed: false,
    };
    let reached = world.reached().into_iter().map(|route| {
        let mut next = next.clone();
        let mut late = None;
        let target = &mut next.world.targets[object];
        match *target {
            // Its object is there and has no mark of ours: it is taken for an equal one.
            _ if route == Route::Backend => {}
            Target::Absent if source.there && world.bad != Bad::Nothing => {
                next.seen.copied = Copied::Refused;
                next.doing = None;
            }
            Target::Absent if source.there => {
                *target = ours;
                (next.world.stamped, next.world.names_second) = (true, world.has_second());
                late = Some(Late::Target(object, source.version));
            }
            Target::Ours { changed: false, .. } if source.there => *target = ours,
            Target::Ours { changed: false, .. } => *target = Target::Absent,
            _ if world.conflict(object) && mistake == Some(Mistake::OverwriteForeignTargets) => {
                *target = ours;
            }
            _ if world.conflict(object) => {
                next.seen.copied = Copied::Conflicts;
                next.doing = None;
            }
            _ => {}
        }
        Done { after: next, late }
    });
    Ok(reached.collect())
}

/// One object after the other, source and target.
pub(crate) fn verify(state: &State, mut next: State, doing: Doing) -> Vec<Done> {
    let object = usize::from(doing.at);
    let world = &state.world;
    if object == world.setting.objects {
        next.seen.verified = match doing.found {
            Verified::No => Verified::Yes,
            found => found,
        };
        return vec![Done {
            after: next.ends(),
            late: None,
        }];
    }
    let source = world.sources[object];
    let found = match world.targets[object] {
        Target::Ours { changed: true, .. } => Verified::Failed,
        Target::Ours { version, .. } if source.there && version == source.version => Verified::No,
        Target::Foreign(equal_to) if !source.there || equal_to == Some(source.version) => Verified::No,
        Target::Absent if !source.there => Verified::No,
        _ => Verified::SourceMoved,
    };
    let reached = world.reached().into_iter().map(|route| {
        let mut next = next.clone();
        next.doing = Some(Doing {
            at: doing.at + 1,
            found: match route {
                Route::Backend => doing.found,
                Route::Crds if doing.found == Verified::Failed => Verified::Failed,
                Route::Crds if found == Verified::No => doing.found,
                Route::Crds => found,
            },
            ..doing
        });
        Done {
            after: next,
            late: None,
        }
    });
    reached.collect()
}

/// One object after the other, only unchanged ones; then a list that was answered by the CRDs, then a locked write.
pub(crate) fn undo_targets(
    state: &State,
    mut next: State,
    doing: Doing,
    mistake: Option<Mistake>,
) -> Vec<Done> {
    let object = usize::from(doing.at);
    let world = &state.world;
    if object == world.setting.objects {
        let routed = world.reached() == [Route::Crds] && world.route == Route::Crds && !world.route_touched;
        let answered = routed || world.has_second();
        let none_left = if mistake == Some(Mistake::TakeAnyListForOurs) {
            !answered || !world.has_own_targets()
        } else {
            answered && !world.has_own_targets()
        };
        let kept = world.kept && world.has_own_targets() && answered;
        let waits = mistake == Some(Mistake::KeepTheFreezeForCopies);
        let ends = none_left || kept && !waits;
        if ends && !doing.stale {
            (next.world.record.routed, next.world.record.copies_left) = (false, kept);
            next.seen.tried_copies_left = !kept || world.record.copies_left;
        }
        return vec![Done {
            after: next.ends(),
            late: None,
        }];
    }
    if object == 0 && mistake == Some(Mistake::PutTheRouteBackFirst) && world.record.route_saved {
        next.world.put_back_route();
    }
    let reached = next.world.reached().into_iter().map(|route| {
        let mut next = next.clone();
        let target = &mut next.world.targets[object];
        let deletes = match *target {
            Target::Ours { changed, .. } => !changed || mistake == Some(Mistake::DeleteChangedTargets),
            Target::Foreign(equal_to) => equal_to.is_some() && mistake == Some(Mistake::DeleteEqualTargets),
            Target::Absent => false,
        };
        if route == Route::Crds && deletes && !world.kept {
            *target = Target::Absent;
        }
        Done {
            after: next,
            late: None,
        }
    });
    reached.collect()
}

pub(crate) fn restore_flag(world: &mut World, flag: usize) {
    if let Some(saved) = world.saved.filter(|_| world.held(flag)) {
        world.set_flag(flag, saved[flag]);
    }
}

/// The policy of the source is changed in place: one of them is in force at every moment.
pub(crate) fn thaw(world: &mut World, at: u8, mistake: Option<Mistake>) -> bool {
    match at {
        0 => world.target_policy = false,
        1 if mistake == Some(Mistake::ThawByReplacing) => {
            (world.source_policy, world.denying) = (Form::Absent, 0);
        }
        1 | 2 if world.setting.admission => {
            world.touched |= world.source_policy == Form::Absent;
            world.source_policy = match mistake {
                Some(Mistake::LetSourcesBeDeletedTooEarly) => Form::Converged,
                _ => Form::Committed,
            };
        }
        3 => world.guard = None,
        4 if world.record.phase == DatastorePhase::Converged => restore_flag(world, 1),
        _ => {}
    }
    at == 4
}

/// As [`thaw`], for those who want to delete sources.
pub(crate) fn release_source(world: &mut World, at: u8) -> bool {
    if at == 0 {
        world.target_policy = false;
    } else {
        world.touched |= world.source_policy == Form::Absent;
        world.source_policy = Form::Converged;
    }
    at == 1
}

/// The CRDs first, then the policy: what outlives its CRD would freeze the next one of that name.
pub(crate) fn clean_up(
    state: &State,
    world: &mut World,
    seen: &mut Seen,
    at: u8,
    mistake: Option<Mistake>,
) -> bool {
    let wanted = match mistake {
        Some(Mistake::CleanUpWithItsCrd) => world.setting.cleanup,
        _ => cleanup(&state.observe()),
    };
    let let_go = |world: &mut World| {
        world.source_policy = Form::Absent;
        restore_flag(world, 0);
    };
    match (wanted, at) {
        (CleanupSource::KeepFrozen, _) => world.retired = true,
        (CleanupSource::Thaw, _) => let_go(world),
        (CleanupSource::DeleteCrds, 0) if world.source_crd => {
            let moved = |object: usize| {
                let source = world.sources[object];
                !source.there || world.committed.is_some_and(|sources| sources[object] == source)
            };
            if world.objects().all(moved) || mistake == Some(Mistake::DeleteUnmovedSources) {
                return false;
            }
            seen.cleaned = Some(false);
            return true;
        }
        (CleanupSource::DeleteCrds, 0) => return false,
        // As before the commit: the locks are looked at once more, after the sources and at the same moment.
        (CleanupSource::DeleteCrds, 1) => {
            let locked = !world.touched || !world.setting.admission;
            world.source_crd &= !(locked || mistake == Some(Mistake::DeleteWithoutLooking));
            return world.source_crd;
        }
        (CleanupSource::DeleteCrds, _) => let_go(world),
    }
    seen.cleaned = Some(true);
    true
}
