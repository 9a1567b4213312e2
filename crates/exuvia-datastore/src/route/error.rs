//! What can go wrong with a route or with clones: each message names the object, the cause and the way out.

use exuvia_sweep::ListError;
use exuvia_write::{Redacted, brief};

/// Why a route could not be read or changed. Every call may be repeated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not the name of an `APIService`.
    #[error("invalid APIService name \"{name}\": expected <version>.<group>, such as v3.projectcalico.org")]
    InvalidName {
        /// What was given.
        name: String,
    },

    /// A kind that this `APIService` has nothing to do with.
    #[error("{kind} is not answered by APIService {name}: its group and version are others")]
    Elsewhere {
        /// The `APIService`.
        name: String,
        /// The kind.
        kind: String,
    },

    /// A read failed.
    #[error("{what} could not be read: {}", Redacted::from_server(&brief(source)))]
    Read {
        /// What was read.
        what: String,
        /// Why it failed.
        source: Box<kube::Error>,
    },

    /// A list failed.
    #[error(transparent)]
    List(#[from] ListError),

    /// A write failed.
    #[error(transparent)]
    Write(#[from] exuvia_write::Error),

    /// There is nothing to save: the CRDs answer, or nobody does.
    #[error("APIService {name} has no backend: nothing is to be saved or read through it")]
    NoBackend {
        /// The `APIService`.
        name: String,
    },

    /// What was saved is not what `save` gave.
    #[error("the saved APIService cannot be read: it was changed since it was saved")]
    Unreadable,

    /// It could be deleted, but it would not go.
    #[error(
        "APIService {name} has finalizers ({}): it would stay, and could not be restored; remove them first",
        finalizers.join(", ")
    )]
    Held {
        /// The `APIService`.
        name: String,
        /// What holds it.
        finalizers: Vec<String>,
    },

    /// It changed hands while it was read.
    #[error("APIService {name} was changed while objects were read through it: read again")]
    Changed {
        /// The `APIService`.
        name: String,
    },

    /// It is there again, but its backend does not answer.
    #[error("APIService {name} is restored and not available yet: {why}")]
    NotAvailable {
        /// The `APIService`.
        name: String,
        /// What its condition says.
        why: Redacted,
    },

    /// Something does not go away.
    #[error("{what} is being deleted and still there")]
    StillThere {
        /// What it is.
        what: String,
    },

    /// A target has no CRD, or one that does not serve the version.
    #[error("no CRD {name} that serves {version}: without it nothing would answer after the switch")]
    NoCrd {
        /// The CRD's name.
        name: String,
        /// The version.
        version: String,
    },

    /// The clones are not served by every API server.
    #[error("the clones of the target CRDs are not served yet: {why}")]
    NotServed {
        /// Which server, and why.
        why: Redacted,
    },

    /// A CRD cannot get a second version.
    #[error("{why}")]
    NoSecondVersion {
        /// The CRD's name.
        name: String,
        /// Why, with its name in it.
        why: Redacted,
    },

    /// The second version is not served by every API server.
    #[error("the second version of the target CRDs is not served yet: {why}")]
    SecondNotServed {
        /// Which server, and why.
        why: Redacted,
    },

    /// Objects still name the second version in their `managedFields`.
    #[error("the managedFields of {kind} still name the second version: {why}")]
    Entries {
        /// The plural.
        kind: String,
        /// What the first one said.
        why: Redacted,
    },

    /// Targets in more than one group cannot be cloned into one.
    #[error("the targets are in several groups ({first}, {second}): clones are made of one group's CRDs")]
    SeveralGroups {
        /// One of them.
        first: String,
        /// Another one.
        second: String,
    },
}

impl Error {
    /// A failed read of `what`.
    pub(super) fn reading(what: &str) -> impl FnOnce(kube::Error) -> Self {
        let what = what.to_owned();
        move |source| Self::Read {
            what,
            source: Box::new(source),
        }
    }
}
