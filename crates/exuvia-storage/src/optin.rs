//! Who takes part: the opt-in label, the exclusion annotation, the configured groups.

use std::fmt;
use std::str::FromStr;

use crate::definition::Definition;

/// The label by which a CRD opts in.
pub const OPT_IN_LABEL: &str = "exuvia.dev/auto-migrate-storage-version";
/// The annotation by which a CRD is left out, with the reason as its value.
pub const EXCLUDE_ANNOTATION: &str = "exuvia.dev/exclude-storage-version-migration";

/// The label that opts in, and the value it must have: written as `key`, or as `key=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptInLabel {
    /// The label's key.
    pub key: String,
    /// Its value; `true` unless given.
    pub value: String,
}

impl Default for OptInLabel {
    fn default() -> Self {
        Self {
            key: OPT_IN_LABEL.to_owned(),
            value: "true".to_owned(),
        }
    }
}

/// A label that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no label; write key or key=value")]
pub struct NotALabel(String);

impl FromStr for OptInLabel {
    type Err = NotALabel;

    fn from_str(text: &str) -> Result<Self, NotALabel> {
        let (key, value) = text.split_once('=').unwrap_or((text, "true"));
        if key.is_empty() || key.contains(char::is_whitespace) {
            return Err(NotALabel(text.to_owned()));
        }
        Ok(Self {
            key: key.to_owned(),
            value: value.to_owned(),
        })
    }
}

impl fmt::Display for OptInLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

/// Which CRDs are to be migrated without being named.
#[derive(Clone, Debug, Default)]
pub struct OptIn {
    /// The label that they must have.
    pub label: OptInLabel,
    /// Groups that take part; empty: all.
    pub groups: Vec<String>,
}

impl OptIn {
    /// Whether the CRD takes part: labelled, in a group, and not excluded.
    pub fn includes(&self, definition: &Definition) -> bool {
        definition.labels.get(&self.label.key) == Some(&self.label.value)
            && is_in_groups(&definition.group, &self.groups)
            && excluded(definition).is_none()
    }
}

/// Whether a group is one of `groups` or below one. No groups at all stand for every group.
///
/// ```
/// use exuvia_storage::is_in_groups;
///
/// let groups = ["example.com".to_owned()];
/// assert!(is_in_groups("example.com", &groups) && is_in_groups("a.example.com", &groups));
/// assert!(!is_in_groups("badexample.com", &groups));
/// ```
pub fn is_in_groups(group: &str, groups: &[String]) -> bool {
    let below = |rest: &str| rest.is_empty() || rest.ends_with('.');
    groups.is_empty()
        || groups
            .iter()
            .any(|wanted| group.strip_suffix(wanted.as_str()).is_some_and(below))
}

/// The reason for which a CRD is left out, if it is. An exclusion without a reason is none, as for `lint`.
pub fn excluded(definition: &Definition) -> Option<&str> {
    let reason = definition.annotations.get(EXCLUDE_ANNOTATION)?.trim();
    Some(reason).filter(|reason| !reason.is_empty())
}
