//! What must hold in every state, and what may never be done.

use exuvia_api::{CleanupSource, DatastorePhase};
use exuvia_datastore::protocol::{
    Clones, Deletion, Hold, Next, NextStep, Observed, Route, Second, Stage, Step, cleanup,
};

use crate::environment::collects_dependents;
use crate::state::State;
use crate::world::{Form, Shield, Target, World};

type Check = Result<(), String>;

fn never(wrong: bool, what: &str) -> Check {
    if wrong { Err(what.into()) } else { Ok(()) }
}

impl World {
    fn is_locked(&self) -> bool {
        self.source_policy != Form::Absent
            || self.target_policy
            || self.shield != Shield::Absent
            || self.guard.is_some()
    }

    /// Nothing of ours is left, and everything is as its owners had it.
    fn is_as_before(&self) -> bool {
        // Copies that were left behind an APIService are on record.
        let left = self.record.copies_left && self.route == Route::Backend;
        self.is_let_go() && (!self.has_own_targets() || left) && self.second == Second::Absent
    }

    /// Nobody waits for us.
    fn is_let_go(&self) -> bool {
        !self.is_locked() && self.flags == self.flags_before && self.route == self.route_before
    }
}

/// What must hold in every state.
pub(crate) fn invariants(state: &State) -> Check {
    let world = &state.world;
    never(
        collects_dependents(world),
        "a dependent is collected: it names a former owner",
    )?;
    if !world.exists {
        return gone(world);
    }
    let leaves_something = world.is_locked()
        || world.clones != Clones::Absent
        || world.second != Second::Absent
        || !world.is_committed() && (world.has_own_targets() || world.held(0) || world.held(1));
    never(
        leaves_something && !world.record.has_finalizer,
        "something of ours exists that a deletion would leave behind",
    )?;
    let part = Stage::from_record(&world.record);
    never(
        part != Stage::Idle && world.clones != Clones::Absent,
        "clones are left after the beginning",
    )?;
    let unguarded =
        world.aliased && world.setting.admission && world.crd_servers > 0 && !world.guards_targets();
    never(
        unguarded && !world.is_committed() && !world.tampered,
        "a write to the target group ends in a dataset that may be thrown away",
    )?;
    if world.is_committed() {
        return complete(world);
    }
    never(
        world.source_policy != Form::Absent && world.record.frozen_for.is_none() && !world.forgotten,
        "writers are refused and it is not on record since when",
    )?;
    never(
        part == Stage::Idle && !world.is_as_before() && !world.forgotten,
        "something is locked, copied or changed in a phase that does not undo it",
    )
}

fn gone(world: &World) -> Check {
    if !world.is_committed() {
        return never(
            !world.is_as_before() || world.clones != Clones::Absent,
            "the migration is gone and left something behind",
        );
    }
    let left = world.target_policy || world.shield != Shield::Absent || world.guard.is_some();
    never(
        left || world.clones != Clones::Absent,
        "the migration is gone and a lock is left",
    )?;
    never(
        world.second != Second::Absent || world.names_second,
        "the migration is gone and its version is left",
    )?;
    never(world.stamped, "the migration is gone and its marks are left")?;
    never(
        world.source_policy != Form::Absent && !world.retired,
        "the migration is gone and a policy is left that nothing names",
    )?;
    never(
        world.flags[1] != world.flags_before[1],
        "the migration is gone and a flag of the target is still frozen",
    )?;
    never(
        world.flags[0] != world.flags_before[0] && !world.retired,
        "the migration is gone and the value of a flag is lost",
    )?;
    let keeps =
        world.setting.cleanup == CleanupSource::KeepFrozen || world.record.deletion == Deletion::WithItsCrd;
    never(
        !keeps && world.source_policy != Form::Absent,
        "the source stays frozen against the spec",
    )
}

fn complete(world: &World) -> Check {
    if world.record.phase != DatastorePhase::Complete {
        return Ok(());
    }
    never(
        world.target_policy || world.shield != Shield::Absent || world.guard.is_some() || world.held(1),
        "complete, and something is still locked",
    )?;
    never(
        world.second != Second::Absent,
        "complete, and a version of ours is left",
    )?;
    never(
        world.names_second,
        "complete, and objects name a version that is gone",
    )?;
    never(
        world.source_policy == Form::Committed && !world.tampered,
        "complete, and sources cannot be deleted",
    )?;
    never(world.stamped, "complete, and our marks are on the targets")
}

/// What a decision may never be.
pub(crate) fn decision(state: &State, observed: &Observed, next: &Next) -> Check {
    let world = &state.world;
    let part = Stage::from_record(&observed.record);
    let waits_for_a_person = matches!(
        next,
        NextStep::Hold(Hold::Blocked | Hold::Conflicts | Hold::Failed)
    );
    never(
        waits_for_a_person && (!world.is_as_before() || world.clones != Clones::Absent),
        "a person is waited for while something is locked, copied or changed",
    )?;
    never(
        *next == NextStep::Hold(Hold::CopiesLeft) && !world.is_let_go(),
        "somebody is waited for while something is locked or changed",
    )?;
    let frozen_too_long = observed
        .record
        .frozen_for
        .zip(observed.wants.max_duration)
        .is_some_and(|(time, most)| time >= most);
    let gives_up = matches!(next, NextStep::Do(Step::Undo(_)));
    never(
        part == Stage::Moving && frozen_too_long && !gives_up,
        "the freeze lasts longer than it may",
    )?;
    let is_kept_away = part == Stage::Moving && observed.wants.second && observed.seen.second_refused;
    never(
        is_kept_away && matches!(next, NextStep::Do(_)) && !gives_up,
        "it argues with somebody about the versions of a CRD",
    )?;
    never(
        world.forgotten && !matches!(next, NextStep::Do(Step::Undo(_)) | NextStep::Wait(_)),
        "it goes on although something is locked that is not on record",
    )?;
    let deleted = observed.record.deletion != Deletion::No;
    let goes_on = match next {
        NextStep::Do(Step::Undo(_) | Step::Restart | Step::Thaw) => false,
        NextStep::Do(_) => observed.record.phase != DatastorePhase::Complete,
        _ => false,
    };
    never(
        observed.wants.suspend && !deleted && part != Stage::Undoing && goes_on,
        "a suspended migration goes on",
    )?;
    never(
        observed.wants.hold && *next == NextStep::Do(Step::Commit),
        "the commit does not wait although the spec asks for it",
    )?;
    let begins = *next == NextStep::Do(Step::MarkFreeze);
    never(
        begins && observed.wants.sync && observed.wants.hold,
        "writers are refused while somebody makes up their mind, although nothing needs it",
    )?;
    let held =
        matches!(next, NextStep::Hold(hold) if !matches!(hold, Hold::CleanupBlocked | Hold::CopiesLeft));
    never(deleted && held, "a migration that is deleted waits for somebody")?;
    let done = *next == NextStep::Done;
    never(
        done && (deleted || world.record.phase != DatastorePhase::Complete),
        "it ends and something is left to do",
    )
}

/// What a step of ours may never do.
pub(crate) fn step(before: &World, after: &World, observed: &Observed, step: Step) -> Check {
    for object in before.objects() {
        let (old, new) = (before.targets[object], after.targets[object]);
        let foreign = matches!(old, Target::Foreign(_) | Target::Ours { changed: true, .. });
        never(
            foreign && old != new,
            "a target is overwritten or deleted that is not ours, or was changed since",
        )?;
        let vanishes = matches!(old, Target::Ours { .. }) && new == Target::Absent;
        let is_read = before.has_second() && before.aliased && before.crd_servers > 0;
        never(
            step == Step::UndoTargets && vanishes && is_read,
            "readers of the target group see objects vanish that exist",
        )?;
        let appears = old == Target::Absent && matches!(new, Target::Ours { .. });
        let is_excused = before.tampered || !before.setting.admission;
        never(
            appears && is_read && !is_excused,
            "a target is made and nobody can be asked under which uids dependents name it",
        )?;
        never(
            before.is_committed() && new == Target::Absent && old != new,
            "a target is deleted after the commit",
        )?;
    }
    let drops = before.second != Second::Absent && after.second == Second::Absent;
    never(
        drops && before.names_second,
        "a version is dropped that objects name: every later apply to them fails",
    )?;
    never(
        before.is_committed() && after.route == Route::Backend && before.route != after.route,
        "the APIService is put back after the commit",
    )?;
    let deletes = before.source_crd && !after.source_crd;
    never(
        deletes && cleanup(observed) != CleanupSource::DeleteCrds,
        "the source is deleted and nobody asked for it",
    )?;
    let as_committed = |object: usize| {
        let source = before.sources[object];
        !source.there
            || before
                .committed
                .is_some_and(|committed| committed[object] == source)
    };
    never(
        deletes && !before.objects().all(as_committed),
        "a source is deleted that was written after it was copied",
    )?;
    // What is copied before the freeze is on record before it.
    let was_locked = before.record.routed && (before.record.frozen || !before.setting.sync);
    let locks_again = step == Step::Lock && was_locked && before != after;
    never(locks_again, "a lock is set again that somebody took away")?;
    if step == Step::Commit && after.is_committed() {
        return committed(after);
    }
    Ok(())
}

/// Every write that was acknowledged before the commit is in its target.
fn committed(world: &World) -> Check {
    let lost = |object: usize| {
        let source = world.sources[object];
        match world.targets[object] {
            Target::Ours { version, .. } => !source.there || version != source.version,
            Target::Foreign(equal_to) => source.there && equal_to != Some(source.version),
            Target::Absent => source.there,
        }
    };
    let excused = world.bypassed;
    never(
        world.objects().any(lost) && !excused,
        "an acknowledged write is lost",
    )?;
    never(
        world.setting.route && !world.every_server_asks_crds(),
        "committed while a server asks the old backend",
    )?;
    never(
        world.locks().flags.to_set,
        "committed while a controller was not told to stop",
    )
}
