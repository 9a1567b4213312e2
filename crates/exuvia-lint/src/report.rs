//! What a lint run found, ready to be printed or serialised.

use std::fmt;

use serde::Serialize;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LintReport {
    /// Files and streams that were read.
    pub files: usize,
    /// CRDs that were looked at.
    pub checked: usize,
    /// Those of them that are opted in.
    pub opted_in: usize,
    /// Those of them that are excluded with a reason.
    pub excluded: usize,
    /// CRDs of other groups, which were not looked at.
    pub other_groups: usize,
    /// Documents that are not YAML and do not seem to hold a CRD; each has a note.
    pub unparsable: usize,
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// What was left out and is probably all right.
    pub notes: Vec<Note>,
}

/// What a report comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Outcome {
    /// Every CRD is opted in or excluded.
    Clean,
    /// Something is wrong.
    Findings,
    /// There was no CRD at all: most likely the path is wrong.
    NoCrds,
    /// There were CRDs, none of them in the groups asked for: most likely a group is wrong.
    NoCrdsInGroups,
}

impl LintReport {
    /// What it comes to; only [`Outcome::Clean`] is a success.
    pub fn outcome(&self) -> Outcome {
        match (self.findings.is_empty(), self.checked, self.other_groups) {
            (false, ..) => Outcome::Findings,
            (true, 0, 0) => Outcome::NoCrds,
            (true, 0, _) => Outcome::NoCrdsInGroups,
            (true, ..) => Outcome::Clean,
        }
    }
}

/// Something wrong, with its place and its cure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The file, or `<stdin>`.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The chart's file that this was rendered from, where Helm says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The CRD's name, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crd: Option<String>,
    /// What kind of wrong.
    pub reason: Reason,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub fix: String,
}

/// `file:line: crd: what is wrong; what to do`.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.file, self.line)?;
        if let Some(source) = &self.source {
            write!(f, "({source}) ")?;
        }
        if let Some(crd) = &self.crd {
            write!(f, "{crd}: ")?;
        }
        write!(f, "{}; {}", self.message, self.fix)
    }
}

/// What kind of wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum Reason {
    /// Neither label nor annotation.
    Undecided,
    /// Label and annotation at once.
    Contradiction,
    /// The annotation without a reason.
    EmptyReason,
    /// The label with a value that does not opt in.
    WrongLabelValue,
    /// A label or annotation that is a boolean, a number, a null or a collection.
    NotAString,
    /// A key that stands twice in one mapping of the CRD.
    DuplicateKey,
    /// Text that seems to hold a CRD and is not YAML.
    Unparsable,
}

/// Something that was left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// The file, or `<stdin>`.
    pub file: String,
    /// The line, counted from 1; 0 if it is about the whole file.
    pub line: usize,
    /// What, and why.
    pub message: String,
}

/// `file:line: message`.
impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.message),
            line => write!(f, "{}:{line}: {}", self.file, self.message),
        }
    }
}
