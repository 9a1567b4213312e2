//! RBAC of operator and runner: nothing is refused, and no rule is there for nothing.

use std::collections::BTreeSet;

use exuvia_runtime::rights::Rule;
use exuvia_testenv::{AuditEvent, until};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use mcp_operator::api::{MCPServer, MCPToolConfig, RESTART, RESTART_MARK, RESTART_STRATEGY};
use mcp_operator::rights;
use serde_json::json;

use crate::harness::{World, is_true, spec};
use crate::kubelet::Kubelet;
use crate::program::Operator;

/// Group, resource with its subresource, verb.
type Right = (String, String, String);

fn rights_of(rules: &[Rule]) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for rule in rules {
        for group in rule.rule.api_groups.iter().flatten() {
            for resource in rule.rule.resources.iter().flatten() {
                for verb in &rule.rule.verbs {
                    rights.insert((group.clone(), resource.clone(), verb.clone()));
                }
            }
        }
    }
    rights
}

/// What was used. An apply that made an object used two verbs.
fn used(events: &[AuditEvent]) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for event in events.iter().filter(|event| event.code() < 400) {
        let Some(object) = &event.object_ref else { continue };
        let resource = match object.subresource.as_str() {
            "" => object.resource.clone(),
            subresource => format!("{}/{subresource}", object.resource),
        };
        let right = |verb: &str| (object.api_group.clone(), resource.clone(), verb.to_owned());
        rights.insert(right(&event.verb));
        if event.verb == "patch" && event.code() == 201 {
            rights.insert(right("create"));
        }
    }
    rights
}

fn assert_not_refused(events: &[AuditEvent], who: &str) {
    let refused: Vec<String> = events
        .iter()
        .filter(|event| event.code() == 403)
        .map(|event| format!("{} {}", event.verb, event.request_uri))
        .collect();
    assert!(refused.is_empty(), "{who} may not: {refused:#?}");
}

fn right(group: &str, resource: &str, verb: &str) -> Right {
    (group.to_owned(), resource.to_owned(), verb.to_owned())
}

/// Waits until the server knows that this user may read the namespace's servers: its cache of roles lags a little.
async fn allowed(world: &World, user: &str) {
    let reviews: Api<SubjectAccessReview> = Api::all(world.client.clone());
    let review: SubjectAccessReview = serde_json::from_value(json!({"spec": {
        "user": user,
        "resourceAttributes": {"namespace": world.namespace, "verb": "get", "group": "mcp.exuvia.dev",
                               "resource": "mcpservers", "name": "a"},
    }}))
    .unwrap();
    until(&format!("{user} may read its server"), async || {
        let answer = reviews.create(&PostParams::default(), &review).await.unwrap();
        answer.status.is_some_and(|status| status.allowed)
    })
    .await;
}

/// Everything that the operator does only now and then.
async fn seldom(world: &World) {
    let old = world.pods("a", "proxy").await.pop().unwrap();
    let bad = json!({"metadata": {"annotations": {RESTART: "tomorrow"}}});
    world.patch_server("a", bad).await;
    let restart = json!({RESTART: "2026-01-01T00:00:00Z", RESTART_STRATEGY: "immediate"});
    world
        .patch_server("a", json!({"metadata": {"annotations": restart}}))
        .await;
    world
        .server_when("a", "it is marked", |server| {
            server.annotations().contains_key(RESTART_MARK)
        })
        .await;
    until("the old runner is gone", async || {
        let pods = world.pods("a", "proxy").await;
        pods.iter().all(|pod| pod.uid() != old.uid())
    })
    .await;
    for round in 2..=6 {
        let image = format!("example.com/mcp:{round}");
        world
            .patch_server("a", json!({"spec": {"image": image, "networkPolicy": false}}))
            .await;
        world
            .server_when("a", "the bump is rolled out", |server| {
                is_true(server, "RolledOut")
            })
            .await;
    }
    until("the policy is gone", async || {
        world
            .api::<NetworkPolicy>()
            .get_opt("a-backend")
            .await
            .unwrap()
            .is_none()
    })
    .await;
    until("an old run config is gone", async || {
        world.run_configs("a").await.len() <= 4
    })
    .await;
}

#[tokio::test]
async fn operator_and_runner_have_the_rights_that_they_use_and_no_others() {
    let world = World::new("rights").await;
    let rules: Vec<_> = rights::all(None).into_iter().map(|rule| rule.rule).collect();
    let user = world
        .control_plane
        .user_with_rules("mcp-operator-alone", &json!(rules))
        .await
        .unwrap();
    allowed(&world, "mcp-operator-alone").await;
    let operator = Operator::start_with(&world, &user.kubeconfig().unwrap(), &["--resync=500ms"]);
    let mut with_tools = spec("example.com/mcp:1");
    with_tools["toolConfigRef"] = json!({"name": "few"});
    let tools: MCPToolConfig = serde_json::from_value(json!({
        "apiVersion": "mcp.exuvia.dev/v1beta1", "kind": "MCPToolConfig", "metadata": {"name": "few"},
        "spec": {"toolsFilter": ["echo"]},
    }))
    .unwrap();
    world
        .api::<MCPToolConfig>()
        .create(&PostParams::default(), &tools)
        .await
        .unwrap();
    world.create_server("a", with_tools).await;
    // The runner is its service account, with the Role that the operator made.
    world.deployment_when("a", "is there", |_| true).await;
    let account = world
        .control_plane
        .service_account("rights", "a-runner")
        .await
        .unwrap();
    allowed(&world, "system:serviceaccount:rights:a-runner").await;
    let kubelet = Kubelet::running(&world, Some(account.kubeconfig().unwrap()));
    world
        .server_when("a", "it is rolled out", |server| is_true(server, "RolledOut"))
        .await;

    seldom(&world).await;
    // Before the Role goes with the server, and the runner a little later.
    let of_runner = world
        .control_plane
        .audit()
        .of("system:serviceaccount:rights:a-runner")
        .unwrap();
    let servers: Api<MCPServer> = world.api();
    servers.delete("a", &DeleteParams::default()).await.unwrap();
    until("the server is gone", async || {
        servers.get_opt("a").await.unwrap().is_none()
    })
    .await;
    drop(kubelet);
    operator.stop();

    let of_operator = world.control_plane.audit().of("mcp-operator-alone").unwrap();
    assert_not_refused(&of_operator, "the operator");
    let runner_rights = rights_of(&rights::runner("a"));
    let mut spare: BTreeSet<_> = &rights_of(&rights::all(None)) - &used(&of_operator);
    // It may do what it lets runners do, because nobody can give away more than they have.
    spare = &spare - &runner_rights;
    // Read only after an answer that was lost, or a name that was taken.
    spare.remove(&right("", "configmaps", "get"));
    assert!(spare.is_empty(), "the operator did not use: {spare:#?}");

    assert_not_refused(&of_runner, "the runner");
    let mut spare = &runner_rights - &used(&of_runner);
    // Each is used in one situation, and by tests of its own: two runners with one epoch, a stuck pod, a skip.
    for (group, resource, verb) in [
        ("apps", "deployments", "get"),
        ("", "pods", "delete"),
        ("events.k8s.io", "events", "create"),
    ] {
        spare.remove(&right(group, resource, verb));
    }
    assert!(spare.is_empty(), "the runner did not use: {spare:#?}");
}
