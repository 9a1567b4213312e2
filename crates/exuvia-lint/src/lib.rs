//! Fails manifests in which a CRD is neither opted in to storage migration nor excluded with a reason.
//!
//! ```
//! use exuvia_lint::{Input, LintOptions, Outcome, lint};
//!
//! let bytes = b"apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
//!               metadata:\n  name: widgets.example.com\n".to_vec();
//! let report = lint(&[Input::Bytes { name: "crds.yaml".into(), bytes }], &LintOptions::default())?;
//! assert_eq!(report.outcome(), Outcome::Findings);
//! assert_eq!(report.findings[0].line, 4);
//! # Ok::<(), exuvia_lint::Error>(())
//! ```

mod document;
mod input;
mod located;
mod manifest;
mod report;
mod rule;
mod yaml;

use std::path::{Path, PathBuf};
use std::rc::Rc;

pub use input::Input;
pub use located::{DuplicateKey, Located, Place, Scalar, Segment, Stream, StreamPiece, TooLarge, streams};
pub use manifest::{Manifest, manifests};
pub use report::{Finding, LintReport, Note, Outcome, Reason};

use document::{Piece, mentions_crd};
use exuvia_api::{EXCLUDE_ANNOTATION, OptInLabel};
use rule::{Crd, Decision};
use yaml::{Document, Node};

/// What to look for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LintOptions {
    /// The label that opts in.
    pub opt_in: OptInLabel,
    /// The key of the annotation that excludes.
    pub exclusion: String,
    /// Looks at CRDs of these groups and of groups below them only; empty: at all.
    pub groups: Vec<String>,
}

impl Default for LintOptions {
    fn default() -> Self {
        Self {
            opt_in: OptInLabel::default(),
            exclusion: EXCLUDE_ANNOTATION.to_owned(),
            groups: Vec::new(),
        }
    }
}

/// Why nothing could be said.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A path that does not exist.
    #[error("invalid path \"{}\": it does not exist; expected a file, a directory, or - for standard input", path.display())]
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
    /// A CRD in a manifest that cannot be understood. Nothing of it is quoted but names: manifests may hold secrets.
    #[error("{place}: {why}")]
    Manifest {
        /// `file:line`, or `file:line:column`.
        place: String,
        /// What is wrong with it.
        why: String,
    },
}

impl Error {
    fn read(path: &Path, source: std::io::Error) -> Self {
        let path = path.to_owned();
        Self::Read { path, source }
    }
}

/// Looks at every CRD in the inputs, in order.
pub fn lint(inputs: &[Input], options: &LintOptions) -> Result<LintReport, Error> {
    let mut report = LintReport::default();
    let mut files = input::Files::default();
    for input in inputs {
        files.read(input, &mut |file, bytes| report.add_stream(file, bytes, options))?;
    }
    report.notes.append(&mut files.notes);
    Ok(report)
}

impl LintReport {
    fn add_stream(&mut self, file: &str, bytes: Vec<u8>, options: &LintOptions) {
        self.files += 1;
        let text = match document::decode(bytes) {
            Ok(text) => text,
            Err(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                let piece = Piece {
                    text: &text,
                    start: 0,
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
            "this is a template ({{ … }}) and not valid YAML".to_owned()
        } else {
            format!("this is not valid YAML: {why}")
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
                "correct it at this line".to_owned()
            },
        });
    }

    fn add_document(&mut self, file: &str, piece: &Piece<'_>, document: &Document, options: &LintOptions) {
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
            let duplicates = document
                .duplicates
                .iter()
                .filter(|duplicate| lines.contains(&duplicate.line));
            violations.extend(duplicates.map(rule::duplicate));
            self.findings
                .extend(violations.into_iter().map(|violation| Finding {
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
    let text = |node: &'_ Rc<Node>, key: &str| {
        node.get(key)
            .and_then(|entry| entry.value.text().map(str::to_owned))
    };
    let mut found = Vec::new();
    let mut pending = vec![(&document.root, false)];
    // Lists of aliases to lists multiply; without aliases no walk sees more nodes than there are.
    for _ in 0..=document.nodes {
        let Some((node, is_crd_by_place)) = pending.pop() else {
            break;
        };
        let kind = text(node, "kind");
        let api_version = text(node, "apiVersion");
        let ours = api_version
            .as_deref()
            .is_some_and(|version| version.starts_with("apiextensions.k8s.io/"));
        match kind.as_deref() {
            Some("CustomResourceDefinition") if ours => found.push(Crd::of(node)),
            None if is_crd_by_place => found.push(Crd::of(node)),
            Some(kind) if kind.ends_with("List") => {
                // The API's own list leaves out what its items are.
                let of_crds = kind == "CustomResourceDefinitionList";
                let items = node
                    .get("items")
                    .and_then(|items| items.value.list())
                    .unwrap_or_default();
                pending.extend(items.iter().rev().map(|item| (item, of_crds)));
            }
            _ => {}
        }
    }
    found
}
