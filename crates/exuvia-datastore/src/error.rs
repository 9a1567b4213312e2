//! What can go wrong while a migration is carried out. All of it is tried again.

use exuvia_api::counted;
use exuvia_write::{ErrorClass, Redacted, brief};

/// What made a step fail. The step is tried again; nothing is given up because of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A read failed.
    #[error("cannot read: {}", brief(.0))]
    Read(#[from] kube::Error),
    /// A list failed.
    #[error(transparent)]
    List(#[from] exuvia_sweep::ListError),
    /// A sweep did not come to its end.
    #[error(transparent)]
    Sweep(#[from] exuvia_sweep::Error),
    /// A write failed.
    #[error(transparent)]
    Write(#[from] exuvia_write::Error),
    /// The freeze could not be set, looked at or removed.
    #[error(transparent)]
    Freeze(#[from] crate::freeze::Error),
    /// The APIService or the clones could not be handled.
    #[error(transparent)]
    Route(#[from] crate::route::Error),
    /// Some objects failed for reasons that may pass.
    #[error("{} failed, the first: {first}", counted(*objects, "object"))]
    Unfinished {
        /// How many.
        objects: u64,
        /// What the first one said.
        first: Redacted,
        /// Whether some of their writes may still take effect.
        ambiguous: bool,
    },
    /// The spec cannot be carried out as it is.
    #[error("{0}")]
    Invalid(String),
    /// What was decided no longer fits what is there: look again, and decide again.
    #[error("{0}: the next try looks again")]
    Changed(&'static str),
}

impl Error {
    /// Whether a write that failed may still take effect: its answer was lost.
    pub(crate) fn may_take_effect(&self) -> bool {
        match self {
            Self::Write(error) => error.class() == ErrorClass::Ambiguous,
            Self::Freeze(error) => error.class() == ErrorClass::Ambiguous,
            Self::Route(crate::route::Error::Write(error)) => error.class() == ErrorClass::Ambiguous,
            Self::Unfinished { ambiguous, .. } => *ambiguous,
            _ => false,
        }
    }
}
