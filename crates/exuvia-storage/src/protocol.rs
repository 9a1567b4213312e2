//! The protocol: given what was observed, the next step, or why not. Pure: no client, no clock, no async.
//!
//! It is a list of [`RULES`], read from top to bottom. Each one holds the migration back until its condition is met,
//! and says what to do about it; the first rule that is not satisfied decides. Every rule is there for a way to lose data: the model
//! check takes each one out and must then find one.

mod built_in;
mod pass;
mod steps;

use std::time::Duration;

use exuvia_api::reason;
pub use exuvia_runtime::machine::NextStep;

pub use self::built_in::{BUILT_IN_RULES, BuiltInRule, next_of_built_in, next_of_built_in_without};
pub use self::pass::{Blocked, Pass, Preflight, SweepEnd, Verification, Wanted};
pub use self::steps::{Step, StepKind};

/// What the protocol needs to know of a CRD, freshly read.
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
    /// The CRD, freshly read; `None`: it does not exist, or not any more.
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

impl Hold {
    /// The reason that a condition or a report gives; `None`: nobody needs to look at it.
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

/// What is next for a migration.
pub type Next = NextStep<Step, Hold>;

/// A line of the protocol: a name and the step that it insists on, if it does.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// What must hold before the rules below are looked at.
    pub name: &'static str,
    insists: fn(&Observed, &Crd, &Pass) -> Option<Next>,
}

/// The protocol, from top to bottom.
pub const RULES: [Rule; 12] = [
    Rule {
        name: "not suspended",
        insists: |o, _, _| o.suspended.then_some(NextStep::Hold(Hold::Suspended)),
    },
    Rule {
        // A second flip, or a CRD that was recreated, voids whatever was learnt before it (PITFALLS B1). So does a version
        // that came back after the trim: it stands for objects that no sweep of ours has seen.
        name: "the pass is about this CRD as it is",
        insists: |_, crd, pass| {
            let other = pass.uid != crd.uid || pass.generation != crd.generation;
            let put_back = pass.trimmed && !crd.old_versions().is_empty();
            (other || put_back).then_some(NextStep::Do(Step::Begin))
        },
    },
    Rule {
        name: "there is something to do",
        insists: |_, crd, pass| {
            let clean = crd.old_versions().is_empty();
            (clean && !pass.wanted).then_some(NextStep::Done)
        },
    },
    Rule {
        name: "the preflight passed",
        insists: |_, _, pass| match pass.preflight {
            None => Some(NextStep::Do(Step::Preflight)),
            Some(Preflight::Blocked(why)) => Some(NextStep::Hold(Hold::Blocked(why))),
            Some(Preflight::Passed) => None,
        },
    },
    Rule {
        // A server that is behind stores at the old version, with 200 and a new resourceVersion (PITFALLS A4).
        name: "every API server is settled",
        insists: |o, _, pass| match &o.settled {
            _ if pass.trimmed => None, // from here on the patrol looks after them
            Settled::Yes { .. } => None,
            Settled::Wait(time) => Some(NextStep::Wait(*time)),
            Settled::Behind(names) => Some(NextStep::Hold(Hold::ServerBehind(names.clone()))),
        },
    },
    Rule {
        name: "R0 is taken after settling",
        insists: |_, _, pass| pass.r0.is_none().then_some(NextStep::Do(Step::TakeR0)),
    },
    Rule {
        name: "every object was swept",
        insists: |_, _, pass| pass.rewrite.is_none().then_some(NextStep::Do(Step::Rewrite)),
    },
    Rule {
        // A conflict says that somebody wrote, not at which version (PITFALLS A12, B2); a failure says nothing (B3).
        name: "no object is unfinished after the rewrite",
        insists: |_, _, pass| {
            let unfinished = pass.rewrite.map_or(0, |end| end.unfinished);
            (unfinished > 0).then_some(NextStep::Hold(Hold::Failures(unfinished)))
        },
    },
    Rule {
        name: "a sweep verified it",
        insists: |o, _, pass| match () {
            () if is_verified(o, pass) => None,
            () if pass.unexplained < MAX_UNEXPLAINED => Some(NextStep::Do(Step::Verify {
                full: must_be_full(o, pass),
            })),
            () if pass.came_back => Some(NextStep::Hold(Hold::ServerBehind(Vec::new()))),
            () => Some(NextStep::Hold(Hold::NotProven)),
        },
    },
    Rule {
        name: "no object is unfinished after the verification",
        insists: |_, _, pass| {
            let unfinished = pass.verify.map_or(0, |end| end.unfinished);
            (unfinished > 0).then_some(NextStep::Hold(Hold::Failures(unfinished)))
        },
    },
    Rule {
        // Also with nothing to remove: what was proven is put on record.
        name: "storedVersions is trimmed",
        insists: |_, crd, pass| (!pass.trimmed).then(|| NextStep::Do(Step::Trim(crd.old_versions()))),
    },
    Rule {
        name: "the patrol was done",
        insists: |o, _, pass| match () {
            () if pass.patrolled => None,
            () if !o.asleep.is_empty() => Some(NextStep::Hold(Hold::ServerBehind(o.asleep.clone()))),
            () if !o.patrol_in.is_zero() => Some(NextStep::Wait(o.patrol_in)),
            () => Some(NextStep::Do(Step::Patrol)),
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
pub fn next(observed: &Observed) -> Next {
    next_without(observed, None)
}

/// The next step if one rule, by its index, were not there: for the check that none is there for nothing.
pub fn next_without(observed: &Observed, left_out: Option<usize>) -> Next {
    let Some(crd) = &observed.crd else {
        return NextStep::Hold(Hold::Gone);
    };
    let Some(pass) = &observed.pass else {
        return NextStep::Do(Step::Begin);
    };
    RULES
        .iter()
        .enumerate()
        .filter(|(index, _)| Some(*index) != left_out)
        .find_map(|(_, rule)| (rule.insists)(observed, crd, pass))
        .unwrap_or(NextStep::Done)
}

/// What is remembered when a hold is left and the pass goes on: R0 stays, so that what is done gets no second request, and
/// so does an owed patrol with the versions that it may have to put back.
pub fn resume(hold: &Hold, pass: &Pass) -> Pass {
    let pass = pass.clone();
    match hold {
        Hold::Gone | Hold::Suspended => pass,
        // After the trim the patrol could not be done: it is due again by itself.
        Hold::Blocked(_) if pass.trimmed => pass,
        Hold::Blocked(_) => Pass {
            preflight: None,
            ..pass
        },
        // After the trim the patrol could not look at some objects: it is due again by itself.
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
