//! The look itself: pages of one moment, objects that change meanwhile, tokens that expire.

use std::sync::Mutex;
use std::sync::mpsc::channel;

use exuvia_testenv::ControlPlane;
use exuvia_testenv::proxy::{Fault, Match, Rule};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::{Bench, paths, soon};

fn legacy() -> Value {
    json!({"type": "object", "properties": {"size": {"type": "integer"}, "legacy": {"type": "string"}}})
}

fn plain() -> Value {
    json!({"type": "object", "properties": {"size": {"type": "integer"}}})
}

/// `count` widgets without the field that would be lost, and one with it behind the first pages.
async fn filled<'a>(control_plane: &'a ControlPlane, group: &str, count: usize) -> Bench<'a> {
    let bench = Bench::installed_on(control_plane, group, legacy(), plain()).await;
    bench
        .widgets
        .create(&bench.client, "v1alpha1", count)
        .await
        .unwrap();
    bench
        .create("v1alpha1", "widget-last", json!({"legacy": "precious"}))
        .await;
    bench.flip().await;
    bench
}

/// A continue token of one version is good at the other's endpoint.
#[tokio::test]
async fn both_versions_are_paged_at_one_revision_with_the_same_tokens() {
    let bench = filled(ControlPlane::shared().await, "paged", 250).await;
    let proxy = bench.control_plane.proxy().await.unwrap();
    let losses = bench.look(&proxy.client().unwrap()).await;
    assert_eq!((losses.looked_at, losses.objects), (251, 1));
    assert_eq!(paths(&losses.erased), [("spec.legacy", 1, "default/widget-last")]);
    let requests = proxy.requests();
    assert_eq!(
        requests.len(),
        6,
        "three pages at two versions, and no object by itself: {requests:?}"
    );
    for pair in requests.chunks(2).skip(1) {
        assert!(pair[0].query.contains("continue=") && pair[0].query == pair[1].query);
    }
}

/// The second list is of the first one's revision, whatever was written since.
#[tokio::test]
async fn a_write_between_the_two_lists_does_not_tear_them_apart() {
    let bench = filled(ControlPlane::shared().await, "moved", 3).await;
    let proxy = bench.control_plane.proxy().await.unwrap();
    let (arrived, written) = (channel(), channel());
    let released = Mutex::new(written.1);
    let lists = Match::any().path("/apis/moved.example.com/v1alpha1/widgets");
    proxy.inject(Rule::on(lists).nth(1).on_request(move |_| {
        arrived.0.send(()).unwrap();
        released.lock().unwrap().recv().unwrap();
    }));
    let client = proxy.client().unwrap();
    let writes = async {
        tokio::task::spawn_blocking(move || arrived.1.recv().unwrap())
            .await
            .unwrap();
        let api = bench.widgets.api(&bench.client, "v1alpha1");
        // One gets another value, and is stored again without the field; one goes; one comes.
        let size = Patch::Merge(json!({"spec": {"size": 7}}));
        api.patch("widget-last", &PatchParams::default(), &size)
            .await
            .unwrap();
        api.delete("widget-0000", &DeleteParams::default()).await.unwrap();
        let widget = bench.widgets.widget("v1alpha1", "widget-0000a");
        api.create(&PostParams::default(), &widget).await.unwrap();
        written.0.send(()).unwrap();
    };
    let (losses, ()) = Box::pin(soon(async { tokio::join!(bench.look(&client), writes) })).await;
    assert_eq!(
        (losses.looked_at, losses.objects),
        (4, 1),
        "as it was then: {losses:?}"
    );
    assert_eq!(proxy.requests().len(), 2, "no object is read by itself");
    assert!(
        bench.look(&client).await.erased.is_empty(),
        "the writer has lost it meanwhile"
    );
}

/// Where the revision of the first list is gone.
#[tokio::test]
async fn objects_without_a_partner_of_the_same_moment_are_read_by_name() {
    let bench = filled(ControlPlane::shared().await, "torn", 3).await;
    let proxy = bench.control_plane.proxy().await.unwrap();
    let lists = Match::any().path("/apis/torn.example.com/v1alpha1/widgets");
    proxy.inject(Rule::on(lists).times(2).then(Fault::refuse(410)));
    let losses = bench.look(&proxy.client().unwrap()).await;
    assert_eq!((losses.looked_at, losses.objects), (4, 1));
    assert_eq!(paths(&losses.erased), [("spec.legacy", 1, "default/widget-last")]);
    let by_name = |request: &&exuvia_testenv::proxy::Recorded| request.query.contains("fieldSelector");
    assert_eq!(
        proxy.requests().iter().filter(by_name).count(),
        8,
        "each at both versions"
    );
}

#[tokio::test]
async fn an_overloaded_server_is_asked_again() {
    let bench = filled(ControlPlane::shared().await, "busy", 3).await;
    let proxy = bench.control_plane.proxy().await.unwrap();
    let lists = Match::any().path("/apis/busy.example.com/*/widgets");
    let rule = proxy.inject(Rule::on(lists).times(2).then(Fault::refuse(503)));
    assert_eq!(bench.look(&proxy.client().unwrap()).await.objects, 1);
    assert_eq!(rule.applied(), 2);
}

/// 410 without a token to go on with: all of it is looked at again, and counted once.
#[tokio::test]
async fn a_list_that_loses_its_place_starts_over_and_counts_each_object_once() {
    let bench = filled(ControlPlane::shared().await, "lost", 150).await;
    let proxy = bench.control_plane.proxy().await.unwrap();
    let second_page = Match::any()
        .path("/apis/lost.example.com/v1/widgets")
        .query("continue=");
    let rule = proxy.inject(Rule::on(second_page).nth(1).then(Fault::refuse(410)));
    let losses = bench.look(&proxy.client().unwrap()).await;
    assert_eq!(rule.applied(), 1);
    assert_eq!((losses.looked_at, losses.objects), (151, 1));
    assert_eq!(paths(&losses.erased), [("spec.legacy", 1, "default/widget-last")]);
}

/// Whatever fails for a moment, at either version.
#[tokio::test]
async fn every_page_survives_a_failure_that_passes() {
    let bench = filled(ControlPlane::shared().await, "passing", 150).await;
    let proxy = bench.control_plane.proxy().await.unwrap();
    let lists = Match::any().path("/apis/passing.example.com/*/widgets");
    for (nth, fault) in [
        (1, Fault::ResetRequest),
        (3, Fault::refuse(429)),
        (5, Fault::DropAnswer),
        (7, Fault::Truncate(300)),
    ] {
        proxy.inject(Rule::on(lists.clone()).nth(nth).then(fault));
    }
    let losses = bench.look(&proxy.client().unwrap()).await;
    assert_eq!((losses.looked_at, losses.objects), (151, 1));
    assert_eq!(
        proxy.requests().len(),
        8,
        "two pages at two versions, each asked for twice"
    );
}

/// PITFALLS A8, with a real compaction while the second page is waited for.
#[tokio::test]
async fn a_token_that_expires_between_two_pages_costs_no_object() {
    let control_plane = ControlPlane::builder()
        .apiserver_flag("--etcd-compaction-interval=1s")
        .start()
        .await
        .unwrap();
    let bench = filled(&control_plane, "expired", 150).await;
    let proxy = control_plane.proxy().await.unwrap();
    let (arrived, expired) = (channel(), channel());
    let released = Mutex::new(expired.1);
    let second_page = Match::any()
        .path("/apis/expired.example.com/v1/widgets")
        .query("continue=");
    proxy.inject(Rule::on(second_page).nth(1).on_request(move |_| {
        arrived.0.send(()).unwrap();
        released.lock().unwrap().recv().unwrap();
    }));
    let client = proxy.client().unwrap();
    let expiry = async {
        tokio::task::spawn_blocking(move || arrived.1.recv().unwrap())
            .await
            .unwrap();
        let api = bench.widgets.api(&bench.client, "v1");
        let page = ListParams::default().limit(10);
        let token = api.list(&page).await.unwrap().metadata.continue_.unwrap();
        let page = page.continue_token(&token);
        loop {
            // Compaction needs revisions to throw away.
            let widget = bench.widgets.widget("v1", "zz");
            api.create(&PostParams::default(), &widget).await.unwrap();
            api.delete("zz", &DeleteParams::default()).await.unwrap();
            match api.list(&page).await {
                Err(kube::Error::Api(status)) if status.code == 410 => break,
                answer => drop(answer.unwrap()),
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await; // compaction has no other sign
        }
        expired.0.send(()).unwrap();
    };
    let (losses, ()) = Box::pin(soon(async { tokio::join!(bench.look(&client), expiry) })).await;
    assert!(proxy.requests().iter().any(|request| request.answer == Some(410)));
    assert_eq!((losses.looked_at, losses.objects), (151, 1));
    assert_eq!(paths(&losses.erased), [("spec.legacy", 1, "default/widget-last")]);
}
