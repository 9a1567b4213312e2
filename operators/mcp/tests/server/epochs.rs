//! Epochs: none is issued twice, none goes back, and nobody but the operator moves them.

use exuvia_testenv::proxy::{Fault, Match, Proxy, Recorded, Rule};
use exuvia_testenv::until;
use http::Method;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use mcp_operator::api::{EPOCH, MCPServer, condition};
use serde_json::json;

use crate::harness::{World, is_true, spec, template_annotation};
use crate::kubelet::Kubelet;
use crate::program::Operator;

const FENCE: &str = "exuvia.dev/fence";
const ABSURD: i64 = 999_999_999_999_999_999;

/// Writes to children: all but those to the server itself and to events.
fn writes_to_children(proxy: &Proxy) -> Vec<Recorded> {
    let is_child = |write: &Recorded| {
        let object = write.object();
        object.is_some_and(|object| !["mcpservers", "events"].contains(&object.resource))
    };
    proxy.writes().into_iter().filter(is_child).collect()
}

#[tokio::test]
async fn a_write_of_an_old_leader_that_arrives_late_changes_nothing() {
    let world = World::new("late").await;
    let _kubelet = Kubelet::fake(&world);
    let (proxy, kubeconfig) = world.proxied().await;
    let old = Operator::start_with(&world, &kubeconfig, &[]);
    // With a number of replicas in the spec there is nothing to hand over before an apply.
    let mut one = spec("example.com/mcp:1");
    one["replicas"] = json!(1);
    let uid = world.create_server("a", one).await.uid().unwrap();
    world.deployment_when("a", "is there", |_| true).await;
    world
        .server_when("a", "its status is there", |server| server.status.is_some())
        .await;
    let created = writes_to_children(&proxy);
    let is_apply = |write: &&Recorded| write.content_type() == Some("application/apply-patch+yaml");
    assert!(
        !created.iter().any(|write| is_apply(&write)),
        "what is new is made by POST"
    );

    // The old leader's roll-out is on its way when another one takes over.
    let applies = Match::method(Method::PATCH).resource("deployments");
    let held = proxy.inject(Rule::on(applies).always().then(Fault::StallRequest));
    proxy.forget();
    let change = json!({"spec": {"image": "example.com/mcp:2", "proxyPort": 18080}});
    world.patch_server("a", change).await;
    until("its write is on its way", async || held.applied() > 0).await;
    let writes = writes_to_children(&proxy);
    let late = writes
        .iter()
        .find(|write| {
            write
                .object()
                .is_some_and(|object| object.resource == "deployments")
        })
        .unwrap();
    // The Service came first, and kept its address.
    let services: Api<Service> = world.api();
    let service = services.get("a").await.unwrap();
    assert_eq!(service.spec.unwrap().ports.unwrap()[0].port, 18080);
    for write in writes.iter().filter(is_apply) {
        let metadata = &write.json()["metadata"];
        assert!(
            metadata["uid"].is_string() && metadata["resourceVersion"].is_string(),
            "{metadata}"
        );
    }
    old.process.kill().unwrap();

    world
        .patch_server("a", json!({"spec": {"image": "example.com/mcp:3"}}))
        .await;
    let _new = Operator::start(&world, &[]);
    let is_third = |deployment: &Deployment| {
        template_annotation(deployment, FENCE).as_deref() == Some(&format!("{uid}/3"))
    };
    let third = world
        .deployment_when("a", "the second epoch was issued already", is_third)
        .await;
    let note = world.server("a").await.annotations()[EPOCH].clone();
    assert!(note.starts_with(&format!("{uid}/3 ")), "{note}");

    let deployments: Api<Deployment> = world.api();
    let params = PatchParams::apply("mcp-operator").force();
    let answer = deployments.patch("a", &params, &Patch::Apply(late.json())).await;
    assert!(
        matches!(&answer, Err(kube::Error::Api(status)) if status.code == 409),
        "{answer:?}"
    );
    let after = deployments.get("a").await.unwrap();
    assert_eq!(after.spec.template, third.spec.template);
}

/// After the highest epoch that is believed they would begin at 1 again, and runners of before would win.
#[tokio::test]
async fn an_epoch_that_would_not_be_believed_is_never_issued() {
    let world = World::new("highest").await;
    let _kubelet = Kubelet::fake(&world);
    let _operator = Operator::start(&world, &["--resync=300ms"]);
    let server = world.create_server("a", spec("example.com/mcp:1")).await;
    let uid = server.uid().unwrap();
    world.deployment_when("a", "is there", |_| true).await;
    world
        .annotate("a", EPOCH, &format!("{uid}/999999999998 raised-by-hand"))
        .await;
    let highest = format!("{uid}/999999999999");
    let is_highest =
        |deployment: &Deployment| template_annotation(deployment, FENCE).as_deref() == Some(highest.as_str());
    let before = world
        .deployment_when("a", "the epoch goes on from there", is_highest)
        .await;
    world
        .patch_server("a", json!({"spec": {"image": "example.com/mcp:2"}}))
        .await;
    world
        .server_when("a", "it says that no epoch is left", |server| {
            let status = server.status.clone().unwrap_or_default();
            let mut facts = status.conditions.iter();
            facts.any(|fact| fact.type_ == condition::ACCEPTED && fact.reason == "EpochTooHigh")
        })
        .await;
    let after = world.deployment_when("a", "is there", |_| true).await;
    assert_eq!(
        after.spec.template, before.spec.template,
        "nothing was rolled out"
    );
    let note = world.server("a").await.annotations()[EPOCH].clone();
    assert!(note.starts_with(&format!("{highest} ")), "{note}");
}

#[tokio::test]
async fn what_runners_can_write_moves_no_epoch() {
    let world = World::new("absurd").await;
    let _kubelet = Kubelet::running(&world, None);
    let _operator = Operator::start(&world, &["--resync=300ms"]);
    let uid = world
        .create_server("a", spec("example.com/mcp:1"))
        .await
        .uid()
        .unwrap();
    world
        .server_when("a", "it is rolled out", |server| {
            is_true(server, condition::ROLLED_OUT)
        })
        .await;
    let before = world.deployment_when("a", "is there", |_| true).await;

    let servers: Api<MCPServer> = world.api();
    let lie = Patch::Merge(json!({"status": {"epoch": ABSURD}}));
    servers
        .patch_status("a", &PatchParams::default(), &lie)
        .await
        .unwrap();
    world
        .server_when("a", "the status is put right", |server| {
            server.status.as_ref().and_then(|status| status.epoch) == Some(1)
        })
        .await;
    let sets: Api<StatefulSet> = world.api();
    let stamp = format!("{uid}/{ABSURD}");
    let lie = Patch::Merge(json!({"metadata": {"annotations": {FENCE: stamp}}}));
    sets.patch("a-backend", &PatchParams::default(), &lie)
        .await
        .unwrap();
    world
        .server_when("a", "it says that the backend is ahead", |server| {
            let status = server.status.clone().unwrap_or_default();
            let mut facts = status.conditions.iter();
            facts.any(|fact| fact.type_ == condition::ROLLED_OUT && fact.reason == "BackendAhead")
        })
        .await;
    let after = world.deployment_when("a", "is there", |_| true).await;
    assert_eq!(
        after.spec.template, before.spec.template,
        "nothing was rolled out"
    );

    // The way out that the condition names.
    sets.delete("a-backend", &kube::api::DeleteParams::background())
        .await
        .unwrap();
    world
        .server_when("a", "it is rolled out again", |server| {
            is_true(server, condition::ROLLED_OUT)
        })
        .await;
    let backend = world.backend_when("a", "is there", |_| true).await;
    assert_eq!(backend.annotations()[FENCE], format!("{uid}/1"));
}
