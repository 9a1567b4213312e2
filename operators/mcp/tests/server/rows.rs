//! The other rows of both decision tables, each decided by the real runner about a real backend.

use exuvia_testenv::proxy::{Fault, Match, Rule};
use exuvia_testenv::until;
use http::Method;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::gate::image;
use crate::harness::{World, spec};
use crate::kubelet::Kubelet;
use crate::lone::Lone;

const FENCE: &str = "exuvia.dev/fence";
const GENERATION: &str = "mcp.exuvia.dev/generation";

/// A merge patch of the backend, as anybody could send it.
async fn patch_backend(world: &World, patch: Value) -> StatefulSet {
    let api: Api<StatefulSet> = world.api();
    api.patch("a-backend", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap()
}

/// Waits for an event of a decision.
async fn event(world: &World, reason: &str, kind: &str) {
    let api: Api<Event> = world.api();
    until(&format!("an event {reason}"), async || {
        let events = api.list(&ListParams::default()).await.unwrap().items;
        events.iter().any(|event| {
            event.reason.as_deref() == Some(reason)
                && event.type_.as_deref() == Some(kind)
                && event
                    .regarding
                    .as_ref()
                    .is_some_and(|about| about.name.as_deref() == Some("a"))
        })
    })
    .await;
}

/// Rows 4 and 5 (in part), 8, 9, 11 and 6, on one backend, one after another.
#[tokio::test]
async fn the_strict_gate_decides_by_what_is_on_the_backend() {
    let world = World::new("rows-strict").await;
    let _kubelet = Kubelet::fake(&world);
    let mut lone = Lone::new();
    let server = world.create_server("a", spec("example.com/mcp:1")).await;
    let uid = server.uid().unwrap();
    let token = format!("{uid}/1");
    lone.config(&world, "example.com/mcp:1", 1);
    let backend = async || world.api::<StatefulSet>().get("a-backend").await.unwrap();

    // Row 4: without a token, on an absent and on an unstamped backend.
    for image in ["--image=example.com/mcp:0", "--image=example.com/mcp:1"] {
        let unstamped = lone.start(&world, &[], &[image]);
        unstamped
            .logs("decision=apply-unstamped ours=- theirs=- env=- file=1")
            .await;
        unstamped.ready().await;
        assert!(!backend().await.annotations().contains_key(FENCE));
    }
    assert_eq!(image(&backend().await), "example.com/mcp:1");
    event(&world, "ApplyUnstamped", "Warning").await;

    // Row 8: unstamped, and nobody else's.
    let with_token = [("MCP_FENCE", token.as_str())];
    let adopting = lone.start(&world, &with_token, &[]);
    adopting.logs("decision=apply ours=1 theirs=-").await;
    adopting.ready().await;
    drop(adopting); // one that lives would look after its backend
    assert_eq!(backend().await.annotations()[FENCE], token);

    // Row 11, edited: the intent is ours, and somebody changed what it led to.
    let containers = json!([{"name": "mcp", "image": "example.com/mcp:edited"}]);
    let edit = json!({"spec": {"template": {"spec": {"containers": containers}}}});
    world
        .api::<StatefulSet>()
        .patch("a-backend", &PatchParams::default(), &Patch::Strategic(edit))
        .await
        .unwrap();
    let again = lone.start(&world, &with_token, &[]);
    again.logs("decision=apply ours=1 theirs=1").await;
    again.ready().await;
    drop(again);
    assert_eq!(image(&backend().await), "example.com/mcp:1");

    // Row 9: a stamp that nobody can read. Only the live owner's runner replaces it.
    let stamp = |stamp: Value| json!({"metadata": {"annotations": {FENCE: stamp}}});
    patch_backend(&world, stamp(json!("not a token"))).await;
    let of_another = lone.start(&world, &[("MCP_FENCE", "somebody-else/9")], &[]);
    assert_eq!(of_another.exit_code().await, 4, "{}", of_another.log());
    assert_eq!(
        of_another.log().lines().last(),
        Some(
            "error: the gate refuses statefulsets rows-strict/a-backend: the target has a stamp that cannot be read, and the owner \
             of this pod is not the live one (ours 9, theirs -): nothing is applied; see whose the target is, and delete it if \
             nobody needs it: the next start of this pod makes it again"
        )
    );
    event(&world, "RefuseUnversioned", "Warning").await;
    assert_eq!(backend().await.annotations()[FENCE], "not a token");
    let of_live = lone.start(&world, &with_token, &[]);
    of_live.logs("decision=apply ours=1 theirs=-").await;
    of_live.ready().await;
    event(&world, "Apply", "Warning").await;
    drop(of_live);
    assert_eq!(backend().await.annotations()[FENCE], token);

    // Row 8, the other half: unstamped, and another owner controls it.
    let other = world.create_server("other", spec("example.com/mcp:1")).await;
    let theirs = json!([{"apiVersion": "mcp.exuvia.dev/v1beta1", "kind": "MCPServer", "name": "other",
                         "uid": other.uid(), "controller": true}]);
    patch_backend(
        &world,
        json!({"metadata": {"annotations": {FENCE: null}, "ownerReferences": theirs}}),
    )
    .await;
    let before = backend().await;
    let refused = lone.start(&world, &with_token, &["--image=example.com/mcp:2"]);
    assert_eq!(refused.exit_code().await, 4, "{}", refused.log());
    refused
        .logs("the target has no stamp, and another owner controls it")
        .await;
    assert_eq!(backend().await.metadata.generation, before.metadata.generation);

    // Row 6: it is going, and is made again once it is gone.
    patch_backend(
        &world,
        json!({"metadata": {"finalizers": ["example.com/wait"], "annotations": {FENCE: token}}}),
    )
    .await;
    let sets: Api<StatefulSet> = world.api();
    sets.delete("a-backend", &DeleteParams::background())
        .await
        .unwrap();
    let waiting = lone.start(&world, &with_token, &[]);
    waiting.logs("decision=wait ours=1 theirs=1").await;
    assert!(!waiting.is_ready().await);
    patch_backend(&world, json!({"metadata": {"finalizers": null}})).await;
    waiting.logs("decision=create ours=1 theirs=-").await;
    waiting.ready().await;
    assert_ne!(backend().await.uid(), before.uid());
}

/// All rows of the compat gate, its flaws included.
#[tokio::test]
async fn the_compat_gate_decides_by_generations_alone() {
    let world = World::new("rows-compat").await;
    let _kubelet = Kubelet::fake(&world);
    let (proxy, through) = world.proxied().await;
    let mut lone = Lone::new();
    world.create_server("a", spec("example.com/mcp:1")).await;
    lone.config(&world, "example.com/mcp:1", 2);
    let compat = |image: &'static str| ["--gate=compat", image];
    let live = async || {
        let set = world.api::<StatefulSet>().get("a-backend").await.unwrap();
        let template = set.spec.template.metadata.clone().unwrap_or_default();
        let stamp = template.annotations.unwrap_or_default().remove(GENERATION);
        (image(&set), stamp)
    };

    // A read that failed, and not with 404, never leads to an apply.
    let reads = Match::method(Method::GET).resource("statefulsets");
    let failing = proxy.inject(Rule::on(reads).then(Fault::refuse(500)));
    let blind = lone.start_with(&through, &[], &compat("--image=example.com/mcp:1"));
    assert_eq!(blind.exit_code().await, 75, "{}", blind.log());
    assert!(proxy.writes().is_empty());
    failing.remove();

    for (env, image, decision, left) in [
        // Absent.
        (
            "",
            "--image=example.com/mcp:1",
            "apply ours=2 theirs=- env=- file=2",
            Some("2"),
        ),
        // Equal, with another image: overwritten.
        (
            "2",
            "--image=example.com/mcp:2",
            "apply ours=2 theirs=2 env=2 file=2",
            Some("2"),
        ),
        // Older than ours.
        (
            "3",
            "--image=example.com/mcp:3",
            "apply ours=3 theirs=2 env=3 file=2",
            Some("3"),
        ),
        // Without a generation the stamp is erased, and the gate is open.
        (
            "0",
            "--image=example.com/mcp:4",
            "apply-unstamped ours=0 theirs=3 env=0 file=2",
            None,
        ),
        // Absent stamp; what is not a generation is ignored in favour of the file's.
        (
            "-7",
            "--image=example.com/mcp:5",
            "apply ours=2 theirs=- env=- file=2",
            Some("2"),
        ),
    ] {
        let runner = lone.start(&world, &[("MCP_GENERATION", env)], &compat(image));
        runner.logs(&format!("decision={decision}")).await;
        runner.ready().await;
        let applied = image.trim_start_matches("--image=").to_owned();
        assert_eq!(live().await, (applied, left.map(str::to_owned)));
    }
    let stamp =
        |stamp: &str| json!({"spec": {"template": {"metadata": {"annotations": {GENERATION: stamp}}}}});
    for unreadable in ["", "seven"] {
        patch_backend(&world, stamp(unreadable)).await;
        let runner = lone.start(&world, &[], &compat("--image=example.com/mcp:6"));
        runner.logs("decision=apply ours=2 theirs=-").await;
        runner.ready().await;
        assert_eq!(live().await.1.as_deref(), Some("2"));
    }

    // Newer than ours: serve, and leave everything alone, Services too.
    patch_backend(&world, stamp("9")).await;
    let services: Api<Service> = world.api();
    services
        .delete("a-backend", &DeleteParams::default())
        .await
        .unwrap();
    let stale = lone.start(&world, &[], &compat("--image=example.com/mcp:7"));
    stale.logs("decision=skip ours=2 theirs=9 env=- file=2").await;
    stale.ready().await;
    assert_eq!(
        live().await,
        ("example.com/mcp:6".to_owned(), Some("9".to_owned()))
    );
    assert!(services.get_opt("a-backend").await.unwrap().is_none());
}
