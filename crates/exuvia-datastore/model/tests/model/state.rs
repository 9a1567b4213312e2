//! A state of the model: the world, what the process has seen, and the step that it is in.

use std::time::Duration;

use exuvia_api::DatastorePhase;
use exuvia_datastore::protocol::{
    Checked, Deletion, Denies, Drained, Observed, Second, Seen, Stage, Step, Synced, Tried, Undo, Verified,
    Waits,
};

use crate::synced::Follow;
use crate::world::{DRAIN, InFlight, MOST_OBJECTS, Shield, Target, World, ticks};

/// A step that is being carried out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Doing {
    pub(crate) step: Step,
    pub(crate) at: u8,
    /// The migration object has changed since the step was decided: a locked write of it fails.
    pub(crate) stale: bool,
    pub(crate) found: Verified,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    pub(crate) world: World,
    pub(crate) seen: Seen,
    pub(crate) doing: Option<Doing>,
    /// For how many ticks more a write may be under way that began before every API server refused.
    pub(crate) draining: Option<u8>,
    /// What is known of objects that are kept in step.
    pub(crate) follow: Option<Follow>,
}

impl World {
    pub(crate) fn state(self) -> State {
        State {
            world: self,
            seen: Seen {
                unsettled: Some(ticks(DRAIN)),
                ..Seen::default()
            },
            doing: None,
            draining: None,
            follow: None,
        }
    }
}

impl State {
    pub(crate) fn observe(&self) -> Observed {
        let world = &self.world;
        let mut seen = self.seen.clone();
        if world.touched {
            seen.denies = Denies::NotYet;
        }
        if world.route_touched {
            (seen.routed_everywhere, seen.backend_everywhere) = (false, false);
        }
        Observed {
            record: world.record.clone(),
            wants: world.wants(),
            locks: world.locks(),
            seen,
        }
    }

    /// A tick of the clock.
    pub(crate) fn tick(&mut self) {
        let Self {
            world,
            seen,
            draining,
            ..
        } = self;
        let older = |age: u8| (age + 1).min(DRAIN);
        world.guard = world.guard.map(older);
        world.in_flight = world
            .in_flight
            .map(|write| InFlight {
                age: write.age + 1,
                ..write
            })
            .filter(|write| write.age < DRAIN);
        world.late = world
            .late
            .map(|(late, age)| (late, age + 1))
            .filter(|(_, age)| *age < DRAIN);
        let less = |time: Duration| time.saturating_sub(ticks(1));
        *draining = draining.map(|left| left.saturating_sub(1));
        seen.unsettled = seen.unsettled.map(less).filter(|time| !time.is_zero());
    }

    /// The same after a crash: what was seen is forgotten, and a write may still be under way.
    pub(crate) fn crashed(mut self) -> Self {
        self.seen = Seen {
            unsettled: Some(ticks(DRAIN)),
            ..Seen::default()
        };
        (self.doing, self.draining, self.follow) = (None, None, None);
        // Whether every server serves it is not known any more.
        if self.world.second == Second::Ready {
            self.world.second = Second::Partial;
        }
        self
    }

    /// The same state with everything forgotten that makes no difference any more, so that it is gone through once.
    pub(crate) fn in_short(mut self) -> Self {
        let stage = Stage::from_record(&self.world.record);
        let Self {
            world,
            seen,
            doing,
            draining,
            follow,
        } = &mut self;
        let record = &mut world.record;
        let unsettled = seen.unsettled.filter(|_| world.late.is_some());
        *seen = match stage {
            _ if !world.exists => Seen::default(),
            // A step that began in another stage still uses what was seen there.
            _ if doing.is_some() => seen.clone(),
            Stage::Idle => Seen {
                checked: seen.checked,
                tried: seen.tried,
                ..Seen::default()
            },
            Stage::Moving => Seen {
                checked: Checked::Passed,
                tried: Tried::Clean,
                ..seen.clone()
            },
            Stage::Undoing => Seen {
                routed_everywhere: seen.routed_everywhere,
                backend_everywhere: seen.backend_everywhere,
                anchored: seen.anchored && world.shield != Shield::Absent,
                tried_copies_left: seen.tried_copies_left && record.copies_left,
                ..Seen::default()
            },
            Stage::After => Seen {
                denies: seen.denies,
                drained: seen.drained,
                retired: seen.retired,
                references: seen.references,
                waits: seen.waits,
                stamps_dropped: seen.stamps_dropped,
                cleaned: seen.cleaned,
                ..Seen::default()
            },
        };
        let is_syncing = |doing: Doing| matches!(doing.step, Step::Sync | Step::CatchUp);
        let is_worked_with = doing.is_some_and(is_syncing);
        if stage != Stage::Moving || (seen.synced != Synced::Yes && !is_worked_with) {
            *follow = None;
        }
        if let Some(follow) = follow.as_mut().filter(|_| !is_worked_with) {
            follow.told = Default::default();
        }
        // It counts until the step that looks at it.
        let drains = matches!(stage, Stage::Moving | Stage::After) && seen.drained == Drained::NotYet;
        *draining = draining.filter(|_| drains && seen.denies == Denies::All);
        // Without a late write a wait for it is one of many moments in which nothing is done.
        seen.unsettled = unsettled;
        world.touched &= seen.denies == Denies::All;
        world.route_touched &= seen.routed_everywhere || seen.backend_everywhere;
        if stage != Stage::Moving {
            record.frozen_for = record.frozen_for.map(|_| Duration::ZERO);
            record.route_returned = 0;
            record.frozen = false;
            world.reverted = false;
        }
        if stage == Stage::After {
            world.targets = [Target::Absent; MOST_OBJECTS];
            (record.routed, record.copies_left) = (false, false);
        } else if record.deletion == Deletion::WithItsCrd {
            record.deletion = Deletion::Asked;
        }
        if record.deletion != Deletion::No {
            (world.hold, world.ready, record.retry_asked) = (false, true, false);
            (record.undo, record.retreats) = (None, 0);
        }
        if record.phase == DatastorePhase::Complete {
            seen.retired = true;
            (world.suspend, world.ready, seen.references) = (false, true, true);
            (seen.waits, seen.stamps_dropped) = (Waits::Met, true);
        }
        // Whichever way, it ends in the same phase.
        record.undo = record.undo.map(|undo| match undo.then() {
            DatastorePhase::WaitingForConflictResolution => Undo::Conflict,
            DatastorePhase::Pending => Undo::Refused,
            _ => Undo::MaxDuration,
        });
        if let Some(doing) = doing {
            doing.stale &= doing.step.writes_the_record();
        }
        if !world.exists {
            (*doing, world.in_flight) = (None, None);
        }
        self
    }
}

/// Steps with a locked write.
trait WritesTheRecord {
    fn writes_the_record(&self) -> bool;
}

impl WritesTheRecord for Step {
    fn writes_the_record(&self) -> bool {
        matches!(
            self,
            Step::AddFinalizer
                | Step::Restart
                | Step::Start
                | Step::MarkFreeze
                | Step::SaveFlags
                | Step::RecordFrozen
                | Step::SaveRoute
                | Step::RemoveRoute
                | Step::RecordRouted
                | Step::Commit
                | Step::Complete
                | Step::Undo(_)
                | Step::UndoTargets
                | Step::EndUndo
                | Step::RemoveFinalizer
        )
    }
}
