//! Who asks for the version, and who may not be asked about that.

use exuvia_testenv::ControlPlane;
use futures::{StreamExt, TryStreamExt};
use kube::api::WatchParams;
use serde_json::json;

use super::{admin, droppable, exuvia, json_of, proven, said, until};

/// PITFALLS A37: the request counter moves when a watch ends, which may be never.
#[tokio::test]
async fn an_open_watch_at_the_old_version_holds_it() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = proven(control_plane, "watchers.example.com", 2).await;
    let crd = widgets.crd_name();
    let open = async || {
        let users = json_of(
            &admin(
                control_plane,
                &["storage", "users", &crd, "v1alpha1", "-o", "json"],
            )
            .await,
        );
        users["servers"][0]["watches"].as_u64().unwrap()
    };
    assert_eq!(open().await, 0);
    let old = widgets.api(&client, "v1alpha1");
    let watch = old.watch(&WatchParams::default(), "0").await.unwrap();
    let watching = tokio::spawn(watch.boxed().try_for_each(async |_| Ok(())));
    until("the watch is counted", async || open().await == 1).await;
    for flags in [&[][..], &["--watch", "1s"]] {
        let (code, text) = droppable(control_plane, &widgets, flags).await;
        assert_eq!(code, 1, "{flags:?}: {text}");
        let server = control_plane.apiserver().url();
        let words = format!("usage: 1 watch is open on {server}");
        assert!(text.contains(&words), "{flags:?}: {text}");
    }
    watching.abort();
    until("the watch is over", async || open().await == 0).await;
    let (code, text) = droppable(control_plane, &widgets, &[]).await;
    assert_eq!(code, 0, "{text}");
}

/// Who only reads leaves no trace in objects; the API server counts its requests.
#[tokio::test]
async fn a_reader_at_the_old_version_holds_it_while_it_is_counted() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = proven(control_plane, "readers.example.com", 2).await;
    let count = ["--watch", "1s"];
    let (code, text) = droppable(control_plane, &widgets, &count).await;
    assert_eq!(code, 0, "our own requests do not count: {text}");
    let old = widgets.api(&client, "v1alpha1");
    let reading = async {
        loop {
            old.get("widget-0000").await.unwrap();
        }
    };
    tokio::select! {
        () = reading => {}
        (code, text) = droppable(control_plane, &widgets, &count) => {
            assert_eq!(code, 1);
            assert!(text.contains("usage: it was asked for within 1 s (") && text.contains(" GET"), "{text}");
        }
    }
}

#[tokio::test]
async fn counters_that_may_not_be_read_are_not_taken_for_silence() {
    let control_plane = ControlPlane::shared().await;
    let widgets = proven(control_plane, "unmetered.example.com", 1).await;
    let crd = widgets.crd_name();
    let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]}]);
    let user = control_plane.user_with_rules("unmetered", &rules).await.unwrap();
    let kubeconfig = user.kubeconfig().unwrap();
    let question = ["storage", "droppable", &crd, "v1alpha1"];
    until("the binding is in force", async || {
        let (code, text) = said(&exuvia(kubeconfig.clone(), &question).await);
        code == 3 && !text.contains("could not be listed")
    })
    .await;
    let (_, text) = said(&exuvia(kubeconfig.clone(), &question).await);
    assert!(
        text.contains("usage: not known, /metrics of ") && text.contains("allow `get` on the path /metrics"),
        "{text}"
    );
    assert_eq!(text.matches("to find out:").count(), 1, "{text}");
}
