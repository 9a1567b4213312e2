//! The label by which a CRD opts in to storage migration, and the groups that take part.

use std::fmt;
use std::str::FromStr;

use crate::OPT_IN_LABEL;

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

/// A text that is not a valid label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid label \"{0}\": {expected}", expected = Self::EXPECTED)]
pub struct InvalidLabel(String);

impl InvalidLabel {
    /// What a valid label is.
    pub const EXPECTED: &str = "expected key or key=value, such as example.com/migrate=true";
}

impl FromStr for OptInLabel {
    type Err = InvalidLabel;

    fn from_str(text: &str) -> Result<Self, InvalidLabel> {
        let (key, value) = text.split_once('=').unwrap_or((text, "true"));
        if key.is_empty() || key.contains(char::is_whitespace) {
            return Err(InvalidLabel(text.to_owned()));
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

/// Whether a group is one of `groups` or below one. No groups at all, and `*`, stand for every group.
///
/// ```
/// use exuvia_api::is_in_groups;
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
