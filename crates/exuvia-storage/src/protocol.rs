//! The protocol: given what was observed, the next step, or why not. Pure: no client, no clock, no async.
//!
//! It is a list of [`RULES`], read from top to bottom. Each one holds the migration back until its condition is met,
//! and says what to do about it; the first that holds decides. Every rule is there for a way to lose data: the model
//! check takes each one out and must then find one.

use std::time::Duration;

use exuvia_api::reason;
use exuvia_sweep::ResourceVersion;
use k8s_openapi::jiff::Timestamp;

/// What the protocol needs to know of a CRD, freshly read. A built-in resource has nothing of it, and nothing to trim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crd {
    /// A recreated CRD is another one.
    pub uid: String,
    /// Moves with every change of the spec, so with every flip.
    pub generation: i64,
    /// The version that objects are written at.
    pub storage: String,
    /// `status.storedVersions`.
    pub stored: Vec<String>,
}

impl Crd {
    /// What a trim would remove.
    pub fn old_versions(&self) -> Vec<String> {
        self.stored
            .iter()
            .filter(|version| **version != self.storage)
            .cloned()
            .collect()
    }
}

/// What is remembered of a pass. Worth nothing for another CRD uid or generation (PITFALLS B1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pass {
    /// The CRD's uid when the pass began; empty for a built-in resource.
    pub uid: String,
    /// The CRD's generation when the pass began.
    pub generation: i64,
    /// `storedVersions` when the pass began: what is put back if it must be.
    pub stored_before: Vec<String>,
    /// Whether there is something to do although `storedVersions` is clean: nothing is on record that proves it,
    /// managedFields name a version that is gone, or the caller insists.
    pub wanted: bool,
    /// An earlier pass of this CRD was trimmed and not patrolled since, or a version had to be put back: no
    /// resourceVersion proves anything until this pass has been through, however clean everything looks.
    pub patrol_owed: bool,
    /// What the preflight found; `None`: not looked yet.
    pub preflight: Option<Preflight>,
    /// The resourceVersion of a consistent list, taken after settling: what is above it was written by a settled server.
    pub r0: Option<ResourceVersion>,
    /// When R0 was taken, by the server's clock.
    pub r0_at: Option<Timestamp>,
    /// The rewrite sweep, once it went through to its end.
    pub rewrite: Option<SweepEnd>,
    /// How many verify sweeps found objects that moved although nothing explains it.
    pub unexplained: u8,
    /// The last of them saw an object come back old after it had been rewritten: some API server is behind.
    pub came_back: bool,
    /// Every object at or below this resourceVersion was patched by a verify sweep of this pass and came back unchanged.
    pub verified_up_to: Option<ResourceVersion>,
    /// The verify sweep, once it went through to its end and nothing moved that is not explained.
    pub verify: Option<SweepEnd>,
    /// The smallest resourceVersion of the lists that the verify sweep read: what is above it was not looked at.
    pub r1: Option<ResourceVersion>,
    /// Whether the verify sweep trusted no resourceVersion.
    pub verified_in_full: bool,
    /// The trim was made, or there was nothing to trim; either is on record in the CRD.
    pub trimmed: bool,
    /// When that was, by the server's clock. No rule asks for it: the observer turns it into [`Observed::patrol_in`].
    pub trimmed_at: Option<Timestamp>,
    /// The patrol after the trim found nothing.
    pub patrolled: bool,
}

impl Pass {
    /// A new pass for the CRD as it is now, after what is remembered of an earlier one.
    pub fn begin(crd: &Crd, earlier: Option<&Self>) -> Self {
        // A pass that was verified may have been trimmed: a crash can hide that.
        let owing = earlier.filter(|pass| {
            let may_be_trimmed = pass.trimmed || pass.patrol_owed || pass.verify.is_some();
            pass.uid == crd.uid && may_be_trimmed && !pass.patrolled
        });
        let mut stored_before = crd.stored.clone();
        for version in owing.iter().flat_map(|pass| &pass.stored_before) {
            if !stored_before.contains(version) {
                stored_before.push(version.clone());
            }
        }
        Self {
            uid: crd.uid.clone(),
            generation: crd.generation,
            stored_before,
            // Whether there is something to do can only be told by looking.
            wanted: true,
            patrol_owed: owing.is_some(),
            ..Self::default()
        }
    }

    /// Takes note of what the preflight found out; `false`: there is nothing to do after all.
    pub fn surveyed(&mut self, crd: &Crd, why: Wanted) -> bool {
        self.wanted =
            why.insisted || why.has_old_owners || self.patrol_owed || !crd.old_versions().is_empty();
        self.wanted
    }

    /// Takes note of a verify sweep. `crd` is read after it: under another generation than the pass's own it is no
    /// wonder that objects moved.
    pub fn verified(&mut self, crd: &Crd, sweep: &Verification) {
        if crd.uid != self.uid || crd.generation != self.generation {
            return;
        }
        self.came_back = sweep.came_back;
        let settled = sweep.unfinished == 0;
        if sweep.unexplained || sweep.came_back {
            self.unexplained = self.unexplained.saturating_add(1);
            self.verify = None;
            // What did not move is proven by its own answer, and shows by its resourceVersion if it is written again.
            self.verified_up_to = sweep
                .smallest_list
                .filter(|_| sweep.full && settled && sweep.complete);
        } else if sweep.complete {
            self.verify = Some(SweepEnd {
                unfinished: sweep.unfinished,
            });
            self.verified_in_full = sweep.full;
            self.r1 = sweep.smallest_list;
        }
    }
}

/// Why there may be something to do although `storedVersions` is clean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The caller insists, or nothing is on record that proves what `storedVersions` says (PITFALLS A39).
    pub insisted: bool,
    /// managedFields name a version that should be shed or is gone.
    pub has_old_owners: bool,
}

/// What a verify sweep came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// Every object was patched, but for those that an earlier sweep of the pass has verified.
    pub full: bool,
    /// It went through to its end.
    pub complete: bool,
    /// Objects that failed or were in conflict.
    pub unfinished: u64,
    /// An object moved, and nothing explains it.
    pub unexplained: bool,
    /// An object moved, and moved again when it was patched once more, with nothing changed that a webhook could have
    /// changed: servers store it in two forms by turns.
    pub came_back: bool,
    /// The smallest resourceVersion of its lists.
    pub smallest_list: Option<ResourceVersion>,
}

/// What the preflight found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Preflight {
    /// Conversion and admission answer, nothing would be pruned.
    Passed,
    /// Something stands in the way.
    Blocked(Blocked),
}

/// Why the preflight does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blocked {
    /// A dry-run write was refused or not answered.
    Preflight,
    /// The rewrite would erase fields.
    Pruning,
    /// We may not do what we would have to.
    Forbidden,
}

/// How a sweep ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SweepEnd {
    /// Objects that failed or were in conflict: not done, whatever else was.
    pub unfinished: u64,
}

/// Whether all API servers have understood the newest storage version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Yes.
    Yes {
        /// Every API server that there is was asked itself, so that a resourceVersion above R0 proves an object. Otherwise
        /// time alone has settled it.
        accounted: bool,
    },
    /// Not yet: some time must pass.
    Wait(Duration),
    /// These servers still show the old version, or do not answer; each with that said.
    Behind(Vec<String>),
}

/// Everything that decides about the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The CRD, freshly read; `None`: there is none (any more).
    pub crd: Option<Crd>,
    /// What is remembered.
    pub pass: Option<Pass>,
    /// The API servers.
    pub settled: Settled,
    /// How long the patrol must still wait after the trim.
    pub patrol_in: Duration,
    /// API servers that were not asked themselves and have not been awake since the trim, each in a sentence: what they do when
    /// they wake, no patrol of now can see.
    pub asleep: Vec<String>,
    /// Whether the user asked to hold.
    pub suspended: bool,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Forget what is remembered and begin a pass for the CRD as it is now.
    Begin,
    /// Dry-run samples, look for fields that would be pruned. Nothing is written.
    Preflight,
    /// Come back after this time.
    Wait(Duration),
    /// Take R0 from a consistent list.
    TakeR0,
    /// Sweep: one write per object whose resourceVersion is not above R0.
    Rewrite,
    /// Sweep again; `full`: patch every object, whatever its resourceVersion says.
    Verify {
        /// No resourceVersion is taken for a proof.
        full: bool,
    },
    /// Remove these versions from `storedVersions`, under the lock, and put on record what was proven.
    Trim(Vec<String>),
    /// Patch what was written after the verify sweep; if a server wrote the old version, put it back.
    Patrol,
    /// Nothing to do, or all done.
    Done,
    /// Not now, and why.
    Hold(Hold),
}

/// Why a migration does not go on. It does, by itself, when the cause goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The CRD is gone.
    Gone,
    /// The user asked for it.
    Suspended,
    /// See [`Blocked`].
    Blocked(Blocked),
    /// API servers that are behind, by name (none: an object came back old after it had been rewritten).
    ServerBehind(Vec<String>),
    /// Objects keep moving and nothing explains it, or etcd holds something else than the sweeps saw.
    NotProven,
    /// Objects that failed or were in conflict; the next pass takes them up again.
    Failures(u64),
}

impl Blocked {
    /// The reason that a condition or a report gives.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Preflight => reason::PREFLIGHT,
            Self::Pruning => reason::PRUNING,
            Self::Forbidden => reason::FORBIDDEN,
        }
    }
}

impl Hold {
    /// The reason that a condition or a report gives; `None`: it is none that somebody should look at.
    pub fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Suspended => None,
            Self::Gone => Some(reason::NO_SUCH_RESOURCE),
            Self::Blocked(why) => Some(why.reason()),
            Self::ServerBehind(_) => Some(reason::SERVER_BEHIND),
            Self::NotProven => Some(reason::NOT_PROVEN),
            Self::Failures(_) => Some(reason::FAILURES),
        }
    }
}

/// After this many verify sweeps with moves that nothing explains, somebody should look.
pub const MAX_UNEXPLAINED: u8 = 3;

/// A line of the protocol: a name and the step that it insists on, if it does.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// What must hold before the rules below are looked at.
    pub name: &'static str,
    insists: fn(&Observed, &Crd, &Pass) -> Option<Step>,
}

/// The protocol, from top to bottom.
pub const RULES: [Rule; 12] = [
    Rule {
        name: "not suspended",
        insists: |o, _, _| o.suspended.then_some(Step::Hold(Hold::Suspended)),
    },
    Rule {
        // A second flip, or a CRD that was recreated, voids whatever was learnt before it (PITFALLS B1). So does a version
        // that came back after the trim: it stands for objects that no sweep of ours has seen.
        name: "the pass is about this CRD as it is",
        insists: |_, crd, pass| {
            let other = pass.uid != crd.uid || pass.generation != crd.generation;
            let put_back = pass.trimmed && !crd.old_versions().is_empty();
            (other || put_back).then_some(Step::Begin)
        },
    },
    Rule {
        name: "there is something to do",
        insists: |_, crd, pass| {
            let clean = crd.old_versions().is_empty();
            (clean && !pass.wanted).then_some(Step::Done)
        },
    },
    Rule {
        name: "the preflight passed",
        insists: |_, _, pass| match pass.preflight {
            None => Some(Step::Preflight),
            Some(Preflight::Blocked(why)) => Some(Step::Hold(Hold::Blocked(why))),
            Some(Preflight::Passed) => None,
        },
    },
    Rule {
        // A server that is behind stores at the old version, with 200 and a new resourceVersion (PITFALLS A4).
        name: "every API server is settled",
        insists: |o, _, pass| match &o.settled {
            _ if pass.trimmed => None, // from here on the patrol looks after them
            Settled::Yes { .. } => None,
            Settled::Wait(time) => Some(Step::Wait(*time)),
            Settled::Behind(names) => Some(Step::Hold(Hold::ServerBehind(names.clone()))),
        },
    },
    Rule {
        name: "R0 is taken after settling",
        insists: |_, _, pass| pass.r0.is_none().then_some(Step::TakeR0),
    },
    Rule {
        name: "every object was swept",
        insists: |_, _, pass| pass.rewrite.is_none().then_some(Step::Rewrite),
    },
    Rule {
        // A conflict says that somebody wrote, not at which version (PITFALLS A12, B2); a failure says nothing (B3).
        name: "no object is unfinished after the rewrite",
        insists: |_, _, pass| {
            let unfinished = pass.rewrite.map_or(0, |end| end.unfinished);
            (unfinished > 0).then_some(Step::Hold(Hold::Failures(unfinished)))
        },
    },
    Rule {
        name: "a sweep verified it",
        insists: |o, _, pass| match () {
            () if is_verified(o, pass) => None,
            () if pass.unexplained < MAX_UNEXPLAINED => Some(Step::Verify {
                full: must_be_full(o, pass),
            }),
            () if pass.came_back => Some(Step::Hold(Hold::ServerBehind(Vec::new()))),
            () => Some(Step::Hold(Hold::NotProven)),
        },
    },
    Rule {
        name: "no object is unfinished after the verification",
        insists: |_, _, pass| {
            let unfinished = pass.verify.map_or(0, |end| end.unfinished);
            (unfinished > 0).then_some(Step::Hold(Hold::Failures(unfinished)))
        },
    },
    Rule {
        // Also with nothing to remove: what was proven is put on record.
        name: "storedVersions is trimmed",
        insists: |_, crd, pass| (!pass.trimmed).then(|| Step::Trim(crd.old_versions())),
    },
    Rule {
        name: "the patrol has been",
        insists: |o, _, pass| match () {
            () if pass.patrolled => None,
            () if !o.asleep.is_empty() => Some(Step::Hold(Hold::ServerBehind(o.asleep.clone()))),
            () if !o.patrol_in.is_zero() => Some(Step::Wait(o.patrol_in)),
            () => Some(Step::Patrol),
        },
    },
];

/// Once something moved that nothing explains, or where not every server can be asked, a resourceVersion above R0 proves
/// nothing.
fn must_be_full(observed: &Observed, pass: &Pass) -> bool {
    pass.unexplained > 0 || pass.patrol_owed || observed.settled != Settled::Yes { accounted: true }
}

/// A sweep that trusted resourceVersions counts only as long as every API server is accounted for, up to the trim.
fn is_verified(observed: &Observed, pass: &Pass) -> bool {
    pass.verify.is_some() && (pass.trimmed || pass.verified_in_full || !must_be_full(observed, pass))
}

/// The next step.
pub fn next(observed: &Observed) -> Step {
    next_without(observed, None)
}

/// The next step if one rule, by its index, were not there: for the check that none is there for nothing.
pub fn next_without(observed: &Observed, left_out: Option<usize>) -> Step {
    let Some(crd) = &observed.crd else {
        return Step::Hold(Hold::Gone);
    };
    let Some(pass) = &observed.pass else {
        return Step::Begin;
    };
    RULES
        .iter()
        .enumerate()
        .filter(|(index, _)| Some(*index) != left_out)
        .find_map(|(_, rule)| (rule.insists)(observed, crd, pass))
        .unwrap_or(Step::Done)
}

/// What is remembered when a hold is left and the pass goes on: R0 stays, so that what is done gets no second request, and
/// so does an owed patrol with the versions that it may have to put back.
pub fn resume(hold: &Hold, pass: &Pass) -> Pass {
    let pass = pass.clone();
    match hold {
        Hold::Gone | Hold::Suspended => pass,
        Hold::Blocked(_) => Pass {
            preflight: None,
            ..pass
        },
        // After the trim it is the patrol that could not look at some: it is due again by itself.
        Hold::Failures(_) if pass.trimmed => pass,
        Hold::Failures(_) => Pass {
            rewrite: None,
            verify: None,
            verified_up_to: None,
            ..pass
        },
        // Servers that were named have been asked again.
        Hold::ServerBehind(names) if !names.is_empty() => pass,
        // One more sweep over what is younger than the last one, and no trust in resourceVersions.
        Hold::ServerBehind(_) | Hold::NotProven => Pass {
            unexplained: pass.unexplained.clamp(1, MAX_UNEXPLAINED - 1),
            verify: None,
            ..pass
        },
    }
}
