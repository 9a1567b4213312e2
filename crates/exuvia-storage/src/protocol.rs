//! The protocol: given what was observed, the next step, or why not. Pure: no client, no clock, no async.
//!
//! It is a list of [`RULES`], read from top to bottom. Each one holds the migration back until its condition is met,
//! and says what to do about it; the first that holds decides. Every rule is there for a way to lose data: the model
//! check takes each one out and must then find one.

use std::time::Duration;

use exuvia_api::reason;
use exuvia_sweep::ResourceVersion;
use k8s_openapi::jiff::Timestamp;

/// What the protocol needs to know of a CRD, freshly read.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// The CRD's uid when the pass began.
    pub uid: String,
    /// The CRD's generation when the pass began.
    pub generation: i64,
    /// `storedVersions` when the pass began: what the patrol puts back if it must.
    pub stored_before: Vec<String>,
    /// Whether there is something to do although `storedVersions` is clean: managedFields name a version that is gone,
    /// or the caller insists.
    pub wanted: bool,
    /// An earlier pass of this CRD was trimmed and then voided before its patrol: nothing may be taken for granted until
    /// this one has been through, however clean everything looks.
    pub patrol_owed: bool,
    /// What the preflight found; `None`: not looked yet.
    pub preflight: Option<Preflight>,
    /// The resourceVersion of a consistent list, taken after settling: what is above it was written by a settled server.
    pub r0: Option<ResourceVersion>,
    /// When R0 was taken. No rule asks for it: whoever observes turns it into [`Observed::full_verify_in`].
    pub r0_at: Option<Timestamp>,
    /// The rewrite sweep, once it went through to its end.
    pub rewrite: Option<SweepEnd>,
    /// How often a verify sweep found that a server was behind.
    pub times_behind: u8,
    /// The verify sweep, once it went through to its end and nothing was behind.
    pub verify: Option<SweepEnd>,
    /// The smallest resourceVersion of the lists that the verify sweep read: what is above it was not looked at.
    pub r1: Option<ResourceVersion>,
    /// Whether the verify sweep trusted no resourceVersion: then the patrol trusts none either.
    pub verified_in_full: bool,
    /// The trim was made (or found made: a crash may hide it).
    pub trimmed: bool,
    /// When that was, or was found. No rule asks for it: whoever observes turns it into [`Observed::patrol_in`].
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
            // Whether old entries are left can only be told by looking.
            wanted: true,
            patrol_owed: owing.is_some(),
            ..Self::default()
        }
    }

    /// Takes note of what a look at all objects' metadata found; `false`: there is nothing to do after all.
    pub fn surveyed(&mut self, crd: &Crd, has_old_owners: bool) -> bool {
        self.wanted = has_old_owners || self.patrol_owed || !crd.old_versions().is_empty();
        self.wanted
    }

    /// Takes note if the trim was made although nobody remembers it: a crash, or an answer that was lost, may hide ours.
    pub fn finds_the_trim_made(&mut self, crd: &Crd) -> bool {
        let found = !self.trimmed
            && self.uid == crd.uid
            && self.generation == crd.generation
            && self.verify.is_some_and(|end| end.unfinished == 0)
            && crd.old_versions().is_empty();
        self.trimmed |= found;
        found
    }
}

/// What the preflight found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preflight {
    /// Conversion and admission answer, nothing would be pruned.
    Passed,
    /// Something stands in the way.
    Blocked(Blocked),
}

/// Why the preflight does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// A dry-run write was refused or not answered.
    Preflight,
    /// The rewrite would erase fields.
    Pruning,
    /// We may not do what we would have to.
    Forbidden,
}

/// How a sweep ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepEnd {
    /// Objects that failed or were in conflict: not done, whatever else was.
    pub unfinished: u64,
}

/// Whether all API servers have understood the newest storage version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Yes; `one_by_one`: each was asked itself, so that a resourceVersion above R0 proves an object.
    Yes {
        /// Time alone has settled it otherwise.
        one_by_one: bool,
    },
    /// Not yet: some time must pass.
    Wait(Duration),
    /// These servers still show the old version, or vanished without having shown the new one.
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
    /// How long a verification that trusts no resourceVersion must still wait: one settle time after R0.
    pub full_verify_in: Duration,
    /// How long the patrol must still wait after the trim.
    pub patrol_in: Duration,
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
    /// Remove these versions from `storedVersions`, under the lock.
    Trim(Vec<String>),
    /// Patch what was written behind the verify sweep's back; if a server wrote the old version, put it back.
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
    /// API servers that are behind, by name (none: found by what they wrote).
    ServerBehind(Vec<String>),
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
            Self::Failures(_) => Some(reason::FAILURES),
        }
    }
}

/// After this many verify sweeps that found a server behind, somebody should look (DESIGN §3 step 6).
pub const MOST_TIMES_BEHIND: u8 = 3;

/// A line of the protocol: a name and the step that it insists on, if it does.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// What must hold before the rules below are looked at.
    pub name: &'static str,
    insists: fn(&Observed, &Crd, &Pass) -> Option<Step>,
}

/// The protocol, from top to bottom.
pub const RULES: [Rule; 13] = [
    Rule {
        name: "not suspended",
        insists: |o, _, _| o.suspended.then_some(Step::Hold(Hold::Suspended)),
    },
    Rule {
        // A second flip, or a CRD made anew, voids whatever was learnt before it (PITFALLS B1). So does a version that
        // came back after the trim: whoever put it there knows of objects that no sweep of ours has seen.
        name: "the pass is about this CRD as it is",
        insists: |_, crd, pass| {
            let other = pass.uid != crd.uid || pass.generation != crd.generation;
            let put_back = pass.trimmed && !crd.old_versions().is_empty();
            (other || put_back).then_some(Step::Begin)
        },
    },
    Rule {
        // Verified and clean, but not trimmed by us: a crash hid our own trim, and the patrol is still due.
        name: "there is something to do",
        insists: |_, crd, pass| {
            let clean = crd.old_versions().is_empty();
            (clean && !pass.wanted && pass.verify.is_none()).then_some(Step::Done)
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
        // Where servers cannot be asked one by one, time is all there is to make sure that none is behind.
        name: "a full verification comes one settle time after R0",
        insists: |o, _, pass| {
            let early = pass.verify.is_none() && must_be_full(o, pass) && !o.full_verify_in.is_zero();
            early.then_some(Step::Wait(o.full_verify_in))
        },
    },
    Rule {
        name: "a sweep verified it",
        insists: |o, _, pass| match pass.verify {
            Some(_) => None,
            None if pass.times_behind >= MOST_TIMES_BEHIND => {
                Some(Step::Hold(Hold::ServerBehind(Vec::new())))
            }
            None => Some(Step::Verify {
                full: must_be_full(o, pass),
            }),
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
        name: "storedVersions is trimmed",
        insists: |_, crd, _| {
            let old = crd.old_versions();
            (!old.is_empty()).then_some(Step::Trim(old))
        },
    },
    Rule {
        name: "the patrol has been",
        insists: |o, _, pass| match () {
            () if pass.patrolled => None,
            () if !o.patrol_in.is_zero() => Some(Step::Wait(o.patrol_in)),
            () => Some(Step::Patrol),
        },
    },
];

/// Once a server was caught behind or may have been, or where none can be asked itself, a resourceVersion above R0 proves nothing.
fn must_be_full(observed: &Observed, pass: &Pass) -> bool {
    pass.times_behind > 0 || pass.patrol_owed || observed.settled != Settled::Yes { one_by_one: true }
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

/// What is remembered after a verify sweep in which objects `moved` although each was current before.
///
/// Under another generation than the pass's own that is no wonder, and nobody's fault: `crd` is read after the sweep.
pub fn verified(pass: &Pass, crd: &Crd, end: SweepEnd, moved: bool) -> Pass {
    let mut pass = pass.clone();
    match moved {
        true if crd.generation == pass.generation => pass.times_behind += 1,
        true => {}
        false => pass.verify = Some(end),
    }
    pass
}

/// What is remembered when a hold is left and the pass goes on: R0 stays, so that what is done gets no second request.
pub fn resume(hold: &Hold, pass: &Pass) -> Option<Pass> {
    match hold {
        Hold::Gone | Hold::Suspended => Some(pass.clone()),
        Hold::Blocked(_) => Some(Pass {
            preflight: None,
            ..pass.clone()
        }),
        Hold::Failures(_) => Some(Pass {
            rewrite: None,
            verify: None,
            ..pass.clone()
        }),
        // Whatever was rewritten meanwhile may have been written back: start over.
        Hold::ServerBehind(names) if names.is_empty() => None,
        Hold::ServerBehind(_) => Some(pass.clone()),
    }
}
