//! What can go wrong with a write, each with the object, the cause and the way out.

use kube::core::Status;

use crate::{EntryId, ErrorClass, Inexpressible, Target, Verb, class::names_an_object};

/// Why a write failed.
///
/// ```
/// # use exuvia_write::{Error, ErrorClass};
/// fn next_step(error: &Error) -> &'static str {
///     match error.class() {
///         ErrorClass::Gone => "done, nothing left to do",
///         ErrorClass::Missing => "not done: the endpoint or the namespace is not there, the object may be",
///         ErrorClass::Conflict => "read again and decide again",
///         ErrorClass::Throttled(_) | ErrorClass::Transient(_) => "come back later",
///         _ => "tell a human",
///     }
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing was sent.
    #[error("{verb} {target}: {why}")]
    Refused {
        /// What was to be done.
        verb: Verb,
        /// To which object.
        target: Box<Target>,
        /// Why not.
        why: Refusal,
    },
    /// The server, or the way to it, said no. The error is as kube gives it.
    #[error("{verb} {target}: {} [{class}]{}", brief(source), way_out(*class, source))]
    Server {
        /// What was to be done.
        verb: Verb,
        /// To which object.
        target: Box<Target>,
        /// What it means.
        class: ErrorClass,
        /// As kube gave it.
        source: Box<kube::Error>,
    },
    /// The object was deleted and created again under its name while we tried.
    #[error(
        "{verb} {target}: the object was deleted and created again meanwhile; read it again and decide again"
    )]
    Recreated {
        /// What was to be done.
        verb: Verb,
        /// To which object.
        target: Box<Target>,
    },
    /// The object is there, but its kind has no status subresource.
    #[error("{verb} {target}: the kind has no status subresource; use patch, or add one to the crd")]
    NoStatus {
        /// What was to be done.
        verb: Verb,
        /// To which object.
        target: Box<Target>,
    },
    /// The object's own endpoint took the patch and ignored the change of the status.
    #[error(
        "patch {target}: the server ignored the change of /status (the rest is written); use patch_status for it"
    )]
    StatusIgnored {
        /// Of which object.
        target: Box<Target>,
    },
    /// The server answered 200 and ignored the list of managedFields (PITFALLS A22).
    #[error("move_ownership {target}: the server ignored the managedFields sent: {entry} is as before")]
    OwnershipIgnored {
        /// Of which object.
        target: Box<Target>,
        /// The first entry that is not as it was sent.
        entry: EntryId,
    },
    /// An object of that name exists and the caller does not want to adopt it.
    #[error("create {target}: an object of that name exists and is not ours; rename one of them")]
    Foreign {
        /// Which object.
        target: Box<Target>,
    },
    /// The server took it, but its answer does not fit the Rust type. What serde says about it is not kept: it quotes the
    /// value, which may be a secret (PITFALLS B27).
    #[error(
        "{verb} {target}: the server's answer does not fit the rust type (line {line}, column {column}); \
         a write that is answered so was carried out"
    )]
    Answer {
        /// What was done.
        verb: Verb,
        /// To which object.
        target: Box<Target>,
        /// Where in the answer.
        line: usize,
        /// Where in the line.
        column: usize,
    },
    /// No client could be made of the configuration.
    #[error("no client can be made: {}", brief(source))]
    Connect {
        /// As kube gave it.
        source: Box<kube::Error>,
    },
}

/// Why nothing was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The object has no name.
    #[error("the object has no name; set metadata.name")]
    NoName,
    /// The object's name would make another URL of the request.
    #[error("the name cannot be part of a url; take out '/', '%', '?', '#' and white space")]
    BadName,
    /// The `Api` is for one namespace and the object is in another.
    #[error("the api is for namespace {api}; use one for the object's own namespace")]
    WrongNamespace {
        /// The namespace of the `Api`.
        api: String,
    },
    /// The write needs a lock and the object has nothing to lock on.
    #[error("the write needs a lock and the object has no resourceVersion; read it first")]
    NoResourceVersion,
    /// Without a uid another object of the same name could be hit.
    #[error("the object has no uid; read it first")]
    NoUid,
    /// An intent to apply without `apiVersion` or `kind`.
    #[error("the intent has no apiVersion or kind; set both")]
    NoType,
    /// The change holds an explicit `null`.
    #[error(transparent)]
    Inexpressible(#[from] Inexpressible),
    /// A status patch would change something else, which the server would silently ignore.
    #[error("/{member} was changed too, which the status endpoint ignores; use patch for it")]
    OutsideStatus {
        /// The top-level member that was changed.
        member: String,
    },
    /// The object cannot be serialised.
    #[error("the object cannot be serialised: {0}")]
    Unserialisable(#[from] serde_json::Error),
    /// The writer's gate said no.
    #[error("the gate is closed: {0}")]
    GateClosed(String),
}

impl Error {
    pub(crate) fn refused(verb: Verb, target: &Target, why: impl Into<Refusal>) -> Self {
        Self::Refused {
            verb,
            target: Box::new(target.clone()),
            why: why.into(),
        }
    }

    /// What it means for the caller. A refusal is [`ErrorClass::Fatal`], as it is a bug of the caller's, but for a closed
    /// gate, which is [`ErrorClass::Denied`].
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Server { class, .. } => *class,
            Self::Recreated { .. } => ErrorClass::Gone,
            Self::Foreign { .. } => ErrorClass::Conflict,
            Self::Refused {
                why: Refusal::GateClosed(_),
                ..
            } => ErrorClass::Denied,
            _ => ErrorClass::Fatal,
        }
    }

    /// A bounded `CamelCase` name for conditions, events and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Refused {
                why: Refusal::GateClosed(_),
                ..
            } => "GateClosed",
            Self::Refused { .. } => "Refused",
            Self::Server { class, .. } => class.reason(),
            Self::Recreated { .. } => "Recreated",
            Self::NoStatus { .. } => "NoStatus",
            Self::StatusIgnored { .. } => "StatusIgnored",
            Self::OwnershipIgnored { .. } => "OwnershipIgnored",
            Self::Foreign { .. } => "Foreign",
            Self::Answer { .. } => "UnreadableAnswer",
            Self::Connect { .. } => "NoClient",
        }
    }

    /// What the server said, if it was the server.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Server { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            _ => None,
        }
    }

    /// A 409 because an object of that name exists.
    pub fn is_already_exists(&self) -> bool {
        self.status().is_some_and(Status::is_already_exists)
    }

    /// A 409 because another manager owns a field that was applied: reading again will not help, `force` would.
    pub fn is_ownership_conflict(&self) -> bool {
        let causes = self
            .status()
            .and_then(|status| status.details.as_ref())
            .map(|details| &details.causes);
        self.class() == ErrorClass::Conflict
            && causes.is_some_and(|causes| causes.iter().any(|cause| cause.reason == "FieldManagerConflict"))
    }

    /// A 404 that is about the endpoint and not about the object: the kind or its version is not served.
    ///
    /// Its class is [`ErrorClass::Missing`], as is that of a 404 about something else, such as the object's namespace.
    pub fn is_unserved(&self) -> bool {
        self.class() == ErrorClass::Missing && self.status().is_some_and(|status| !names_an_object(status))
    }
}

/// What to do about a 404 that is not about the object: the server's own words leave that open.
fn way_out(class: ErrorClass, error: &kube::Error) -> String {
    match error {
        _ if class != ErrorClass::Missing => String::new(),
        kube::Error::Api(status) if names_an_object(status) => {
            let details = status.details.as_ref();
            let (kind, name) = details.map_or(("", ""), |details| (&details.kind, &details.name));
            let repair = if kind == "namespaces" {
                ": create the namespace again and repeat"
            } else {
                ""
            };
            format!(
                "; that is about {kind} \"{name}\" and not about the object, which may still exist{repair}"
            )
        }
        _ => "; the server does not serve this endpoint: check group, version and whether the crd is there"
            .to_owned(),
    }
}

/// A client's error in one line, with its causes and without values of objects.
///
/// kube prints a status twice, once in full; the message and the code will do.
pub fn brief(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} (http {})", status.message, status.code),
        // What serde says quotes the value, which may be a secret (PITFALLS B27).
        kube::Error::SerdeError(error) => format!(
            "an answer that is not understood (line {}, column {})",
            error.line(),
            error.column()
        ),
        other => crate::credentials::unusable(other).unwrap_or_else(|| with_causes(other)),
    }
}

/// An error of the transport says little itself: "client error (Connect)". Its causes say why.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let own = error.to_string();
        if !text.ends_with(&own) {
            text = format!("{text}: {own}");
        }
        cause = error.source();
    }
    text
}
