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
    let erased = "spec.legacy (1 object, default/widget-0001)";
    let added =
        "added, a default of the storage version: spec.interval (3 objects, such as default/widget-0000)";

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
        json!({"objects": 1, "example": "default/widget-0001"})
    );
    assert_eq!(losses["added"]["spec.interval"]["objects"], 3);

    let done = migrate(control_plane, &[&crd, "--accept-pruning"]).await;
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{said}");
    assert!(said.contains(&format!("the rewrite erases {erased}")), "{said}");
    assert!(said.contains(added), "{said}");
}
