//! Faults of the servers: they die, they have enough, they forget.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use exuvia_api::Phase;
use exuvia_testenv::proxy::{Answer, Fault, Match, Proxy, Rule};
use exuvia_testenv::{ControlPlane, until};
use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;

use crate::harness::{control_plane, flipped, in_phase, install_crds, label, stored_versions};
use crate::oracle::*;

/// Waits until a request that comes from now on fails, or finds nobody to answer it.
async fn next_failure(proxy: &Proxy) {
    let now = proxy.requests().last().map_or(0, |request| request.id);
    let failed = |answer: Option<u16>| answer.is_none_or(|code| code >= 500);
    let failure = proxy.wait_for(|request| request.id > now && request.finished && failed(request.answer));
    tokio::time::timeout(exuvia_testenv::DEADLINE, failure)
        .await
        .expect("the operator does not notice");
}

/// The API server dies in the middle of the rewrite, and etcd a little later.
#[tokio::test]
async fn a_pass_outlives_the_api_server_and_etcd() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "deaths.example.com", 40, true).await;
    let other = flipped(&client, "other.example.com", 3, false).await;
    let proxy = control_plane.proxy().await.unwrap();
    let gate = Gate::after(10, &proxy, &widgets);
    let operator = start_behind(&proxy, &control_plane, &["--page-size=10"]);
    gate.reached().await;
    control_plane.apiserver().process().kill().unwrap();
    gate.open_for(10);
    next_failure(&proxy).await;
    control_plane.apiserver().process().restart().unwrap();
    control_plane.apiserver().ready().await.unwrap();
    // The operator's watches are still down. What happens now is not missed either.
    let client = control_plane.client().unwrap();
    label(&client, &other, Some("true")).await;

    gate.reached().await;
    assert_eq!(stored_versions(&client, &widgets).await, ["v1alpha1", "v1"]);
    control_plane.etcd().process().kill().unwrap();
    gate.open();
    next_failure(&proxy).await;
    control_plane.etcd().process().restart().unwrap();
    for (widgets, count) in [(&widgets, 40), (&other, 3)] {
        in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
        assert_all_at(&control_plane, widgets, "v1", count).await;
        assert_each_written(&control_plane, widgets, 1).await;
        assert_none_asked_twice(&proxy, widgets);
    }
    let (_, metrics) = operator.get("/metrics").await;
    let expired = metric(&metrics, "exuvia_watch_restarts_total", r#"reason="expired""#);
    assert!(
        expired > 0,
        "a server that is new does not know what was before: {metrics}"
    );
}

#[tokio::test]
async fn a_server_that_has_enough_is_left_alone_for_as_long_as_it_asks() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "enough.example.com", 40, true).await;
    let proxy = control_plane.proxy().await.unwrap();
    let gate = Gate::after(8, &proxy, &widgets);
    let operator = start_behind(&proxy, &control_plane, &[]);
    gate.reached().await;
    proxy.forget();
    let tries: Arc<Mutex<BTreeMap<String, Vec<Instant>>>> = Arc::default();
    let note = Arc::clone(&tries);
    let enough = Rule::on(on_rewrites()).then(Fault::refuse(Answer::status(429).retry_after(1)));
    let throttled = proxy.inject(enough.on_request(move |request| {
        let mut tries = note.lock().unwrap();
        tries
            .entry(request.path.clone())
            .or_default()
            .push(Instant::now());
    }));
    let since = Instant::now();
    gate.open();
    until("the server has said it often enough", async || {
        (throttled.applied() >= 16).then_some(())
    })
    .await;
    // Four objects are in work at most, and none is tried again before the second that was asked for is over.
    let (requests, seconds) = (throttled.applied(), since.elapsed().as_secs());
    assert!(
        requests <= 4 * (seconds + 2),
        "{requests} requests in {seconds} s"
    );
    let tries = tries.lock().unwrap().clone();
    let pauses = tries
        .values()
        .flat_map(|tries| tries.windows(2).map(|two| two[1] - two[0]));
    let pauses: Vec<Duration> = pauses.collect();
    assert!(
        pauses.iter().all(|pause| *pause >= Duration::from_secs(1)),
        "{pauses:?}"
    );
    let others = proxy
        .requests()
        .into_iter()
        .filter(|request| !is_rewrite(request, &widgets) && !is_lease(request));
    let others: Vec<String> = others.map(|request| request.path).collect();
    assert!(others.len() as u64 <= 4 * (seconds + 2), "{others:?}");
    throttled.remove();
    in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    assert_all_at(&control_plane, &widgets, "v1", 40).await;
    assert_each_written(&control_plane, &widgets, 1).await;
    let (_, metrics) = operator.get("/metrics").await;
    let retries = metric(&metrics, "exuvia_write_retries_total", r#"class="throttled""#);
    assert!(retries >= 8, "{metrics}");
}

/// A priority level with one seat and no queue for all that the operator asks for, but for its Lease, as in the chart.
async fn give_one_seat(control_plane: &ControlPlane, user: &str) {
    let client = control_plane.client().unwrap();
    let level = json!({
        "metadata": {"name": "tiny"},
        "spec": {"type": "Limited", "limited": {
            "nominalConcurrencyShares": 1, "lendablePercent": 0, "borrowingLimitPercent": 0,
            "limitResponse": {"type": "Reject"},
        }},
    });
    let levels: Api<PriorityLevelConfiguration> = Api::all(client.clone());
    levels
        .create(&PostParams::default(), &serde_json::from_value(level).unwrap())
        .await
        .unwrap();
    let schemas: Api<FlowSchema> = Api::all(client);
    for (precedence, level, group) in [(99, "leader-election", "coordination.k8s.io"), (100, "tiny", "*")] {
        let schema = json!({
            "metadata": {"name": format!("operator-{level}")},
            "spec": {
                "matchingPrecedence": precedence,
                "priorityLevelConfiguration": {"name": level},
                "rules": [{
                    "subjects": [{"kind": "User", "user": {"name": user}}],
                    "resourceRules": [{"apiGroups": [group], "resources": ["*"], "verbs": ["*"],
                                       "clusterScope": true, "namespaces": ["*"]}],
                }],
            },
        });
        schemas
            .create(&PostParams::default(), &serde_json::from_value(schema).unwrap())
            .await
            .unwrap();
    }
}

/// The real thing: the API server itself has one seat for the operator, and rejects what finds it taken.
#[tokio::test]
async fn in_a_tiny_priority_level_a_migration_is_slow_and_completes() {
    let builder = ControlPlane::builder()
        .apiserver_flag("--max-requests-inflight=20")
        .apiserver_flag("--max-mutating-requests-inflight=20");
    let control_plane = builder.start().await.unwrap();
    let client = control_plane.client().unwrap();
    install_crds(&client).await;
    let widgets = flipped(&client, "tiny.example.com", 40, true).await;
    let all = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    let user = control_plane.user_with_rules("operator", &all).await.unwrap();
    give_one_seat(&control_plane, user.user()).await;
    let proxy = control_plane.proxy_as(&user).await.unwrap();
    let since = Instant::now();
    let _operator = start_behind(&proxy, &control_plane, &[]);
    in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    let seconds = since.elapsed().as_secs();
    let requests = proxy.requests();
    let rejected = requests
        .iter()
        .filter(|request| request.answer == Some(429))
        .count();
    assert!(rejected > 0, "the level does not bite");
    assert!(
        rejected as u64 <= 4 * (seconds + 2),
        "{rejected} rejected in {seconds} s"
    );
    assert_all_at(&control_plane, &widgets, "v1", 40).await;
    assert_each_written(&control_plane, &widgets, 1).await;
}

/// PITFALLS A20: at the start of a watch, in the midst of one, and for a continue token, with and without another.
#[tokio::test]
async fn what_the_server_has_forgotten_is_asked_for_again_and_nothing_is_missed() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let [first, second, third] = ["first", "second", "third"].map(|name| format!("{name}.example.com"));
    let first = flipped(&client, &first, 25, true).await;
    let second = flipped(&client, &second, 25, false).await;
    let third = flipped(&client, &third, 3, false).await;
    let proxy = control_plane.proxy().await.unwrap();
    let watches = || Match::method(http::Method::GET).query("watch=true");

    // No watch begins, and the first migration loses its place in the list: the preflight reads four pages more than the
    // first, the rewrite is next.
    let at_start = proxy.inject(Rule::on(watches()).then(Fault::refuse(410)));
    let pages = |group: &str| Match::any().path(format!("/apis/{group}/*")).query("continue=");
    let lost = proxy.inject(Rule::on(pages(first.group())).nth(5).then(Fault::refuse(410)));
    let operator = start_behind(&proxy, &control_plane, &["--page-size=5"]);
    // The three watches have each been refused twice.
    until("no watch begins", async || {
        (at_start.applied() >= 6).then_some(())
    })
    .await;

    // The same again in the midst of a watch, and with a token with which to go on.
    let page = second
        .api(&client, "v1")
        .list(&ListParams::default().limit(5))
        .await
        .unwrap();
    let expired = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410,
        "message": "too old", "metadata": {"continue": page.metadata.continue_.unwrap()}});
    let resumed = Fault::refuse(Answer::status(410).json(&expired));
    let resumed = proxy.inject(Rule::on(pages(second.group())).nth(5).then(resumed));
    label(&client, &second, Some("true")).await;
    let error = Answer::status(200).json(&json!({"type": "ERROR", "object": expired}));
    let midway = proxy.inject(Rule::on(watches()).then(Fault::refuse(error)));
    at_start.remove();
    until("watches end in an error", async || {
        (midway.applied() >= 3).then_some(())
    })
    .await;
    label(&client, &third, Some("true")).await;
    midway.remove();
    for (widgets, count) in [(&first, 25), (&second, 25), (&third, 3)] {
        in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
        assert_all_at(&control_plane, widgets, "v1", count).await;
        assert_each_written(&control_plane, widgets, 1).await;
    }
    // A sweep that begins again may list an object that it is just writing; one that goes on does not.
    assert_none_asked_twice(&proxy, &second);
    assert_eq!((lost.applied(), resumed.applied()), (1, 1));
    let (_, metrics) = operator.get("/metrics").await;
    let errors = metric(&metrics, "controller_runtime_reconcile_errors_total", "");
    let restarts = metric(&metrics, "exuvia_watch_restarts_total", r#"reason="expired""#);
    assert!(restarts >= 9 && errors == 0, "{metrics}");
}
