//! The world of the model: objects in etcd, two API servers, a CRD, and a clock that passes by itself.
//!
//! The first server understands every flip at once. The second may be *behind*: awake, for one tick at most; or *paused*,
//! for as long as it likes, and behind once it wakes. When it has understood, a request may still be in flight for one
//! tick. A settle time is two ticks: that is what the waits of the protocol are there for, and nothing else is assumed.

use std::time::Duration;

use exuvia_storage::protocol::{Crd, Observed, Pass, Settled};

/// One settle time, in ticks.
pub(crate) const SETTLE: u8 = 2;
const SOON: Duration = Duration::from_secs(1);

/// An object. A resourceVersion is only ever compared with four marks, so that is all that is known of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Object {
    /// The version that etcd holds it at.
    pub(crate) version: u8,
    pub since_r0: bool,
    pub(crate) since_verified: bool,
    pub since_r1: bool,
    pub(crate) since_list: bool,
    /// The next patch changes its content: a default that its last writer's version does not have, a webhook's whim.
    pub(crate) dirty: bool,
    /// It was written at an old version since R0, which explains that.
    pub(crate) explained: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Second {
    Quiet,
    Paused(u8),
    Behind(u8),
    InFlight(u8),
}

/// What never changes within a world.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Setting {
    /// Every API server is accounted for, the second one included.
    pub(crate) accounted: bool,
    /// Our own requests may meet the second server.
    pub(crate) balanced: bool,
    /// The pass is kept in the cluster; without that a crash forgets it whole.
    pub(crate) keeps: bool,
    /// A clean `storedVersions` is swept as long as nothing is on record.
    pub(crate) until_recorded: bool,
    pub(crate) prunes: bool,
    pub(crate) suspended: bool,
    /// How many objects there are: with one, more faults can be gone through.
    pub(crate) objects: usize,
}

const MAX_OBJECTS: usize = 2;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct World {
    pub(crate) setting: Setting,
    pub(crate) generation: u8,
    pub(crate) storage: u8,
    /// `storedVersions`, as bits.
    pub(crate) stored: u8,
    /// The generation that is on record, and whether it was patrolled.
    pub(crate) record: Option<(u8, bool)>,
    pub(crate) objects: [Object; MAX_OBJECTS],
    pub(crate) second: Second,
    /// A server was behind at some time: accusing one is fair.
    pub(crate) ever_behind: bool,
    /// Ticks since the flip, since the second server was first seen to understand, since the trim, and since
    /// something moved without an explanation; none of them beyond a settle time.
    pub(crate) flip_age: u8,
    pub(crate) understood_age: u8,
    pub(crate) trim_age: u8,
    /// Since the second server was last seen asleep.
    pub(crate) awake_age: u8,
    pub(crate) unsettled_age: u8,
    pub(crate) faults_left: u8,
}

impl World {
    pub(crate) fn fresh(setting: Setting, faults_left: u8) -> Self {
        Self {
            setting,
            generation: 1,
            storage: 0,
            stored: 1,
            record: None,
            objects: [Object::default(); MAX_OBJECTS],
            second: Second::Quiet,
            ever_behind: false,
            flip_age: SETTLE,
            understood_age: SETTLE,
            trim_age: SETTLE,
            awake_age: SETTLE,
            unsettled_age: SETTLE,
            faults_left,
        }
    }

    /// After a flip that the second server took as `second`.
    pub(crate) fn flipped(self, storage: u8, second: fn(u8) -> Second) -> Self {
        let second = second(self.storage);
        Self {
            generation: self.generation + 1,
            storage,
            stored: self.stored | (1 << storage),
            ever_behind: self.ever_behind || second != Second::Quiet,
            second,
            flip_age: 0,
            understood_age: 0,
            ..self
        }
    }

    pub(crate) fn crd(&self) -> Crd {
        Crd {
            uid: "uid".into(),
            generation: self.generation.into(),
            storage: self.storage.to_string(),
            stored: (0..3)
                .filter(|version| self.stored & (1 << version) != 0)
                .map(|version: u8| version.to_string())
                .collect(),
        }
    }

    pub(crate) fn observe(&self, pass: Option<&Pass>) -> Observed {
        let left = |age: u8| if age < SETTLE { SOON } else { Duration::ZERO };
        let asked = pass.is_none_or(|pass| pass.wanted && !pass.trimmed);
        let settled = match self.second {
            _ if !asked => Settled::Yes { accounted: false },
            Second::Paused(_) | Second::Behind(_) if self.setting.accounted && self.flip_age >= SETTLE => {
                Settled::Behind(vec!["second".into()])
            }
            Second::Paused(_) | Second::Behind(_) if self.setting.accounted => Settled::Wait(SOON),
            _ if self.setting.accounted && self.understood_age < 1 => Settled::Wait(SOON),
            _ if self.flip_age < SETTLE || self.unsettled_age < SETTLE => Settled::Wait(SOON),
            _ => Settled::Yes {
                accounted: self.setting.accounted,
            },
        };
        Observed {
            crd: Some(self.crd()),
            pass: pass.cloned(),
            settled,
            patrol_in: left(if self.setting.accounted {
                self.trim_age
            } else {
                self.trim_age.min(self.awake_age)
            }),
            // A server that sleeps has an identity Lease that it does not renew.
            asleep: match self.second {
                Second::Paused(_) if pass.is_some_and(|pass| pass.trimmed) => vec!["second".into()],
                _ => Vec::new(),
            },
            suspended: self.setting.suspended,
        }
    }

    /// A write of this object at this version.
    pub(crate) fn write(&mut self, index: usize, version: u8) {
        self.objects[index] = Object {
            version,
            since_r0: true,
            since_verified: true,
            since_r1: true,
            since_list: true,
            dirty: false,
            explained: self.objects[index].explained,
        };
    }

    /// An empty patch: writes only if content or bytes differ. Whether it moved, and whether nothing but the bytes did.
    pub(crate) fn patch(&mut self, index: usize, version: u8) -> (bool, bool) {
        let Object {
            version: before,
            dirty,
            ..
        } = self.objects[index];
        let moves = before != version || dirty;
        if moves {
            self.write(index, version);
        }
        (moves, moves && !dirty)
    }

    /// The versions that our own request may be handled at.
    pub(crate) fn handled_at(&self) -> Vec<u8> {
        let stale = match self.second {
            Second::Behind(version) if self.setting.balanced => Some(version),
            _ => None,
        };
        [Some(self.storage), stale].into_iter().flatten().collect()
    }

    /// An object that is stored at another version than the storage version.
    pub(crate) fn old(&self) -> Option<usize> {
        (0..self.setting.objects).find(|index| self.objects[*index].version != self.storage)
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.stored == 1 << self.storage
    }

    /// Lists versions again that were trimmed: those of before the pass, or all if somebody else trimmed.
    pub(crate) fn put_back(&mut self, pass: &Pass) {
        if i64::from(self.generation) != pass.generation {
            return;
        }
        let before = pass
            .stored_before
            .iter()
            .filter_map(|version| version.parse::<u8>().ok())
            .filter(|version| *version != self.storage)
            .fold(0, |bits, version| bits | (1 << version));
        self.stored |= if before == 0 { 0b111 } else { before };
        self.record = None;
    }

    /// A tick of the clock.
    pub(crate) fn tick(&mut self) {
        let older = |age: &mut u8| *age = (*age + 1).min(SETTLE);
        for age in [
            &mut self.flip_age,
            &mut self.understood_age,
            &mut self.trim_age,
            &mut self.awake_age,
            &mut self.unsettled_age,
        ] {
            older(age);
        }
        if let Second::Paused(_) = self.second {
            self.awake_age = 0;
        }
        self.second = match self.second {
            Second::Behind(version) => {
                self.understood_age = 0;
                Second::InFlight(version)
            }
            Second::InFlight(_) => Second::Quiet,
            second => second,
        };
    }
}
