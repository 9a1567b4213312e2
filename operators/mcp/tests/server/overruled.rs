//! Children that others change: admission, about which the operator says so once and does not apply them for ever, and people, whose edits
//! are taken back.

use exuvia_testenv::until;
use http::Method;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::harness::{World, spec};
use crate::program::Operator;

/// A registry's mirror, as a platform sets it for everybody.
async fn set_image(world: &World, image: &str) {
    let rules = json!([{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["deployments"]}]);
    let only_here = json!({"matchLabels": {"kubernetes.io/metadata.name": world.namespace}});
    let expression = format!(
        r#"[JSONPatch{{op: "replace", path: "/spec/template/spec/containers/0/image", value: "{image}"}}]"#
    );
    let make = async |kind: &str, spec: Value| {
        let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> = Api::all_with(world.client.clone(), &resource);
        let object = serde_json::from_value(json!({"metadata": {"name": world.namespace}, "spec": spec}));
        let mut object: DynamicObject = object.unwrap();
        object.types = Some(kube::core::TypeMeta {
            api_version: resource.api_version.clone(),
            kind: kind.kind.clone(),
        });
        api.create(&PostParams::default(), &object).await.unwrap();
    };
    make(
        "MutatingAdmissionPolicy",
        json!({
            "matchConstraints": {"namespaceSelector": only_here, "resourceRules": rules},
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
        }),
    )
    .await;
    make(
        "MutatingAdmissionPolicyBinding",
        json!({"policyName": world.namespace}),
    )
    .await;
    let deployments: Api<Deployment> = world.api();
    until("the policy takes effect", async || {
        let probe = json!({
            "metadata": {"name": "probe"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
                "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "own"}]},
            }},
        });
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let probed = deployments
            .create(&dry_run, &serde_json::from_value(probe).unwrap())
            .await;
        probed.is_ok_and(|probed| image_of(&probed) == image)
    })
    .await;
}

fn image_of(deployment: &Deployment) -> &str {
    let pods = deployment.spec.template.spec.as_ref().unwrap();
    pods.containers[0].image.as_deref().unwrap()
}

#[tokio::test]
async fn a_child_that_a_policy_changes_is_told_once_and_is_not_applied_for_ever() {
    let world = World::new("overruled").await;
    set_image(&world, "mirror.example.com/runner:1").await;
    let (proxy, through) = world.proxied().await;
    let _operator = Operator::start_with(&world, &through, &["--resync=100ms"]);
    world.create_server("a", spec("example.com/mcp:1")).await;
    world
        .deployment_when("a", "the policy has the last word", |deployment| {
            image_of(deployment) == "mirror.example.com/runner:1"
        })
        .await;
    let events: Api<Event> = world.api();
    let told = async || {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let is_told = |event: &Event| event.reason.as_deref() == Some("ChildChanged");
        all.into_iter().filter(is_told).collect::<Vec<_>>()
    };
    until("it is told", async || !told().await.is_empty()).await;
    let applies = || {
        let writes = proxy.writes();
        let about = writes.iter().filter(|write| {
            write.method == Method::PATCH
                && write
                    .object()
                    .is_some_and(|object| object.resource == "deployments")
        });
        about.count()
    };
    let server_reads = || {
        let requests = proxy.requests();
        requests
            .iter()
            .filter(|request| request.method == Method::GET && request.path.ends_with("/mcpservers/a"))
            .count()
    };
    let (before, reads) = (applies(), server_reads());
    until("twenty more reconciles", async || server_reads() > reads + 20).await;
    assert_eq!(applies(), before, "nothing is applied again");
    let events = told().await;
    assert_eq!(events.len(), 1);
    let note = events[0].note.clone().unwrap();
    assert!(note.contains("deployments.apps"), "{note}");
    assert_eq!(events[0].regarding.as_ref().unwrap().name.as_deref(), Some("a"));
}

/// Our port does not fit next to one without a name, nor next to one with its own: the server would refuse each apply.
#[tokio::test]
async fn ports_that_somebody_changed_are_put_back_and_the_next_port_is_the_only_one() {
    let world = World::new("ports").await;
    let _operator = Operator::start(&world, &["--resync=300ms"]);
    // No runner is started, so the port need not be free.
    let spec = json!({"image": "example.com/mcp:1", "proxyPort": 8080});
    world.create_server("a", spec).await;
    let services: Api<Service> = world.api();
    let numbers_are = async |expected: &[i32]| {
        until(&format!("the ports are {expected:?}"), async || {
            let found = services.get_opt("a").await.unwrap()?;
            let ports = found.spec?.ports?;
            let numbers: Vec<_> = ports.iter().map(|port| port.port).collect();
            (numbers == expected).then_some(())
        })
        .await;
    };
    numbers_are(&[8080]).await;
    for ports in [
        json!([{"port": 1}]),
        json!([{"name": "http", "port": 9999, "targetPort": "http"}]),
    ] {
        let edit = Patch::Merge(json!({"spec": {"ports": ports}}));
        services.patch("a", &PatchParams::default(), &edit).await.unwrap();
        numbers_are(&[8080]).await;
    }
    // A port that ours fits next to stays.
    let more = json!([{"name": "http", "port": 8080, "targetPort": "http"}, {"name": "more", "port": 5}]);
    let edit = Patch::Merge(json!({"spec": {"ports": more}}));
    services.patch("a", &PatchParams::default(), &edit).await.unwrap();
    world
        .patch_server("a", json!({"spec": {"proxyPort": 8082}}))
        .await;
    until("the new port is there, and the old one is not", async || {
        let ports = services.get("a").await.unwrap().spec?.ports?;
        let mut numbers: Vec<_> = ports.iter().map(|port| port.port).collect();
        numbers.sort_unstable();
        (numbers == [5, 8082]).then_some(())
    })
    .await;
}
