//! Why a freeze could not be looked at, set or taken away.

use exuvia_write::{ErrorClass, Redacted, brief};

/// What went wrong with a freeze. Texts hold names, never values of objects.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A write failed.
    #[error("{}", Redacted::from_error(.0))]
    Write(#[from] exuvia_write::Error),
    /// A read failed.
    #[error("{what} cannot be read: {}", Redacted::from_server(&brief(source)))]
    Read {
        /// What was to be read.
        what: String,
        /// As kube gave it.
        source: Box<kube::Error>,
    },
    /// The server has no policies of this kind.
    #[error(
        "the server does not serve ValidatingAdmissionPolicy (admissionregistration.k8s.io/v1, Kubernetes 1.30 or later): \
         set freeze.admission to false and name flags"
    )]
    NoPolicies,
    /// An object has the name of one of ours and not our label. It is left alone.
    #[error("{what} exists and is not of this migration: delete or rename it")]
    Foreign {
        /// Kind and name.
        what: String,
    },
    /// Somebody deletes an object of ours, and a finalizer holds it.
    #[error("{what} is being deleted and held by finalizers: remove them")]
    Leaving {
        /// Kind and name.
        what: String,
    },
    /// A note that an earlier migration left cannot be read.
    #[error(
        "the annotation {annotation} of {what} cannot be read: mend it, or set the flags by hand and remove it"
    )]
    Unreadable {
        /// Kind and name.
        what: String,
        /// Its key.
        annotation: &'static str,
    },
    /// The server does not say who we are.
    #[error("the server does not say who we are: its answer to a SelfSubjectReview has no user name")]
    Nobody,
    /// The object that holds a flag does not exist.
    #[error("flag {flag}: the object does not exist")]
    NoObject {
        /// Which flag: object and path.
        flag: String,
    },
    /// The object that holds a flag is not the one whose value was saved.
    #[error(
        "flag {flag}: the object was deleted and created again since its value was saved, so nothing is restored; set it by hand"
    )]
    Recreated {
        /// Which flag: object and path.
        flag: String,
    },
    /// The kind of a flag is not served.
    #[error("flag {flag}: {kind} is not served: check group, version and kind")]
    NoKind {
        /// Which flag: object and path.
        flag: String,
        /// Kind and version.
        kind: String,
    },
    /// The path of a flag cannot be read.
    #[error("flag {flag}: {source}")]
    Path {
        /// Which flag: object and path.
        flag: String,
        /// Why.
        source: super::path::InvalidPath,
    },
    /// The path of a flag leads through something that is not an object.
    #[error("flag {flag}: the path leads through a value that is not an object")]
    NotAnObject {
        /// Which flag: object and path.
        flag: String,
    },
}

impl Error {
    pub(super) fn read(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        |source| Self::Read {
            what,
            source: Box::new(source),
        }
    }

    /// What it means for the caller, as [`exuvia_write::Error::class`] tells.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Write(error) => error.class(),
            Self::Read { source, .. } => ErrorClass::of(source),
            Self::Foreign { .. } | Self::Leaving { .. } => ErrorClass::Conflict,
            Self::NoObject { .. } | Self::Recreated { .. } => ErrorClass::Gone,
            _ => ErrorClass::Fatal,
        }
    }
}
