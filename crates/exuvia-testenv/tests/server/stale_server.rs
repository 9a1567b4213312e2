//! A server that missed the flip stores at the old version, whatever everybody else has agreed on.

use bytes::Bytes;
use exuvia_testenv::{ControlPlane, Widgets};
use http::Request;

/// PITFALLS A4. The resumed server handles queued requests and its informer's news in no fixed order, so rounds are
/// made until one of its writes was stored old; on two cores the first round does it.
#[tokio::test]
async fn a_paused_server_once_resumed_stores_queued_writes_at_the_old_version() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let second = control_plane.another_apiserver().await.unwrap();
    let client = control_plane.client().unwrap();
    for round in 0..10 {
        let widgets = Widgets::in_group(format!("round-{round}.example.com"));
        widgets.install(&client, "v1alpha1").await.unwrap();
        widgets.create(&client, "v1alpha1", 8).await.unwrap();
        let other = widgets.api(&second.client().unwrap(), "v1");
        exuvia_testenv::until("the second server serves it, too", async || {
            other.get("widget-0000").await.is_ok()
        })
        .await;

        let patch = |index: usize| {
            let path = format!(
                "/apis/{}/v1/namespaces/default/widgets/widget-{index:04}",
                widgets.group()
            );
            Request::patch(path)
                .header("content-type", "application/merge-patch+json")
                .body(Bytes::from(r#"{"spec":{"color":"stale"}}"#))
                .unwrap()
        };
        let stale = second
            .pause_with_queued((0..8).map(patch).collect())
            .await
            .unwrap();
        widgets.flip_storage(&client, "v1").await.unwrap();
        let codes = stale.resume().await.unwrap();
        assert_eq!(
            codes, [200; 8],
            "the stale server is not aware of doing anything wrong"
        );

        let stored = control_plane
            .stored(widgets.group(), "widgets")
            .all()
            .await
            .unwrap();
        let old = format!("{}/v1alpha1", widgets.group());
        let is_stale_write = |stored: &&exuvia_testenv::Stored| {
            stored.json().unwrap()["spec"]["color"] == "stale" && stored.api_version.as_ref() == Some(&old)
        };
        if stored.iter().any(|stored| is_stale_write(&stored)) {
            return;
        }
    }
    panic!("in ten rounds no queued write was stored at the old version");
}
