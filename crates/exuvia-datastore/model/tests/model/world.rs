//! The world of the model: sources and targets, locks, two API servers, a migration object, and a clock that passes by itself.
//!
//! A request that passed the locks may take effect until two ticks have passed, and an API server learns of a change whenever
//! it likes: that is what the waits and the questions of the protocol are there for, and nothing else is assumed.

use std::time::Duration;

use exuvia_api::{CleanupSource, DatastorePhase};
use exuvia_datastore::protocol::{Clones, Flags, Guard, Locks, Policy, Record, Route, Second, Wants};

/// After so many ticks a request has taken effect or never will.
pub(crate) const DRAIN: u8 = 2;
const SERVERS: u8 = 2;
pub(crate) const MOST_OBJECTS: usize = 2;

/// A freeze that has lasted for as long as it may.
pub(crate) const MAX_DURATION: Duration = Duration::from_secs(900);

pub(crate) fn ticks(number: u8) -> Duration {
    Duration::from_secs(number.into())
}

/// What never changes within a world.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Setting {
    /// Objects are copied before the freeze.
    pub(crate) sync: bool,
    pub(crate) objects: usize,
    /// How often each of them is written.
    pub(crate) writes: u8,
    /// The spec names an APIService.
    pub(crate) route: bool,
    /// The spec wants policies.
    pub(crate) admission: bool,
    /// Writes under way can be counted.
    pub(crate) gauges: bool,
    /// Somebody writes past what counts them.
    pub(crate) masters: bool,
    /// One flag of the source and one of the target.
    pub(crate) flags: bool,
    pub(crate) max_duration: bool,
    /// Somebody removes the status.
    pub(crate) forgets: bool,
    pub(crate) cleanup: CleanupSource,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Source {
    /// Grows with every write, and when it is deleted or created again.
    pub(crate) version: u8,
    pub(crate) there: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Target {
    Absent,
    /// Made by us from this version of the source.
    Ours {
        version: u8,
        changed: bool,
    },
    /// Made by somebody: equal to the source at this version, or to none.
    Foreign(Option<u8>),
}

/// A write that passed the locks and has not taken effect yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct InFlight {
    pub(crate) object: usize,
    pub(crate) age: u8,
    pub(crate) counted: bool,
}

/// A write of ours that takes effect when nobody waits for it any more.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Late {
    Clone,
    Version,
    Guard,
    SourcePolicy,
    ThawedPolicy(Form),
    TargetPolicy,
    Shield,
    RemoveRoute,
    Flag(usize),
    Target(usize, u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Form {
    Absent,
    Frozen,
    /// Nobody deletes a source yet.
    Committed,
    Converged,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Shield {
    Absent,
    /// It is there, and some server does not know it yet.
    Unproven,
    Known,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Value {
    Open,
    Frozen,
    Other,
}

/// What stands in the way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Bad {
    Nothing,
    /// The spec cannot be carried out.
    Spec,
    /// An object that a dry run refuses.
    Shown,
    /// An object that only the real create refuses.
    Hidden,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct World {
    pub(crate) setting: Setting,
    /// The migration object.
    pub(crate) exists: bool,
    pub(crate) record: Record,
    pub(crate) suspend: bool,
    pub(crate) hold: bool,
    /// The flags' values and the sources at the commit, as the record has them.
    pub(crate) saved: Option<[Value; 2]>,
    pub(crate) committed: Option<[Source; MOST_OBJECTS]>,
    /// The users' objects.
    pub(crate) sources: [Source; MOST_OBJECTS],
    pub(crate) targets: [Target; MOST_OBJECTS],
    /// Somebody keeps our copies from being deleted.
    pub(crate) kept: bool,
    pub(crate) stamped: bool,
    pub(crate) source_crd: bool,
    /// A dependent names the targets, and not what came before.
    pub(crate) dependent_follows: bool,
    /// It names its source, too.
    pub(crate) dependent_anchored: bool,
    /// The garbage collector has looked for its owner while the CRDs answered, and does not look again.
    pub(crate) collector_remembers: bool,
    pub(crate) bad: Bad,
    /// Everything is as `waitFor` wants it.
    pub(crate) ready: bool,
    pub(crate) in_flight: Option<InFlight>,
    pub(crate) late: Option<(Late, u8)>,
    /// The locks.
    pub(crate) source_policy: Form,
    pub(crate) target_policy: bool,
    /// How many API servers obey the policies.
    pub(crate) denying: u8,
    /// The policies are not those that were probed.
    pub(crate) touched: bool,
    pub(crate) shield: Shield,
    pub(crate) guard: Option<u8>,
    pub(crate) clones: Clones,
    /// The second version of the target CRDs.
    pub(crate) second: Second,
    /// Somebody took it away.
    pub(crate) reverted: bool,
    /// Objects of the target CRDs name it.
    pub(crate) names_second: bool,
    pub(crate) flags: [Value; 2],
    /// The flags as their owners had them last.
    pub(crate) flags_before: [Value; 2],
    pub(crate) route: Route,
    pub(crate) route_before: Route,
    /// The APIService is the one on record.
    pub(crate) route_known: bool,
    /// There was an APIService from the beginning: dependents name the uids that its server shows.
    pub(crate) aliased: bool,
    /// How many API servers let the target CRDs answer.
    pub(crate) crd_servers: u8,
    /// The APIService is not the one that was waited for.
    pub(crate) route_touched: bool,
    /// `KeepFrozen`: the policy says for whom it stays, and with which values of the flags.
    pub(crate) retired: bool,
    /// What happened: somebody took a lock away; a write came past the count after the last look.
    pub(crate) tampered: bool,
    /// Somebody removed the status, and it was not noticed yet.
    pub(crate) forgotten: bool,
    pub(crate) bypassed: bool,
    pub(crate) events_left: u8,
}

impl World {
    pub(crate) fn fresh(setting: Setting, events_left: u8) -> Self {
        let (route, crd_servers) = if setting.route {
            (Route::Backend, 0)
        } else {
            (Route::Crds, SERVERS)
        };
        let source = Source {
            version: 1,
            there: true,
        };
        Self {
            setting,
            exists: true,
            record: Record {
                flags_saved: !setting.flags,
                ..Record::default()
            },
            suspend: false,
            hold: false,
            saved: None,
            committed: None,
            sources: [source; MOST_OBJECTS],
            targets: [Target::Absent; MOST_OBJECTS],
            kept: false,
            stamped: false,
            source_crd: true,
            dependent_follows: false,
            dependent_anchored: false,
            collector_remembers: false,
            bad: Bad::Nothing,
            ready: true,
            in_flight: None,
            late: None,
            source_policy: Form::Absent,
            target_policy: false,
            denying: 0,
            touched: false,
            shield: Shield::Absent,
            guard: None,
            clones: Clones::Absent,
            second: Second::Absent,
            reverted: false,
            names_second: false,
            flags: [Value::Open; 2],
            flags_before: [Value::Open; 2],
            route,
            route_before: route,
            route_known: false,
            aliased: setting.route,
            crd_servers,
            route_touched: false,
            retired: false,
            tampered: false,
            forgotten: false,
            bypassed: false,
            events_left,
        }
    }

    /// Right after the commit.
    pub(crate) fn converged(setting: Setting, events_left: u8) -> Self {
        let world = Self::fresh(setting, events_left);
        Self {
            record: Record {
                has_finalizer: true,
                phase: DatastorePhase::Converged,
                frozen_for: Some(Duration::ZERO),
                frozen: true,
                routed: true,
                ..world.record
            },
            committed: Some(world.sources),
            stamped: true,
            source_policy: Form::Frozen,
            target_policy: true,
            denying: SERVERS,
            ..world
        }
    }

    fn policy(&self) -> Policy {
        match (self.source_policy, self.target_policy) {
            (Form::Absent, false) if !self.setting.admission => Policy::NotWanted,
            (Form::Absent, false) => Policy::Absent,
            (Form::Frozen, true) => Policy::Frozen,
            (Form::Committed, false) => Policy::Committed,
            (Form::Converged, false) => Policy::Converged,
            _ => Policy::Partial,
        }
    }

    fn flags(&self) -> Flags {
        if !self.setting.flags {
            return Flags::default();
        }
        let changed = |index: usize| {
            let kept = |saved: [Value; 2]| saved[index] == self.flags[index];
            self.flags[index] != Value::Frozen && !self.saved.is_none_or(kept)
        };
        Flags {
            to_set: self.flags != [Value::Frozen; 2],
            changed: changed(0) || changed(1),
            source_held: self.held(0),
            target_held: self.held(1),
        }
    }

    /// A flag is frozen, and was not before.
    pub(crate) fn held(&self, flag: usize) -> bool {
        let frozen_by_us = |saved: [Value; 2]| saved[flag] != Value::Frozen;
        self.flags[flag] == Value::Frozen && self.saved.is_some_and(frozen_by_us)
    }

    pub(crate) fn wants(&self) -> Wants {
        let route = self.setting.route && (self.route == Route::Backend || self.record.route_saved);
        Wants {
            sync: self.setting.sync,
            suspend: self.suspend,
            hold: self.hold,
            max_duration: self.setting.max_duration.then_some(MAX_DURATION),
            route,
            clones: route,
            second: self.has_second(),
            cleanup: self.setting.cleanup,
        }
    }

    pub(crate) fn locks(&self) -> Locks {
        Locks {
            policy: self.policy(),
            flags: self.flags(),
            guard: match self.guard {
                _ if !self.setting.gauges => Guard::NotNeeded,
                None => Guard::Absent,
                Some(age) if age < DRAIN => Guard::Young(ticks(DRAIN - age)),
                Some(_) => Guard::Ready,
            },
            shield: self.shield != Shield::Absent,
            route: self.route,
            clones: self.clones,
            second: self.second,
            source: self.source_crd,
        }
    }

    /// Targets are copied before the freeze, and another server may answer for them.
    pub(crate) fn has_second(&self) -> bool {
        self.setting.sync && self.setting.route
    }

    pub(crate) fn objects(&self) -> std::ops::Range<usize> {
        0..self.setting.objects
    }

    /// Some API server lets writers of the source through.
    pub(crate) fn admits_source(&self) -> bool {
        if self.setting.admission {
            self.denying < SERVERS
        } else {
            // The writer obeys its flag.
            !(self.setting.flags && self.flags[0] == Value::Frozen)
        }
    }

    /// Nobody but us can write what we made, or make what we would.
    pub(crate) fn guards_targets(&self) -> bool {
        self.target_policy && self.denying == SERVERS
    }

    pub(crate) fn every_server_denies(&self) -> bool {
        self.denying == SERVERS
    }

    pub(crate) fn every_server_asks_crds(&self) -> bool {
        self.crd_servers == SERVERS
    }

    /// Where a request of ours for a target may end: at the CRDs, at the old backend.
    pub(crate) fn reached(&self) -> Vec<Route> {
        match self.crd_servers {
            _ if !self.setting.route || self.has_second() => vec![Route::Crds],
            0 => vec![Route::Backend],
            SERVERS => vec![Route::Crds],
            _ => vec![Route::Crds, Route::Backend],
        }
    }

    /// A target stands where a source is to go, and differs.
    pub(crate) fn conflict(&self, object: usize) -> bool {
        let source = self.sources[object];
        source.there
            && match self.targets[object] {
                Target::Absent | Target::Ours { changed: false, .. } => false,
                Target::Ours { changed: true, .. } => true,
                Target::Foreign(equal_to) => equal_to != Some(source.version),
            }
    }

    pub(crate) fn has_own_targets(&self) -> bool {
        self.objects()
            .any(|object| matches!(self.targets[object], Target::Ours { changed: false, .. }))
    }

    pub(crate) fn is_committed(&self) -> bool {
        self.committed.is_some()
    }

    /// Writers wait, and will not wait for ever.
    pub(crate) fn is_frozen_for_a_time(&self) -> bool {
        self.setting.max_duration && self.record.frozen_for.is_some() && !self.is_committed()
    }

    pub(crate) fn may_be_written(&self, object: usize) -> bool {
        self.source_crd && self.sources[object].version <= self.setting.writes
    }

    /// A write to a source takes effect and is acknowledged.
    pub(crate) fn write_source(&mut self, object: usize, there: bool) -> Result<(), String> {
        let source = &mut self.sources[object];
        source.version += 1;
        source.there = there;
        let let_go = self.tampered || !self.setting.admission || self.bypassed;
        let kept = matches!(
            self.record.phase,
            DatastorePhase::Converged | DatastorePhase::Complete
        ) && self.source_policy != Form::Absent;
        if there && kept && !let_go {
            return Err("a write to the source is acknowledged after the commit".into());
        }
        Ok(())
    }

    pub(crate) fn put_back_route(&mut self) {
        self.route = Route::Backend;
        (self.route_known, self.route_touched) = (false, true);
        self.forget_late(&Late::RemoveRoute);
    }

    pub(crate) fn set_flag(&mut self, flag: usize, value: Value) {
        self.flags[flag] = value;
        self.forget_late(&Late::Flag(flag));
    }

    /// A late write that names a resourceVersion or uid finds another one.
    fn forget_late(&mut self, late: &Late) {
        self.late = self.late.filter(|(other, _)| other != late);
    }

    /// A late write of ours takes effect.
    pub(crate) fn land(&mut self, late: Late) {
        match late {
            Late::Clone if self.clones == Clones::Absent => self.clones = Clones::Partial,
            Late::Version if self.second == Second::Absent => self.second = Second::Partial,
            Late::Guard => self.guard = self.guard.or(Some(0)),
            Late::SourcePolicy if self.source_policy == Form::Absent => {
                (self.source_policy, self.touched) = (Form::Frozen, true);
            }
            Late::ThawedPolicy(form) if self.source_policy == Form::Absent => {
                (self.source_policy, self.touched) = (form, true);
            }
            Late::TargetPolicy if !self.target_policy => {
                (self.target_policy, self.touched) = (true, true);
            }
            Late::Shield if self.shield == Shield::Absent => self.shield = Shield::Unproven,
            Late::RemoveRoute => (self.route, self.route_touched) = (Route::Crds, true),
            Late::Flag(flag) => self.flags[flag] = Value::Frozen,
            // A version that is gone takes no requests.
            Late::Target(..) if self.has_second() && self.second == Second::Absent => {}
            Late::Target(object, version) if self.targets[object] == Target::Absent => {
                self.targets[object] = Target::Ours {
                    version,
                    changed: false,
                };
                (self.stamped, self.names_second) = (true, self.has_second());
            }
            _ => {} // it is there already
        }
    }

    /// Every server that is behind learns one thing.
    pub(crate) fn learn_policies(&mut self) -> bool {
        let complete = match self.source_policy {
            Form::Frozen => self.target_policy,
            Form::Committed | Form::Converged => true,
            Form::Absent => false,
        };
        let before = self.denying;
        if complete && self.denying < SERVERS {
            self.denying += 1;
        } else if self.source_policy == Form::Absent && self.denying > 0 {
            self.denying -= 1;
        }
        self.denying != before
    }

    pub(crate) fn learn_route(&mut self) -> bool {
        let before = self.crd_servers;
        match self.route {
            Route::Crds if self.crd_servers < SERVERS => {
                self.crd_servers += 1;
                self.collector_remembers |= self.aliased;
            }
            Route::Backend if self.crd_servers > 0 => self.crd_servers -= 1,
            _ => {}
        }
        self.crd_servers != before
    }

    pub(crate) fn learn_shield(&mut self) -> bool {
        let learns = self.shield == Shield::Unproven;
        if learns {
            self.shield = Shield::Known;
        }
        learns
    }
}
