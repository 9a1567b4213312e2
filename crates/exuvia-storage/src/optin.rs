//! Who takes part: the opt-in label, the exclusion annotation, the configured groups.

use crate::definition::Definition;

/// The label by which a CRD opts in.
pub const OPT_IN_LABEL: &str = "exuvia.dev/auto-migrate-storage-version";
/// The annotation by which a CRD is left out, with the reason as its value.
pub const EXCLUDE_ANNOTATION: &str = "exuvia.dev/exclude-storage-version-migration";

/// Which CRDs are to be migrated without being named.
#[derive(Clone, Debug)]
pub struct OptIn {
    /// The label's key.
    pub label: String,
    /// The label's value.
    pub value: String,
    /// Groups that take part; empty: all.
    pub groups: Vec<String>,
}

impl Default for OptIn {
    fn default() -> Self {
        Self {
            label: OPT_IN_LABEL.into(),
            value: "true".into(),
            groups: Vec::new(),
        }
    }
}

impl OptIn {
    /// Reads `key` or `key=value`.
    #[must_use]
    pub fn with_label(mut self, label: &str) -> Self {
        let (key, value) = label.split_once('=').unwrap_or((label, "true"));
        (self.label, self.value) = (key.to_owned(), value.to_owned());
        self
    }

    /// Whether the CRD takes part: labelled, in a group, and not excluded.
    pub fn includes(&self, definition: &Definition) -> bool {
        definition.labels.get(&self.label) == Some(&self.value)
            && self.has_group(&definition.group)
            && excluded(definition).is_none()
    }

    /// `example.com` stands for itself and for `a.example.com`, not for `badexample.com`.
    ///
    /// ```
    /// use exuvia_storage::OptIn;
    ///
    /// let opt_in = OptIn { groups: vec!["example.com".into()], ..OptIn::default() };
    /// assert!(opt_in.has_group("example.com") && opt_in.has_group("a.example.com"));
    /// assert!(!opt_in.has_group("badexample.com"));
    /// ```
    pub fn has_group(&self, group: &str) -> bool {
        self.groups.is_empty()
            || self.groups.iter().any(|wanted| {
                group == wanted
                    || group
                        .strip_suffix(wanted.as_str())
                        .is_some_and(|rest| rest.ends_with('.'))
            })
    }
}

/// The reason for which a CRD is left out, if it is.
pub fn excluded(definition: &Definition) -> Option<&str> {
    definition.annotations.get(EXCLUDE_ANNOTATION).map(String::as_str)
}
