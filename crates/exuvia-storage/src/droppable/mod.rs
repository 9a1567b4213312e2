//! May a version be dropped? Six things can hold it, and the answer is yes, no, or not known.
//!
//! [`Seen::judge`] is the verdict: pure, over what was seen. [`look`] is what sees it.

mod holders;
mod look;
mod migrations;
mod outlook;
mod verdict;

pub use look::{Look, Looking, Question, look};
pub use migrations::{Migration, storage_migrations};
pub use outlook::{Outlook, blockers, droppable, left_behind, older, together};
pub use verdict::{Looked, Seen};

use std::fmt;

use exuvia_write::Redacted;
use serde::Serialize;

/// What can hold a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Holds {
    /// Objects are stored at it, or may be.
    Bytes,
    /// managedFields name it: after the drop every server-side apply to such an object answers 500 (PITFALLS A7).
    Ownership,
    /// ownerReferences name it: after the drop such a dependent is never collected (PITFALLS A38).
    References,
    /// It is still asked for.
    Usage,
    /// A migration is under way, or its patrol has not looked yet.
    Migration,
    /// No other version is served: after the drop nothing can be read.
    Served,
}

impl Holds {
    /// A bounded name in `CamelCase`, for a status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bytes => "Bytes",
            Self::Ownership => "Ownership",
            Self::References => "References",
            Self::Usage => "Usage",
            Self::Migration => "Migration",
            Self::Served => "Served",
        }
    }
}

impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.as_str().to_lowercase())
    }
}

/// Something that holds a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// What it is.
    pub holds: Holds,
    /// One sentence: what was found, and what to do about it.
    pub message: Redacted,
    /// How many objects, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<u64>,
    /// Some of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<String>,
}

impl Holder {
    pub(crate) fn new(holds: Holds, message: impl Into<Redacted>) -> Self {
        Self {
            holds,
            message: message.into(),
            objects: None,
            examples: Vec::new(),
        }
    }

    /// On so many objects, such as these.
    pub(crate) fn on(self, objects: u64, examples: &[String]) -> Self {
        Self {
            objects: Some(objects),
            examples: examples.to_vec(),
            ..self
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.holds, self.message)
    }
}

/// Something that could not be seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unknown {
    /// What might hold the version.
    pub what: Holds,
    /// Why it is not known.
    pub why: Redacted,
    /// What would find out: a command, or a right to grant.
    pub command: String,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; to find out: {}", self.what, self.why, self.command)
    }
}

/// Something that was looked at and does not hold the version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Clear {
    /// What does not hold it.
    pub what: Holds,
    /// How that is known.
    pub because: String,
}

impl fmt::Display for Clear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.because)
    }
}

/// Whether a version may be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// Everything was looked at, and nothing holds it.
    Yes,
    /// Something holds it.
    No,
    /// Nothing was found that holds it, but not everything could be seen.
    NotKnown,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::NotKnown => "not known",
        })
    }
}

impl Answer {
    /// The answer to several questions at once: no if any answer says no, else not known if any is not known.
    pub fn of_all(answers: impl IntoIterator<Item = Self>) -> Self {
        answers.into_iter().fold(Self::Yes, |all, one| match (all, one) {
            (Self::No, _) | (_, Self::No) => Self::No,
            (Self::NotKnown, _) | (_, Self::NotKnown) => Self::NotKnown,
            (Self::Yes, Self::Yes) => Self::Yes,
        })
    }
}

/// Whether one version of one CRD may be dropped, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The CRD's name.
    pub crd: String,
    /// The version.
    pub version: String,
    /// The answer.
    pub answer: Answer,
    /// What holds it.
    pub holders: Vec<Holder>,
    /// What could not be seen.
    pub unknown: Vec<Unknown>,
    /// What was looked at and does not hold it.
    pub clear: Vec<Clear>,
}

impl Verdict {
    /// Says in the caller's words why ownerReferences were not looked at, if that was not asked for.
    pub fn without_references(&mut self, why: &'static str) {
        let unlooked = |unknown: &&mut Unknown| {
            unknown.what == Holds::References && unknown.why.starts_with(NOT_LOOKED_AT)
        };
        for unknown in self.unknown.iter_mut().filter(unlooked) {
            unknown.why = why.into();
        }
    }
}

/// How the reason begins if a look was not asked for.
const NOT_LOOKED_AT: &str = "not looked at";

impl fmt::Display for Verdict {
    /// One line with the answer, then one for each reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            crd,
            version,
            answer,
            holders,
            unknown,
            clear,
        } = self;
        match answer {
            Answer::Yes => writeln!(f, "yes: nothing holds {version} of {crd}")?,
            Answer::No => writeln!(f, "no: {version} of {crd} is held by")?,
            Answer::NotKnown => writeln!(f, "not known: {version} of {crd}, not everything could be seen")?,
        }
        holders.iter().try_for_each(|holder| writeln!(f, "  {holder}"))?;
        for Unknown { what, why, command } in unknown {
            writeln!(f, "  {what}: not known, {why}\n    to find out: {command}")?;
        }
        match answer {
            // What is fine matters only to a reader who is about to drop the version.
            Answer::Yes => clear.iter().try_for_each(|clear| writeln!(f, "  {clear}")),
            Answer::No | Answer::NotKnown => Ok(()),
        }
    }
}
