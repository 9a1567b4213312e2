//! Names that others have: nothing of theirs is changed or deleted, and the condition says whose turn it is.

use exuvia_testenv::until;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt};
use mcp_operator::api::{MCPServer, condition};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::harness::{World, is_true, spec};
use crate::kubelet::Kubelet;
use crate::program::Operator;

fn is_taken(server: &MCPServer, what: &str) -> bool {
    let status = server.status.as_ref();
    status.is_some_and(|status| {
        status.conditions.iter().any(|fact| {
            fact.type_ == condition::ACCEPTED && fact.reason == "NameTaken" && fact.message.contains(what)
        })
    })
}

/// Makes an object as a person would, without any of our labels.
async fn make<K>(world: &World, object: Value) -> Value
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + serde::Serialize + DeserializeOwned,
{
    let object: K = serde_json::from_value(object).unwrap();
    let api: Api<K> = world.api();
    let params = PostParams {
        field_manager: Some("kubectl-create".to_owned()),
        ..PostParams::default()
    };
    without_status(&api.create(&params, &object).await.unwrap())
}

/// What a person wrote, and who has written since: controllers write the status.
fn without_status(object: &(impl serde::Serialize + ?Sized)) -> Value {
    let mut value = serde_json::to_value(object).unwrap();
    value.as_object_mut().unwrap().remove("status");
    let metadata = value["metadata"].as_object_mut().unwrap();
    for moves in ["resourceVersion", "managedFields", "annotations"] {
        metadata.remove(moves);
    }
    value
}

async fn live<K>(world: &World, name: &str) -> Option<Value>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + serde::Serialize + DeserializeOwned,
{
    let found = world.api::<K>().get_opt(name).await.unwrap();
    found.map(|object| without_status(&object))
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "most of it is what people have made")]
async fn objects_of_people_are_neither_changed_nor_deleted_and_nothing_is_made_next_to_them() {
    let world = World::new("names").await;
    let _operator = Operator::start(&world, &["--resync=300ms"]);
    let app = json!({"app": "shop"});
    let pods =
        json!({"metadata": {"labels": app}, "spec": {"containers": [{"name": "c", "image": "shop:bad"}]}});
    let service = make::<Service>(
        &world,
        json!({"metadata": {"name": "shop"}, "spec": {"selector": app, "ports": [{"port": 80}]}}),
    );
    let service = service.await;
    let policy = make::<NetworkPolicy>(
        &world,
        json!({"metadata": {"name": "policy-backend"}, "spec": {"podSelector": {"matchLabels": app}}}),
    );
    let policy = policy.await;
    let account = make::<ServiceAccount>(&world, json!({"metadata": {"name": "account-runner"}})).await;
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    let role = make::<Role>(
        &world,
        json!({"metadata": {"name": "role-runner"}, "rules": rules}),
    )
    .await;
    let binding = make::<RoleBinding>(
        &world,
        json!({
            "metadata": {"name": "binding-runner"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "role-runner"},
            "subjects": [{"kind": "ServiceAccount", "name": "account-runner", "namespace": "names"}],
        }),
    );
    let binding = binding.await;
    let deployment = make::<Deployment>(
        &world,
        json!({"metadata": {"name": "deployment"}, "spec": {"replicas": 0, "selector": {"matchLabels": app}, "template": pods}}),
    );
    let deployment = deployment.await;
    let set = make::<StatefulSet>(
        &world,
        json!({"metadata": {"name": "set-backend"}, "spec": {"replicas": 0, "serviceName": "s",
               "selector": {"matchLabels": app}, "template": pods}}),
    );
    let set = set.await;
    let headless = make::<Service>(
        &world,
        json!({"metadata": {"name": "headless-backend"}, "spec": {"selector": app, "ports": [{"port": 80}]}}),
    );
    let headless = headless.await;

    let servers = [
        ("shop", "services shop"),
        ("policy", "networkpolicies.networking.k8s.io policy-backend"),
        ("account", "serviceaccounts account-runner"),
        ("role", "roles.rbac.authorization.k8s.io role-runner"),
        ("binding", "rolebindings.rbac.authorization.k8s.io binding-runner"),
        ("deployment", "deployments.apps deployment"),
        ("set", "statefulsets.apps set-backend"),
        ("headless", "services headless-backend"),
    ];
    for (name, _) in servers {
        world.create_server(name, spec("example.com/mcp:1")).await;
    }
    for (name, what) in servers {
        world
            .server_when(name, "it says what is taken", |server| is_taken(server, what))
            .await;
    }
    // Everything was looked at before anything was made.
    let ours = ListParams::default().labels("mcp.exuvia.dev/server");
    for resource in [
        kube::api::ApiResource::erase::<Service>(&()),
        kube::api::ApiResource::erase::<ServiceAccount>(&()),
        kube::api::ApiResource::erase::<Deployment>(&()),
        kube::api::ApiResource::erase::<ConfigMap>(&()),
    ] {
        let api: Api<DynamicObject> = Api::namespaced_with(world.client.clone(), "names", &resource);
        let made = api.list(&ours).await.unwrap().items;
        assert!(made.is_empty(), "{made:?}");
    }
    // Nor does a server take along what it never had.
    let api: Api<MCPServer> = world.api();
    for (name, _) in servers {
        api.delete(name, &DeleteParams::foreground()).await.unwrap();
    }
    until("the servers are gone", async || {
        api.list(&ListParams::default()).await.unwrap().items.is_empty()
    })
    .await;
    assert_eq!(live::<Service>(&world, "shop").await, Some(service));
    assert_eq!(
        live::<NetworkPolicy>(&world, "policy-backend").await,
        Some(policy)
    );
    assert_eq!(
        live::<ServiceAccount>(&world, "account-runner").await,
        Some(account)
    );
    assert_eq!(live::<Role>(&world, "role-runner").await, Some(role));
    assert_eq!(live::<RoleBinding>(&world, "binding-runner").await, Some(binding));
    assert_eq!(live::<Deployment>(&world, "deployment").await, Some(deployment));
    assert_eq!(live::<StatefulSet>(&world, "set-backend").await, Some(set));
    assert_eq!(live::<Service>(&world, "headless-backend").await, Some(headless));

    // A policy that the spec does not ask for is nobody's business, and a name that is free again is used.
    let _kubelet = Kubelet::fake(&world);
    let mut without = spec("example.com/mcp:1");
    without["networkPolicy"] = json!(false);
    world.create_server("policy", without).await;
    world.create_server("shop", spec("example.com/mcp:1")).await;
    let is_accepted = |server: &MCPServer| is_true(server, condition::ACCEPTED);
    world.server_when("policy", "it is accepted", is_accepted).await;
    world
        .server_when("shop", "its name is taken", |server| {
            is_taken(server, "services shop")
        })
        .await;
    world
        .api::<Service>()
        .delete("shop", &DeleteParams::default())
        .await
        .unwrap();
    let shop = world.server_when("shop", "it is accepted", is_accepted).await;
    let service = world.api::<Service>().get("shop").await.unwrap();
    assert_eq!(service.owner_references()[0].uid, shop.uid().unwrap());
}

#[tokio::test]
async fn what_cannot_be_run_is_said_in_a_condition() {
    let world = World::new("unfit").await;
    let _operator = Operator::start(&world, &["--resync=300ms"]);
    let mut origin = spec("example.com/mcp:1");
    origin["allowedOrigins"] = json!(["foo"]);
    world.create_server("origin", origin).await;
    let mut label = spec("example.com/mcp:1");
    label["resourceOverrides"] = json!({"proxyDeployment": {"labels": {"team": "not a label"}}});
    world.create_server("label", label).await;
    for (name, reason) in [("origin", "InvalidOrigin"), ("label", "InvalidChild")] {
        world
            .server_when(name, reason, |server| {
                let status = server.status.clone().unwrap_or_default();
                let mut facts = status.conditions.iter();
                facts.any(|fact| {
                    fact.type_ == condition::ACCEPTED && fact.status == "False" && fact.reason == reason
                })
            })
            .await;
    }
    // The way back.
    world
        .patch_server("label", json!({"spec": {"resourceOverrides": null}}))
        .await;
    world
        .server_when("label", "it is accepted", |server| {
            is_true(server, condition::ACCEPTED)
        })
        .await;

    // Two servers that would have one Service: the older one has it.
    let first = world.create_server("one", spec("example.com/mcp:1")).await;
    let uid = first.uid();
    world
        .server_when("one", "it is accepted", |server| {
            is_true(server, condition::ACCEPTED)
        })
        .await;
    until("a later second", async || {
        let probe: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "clock"}})).unwrap();
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let probe = world.api::<ConfigMap>().create(&params, &probe).await.unwrap();
        probe.metadata.creation_timestamp > first.metadata.creation_timestamp
    })
    .await;
    world
        .create_server("one-backend", spec("example.com/mcp:1"))
        .await;
    world
        .server_when("one-backend", "its Service is another's", |server| {
            is_taken(server, "MCPServer one ")
        })
        .await;
    assert!(is_true(&world.server("one").await, condition::ACCEPTED));
    assert_eq!(world.server("one").await.uid(), uid);
    world
        .api::<MCPServer>()
        .delete("one", &DeleteParams::default())
        .await
        .unwrap();
    world
        .server_when("one-backend", "it is accepted", |server| {
            is_true(server, condition::ACCEPTED)
        })
        .await;
}
