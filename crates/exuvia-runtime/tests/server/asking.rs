//! Every API server is asked itself: two of them on one etcd, one of which stands still.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use exuvia_runtime::servers::{ApiServers, Asked, Awake, NoAnswer};
use exuvia_testenv::{ControlPlane, until};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};

/// Who answered what, in order.
fn said<T: Clone>(asked: &Asked<T>) -> Vec<(String, Option<T>)> {
    let answers = asked.answers.iter();
    answers
        .map(|answer| (answer.server.clone(), answer.said.as_ref().ok().cloned()))
        .collect()
}

/// Whether the server refuses to create a `ConfigMap` without a name: a refusal that is an answer.
async fn denies(server: Client) -> Result<bool, kube::Error> {
    let maps: Api<ConfigMap> = Api::namespaced(server, "default");
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match maps.create(&dry_run, &ConfigMap::default()).await {
        Ok(_) => Ok(false),
        Err(kube::Error::Api(status)) if status.code == 422 => Ok(true),
        Err(error) => Err(error),
    }
}

#[tokio::test]
async fn each_server_answers_for_itself_and_one_that_stands_still_does_not_answer() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let second = control_plane.another_apiserver_on_host("host-b").await.unwrap();
    let client = control_plane.client().unwrap();
    let urls = [control_plane.apiserver().url(), second.url()];
    let names = urls.map(|url| url.trim_start_matches("https://").to_owned());
    let given = urls.map(|url| url.parse().unwrap());
    let servers = ApiServers::new(&control_plane.admin().config().unwrap(), &given, &[]);

    let asked = servers.ask(&client, denies).await.unwrap();
    let both = names.clone().map(|name| (name, Some(true)));
    assert_eq!(said(&asked), both);
    assert_eq!(asked.why_not_all, None, "two identity Leases, two processes");

    second.process().pause().unwrap();
    let asked = servers.ask(&client, denies).await.unwrap();
    let [first, paused] = names.clone();
    assert_eq!(said(&asked), [(first, Some(true)), (paused.clone(), None)]);
    let no_answer = asked.answers[1].said.as_ref().unwrap_err().to_string();
    assert!(no_answer.starts_with("did not answer"), "{no_answer}");

    // The user named it, so it is asked each time.
    second.process().resume().unwrap();
    let asked = servers.ask(&client, denies).await.unwrap();
    assert_eq!(said(&asked), both);

    // Asked alone, it is not all that there are.
    let alone = ApiServers::new(&control_plane.admin().config().unwrap(), &given[1..], &[]);
    let asked = alone.ask(&client, denies).await.unwrap();
    assert_eq!(said(&asked), [(paused, Some(true))]);
    let why = asked.why_not_all.unwrap();
    assert!(why.contains("2 identity Leases"), "{why}");
}

#[tokio::test]
async fn a_listed_server_that_was_silent_is_left_alone_for_a_while() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let client = control_plane.client().unwrap();
    let config = control_plane.admin().config().unwrap();
    let servers = ApiServers::new(&config, &[], &[]);
    let asked = servers.ask(&client, denies).await.unwrap();
    assert_eq!(said(&asked), [], "the cluster lists none: it is on loopback");
    let asked = servers.ask_at_least_one(&client, denies).await.unwrap();
    let url = control_plane.apiserver().url();
    assert_eq!(
        said(&asked),
        [(url.to_owned(), Some(true))],
        "the one that answers us"
    );

    // Nobody has this address: it is for documentation.
    let slice: EndpointSlice = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "elsewhere", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["192.0.2.1"]}],
        "ports": [{"port": 6443}],
    }))
    .unwrap();
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
    slices.create(&PostParams::default(), &slice).await.unwrap();
    let servers = ApiServers::new(&config, &[], &[]);
    let times = Arc::new(AtomicU32::new(0));
    let counted = |server| {
        let times = times.clone();
        async move {
            times.fetch_add(1, Ordering::Relaxed);
            denies(server).await
        }
    };
    let asked = servers.ask(&client, counted).await.unwrap();
    assert_eq!(said(&asked), [("192.0.2.1:6443".to_owned(), None)]);
    let asked = servers.ask(&client, counted).await.unwrap();
    assert!(matches!(asked.answers[0].said, Err(NoAnswer::LeftAlone)));
    assert_eq!(times.load(Ordering::Relaxed), 1, "it was not asked again");
}

/// The identity Lease of an API server whose clock is so many seconds off, renewed now.
async fn renew(leases: &Api<Lease>, host: &str, seconds_off: i64) {
    let now = Timestamp::now() + SignedDuration::from_secs(seconds_off);
    let lease = serde_json::json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": format!("apiserver-{host}"), "labels": {
            "apiserver.kubernetes.io/identity": "kube-apiserver", "kubernetes.io/hostname": host,
        }},
        "spec": {"holderIdentity": host, "leaseDurationSeconds": 3600, "renewTime": MicroTime(now)},
    });
    let params = PatchParams::apply("test").force();
    leases
        .patch(&format!("apiserver-{host}"), &params, &Patch::Apply(&lease))
        .await
        .unwrap();
}

/// Each server writes its own clock's time, so only a Lease that changes tells that it is awake.
#[tokio::test]
async fn a_server_with_a_wrong_clock_is_awake_exactly_if_it_renews_its_lease() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let client = control_plane.client().unwrap();
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    let url = control_plane.apiserver().url().parse().unwrap();
    let servers = ApiServers::new(&control_plane.admin().config().unwrap(), &[url], &[]);
    let since = Instant::now();
    let looks = async |wanted: &str, is_so: &dyn Fn(&Awake) -> bool| {
        until(wanted, async || {
            renew(&leases, "slow", -3600).await;
            let awake = servers.awake(&client, since).await.unwrap();
            assert!(
                !matches!(&awake, Awake::Not(named) if named.iter().any(|name| name.contains("slow"))),
                "{awake:?}"
            );
            is_so(&awake)
        })
        .await;
    };
    looks("all are awake", &|awake| *awake == Awake::All).await;

    // One whose clock is fast, and that sleeps: it seems to have renewed its Lease after any moment of ours.
    renew(&leases, "fast", 3600).await;
    looks("it is missed", &|awake| matches!(awake, Awake::Not(_))).await;
    looks(
        "it is named",
        &|awake| matches!(awake, Awake::Not(named) if named.len() == 1 && named[0].contains("host fast")),
    )
    .await;
    renew(&leases, "fast", 3600).await;
    looks("it has woken", &|awake| *awake == Awake::All).await;
}
