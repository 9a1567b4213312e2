//! Recovery without hands: bad images, and replicas that people or autoscalers set.

use exuvia_testenv::until;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::harness::{World, is_true, spec};
use crate::kubelet::Kubelet;
use crate::program::Operator;

fn image(backend: &StatefulSet) -> &str {
    backend.spec.template.spec.as_ref().unwrap().containers[0]
        .image
        .as_deref()
        .unwrap()
}

#[tokio::test]
async fn a_good_image_after_a_bad_one_comes_up_by_itself() {
    let world = World::new("recovery").await;
    let _kubelet = Kubelet::running(&world, None);
    let _operator = Operator::start(&world, &[]);
    world.create_server("a", spec("example.com/mcp:1")).await;
    world
        .server_when("a", "it is rolled out", |server| is_true(server, "RolledOut"))
        .await;
    world
        .patch_server("a", json!({"spec": {"image": "example.com/mcp:bad"}}))
        .await;
    world
        .backend_when("a", "the bad pod is stuck", |backend| {
            let status = backend.status.as_ref().unwrap();
            image(backend) == "example.com/mcp:bad"
                && status.updated_replicas == Some(1)
                && status.ready_replicas.unwrap_or(0) == 0
        })
        .await;
    let server = world.server("a").await;
    assert!(!is_true(&server, "Ready"));
    world
        .patch_server("a", json!({"spec": {"image": "example.com/mcp:2"}}))
        .await;
    world
        .server_when("a", "it is rolled out again", |server| {
            is_true(server, "RolledOut")
        })
        .await;
    let backend = world.backend_when("a", "is there", |_| true).await;
    assert_eq!(image(&backend), "example.com/mcp:2");
}

#[tokio::test]
async fn the_stuck_pod_of_an_adopted_ordered_set_is_deleted() {
    let world = World::new("ordered").await;
    let _kubelet = Kubelet::running(&world, None);
    let labels = json!({"mcp.exuvia.dev/server": "a", "mcp.exuvia.dev/part": "backend"});
    let old: StatefulSet = serde_json::from_value(json!({
        "metadata": {"name": "a-backend", "labels": labels},
        "spec": {
            "serviceName": "a-backend", "podManagementPolicy": "OrderedReady", "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "mcp", "image": "example.com/mcp:bad"}]}},
        },
    }))
    .unwrap();
    let sets: Api<StatefulSet> = world.api();
    let old = sets.create(&PostParams::default(), &old).await.unwrap();
    let stuck = until("its pod is stuck", async || {
        world.pods("a", "backend").await.pop()
    })
    .await;
    let _operator = Operator::start(&world, &[]);
    world.create_server("a", spec("example.com/mcp:1")).await;
    world
        .server_when("a", "it is rolled out", |server| is_true(server, "RolledOut"))
        .await;
    let adopted = sets.get("a-backend").await.unwrap();
    assert_eq!(adopted.uid(), old.uid(), "adopted, not replaced");
    assert_eq!(
        adopted.spec.pod_management_policy.as_deref(),
        Some("OrderedReady")
    );
    let pod = world.pods("a", "backend").await.pop().unwrap();
    assert_ne!(pod.uid(), stuck.uid());
}

#[tokio::test]
async fn replicas_that_the_spec_drops_stay_and_scale_and_restart_are_respected() {
    let world = World::new("scale").await;
    let _kubelet = Kubelet::running(&world, None);
    let _operator = Operator::start(&world, &["--resync=300ms"]);
    let mut three = spec("example.com/mcp:1");
    three["backendReplicas"] = json!(3);
    three["replicas"] = json!(2);
    world.create_server("a", three).await;
    world
        .server_when("a", "it is rolled out", |server| is_true(server, "RolledOut"))
        .await;
    let replicas = |backend: &StatefulSet| backend.spec.replicas;
    assert_eq!(
        replicas(&world.backend_when("a", "is there", |_| true).await),
        Some(3)
    );

    world
        .patch_server("a", json!({"spec": {"backendReplicas": null, "replicas": null}}))
        .await;
    world
        .server_when("a", "the change is rolled out", |server| {
            is_true(server, "RolledOut")
        })
        .await;
    assert_eq!(
        replicas(&world.backend_when("a", "is there", |_| true).await),
        Some(3),
        "nobody asked for fewer"
    );
    let proxies = world.deployment_when("a", "is there", |_| true).await;
    assert_eq!(proxies.spec.replicas, Some(2));

    // kubectl scale, of both, and kubectl rollout restart.
    let sets: Api<StatefulSet> = world.api();
    let deployments: Api<Deployment> = world.api();
    let scale = Patch::Merge(json!({"spec": {"replicas": 4}}));
    sets.patch_scale("a-backend", &PatchParams::default(), &scale)
        .await
        .unwrap();
    let one = Patch::Merge(json!({"spec": {"replicas": 1}}));
    deployments
        .patch_scale("a", &PatchParams::default(), &one)
        .await
        .unwrap();
    let at = "kubectl.kubernetes.io/restartedAt";
    let restart = json!({"spec": {"template": {"metadata": {"annotations": {at: "2026-01-01T00:00:00Z"}}}}});
    let by_kubectl = PatchParams {
        field_manager: Some("kubectl-rollout".to_owned()),
        ..PatchParams::default()
    };
    sets.patch("a-backend", &by_kubectl, &Patch::Strategic(&restart))
        .await
        .unwrap();
    deployments
        .patch("a", &by_kubectl, &Patch::Strategic(&restart))
        .await
        .unwrap();

    // An image bump makes both writers apply again.
    world
        .patch_server("a", json!({"spec": {"image": "example.com/mcp:2"}}))
        .await;
    world
        .server_when("a", "the bump is rolled out", |server| {
            is_true(server, "RolledOut")
        })
        .await;
    let backend = sets.get("a-backend").await.unwrap();
    assert_eq!(
        (image(&backend), backend.spec.replicas),
        ("example.com/mcp:2", Some(4))
    );
    let restarted = backend.spec.template.metadata.unwrap().annotations.unwrap();
    assert_eq!(restarted[at], "2026-01-01T00:00:00Z");
    let proxies = deployments.get("a").await.unwrap();
    assert_eq!(proxies.spec.replicas, Some(1));
    assert!(
        proxies
            .spec
            .template
            .metadata
            .unwrap()
            .annotations
            .unwrap()
            .contains_key(at)
    );
}
