//! The race of two generations of runners, replayed on a real roll-out: maxSurge 1, maxUnavailable 0, and containers that restart.

use std::collections::BTreeSet;

use exuvia_testenv::until;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use mcp_operator::workload::is_deployment_rolled_out;
use serde_json::json;

use crate::gate::image;
use crate::harness::{World, is_true, spec};
use crate::kit::live;
use crate::kubelet::Kubelet;
use crate::lone::Lone;
use crate::program::Operator;

/// The numbers of the backend's revisions. One that comes back gets a new number, so that the highest tells how often the
/// backend was changed.
pub(crate) async fn revisions(world: &World) -> BTreeSet<i64> {
    let api: Api<ControllerRevision> = world.api();
    let all = api.list(&ListParams::default()).await.unwrap();
    all.items
        .iter()
        .filter_map(|revision| revision.revision)
        .collect()
}

/// A runner's pod with this annotation.
async fn pod_with(world: &World, key: &str, value: &str) -> Pod {
    until(&format!("a runner's pod with {key}={value}"), async || {
        let pods = world.pods("a", "proxy").await;
        pods.into_iter()
            .find(|pod| pod.annotations().get(key).is_some_and(|own| own == value))
    })
    .await
}

/// The race that the frozen config ends: a roll-out in which the old runner's container restarts.
///
/// With the operator's layout the restarted runner reads its own config and is skipped by the strict gate.
#[tokio::test]
async fn a_roll_out_with_a_restarted_old_runner_has_two_revisions() {
    let world = World::new("replay-frozen").await;
    let kubelet = Kubelet::running(&world, None);
    let _operator = Operator::start(&world, &[]);
    world.create_server("a", spec("example.com/mcp:1")).await;
    world
        .server_when("a", "it is rolled out", |server| is_true(server, "RolledOut"))
        .await;
    let generation = "mcp.exuvia.dev/generation";
    let old = pod_with(&world, generation, "1").await;
    assert!(old.spec.as_ref().unwrap().node_name.is_some(), "it was scheduled");
    // The new runner waits for a backend that does not come up, so that the old one stays.
    world
        .patch_server("a", json!({"spec": {"image": "example.com/mcp:bad"}}))
        .await;
    world
        .backend_when("a", "the new image is applied", |backend| {
            image(backend) == "example.com/mcp:bad"
        })
        .await;
    let new = pod_with(&world, generation, "2").await;
    for round in 0..3 {
        let restarted = kubelet.restart_container(&old).await;
        restarted.logs("decision=skip ours=1 theirs=2 env=1 file=1").await;
        restarted.ready().await;
        let again = kubelet.restart_container(&new).await;
        again.logs("decision=nothing").await;
        assert_eq!(revisions(&world).await, [1, 2].into(), "round {round}");
    }
    let backend = world.backend_when("a", "is there", |_| true).await;
    assert_eq!(image(&backend), "example.com/mcp:bad");
}

/// The same race as it is without the freeze: a config that follows the object, the image from the old pod's arguments, no
/// generation in the environment. Generations are equal then, and two runners overwrite each other for ever.
#[tokio::test]
async fn without_the_freeze_two_runners_overwrite_each_other() {
    let world = World::new("replay-live").await;
    let kubelet = Kubelet::running(&world, None);
    let (first, second) = ("example.com/mcp:1", "example.com/mcp:2");
    let roll_out = async |image, generation, keeps_old| {
        live::roll_out(&world.client, &world.namespace, image, generation, keeps_old)
            .await
            .unwrap();
    };
    roll_out(first, 1, false).await;
    world
        .deployment_when("a", "it is rolled out", is_deployment_rolled_out)
        .await;
    let old = pod_with(&world, "image", first).await;
    roll_out(second, 2, true).await;
    let new = pod_with(&world, "image", second).await;
    world
        .backend_when("a", "the new image is applied", |backend| {
            image(backend) == second
        })
        .await;
    let mut highest = 2;
    for (pod, own) in [(&old, first), (&new, second), (&old, first), (&new, second)] {
        let restarted = kubelet.restart_container(pod).await;
        restarted
            .logs("decision=apply ours=2 theirs=2 env=- file=2")
            .await;
        restarted.ready().await;
        let backend = world.backend_when("a", "is there", |_| true).await;
        assert_eq!(image(&backend), own, "it overwrote the other's");
        highest = until("another revision", async || {
            let now = *revisions(&world).await.last().unwrap();
            (now > highest).then_some(now)
        })
        .await;
    }
    assert!(highest >= 6, "it grows with every restart: {highest}");

    // With the environment of its own pod, which beats the file, the old one is skipped.
    let mut lone = Lone::new();
    lone.config(&world, second, 2);
    let compat = ["--gate=compat", "--image=example.com/mcp:0"];
    let overridden = lone.start(&world, &[("MCP_GENERATION", "1")], &compat);
    overridden
        .logs("decision=skip ours=1 theirs=2 env=1 file=2")
        .await;
    let backend = world.backend_when("a", "is there", |_| true).await;
    assert_eq!(image(&backend), second);
}
