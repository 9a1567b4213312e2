//! Somebody takes away what a migration knows: its status, or its finalizer.

use exuvia_api::{DATASTORE_FINALIZER, DatastorePhase};
use exuvia_datastore::freeze;
use exuvia_datastore::protocol::{Hold, Step};
use exuvia_runtime::machine::Ended;
use exuvia_write::Writer;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::{Stage, up_to};

async fn remove_status(stage: &Stage) {
    let params = PatchParams::default();
    let nothing = Patch::Merge(json!({"status": null}));
    stage
        .migrations()
        .patch_status(&stage.name, &params, &nothing)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_status_that_is_removed_under_the_freeze_lets_writers_go_and_it_begins_again() {
    let stage = Stage::new("nostatus", 2).await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Verify).await;
    remove_status(&stage).await;
    up_to(&mut engine, Step::EndUndo).await;
    assert_eq!(stage.policies(&migration.uid().unwrap()).await, 0);
    assert!(
        stage.all(&stage.new).await.is_empty(),
        "our copies are taken back"
    );
    stage.thawed().await;
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert_eq!(stage.phase().await, DatastorePhase::Complete);
    assert_eq!(stage.all(&stage.new).await.len(), 3);
}

#[tokio::test]
async fn a_status_that_is_removed_after_the_commit_changes_nothing_and_is_said() {
    let stage = Stage::new("nostatusafter", 2).await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Complete).await;
    stage.merge(&stage.new, "w0", json!({"spec": {"size": 42}})).await;
    remove_status(&stage).await;
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    let said = &engine.blockers()[0].message;
    assert!(said.contains("exuvia datastore thaw"), "{said}");
    assert_eq!(stage.all(&stage.new).await.len(), 2, "what was moved stays");
    // As it was told: delete it, then thaw.
    assert_eq!(stage.delete().await, Ended::Done);
    let left = freeze::abandoned(&stage.client).await.unwrap();
    let left: Vec<_> = left.iter().filter(|left| left.migration == stage.name).collect();
    assert_eq!(left.len(), 1);
    assert!(!left[0].is_before_commit);
    freeze::release(&stage.client, &Writer::named("test"), left[0])
        .await
        .unwrap();
    stage.thawed().await;
    let moved = stage.api(&stage.new).get("w0").await.unwrap();
    assert_eq!(moved.data["spec"]["size"], 42);
}

#[tokio::test]
async fn locks_of_a_migration_whose_finalizer_was_taken_off_are_found_and_removed() {
    let stage = Stage::new("nofinalizer", 2).await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Commit).await;
    let of_stage = async || {
        let found = freeze::abandoned(&stage.client).await.unwrap();
        found
            .into_iter()
            .filter(|left| left.migration == stage.name)
            .collect::<Vec<_>>()
    };
    assert_eq!(of_stage().await, [], "its migration exists");
    let held = stage.read().await.finalizers().to_vec();
    assert_eq!(held, [DATASTORE_FINALIZER]);
    stage
        .migrations()
        .delete(&stage.name, &DeleteParams::default())
        .await
        .unwrap();
    let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    stage
        .migrations()
        .patch(&stage.name, &PatchParams::default(), &none)
        .await
        .unwrap();
    let left = of_stage().await;
    assert_eq!(left.len(), 1);
    assert!(left[0].is_before_commit);
    freeze::release(&stage.client, &Writer::named("test"), &left[0])
        .await
        .unwrap();
    assert_eq!(stage.policies(&migration.uid().unwrap()).await, 0);
    assert_eq!(of_stage().await, []);
    stage.thawed().await;
}
