//! Why a sweep did not get to the end.

use exuvia_write::ErrorClass;

use crate::SweepReport;

/// Why a sweep did not get to the end. What it did until then is in the report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A page could not be read, after as many tries as the policy allows. Also when tokens expired again and again.
    #[error("cannot list {resource}: {}", exuvia_write::brief(.source))]
    List {
        /// Plural and group: `widgets.example.dev`.
        resource: String,
        /// What kind of failure.
        class: ErrorClass,
        /// The last failure.
        #[source]
        source: Box<kube::Error>,
        /// What was done until then.
        report: Box<SweepReport>,
    },
    /// [`Control::cancel`](crate::Control::cancel) was called.
    #[error("the sweep of {resource} was cancelled")]
    Cancelled {
        /// Plural and group: `widgets.example.dev`.
        resource: String,
        /// What was done until then.
        report: Box<SweepReport>,
    },
}

impl Error {
    /// What was done until then.
    pub fn report(&self) -> &SweepReport {
        match self {
            Self::List { report, .. } | Self::Cancelled { report, .. } => report,
        }
    }

    /// A bounded name in `CamelCase` for conditions and events.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::List { class, .. } => class.reason(),
            Self::Cancelled { .. } => "Cancelled",
        }
    }

    /// Whether it ended because it was told to.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Cancelled { .. })
    }
}
