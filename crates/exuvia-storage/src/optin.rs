//! Who takes part: the opt-in label, the exclusion annotation, the configured groups.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use exuvia_api::{EXCLUDE_ANNOTATION, OPT_IN_LABEL};

use crate::definition::Definition;

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

/// What is not a label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a valid label; write key or key=value")]
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
    /// Groups that take part; empty, or `*` among them: all.
    pub groups: Vec<String>,
    /// CRDs that take part; empty: all of the groups; otherwise these alone, whatever their group.
    pub crds: Vec<String>,
}

impl OptIn {
    /// Whether the CRD takes part: labelled, in a group or named, and not excluded.
    pub fn includes(&self, definition: &Definition) -> bool {
        self.takes(&definition.name, &definition.labels, &definition.annotations)
    }

    /// As [`includes`](Self::includes), from nothing but a CRD's metadata.
    pub fn takes(
        &self,
        name: &str,
        labels: &BTreeMap<String, String>,
        annotations: &BTreeMap<String, String>,
    ) -> bool {
        // A CRD's name is `<plural>.<group>`; the server sees to that.
        let group = name.split_once('.').map_or("", |(_, group)| group);
        let meant = if self.crds.is_empty() {
            is_in_groups(group, &self.groups)
        } else {
            self.crds.iter().any(|crd| crd == name)
        };
        // Without a reason, too: a switch that is off is off, and `lint` asks for the reason.
        let excluded = annotations.contains_key(EXCLUDE_ANNOTATION);
        meant && labels.get(&self.label.key) == Some(&self.label.value) && !excluded
    }

    /// Whether the CRD would take part, were it not [excluded](exclusion).
    pub fn would_include(&self, definition: &Definition) -> bool {
        self.takes(&definition.name, &definition.labels, &BTreeMap::new())
    }
}

/// Whether a group is one of `groups` or below one. No groups at all, and `*`, stand for every group.
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
            .any(|wanted| wanted == "*" || group.strip_suffix(wanted.as_str()).is_some_and(below))
}

/// Why a CRD is left out, in words for people, if it is: an exclusion without a reason is one, too.
pub fn exclusion(definition: &Definition) -> Option<&str> {
    let is_excluded = definition.annotations.contains_key(EXCLUDE_ANNOTATION);
    is_excluded.then(|| excluded(definition).unwrap_or("no reason is given"))
}

/// The reason for which a CRD is left out, if it is. An exclusion without a reason is not one, as for `lint`.
pub fn excluded(definition: &Definition) -> Option<&str> {
    reason(&definition.annotations)
}

fn reason(annotations: &BTreeMap<String, String>) -> Option<&str> {
    let reason = annotations.get(EXCLUDE_ANNOTATION)?.trim();
    Some(reason).filter(|reason| !reason.is_empty())
}
