//! Which CRDs take part: the opt-in label, the exclusion annotation, the configured groups.

use std::collections::BTreeMap;

use exuvia_api::{EXCLUDE_ANNOTATION, OptInLabel, is_in_groups};

use crate::definition::Definition;

/// Which CRDs are migrated without being named.
#[derive(Clone, Debug, Default)]
pub struct OptIn {
    /// The label that they must have.
    pub label: OptInLabel,
    /// Groups that take part; all groups if it is empty or contains `*`.
    pub groups: Vec<String>,
    /// CRDs that take part. If it is empty, all CRDs of the groups do; otherwise only these do, whatever their group.
    pub crds: Vec<String>,
}

impl OptIn {
    /// Whether the CRD takes part: labelled, in a group or named, and not excluded.
    pub fn includes(&self, definition: &Definition) -> bool {
        self.takes(&definition.name, &definition.labels, &definition.annotations)
    }

    /// Like [`includes`](Self::includes), from a CRD's metadata alone.
    pub fn takes(
        &self,
        name: &str,
        labels: &BTreeMap<String, String>,
        annotations: &BTreeMap<String, String>,
    ) -> bool {
        // A CRD's name is `<plural>.<group>`; the API server checks that.
        let group = name.split_once('.').map_or("", |(_, group)| group);
        let meant = if self.crds.is_empty() {
            is_in_groups(group, &self.groups)
        } else {
            self.crds.iter().any(|crd| crd == name)
        };
        // An exclusion without a reason counts as well; `lint` asks for the reason.
        let excluded = annotations.contains_key(EXCLUDE_ANNOTATION);
        meant && labels.get(&self.label.key) == Some(&self.label.value) && !excluded
    }

    /// Whether the CRD would take part if it were not [excluded](exclusion).
    pub fn would_include(&self, definition: &Definition) -> bool {
        self.takes(&definition.name, &definition.labels, &BTreeMap::new())
    }
}

/// Why a CRD is excluded, in words for people, if it is. An exclusion without a reason counts as well.
pub fn exclusion(definition: &Definition) -> Option<&str> {
    let is_excluded = definition.annotations.contains_key(EXCLUDE_ANNOTATION);
    is_excluded.then(|| excluded(definition).unwrap_or("no reason is given"))
}

/// The reason why a CRD is excluded. An exclusion without a reason does not count here, as in `lint`.
pub fn excluded(definition: &Definition) -> Option<&str> {
    reason(&definition.annotations)
}

fn reason(annotations: &BTreeMap<String, String>) -> Option<&str> {
    let reason = annotations.get(EXCLUDE_ANNOTATION)?.trim();
    Some(reason).filter(|reason| !reason.is_empty())
}
