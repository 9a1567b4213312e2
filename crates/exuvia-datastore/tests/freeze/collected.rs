//! The shield: what the garbage collector would take because owners move is kept.

use exuvia_datastore::freeze::Form;
use exuvia_testenv::until;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use crate::Stage;

/// A `ConfigMap` whose owner does not exist.
fn owned(name: &str, namespace: &str, group: &str) -> ConfigMap {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": [
            {"apiVersion": format!("{group}/v1"), "kind": "Widget", "name": "nobody", "uid": "00000000-0000-0000-0000-000000000001"},
        ]},
    }))
    .unwrap()
}

#[tokio::test]
async fn what_a_moved_owner_owns_is_not_collected_under_the_shield() {
    let stage = Stage::set("shielded").await;
    let namespaces: Api<Namespace> = Api::all(stage.admin.clone());
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "shielded"}})).unwrap();
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let maps = |namespace: &str| -> Api<ConfigMap> { Api::namespaced(stage.admin.clone(), namespace) };
    let freeze = stage.freeze();
    stage.set_and_wait(&freeze, Form::Converged, true).await;
    let create = async |name: &str, namespace: &str, group: &str| {
        let map = owned(name, namespace, group);
        maps(namespace)
            .create(&PostParams::default(), &map)
            .await
            .unwrap();
    };
    // The collector learns of new kinds every half minute. Once it has met the newest one, it knows the others.
    let control = stage.other_kind().await;
    create("control", "default", &control).await;
    until("the control is collected", async || {
        maps("default").get_opt("control").await.unwrap().is_none()
    })
    .await;
    create("by-source", "default", stage.source.group()).await;
    create("by-target", "default", stage.target.group()).await;
    create("gone-with-its-namespace", "shielded", stage.source.group()).await;
    until("the collector was refused", async || {
        let log = std::fs::read_to_string(
            crate::control_plane()
                .await
                .controller_manager()
                .unwrap()
                .log_path(),
        )
        .unwrap();
        ["by-source", "by-target"].iter().all(|name| {
            log.lines()
                .any(|line| line.contains(name) && line.contains("not collected until"))
        })
    })
    .await;
    for name in ["by-source", "by-target"] {
        assert!(maps("default").get_opt(name).await.unwrap().is_some(), "{name}");
    }
    // The user of the collector also empties namespaces here.
    namespaces
        .delete("shielded", &DeleteParams::default())
        .await
        .unwrap();
    until("the namespace is gone", async || {
        namespaces.get_opt("shielded").await.unwrap().is_none()
    })
    .await;
    freeze.set(Form::Converged, false).await.unwrap();
    until("without the shield they go", async || {
        let maps = maps("default");
        maps.get_opt("by-source").await.unwrap().is_none()
            && maps.get_opt("by-target").await.unwrap().is_none()
    })
    .await;
    freeze.remove().await.unwrap();
}

#[tokio::test]
async fn after_the_commit_the_collector_may_orphan_and_empty_sources() {
    let stage = Stage::set("orphaned").await;
    let owner = async |name: &str| {
        let owner = stage.widget(name, json!({})).await;
        let reference = json!([{
            "apiVersion": format!("{}/v1", stage.source.group()), "kind": "Widget", "name": name,
            "uid": owner.metadata.uid, "blockOwnerDeletion": true,
        }]);
        let dependent = format!("{name}-dependent");
        stage
            .widget(&dependent, json!({"ownerReferences": reference}))
            .await;
        dependent
    };
    let orphan = owner("left-behind").await;
    let foreground = owner("waiting").await;
    let background = owner("going").await;
    let freeze = stage.freeze();
    stage.set_and_wait(&freeze, Form::Converged, false).await;
    let widgets = stage.source.api(&stage.other, "v1");
    for (name, params) in [
        ("left-behind", DeleteParams::orphan()),
        ("waiting", DeleteParams::foreground()),
        ("going", DeleteParams::background()),
    ] {
        widgets.delete(name, &params).await.unwrap();
        until("the owner is gone", async || {
            widgets.get_opt(name).await.unwrap().is_none()
        })
        .await;
    }
    for gone in [foreground, background] {
        until("the dependent is gone", async || {
            widgets.get_opt(&gone).await.unwrap().is_none()
        })
        .await;
    }
    let orphan = widgets.get(&orphan).await.unwrap();
    assert_eq!(orphan.metadata.owner_references, None);
    freeze.remove().await.unwrap();
}

impl Stage {
    /// A group whose kind `Widget` exists and is not moved.
    async fn other_kind(&self) -> String {
        let widgets = exuvia_testenv::Widgets::in_group(format!("stays.{}", self.source.group()));
        widgets.install(&self.admin, "v1").await.unwrap();
        widgets.group().to_owned()
    }
}
