//! `exuvia datastore plan`: what would happen, without a write.

use exuvia_testenv::aggregated::Aggregated;
use exuvia_testenv::until;
use serde_json::json;

use crate::binary::{exuvia, json_of, printed, text};
use crate::world::World;

/// The target lacks a field of one source, has an equal object and one that differs; one source is left alone.
async fn mixed(name: &str) -> World {
    let world = World::without_target_crd(name).await;
    let mut crd = world.new.crd("v1");
    for version in crd["spec"]["versions"].as_array_mut().unwrap() {
        let spec = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        spec.as_object_mut().unwrap().remove("payload");
    }
    world.new.install_crd(&world.client, crd).await.unwrap();
    world
        .source("refused", json!({"size": 1, "payload": "CANARY"}))
        .await;
    world.source("stays", json!({"color": "red"})).await;
    world
        .target("widget-0000", json!({"size": 1, "color": "green"}))
        .await;
    world
        .target("widget-0001", json!({"size": 9, "color": "CANARY"}))
        .await;
    world
}

#[tokio::test]
async fn a_plan_says_what_moves_what_is_refused_and_what_differs_and_writes_nothing() {
    let world = mixed("planned").await;
    let mut manifest = world.manifest();
    manifest["spec"]["mappings"][0]["from"]["when"] = "object.spec.?color.orValue('') != 'red'".into();
    let file = world.file(&manifest);
    let planner = world.control_plane.user("planner", &["system:masters"]).unwrap();
    let kubeconfig = planner.kubeconfig().unwrap();
    let output = exuvia(kubeconfig.clone(), &["datastore", "plan", "-f", &file]).await;
    let said = printed(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(!said.contains("CANARY"), "{said}");
    for expected in [
        "no mapping takes 1 object, which will not be moved",
        "Widget.old.planned.example.com default/refused: ",
        "(Refused)",
        "Widget.new.planned.example.com default/widget-0001: spec.color",
        "nothing was written",
    ] {
        assert!(said.contains(expected), "{expected} in {said}");
    }
    let answer = json_of(&exuvia(kubeconfig, &["datastore", "plan", "-f", &file, "-o", "json"]).await);
    let kind = &answer["kinds"][0];
    assert_eq!(
        (&kind["targets"], &kind["alreadyThere"], &kind["conflicts"]),
        (&json!(4), &json!(1), &json!(1)),
        "{answer}"
    );
    assert_eq!((&answer["unmoved"], &answer["refused"]), (&json!(1), &json!(1)));
    assert_eq!(answer["canStart"], false);
    // Each write was a dry run, or a question about rights that stores nothing.
    let events = world.control_plane.audit().of("planner").unwrap();
    let writes: Vec<_> = events.iter().filter(|event| event.is_write()).collect();
    assert!(
        writes
            .iter()
            .any(|write| write.request_uri.contains("dryRun=All"))
    );
    for write in writes {
        let is_question = ["selfsubjectaccessreviews", "selfsubjectreviews"].contains(&write.resource());
        assert!(
            is_question || write.request_uri.contains("dryRun=All"),
            "{write:?}"
        );
    }
}

#[tokio::test]
async fn a_migration_of_the_cluster_without_obstacles_can_start() {
    let world = World::new("clear").await;
    world.create(world.manifest()).await;
    let output = world.exuvia(&["plan", "clear"]).await;
    assert!(output.status.success(), "{}", printed(&output));
    let said = text(&output.stdout);
    assert!(
        said.ends_with("clear: nothing stands in the way; nothing was written\n"),
        "{said}"
    );
    let row = said.lines().nth(1).unwrap();
    let row: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(
        row,
        [
            "Widget.old.clear.example.com",
            "all",
            "Widget.new.clear.example.com",
            "3",
            "0",
            "0"
        ]
    );
}

/// Under a freeze everything would look refused.
#[tokio::test]
async fn a_migration_that_has_begun_is_not_planned() {
    let world = World::new("begun").await;
    world.create(world.manifest()).await;
    world.set_status(json!({"phase": "Migrating"})).await;
    let output = world.exuvia(&["plan", "begun"]).await;
    assert_eq!(output.status.code(), Some(2));
    let said = printed(&output);
    assert!(
        said.starts_with("error: begun is Migrating: a plan is for a migration that has not begun;"),
        "{said}"
    );
}

#[tokio::test]
async fn a_kind_that_is_missing_is_named() {
    let world = World::without_target_crd("missing").await;
    let file = world.file(&world.manifest());
    let output = world.exuvia(&["plan", "-f", &file]).await;
    assert_eq!(output.status.code(), Some(1));
    let said = printed(&output);
    let named =
        |line: &&str| line.contains("Widget.new.missing.example.com: ") && line.contains("(NotServed)");
    assert_eq!(said.lines().filter(named).count(), 1, "{said}");
}

#[tokio::test]
async fn behind_an_apiservice_a_plan_says_that_targets_cannot_be_looked_at() {
    let world = World::new("hidden").await;
    let shown = (world.new.group(), "v1");
    let backend = Aggregated::start(
        world.control_plane,
        shown,
        (world.old.group(), "v1"),
        &["widgets"],
    );
    let backend = backend.await.unwrap();
    backend.install(&world.client).await.unwrap();
    until("the backend answers", async || {
        backend.answers(&world.client).await.unwrap_or(false)
    })
    .await;
    let mut manifest = world.manifest();
    manifest["spec"]["cutover"] = json!({"apiService": backend.api_service_name()});
    let file = world.file(&manifest);
    let output = world.exuvia(&["plan", "-f", &file]).await;
    let said = printed(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("v1.new.hidden.example.com answers for the target group")
            && said.contains("copies of the target CRDs"),
        "{said}"
    );
    world.create(manifest).await;
    for command in ["conflicts", "verify"] {
        let output = world.exuvia(&[command, "hidden"]).await;
        let said = printed(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("is in front of the targets"), "{said}");
    }
}

#[tokio::test]
async fn a_storage_migration_of_a_kind_that_is_moved_says_by_what() {
    let world = World::new("held-kind").await;
    world.create(world.manifest()).await;
    world
        .set_status(json!({"phase": "Migrating", "step": "Copying", "frozenAt": "2026-11-17T10:00:00Z"}))
        .await;
    let crd = format!("widgets.{}", world.old.group());
    let output = exuvia(world.kubeconfig(), &["storage", "migrate", &crd, "--dry-run"]).await;
    let said = printed(&output);
    assert!(
        said.contains(&format!(
            "note: {crd}: the DatastoreMigration held-kind (Migrating) moves its objects away, and freezes them"
        )),
        "{said}"
    );
}
