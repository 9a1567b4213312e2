//! Fails manifests in which a CRD is neither opted in to storage migration nor excluded with a reason.
//!
//! ```
//! use exuvia_storage::lint::{Input, Options, Outcome, lint};
//!
//! let bytes = b"apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
//!               metadata:\n  name: widgets.example.com\n".to_vec();
//! let report = lint(&[Input::Bytes { name: "crds.yaml".into(), bytes }], &Options::default())?;
//! assert_eq!(report.outcome(), Outcome::Findings);
//! assert_eq!(report.findings[0].line, 4);
//! # Ok::<(), exuvia_storage::lint::Error>(())
//! ```

mod document;
mod input;
mod rule;
mod yaml;

use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;

use serde::Serialize;

pub use input::Input;

use document::{Piece, mentions_crd};
use rule::{Crd, Decision};
use yaml::{Document, Node};

/// The label that opts a CRD in, unless another is configured.
pub const OPT_IN_LABEL: &str = "exuvia.dev/auto-migrate-storage-version";
/// The annotation that excludes a CRD and says why, unless another is configured.
pub const EXCLUSION_ANNOTATION: &str = "exuvia.dev/exclude-storage-version-migration";

/// The label that opts in, and the value it must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptIn {
    /// The label's key.
    pub key: String,
    /// Its value; `true` unless given.
    pub value: String,
}

impl Default for OptIn {
    fn default() -> Self {
        Self {
            key: OPT_IN_LABEL.to_owned(),
            value: "true".to_owned(),
        }
    }
}

impl FromStr for OptIn {
    type Err = Error;

    /// `key` or `key=value`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let (key, value) = text.split_once('=').unwrap_or((text, "true"));
        if key.is_empty() || key.contains(char::is_whitespace) {
            return Err(Error::Label { text: text.to_owned() });
        }
        Ok(Self {
            key: key.to_owned(),
            value: value.to_owned(),
        })
    }
}

impl fmt::Display for OptIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

/// What to look for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The label that opts in.
    pub opt_in: OptIn,
    /// The key of the annotation that excludes.
    pub exclusion: String,
    /// Looks at CRDs of these groups and of groups below them only; empty: at all.
    pub groups: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            opt_in: OptIn::default(),
            exclusion: EXCLUSION_ANNOTATION.to_owned(),
            groups: Vec::new(),
        }
    }
}

/// Why nothing could be said.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A path that does not exist.
    #[error("{} does not exist; name a file, a directory, or - for standard input", path.display())]
    NoSuchPath {
        /// The path.
        path: PathBuf,
    },
    /// A file or directory that cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A label that is none.
    #[error("\"{text}\" is no label; write key or key=value")]
    Label {
        /// What was given.
        text: String,
    },
}

impl Error {
    fn read(path: &Path, source: std::io::Error) -> Self {
        let path = path.to_owned();
        Self::Read { path, source }
    }
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
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
    /// Documents that are no YAML and do not seem to hold a CRD; each has a note.
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

impl Report {
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
    /// Text that seems to hold a CRD and is no YAML.
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

/// Looks at every CRD in the inputs, in order.
pub fn lint(inputs: &[Input], options: &Options) -> Result<Report, Error> {
    let mut report = Report::default();
    let mut files = input::Files::default();
    for input in inputs {
        files.read(input, &mut |file, bytes| report.add_stream(file, bytes, options))?;
    }
    report.notes.append(&mut files.notes);
    Ok(report)
}

impl Report {
    fn add_stream(&mut self, file: &str, bytes: Vec<u8>, options: &Options) {
        self.files += 1;
        let text = match document::decode(bytes) {
            Ok(text) => text,
            Err(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                let piece = Piece {
                    text: &text,
                    line: 1,
                    source: None,
                };
                return self.add_unparsable(file, &piece, 1, "it is not text in UTF-8 or UTF-16");
            }
        };
        for piece in document::pieces(&text) {
            let (documents, malformed) = yaml::parse(piece.text, piece.line);
            for document in documents {
                self.add_document(file, &piece, &document, options);
            }
            if let Some(malformed) = malformed {
                self.add_unparsable(file, &piece, malformed.line, &malformed.message);
            }
        }
    }

    fn add_unparsable(&mut self, file: &str, piece: &Piece<'_>, line: usize, why: &str) {
        let template = piece.text.contains("{{");
        let what = if template {
            "this is a Helm template and no YAML".to_owned()
        } else {
            format!("this is no YAML: {why}")
        };
        if !mentions_crd(piece.text) {
            self.unparsable += 1;
            return self.notes.push(Note {
                file: file.to_owned(),
                line,
                message: what,
            });
        }
        self.findings.push(Finding {
            file: file.to_owned(),
            line,
            source: piece.source.map(str::to_owned),
            crd: None,
            reason: Reason::Unparsable,
            message: format!("{what}, but it seems to hold a CRD"),
            fix: if template {
                "lint what it renders to: helm template … | exuvia storage lint -".to_owned()
            } else {
                "make it YAML that kubectl takes".to_owned()
            },
        });
    }

    fn add_document(&mut self, file: &str, piece: &Piece<'_>, document: &Document, options: &Options) {
        for crd in crds(document) {
            if !crd.is_in(&options.groups) {
                self.other_groups += 1;
                continue;
            }
            self.checked += 1;
            let (decision, mut violations) = crd.check(options);
            match decision {
                Decision::OptedIn => self.opted_in += 1,
                Decision::Excluded => self.excluded += 1,
                Decision::None => {}
            }
            let lines = crd.node.line..=crd.node.last_line;
            let duplicates = document.duplicates.iter().filter(|duplicate| lines.contains(&duplicate.line));
            violations.extend(duplicates.map(rule::duplicate));
            self.findings.extend(violations.into_iter().map(|violation| Finding {
                file: file.to_owned(),
                line: violation.line,
                source: piece.source.map(str::to_owned),
                crd: crd.name.map(str::to_owned),
                reason: violation.reason,
                message: violation.message,
                fix: violation.fix,
            }));
        }
    }
}

/// The CRDs of a document: itself, or the items of a list, of a list in a list and so on.
fn crds(document: &Document) -> Vec<Crd<'_>> {
    let text = |node: &'_ Rc<Node>, key: &str| node.get(key).and_then(|entry| entry.value.text().map(str::to_owned));
    let mut found = Vec::new();
    let mut pending = vec![(&document.root, false)];
    // Lists of aliases to lists multiply; without aliases no walk sees more nodes than there are.
    for _ in 0..=document.nodes {
        let Some((node, is_crd_by_place)) = pending.pop() else { break };
        let kind = text(node, "kind");
        let api_version = text(node, "apiVersion");
        let ours = api_version.as_deref().is_some_and(|version| version.starts_with("apiextensions.k8s.io/"));
        match kind.as_deref() {
            Some("CustomResourceDefinition") if ours => found.push(Crd::of(node)),
            None if is_crd_by_place => found.push(Crd::of(node)),
            Some(kind) if kind.ends_with("List") => {
                // The API's own list leaves out what its items are.
                let of_crds = kind == "CustomResourceDefinitionList";
                let items = node.get("items").and_then(|items| items.value.list()).unwrap_or_default();
                pending.extend(items.iter().rev().map(|item| (item, of_crds)));
            }
            _ => {}
        }
    }
    found
}
