//! The gate in the runner: an old runner never overwrites a newer one.

use exuvia_testenv::until;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use mcp_operator::api::MCPServer;
use serde_json::{Value, json};

use crate::harness::{World, spec};
use crate::kubelet::Kubelet;
use crate::lone::Lone;
use crate::replay::revisions;

pub(crate) fn image(backend: &StatefulSet) -> String {
    backend.spec.template.spec.as_ref().unwrap().containers[0]
        .image
        .clone()
        .unwrap()
}

#[tokio::test]
async fn an_old_runner_that_restarts_skips_and_goes_on_serving() {
    let world = World::new("gate-skip").await;
    let mut lone = Lone::new();
    let server = world.create_server("a", spec("example.com/mcp:1")).await;
    let _kubelet = Kubelet::fake(&world);
    let token = |epoch: u32| format!("{}/{epoch}", server.uid().unwrap());
    lone.config(&world, "example.com/mcp:3", 3);
    let new = lone.start(&world, &[("MCP_FENCE", &token(3)), ("MCP_GENERATION", "3")], &[]);
    new.ready().await;
    new.logs("decision=create ours=3 theirs=- env=3 file=3").await;

    // Its environment is old. What it reads is new, as with a live mount.
    let old = lone.start(
        &world,
        &[("MCP_FENCE", &token(2)), ("MCP_GENERATION", "2")],
        &["--image=example.com/mcp:2"],
    );
    old.logs("decision=skip ours=2 theirs=3 env=2 file=3").await;
    old.ready().await;
    let backend = world.backend_when("a", "is there", |_| true).await;
    assert_eq!(image(&backend), "example.com/mcp:3");
    assert_eq!(backend.annotations()["exuvia.dev/fence"], token(3));
    assert_eq!(backend.spec.pod_management_policy.as_deref(), Some("Parallel"));
    let reported = world
        .server_when("a", "the skip is reported", |server| {
            let runtime = server.status.as_ref().and_then(|status| status.runtime.as_ref());
            runtime.is_some_and(|runtime| runtime.gate.as_deref() == Some("skip"))
        })
        .await;
    let runtime = reported.status.unwrap().runtime.unwrap();
    assert_eq!((runtime.ours, runtime.theirs), (Some(token(2)), Some(token(3))));
    assert_eq!(old.process.exit_code(), None, "it goes on serving");

    // Both see that the backend goes. Whichever is first to make it again, the new one's is what stays.
    world
        .api::<StatefulSet>()
        .delete("a-backend", &DeleteParams::background())
        .await
        .unwrap();
    let again = world
        .backend_when("a", "another one", |again| again.uid() != backend.uid())
        .await;
    new.logs("asking the gate again").await;
    until("the new runner decides last", async || {
        let live = world.api::<StatefulSet>().get("a-backend").await.unwrap();
        image(&live) == "example.com/mcp:3" && live.annotations()["exuvia.dev/fence"] == token(3)
    })
    .await;
    drop(again);
}

#[tokio::test]
async fn an_image_by_argument_beats_the_file_and_a_second_start_moves_nothing() {
    let world = World::new("gate-twice").await;
    let mut lone = Lone::new();
    let server = world.create_server("a", spec("example.com/mcp:1")).await;
    let _kubelet = Kubelet::fake(&world);
    let token = format!("{}/1", server.uid().unwrap());
    lone.config(&world, "example.com/mcp:file", 1);
    let start = |lone: &mut Lone| {
        lone.start(
            &world,
            &[("MCP_FENCE", &token)],
            &["--image=example.com/mcp:argument"],
        )
    };
    let first = start(&mut lone);
    first.ready().await;
    let before = world.backend_when("a", "is there", |_| true).await;
    assert_eq!(image(&before), "example.com/mcp:argument");
    let settled = until("its status settles", async || {
        let set = world.api::<StatefulSet>().get("a-backend").await.unwrap();
        mcp_operator::workload::is_stateful_set_ready(&set).then_some(set)
    })
    .await;
    drop(first);
    let second = start(&mut lone);
    second.ready().await;
    second.logs("decision=nothing").await;
    let after = world.api::<StatefulSet>().get("a-backend").await.unwrap();
    assert_eq!(after.metadata.generation, settled.metadata.generation);
    let ours = |set: &StatefulSet| {
        let entries = set.managed_fields().iter();
        let ours: Vec<_> = entries
            .filter(|entry| {
                entry
                    .manager
                    .as_ref()
                    .is_some_and(|manager| manager.starts_with("mcp-runner"))
            })
            .cloned()
            .collect();
        ours
    };
    assert_eq!(ours(&after), ours(&settled));
    assert_eq!(revisions(&world).await.len(), 1);
}

#[tokio::test]
async fn refusals_have_exit_codes_and_leave_the_backend_alone() {
    let world = World::new("gate-refused").await;
    let mut lone = Lone::new();
    let server = world.create_server("a", spec("example.com/mcp:1")).await;
    let _kubelet = Kubelet::fake(&world);
    let uid = server.uid().unwrap();
    let path = lone.config(&world, "example.com/mcp:1", 1);
    let hash = exuvia_rollout::hash_bytes(&std::fs::read(&path).unwrap());
    let token = format!("{uid}/1");
    let good = [("MCP_FENCE", token.as_str()), ("MCP_CONFIG_HASH", hash.as_str())];
    lone.start(&world, &good, &[]).ready().await;
    let before = world.backend_when("a", "is there", |_| true).await;

    // Torn: the file is not the one that the pod was made for, in either direction.
    let newer = format!("{uid}/2");
    lone.config(&world, "example.com/mcp:2", 2);
    for fence in [&token, &newer] {
        let torn = [("MCP_FENCE", fence.as_str()), ("MCP_CONFIG_HASH", hash.as_str())];
        assert_eq!(lone.start(&world, &torn, &[]).exit_code().await, 3);
    }
    assert_eq!(
        lone.start(&world, &[], &[]).exit_code().await,
        4,
        "no token, and the backend is stamped"
    );
    assert_eq!(
        lone.start(&world, &[("MCP_FENCE", "not a token")], &[])
            .exit_code()
            .await,
        78
    );
    let after = world.backend_when("a", "is there", |_| true).await;
    assert_eq!(image(&after), image(&before));
    assert_eq!(after.metadata.generation, before.metadata.generation);

    world
        .api::<MCPServer>()
        .delete("a", &DeleteParams::default())
        .await
        .unwrap();
    let orphan = lone.start(&world, &[("MCP_FENCE", &newer)], &[]);
    assert_eq!(orphan.exit_code().await, 5, "the owner is gone");
}

#[tokio::test]
async fn a_recreated_server_is_newer_than_the_one_before() {
    let world = World::new("gate-recreated").await;
    let mut lone = Lone::new();
    let _kubelet = Kubelet::fake(&world);
    let old = world.create_server("a", spec("example.com/mcp:1")).await;
    lone.config(&world, "example.com/mcp:old", 7);
    let old_token = format!("{}/7", old.uid().unwrap());
    lone.start(&world, &[("MCP_FENCE", &old_token)], &[])
        .ready()
        .await;
    let orphan = DeleteParams {
        propagation_policy: Some(kube::api::PropagationPolicy::Orphan),
        ..DeleteParams::default()
    };
    world.api::<MCPServer>().delete("a", &orphan).await.unwrap();
    until("it is gone", async || {
        world.api::<MCPServer>().get_opt("a").await.unwrap().is_none()
    })
    .await;
    let new = world.create_server("a", spec("example.com/mcp:1")).await;
    lone.config(&world, "example.com/mcp:new", 1);
    let new_token = format!("{}/1", new.uid().unwrap());
    let runner = lone.start(&world, &[("MCP_FENCE", &new_token)], &[]);
    runner.ready().await;
    let backend = world.backend_when("a", "is there", |_| true).await;
    assert_eq!(
        (
            image(&backend).as_str(),
            &backend.annotations()["exuvia.dev/fence"]
        ),
        ("example.com/mcp:new", &new_token)
    );
    // One of the old owner, started again, is not the live one's.
    lone.config(&world, "example.com/mcp:old", 7);
    let stale = lone.start(&world, &[("MCP_FENCE", &old_token)], &[]);
    stale.logs("decision=skip").await;
    stale
        .logs("the target was applied by a pod of another owner, and ours was replaced")
        .await;
    let backend = world.backend_when("a", "is there", |_| true).await;
    assert_eq!(image(&backend), "example.com/mcp:new");
}

#[tokio::test]
async fn the_dialect_of_another_operator_is_spoken_on_the_pod_template() {
    let world = World::new("gate-dialect").await;
    let mut lone = Lone::new();
    let _kubelet = Kubelet::fake(&world);
    let path = lone.config(&world, "example.com/mcp:1", 1);
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["mcpserver_generation"] = json!(5);
    std::fs::write(&path, config.to_string()).unwrap();
    let env = [("THV_MCPSERVER_GENERATION", "3")];
    let runner = lone.start(&world, &env, &["--gate=compat", "--names=toolhive"]);
    runner.logs("decision=apply ours=3 theirs=- env=3 file=5").await;
    runner.ready().await;
    let backend = world.backend_when("a", "is there", |_| true).await;
    let template = backend.spec.template.metadata.as_ref().unwrap();
    let stamp = &template.annotations.as_ref().unwrap()["toolhive.stacklok.dev/mcpserver-generation"];
    assert_eq!(stamp, "3");
    let managers: Vec<_> = backend
        .managed_fields()
        .iter()
        .filter_map(|entry| entry.manager.clone())
        .collect();
    assert!(
        managers.contains(&"toolhive-container-manager".to_owned()),
        "{managers:?}"
    );
}

/// Rows 12 and 8: a Deployment's template decides between two runners with one epoch, and an unstamped backend is adopted.
#[tokio::test]
async fn two_runners_with_one_epoch_are_decided_by_the_deployment() {
    let world = World::new("gate-equal").await;
    let mut lone = Lone::new();
    let _kubelet = Kubelet::fake(&world);
    let server = world.create_server("a", spec("example.com/mcp:1")).await;
    let token = format!("{}/1", server.uid().unwrap());
    lone.config(&world, "example.com/mcp:1", 1);
    lone.start(&world, &[("MCP_FENCE", &token)], &[]).ready().await;

    // Another image with the same epoch, and no Deployment that says that it is the current one.
    let path = lone.config(&world, "example.com/mcp:other", 1);
    let hash = exuvia_rollout::hash_bytes(&std::fs::read(&path).unwrap());
    let other = lone.start(&world, &[("MCP_FENCE", &token)], &[]);
    other.logs("decision=skip").await;
    other.logs("another pod of the same epoch").await;
    let labels = json!({"app": "a"});
    let annotations = json!({"exuvia.dev/fence": token, "exuvia.dev/config-hash": hash});
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "a"},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels, "annotations": annotations},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        }},
    }))
    .unwrap();
    world
        .api::<Deployment>()
        .create(&PostParams::default(), &deployment)
        .await
        .unwrap();
    let other = lone.start(&world, &[("MCP_FENCE", &token)], &[]);
    other.logs("decision=apply").await;
    other.ready().await;
    let backend = world.backend_when("a", "is there", |_| true).await;
    assert_eq!(image(&backend), "example.com/mcp:other");

    // The run config of the Deployment, but an image by hand: that is not what the Deployment's pods apply.
    let by_hand = lone.start(
        &world,
        &[("MCP_FENCE", &token)],
        &["--image=example.com/mcp:evil"],
    );
    by_hand.logs("decision=skip").await;
    by_hand.ready().await;
    let after = world.backend_when("a", "is there", |_| true).await;
    assert_eq!(image(&after), "example.com/mcp:other");
    assert_eq!(after.metadata.generation, backend.metadata.generation);

    // Stamps that somebody erased are put back.
    let erased =
        json!({"metadata": {"annotations": {"exuvia.dev/fence": null, "exuvia.dev/intent-hash": null}}});
    let sets: Api<StatefulSet> = world.api();
    sets.patch("a-backend", &PatchParams::default(), &Patch::Merge(erased))
        .await
        .unwrap();
    let again = lone.start(&world, &[("MCP_FENCE", &token)], &[]);
    again.ready().await;
    let backend = world.backend_when("a", "it is stamped again", |backend| {
        backend.annotations().get("exuvia.dev/fence") == Some(&token)
    });
    assert_eq!(image(&backend.await), "example.com/mcp:other");
}
