//! kube-controller-manager, kube-scheduler and kwok: what is deleted is really deleted, what rolls out really rolls out.

use exuvia_testenv::ControlPlane;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

/// PITFALLS A13.
#[tokio::test]
async fn a_dependent_whose_owner_has_another_uid_is_deleted() {
    let control_plane = ControlPlane::builder()
        .controllers(["garbage-collector-controller"])
        .start()
        .await
        .unwrap();
    let config_maps: Api<ConfigMap> = Api::namespaced(control_plane.client().unwrap(), "default");
    let create = async |value| {
        let object: ConfigMap = serde_json::from_value(value).unwrap();
        config_maps.create(&PostParams::default(), &object).await.unwrap()
    };
    let owner = create(json!({"metadata": {"name": "owner"}})).await;
    let owned_by = |name: &str, uid: &str| {
        json!({"metadata": {"name": name, "ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}]}})
    };
    create(owned_by("right", owner.metadata.uid.as_deref().unwrap())).await;
    create(owned_by("wrong", "00000000-0000-0000-0000-000000000000")).await;
    exuvia_testenv::until("the dangling dependent is gone", async || {
        config_maps.get_opt("wrong").await.unwrap().is_none()
    })
    .await;
    config_maps.get("right").await.unwrap();
}

#[tokio::test]
async fn a_daemon_set_rolls_out_on_fake_nodes() {
    let control_plane = ControlPlane::builder()
        .controllers(["daemonset-controller", "garbage-collector-controller"])
        .fake_nodes()
        .start()
        .await
        .unwrap();
    control_plane.add_nodes(3).await.unwrap();
    let client = control_plane.client().unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    assert_eq!(nodes.list(&ListParams::default()).await.unwrap().items.len(), 3);

    let daemon_sets: Api<DaemonSet> = Api::namespaced(client, "default");
    let daemon_set = serde_json::from_value(json!({
        "metadata": {"name": "agent"},
        "spec": {
            "selector": {"matchLabels": {"app": "agent"}},
            "template": {
                "metadata": {"labels": {"app": "agent"}},
                "spec": {"containers": [{"name": "agent", "image": "agent:1"}]},
            },
        },
    }))
    .unwrap();
    daemon_sets
        .create(&PostParams::default(), &daemon_set)
        .await
        .unwrap();
    let rolled_out = async |generation: i64| {
        let Some(status) = daemon_sets.get("agent").await.unwrap().status else {
            return false;
        };
        status.observed_generation == Some(generation)
            && status.updated_number_scheduled == Some(3)
            && status.number_available == Some(3)
    };
    exuvia_testenv::until("three pods run", async || rolled_out(1).await).await;

    let image =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "agent", "image": "agent:2"}]}}}});
    daemon_sets
        .patch("agent", &PatchParams::default(), &Patch::Strategic(image))
        .await
        .unwrap();
    exuvia_testenv::until("all three run the new image", async || rolled_out(2).await).await;
}
