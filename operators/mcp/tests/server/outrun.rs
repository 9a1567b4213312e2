//! Exit code 75: the real runner cannot ask the server, others are faster each time, or the fence refuses.

use exuvia_rollout::{DEFAULT_FENCE, Fence, FencedKind, InForce, Intent, Names, ObjectRef};
use exuvia_testenv::proxy::{Answer, Fault, Match, Proxy, Rule};
use exuvia_testenv::until;
use exuvia_write::Writer;
use http::Method;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::gate::image;
use crate::harness::{World, spec};
use crate::kubelet::Kubelet;
use crate::lone::Lone;

/// The fence around the backends of this namespace, under the name that runners know, and in force.
async fn fence(world: &World) {
    let fence = Fence {
        namespaces: vec![world.namespace.clone()],
        ..Fence::new(
            DEFAULT_FENCE,
            vec![FencedKind::new("apps", "statefulsets")],
            Names::default(),
        )
    };
    let [policy, binding] = fence.manifests();
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(world.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(world.client.clone());
    let params = PatchParams::apply("admin");
    policies
        .patch(DEFAULT_FENCE, &params, &Patch::Apply(&policy))
        .await
        .unwrap();
    bindings
        .patch(DEFAULT_FENCE, &params, &Patch::Apply(&binding))
        .await
        .unwrap();
    let labels = json!({"app": "probe"});
    let probe = Intent::new(&json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "probe", "namespace": world.namespace},
        "spec": {"serviceName": "probe", "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]},
        }},
    }))
    .unwrap();
    let target = ObjectRef::typed::<StatefulSet>(&world.namespace, "probe");
    let prober = Writer::named("prober");
    until("the fence is in force", async || {
        let said = fence.probe(&world.client, &prober, &target, &probe).await;
        said.unwrap() == InForce::Yes
    })
    .await;
}

/// Writes to the backend, by what the client saw.
fn writes(proxy: &Proxy) -> Vec<u16> {
    let writes = proxy.writes();
    let of_backend = writes.iter().filter(|write| {
        write
            .object()
            .is_some_and(|object| object.resource == "statefulsets")
    });
    of_backend.filter_map(|write| write.answer).collect()
}

#[tokio::test]
async fn a_runner_that_is_outrun_or_cannot_ask_ends_with_75_and_changes_nothing() {
    let world = World::new("outrun").await;
    let _kubelet = Kubelet::fake(&world);
    let (proxy, through) = world.proxied().await;
    let mut lone = Lone::new();
    let server = world.create_server("a", spec("example.com/mcp:1")).await;
    let token = |epoch: u32| format!("{}/{epoch}", server.uid().unwrap());
    // With a number of replicas in the config there is nothing to hand over before an apply.
    let path = lone.config(&world, "example.com/mcp:file", 1);
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["backendReplicas"] = json!(1);
    std::fs::write(&path, config.to_string()).unwrap();

    // Row 1: owner or target cannot be read. A missing right will not pass, so that is another code.
    for (resource, answer, code) in [
        ("mcpservers", 500, 75),
        ("statefulsets", 500, 75),
        ("mcpservers", 403, 1),
        ("statefulsets", 403, 1),
    ] {
        let reads = Match::method(Method::GET).resource(resource);
        let rule = proxy.inject(Rule::on(reads).then(Fault::refuse(answer)));
        let runner = lone.start_with(&through, &[("MCP_FENCE", &token(1))], &[]);
        assert_eq!(
            runner.exit_code().await,
            code,
            "{resource} {answer}: {}",
            runner.log()
        );
        rule.remove();
    }
    assert!(writes(&proxy).is_empty());
    assert!(
        world
            .api::<StatefulSet>()
            .get_opt("a-backend")
            .await
            .unwrap()
            .is_none()
    );

    fence(&world).await;
    let env = [("MCP_FENCE", &*token(3))];
    let newest = lone.start(&world, &env, &["--image=example.com/mcp:3"]);
    newest.ready().await;
    let stamped = world.backend_when("a", "is there", |_| true).await;
    assert_eq!(stamped.annotations()["exuvia.dev/fence"], token(3));

    // A server whose reads are behind: the runner sees epoch 1, the policy sees 3. The lock does not help, since the
    // version is the current one.
    let behind = until("the backend has settled", async || {
        let now = world.api::<StatefulSet>().get("a-backend").await.unwrap();
        let available = now.status.as_ref().and_then(|status| status.available_replicas);
        (mcp_operator::workload::is_stateful_set_ready(&now) && available == Some(1)).then_some(now)
    })
    .await;
    let mut behind = json!(behind);
    behind["apiVersion"] = json!("apps/v1");
    behind["kind"] = json!("StatefulSet");
    behind["metadata"]["annotations"]["exuvia.dev/fence"] = json!(token(1));
    let reads = || {
        Match::method(Method::GET)
            .resource("statefulsets")
            .object("outrun", "a-backend")
    };
    let stale = || Fault::refuse(Answer::status(200).json(&behind));
    let always = proxy.inject(Rule::on(reads()).then(stale()));
    let env = [("MCP_FENCE", &*token(2))];
    let old = lone.start_with(&through, &env, &["--image=example.com/mcp:2"]);
    assert_eq!(old.exit_code().await, 75, "{}", old.log());
    // 409, should anybody have touched the backend's status meanwhile.
    let refused = writes(&proxy);
    assert_eq!(refused.len(), 5, "it decides five times: {refused:?}");
    assert!(
        refused.iter().all(|code| [403, 409].contains(code)),
        "{refused:?}"
    );
    assert!(refused.contains(&403), "{refused:?}");
    assert!(old.log().contains("somebody else wrote"), "{}", old.log());
    always.remove();

    // If only the first decision was behind, the second one is to skip.
    proxy.forget();
    let twice = proxy.inject(Rule::on(reads()).times(2).then(stale()));
    let old = lone.start_with(&through, &env, &["--image=example.com/mcp:2"]);
    old.logs("decision=skip ours=2 theirs=3").await;
    old.ready().await;
    assert_eq!(writes(&proxy).len(), 1);
    twice.remove();
    drop(old);
    let live = world.backend_when("a", "is there", |_| true).await;
    assert_eq!(image(&live), "example.com/mcp:3");
    assert_eq!(live.metadata.generation, stamped.metadata.generation);

    // A newer one that meets a conflict each time gives up, and succeeds once nobody is in its way (row 13).
    proxy.forget();
    let applies = Match::method(Method::PATCH).resource("statefulsets");
    let conflicts = proxy.inject(Rule::on(applies).then(Fault::refuse(409)));
    let env = [("MCP_FENCE", &*token(4))];
    let new = lone.start_with(&through, &env, &["--image=example.com/mcp:4"]);
    assert_eq!(new.exit_code().await, 75, "{}", new.log());
    assert_eq!(writes(&proxy), [409; 5]);
    conflicts.remove();
    let new = lone.start_with(&through, &env, &["--image=example.com/mcp:4"]);
    new.ready().await;
    new.logs("decision=apply ours=4 theirs=3").await;
    let live = world.backend_when("a", "is there", |_| true).await;
    assert_eq!(image(&live), "example.com/mcp:4");
}
