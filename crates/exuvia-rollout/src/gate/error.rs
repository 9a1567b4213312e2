//! Why a gate came to no outcome.

use exuvia_write::ErrorClass;

use super::exit;

/// Why a gate came to no outcome. Nothing is known to be applied then, unless it says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Row 1: target, owner or Deployment could not be read.
    #[error("cannot read {what}: {source}")]
    Unread {
        /// What was read.
        what: String,
        /// Why not.
        source: Box<exuvia_write::Error>,
    },
    /// Somebody else was faster each time, or the fence refused each time.
    #[error("somebody else wrote {target} each time, {rounds} times: {source}")]
    Contended {
        /// The target.
        target: String,
        /// How often it was decided.
        rounds: u32,
        /// The last conflict.
        source: Box<exuvia_write::Error>,
    },
    /// The target is being deleted, and it takes longer than we wait.
    #[error("{target} is still being deleted: look at its finalizers")]
    StillDeleting {
        /// The target.
        target: String,
    },
    /// The write failed for another reason.
    #[error(transparent)]
    Write(#[from] Box<exuvia_write::Error>),
    /// The intent is for another object than the gate.
    #[error("the intent is for {intent}, the gate for {gate}")]
    Mismatch {
        /// Name and namespace in the intent.
        intent: String,
        /// Name and namespace of the gate's target.
        gate: String,
    },
    /// The names have no token, which the strict gate needs.
    #[error("the names have no annotation for a token; use the compat gate with them")]
    NoToken,
}

impl Error {
    /// What it means; [`ErrorClass::Fatal`] for a mistake of the caller's.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Unread { source, .. } | Self::Contended { source, .. } | Self::Write(source) => {
                source.class()
            }
            Self::StillDeleting { .. } => ErrorClass::Conflict,
            Self::Mismatch { .. } | Self::NoToken => ErrorClass::Fatal,
        }
    }

    /// A bounded `CamelCase` name for events, conditions and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unread { .. } => "Unread",
            Self::Contended { .. } => "Contended",
            Self::StillDeleting { .. } => "StillDeleting",
            Self::Write(source) => source.reason(),
            Self::Mismatch { .. } => "Mismatch",
            Self::NoToken => "NoToken",
        }
    }

    /// The exit code of a helper pod that ends because of it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Contended { .. } | Self::StillDeleting { .. } => exit::TRY_AGAIN,
            _ => match self.class() {
                ErrorClass::Denied | ErrorClass::Invalid | ErrorClass::Fatal => exit::FAILED,
                _ => exit::TRY_AGAIN,
            },
        }
    }
}
