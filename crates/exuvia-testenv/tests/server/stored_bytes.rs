//! etcd's own bytes: what is stored, at which version, and when the server rewrites it.

use exuvia_testenv::{ControlPlane, Widgets};
use kube::api::{Patch, PatchParams};
use serde_json::json;

#[tokio::test]
async fn stored_bytes_name_the_storage_version_whatever_the_endpoint() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("stored.example.com");
    widgets.install(&client, "v1alpha1").await.unwrap();
    widgets.create(&client, "v1", 7).await.unwrap();

    let mut reader = control_plane.stored("stored.example.com", "widgets").page_size(3);
    let mut sizes = Vec::new();
    while let Some(page) = reader.next_page().await.unwrap() {
        sizes.push(page.len());
        for stored in page {
            assert_eq!(stored.api_version.as_deref(), Some("stored.example.com/v1alpha1"));
            assert_eq!(
                stored.key,
                format!("/registry/stored.example.com/widgets/default/{}", stored.name())
            );
            assert_eq!(stored.json().unwrap()["metadata"]["name"], stored.name());
        }
    }
    assert_eq!(sizes, [3, 3, 1], "pages of three");
}

/// PITFALLS A1 and A25.
#[tokio::test]
async fn an_empty_merge_patch_rewrites_an_old_object_and_leaves_a_current_one_alone() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("rewrite.example.com");
    widgets.install(&client, "v1alpha1").await.unwrap();
    widgets.create(&client, "v1alpha1", 1).await.unwrap();
    let api = widgets.api(&client, "v1");
    let stored = async || {
        control_plane
            .stored("rewrite.example.com", "widgets")
            .all()
            .await
            .unwrap()
            .remove(0)
    };
    let empty_patch = async || {
        api.patch("widget-0000", &PatchParams::default(), &Patch::Merge(json!({})))
            .await
            .unwrap()
            .metadata
    };
    widgets.flip_storage(&client, "v1").await.unwrap();
    let old = stored().await;
    assert_eq!(
        old.api_version.as_deref(),
        Some("rewrite.example.com/v1alpha1"),
        "a flip rewrites nothing"
    );
    let before = api.get("widget-0000").await.unwrap().metadata;

    let rewritten = empty_patch().await;
    assert_ne!(rewritten.resource_version, before.resource_version);
    assert_eq!(rewritten.generation, before.generation);
    let new = stored().await;
    assert_eq!(new.api_version.as_deref(), Some("rewrite.example.com/v1"));
    assert_eq!(
        Some(new.mod_revision.to_string()),
        rewritten.resource_version,
        "the revision is the RV"
    );

    let again = empty_patch().await;
    assert_eq!(again.resource_version, rewritten.resource_version);
    assert_eq!(stored().await, new, "a current object is not written");

    let past = control_plane
        .stored("rewrite.example.com", "widgets")
        .at(old.mod_revision)
        .all()
        .await
        .unwrap();
    assert_eq!(past, [old], "etcd still tells what was stored then");
}

#[tokio::test]
async fn after_compaction_a_past_revision_is_an_error() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let before = control_plane.etcd().revision().await.unwrap();
    Widgets::in_group("compact.example.com")
        .install(&control_plane.client().unwrap(), "v1")
        .await
        .unwrap();
    control_plane.etcd().compact().await.unwrap();
    let error = control_plane
        .stored("compact.example.com", "widgets")
        .at(before)
        .all()
        .await
        .unwrap_err();
    assert!(error.to_string().contains("compacted"), "{error}");
}
