//! The rule itself: a CRD says that it wants to be migrated, or that it does not and why.

use exuvia_api::is_in_groups;

use super::yaml::{Content, Duplicate, Entry, Node};
use super::{LintOptions, Reason};

/// What a CRD says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    OptedIn,
    Excluded,
    None,
}

/// What is wrong with a CRD, and where.
#[derive(Debug)]
pub(super) struct Violation {
    pub(super) line: usize,
    pub(super) reason: Reason,
    pub(super) message: String,
    pub(super) fix: String,
}

/// A CRD as it stands in a document.
pub(super) struct Crd<'a> {
    pub(super) node: &'a Node,
    /// Where its name stands, or the next best place.
    pub(super) line: usize,
    pub(super) name: Option<&'a str>,
    pub(super) group: Option<&'a str>,
}

impl<'a> Crd<'a> {
    pub(super) fn of(node: &'a Node) -> Self {
        let metadata = node.get("metadata");
        let name = metadata.and_then(|metadata| metadata.value.get("name"));
        let name_text = name.and_then(|name| name.value.text());
        let group = node.get("spec").and_then(|spec| spec.value.get("group"));
        Self {
            node,
            line: name.or(metadata).map_or(node.line, |entry| entry.line),
            name: name_text,
            group: group
                .and_then(|group| group.value.text())
                .or_else(|| name_text?.split_once('.').map(|(_, group)| group)),
        }
    }

    /// Whether its group is one of `groups` or below one; a CRD whose group is unknown is.
    pub(super) fn is_in(&self, groups: &[String]) -> bool {
        self.group.is_none_or(|own| is_in_groups(own, groups))
    }

    /// What it says, and what is wrong with how it says it.
    pub(super) fn check(&self, options: &LintOptions) -> (Decision, Vec<Violation>) {
        let label = self.metadata("labels", &options.opt_in.key);
        let annotation = self.metadata("annotations", &options.exclusion);
        let mut violations = Vec::new();
        let opted_in = label.is_some_and(|entry| match check_label(entry, options) {
            Ok(()) => true,
            Err(violation) => {
                violations.push(violation);
                false
            }
        });
        let excluded = annotation.is_some_and(|entry| match check_reason(entry, options) {
            Ok(()) => true,
            Err(violation) => {
                violations.push(violation);
                false
            }
        });
        if let Some(annotation) = annotation.filter(|_| opted_in) {
            violations.push(Violation {
                line: annotation.line,
                reason: Reason::Contradiction,
                message: format!(
                    "it has both the label {} and the annotation {}",
                    options.opt_in, options.exclusion
                ),
                fix: "take one of them out".to_owned(),
            });
        }
        if label.is_none() && annotation.is_none() {
            violations.push(Violation {
                line: self.line,
                reason: Reason::Undecided,
                message: "it is neither opted in to storage migration nor excluded from it".to_owned(),
                fix: format!(
                    "add the label {}: \"{}\", or the annotation {}: \"<why not>\"",
                    options.opt_in.key, options.opt_in.value, options.exclusion
                ),
            });
        }
        let decision = match (violations.is_empty(), opted_in, excluded) {
            (true, true, _) => Decision::OptedIn,
            (true, _, true) => Decision::Excluded,
            _ => Decision::None,
        };
        (decision, violations)
    }

    fn metadata(&self, map: &str, key: &str) -> Option<&'a Entry> {
        self.node.get("metadata")?.value.get(map)?.value.get(key)
    }
}

/// Which of the two counts depends on who reads it; a strict API server refuses it.
pub(super) fn duplicate(duplicate: &Duplicate) -> Violation {
    Violation {
        line: duplicate.line,
        reason: Reason::DuplicateKey,
        message: format!(
            "the key {} stands twice, first in line {}",
            shown(&duplicate.key),
            duplicate.first
        ),
        fix: "take one of them out".to_owned(),
    }
}

fn check_label(entry: &Entry, options: &LintOptions) -> Result<(), Violation> {
    let (key, wanted) = (&options.opt_in.key, &options.opt_in.value);
    let text = string(entry, &format!("label {key}"), wanted)?;
    if text == wanted {
        return Ok(());
    }
    Err(Violation {
        line: entry.line,
        reason: Reason::WrongLabelValue,
        message: format!("its label {key} is \"{}\", which opts in to nothing", shown(text)),
        fix: format!(
            "set it to \"{wanted}\", or take it out and add the annotation {}: \"<why not>\"",
            options.exclusion
        ),
    })
}

fn check_reason(entry: &Entry, options: &LintOptions) -> Result<(), Violation> {
    let key = &options.exclusion;
    let empty = |text: &str| text.trim().is_empty();
    // A key with nothing after it is a null to YAML, and an empty reason to its author.
    if !entry.value.text().is_some_and(empty)
        && !empty(string(entry, &format!("annotation {key}"), "<why not>")?)
    {
        return Ok(());
    }
    Err(Violation {
        line: entry.line,
        reason: Reason::EmptyReason,
        message: format!("its annotation {key} gives no reason"),
        fix: "write down why this CRD is not to be migrated".to_owned(),
    })
}

/// The API server refuses a label or annotation that is not a string.
fn string<'a>(entry: &'a Entry, what: &str, example: &str) -> Result<&'a str, Violation> {
    let found = match &entry.value.content {
        Content::Text {
            text,
            is_string: true,
            ..
        } => return Ok(text),
        Content::Text { text, .. } if text.is_empty() => "null".to_owned(),
        Content::Text { text, .. } => format!("{} without quotes", shown(text)),
        Content::Map(_) => "a mapping".to_owned(),
        Content::List(_) => "a list".to_owned(),
    };
    Err(Violation {
        line: entry.line,
        reason: Reason::NotAString,
        message: format!("its {what} is {found}, which the API server does not take for a string"),
        fix: format!("write \"{example}\", in quotes"),
    })
}

/// A value as part of one line.
fn shown(text: &str) -> String {
    const LONGEST: usize = 80;
    let mut shown: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}
