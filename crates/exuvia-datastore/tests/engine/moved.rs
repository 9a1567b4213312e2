//! What a migration moves, and how the targets look afterwards.

use exuvia_api::{DatastorePhase, MIGRATION_UID_ANNOTATION, SOURCE_UIDS_ANNOTATION};
use exuvia_runtime::machine::Ended;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::{Stage, control_plane};

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
    stage
        .api(&stage.new)
        .patch("w0", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
    // A namespace that is deleted takes the source along.
    stage
        .api(&stage.old)
        .delete("w0", &DeleteParams::default())
        .await
        .unwrap();
}
