//! The runtime and the claim: followers are warm and silent, and who loses it stops at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use exuvia_runtime::{Claim, Next};
use exuvia_testenv::proxy::{Fault, Match, Rule};
use exuvia_write::Writer;
use futures::FutureExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;

use crate::{
    Stage,
    electing::Candidate,
    keeper::{Behaviour, Carried, Happened, at_ease, began, ended},
    soon, until,
};

#[tokio::test]
async fn a_follower_has_seen_everything_and_does_nothing_until_it_leads() {
    let stage = Stage::set("warm").await;
    stage.create("a").await;
    let claim = Claim::none();
    let mut carried = Carried::start(&stage, &stage.proxied, &claim, at_ease());
    until("it is ready", async || carried.health.is_ready()).await;
    stage.create("b").await;
    let depth = r#"workqueue_depth{name="keeper"} 2"#;
    until("the metric is shown", async || carried.shows_metric(depth)).await;
    assert_eq!(carried.next().await, Happened::Watches);
    assert!(carried.happenings.try_recv().is_err());
    assert!(stage.proxy.writes().is_empty());

    let leader = Candidate::with(claim, &stage.direct, "warm", "us", Duration::from_secs(10));
    carried
        .shows(vec![began("a"), ended("a"), began("b"), ended("b")])
        .await;
    leader.stop().await;
    carried.stop().await;
}

#[tokio::test]
async fn who_loses_the_claim_drops_what_it_does_and_takes_it_up_again_when_it_leads_again() {
    let stage = Stage::set("loses").await;
    stage.create("a").await;
    let patient = Arc::new(AtomicBool::new(true));
    let waits = Arc::clone(&patient);
    let behaviour: Behaviour = Arc::new(move |_, _| {
        if waits.load(Ordering::SeqCst) {
            std::future::pending().boxed()
        } else {
            async { Ok(Next::Await) }.boxed()
        }
    });
    let claim = Claim::none();
    let elected = |client| Candidate::with(claim.clone(), client, "loses", "us", Duration::from_secs(3));
    let leader = elected(&stage.proxied);
    let mut carried = Carried::start(&stage, &stage.direct, &claim, behaviour);
    carried.shows(vec![Happened::Watches, began("a")]).await;
    // The way to the lease is gone; the way to everything else is not.
    stage
        .proxy
        .inject(Rule::on(Match::any()).then(Fault::DropRequest));
    assert_eq!(carried.next().await, Happened::CutOff("a".to_owned()));
    assert!(!claim.holds());
    stage.create("b").await;
    patient.store(false, Ordering::SeqCst);
    let depth = r#"workqueue_depth{name="keeper"} 2"#;
    until("the metric is shown", async || carried.shows_metric(depth)).await;
    assert!(
        carried.happenings.try_recv().is_err(),
        "nothing begins without the claim"
    );
    stage.proxy.clear();
    carried
        .shows(vec![began("a"), ended("a"), began("b"), ended("b")])
        .await;
    leader.stop().await;
    carried.stop().await;
}

#[tokio::test]
async fn nothing_is_written_without_the_claim() {
    let stage = Stage::bare("gated").await;
    let claim = Claim::none();
    let writer = Writer::named("gated").gate(claim.gate());
    let api: Api<ConfigMap> = Api::namespaced(stage.proxied.clone(), "default");
    let mut map = ConfigMap::default();
    map.metadata.name = Some("gated".to_owned());
    let error = writer.create(&api, &map).await.unwrap_err().to_string();
    assert!(error.contains("not the leader"), "{error}");
    assert!(stage.proxy.requests().is_empty());
    let leader = Candidate::with(
        claim.clone(),
        &stage.direct,
        "gated",
        "us",
        Duration::from_secs(10),
    );
    soon(claim.gained()).await;
    writer.create(&api, &map).await.unwrap();
    leader.stop().await;
    writer.dry_run().create(&api, &map).await.unwrap_err();
    assert_eq!(stage.proxy.requests().len(), 1);
}
