//! The steps that keep targets in step while writers go on, and let them catch up under the freeze.
//!
//! The watches tell of everything up to a moment, if they are asked up to when they have told. What they did not tell of is not
//! read again under the freeze.

use exuvia_datastore::protocol::{Copied, Synced, Verified};

use crate::Mistake;
use crate::state::{Doing, State};
use crate::steps::Done;
use crate::world::{Bad, Late, MOST_OBJECTS, Source, Target};

/// What the process knows of sources and targets. A crash forgets it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Follow {
    /// Source and target as they were when the target was last in step.
    pub(crate) noted: [Option<(Source, Target)>; MOST_OBJECTS],
    /// What is to be looked at under the freeze.
    pub(crate) told: [bool; MOST_OBJECTS],
    /// The watches were cut: what happens is told only by a new list.
    pub(crate) is_cut: bool,
}

/// What came of one object.
enum Settled {
    InStep(Option<Late>),
    Conflict,
    Refused,
}

/// Brings one target in step with what its source is now.
fn settle(next: &mut State, object: usize, mistake: Option<Mistake>) -> Settled {
    let world = &mut next.world;
    let source = world.sources[object];
    let ours = Target::Ours {
        version: source.version,
        changed: false,
    };
    let mut late = None;
    let is_conflict = world.conflict(object);
    let target = &mut world.targets[object];
    match *target {
        Target::Absent if source.there && world.bad != Bad::Nothing => return Settled::Refused,
        Target::Absent if source.there => {
            *target = ours;
            (world.stamped, world.names_second) = (true, world.has_second());
            late = Some(Late::Target(object, source.version));
        }
        Target::Ours { changed: false, .. } if source.there => *target = ours,
        Target::Ours { changed: false, .. } => *target = Target::Absent,
        Target::Ours { changed: true, .. } | Target::Foreign(_)
            if is_conflict && mistake == Some(Mistake::OverwriteForeignTargets) =>
        {
            *target = ours;
        }
        // Also if its source is gone: nobody else may say what becomes of it.
        Target::Ours { changed: true, .. } => return Settled::Conflict,
        Target::Foreign(_) if is_conflict => return Settled::Conflict,
        Target::Foreign(_) | Target::Absent => {}
    }
    let noted = (source, world.targets[object]);
    next.follow.get_or_insert_default().noted[object] = Some(noted);
    Settled::InStep(late)
}

/// One object after the other, while writers go on.
pub(crate) fn sync(state: &State, mut next: State, doing: Doing, mistake: Option<Mistake>) -> Vec<Done> {
    let object = usize::from(doing.at);
    let mut late = None;
    if object == state.world.setting.objects {
        next.seen.synced = Synced::Yes;
        next.doing = None;
    } else {
        match settle(&mut next, object, mistake) {
            Settled::InStep(later) => late = later,
            Settled::Conflict => (next.seen.synced, next.doing) = (Synced::Conflicts, None),
            Settled::Refused => (next.seen.synced, next.doing) = (Synced::Refused, None),
        }
    }
    vec![Done { after: next, late }]
}

/// First everything is told that happened up to now; then what was told of is copied, and nothing else is looked at.
pub(crate) fn catch_up(state: &State, mut next: State, doing: Doing, mistake: Option<Mistake>) -> Vec<Done> {
    let mut late = None;
    let follow = next.follow.get_or_insert_default();
    if doing.at == 0 {
        let world = &state.world;
        let unknown = mistake == Some(Mistake::TakeAWatchForComplete)
            || follow.is_cut && mistake == Some(Mistake::TrustAWatchThatWasCut);
        for object in world.objects() {
            let is_new = follow.noted[object].is_none_or(|(source, target)| {
                let edited = target != world.targets[object];
                source != world.sources[object] || edited && mistake != Some(Mistake::FollowTheSourceAlone)
            });
            follow.told[object] = is_new && !unknown;
        }
        follow.is_cut = false;
    } else if usize::from(doing.at) > state.world.setting.objects {
        (next.seen.copied, next.seen.verified) = (Copied::Yes, Verified::Yes);
        next.doing = None;
    } else if follow.told[usize::from(doing.at) - 1] {
        match settle(&mut next, usize::from(doing.at) - 1, mistake) {
            Settled::InStep(later) => late = later,
            Settled::Conflict => (next.seen.copied, next.doing) = (Copied::Conflicts, None),
            Settled::Refused => (next.seen.copied, next.doing) = (Copied::Refused, None),
        }
    }
    vec![Done { after: next, late }]
}
