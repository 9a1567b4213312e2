//! The protocol of a built-in resource: it has no versions to shed, no `storedVersions` to trim, and nothing tells when the
//! API servers' configuration last changed. So every object is patched by two sweeps, and nothing is waited for.

use super::{Hold, MAX_UNEXPLAINED, Next, NextStep, Pass, Preflight, Step};

/// A line of the protocol: a name and the step that it insists on, if it does.
#[derive(Clone, Copy, Debug)]
pub struct BuiltInRule {
    /// What must hold before the rules below are looked at.
    pub name: &'static str,
    insists: fn(&Pass, bool) -> Option<Next>,
}

/// The protocol, from top to bottom.
pub const BUILT_IN_RULES: [BuiltInRule; 8] = [
    BuiltInRule {
        name: "not suspended",
        insists: |_, suspended| suspended.then_some(NextStep::Hold(Hold::Suspended)),
    },
    BuiltInRule {
        // A CRD of that name was there when the pass began. Its pass proves nothing about other objects.
        name: "the pass is about a built-in resource",
        insists: |pass, _| (!pass.is_built_in()).then_some(NextStep::Do(Step::Begin)),
    },
    BuiltInRule {
        name: "the preflight passed",
        insists: |pass, _| match pass.preflight {
            None => Some(NextStep::Do(Step::Preflight)),
            Some(Preflight::Blocked(why)) => Some(NextStep::Hold(Hold::Blocked(why))),
            Some(Preflight::Passed) => None,
        },
    },
    BuiltInRule {
        // An aggregated API server may have resourceVersions of another kind; a verify sweep that goes on compares them.
        name: "resourceVersions can be compared",
        insists: |pass, _| pass.r0.is_none().then_some(NextStep::Do(Step::TakeR0)),
    },
    BuiltInRule {
        name: "every object was swept",
        insists: |pass, _| pass.rewrite.is_none().then_some(NextStep::Do(Step::Rewrite)),
    },
    BuiltInRule {
        // A failure says nothing about the object (PITFALLS B3).
        name: "no object is unfinished after the rewrite",
        insists: |pass, _| unfinished(pass.rewrite),
    },
    BuiltInRule {
        name: "a second sweep verified it",
        insists: |pass, _| match () {
            () if pass.verify.is_some() => None,
            () if pass.unexplained < MAX_UNEXPLAINED => Some(NextStep::Do(Step::Verify { full: true })),
            () if pass.came_back => Some(NextStep::Hold(Hold::ServerBehind(Vec::new()))),
            () => Some(NextStep::Hold(Hold::NotProven)),
        },
    },
    BuiltInRule {
        name: "no object is unfinished after the verification",
        insists: |pass, _| unfinished(pass.verify),
    },
];

fn unfinished(sweep: Option<super::SweepEnd>) -> Option<Next> {
    let unfinished = sweep.map_or(0, |end| end.unfinished);
    (unfinished > 0).then_some(NextStep::Hold(Hold::Failures(unfinished)))
}

/// The next step for a built-in resource.
pub fn next_of_built_in(pass: Option<&Pass>, suspended: bool) -> Next {
    next_of_built_in_without(pass, suspended, None)
}

/// The next step if one rule, by its index, were not there: for the check that none is there for nothing.
pub fn next_of_built_in_without(pass: Option<&Pass>, suspended: bool, left_out: Option<usize>) -> Next {
    let Some(pass) = pass else {
        return NextStep::Do(Step::Begin);
    };
    BUILT_IN_RULES
        .iter()
        .enumerate()
        .filter(|(index, _)| Some(*index) != left_out)
        .find_map(|(_, rule)| (rule.insists)(pass, suspended))
        .unwrap_or(NextStep::Done)
}
