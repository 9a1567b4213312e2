//! What a clone is: the target CRD with the same schemas, under names that nobody types by accident.

use exuvia_api::DATASTORE_LABEL;
use kube::ResourceExt;
use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value, json};

use crate::route::resource;

/// On a clone: uid and generation of the CRD that it is a clone of.
const CLONE_OF_ANNOTATION: &str = "exuvia.dev/clone-of";
/// In front of plural and singular. Under its own plural a clone would be what `kubectl get` shows, as its group may come
/// first.
const PREFIX: &str = "preflight-";
/// A plural is a DNS label.
const MAX_LABEL: usize = 63;

pub(in crate::route) fn crds() -> ApiResource {
    resource(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    )
}

/// The scratch group: the beginning of the migration's uid, which is enough among the migrations of one cluster.
pub(super) fn group(migration_uid: &str) -> String {
    let digits = migration_uid.chars().filter(char::is_ascii_alphanumeric);
    let short: String = digits.take(8).collect();
    format!("{}.preflight.exuvia.dev", short.to_ascii_lowercase())
}

/// Whether a CRD of this name is in the group.
pub(super) fn is_in(crd: &str, group: &str) -> bool {
    crd.split_once('.').is_some_and(|(_, of)| of == group)
}

/// A plural or singular as the clone has it.
pub(super) fn renamed(name: &str) -> String {
    let renamed = format!("{PREFIX}{name}");
    if renamed.len() <= MAX_LABEL {
        return renamed;
    }
    let digest = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
    let hash = digest.as_ref().iter().take(4);
    let hash = hash.fold(0_u32, |hash, byte| hash << 8 | u32::from(*byte));
    let hash = format!("{hash:08x}");
    let kept: String = renamed.chars().take(MAX_LABEL - hash.len() - 1).collect();
    format!("{kept}-{hash}")
}

/// Whether the CRD serves this version.
pub(super) fn serves(crd: &DynamicObject, version: &str) -> bool {
    let versions = crd.data["spec"]["versions"].as_array();
    let mut versions = versions.into_iter().flatten();
    versions.any(|known| known["name"] == version && known["served"] == true)
}

/// The clone of a CRD. Schemas with their rules and defaults, scope and versions are as they are. The status is a part of the
/// object: a create drops that of a subresource before it looks at it, so nothing could be tried. A webhook for conversion is
/// not asked, and short names and categories are left to the CRD.
pub(super) fn clone_of(crd: &DynamicObject, group: &str, migration_uid: &str) -> DynamicObject {
    let mut spec = crd.data["spec"].clone();
    let plural = renamed(spec["names"]["plural"].as_str().unwrap_or_default());
    spec["group"] = group.into();
    if let Some(members) = spec.as_object_mut() {
        members.remove("conversion");
    }
    for version in spec["versions"].as_array_mut().into_iter().flatten() {
        if let Some(version) = version.as_object_mut() {
            version.remove("subresources");
        }
    }
    if let Some(names) = spec["names"].as_object_mut() {
        names.remove("shortNames");
        names.remove("categories");
        names.insert("plural".to_owned(), plural.as_str().into());
        if let Some(singular) = names.get("singular").and_then(Value::as_str) {
            let singular = renamed(singular);
            names.insert("singular".to_owned(), singular.into());
        }
    }
    let mut clone = DynamicObject::new(&format!("{plural}.{group}"), &crds()).data(json!({"spec": spec}));
    let stamp = format!(
        "{}/{}",
        crd.uid().unwrap_or_default(),
        crd.metadata.generation.unwrap_or_default()
    );
    clone
        .labels_mut()
        .insert(DATASTORE_LABEL.to_owned(), migration_uid.to_owned());
    clone
        .annotations_mut()
        .insert(CLONE_OF_ANNOTATION.to_owned(), stamp);
    clone
}

/// Whether a clone that was found is what is wanted.
pub(super) fn is_current(found: &DynamicObject, wanted: &DynamicObject) -> bool {
    let stamp = |clone: &DynamicObject| clone.annotations().get(CLONE_OF_ANNOTATION).cloned();
    found.metadata.deletion_timestamp.is_none() && stamp(found) == stamp(wanted)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const UID: &str = "5f6e7d8c-0b1a-4c2d-8e3f-9a0b1c2d3e4f";

    fn target() -> DynamicObject {
        serde_json::from_value(json!({
            "metadata": {
                "name": "pools.example.com", "uid": "u", "generation": 4,
                "annotations": {"api-approved.kubernetes.io": "https://example.com"},
            },
            "spec": {
                "group": "example.com", "scope": "Cluster",
                "names": {"plural": "pools", "singular": "pool", "kind": "Pool", "listKind": "PoolList",
                    "shortNames": ["po"], "categories": ["all"]},
                "conversion": {"strategy": "Webhook", "webhook": {}},
                "versions": [
                    {"name": "v3", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}},
                    {"name": "v2", "served": false, "storage": false},
                ],
            },
            "status": {"storedVersions": ["v3"]},
        }))
        .unwrap()
    }

    #[test]
    fn a_clone_keeps_what_decides_about_objects_and_nothing_that_people_type() {
        let clone = json!(clone_of(&target(), &group(UID), UID));
        assert_eq!(
            clone,
            json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {
                    "name": "preflight-pools.5f6e7d8c.preflight.exuvia.dev",
                    "labels": {DATASTORE_LABEL: UID},
                    "annotations": {CLONE_OF_ANNOTATION: "u/4"},
                },
                "spec": {
                    "group": "5f6e7d8c.preflight.exuvia.dev", "scope": "Cluster",
                    "names": {"plural": "preflight-pools", "singular": "preflight-pool", "kind": "Pool", "listKind": "PoolList"},
                    "versions": target().data["spec"]["versions"],
                },
            })
        );
    }

    #[test]
    fn only_served_versions_can_be_tried() {
        assert!(serves(&target(), "v3"));
        assert!(!serves(&target(), "v2"));
        assert!(!serves(&target(), "v1"));
    }

    #[test]
    fn a_clone_of_another_generation_is_made_again() {
        let wanted = clone_of(&target(), &group(UID), UID);
        assert!(is_current(&wanted, &wanted));
        let mut changed = target();
        changed.metadata.generation = Some(5);
        assert!(!is_current(&wanted, &clone_of(&changed, &group(UID), UID)));
    }

    #[test]
    fn only_crds_of_the_scratch_group_are_clones() {
        assert!(is_in(
            "preflight-pools.5f6e7d8c.preflight.exuvia.dev",
            &group(UID)
        ));
        assert!(!is_in("pools.example.com", &group(UID)));
        assert!(!is_in("a.b.5f6e7d8c.preflight.exuvia.dev", &group(UID)));
    }

    #[test]
    fn long_names_stay_labels_and_stay_apart() {
        let long = "a".repeat(62);
        let longer = "a".repeat(63);
        assert!(renamed(&long).len() <= MAX_LABEL);
        assert_ne!(renamed(&long), renamed(&longer));
        assert_eq!(renamed("pools"), "preflight-pools");
    }
}
