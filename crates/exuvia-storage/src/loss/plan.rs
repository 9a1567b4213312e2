//! Which versions must be looked at, and which cannot be. Pure.

use exuvia_write::{Name, redacted};

use super::{Unseen, certainly_keeps};
use crate::definition::{Definition, Version};

/// What has to be done to know what a rewrite would lose.
#[derive(Debug, Default)]
pub(crate) struct Plan<'a> {
    /// Versions whose view is to be compared with that of the storage version.
    pub(crate) look: Vec<&'a Version>,
    /// What cannot be compared.
    pub(crate) unseen: Vec<Unseen>,
}

impl<'a> Plan<'a> {
    /// Every version of the CRD counts, whether `storedVersions` lists it or not: anybody can trim that (PITFALLS A39).
    pub(crate) fn of(definition: &'a Definition) -> Self {
        let mut plan = Self::default();
        let Some(storage) = definition.version(&definition.crd.storage) else {
            return plan;
        };
        let endpoint = definition.endpoint().and_then(|name| definition.version(name));
        let keeps = |old: &Version, new: &Version| {
            old.name == new.name
                || (!definition.preserves_unknown_fields && certainly_keeps(&old.schema, &new.schema))
        };
        for old in &definition.versions {
            // A rewrite reads through the endpoint and stores through the storage version; both prune (PITFALLS A34).
            let is_certain = keeps(old, storage) && endpoint.is_none_or(|endpoint| keeps(old, endpoint));
            if is_certain {
                continue;
            }
            match (old.served, storage.served) {
                (true, true) => plan.look.push(old),
                (false, true) => plan.unseen.push(unseen(old, &[old])),
                (true, false) => plan.unseen.push(unseen(old, &[storage])),
                (false, false) if old.name == storage.name => plan.unseen.push(unseen(old, &[storage])),
                (false, false) => plan.unseen.push(unseen(old, &[old, storage])),
            }
        }
        plan
    }
}

fn unseen(old: &Version, unserved: &[&Version]) -> Unseen {
    let names: Vec<&str> = unserved.iter().map(|version| version.name.as_str()).collect();
    let (names, are) = (names.join(" and "), if names.len() > 1 { "are" } else { "is" });
    Unseen {
        version: old.name.clone(),
        why: redacted!(
            "what objects stored at {} would lose cannot be seen, because {} {} not served: serve {} while migrating",
            Name(&old.name),
            Name(&names),
            are,
            if unserved.len() > 1 { "both" } else { "it" },
        ),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Versions by name, whether they are served, and the names of their fields; the last one is the storage version.
    fn definition(versions: &[(&str, bool, &[&str])]) -> Definition {
        let storage = versions.last().unwrap().0;
        let version = |(name, served, fields): &(&str, bool, &[&str])| {
            let properties: serde_json::Map<String, Value> = fields
                .iter()
                .map(|field| ((*field).to_owned(), json!({"type": "string"})))
                .collect();
            json!({"name": name, "served": served, "storage": *name == storage,
                   "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}}})
        };
        let crd = json!({
            "metadata": {"name": "widgets.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
                "versions": versions.iter().map(version).collect::<Vec<_>>(),
            },
        });
        Definition::read(&serde_json::from_value(crd).unwrap())
    }

    fn planned(definition: &Definition) -> (Vec<&str>, Vec<&str>) {
        let plan = Plan::of(definition);
        let look = plan.look.iter().map(|version| version.name.as_str()).collect();
        let unseen = plan.unseen.iter().map(|unseen| unseen.version.as_str());
        let order: Vec<&str> = definition
            .versions
            .iter()
            .map(|version| version.name.as_str())
            .collect();
        let unseen: Vec<String> = unseen.map(str::to_owned).collect();
        (
            look,
            order
                .into_iter()
                .filter(|name| unseen.iter().any(|seen| seen == name))
                .collect(),
        )
    }

    #[test]
    fn only_what_is_not_certain_is_looked_at_and_what_is_not_served_is_said() {
        let versions = definition(&[
            ("v1alpha1", false, &["a", "b"]),
            ("v1alpha2", false, &["a"]),
            ("v1beta1", true, &["a", "b"]),
            ("v1beta2", true, &["a"]),
            ("v1", true, &["a", "c"]),
        ]);
        assert_eq!(planned(&versions), (vec!["v1beta1"], vec!["v1alpha1"]));
        let why = &Plan::of(&versions).unseen[0].why;
        assert!(why.contains("v1alpha1 is not served: serve it"), "{why}");
    }

    #[test]
    fn an_unserved_storage_version_is_at_risk_itself() {
        let versions = definition(&[("v1alpha1", true, &["a"]), ("v1", false, &["a", "c"])]);
        assert_eq!(planned(&versions), (vec![], vec!["v1"]));
        let why = &Plan::of(&versions).unseen[0].why;
        assert!(
            why.contains("stored at v1 ") && why.contains("v1 is not served"),
            "{why}"
        );
        let equal = definition(&[("v1alpha1", true, &["a"]), ("v1", false, &["a"])]);
        assert_eq!(planned(&equal), (vec![], vec![]));
    }

    #[test]
    fn a_crd_that_preserves_unknown_fields_is_always_looked_at() {
        let mut versions = definition(&[("v1alpha1", true, &["a"]), ("v1", true, &["a"])]);
        assert_eq!(planned(&versions).0.len(), 0);
        versions.preserves_unknown_fields = true;
        assert_eq!(planned(&versions).0, ["v1alpha1"]);
    }
}
