//! API servers that were told not to count, or not by version: that is not the same as nobody who asks.

use exuvia_storage::servers::ApiServers;
use exuvia_storage::usage::Usage;
use exuvia_testenv::{ControlPlane, Widgets};
use kube::api::WatchParams;

/// What is known of v1alpha1 while a watch at it is open, on an API server with this flag: the number of watches.
async fn watches_with(flag: &str) -> Result<u64, String> {
    let control_plane = ControlPlane::builder()
        .apiserver_flag(flag)
        .start()
        .await
        .unwrap();
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("uncounted.example.com");
    widgets.install(&client, "v1alpha1").await.unwrap();
    let _watch = widgets
        .api(&client, "v1alpha1")
        .watch(&WatchParams::default(), "0")
        .await
        .unwrap();
    let config = control_plane.admin().config().unwrap();
    let url = control_plane.apiserver().url().parse().unwrap();
    let servers = ApiServers::new(&config, &[url], &[]);
    let usage = Usage::observe(&servers, &client, &[(widgets.group(), "widgets")], None).await;
    let (_, counts) = usage.at(widgets.group(), "widgets", "v1alpha1").next().unwrap();
    counts
        .map(|counts| counts.watches)
        .map_err(|unread| unread.why.to_string())
}

#[tokio::test]
async fn an_open_watch_is_not_known_where_the_api_server_does_not_count_them() {
    let unread = watches_with("--disabled-metrics=apiserver_longrunning_requests").await;
    assert!(
        unread
            .as_ref()
            .is_err_and(|why| why.contains("apiserver_longrunning_requests")),
        "{unread:?}"
    );
}

#[tokio::test]
async fn an_open_watch_is_not_known_where_the_api_server_does_not_count_them_by_version() {
    let unread = watches_with("--allow-metric-labels=apiserver_longrunning_requests,version=v1").await;
    assert!(
        unread.as_ref().is_err_and(|why| why.contains("version")),
        "{unread:?}"
    );
}
