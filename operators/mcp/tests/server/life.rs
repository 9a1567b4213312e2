//! The life of a server's children: made, adopted, made again, removed.

use exuvia_testenv::until;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt};
use mcp_operator::api::MCPServer;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::harness::{World, spec, template_annotation};
use crate::kubelet::Kubelet;
use crate::program::Operator;

/// Deletes a child and waits for another one of its name.
async fn recreated<K>(world: &World, name: &str)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let api: Api<K> = world.api();
    let kind = K::kind(&());
    let old = until(&format!("{kind} {name}"), async || {
        api.get_opt(name).await.unwrap()
    })
    .await;
    api.delete(name, &DeleteParams::background()).await.unwrap();
    until(&format!("another {kind} {name}"), async || {
        let new = api.get_opt(name).await.unwrap()?;
        (new.uid() != old.uid() && new.meta().deletion_timestamp.is_none()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_deleted_child_is_made_again_and_epochs_do_not_start_over() {
    let world = World::new("recreated").await;
    let _kubelet = Kubelet::fake(&world);
    let _operator = Operator::start(&world, &[]);
    world.create_server("a", spec("example.com/mcp:1")).await;
    let epoch = |deployment: &Deployment| {
        let token: exuvia_rollout::Token = template_annotation(deployment, "exuvia.dev/fence")
            .unwrap()
            .parse()
            .unwrap();
        token.epoch
    };
    let first = world.deployment_when("a", "is there", |_| true).await;
    assert_eq!(epoch(&first), 1);
    world
        .server_when("a", "its epoch is noted", |server| {
            server.status.as_ref().and_then(|status| status.epoch) == Some(1)
        })
        .await;
    recreated::<ServiceAccount>(&world, "a-runner").await;
    recreated::<Role>(&world, "a-runner").await;
    recreated::<RoleBinding>(&world, "a-runner").await;
    recreated::<NetworkPolicy>(&world, "a-backend").await;
    recreated::<Service>(&world, "a").await;
    recreated::<Deployment>(&world, "a").await;
    let again = world.deployment_when("a", "is there", |_| true).await;
    assert_eq!(epoch(&again), 2, "a runner of the first one may still be alive");
    let config = world.run_configs("a").await.pop().unwrap();
    recreated::<k8s_openapi::api::core::v1::ConfigMap>(&world, &config.name_any()).await;
}

#[tokio::test]
async fn children_of_an_operator_without_stamps_are_adopted_and_stamped() {
    let world = World::new("adopted").await;
    let _kubelet = Kubelet::fake(&world);
    let labels = json!({"mcp.exuvia.dev/server": "a", "mcp.exuvia.dev/part": "proxy"});
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "a", "labels": labels, "annotations": {"kept": "yes"}},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "runner", "image": "example.com/mcp-runner:0"}]},
            },
        },
    }))
    .unwrap();
    let deployments: Api<Deployment> = world.api();
    let old = deployments
        .create(&PostParams::default(), &deployment)
        .await
        .unwrap();
    let server = world.create_server("a", spec("example.com/mcp:1")).await;
    let _operator = Operator::start(&world, &[]);
    let stamped = world
        .deployment_when("a", "it is stamped", |deployment| {
            template_annotation(deployment, "exuvia.dev/fence").is_some()
        })
        .await;
    assert_eq!(stamped.uid(), old.uid(), "adopted, not replaced");
    assert_eq!(stamped.annotations()["kept"], "yes");
    assert_eq!(stamped.owner_references()[0].uid, server.uid().unwrap());
    let template = stamped.spec.template.spec.unwrap();
    assert_eq!(template.containers.len(), 1);
    assert_eq!(
        template.containers[0].image.as_deref(),
        Some("example.com/mcp-runner:1")
    );
}

#[tokio::test]
async fn a_child_of_another_owner_is_left_alone_and_said_so() {
    let world = World::new("foreign").await;
    let other = world.create_server("other", spec("example.com/mcp:1")).await;
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": "a", "ownerReferences": [{"apiVersion": "mcp.exuvia.dev/v1beta1", "kind": "MCPServer",
                     "name": "other", "uid": other.uid(), "controller": true}]},
        "spec": {"ports": [{"port": 80}]},
    }))
    .unwrap();
    world
        .api::<Service>()
        .create(&PostParams::default(), &service)
        .await
        .unwrap();
    let _operator = Operator::start(&world, &[]);
    world.create_server("a", spec("example.com/mcp:1")).await;
    let is_told = |server: &MCPServer| {
        let status = server.status.as_ref();
        status.is_some_and(|status| {
            status
                .conditions
                .iter()
                .any(|fact| fact.type_ == "Accepted" && fact.reason == "NameTaken")
        })
    };
    world
        .server_when("a", "it says that the name is taken", is_told)
        .await;
    assert!(world.api::<Deployment>().get_opt("a").await.unwrap().is_none());
}

#[tokio::test]
async fn a_server_takes_its_children_along() {
    let world = World::new("removed").await;
    let kubelet = Kubelet::running(&world, None);
    let _operator = Operator::start(&world, &[]);
    world.create_server("a", spec("example.com/mcp:1")).await;
    world.backend_when("a", "the runner made it", |_| true).await;
    let api: Api<MCPServer> = world.api();
    api.delete("a", &DeleteParams::default()).await.unwrap();
    until("everything is gone", async || {
        let server = api.get_opt("a").await.unwrap();
        let deployment = world.api::<Deployment>().get_opt("a").await.unwrap();
        let backend = world.api::<StatefulSet>().get_opt("a-backend").await.unwrap();
        let service = world.api::<Service>().get_opt("a-backend").await.unwrap();
        let role = world.api::<Role>().get_opt("a-runner").await.unwrap();
        let configs = world.run_configs("a").await;
        server.is_none()
            && deployment.is_none()
            && backend.is_none()
            && service.is_none()
            && role.is_none()
            && configs.is_empty()
    })
    .await;
    drop(kubelet);
}

#[tokio::test]
async fn old_run_configs_go_when_no_replica_set_names_them() {
    let world = World::new("configs").await;
    let _kubelet = Kubelet::fake(&world);
    let _operator = Operator::start(&world, &["--resync=500ms"]);
    world.create_server("a", spec("example.com/mcp:0")).await;
    // Three old ReplicaSets are kept, and the one in use: after six roll-outs, two configs are not in use.
    for round in 1..=6 {
        world
            .patch_server(
                "a",
                json!({"spec": {"image": format!("example.com/mcp:{round}")}}),
            )
            .await;
        let generation = (round + 1).to_string();
        world
            .deployment_when("a", "the roll-out is done", |deployment| {
                template_annotation(deployment, "mcp.exuvia.dev/generation").as_ref() == Some(&generation)
                    && mcp_operator::workload::is_deployment_rolled_out(deployment)
            })
            .await;
    }
    until("four run configs are left", async || {
        let names: Vec<String> = world
            .run_configs("a")
            .await
            .iter()
            .map(ResourceExt::name_any)
            .collect();
        if names.len() == 4 { Ok(()) } else { Err(names) }
    })
    .await;
}
