//! Names that others have: nothing of theirs is changed or deleted, and the condition says whose turn it is.

use exuvia_testenv::until;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
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

/// A run config is named by its content, and somebody may have an object of that name, or hold ours while it is deleted.
#[tokio::test]
async fn a_run_config_whose_name_is_taken_is_told_before_anything_is_made() {
    let world = World::new("taken-config").await;
    let _kubelet = Kubelet::running(&world, None);
    let _operator = Operator::start(&world, &["--resync=300ms"]);
    world.create_server("a", spec("example.com/mcp:1")).await;
    world
        .server_when("a", "it is rolled out", |server| {
            is_true(server, condition::ROLLED_OUT)
        })
        .await;
    let configs: Api<ConfigMap> = world.api();
    let name = world.run_configs("a").await[0].name_any();
    let held = |finalizers: &[&str]| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));

    // A backup tool holds the one that is in use, somebody deletes it, and the Deployment goes as well.
    let params = PatchParams::default();
    configs
        .patch(&name, &params, &held(&["example.com/backup"]))
        .await
        .unwrap();
    configs.delete(&name, &DeleteParams::default()).await.unwrap();
    let deployments: Api<Deployment> = world.api();
    deployments.delete("a", &DeleteParams::default()).await.unwrap();
    world
        .server_when(
            "a",
            "it says that the run config is in the way, and nothing serves",
            |server| {
                let is_unavailable = |server: &MCPServer| {
                    let status = server.status.as_ref().unwrap();
                    let mut facts = status.conditions.iter();
                    facts.any(|fact| fact.type_ == condition::AVAILABLE && fact.reason == "NoProxy")
                };
                is_taken(server, &name) && is_unavailable(server)
            },
        )
        .await;
    assert_eq!(live::<Deployment>(&world, "a").await, None);
    configs.patch(&name, &params, &held(&[])).await.unwrap();
    world
        .server_when("a", "it is rolled out again", |server| {
            is_true(server, condition::ROLLED_OUT)
        })
        .await;

    // The next server of that name has the same run config, but somebody else's object has its name.
    let servers: Api<MCPServer> = world.api();
    servers.delete("a", &DeleteParams::default()).await.unwrap();
    until("the server and its run config are gone", async || {
        let is_gone = servers.get_opt("a").await.unwrap().is_none();
        is_gone && configs.get_opt(&name).await.unwrap().is_none()
    })
    .await;
    let theirs = make::<ConfigMap>(
        &world,
        json!({"metadata": {"name": name}, "data": {"runconfig.json": "{}"}}),
    )
    .await;
    world.create_server("a", spec("example.com/mcp:1")).await;
    let told = world
        .server_when("a", "it says whose name it is", |server| is_taken(server, &name))
        .await;
    assert!(
        !told.annotations().contains_key("mcp.exuvia.dev/epoch"),
        "{told:?}"
    );
    assert_eq!(live::<Deployment>(&world, "a").await, None);
    assert_eq!(live::<ConfigMap>(&world, &name).await, Some(theirs));
}
