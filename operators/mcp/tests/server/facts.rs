//! Conditions say what is: an edited backend is not rolled out, and what the server would refuse is told before anything is rolled out.

use exuvia_testenv::proxy::{Fault, Match, Rule};
use http::Method;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use mcp_operator::api::{EPOCH, MCPServer, MCPToolConfig, condition};
use mcp_operator::workload::is_stateful_set_ready;
use serde_json::json;

use crate::gate::image;
use crate::harness::{World, is_true, spec, template_annotation};
use crate::kubelet::Kubelet;
use crate::program::Operator;

/// Whether a condition of the current generation is false for this reason.
fn is_false(server: &MCPServer, condition: &str, reason: &str) -> bool {
    let status = server.status.clone().unwrap_or_default();
    let is_it = |fact: &Condition| {
        fact.type_ == condition
            && (fact.status.as_str(), fact.reason.as_str()) == ("False", reason)
            && fact.observed_generation == server.metadata.generation
    };
    status.conditions.iter().any(is_it)
}

fn message(server: &MCPServer, condition: &str) -> String {
    let status = server.status.clone().unwrap_or_default();
    let fact = status.conditions.into_iter().find(|fact| fact.type_ == condition);
    fact.unwrap().message
}

fn is_rolled_out(server: &MCPServer) -> bool {
    is_true(server, condition::ROLLED_OUT)
}

#[tokio::test]
async fn an_edited_backend_is_not_rolled_out_until_a_runner_has_taken_the_edit_back() {
    let world = World::new("edited").await;
    let (proxy, through) = world.proxied().await;
    let _kubelet = Kubelet::running(&world, Some(through));
    let _operator = Operator::start(&world, &["--resync=300ms"]);
    world.create_server("a", spec("example.com/mcp:1")).await;
    world.server_when("a", "it is rolled out", is_rolled_out).await;

    // Every pod runs the edit and is ready, the stamp is that of the roll-out, and the runner cannot take it back.
    let applies = Match::method(Method::PATCH).resource("statefulsets");
    let refused = proxy.inject(Rule::on(applies).always().then(Fault::refuse(403)));
    let containers = json!([{"name": "mcp", "image": "example.com/mcp:edited"}]);
    let edit = json!({"spec": {"template": {"spec": {"containers": containers}}}});
    let sets: Api<StatefulSet> = world.api();
    sets.patch("a-backend", &PatchParams::default(), &Patch::Strategic(edit))
        .await
        .unwrap();
    world
        .backend_when("a", "all pods run the edit", |set| {
            image(set) == "example.com/mcp:edited" && is_stateful_set_ready(set)
        })
        .await;
    let told = world
        .server_when("a", "it says that the backend differs", |server| {
            is_false(server, condition::ROLLED_OUT, "BackendDiffers")
        })
        .await;
    let words = message(&told, condition::ROLLED_OUT);
    assert!(
        words.contains("spec.template.spec.containers[name=mcp].image has another value"),
        "{words}"
    );
    assert!(!words.contains("mcp:edited"), "values are not shown: {words}");

    refused.remove();
    world
        .server_when("a", "it is rolled out again", is_rolled_out)
        .await;
    let backend = world.backend_when("a", "is there", |_| true).await;
    assert_eq!(image(&backend), "example.com/mcp:1");
}

#[tokio::test]
async fn what_the_server_would_refuse_as_backend_is_told_before_anything_is_rolled_out() {
    let world = World::new("refused").await;
    let _kubelet = Kubelet::running(&world, None);
    let _operator = Operator::start(&world, &["--resync=300ms"]);
    world.create_server("a", spec("example.com/mcp:1")).await;
    let before = world.server_when("a", "it is rolled out", is_rolled_out).await;
    let deployments: Api<Deployment> = world.api();
    let sets: Api<StatefulSet> = world.api();
    let deployment = deployments.get("a").await.unwrap();
    let backend = sets.get("a-backend").await.unwrap();

    let bad_name = json!({"spec": {"env": [{"name": "not=a=name", "value": "s3cret-value"}]}});
    world.patch_server("a", bad_name).await;
    let is_refused = |server: &MCPServer| is_false(server, condition::ACCEPTED, "BackendRefused");
    let told = world.server_when("a", "its backend is refused", is_refused).await;
    let words = message(&told, condition::ACCEPTED);
    assert!(
        words.contains("spec.template.spec.containers[0].env[0].name"),
        "{words}"
    );
    assert!(!json!(told.status).to_string().contains("s3cret"), "{words}");
    assert!(is_false(&told, condition::ROLLED_OUT, "NotAccepted"), "{told:?}");
    assert!(!is_true(&told, condition::READY), "{told:?}");
    assert_eq!(told.annotations()[EPOCH], before.annotations()[EPOCH]);
    let now = deployments.get("a").await.unwrap();
    assert_eq!(now.metadata.generation, deployment.metadata.generation);
    let now = sets.get("a-backend").await.unwrap();
    assert_eq!(now.metadata.generation, backend.metadata.generation);
    assert_eq!(world.run_configs("a").await.len(), 1);

    // A server that has no backend yet; and what the server cannot even read.
    for (name, resources, words) in [
        (
            "more",
            json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
            "must be less than or equal to cpu limit",
        ),
        (
            "unreadable",
            json!({"requests": {"memory": "12Qx"}}),
            "quantities must match",
        ),
    ] {
        let mut bad = spec("example.com/mcp:1");
        bad["resources"] = resources;
        world.create_server(name, bad).await;
        let told = world
            .server_when(name, "its backend is refused", is_refused)
            .await;
        let message = message(&told, condition::ACCEPTED);
        assert!(message.contains(words), "{message}");
        assert!(deployments.get_opt(name).await.unwrap().is_none());
        assert!(world.run_configs(name).await.is_empty());
    }

    // The way back.
    let good_name = json!({"spec": {"env": [{"name": "NAME", "value": "s3cret-value"}]}});
    world.patch_server("a", good_name).await;
    world.server_when("a", "it is rolled out", is_rolled_out).await;
}

#[tokio::test]
async fn tools_stay_filtered_when_the_tool_config_is_gone_or_names_nothing() {
    let world = World::new("toolless").await;
    let _kubelet = Kubelet::fake(&world);
    let _operator = Operator::start(&world, &["--resync=300ms"]);
    let resource = ApiResource::erase::<MCPToolConfig>(&());
    let configs: Api<DynamicObject> = Api::namespaced_with(world.client.clone(), &world.namespace, &resource);
    let config = |spec: serde_json::Value| -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "mcp.exuvia.dev/v1beta1", "kind": "MCPToolConfig", "metadata": {"name": "few"}, "spec": spec,
        }))
        .unwrap()
    };
    // A misspelt key is dropped by the server, and would leave a config that allows everything.
    for nothing in [
        json!({}),
        json!({"toolFilter": ["echo"]}),
        json!({"toolsFilter": []}),
    ] {
        let answer = configs
            .create(&PostParams::default(), &config(nothing.clone()))
            .await;
        assert!(
            matches!(&answer, Err(kube::Error::Api(status)) if status.code == 422),
            "{nothing}: {answer:?}"
        );
    }
    let few = config(json!({"toolsFilter": ["echo"]}));
    configs.create(&PostParams::default(), &few).await.unwrap();
    let mut with_tools = spec("example.com/mcp:1");
    with_tools["toolConfigRef"] = json!({"name": "few"});
    world.create_server("a", with_tools).await;
    let first = world.deployment_when("a", "is there", |_| true).await;

    configs.delete("few", &DeleteParams::default()).await.unwrap();
    world
        .patch_server("a", json!({"spec": {"image": "example.com/mcp:2"}}))
        .await;
    let told = world
        .server_when("a", "it misses its tool config", |server| {
            is_false(server, condition::ACCEPTED, "ToolConfigNotFound")
        })
        .await;
    assert!(is_false(&told, condition::ROLLED_OUT, "NotAccepted"), "{told:?}");
    assert!(!is_true(&told, condition::READY), "{told:?}");
    let now = world.deployment_when("a", "is there", |_| true).await;
    assert_eq!(now.spec.template, first.spec.template, "nothing was rolled out");
    // A pod that starts now mounts the list of before.
    let runs = world.run_configs("a").await;
    let texts: Vec<&str> = runs
        .iter()
        .map(|config| config.data.as_ref().unwrap()["runconfig.json"].as_str())
        .collect();
    assert!(texts.len() == 1 && texts[0].contains("echo"), "{texts:?}");

    let few = config(json!({"toolsFilter": ["echo"]}));
    configs.create(&PostParams::default(), &few).await.unwrap();
    world
        .deployment_when("a", "the second generation is rolled out", |deployment| {
            template_annotation(deployment, "mcp.exuvia.dev/generation").as_deref() == Some("2")
        })
        .await;
}
