//! A server that is not accepted: said once, in our words and then the API server's, and without values of variables.

use exuvia_testenv::proxy::Recorded;
use exuvia_testenv::until;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use mcp_operator::api::{MCPServer, condition};
use serde_json::json;

use crate::harness::{World, is_true, spec};
use crate::program::Operator;

/// What the condition says, if the server is not accepted for this reason.
fn refusal(server: &MCPServer, reason: &str) -> Option<String> {
    let mut facts = server.status.iter().flat_map(|status| &status.conditions);
    let fact = facts.find(|fact| fact.type_ == condition::ACCEPTED && fact.status == "False")?;
    (fact.reason == reason).then(|| fact.message.clone())
}

async fn notes(world: &World, server: &str, reason: &str) -> Vec<String> {
    let api: Api<Event> = world.api();
    let all = api.list(&ListParams::default()).await.unwrap().items;
    let of_server = all.into_iter().filter(|event| {
        let about = event.regarding.as_ref().and_then(|about| about.name.as_deref());
        about == Some(server) && event.reason.as_deref() == Some(reason)
    });
    of_server.filter_map(|event| event.note).collect()
}

#[tokio::test]
async fn a_server_that_is_not_accepted_is_told_once_and_without_values() {
    let world = World::new("told-once").await;
    let (proxy, through) = world.proxied().await;
    let operator = Operator::start_with(&world, &through, &["--resync=300ms"]);
    let log = || std::fs::read_to_string(operator.process.log_path()).unwrap();

    let mut variable = spec("example.com/mcp:1");
    variable["env"] = json!([{"name": "not=a=name", "value": "s3cret-value"}]);
    let mut label = spec("example.com/mcp:1");
    label["resourceOverrides"] = json!({"proxyDeployment": {
        "labels": {"team": "s3cret label"}, "env": [{"name": "A", "value": "s3cret-value"}],
    }});
    let mut origin = spec("example.com/mcp:1");
    origin["allowedOrigins"] = json!(["foo"]);
    for (name, spec) in [("variable", variable), ("label", label), ("origin", origin)] {
        world.create_server(name, spec).await;
    }
    // Each is looked at again and again.
    let looks = |name: &str| {
        let requests = proxy.requests();
        let objects = requests.iter().filter_map(Recorded::object);
        objects
            .filter(|object| (object.resource, object.name) == ("deployments", name))
            .count()
    };
    until("each was looked at five times", async || {
        ["variable", "label", "origin"]
            .iter()
            .all(|name| looks(name) >= 5)
    })
    .await;

    for (name, reason, words) in [
        (
            "variable",
            "BackendRefused",
            "the API server refuses statefulsets.apps variable-backend for \
             spec.template.spec.containers[0].env[0].name, so nothing is rolled out: Invalid value: …: ",
        ),
        (
            "label",
            "InvalidChild",
            "the API server refuses deployments.apps label for metadata.labels: Invalid value: …: ",
        ),
        (
            "origin",
            "InvalidOrigin",
            "allowedOrigins: invalid origin \"foo\"",
        ),
    ] {
        let told = world
            .server_when(name, reason, |server| refusal(server, reason).is_some())
            .await;
        let message = refusal(&told, reason).unwrap();
        assert!(message.starts_with(words), "{message}");
        // A note that is too long for an event is cut.
        let notes = notes(&world, name, reason).await;
        assert!(notes.len() == 1 && notes[0].starts_with(words), "{notes:?}");
        let log = log();
        let lines = log.lines().filter(|line| line.contains(&message)).count();
        assert_eq!(lines, 1, "{log}");
        assert!(!json!(told.status).to_string().contains("s3cret"), "{message}");
    }
    assert!(!log().contains("s3cret"), "{}", log());
    assert!(!log().contains("reconcile failed"), "{}", log());

    // The way back.
    world.patch_server("variable", json!({"spec": {"env": []}})).await;
    world
        .server_when("variable", "it is accepted", |server| {
            is_true(server, condition::ACCEPTED)
        })
        .await;
    let lines = log()
        .lines()
        .filter(|line| line.contains("accepted server=\"variable\""))
        .count();
    assert_eq!(lines, 1, "{}", log());
}
