//! What becomes of a CRD that gets a second served version, and loses it again: pure.

use exuvia_api::SECOND_VERSION_LABEL;
use kube::ResourceExt;
use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value, json};

use crate::route::resource;

/// After the name of the version that it is a copy of. Such a version is not preferred to any that people use.
const SUFFIX: &str = "exuvia";
/// etcd refuses more than 1.5 MiB, and a dry run does not notice (PITFALLS D29). The server adds metadata of its own.
const MAX_BYTES: usize = 1_400_000;

/// What the second version is called that is a copy of this one.
pub(super) fn name(version: &str) -> String {
    format!("{version}{SUFFIX}")
}

fn versions(crd: &DynamicObject) -> impl Iterator<Item = &Value> {
    crd.data["spec"]["versions"].as_array().into_iter().flatten()
}

fn version<'a>(crd: &'a DynamicObject, name: &str) -> Option<&'a Value> {
    versions(crd).find(|known| known["name"] == name)
}

/// Whether the CRD has the mark of this migration.
pub(super) fn is_marked(crd: &DynamicObject, migration_uid: &str) -> bool {
    crd.labels()
        .get(SECOND_VERSION_LABEL)
        .is_some_and(|of| of == migration_uid)
}

/// Whether the CRD serves the second version, and it is ours.
pub(super) fn is_added(crd: &DynamicObject, of: &str, migration_uid: &str) -> bool {
    let second = version(crd, &name(of));
    is_marked(crd, migration_uid) && second.is_some_and(|second| second["served"] == true)
}

/// Why the CRD cannot get a second version, and what to do about it.
pub(super) fn obstacle(crd: &DynamicObject, of: &str, migration_uid: &str) -> Option<String> {
    let (crd_name, second) = (crd.name_any(), name(of));
    let instead = "use mode FreezeAndCopy, which needs none";
    if crd.data["spec"]["conversion"]["strategy"] == "Webhook" {
        return Some(format!(
            "the CRD {crd_name} has a conversion webhook, which does not know a second version: {instead}"
        ));
    }
    if version(crd, &second).is_some() && !is_marked(crd, migration_uid) {
        return Some(format!(
            "the CRD {crd_name} has a version {second} that is not of this migration: remove it, or {instead}"
        ));
    }
    let Some(first) = version(crd, of) else {
        return Some(format!("the CRD {crd_name} does not have version {of}"));
    };
    let bytes = json!(crd).to_string().len() + first.to_string().len();
    if version(crd, &second).is_none() && bytes > MAX_BYTES {
        return Some(format!(
            "the CRD {crd_name} would be larger than etcd accepts (1.5 MiB) with a second version: {instead}"
        ));
    }
    None
}

/// Adds the second version: as the other one in every respect, but nothing is stored at it.
pub(super) fn add(crd: &mut DynamicObject, of: &str, migration_uid: &str) {
    let second = name(of);
    let Some(mut added) = version(crd, of).cloned() else {
        return;
    };
    added["name"] = second.as_str().into();
    added["served"] = true.into();
    added["storage"] = false.into();
    if let Some(versions) = crd.data["spec"]["versions"].as_array_mut() {
        match versions.iter_mut().find(|known| known["name"] == second.as_str()) {
            Some(known) => known["served"] = true.into(),
            None => versions.push(added),
        }
    }
    let label = (SECOND_VERSION_LABEL.to_owned(), migration_uid.to_owned());
    crd.labels_mut().extend([label]);
}

/// Takes the second version away, and our mark.
pub(super) fn remove(crd: &mut DynamicObject, of: &str, migration_uid: &str) {
    if !is_marked(crd, migration_uid) {
        return;
    }
    let second = name(of);
    if let Some(versions) = crd.data["spec"]["versions"].as_array_mut() {
        versions.retain(|known| known["name"] != second.as_str());
    }
    crd.labels_mut().remove(SECOND_VERSION_LABEL);
    if crd.labels().is_empty() {
        crd.metadata.labels = None;
    }
}

/// As which the CRD's objects are reached through the second version; `None`: it does not have it.
pub(super) fn served_as(crd: &DynamicObject, of: &str) -> Option<ApiResource> {
    let second = name(of);
    version(crd, &second).filter(|second| second["served"] == true)?;
    let spec = &crd.data["spec"];
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Some(resource(
        &text(&spec["group"])?,
        &second,
        &text(&spec["names"]["kind"])?,
        &text(&spec["names"]["plural"])?,
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const UID: &str = "5f6e7d8c-0b1a-4c2d-8e3f-9a0b1c2d3e4f";

    fn crd() -> DynamicObject {
        serde_json::from_value(json!({
            "metadata": {"name": "pools.example.com", "labels": {"app": "pools"}},
            "spec": {
                "group": "example.com", "scope": "Cluster", "names": {"plural": "pools", "kind": "Pool"},
                "versions": [
                    {"name": "v3", "served": true, "storage": true, "subresources": {"status": {}},
                        "schema": {"openAPIV3Schema": {"type": "object"}}},
                    {"name": "v2", "served": false, "storage": false},
                ],
            },
            "status": {"storedVersions": ["v3"]},
        }))
        .unwrap()
    }

    #[test]
    fn what_is_added_serves_the_same_and_stores_nothing_and_goes_without_a_trace() {
        let mut changed = crd();
        add(&mut changed, "v3", UID);
        assert!(is_added(&changed, "v3", UID));
        let mut expected = version(&changed, "v3").unwrap().clone();
        (expected["name"], expected["storage"]) = (json!("v3exuvia"), json!(false));
        assert_eq!(version(&changed, "v3exuvia"), Some(&expected));
        let again = changed.clone();
        add(&mut changed, "v3", UID);
        assert_eq!(changed, again, "once is enough");
        let kind = served_as(&changed, "v3").unwrap();
        assert_eq!(kind.api_version, "example.com/v3exuvia");
        remove(&mut changed, "v3", UID);
        assert_eq!(changed, crd());
        assert_eq!(served_as(&changed, "v3"), None);
    }

    #[test]
    fn what_is_not_ours_stays() {
        let mut foreign = crd();
        add(&mut foreign, "v3", "another");
        let before = foreign.clone();
        remove(&mut foreign, "v3", UID);
        assert_eq!(foreign, before);
    }

    #[test]
    fn what_stands_in_the_way_is_named() {
        assert_eq!(obstacle(&crd(), "v3", UID), None);
        let mut converted = crd();
        converted.data["spec"]["conversion"] = json!({"strategy": "Webhook"});
        let mut foreign = crd();
        add(&mut foreign, "v3", "another");
        let mut large = crd();
        large.data["spec"]["versions"][0]["schema"] = "x".repeat(800_000).into();
        for (crd, expected) in [
            (converted, "has a conversion webhook"),
            (foreign, "has a version v3exuvia that is not of this migration"),
            (large, "larger than etcd accepts"),
        ] {
            let why = obstacle(&crd, "v3", UID).unwrap();
            assert!(why.contains("the CRD pools.example.com"), "{why}");
            assert!(why.contains(expected), "{why}");
        }
    }
}
