//! `exuvia plan -o wide`: what holds each old version.

use exuvia_api::StorageMigration;
use exuvia_testenv::ControlPlane;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, CustomResourceExt};
use serde_json::json;

use crate::binary::{flipped, migrate, printed};
use crate::{plan_of, shown, until_it_says};

#[tokio::test]
async fn what_holds_a_version_is_told_with_what_a_migration_found() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "wide.example.com", 3).await;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.create(&PostParams::default(), &StorageMigration::crd())
        .await
        .unwrap();
    let api: Api<StorageMigration> = Api::all(client.clone());
    let wanted: StorageMigration = serde_json::from_value(
        json!({"metadata": {"name": "wide"}, "spec": {"resource": widgets.crd_name()}}),
    )
    .unwrap();
    exuvia_testenv::until("StorageMigrations are served", async || {
        api.create(&PostParams::default(), &wanted).await
    })
    .await;
    let failure = |number: u8| json!({"object": format!("default/widget-000{number}"), "class": "invalid", "message": "size must grow"});
    let status = json!({"status": {
        "phase": "Stalled",
        "conditions": [{"type": "Stalled", "status": "True", "reason": "Failures", "message": "5 objects were not done",
                        "lastTransitionTime": "2026-11-16T12:00:00Z"}],
        "failures": {"count": 5, "byClass": {"invalid": 5}, "first": [failure(0), failure(1), failure(2), failure(3)]},
        "blockers": [
            {"version": "v1alpha1", "holds": "References", "message": "ownerReferences of 2 objects in pods name it",
             "objects": 2},
            {"version": "v1alpha1", "holds": "Bytes", "message": "stale word on bytes"},
        ],
    }});
    api.patch_status("wide", &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();

    let said = shown(&control_plane, "wide.example.com", &["-o", "wide"]).await;
    for line in [
        "  v1alpha1 is held by",
        "    bytes: storedVersions lists it: objects may be stored at it",
        "    references: ownerReferences of 2 objects in pods name it (found when StorageMigration wide ended, not looked at now)",
        "  StorageMigration wide is Stalled: Failures: 5 objects were not done",
        "    not done: default/widget-0000 [invalid] size must grow",
        "    and 2 more: kubectl describe storagemigration wide",
    ] {
        assert!(said.lines().any(|shown| shown == line), "{line:?} in\n{said}");
    }
    assert!(
        said.contains(" owns fields on 3 objects, such as default/widget-000"),
        "{said}"
    );
    assert!(
        !said.contains("stale word"),
        "bytes are told as they are now: {said}"
    );

    let plan = plan_of(&control_plane, "wide.example.com", &["--ownership"]).await;
    let holds: Vec<&str> = plan[0]["blockers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|blocker| blocker["holds"].as_str().unwrap())
        .collect();
    assert_eq!(holds, ["Bytes", "Ownership", "References"], "{plan}");
    assert_eq!(plan[0]["migration"]["failed"], 5);

    // Somebody who may not see migrations is told so, and what would help.
    let rules = json!([
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["list"]},
        {"apiGroups": ["wide.example.com"], "resources": ["widgets"], "verbs": ["list"]},
    ]);
    let reader = control_plane
        .user_with_rules("wide-reader", &rules)
        .await
        .unwrap();
    let args = ["plan", "--groups", "wide.example.com", "-o", "wide"];
    let said = until_it_says(&reader, &args, |output| {
        output.status.success() && !printed(output).contains("not allowed to list its objects")
    })
    .await;
    assert!(
        printed(&said)
            .contains(r#"{apiGroups: ["exuvia.dev"], resources: ["storagemigrations"], verbs: ["list"]}"#),
        "{}",
        printed(&said)
    );
}

#[tokio::test]
async fn times_are_told_by_the_second() {
    let control_plane = ControlPlane::shared().await;
    let widgets = flipped(&control_plane.client().unwrap(), "seconds.example.com", 1).await;
    let done = migrate(control_plane, &[&widgets.crd_name()]).await;
    assert!(done.status.success(), "{}", printed(&done));
    let wide = shown(control_plane, widgets.group(), &["-o", "wide"]).await;
    let line = wide
        .lines()
        .find(|line| line.contains("not patrolled yet"))
        .unwrap();
    let plan = plan_of(control_plane, widgets.group(), &[]).await;
    let at = plan[0]["proven"]["at"].as_str().unwrap();
    assert_eq!(at.len(), "2026-11-16T12:00:00Z".len(), "{at}");
    assert!(
        line.contains(&format!("migrated at {at}, not patrolled yet")),
        "{wide}"
    );
}
