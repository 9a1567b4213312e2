//! What a migration waits for wakes it: nobody has to look again.

use exuvia_api::{DatastorePhase, datastore_reason as reason};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::harness::*;

/// The operator looks again after an hour, far beyond the patience of a test.
#[tokio::test]
async fn a_resolved_conflict_a_mended_object_and_a_roll_out_are_noticed_by_themselves() {
    let control_plane = control_plane().await;
    let access = control_plane.user("exuvia", &["system:masters"]).unwrap();
    let operator = Operator::start(
        &control_plane,
        &access,
        "woken",
        &["--datastore-look-again=1h", "--concurrent-migrations=8"],
    );
    operator.ready().await;
    let client = control_plane.client().unwrap();
    tokio::join!(
        a_conflict(Stage::at(client.clone(), "conflict", 2).await),
        an_object_that_is_not_ready(Stage::at(client.clone(), "unready", 2).await),
        a_roll_out(Stage::at(client, "rollout", 1).await),
    );
    assert!(operator.complaints().iter().all(|line| !line.contains("awaited")));
}

async fn a_conflict(stage: Stage) {
    stage.create(&stage.new, "w1", "blue").await;
    let mut spec = stage.spec();
    spec["conflicts"] = json!({"pollInterval": "1h"});
    stage.migrate(spec).await;
    stage.in_phase(DatastorePhase::WaitingForConflictResolution).await;
    let targets = stage.api(&stage.new);
    targets.delete("w1", &DeleteParams::default()).await.unwrap();
    let status = stage.in_phase(DatastorePhase::Complete).await;
    assert_eq!(status.progress.unwrap().migrated, 2);
}

async fn an_object_that_is_not_ready(stage: Stage) {
    let mut spec = stage.spec();
    spec["mappings"][0]["from"]["ready"] =
        json!("object.metadata.name != 'w0' || object.spec.color == 'green'");
    stage.migrate(spec).await;
    stage
        .status_when("blocked", |status| is_stalled_for(status, reason::NOT_READY))
        .await;
    let green = Patch::Merge(json!({"spec": {"color": "green"}}));
    let sources = stage.api(&stage.old);
    sources
        .patch("w0", &PatchParams::default(), &green)
        .await
        .unwrap();
    stage.in_phase(DatastorePhase::Complete).await;
}

async fn a_roll_out(stage: Stage) {
    let deployments: Api<Deployment> = Api::namespaced(stage.client.clone(), &stage.name);
    let labels = json!({"app": "x"});
    let deployment = serde_json::from_value(json!({
        "metadata": {"name": "controller"},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "x"}]}},
        },
    }))
    .unwrap();
    let made = deployments
        .create(&PostParams::default(), &deployment)
        .await
        .unwrap();
    let mut spec = stage.spec();
    spec["cutover"] = json!({"waitFor": [{
        "group": "apps", "version": "v1", "kind": "Deployment", "namespace": stage.name, "name": "controller", "rollout": true,
    }]});
    stage.migrate(spec).await;
    stage
        .status_when("it waits for the roll-out", |status| {
            status.step == "Waiting" && status.message.contains("controller")
        })
        .await;
    // The first look found it so, and the watch has begun since.
    let rolled_out = json!({"status": {
        "observedGeneration": made.metadata.generation, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1,
        "availableReplicas": 1,
    }});
    deployments
        .patch_status("controller", &PatchParams::default(), &Patch::Merge(&rolled_out))
        .await
        .unwrap();
    stage.in_phase(DatastorePhase::Complete).await;
}
