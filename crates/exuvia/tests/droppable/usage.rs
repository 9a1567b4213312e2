//! Who asks for the version, and who may not be asked about that.

use exuvia_testenv::{ControlPlane, until};
use futures::{StreamExt, TryStreamExt};
use kube::api::WatchParams;
use serde_json::json;

use super::{admin, droppable, exuvia, json_of, proven, said};

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

/// Two API servers with an identity Lease each. The command reaches one, and a client watches on the other.
#[tokio::test]
async fn a_server_that_was_not_asked_is_not_taken_for_silent() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let widgets = proven(&control_plane, "unasked.example.com", 2).await;
    let (code, text) = droppable(&control_plane, &widgets, &[]).await;
    assert_eq!(code, 0, "one server, one Lease: {text}");
    let second = control_plane.another_apiserver_on_host("host-b").await.unwrap();
    let old = widgets.api(&second.client().unwrap(), "v1alpha1");
    until("the second server takes watches", async || {
        let watched = old.watch(&WatchParams::default(), "0").await;
        old.get("widget-0000").await.is_ok() && watched.is_ok()
    })
    .await;
    let watch = old.watch(&WatchParams::default(), "0").await.unwrap();
    let watching = tokio::spawn(watch.boxed().try_for_each(async |_| Ok(())));
    for flags in [&[][..], &["--watch", "1s"]] {
        let (code, text) = droppable(&control_plane, &widgets, flags).await;
        assert_eq!(code, 3, "{flags:?}: {text}");
        let why = "usage: not known, not every API server was asked: kube-system has 2 identity Leases, and 1 answered";
        assert!(text.contains(why) && text.contains("--apiserver URL"), "{text}");
    }
    // As advised.
    let named = ["--apiserver", second.url()];
    let (code, text) = droppable(&control_plane, &widgets, &named).await;
    assert!(code == 1 && text.contains("usage: 1 watch is open on "), "{text}");
    assert!(!watching.is_finished());
    watching.abort();
    until("every server was asked, and is silent", async || {
        droppable(&control_plane, &widgets, &named).await.0 == 0
    })
    .await;
}

/// Without the right to count the API servers nobody knows whether all were asked.
#[tokio::test]
async fn servers_that_may_not_be_counted_are_not_taken_for_one() {
    let control_plane = ControlPlane::shared().await;
    let widgets = proven(control_plane, "uncounted.example.com", 1).await;
    let crd = widgets.crd_name();
    let rules = json!([
        {"apiGroups": ["", "apiextensions.k8s.io", "discovery.k8s.io", "uncounted.example.com"], "resources": ["*"],
         "verbs": ["get", "list"]},
        {"nonResourceURLs": ["/metrics"], "verbs": ["get"]},
    ]);
    let user = control_plane.user_with_rules("uncounted", &rules).await.unwrap();
    let kubeconfig = user.kubeconfig().unwrap();
    let question = ["storage", "droppable", &crd, "v1alpha1", "--no-references"];
    until("the answer names the right that is missing", async || {
        let (code, text) = said(&exuvia(kubeconfig.clone(), &question).await);
        code == 3
            && text.contains("usage: not known, there may be API servers that were not asked")
            && text.contains("allow `list` on leases.coordination.k8s.io in namespace kube-system")
    })
    .await;
}
