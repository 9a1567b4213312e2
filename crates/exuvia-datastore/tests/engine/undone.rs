//! The way back: nothing of a migration is left, and nothing of anybody else's is touched.

use exuvia_api::DatastorePhase;
use exuvia_datastore::protocol::{Hold, Step};
use exuvia_runtime::machine::Ended;
use kube::api::{DeleteParams, Patch, PatchParams};
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
    spec["freeze"]["drain"] = json!("0s");
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

/// Nobody is waited for under a freeze.
#[tokio::test]
async fn a_conflict_that_is_found_under_the_freeze_is_waited_for_without_it() {
    let stage = Stage::new("late-conflict", 2).await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Start).await;
    stage
        .create(&stage.new, "w1", json!({"size": 1, "color": "green"}))
        .await;
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Conflicts));
    assert_eq!(stage.phase().await, DatastorePhase::WaitingForConflictResolution);
    assert_eq!(
        stage.policies(migration.metadata.uid.as_deref().unwrap()).await,
        0
    );
    let targets = stage.all(&stage.new).await;
    assert_eq!(targets.len(), 1, "only the one that somebody else made");
    stage.thawed().await;
    stage
        .api(&stage.new)
        .delete("w1", &DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(stage.goes_on(&mut engine, Hold::Conflicts).await, Ended::Done);
    assert_eq!(stage.all(&stage.new).await.len(), 3);
}

/// Parts of the spec may be changed on the way. A mistake in them does not keep writers locked out.
#[tokio::test]
async fn an_invalid_expression_on_the_way_undoes_everything_and_says_so() {
    let stage = Stage::new("edited", 2).await;
    let migration = stage.migration(stage.spec()).await;
    let uid = migration.metadata.uid.clone().unwrap();
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Verify).await;
    let wait = json!({"group": "", "version": "v1", "kind": "ConfigMap", "name": "x", "when": "object.("});
    let edit = |waits: serde_json::Value| {
        let patch = json!({"spec": {"cutover": {"waitFor": waits}}});
        let migrations = stage.migrations();
        let name = stage.name.clone();
        async move {
            migrations
                .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .unwrap()
        }
    };
    edit(json!([wait])).await;
    // Another process finds it so.
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    let blocker = &engine.blockers()[0];
    assert_eq!(blocker.reason, exuvia_api::datastore_reason::INVALID_SPEC);
    assert_eq!(stage.policies(&uid).await, 0);
    assert!(stage.all(&stage.new).await.is_empty());
    edit(json!([])).await;
    assert_eq!(stage.goes_on(&mut engine, Hold::Blocked).await, Ended::Done);
}

/// Without a policy others can write to our targets: what they have changed is theirs.
#[tokio::test]
async fn without_a_policy_an_abort_leaves_what_others_have_changed() {
    let stage = Stage::new("unguarded", 2).await;
    stage.config_map("switch", &[], json!({})).await;
    let mut spec = stage.spec();
    spec["freeze"] = json!({"admission": false, "drain": "100ms", "flags": [{
        "group": "", "version": "v1", "kind": "ConfigMap", "namespace": stage.name, "name": "switch",
        "path": "data.paused", "frozen": "yes", "thawed": "no", "side": "Source",
    }]});
    let migration = stage.migration(spec).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Commit).await;
    let flag = async || stage.config_maps().get("switch").await.unwrap().data;
    assert_eq!(flag().await.unwrap()["paused"], "yes");
    stage
        .merge(&stage.new, "w1", json!({"spec": {"color": "theirs"}}))
        .await;
    assert_eq!(stage.delete().await, Ended::Done);
    let left = stage.all(&stage.new).await;
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].data["spec"]["color"], "theirs");
    assert_eq!(flag().await.unwrap_or_default().get("paused"), None, "as before");
}
