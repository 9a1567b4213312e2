//! Leader election on a real Lease: never two claims, whatever breaks.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use exuvia_runtime::{Claim, LeaseSettings, elect};
use exuvia_testenv::proxy::{Fault, Match, Rule};
use exuvia_write::Writer;
use futures::FutureExt;
use http::Method;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use tokio::{sync::oneshot, task::JoinHandle};

use crate::{Stage, soon, until};

/// Somebody who stands for election.
pub(crate) struct Candidate {
    pub(crate) claim: Claim,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Candidate {
    pub(crate) fn stands(client: &Client, lease: &str, identity: &str, duration: Duration) -> Self {
        Self::with(Claim::none(), client, lease, identity, duration)
    }

    pub(crate) fn with(
        claim: Claim,
        client: &Client,
        lease: &str,
        identity: &str,
        duration: Duration,
    ) -> Self {
        let settings = LeaseSettings {
            namespace: "default".to_owned(),
            name: lease.to_owned(),
            identity: identity.to_owned(),
            duration,
        };
        let (stop, stopped) = oneshot::channel();
        let stopped = stopped.map(drop);
        let writer = Writer::named("elector");
        let task = tokio::spawn(elect(client.clone(), writer, settings, claim.clone(), stopped));
        Self { claim, stop, task }
    }

    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        soon(self.task).await.unwrap();
        assert!(!self.claim.holds(), "a candidate that has gone holds nothing");
    }
}

async fn lease(client: &Client, name: &str) -> Lease {
    let api: Api<Lease> = Api::namespaced(client.clone(), "default");
    api.get(name).await.unwrap()
}

async fn holder(client: &Client, name: &str) -> String {
    let lease = lease(client, name).await;
    lease.spec.unwrap().holder_identity.unwrap_or_default()
}

/// Waits until its leader, "first", has written the lease after it was at this resourceVersion.
async fn renewed_since(api: &Api<Lease>, version: Option<String>) {
    until("its leader renews the Lease", async || {
        let lease = api.get("touched").await.unwrap();
        lease.metadata.resource_version != version
            && lease.spec.unwrap().holder_identity.as_deref() == Some("first")
    })
    .await;
}

#[tokio::test]
async fn one_of_two_leads_and_hands_over_when_it_goes() {
    let stage = Stage::bare("handover").await;
    // So long that nobody runs out of it within this test.
    let duration = Duration::from_secs(10);
    let first = Candidate::stands(&stage.direct, "handover", "first", duration);
    soon(first.claim.gained()).await;
    let spec = lease(&stage.direct, "handover").await.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("first"));
    assert_eq!(
        (spec.lease_duration_seconds, spec.lease_transitions),
        (Some(10), Some(0))
    );
    assert!(spec.acquire_time.is_some() && spec.renew_time.is_some());

    let second = Candidate::stands(&stage.proxied, "handover", "second", duration);
    soon(
        stage
            .proxy
            .wait_for(|request| request.finished && request.answer == Some(200)),
    )
    .await;
    assert!(!second.claim.holds());
    assert!(stage.proxy.writes().is_empty(), "a follower only looks");
    first.stop().await;
    tokio::time::timeout(duration, second.claim.gained())
        .await
        .expect("it need not wait for the lease to run out");
    let spec = lease(&stage.direct, "handover").await.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("second"));
    assert_eq!(spec.lease_transitions, Some(1));
    second.stop().await;
    assert_eq!(holder(&stage.direct, "handover").await, "");
}

#[tokio::test]
async fn a_leader_that_is_cut_off_loses_its_claim_before_the_next_one_gets_it_and_goes_on_as_a_follower() {
    let stage = Stage::bare("cutoff").await;
    let duration = Duration::from_secs(3);
    let first = Candidate::stands(&stage.proxied, "cutoff", "first", duration);
    soon(first.claim.gained()).await;
    let second = Candidate::stands(&stage.direct, "cutoff", "second", duration);

    let order = Arc::new(Mutex::new(Vec::new()));
    let noting = |what: &'static str, claim: &Claim| {
        let (order, claim) = (Arc::clone(&order), claim.clone());
        async move {
            match what {
                "lost" => claim.lost().await,
                _ => claim.gained().await,
            }
            order.lock().unwrap().push(what);
        }
    };
    let lost = tokio::spawn(noting("lost", &first.claim));
    let gained = tokio::spawn(noting("gained", &second.claim));
    // It hangs rather than fails: only the clock tells.
    stage
        .proxy
        .inject(Rule::on(Match::any()).then(Fault::StallRequest));
    let renewed = lease(&stage.direct, "cutoff")
        .await
        .spec
        .unwrap()
        .renew_time
        .unwrap();
    soon(gained).await.unwrap();
    assert!(!first.claim.holds(), "there are never two");
    soon(lost).await.unwrap();
    assert_eq!(*order.lock().unwrap(), ["lost", "gained"]);

    let spec = lease(&stage.direct, "cutoff").await.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("second"));
    assert_eq!(spec.lease_transitions, Some(1));
    let waited = spec.acquire_time.unwrap().0.duration_since(renewed.0);
    assert!(waited.unsigned_abs() >= duration, "{waited:?}");

    stage.proxy.clear();
    second.stop().await;
    soon(first.claim.gained()).await;
    assert_eq!(holder(&stage.direct, "cutoff").await, "first");
    first.stop().await;
}

#[tokio::test]
async fn a_lease_that_is_touched_or_deleted_or_whose_answers_are_lost_stays_with_its_leader() {
    let stage = Stage::bare("touched").await;
    let duration = Duration::from_secs(6);
    let first = Candidate::stands(&stage.proxied, "touched", "first", duration);
    soon(first.claim.gained()).await;
    let second = Candidate::stands(&stage.direct, "touched", "second", duration);
    let api: Api<Lease> = Api::namespaced(stage.direct.clone(), "default");
    let claim = first.claim.clone();
    let lost = claim.lost();
    tokio::pin!(lost);
    assert!(lost.as_mut().now_or_never().is_none());

    // Somebody labels it: the next renewal finds another resourceVersion.
    let label = Patch::Merge(json!({"metadata": {"labels": {"touched": "yes"}}}));
    let touched = api
        .patch("touched", &PatchParams::default(), &label)
        .await
        .unwrap();
    renewed_since(&api, touched.metadata.resource_version).await;

    // A renewal is carried out, but nobody tells us.
    let renewals = Match::method(Method::PATCH).resource("leases");
    let unanswered = stage
        .proxy
        .inject(Rule::on(renewals).nth(1).then(Fault::DropAnswer));
    until("a renewal is not answered", async || unanswered.applied() == 1).await;
    let version = lease(&stage.direct, "touched").await.metadata.resource_version;
    renewed_since(&api, version).await;

    // Somebody deletes it.
    let uid = lease(&stage.direct, "touched").await.metadata.uid;
    api.delete("touched", &DeleteParams::default()).await.unwrap();
    until("the Lease is made again", async || {
        api.get_opt("touched")
            .await
            .unwrap()
            .is_some_and(|lease| lease.metadata.uid != uid)
    })
    .await;
    assert_eq!(holder(&stage.direct, "touched").await, "first");
    assert!(!second.claim.holds());
    assert!(lost.as_mut().now_or_never().is_none(), "it led all the time");
    first.stop().await;
    second.stop().await;
}

#[tokio::test]
async fn a_lease_of_less_than_a_second_works() {
    let stage = Stage::bare("short").await;
    let duration = Duration::from_millis(900);
    let first = Candidate::stands(&stage.proxied, "short", "first", duration);
    soon(first.claim.gained()).await;
    let spec = lease(&stage.direct, "short").await.spec.unwrap();
    assert_eq!(spec.lease_duration_seconds, Some(1));
    stage
        .proxy
        .inject(Rule::on(Match::any()).then(Fault::DropRequest));
    let second = Candidate::stands(&stage.direct, "short", "second", duration);
    soon(second.claim.gained()).await;
    assert!(!first.claim.holds());
    second.stop().await;
    first.stop().await; // the proxy lets nothing through, and it ends anyway
}
