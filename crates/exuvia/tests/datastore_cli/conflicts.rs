//! `exuvia datastore conflicts`: all of them, field by field, without what the fields hold.

use exuvia_api::MIGRATION_UID_ANNOTATION;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::binary::{json_of, printed, text};
use crate::terminal::AtTerminal;
use crate::world::World;

#[tokio::test]
async fn every_conflict_is_shown_field_by_field_without_values() {
    let world = World::new("differ").await;
    // More than a status lists.
    for index in 0..40 {
        let name = format!("many-{index:02}");
        world
            .source(&name, json!({"size": 1, "color": "CANARY", "tags": ["a"]}))
            .await;
        world
            .target(&name, json!({"size": 2, "tags": ["a", "b"], "payload": "CANARY"}))
            .await;
    }
    world
        .target("widget-0000", json!({"size": 1, "color": "green"}))
        .await; // equal
    world.create(world.manifest()).await;
    let output = world.exuvia(&["conflicts", "differ"]).await;
    let said = printed(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(!said.contains("CANARY"), "{said}");
    let first = "\
Widget.new.differ.example.com default/many-00 (from Widget.old.differ.example.com default/many-00)
  FIELD         SOURCE WOULD BECOME  TARGET IS
  spec.color    text                 absent
  spec.payload  absent               text
  spec.size     number               number
  spec.tags     list of 1            list of 2
";
    assert!(said.starts_with(first), "{said}");
    assert!(said.contains("differ: 40 conflicts; "), "{said}");
    let answer = json_of(&world.exuvia(&["conflicts", "differ", "-o", "json"]).await);
    assert_eq!(answer.as_array().unwrap().len(), 40);
    assert_eq!(answer[39]["name"], "many-39");
    assert_eq!(
        answer[0]["differences"][0],
        json!({"path": "spec.color", "source": "text", "target": "absent"})
    );
}

#[tokio::test]
async fn at_a_terminal_those_who_ask_see_values() {
    let world = World::new("asked").await;
    world
        .target("widget-0000", json!({"size": 1, "color": "purple"}))
        .await;
    world.create(world.manifest()).await;
    let args = ["datastore", "conflicts", "asked", "--show-values"];
    let (code, shown) = AtTerminal::start(world.kubeconfig(), 120, 40, &args).end();
    assert_eq!(code, Some(1), "{shown}");
    assert!(shown.contains("green") && shown.contains("purple"), "{shown}");
}

/// A default of the target's schema is on both sides, and an equal object that somebody applied is not in conflict.
#[tokio::test]
async fn what_the_server_adds_is_not_a_conflict() {
    let world = World::without_target_crd("defaults").await;
    let mut crd = world.new.crd("v1");
    for version in crd["spec"]["versions"].as_array_mut().unwrap() {
        let spec = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        spec["payload"]["default"] = "added".into();
    }
    world.new.install_crd(&world.client, crd).await.unwrap();
    world
        .target("widget-0000", json!({"size": 1, "color": "green"}))
        .await;
    world.create(world.manifest()).await;
    let output = world.exuvia(&["conflicts", "defaults"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    assert_eq!(text(&output.stdout), "defaults: no target differs\n");
}

/// The status lists them, too.
#[tokio::test]
async fn a_copy_that_somebody_has_edited_is_named_as_one() {
    let world = World::new("edited").await;
    let uid = world.create(world.manifest()).await.uid().unwrap();
    world.set_status(json!({"phase": "Migrating"})).await;
    let api = world.new.api(&world.client, "v1");
    for (name, color) in [
        ("widget-0000", "green"),
        ("widget-0001", "red"),
        ("left-over", "green"),
    ] {
        let mut copy = world.new.widget("v1", name);
        copy.annotations_mut()
            .insert(MIGRATION_UID_ANNOTATION.to_owned(), uid.clone());
        copy.data = json!({"spec": {"size": 1, "color": color}});
        let ours = PostParams {
            field_manager: Some("exuvia-datastore".to_owned()),
            ..PostParams::default()
        };
        api.create(&ours, &copy).await.unwrap();
    }
    let edit = Patch::Merge(json!({"metadata": {"labels": {"by": "hand"}}}));
    for name in ["widget-0001", "left-over"] {
        api.patch(name, &PatchParams::apply("kubectl-edit"), &edit)
            .await
            .unwrap();
    }
    let output = world.exuvia(&["conflicts", "edited"]).await;
    let said = printed(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.starts_with(
            "Widget.new.edited.example.com default/left-over (its source is gone)\n  this migration made it, and somebody else has \
             edited it since\n\nWidget.new.edited.example.com default/widget-0001 (from Widget.old.edited.example.com \
             default/widget-0001)\n  this migration made it, and somebody else has edited it since\n  FIELD"
        ),
        "{said}"
    );
    assert!(
        said.contains("\n  metadata.labels")
            && said.contains("\n  spec.color ")
            && !said.contains("migration-uid"),
        "{said}"
    );
    assert!(
        said.contains("edited: 2 conflicts; delete the edited copy"),
        "{said}"
    );
}
