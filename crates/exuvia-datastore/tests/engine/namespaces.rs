//! A namespace that is deleted comes to its end, whatever the migration is at.

use exuvia_api::DatastorePhase;
use exuvia_datastore::protocol::{Hold, Step, Undo};
use exuvia_runtime::machine::Ended;
use exuvia_testenv::until;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::json;

use crate::{Stage, owned_by, up_to};

async fn delete_namespace(stage: &Stage) {
    let namespaces: Api<Namespace> = Api::all(stage.client.clone());
    namespaces
        .delete(&stage.name, &DeleteParams::default())
        .await
        .unwrap();
}

async fn is_gone(stage: &Stage) {
    let namespaces: Api<Namespace> = Api::all(stage.client.clone());
    until("the namespace is gone", async || {
        namespaces.get_opt(&stage.name).await.unwrap().is_none()
    })
    .await;
}

#[tokio::test]
async fn it_ends_while_the_migration_is_pending() {
    let stage = Stage::new("ns-pending", 2).await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Start).await;
    delete_namespace(&stage).await;
    is_gone(&stage).await;
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert_eq!(stage.phase().await, DatastorePhase::Complete);
}

#[tokio::test]
async fn it_waits_for_the_freeze_and_ends_when_everything_is_undone() {
    let stage = Stage::new("ns-frozen", 2).await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Copy).await;
    delete_namespace(&stage).await;
    // Nothing can be made in a namespace that is being deleted: that is refused, and undone.
    up_to(&mut engine, Step::Undo(Undo::Refused)).await;
    assert_eq!(stage.all(&stage.old).await.len(), 2, "the source is frozen");
    let ended = until("the migration goes on by itself", async || {
        match stage.drive(&mut engine).await {
            Ended::Held(Hold::Blocked) => {
                exuvia_runtime::machine::Machine::retry(&mut engine, &Hold::Blocked);
                None
            }
            ended => Some(ended),
        }
    })
    .await;
    is_gone(&stage).await;
    assert_eq!(ended, Ended::Done);
    assert_eq!(stage.phase().await, DatastorePhase::Complete);
}

#[tokio::test]
async fn it_ends_after_the_move_though_the_source_stays_frozen() {
    let stage = Stage::new("ns-complete", 2).await;
    assert_eq!(stage.run(stage.spec()).await, Ended::Done);
    delete_namespace(&stage).await;
    is_gone(&stage).await;
    assert_eq!(stage.delete().await, Ended::Done);
}

/// Sources cannot be deleted yet, except with their namespace, which takes their dependents along as well.
#[tokio::test]
async fn it_ends_right_after_the_commit() {
    let stage = Stage::new("ns-committed", 2).await;
    let owner = stage.api(&stage.old).get("w0").await.unwrap();
    stage
        .config_map("dependent", &[owned_by(&owner)], json!({"goes": "along"}))
        .await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::RewriteReferences).await;
    delete_namespace(&stage).await;
    is_gone(&stage).await;
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert_eq!(stage.phase().await, DatastorePhase::Complete);
}

#[tokio::test]
async fn it_ends_while_a_conflict_is_waited_for() {
    let stage = Stage::new("ns-waiting", 2).await;
    stage
        .create(&stage.new, "w1", json!({"size": 1, "color": "green"}))
        .await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Conflicts));
    delete_namespace(&stage).await;
    is_gone(&stage).await;
    assert_eq!(stage.goes_on(&mut engine, Hold::Conflicts).await, Ended::Done);
}

#[tokio::test]
async fn it_ends_after_everything_was_undone_for_good() {
    let stage = Stage::new("ns-failed", 2).await;
    let mut spec = stage.spec();
    spec["freeze"]["drain"] = json!("0s");
    spec["freeze"]["maxDuration"] = json!("1ms");
    let migration = stage.migration(spec).await;
    assert_eq!(
        stage.drive(&mut stage.engine(&migration)).await,
        Ended::Held(Hold::Failed)
    );
    delete_namespace(&stage).await;
    is_gone(&stage).await;
}
