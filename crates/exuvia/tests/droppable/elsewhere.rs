//! What is elsewhere than one looks first: on another API server, in another document, at a newer version.

use exuvia_testenv::ControlPlane;
use futures::{StreamExt, TryStreamExt};
use kube::api::WatchParams;
use serde_json::json;

use super::{admin, droppable, migrate, proven, said};

/// Two API servers, both named to the command: a watch that is open on the second one holds the version, too.
#[tokio::test]
async fn an_open_watch_on_another_api_server_holds_it() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let second = control_plane.another_apiserver_on_host("host-b").await.unwrap();
    let widgets = proven(&control_plane, "second.example.com", 2).await;
    let old = widgets.api(&second.client().unwrap(), "v1alpha1");
    // A server whose cache is cold answers 429 for a moment.
    exuvia_testenv::until("the second server serves it, and takes watches", async || {
        let watched = old.watch(&WatchParams::default(), "0").await;
        old.get("widget-0000").await.is_ok() && watched.is_ok()
    })
    .await;
    let watch = old.watch(&WatchParams::default(), "0").await.unwrap();
    let watching = tokio::spawn(watch.boxed().try_for_each(async |_| Ok(())));
    let (code, text) = droppable(
        &control_plane,
        &widgets,
        &[
            "--prove",
            "--settle",
            "300ms",
            "--apiserver",
            second.url(),
            "--apiserver",
            control_plane.apiserver().url(),
        ],
    )
    .await;
    assert!(!watching.is_finished());
    assert_ne!(code, 0, "{text}");
}

/// kubectl applies both documents; what the cluster ends up with is the last.
#[tokio::test]
async fn the_last_of_two_manifests_of_one_crd_counts() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = super::flipped(&client, "last-counts.example.com", 3).await;
    let mut short = widgets.crd("v1");
    short["spec"]["versions"].as_array_mut().unwrap().remove(0);
    let text = format!("{}\n---\n{}\n", widgets.crd("v1"), short);
    let file = std::env::temp_dir().join(format!("adv-twice-{}.yaml", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let (code, text) = said(
        &admin(
            control_plane,
            &["storage", "droppable", "-f", file.to_str().unwrap()],
        )
        .await,
    );
    assert_ne!(code, 0, "{text}");
}

/// A rollback: the storage version is v1alpha1 again, and v1 is to go. The cure that the answer names must cure it.
#[tokio::test]
async fn the_cure_for_references_to_a_newer_version_cures() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = super::flipped(&client, "rollback.example.com", 1).await;
    widgets.flip_storage(&client, "v1alpha1").await.unwrap();
    let owner = widgets.api(&client, "v1alpha1").get("widget-0000").await.unwrap();
    let maps: kube::Api<k8s_openapi::api::core::v1::ConfigMap> =
        kube::Api::namespaced(client.clone(), "default");
    let map = serde_json::from_value(json!({"metadata": {"name": "rollback-dependent", "ownerReferences": [{
        "apiVersion": "rollback.example.com/v1", "kind": "Widget", "name": "widget-0000", "uid": owner.metadata.uid}]}})).unwrap();
    maps.create(&kube::api::PostParams::default(), &map)
        .await
        .unwrap();
    let crd = widgets.crd_name();
    let ask = ["storage", "droppable", &crd, "v1"];
    let (_, text) = said(&admin(control_plane, &ask).await);
    assert!(text.contains("--shed v1 --owner-references"), "{text}");
    let moved = migrate(control_plane, &[&crd, "--shed", "v1", "--owner-references"]).await;
    assert!(moved.status.success(), "{:?}", said(&moved));
    let (_, text) = said(&admin(control_plane, &ask).await);
    assert!(!text.contains("references: ownerReferences"), "{text}");
}

/// The garbage collector watches each resource at its preferred version, which nobody can update.
#[tokio::test]
async fn a_watch_of_the_garbage_collector_comes_with_the_way_out() {
    let control_plane = ControlPlane::builder()
        .controllers(["garbage-collector-controller"])
        .start()
        .await
        .unwrap();
    let client = control_plane.client().unwrap();
    let widgets = super::flipped(&client, "preferred.example.com", 1).await;
    widgets.flip_storage(&client, "v1alpha1").await.unwrap();
    let crd = widgets.crd_name();
    let done = migrate(&control_plane, &[&crd, "--patrol"]).await;
    assert!(done.status.success(), "{:?}", said(&done));
    exuvia_testenv::until(
        "the garbage collector watches it, and the answer says what to do",
        async || {
            let (_, text) = said(&admin(&control_plane, &["storage", "droppable", &crd, "v1"]).await);
            text.contains("the garbage collector watches itself: set `served: false`")
        },
    )
    .await;
}
