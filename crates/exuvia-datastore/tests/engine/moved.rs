//! What a migration moves, and how the targets look afterwards.

use exuvia_api::{DatastorePhase, MIGRATION_UID_ANNOTATION, SOURCE_UIDS_ANNOTATION};
use exuvia_datastore::protocol::Step;
use exuvia_runtime::machine::Ended;
use exuvia_testenv::until;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::{Stage, control_plane, owned_by, up_to};

#[tokio::test]
async fn every_object_is_moved_with_labels_annotations_and_content() {
    let stage = Stage::new("plain", 3).await;
    let patch = json!({"metadata": {"labels": {"team": "a"}, "annotations": {"note": "kept"}}});
    stage
        .api(&stage.old)
        .patch("w1", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
    assert_eq!(stage.run(stage.spec()).await, Ended::Done);
    assert_eq!(stage.phase().await, DatastorePhase::Complete);
    let moved = stage.all(&stage.new).await;
    assert_eq!(moved.len(), 3);
    let sources = stage.all(&stage.old).await;
    for (source, target) in sources.iter().zip(&moved) {
        assert_eq!(source.name_any(), target.name_any());
        assert_eq!(source.data["spec"], target.data["spec"]);
        assert_eq!(source.labels(), target.labels());
        assert_eq!(
            target.annotations().get(SOURCE_UIDS_ANNOTATION),
            source.uid().as_ref()
        );
        assert!(
            !target.annotations().contains_key(MIGRATION_UID_ANNOTATION),
            "marks are dropped"
        );
    }
    assert_eq!(moved[1].annotations()["note"], "kept");
    // etcd has them, at the target's version.
    let stored = control_plane().await.stored(stage.new.group(), "widgets");
    let versions = stored.count_by_version().await.unwrap();
    assert_eq!(
        versions.into_iter().collect::<Vec<_>>(),
        [(format!("{}/v1", stage.new.group()), 3)]
    );
}

#[tokio::test]
async fn the_source_stays_readable_and_cannot_be_written_after_the_move() {
    let stage = Stage::new("readable", 1).await;
    assert_eq!(stage.run(stage.spec()).await, Ended::Done);
    let patch = json!({"spec": {"color": "blue"}});
    let refused = stage
        .api(&stage.old)
        .patch("w0", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("readable"), "{refused}");
    // Each API server learns of a change of the policies on its own (PITFALLS D10).
    until("the target can be written", async || {
        let patch = Patch::Merge(&patch);
        stage
            .api(&stage.new)
            .patch("w0", &PatchParams::default(), &patch)
            .await
    })
    .await;
    // A namespace that is deleted takes the source along.
    until("the source can be deleted", async || {
        let delete = DeleteParams::default();
        stage.api(&stage.old).delete("w0", &delete).await.map(drop)
    })
    .await;
}

/// PITFALLS D12: writes that passed the policy before it refused may commit later. Here they come from the one who may.
#[tokio::test]
async fn writes_that_commit_after_the_copy_are_copied_too() {
    let stage = Stage::new("late", 4).await;
    let owner = stage.api(&stage.old).get("w2").await.unwrap();
    let mut dependent = stage.old.widget("v1", "owned");
    dependent.metadata.namespace = Some(stage.name.clone());
    dependent.metadata.owner_references = Some(vec![owned_by(&owner)]);
    let late = PostParams {
        field_manager: Some("exuvia-datastore".to_owned()),
        ..PostParams::default()
    };
    let api = stage.api(&stage.old);
    api.create(&PostParams::default(), &dependent).await.unwrap();
    let mut spec = stage.spec();
    spec["mappings"][0]["status"] = json!("Copy");
    let migration = stage.migration(spec).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Verify).await;
    let params = PatchParams {
        field_manager: late.field_manager.clone(),
        ..PatchParams::default()
    };
    api.patch("w0", &params, &Patch::Merge(json!({"spec": {"color": "late"}})))
        .await
        .unwrap();
    api.patch_status("w1", &params, &Patch::Merge(json!({"status": {"ready": 9}})))
        .await
        .unwrap();
    let mut made = stage.old.widget("v1", "made");
    made.metadata.namespace = Some(stage.name.clone());
    api.create(&late, &made).await.unwrap();
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    let target = async |name: &str| stage.api(&stage.new).get(name).await.unwrap();
    assert_eq!(target("w0").await.data["spec"]["color"], "late");
    assert_eq!(target("w1").await.data["status"]["ready"], 9);
    assert_eq!(
        target("owned").await.metadata.owner_references,
        Some(vec![owned_by(&target("w2").await)])
    );
    assert_eq!(stage.all(&stage.new).await.len(), 6);
    let progress = stage.read().await.status.unwrap().progress.unwrap();
    assert_eq!((progress.total, progress.migrated), (6, 6));
}
