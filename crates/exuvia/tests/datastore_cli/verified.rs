//! `exuvia datastore verify`: every source beside its target.

use exuvia_api::SOURCE_HASH_ANNOTATION;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::binary::{json_of, printed};
use crate::world::World;

#[tokio::test]
async fn sources_with_and_without_targets_are_counted() {
    let world = World::new("verified").await;
    world.create(world.manifest()).await;
    for name in ["widget-0000", "widget-0001"] {
        world.target(name, json!({"size": 1, "color": "green"})).await;
    }
    let output = world.exuvia(&["verify", "verified"]).await;
    let said = printed(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("default/widget-0002: it has no Widget.new.verified.example.com"),
        "{said}"
    );
    assert!(
        said.contains("verified (Pending): 1 of 3 sources have no target yet"),
        "{said}"
    );
    // After the commit nobody can tell whether it was ever there.
    world.set_status(json!({"phase": "Complete"})).await;
    let said = printed(&world.exuvia(&["verify", "verified"]).await);
    assert!(
        said.contains("deleted after the move, or never there, which cannot be told from here"),
        "{said}"
    );
    // All are there; one was written since, and one source is not what was copied.
    world
        .target("widget-0002", json!({"size": 7, "color": "green"}))
        .await;
    // Before the commit a target that differs is a reason not to go on.
    world.set_status(json!({"phase": "Migrating"})).await;
    let output = world.exuvia(&["verify", "verified"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", printed(&output));
    world.set_status(json!({"phase": "Complete"})).await;
    let other = json!({"metadata": {"annotations": {SOURCE_HASH_ANNOTATION: "of something else"}}});
    let targets = world.new.api(&world.client, "v1");
    targets
        .patch("widget-0001", &PatchParams::default(), &Patch::Merge(other))
        .await
        .unwrap();
    let output = world.exuvia(&["verify", "verified", "-o", "json"]).await;
    assert_eq!(
        output.status.code(),
        Some(1),
        "a write may be missing: {}",
        printed(&output)
    );
    let kind = &json_of(&output)["kinds"][0];
    let counts =
        ["sources", "equal", "differing", "changedSince", "withoutTarget"].map(|count| kind[count].clone());
    assert_eq!(
        counts,
        [json!(3), json!(1), json!(1), json!(1), json!(0)],
        "{kind}"
    );
}

/// What only looks different because the caller may not ask the server is not called different.
#[tokio::test]
async fn a_reader_is_told_what_could_not_be_compared() {
    let world = World::without_target_crd("readonly").await;
    let mut crd = world.new.crd("v1");
    for version in crd["spec"]["versions"].as_array_mut().unwrap() {
        let spec = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        spec["payload"]["default"] = "added".into();
    }
    world.new.install_crd(&world.client, crd).await.unwrap();
    world.create(world.manifest()).await;
    for index in 0..3 {
        let name = format!("widget-{index:04}");
        world.target(&name, json!({"size": 1, "color": "green"})).await;
    }
    let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]}]);
    let reader = world
        .control_plane
        .user_with_rules("reader", &rules)
        .await
        .unwrap();
    let kubeconfig = reader.kubeconfig().unwrap();
    let answer = exuvia_testenv::until("the reader may read", async || {
        let args = ["datastore", "verify", "readonly", "-o", "json"];
        let output = crate::binary::exuvia(kubeconfig.clone(), &args).await;
        if output.status.success() {
            Ok(json_of(&output))
        } else {
            Err(printed(&output))
        }
    })
    .await;
    let kind = &answer["kinds"][0];
    assert_eq!(
        (&kind["notCompared"], &kind["differing"]),
        (&json!(3), &json!(0)),
        "{kind}"
    );
    let said = printed(&crate::binary::exuvia(kubeconfig, &["datastore", "verify", "readonly"]).await);
    assert!(
        said.contains("whether 3 of them are equal is not known"),
        "{said}"
    );
}
