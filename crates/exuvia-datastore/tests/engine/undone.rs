//! The way back: nothing of a migration is left, and nothing of anybody else's is touched.

use exuvia_api::DatastorePhase;
use exuvia_datastore::protocol::{Hold, Step};
use exuvia_runtime::machine::Ended;
use kube::api::DeleteParams;
use serde_json::json;

use crate::{Stage, up_to};

#[tokio::test]
async fn an_abort_before_the_commit_leaves_nothing_behind() {
    let stage = Stage::new("abort", 3).await;
    stage
        .create(&stage.new, "w0", json!({"size": 0, "color": "red"}))
        .await;
    let migration = stage.migration(stage.spec()).await;
    let uid = migration.metadata.uid.clone().unwrap();
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Commit).await;
    assert_eq!(stage.all(&stage.new).await.len(), 3);
    stage
        .migrations()
        .delete(&stage.name, &DeleteParams::default())
        .await
        .unwrap();
    // Another process goes on.
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    let left: Vec<_> = stage.all(&stage.new).await;
    assert_eq!(left.len(), 1, "only the one that was there before");
    assert_eq!(stage.policies(&uid).await, 0);
    assert!(stage.migrations().get_opt(&stage.name).await.unwrap().is_none());
    stage.thawed().await;
}

#[tokio::test]
async fn a_freeze_that_lasts_too_long_is_undone_and_says_so() {
    let stage = Stage::new("toolong", 1).await;
    let mut spec = stage.spec();
    spec["freeze"]["maxDuration"] = json!("1s");
    spec["cutover"] = json!({"hold": true});
    let migration = stage.migration(spec).await;
    let mut engine = stage.engine(&migration);
    let ended = loop {
        match stage.drive(&mut engine).await {
            Ended::Held(Hold::BeforeCutover) => {}
            ended => break ended,
        }
    };
    assert_eq!(ended, Ended::Held(Hold::Failed));
    let status = stage.read().await.status.unwrap();
    assert_eq!(status.phase, Some(DatastorePhase::Failed));
    assert!(status.message.contains("maxDuration"), "{}", status.message);
    assert_eq!(
        stage.policies(migration.metadata.uid.as_deref().unwrap()).await,
        0
    );
    assert!(stage.all(&stage.new).await.is_empty());
    stage.thawed().await;
}

#[tokio::test]
async fn a_policy_that_somebody_removes_undoes_everything() {
    let stage = Stage::new("sabotage", 2).await;
    let migration = stage.migration(stage.spec()).await;
    let uid = migration.metadata.uid.clone().unwrap();
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Verify).await;
    let policies: kube::Api<k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy> =
        kube::Api::all(stage.client.clone());
    let name = format!("exuvia-{uid}-source");
    policies.delete(&name, &DeleteParams::default()).await.unwrap();
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Failed));
    assert_eq!(stage.policies(&uid).await, 0);
    assert!(stage.all(&stage.new).await.is_empty());
}
