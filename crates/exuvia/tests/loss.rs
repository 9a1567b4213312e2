//! `exuvia storage migrate` tells what a rewrite does to the content, before it is done and after.

#![allow(clippy::disallowed_methods)] // tests set up their world
#![allow(clippy::unwrap_used)] // a test may panic

mod binary;

use exuvia_testenv::{ControlPlane, Widgets};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::binary::migrate;

#[tokio::test]
async fn what_is_lost_and_what_is_added_is_said_before_and_after() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("said.example.com");
    let mut crd = widgets.crd("v1alpha1");
    for (version, field, schema) in [
        (0, "legacy", json!({"type": "string"})),
        (1, "interval", json!({"type": "string", "default": "10m"})),
    ] {
        crd["spec"]["versions"][version]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
            [field] = schema;
    }
    widgets.install_crd(&client, crd).await.unwrap();
    widgets.create(&client, "v1alpha1", 3).await.unwrap();
    let legacy = Patch::Merge(json!({"spec": {"legacy": "precious"}}));
    let api = widgets.api(&client, "v1alpha1");
    api.patch("widget-0001", &PatchParams::default(), &legacy)
        .await
        .unwrap();
    widgets.flip_storage(&client, "v1").await.unwrap();
    let crd = widgets.crd_name();
    let erased = "spec.legacy (1 object: default/widget-0001)";
    let added = "the storage version adds a default: spec.interval (3 objects, such as default/widget-0000, \
         default/widget-0001, default/widget-0002)";

    let rehearsal = migrate(control_plane, &[&crd, "--dry-run"]).await;
    let said = String::from_utf8(rehearsal.stdout).unwrap();
    assert_eq!(rehearsal.status.code(), Some(1), "{said}");
    assert!(
        said.contains("stalled (Pruning): the rewrite would erase"),
        "{said}"
    );
    assert!(said.contains(added), "{said}");
    assert_eq!(said.matches(erased).count(), 1, "{said}");
    assert!(!said.contains("precious"), "{said}");

    let rehearsal = migrate(control_plane, &[&crd, "--dry-run", "-o", "json"]).await;
    let summary: Value = serde_json::from_slice(&rehearsal.stdout).unwrap();
    let losses = &summary[0]["losses"];
    assert_eq!(
        losses["erased"]["spec.legacy"],
        json!({"objects": 1, "first": ["default/widget-0001"]})
    );
    assert_eq!(losses["added"]["spec.interval"]["objects"], 3);

    let done = migrate(control_plane, &[&crd, "--accept-pruning"]).await;
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{said}");
    let lost = "1 of 3 objects lost something, as --accept-pruning allows:";
    assert!(
        said.contains(&format!("{lost}\n    the rewrite erased {erased}")),
        "{said}"
    );
    assert!(said.contains(added), "{said}");
}

/// Widgets of which each loses as many fields of a map as is said here.
async fn losing(group: &str, fields: usize, count: usize) -> String {
    let client = ControlPlane::shared().await.client().unwrap();
    let widgets = Widgets::in_group(group);
    let mut crd = widgets.crd("v1alpha1");
    let properties = |crd: &mut Value, version: usize| {
        crd["spec"]["versions"][version]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
            .take()
    };
    let mut old = properties(&mut crd, 0);
    let mut new = properties(&mut crd, 1);
    old["legacy"] = json!({"type": "object", "additionalProperties": {"type": "string"}});
    new["legacy"] = json!({"type": "object", "properties": {"kept": {"type": "string"}}});
    for (version, properties) in [old, new].into_iter().enumerate() {
        crd["spec"]["versions"][version]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"] =
            properties;
    }
    widgets.install_crd(&client, crd).await.unwrap();
    widgets.create(&client, "v1alpha1", count).await.unwrap();
    let legacy: serde_json::Map<String, Value> = (0..fields)
        .map(|field| (format!("f{field:03}"), json!("precious")))
        .collect();
    let patch = Patch::Merge(json!({"spec": {"legacy": legacy}}));
    for index in 0..count {
        let api = widgets.api(&client, "v1alpha1");
        api.patch(&format!("widget-{index:04}"), &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
    widgets.flip_storage(&client, "v1").await.unwrap();
    widgets.crd_name()
}

#[tokio::test]
async fn every_field_that_would_be_lost_is_named_with_the_first_objects_and_so_is_what_went() {
    let control_plane = ControlPlane::shared().await;
    let crd = losing("every.example.com", 45, 4).await;
    let first = "(4 objects, such as default/widget-0000, default/widget-0001, default/widget-0002)";

    let rehearsal = migrate(control_plane, &[&crd, "--dry-run"]).await;
    let said = String::from_utf8(rehearsal.stdout).unwrap();
    for field in 0..45 {
        let named = format!("the rewrite would erase spec.legacy.f{field:03} {first}\n");
        assert!(said.contains(&named), "{named} in {said}");
    }
    let rehearsal = migrate(control_plane, &[&crd, "--dry-run", "-o", "json"]).await;
    let summary: Value = serde_json::from_slice(&rehearsal.stdout).unwrap();
    let losses = &summary[0]["losses"];
    assert_eq!(losses["erased"].as_object().unwrap().len(), 45, "{losses}");
    let names = json!([
        "default/widget-0000",
        "default/widget-0001",
        "default/widget-0002"
    ]);
    assert_eq!(
        losses["erased"]["spec.legacy.f044"],
        json!({"objects": 4, "first": names})
    );
    assert_eq!(losses["accepted"], false);

    let done = migrate(control_plane, &[&crd, "--accept-pruning", "-o", "json"]).await;
    let summary: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(summary[0]["end"]["state"], "migrated", "{summary}");
    let losses = &summary[0]["losses"];
    assert_eq!(
        (&losses["accepted"], &losses["objects"]),
        (&json!(true), &json!(4))
    );
    assert_eq!(losses["erased"].as_object().unwrap().len(), 45, "{losses}");
}

#[tokio::test]
async fn fields_beyond_the_first_two_hundred_are_counted_once_each_and_that_is_said() {
    let control_plane = ControlPlane::shared().await;
    let crd = losing("beyond.example.com", 230, 2).await;
    let rehearsal = migrate(control_plane, &[&crd, "--dry-run"]).await;
    let said = String::from_utf8(rehearsal.stdout).unwrap();
    let bound = "and 30 more fields without a name: only the first 200 of each kind are named";
    assert!(said.contains(bound), "{said}");
    let done = migrate(control_plane, &[&crd, "--accept-pruning"]).await;
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{said}");
    assert!(said.contains("2 of 2 objects lost something"), "{said}");
    assert!(said.contains("the rewrite erased spec.legacy.f199 "), "{said}");
    assert!(said.contains(bound), "{said}");
}
