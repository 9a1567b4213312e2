//! Stamps: always there, always current, and nothing is written once all is as it should be.

use exuvia_testenv::proxy::{Proxy, Recorded};
use exuvia_testenv::until;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use mcp_operator::api::MCPServer;
use serde_json::{Value, json};

use crate::harness::{World, spec, template_annotation};
use crate::kubelet::{Kubelet, environment};
use crate::program::Operator;

const GENERATION: &str = "mcp.exuvia.dev/generation";
const FENCE: &str = "exuvia.dev/fence";
const CONFIG_HASH: &str = "exuvia.dev/config-hash";

#[tokio::test]
async fn the_stamp_is_the_live_generation_and_the_container_sees_it() {
    let world = World::new("stamps").await;
    let _kubelet = Kubelet::fake(&world);
    let _operator = Operator::start(&world, &[]);
    let created = world.create_server("a", spec("example.com/mcp:1")).await;
    let uid = created.uid().unwrap();
    for (generation, image) in [
        (1, None),
        (2, Some("example.com/mcp:2")),
        (3, Some("example.com/mcp:3")),
    ] {
        if let Some(image) = image {
            world.patch_server("a", json!({"spec": {"image": image}})).await;
        }
        let stamp = generation.to_string();
        let is_stamped =
            |deployment: &Deployment| template_annotation(deployment, GENERATION).as_ref() == Some(&stamp);
        let deployment = world.deployment_when("a", "has the generation", is_stamped).await;
        assert_eq!(world.server("a").await.metadata.generation, Some(generation));
        let token = format!("{uid}/{generation}");
        assert_eq!(template_annotation(&deployment, FENCE), Some(token.clone()));
        let pod = until("a pod with the stamp", async || {
            let pods = world.pods("a", "proxy").await;
            pods.into_iter()
                .find(|pod| pod.annotations().get(GENERATION) == Some(&stamp))
        })
        .await;
        let env = environment(&pod, &pod.spec.as_ref().unwrap().containers[0]);
        let value = |name: &str| {
            env.iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.clone())
        };
        assert_eq!(value("MCP_GENERATION"), Some(stamp.clone()));
        assert_eq!(value("MCP_FENCE"), Some(token));
        assert!(value("MCP_CONFIG_HASH").is_some_and(|hash| hash.len() == 64));
        let config = format!("a-run-{}", &value("MCP_CONFIG_HASH").unwrap()[..8]);
        let volumes = pod.spec.as_ref().unwrap().volumes.clone().unwrap();
        assert!(
            volumes
                .iter()
                .any(|volume| volume.config_map.as_ref().is_some_and(|map| map.name == config))
        );
    }
}

#[tokio::test]
async fn what_people_override_replaces_neither_stamp_nor_checksum() {
    let world = World::new("overrides").await;
    let _operator = Operator::start(&world, &[]);
    let mut spec = spec("example.com/mcp:1");
    let stolen = json!({GENERATION: "99", FENCE: "stolen/9", CONFIG_HASH: "stolen", "exuvia.dev/template-hash": "stolen", "mine": "yes"});
    spec["resourceOverrides"] = json!({"proxyDeployment": {
        "annotations": stolen,
        "labels": {"mcp.exuvia.dev/server": "stolen", "team": "blue"},
        "podTemplateMetadataOverrides": {"annotations": stolen, "labels": {"mcp.exuvia.dev/part": "stolen", "team": "blue"}},
        "env": [
            {"name": "MCP_FENCE", "value": "stolen/9"},
            {"name": "MCP_GENERATION", "value": "99"},
            {"name": "MCP_CONFIG_HASH", "value": "stolen"},
            {"name": "RUST_BACKTRACE", "value": "1"},
        ],
    }});
    let server = world.create_server("a", spec).await;
    let deployment = world.deployment_when("a", "is there", |_| true).await;
    let text = serde_json::to_string(&(
        &deployment.metadata.annotations,
        &deployment.metadata.labels,
        &deployment.spec,
    ))
    .unwrap();
    assert!(!text.contains("stolen") && !text.contains("\"99\""), "{text}");
    assert_eq!(
        template_annotation(&deployment, FENCE),
        Some(format!("{}/1", server.uid().unwrap()))
    );
    assert_eq!(template_annotation(&deployment, "mine").as_deref(), Some("yes"));
    assert_eq!(deployment.labels()["team"], "blue");
    let container = &deployment.spec.template.spec.unwrap().containers[0];
    let names: Vec<_> = container
        .env
        .iter()
        .flatten()
        .map(|variable| variable.name.as_str())
        .collect();
    assert_eq!(names.iter().filter(|name| **name == "MCP_FENCE").count(), 1);
    assert!(names.contains(&"RUST_BACKTRACE"));
}

/// How often the operator has read the server so far: once for each reconcile.
fn reconciles(proxy: &Proxy) -> usize {
    let is_it = |request: &Recorded| {
        let object = request.object();
        request.method == http::Method::GET
            && object.is_some_and(|object| object.resource == "mcpservers" && object.name == "a")
    };
    proxy.requests().iter().filter(|request| is_it(request)).count()
}

fn assert_silent(proxy: &Proxy, who: &str) {
    let writes: Vec<String> = proxy
        .writes()
        .iter()
        .map(|write| format!("{} {} {}", write.method, write.path, write.json()))
        .collect();
    assert!(writes.is_empty(), "{who} wrote: {writes:#?}");
}

#[tokio::test]
async fn a_converged_operator_and_its_runner_send_no_write_at_all() {
    let world = World::new("silent").await;
    let (of_operator, operator_config) = world.proxied().await;
    let (of_runner, runner_config) = world.proxied().await;
    let kubelet = Kubelet::running(&world, Some(runner_config));
    let operator = Operator::start_with(&world, &operator_config, &["--resync=200ms"]);
    let mut spec = spec("example.com/mcp:1");
    spec["resources"] = json!({"requests": {"cpu": "1000m", "memory": "1024Mi"}});
    spec["env"] = json!([{"name": "EMPTY", "value": ""}, {"name": "A", "value": "b"}]);
    spec["backendReplicas"] = json!(2);
    world.create_server("a", spec).await;
    let is_rolled_out = |server: &MCPServer| crate::harness::is_true(server, "RolledOut");
    world.server_when("a", "it is rolled out", is_rolled_out).await;
    // The handshake comes last, and fails: nothing listens in the backend. From then on nothing changes.
    let failed = |server: &MCPServer| {
        let status = server.status.as_ref().unwrap();
        status
            .conditions
            .iter()
            .any(|fact| fact.reason == "HandshakeFailed")
    };
    world.server_when("a", "the handshake was tried", failed).await;

    of_operator.forget();
    until("20 reconciles", async || reconciles(&of_operator) >= 20).await;
    assert_silent(&of_operator, "the operator");

    operator.stop();
    of_operator.forget();
    let operator = Operator::start_with(&world, &operator_config, &["--resync=200ms"]);
    until("20 reconciles after a restart", async || {
        reconciles(&of_operator) >= 20
    })
    .await;
    assert_silent(&of_operator, "the operator after its restart");
    operator.stop();

    of_runner.forget();
    let pod = world.pods("a", "proxy").await.pop().unwrap();
    let runner = kubelet.restart_container(&pod).await;
    runner.ready().await;
    runner.logs("decision=nothing").await;
    assert_silent(&of_runner, "the runner after its restart");
}

/// Why every `fieldRef` has its apiVersion, and why children are not compared naively.
#[tokio::test]
async fn an_intent_without_the_api_version_of_a_field_reference_would_be_applied_for_ever() {
    let world = World::new("naive").await;
    let field = json!({"fieldPath": "metadata.name"});
    let labels = json!({"app": "naive"});
    let intent = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "naive"},
        "spec": {"selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels},
            "spec": {"containers": [{"name": "c", "image": "i", "env": [{"name": "NAME", "valueFrom": {"fieldRef": field}}]}]},
        }},
    });
    let api: Api<Deployment> = world.api();
    for _ in 0..3 {
        let live = api
            .patch("naive", &PatchParams::apply("naive"), &Patch::Apply(&intent))
            .await
            .unwrap();
        let live = serde_json::to_value(live).unwrap();
        let place = "/spec/template/spec/containers/0/env/0/valueFrom/fieldRef";
        let naive = |value: &Value| value.pointer(place).cloned();
        assert_ne!(
            naive(&live),
            naive(&intent),
            "a naive comparison finds a difference each time"
        );
    }
}
