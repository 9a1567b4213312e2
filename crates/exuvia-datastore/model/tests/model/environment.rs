//! What everybody else does: writers, API servers, operators, people, the clock.

use exuvia_datastore::protocol::{Deletion, Record, Route, Second, Stage};

use crate::state::State;
use crate::synced::Follow;
use crate::world::{Bad, Form, InFlight, MAX_DURATION, MOST_OBJECTS, Shield, Source, Target, Value, World};

/// What may happen at any time.
pub(crate) fn environment(state: &State) -> Result<Vec<State>, String> {
    let mut after = Vec::new();
    let mut later = state.clone();
    later.tick();
    after.push(later);
    servers_learn(state, &mut after);
    writes_land(state, &mut after)?;
    if state.world.exists {
        writer(state, &mut after)?;
        if state.world.events_left > 0 {
            let mut state = state.clone();
            state.world.events_left -= 1;
            people(&state, &mut after);
            others(&state, &mut after);
            if state.follow.is_some_and(|follow| !follow.is_cut) {
                let mut cut = state.clone();
                cut.follow = cut.follow.map(|follow| Follow {
                    is_cut: true,
                    ..follow
                });
                after.push(cut);
            }
            after.push(state.crashed());
        }
    }
    Ok(after)
}

fn with(state: &State, change: impl FnOnce(&mut World)) -> State {
    let mut state = state.clone();
    change(&mut state.world);
    state
}

fn servers_learn(state: &State, after: &mut Vec<State>) {
    for learn in [World::learn_policies, World::learn_route, World::learn_shield] {
        let mut state = state.clone();
        if learn(&mut state.world) {
            after.push(state);
        }
    }
}

fn writes_land(state: &State, after: &mut Vec<State>) -> Result<(), String> {
    if let Some((late, _)) = state.world.late {
        after.push(with(state, |world| {
            world.late = None;
            world.land(late);
        }));
    }
    if let Some(write) = state.world.in_flight {
        let mut landed = state.clone();
        landed.world.in_flight = None;
        // Past the count: who may do that is told that nothing can be promised after the last look.
        let looked = state.looks_or_looked() || state.world.is_committed();
        landed.world.bypassed |= state.world.setting.masters && !write.counted && looked;
        if landed.world.may_be_written(write.object) {
            landed.world.write_source(write.object, true)?;
            after.push(landed);
        }
    }
    Ok(())
}

fn writer(state: &State, after: &mut Vec<State>) -> Result<(), String> {
    let world = &state.world;
    for object in world.objects().filter(|object| world.may_be_written(*object)) {
        // When dependents name the targets anybody may delete sources.
        let deletes = world.source_policy == Form::Converged || world.admits_source();
        if deletes && world.sources[object].there {
            let mut state = state.clone();
            state.world.write_source(object, false)?;
            after.push(state);
        }
        if !world.admits_source() {
            continue;
        }
        let mut written = state.clone();
        written.world.write_source(object, true)?;
        after.push(written);
        if world.in_flight.is_none() {
            after.push(with(state, |world| {
                world.in_flight = Some(InFlight {
                    object,
                    age: 0,
                    counted: world.guard.is_some() && !world.setting.masters,
                });
            }));
        }
    }
    Ok(())
}

/// What is done to the migration object, and to what stands in its way.
fn people(state: &State, after: &mut Vec<State>) {
    let world = &state.world;
    let mut write = |change: fn(&mut World)| {
        let mut state = with(state, change);
        if let Some(doing) = &mut state.doing {
            doing.stale = true;
        }
        after.push(state);
    };
    if world.record.deletion == Deletion::No {
        write(|world| {
            world.record.deletion = Deletion::Asked;
            world.exists = world.record.has_finalizer;
        });
        write(|world| {
            world.record.deletion = Deletion::WithItsCrd;
            world.exists = world.record.has_finalizer;
        });
        write(|world| world.suspend = !world.suspend);
        write(|world| world.hold = !world.hold);
        if !world.record.retry_asked {
            write(|world| world.record.retry_asked = true);
        }
    }
    let frozen = world.source_policy == Form::Frozen && world.target_policy;
    let is_free = world.source_policy == Form::Absent && !world.target_policy;
    let copies = world.second != Second::Absent && world.route == Route::Backend && world.crd_servers == 0;
    if world.setting.forgets && (frozen && !world.has_second() || is_free && copies) && !world.is_committed()
    {
        write(|world| {
            world.record = Record {
                has_finalizer: world.record.has_finalizer,
                deletion: world.record.deletion,
                flags_saved: world.record.flags_saved,
                ..Record::default()
            };
            world.forgotten = true;
        });
    }
    if world.record.frozen_for.is_some_and(|time| time.is_zero()) && world.setting.max_duration {
        // Nobody writes the object for that: a locked write still passes.
        after.push(with(state, |world| world.record.frozen_for = Some(MAX_DURATION)));
    }
    if world.bad != Bad::Nothing {
        after.push(with(state, |world| world.bad = Bad::Nothing));
    }
    if world.kept {
        after.push(with(state, |world| world.kept = false));
    }
    if !world.ready {
        after.push(with(state, |world| world.ready = true));
    }
}

/// What is done to locks, routes, flags and targets.
fn others(state: &State, after: &mut Vec<State>) {
    let world = &state.world;
    let ended = world.is_committed();
    if world.source_policy != Form::Absent {
        // Both go, or one of them.
        for both in [false, true] {
            after.push(with(state, |world| {
                world.source_policy = Form::Absent;
                world.target_policy &= !both;
                (world.tampered, world.touched) = (true, true);
            }));
        }
        // Deleted and put back between two looks: the servers may have noticed both or nothing.
        for denying in 0..world.denying {
            after.push(with(state, |world| {
                world.denying = denying;
                (world.tampered, world.touched) = (true, true);
            }));
        }
    }
    if world.setting.route && world.route == Route::Crds && !world.guards_targets() && !ended {
        after.push(with(state, |world| {
            world.put_back_route();
            world.route_before = Route::Backend;
        }));
    }
    // While the guard is in force nobody changes the CRDs.
    if world.second != Second::Absent && (ended || !world.guards_targets()) {
        after.push(with(state, |world| {
            (world.second, world.reverted) = (Second::Absent, true);
        }));
    }
    if world.setting.flags {
        for flag in [0, 1] {
            if world.flags[flag] != Value::Other && !ended {
                after.push(with(state, |world| {
                    world.set_flag(flag, Value::Other);
                    world.flags_before[flag] = Value::Other;
                    world.touched |= !world.setting.admission && flag == 0;
                }));
            }
            // Later on nobody could tell who froze it.
            let idle = Stage::from_record(&world.record) == Stage::Idle && state.doing.is_none();
            if world.flags[flag] != Value::Frozen && idle {
                after.push(with(state, |world| {
                    world.set_flag(flag, Value::Frozen);
                    world.flags_before[flag] = Value::Frozen;
                }));
            }
        }
    }
    if ended || world.guards_targets() {
        return;
    }
    for object in world.objects() {
        let version = world.sources[object].version;
        let changes: &[Target] = match world.targets[object] {
            Target::Absent if world.crd_servers > 0 => {
                &[Target::Foreign(None), Target::Foreign(Some(version))]
            }
            Target::Ours {
                version,
                changed: false,
            } => &[Target::Ours {
                version,
                changed: true,
            }],
            Target::Foreign(None) => &[Target::Absent],
            _ => &[],
        };
        for target in changes {
            after.push(with(state, |world| world.targets[object] = *target));
        }
    }
}

/// The garbage collector would delete a dependent: it finds no owner by the uid that it names.
pub(crate) fn collects_dependents(world: &World) -> bool {
    let hidden = world.aliased && world.crd_servers > 0;
    // Somebody deletes a source that was moved. Without policies, or where they were taken away, nobody is kept from it.
    let kept = world.setting.admission && !world.tampered;
    let deleted = |committed: [Source; MOST_OBJECTS]| committed[0].there && !world.sources[0].there;
    let gone = !world.source_crd || kept && world.committed.is_some_and(deleted);
    let remembered = world.collector_remembers && !world.dependent_anchored;
    let unshielded = (hidden || remembered) && world.shield != Shield::Known;
    !world.dependent_follows && (unshielded || gone)
}
