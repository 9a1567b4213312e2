//! What the runner applies, against edits, old runners whose writes come late, and pods of an owner that was replaced.

use std::sync::{Mutex, mpsc};

use exuvia_testenv::proxy::{Match, Proxy, Rule};
use exuvia_testenv::until;
use http::Method;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Service;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use mcp_operator::api::MCPServer;
use serde_json::{Value, json};

use crate::gate::image;
use crate::harness::{World, spec};
use crate::kubelet::Kubelet;
use crate::lone::Lone;

const FENCE: &str = "exuvia.dev/fence";

/// Writes the run config of server `a` with more in it.
fn config(lone: &Lone, world: &World, image: &str, more: &Value) -> String {
    let path = lone.config(world, image, 1);
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let members = config.as_object_mut().unwrap();
    members.extend(more.as_object().unwrap().clone());
    std::fs::write(&path, config.to_string()).unwrap();
    exuvia_rollout::hash_bytes(config.to_string().as_bytes())
}

fn port(service: &Service) -> Option<i32> {
    let ports = service.spec.as_ref()?.ports.as_ref()?;
    Some(ports.first()?.port)
}

async fn service_when(world: &World, what: &str, holds: impl Fn(&Service) -> bool) -> Service {
    let api: Api<Service> = world.api();
    until(&format!("headless Service: {what}"), async || {
        let found = api.get_opt("a-backend").await.unwrap();
        found.filter(|found| holds(found))
    })
    .await
}

fn writes(proxy: &Proxy, resource: &str) -> Vec<String> {
    let writes = proxy.writes();
    let about = writes
        .iter()
        .filter(|write| write.object().is_some_and(|object| object.resource == resource));
    about
        .map(|write| format!("{} {} {}", write.method, write.path, write.json()))
        .collect()
}

#[tokio::test]
async fn edits_are_taken_back_and_a_late_write_of_an_old_runner_changes_nothing() {
    let world = World::new("children").await;
    let _kubelet = Kubelet::fake(&world);
    let (proxy, through) = world.proxied().await;
    let mut lone = Lone::new();
    let server = world.create_server("a", spec("example.com/mcp:1")).await;
    let token = |epoch: u32| format!("{}/{epoch}", server.uid().unwrap());
    config(&lone, &world, "example.com/mcp:1", &json!({}));
    let old = lone.start_with(&through, &[("MCP_FENCE", &token(1))], &[]);
    old.ready().await;
    let first = service_when(&world, "is there", |_| true).await;
    assert_eq!(first.annotations()[FENCE], token(1));

    // Edited, or deleted, while the runner serves.
    let containers = json!([{"name": "mcp", "image": "example.com/mcp:evil"}]);
    let evil = json!({"spec": {"template": {"spec": {"containers": containers}}}});
    let sets: Api<StatefulSet> = world.api();
    let edited = sets
        .patch("a-backend", &PatchParams::default(), &Patch::Strategic(evil))
        .await
        .unwrap();
    world
        .backend_when("a", "the edit is taken back", |set| {
            image(set) == "example.com/mcp:1" && set.metadata.generation > edited.metadata.generation
        })
        .await;
    let services: Api<Service> = world.api();
    services
        .delete("a-backend", &DeleteParams::default())
        .await
        .unwrap();
    let second = service_when(&world, "is made again", |found| found.uid() != first.uid()).await;
    assert_eq!(port(&second), Some(8080));
    let labels = json!({"metadata": {"labels": {"mcp.exuvia.dev/server": "stolen"}}});
    services
        .patch("a-backend", &PatchParams::default(), &Patch::Merge(labels))
        .await
        .unwrap();
    service_when(&world, "its label is back", |found| {
        found.labels()["mcp.exuvia.dev/server"] == "a"
    })
    .await;

    // Edits after which our port does not fit next to what is there: without a name, or with ours and another number.
    for ports in [
        json!([{"port": 1}]),
        json!([{"name": "mcp", "port": 9999, "targetPort": "mcp"}]),
    ] {
        let edit = Patch::Merge(json!({"spec": {"ports": ports}}));
        services
            .patch("a-backend", &PatchParams::default(), &edit)
            .await
            .unwrap();
        service_when(&world, "its port is back, alone", |found| {
            port(found) == Some(8080) && found.spec.as_ref().unwrap().ports.as_ref().unwrap().len() == 1
        })
        .await;
    }

    // The old runner's next write of the Service is on its way while a newer runner applies its own.
    let (arrived, arrivals) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let patches = Match::method(Method::PATCH)
        .resource("services")
        .object("children", "a-backend");
    proxy.inject(Rule::on(patches).nth(1).on_request(move |_| {
        arrived.send(()).unwrap();
        let _ = released.lock().unwrap().recv();
    }));
    let labels = json!({"metadata": {"labels": {"mcp.exuvia.dev/server": "stolen"}}});
    services
        .patch("a-backend", &PatchParams::default(), &Patch::Merge(labels))
        .await
        .unwrap();
    until("the old runner's write is on its way", async || {
        arrivals.try_recv().is_ok()
    })
    .await;
    config(&lone, &world, "example.com/mcp:2", &json!({"mcpPort": 8081}));
    let new = lone.start(&world, &[("MCP_FENCE", &token(2))], &[]);
    new.ready().await;
    let newest = service_when(&world, "is the new runner's", |found| port(found) == Some(8081)).await;
    assert_eq!(newest.annotations()[FENCE], token(2));
    proxy.forget();
    release.send(()).unwrap();
    old.logs("decision=skip ours=1 theirs=2").await;
    let now = services.get("a-backend").await.unwrap();
    assert_eq!((port(&now), &now.annotations()[FENCE]), (Some(8081), &token(2)));
    let backend = sets.get("a-backend").await.unwrap();
    assert_eq!(image(&backend), "example.com/mcp:2");
    assert_eq!(old.process.exit_code(), None, "it goes on serving");
}

#[tokio::test]
async fn refused_and_skipped_runners_write_nothing_and_replicas_stay_when_nobody_sets_them() {
    let world = World::new("handover").await;
    let _kubelet = Kubelet::fake(&world);
    let (proxy, through) = world.proxied().await;
    let mut lone = Lone::new();
    let server = world.create_server("a", spec("example.com/mcp:1")).await;
    let token = |epoch: u32| format!("{}/{epoch}", server.uid().unwrap());
    config(&lone, &world, "example.com/mcp:2", &json!({"backendReplicas": 2}));
    lone.start(&world, &[("MCP_FENCE", &token(2))], &[]).ready().await;

    // From here on no config says how many.
    config(&lone, &world, "example.com/mcp:3", &json!({}));
    let skipped = lone.start_with(&through, &[("MCP_FENCE", &token(1))], &[]);
    skipped.logs("decision=skip ours=1 theirs=2").await;
    skipped.ready().await;
    drop(skipped);
    let torn = [("MCP_FENCE", &*token(3)), ("MCP_CONFIG_HASH", "another")];
    let torn = lone.start_with(&through, &torn, &[]);
    assert_eq!(torn.exit_code().await, 3, "{}", torn.log());
    let unversioned = lone.start_with(&through, &[], &[]);
    assert_eq!(unversioned.exit_code().await, 4, "{}", unversioned.log());
    for resource in ["statefulsets", "services"] {
        let writes = writes(&proxy, resource);
        assert!(writes.is_empty(), "{writes:#?}");
    }

    let new = lone.start_with(&through, &[("MCP_FENCE", &token(3))], &[]);
    new.ready().await;
    let backend = world.backend_when("a", "is there", |_| true).await;
    assert_eq!(
        (image(&backend).as_str(), backend.spec.replicas),
        ("example.com/mcp:3", Some(2))
    );
}

#[tokio::test]
async fn a_runner_of_an_owner_that_was_replaced_makes_no_backend_and_no_report() {
    let world = World::new("replaced").await;
    let _kubelet = Kubelet::fake(&world);
    let (proxy, through) = world.proxied().await;
    let mut lone = Lone::new();
    let old = world.create_server("a", spec("example.com/mcp:1")).await;
    let servers: Api<MCPServer> = world.api();
    servers.delete("a", &DeleteParams::default()).await.unwrap();
    until("it is gone", async || {
        servers.get_opt("a").await.unwrap().is_none()
    })
    .await;
    let new = world.create_server("a", spec("example.com/mcp:1")).await;
    config(&lone, &world, "example.com/mcp:old", &json!({}));
    let old_token = format!("{}/7", old.uid().unwrap());
    let stale = lone.start_with(&through, &[("MCP_FENCE", &old_token)], &[]);
    stale.logs("decision=skip").await;
    stale.ready().await;
    for resource in ["statefulsets", "services", "mcpservers"] {
        let writes = writes(&proxy, resource);
        assert!(writes.is_empty(), "{writes:#?}");
    }
    assert!(world.server("a").await.status.is_none());

    // The backend of the new owner comes and goes: still not the old one's affair.
    config(&lone, &world, "example.com/mcp:new", &json!({}));
    let new_token = format!("{}/1", new.uid().unwrap());
    let runner = lone.start(&world, &[("MCP_FENCE", &new_token)], &[]);
    runner.ready().await;
    let made = world.backend_when("a", "is there", |_| true).await;
    let sets: Api<StatefulSet> = world.api();
    sets.delete("a-backend", &DeleteParams::background())
        .await
        .unwrap();
    let again = world
        .backend_when("a", "is made again", |again| again.uid() != made.uid())
        .await;
    assert_eq!(image(&again), "example.com/mcp:new");
    for resource in ["statefulsets", "services", "mcpservers"] {
        let writes = writes(&proxy, resource);
        assert!(writes.is_empty(), "{writes:#?}");
    }
}
