//! The list of steps: phases, metrics and progress bars are all made from it.

use exuvia_api::Phase;

use super::Pass;

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Forget what is remembered and begin a pass for the CRD as it is now.
    Begin,
    /// Dry-run samples, look for fields that would be pruned. Nothing is written.
    Preflight,
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
}

impl Step {
    /// Which line of the list it is.
    pub fn kind(&self) -> StepKind {
        match self {
            Self::Begin => StepKind::Begin,
            Self::Preflight => StepKind::Preflight,
            Self::TakeR0 => StepKind::TakeR0,
            Self::Rewrite => StepKind::Rewrite,
            Self::Verify { .. } => StepKind::Verify,
            Self::Trim(_) => StepKind::Trim,
            Self::Patrol => StepKind::Patrol,
        }
    }
}

/// A kind of step, or the wait before one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// [`Step::Begin`].
    Begin,
    /// [`Step::Preflight`].
    Preflight,
    /// Waiting for API servers.
    Settle,
    /// [`Step::TakeR0`].
    TakeR0,
    /// [`Step::Rewrite`].
    Rewrite,
    /// [`Step::Verify`].
    Verify,
    /// [`Step::Trim`].
    Trim,
    /// [`Step::Patrol`].
    Patrol,
}

/// A line of the list.
struct Line {
    phase: Phase,
    /// The value of the metrics' label `step`, if its time is measured.
    metric: Option<&'static str>,
    /// What people read while it is done.
    doing: &'static str,
    /// Whether people are told before it is done. What takes a moment is not worth a write.
    told: bool,
}

impl StepKind {
    const fn line(self) -> Line {
        let (phase, metric, doing, told) = match self {
            Self::Begin => (Phase::Pending, None, "beginning", false),
            Self::Preflight => {
                let doing = "looking at objects, nothing is written yet";
                (Phase::Pending, Some("preflight"), doing, true)
            }
            Self::Settle => (Phase::Settling, None, "waiting for API servers to catch up", true),
            // Told as well: whether there is still a time to wait depends on how long the preflight took, and the phases that
            // people see should not.
            Self::TakeR0 => (Phase::Settling, None, "counting objects", true),
            Self::Rewrite => (Phase::Rewriting, Some("rewrite"), "rewriting", true),
            Self::Verify => (Phase::Verifying, Some("verify"), "verifying", true),
            Self::Trim => (
                Phase::Trimming,
                None,
                "writing storedVersions and what is proven to the CRD's status",
                true,
            ),
            Self::Patrol => (Phase::Patrolling, Some("patrol"), "patrolling", true),
        };
        Line {
            phase,
            metric,
            doing,
            told,
        }
    }

    /// What a wait is for, after what is remembered.
    pub fn waited_for(pass: Option<&Pass>) -> Self {
        match pass {
            Some(pass) if pass.trimmed => Self::Patrol,
            Some(pass) if pass.rewrite.is_some() => Self::Verify,
            _ => Self::Settle,
        }
    }

    /// The phase that a status shows.
    pub const fn phase(self) -> Phase {
        self.line().phase
    }

    /// The value of the metrics' label `step`, if its time is measured.
    pub const fn metric(self) -> Option<&'static str> {
        self.line().metric
    }

    /// What people read while it is done.
    pub const fn doing(self) -> &'static str {
        self.line().doing
    }

    /// Whether people are told before it is done.
    pub const fn is_told(self) -> bool {
        self.line().told
    }
}
