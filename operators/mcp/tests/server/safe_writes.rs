//! Every write to an `MCPServer` is a small, locked one: nothing that somebody else wrote is lost.

use std::sync::mpsc;

use exuvia_testenv::proxy::{Fault, Match, Proxy, Recorded, Rule};
use exuvia_testenv::until;
use http::Method;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use mcp_operator::api::{
    EPOCH, FINALIZER, MCPServer, RESTART, RESTART_MARK, RESTART_STRATEGY, TOOL_CONFIG_HASH,
};
use serde_json::{Value, json};

use crate::harness::{World, spec, template_annotation};
use crate::kubelet::Kubelet;
use crate::program::Operator;

const HOLD: &str = "example.com/hold";
const EARLY: &str = "2026-01-01T00:00:00Z";
const LATE: &str = "2026-02-01T00:00:00Z";

/// Writes to the server itself, without its status.
fn writes_to(proxy: &Proxy, name: &str) -> Vec<Recorded> {
    let is_it = |write: &Recorded| {
        let object = write.object();
        object.is_some_and(|object| {
            object.resource == "mcpservers" && object.name == name && object.subresource.is_empty()
        })
    };
    proxy.writes().into_iter().filter(is_it).collect()
}

/// The one write since the last look, but for the note of an epoch: a merge patch under a lock that touches only metadata.
fn the_one_write(proxy: &Proxy, name: &str) -> Value {
    let bodies = writes_to(proxy, name).into_iter();
    let mut writes: Vec<_> = bodies
        .map(|write| locked_metadata(&write))
        .filter(|body| !body["metadata"]["annotations"][EPOCH].is_string())
        .collect();
    assert_eq!(writes.len(), 1, "{writes:?}");
    proxy.forget();
    writes.remove(0)
}

/// What a merge patch under a lock says that touches only metadata.
fn locked_metadata(write: &Recorded) -> Value {
    assert_eq!(write.method, Method::PATCH);
    assert_eq!(write.content_type(), Some("application/merge-patch+json"));
    let body = write.json();
    assert!(
        body["metadata"]["resourceVersion"].is_string(),
        "not locked: {body}"
    );
    assert_eq!(
        body.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["metadata"],
        "{body}"
    );
    body
}

/// Another controller's field, which the operator's type does not know.
async fn write_authz(world: &World, name: &str) {
    let intent = json!({
        "apiVersion": "mcp.exuvia.dev/v1beta1", "kind": "MCPServer", "metadata": {"name": name},
        "spec": {"authzConfig": {"policy": "permit"}},
    });
    let params = PatchParams::apply("authz-controller");
    world
        .raw_servers()
        .patch(name, &params, &Patch::Apply(intent))
        .await
        .unwrap();
}

async fn assert_authz(world: &World, name: &str, after: &str) {
    let server = world.raw_servers().get(name).await.unwrap();
    assert_eq!(
        server.data["spec"]["authzConfig"],
        json!({"policy": "permit"}),
        "after {after}"
    );
}

#[tokio::test]
async fn finalizer_and_restart_mark_are_one_locked_merge_patch_each_and_the_spec_of_others_survives() {
    let world = World::new("safe-writes").await;
    let _kubelet = Kubelet::fake(&world);
    let (proxy, kubeconfig) = world.proxied().await;
    let created = world.create_server("a", spec("example.com/mcp:1")).await;
    write_authz(&world, "a").await;
    assert!(created.finalizers().is_empty());

    let operator = Operator::start_with(&world, &kubeconfig, &[]);
    let is_final = |server: &MCPServer| server.finalizers() == [FINALIZER.as_str()];
    world.server_when("a", "the finalizer is there", is_final).await;
    world.deployment_when("a", "is there", |_| true).await;
    let body = the_one_write(&proxy, "a");
    assert_eq!(body["metadata"]["finalizers"], json!([FINALIZER.as_str()]));
    assert_authz(&world, "a", "the finalizer was added").await;

    let before = world.annotate("a", RESTART, LATE).await;
    let is_marked = |server: &MCPServer| {
        server
            .annotations()
            .get(RESTART_MARK)
            .is_some_and(|mark| mark == LATE)
    };
    let marked = world.server_when("a", "the restart is marked", is_marked).await;
    let body = the_one_write(&proxy, "a");
    assert_eq!(body["metadata"]["annotations"], json!({RESTART_MARK: LATE}));
    assert_authz(&world, "a", "the restart was marked").await;
    assert_eq!(
        before.metadata.generation, marked.metadata.generation,
        "annotations move no generation"
    );

    // Somebody else's finalizer lets us look at the object after ours is gone.
    world
        .patch_server(
            "a",
            json!({"metadata": {"finalizers": [FINALIZER.as_str(), HOLD]}}),
        )
        .await;
    world
        .api::<MCPServer>()
        .delete("a", &DeleteParams::default())
        .await
        .unwrap();
    let is_released = |server: &MCPServer| server.finalizers() == [HOLD];
    world.server_when("a", "our finalizer is gone", is_released).await;
    let body = the_one_write(&proxy, "a");
    assert_eq!(body["metadata"]["finalizers"], json!([HOLD]));
    assert_authz(&world, "a", "the finalizer was removed").await;
    operator.stop();
    world
        .patch_server("a", json!({"metadata": {"finalizers": null}}))
        .await;
}

/// What the writes above avoid.
#[tokio::test]
async fn a_replace_by_a_type_that_lacks_a_field_loses_it() {
    let world = World::new("lossy").await;
    world.create_server("a", spec("example.com/mcp:1")).await;
    write_authz(&world, "a").await;
    let api: Api<MCPServer> = world.api();
    let server = api.get("a").await.unwrap();
    api.replace("a", &PostParams::default(), &server).await.unwrap();
    let server = world.raw_servers().get("a").await.unwrap();
    assert!(server.data["spec"].get("authzConfig").is_none());
}

/// While the first write to the server that follows upon `act` is on its way, another controller changes the finalizers.
async fn with_finalizers_mid_flight(
    world: &World,
    proxy: &Proxy,
    theirs: Value,
    act: impl Future<Output = ()>,
) {
    let (arrived_tx, arrived) = mpsc::channel::<()>();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let about = Match::method(Method::PATCH)
        .resource("mcpservers")
        .object(&world.namespace, "a")
        .subresource("");
    let rule = Rule::on(about).nth(1).on_request(move |_| {
        let _ = arrived_tx.send(());
        let _ = may_go_on.lock().unwrap().recv();
    });
    let injected = proxy.inject(rule);
    act.await;
    tokio::task::spawn_blocking(move || arrived.recv().unwrap())
        .await
        .unwrap();
    world
        .patch_server("a", json!({"metadata": {"finalizers": theirs}}))
        .await;
    go_on.send(()).unwrap();
    until("the write was struck", async || injected.applied() >= 1).await;
    injected.remove();
}

#[tokio::test]
async fn finalizers_that_another_controller_changes_in_the_middle_stay_as_it_left_them() {
    let world = World::new("mid-flight").await;
    let _kubelet = Kubelet::fake(&world);
    let (proxy, kubeconfig) = world.proxied().await;
    world.create_server("a", spec("example.com/mcp:1")).await;
    let mut operator = None;
    with_finalizers_mid_flight(&world, &proxy, json!([HOLD]), async {
        operator = Some(Operator::start_with(&world, &kubeconfig, &[]));
    })
    .await;
    let both = |server: &MCPServer| server.finalizers() == [HOLD, FINALIZER.as_str()];
    world.server_when("a", "both finalizers are there", both).await;
    world.deployment_when("a", "is there", |_| true).await;

    // The same while ours is removed: another controller is done, and takes its own away.
    let three = [HOLD, FINALIZER.as_str(), "example.com/other"];
    world
        .patch_server("a", json!({"metadata": {"finalizers": three}}))
        .await;
    let two = json!([HOLD, FINALIZER.as_str()]);
    with_finalizers_mid_flight(&world, &proxy, two, async {
        let api: Api<MCPServer> = world.api();
        api.delete("a", &DeleteParams::default()).await.unwrap();
    })
    .await;
    let only_theirs = |server: &MCPServer| server.finalizers() == [HOLD];
    world
        .server_when("a", "only the one that is held is there", only_theirs)
        .await;
    operator.unwrap().stop();
    world
        .patch_server("a", json!({"metadata": {"finalizers": null}}))
        .await;
}

#[tokio::test]
async fn a_bad_restart_is_ignored_with_a_warning_and_an_old_one_silently() {
    let world = World::new("bad-restart").await;
    let _kubelet = Kubelet::fake(&world);
    let _operator = Operator::start(&world, &[]);
    world.create_server("a", spec("example.com/mcp:1")).await;
    world.deployment_when("a", "is there", |_| true).await;
    let events: Api<Event> = world.api();
    // One that is far ahead would swallow every later one.
    for bad in ["tomorrow", "2999-01-01T00:00:00Z"] {
        world.annotate("a", RESTART, bad).await;
        until("a warning about it", async || {
            let events = events.list(&ListParams::default()).await.unwrap();
            events.items.iter().any(|event| {
                event.type_.as_deref() == Some("Warning")
                    && event.reason.as_deref() == Some("InvalidRestart")
                    && event.note.as_ref().is_some_and(|note| note.contains(bad))
            })
        })
        .await;
    }
    let server = world.server("a").await;
    assert!(!server.annotations().contains_key(RESTART_MARK));

    world.annotate("a", RESTART, LATE).await;
    let is_marked = |server: &MCPServer| {
        server
            .annotations()
            .get(RESTART_MARK)
            .is_some_and(|mark| mark == LATE)
    };
    world.server_when("a", "the good one is marked", is_marked).await;
    // An image bump shows that the older request was looked at, and left alone.
    world.annotate("a", RESTART, EARLY).await;
    world
        .patch_server("a", json!({"spec": {"image": "example.com/mcp:2"}}))
        .await;
    let bumped = world
        .deployment_when("a", "has generation 2", |deployment| {
            template_annotation(deployment, "mcp.exuvia.dev/generation").as_deref() == Some("2")
        })
        .await;
    assert_eq!(template_annotation(&bumped, RESTART).as_deref(), Some(LATE));
    assert_eq!(
        world.server("a").await.annotations().get(RESTART_MARK).unwrap(),
        LATE
    );
}

#[tokio::test]
async fn a_mark_that_meets_a_conflict_does_not_restart_twice() {
    let world = World::new("marked-twice").await;
    let _kubelet = Kubelet::fake(&world);
    let (proxy, kubeconfig) = world.proxied().await;
    let _operator = Operator::start_with(&world, &kubeconfig, &[]);
    world.create_server("a", spec("example.com/mcp:1")).await;
    world
        .server_when("a", "its status is there", |server| server.status.is_some())
        .await;
    let before = world.deployment_when("a", "is there", |_| true).await;
    let about = Match::method(Method::PATCH)
        .resource("mcpservers")
        .subresource("");
    // The first one notes the epoch.
    let refused = proxy.inject(Rule::on(about).nth(2).times(2).then(Fault::refuse(409)));
    world.annotate("a", RESTART, LATE).await;
    let is_marked = |server: &MCPServer| server.annotations().contains_key(RESTART_MARK);
    world.server_when("a", "the restart is marked", is_marked).await;
    assert_eq!(refused.applied(), 2);
    let after = world.deployment_when("a", "has the time", |deployment| {
        template_annotation(deployment, RESTART).as_deref() == Some(LATE)
    });
    assert_eq!(
        after.await.metadata.generation.unwrap(),
        before.metadata.generation.unwrap() + 1
    );
}

#[tokio::test]
async fn an_immediate_restart_replaces_all_runners_at_once_and_none_twice() {
    let world = World::new("immediate").await;
    let _kubelet = Kubelet::fake(&world);
    let (proxy, kubeconfig) = world.proxied().await;
    let _operator = Operator::start_with(&world, &kubeconfig, &[]);
    let mut three = spec("example.com/mcp:1");
    three["replicas"] = json!(3);
    world.create_server("a", three).await;
    let at_most = |deployment: &Deployment| {
        let rolling = deployment.spec.strategy.clone().unwrap().rolling_update;
        rolling.unwrap().max_unavailable.unwrap()
    };
    let is_done = mcp_operator::workload::is_deployment_rolled_out;
    let first = world.deployment_when("a", "all are ready", is_done).await;
    assert_eq!(at_most(&first), IntOrString::Int(0));
    let pods = async || world.pods("a", "proxy").await;
    let old: Vec<_> = pods().await.iter().map(ResourceExt::uid).collect();
    let restart = json!({RESTART: LATE, RESTART_STRATEGY: "immediate"});
    world
        .patch_server("a", json!({"metadata": {"annotations": restart}}))
        .await;
    until("three new pods and no others are left", async || {
        let pods = pods().await;
        let is_new = |pod: &k8s_openapi::api::core::v1::Pod| !old.contains(&pod.uid());
        for pod in pods.iter().filter(|pod| is_new(pod)) {
            assert_eq!(
                pod.annotations().get(RESTART).map(String::as_str),
                Some(LATE),
                "restarted twice"
            );
        }
        pods.len() == 3 && pods.iter().all(is_new)
    })
    .await;
    // The next roll-out is one after the other again, and this one made no other of it.
    let after = world
        .deployment_when("a", "none may go", |deployment| {
            is_done(deployment) && at_most(deployment) == IntOrString::Int(0)
        })
        .await;
    let revision =
        |deployment: &Deployment| deployment.annotations()["deployment.kubernetes.io/revision"].clone();
    assert_eq!(
        (revision(&first), revision(&after)),
        ("1".to_owned(), "2".to_owned())
    );
    let server = world.server("a").await;
    assert_eq!(server.annotations()[RESTART_MARK], LATE);
    let writes = proxy.writes();
    let strategies = writes.iter().filter_map(|write| {
        let body = write.json();
        let at_most = &body["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"];
        (!at_most.is_null()).then(|| at_most.clone())
    });
    let mut strategies: Vec<Value> = strategies.collect();
    strategies.dedup();
    assert_eq!(
        strategies,
        [json!(0), json!("100%"), json!(0)],
        "all at once, for this roll-out only"
    );
    let deleted = writes.iter().filter(|write| write.method == Method::DELETE);
    assert_eq!(deleted.count(), 0, "the roll-out takes the old ones away");
}

#[tokio::test]
async fn the_tool_config_controller_writes_one_annotation_and_the_tools_reach_the_run_config() {
    let world = World::new("tools").await;
    let (proxy, kubeconfig) = world.proxied().await;
    let mut with_tools = spec("example.com/mcp:1");
    with_tools["toolConfigRef"] = json!({"name": "few"});
    let created = world.create_server("a", with_tools).await;
    write_authz(&world, "a").await;
    let _operator = Operator::start_with(&world, &kubeconfig, &[]);
    let is_rejected = |server: &MCPServer| {
        let status = server.status.as_ref();
        status.is_some_and(|status| {
            status
                .conditions
                .iter()
                .any(|fact| fact.reason == "ToolConfigNotFound")
        })
    };
    world
        .server_when("a", "it misses its tool config", is_rejected)
        .await;
    proxy.forget();

    let configs: Api<mcp_operator::api::MCPToolConfig> = world.api();
    let config = json!({
        "apiVersion": "mcp.exuvia.dev/v1beta1", "kind": "MCPToolConfig", "metadata": {"name": "few"},
        "spec": {"toolsFilter": ["echo"]},
    });
    let config = serde_json::from_value(config).unwrap();
    configs.create(&PostParams::default(), &config).await.unwrap();
    let told = world
        .server_when("a", "it knows the hash", |server| {
            server.annotations().contains_key(TOOL_CONFIG_HASH)
        })
        .await;
    let body = the_one_write(&proxy, "a");
    let annotations = body["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(annotations.keys().collect::<Vec<_>>(), [TOOL_CONFIG_HASH]);
    assert_authz(&world, "a", "the tool config was told").await;
    assert_eq!(
        told.metadata.generation,
        created.metadata.generation.map(|generation| generation + 1),
        "only authz moved it"
    );
    until("a run config with the tools", async || {
        let configs = world.run_configs("a").await;
        configs
            .iter()
            .any(|config| config.data.as_ref().unwrap()["runconfig.json"].contains("echo"))
    })
    .await;
    until("the tool config says where it is used", async || {
        let status = configs.get("few").await.unwrap().status?;
        (status.servers == Some(1) && status.hash.is_some()).then_some(())
    })
    .await;
}
