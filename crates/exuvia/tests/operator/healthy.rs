//! Healthy clusters that look as if something were wrong, and verdicts that must not be given.

use std::time::Duration;

use exuvia_api::Phase;
use exuvia_testenv::Widgets;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::harness::*;
use crate::oracle::{assert_every_trim_was_right, events};

/// The storage version is not served yet: after the drop of the other one nothing can be read.
#[tokio::test]
async fn the_only_served_version_is_not_among_the_droppable_ones() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("onlyserved.example.com");
    let mut crd = widgets.crd("v1alpha1");
    crd["spec"]["versions"][1]["served"] = json!(false);
    widgets.install_crd(&client, crd).await.unwrap();
    widgets.create(&client, "v1alpha1", 3).await.unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut crd = crds.get(&widgets.crd_name()).await.unwrap();
    crd.spec.versions[0].storage = false;
    crd.spec.versions[1].storage = true;
    crds.replace(&widgets.crd_name(), &PostParams::default(), &crd)
        .await
        .unwrap();
    let known = format!("--apiserver={}", control_plane.apiserver().url());
    let _operator = Operator::start(&control_plane, control_plane.admin(), "a", &[&known, LONG_LEASE]);
    label(&client, &widgets, Some("true")).await;
    let status = in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    assert_eq!(
        status.droppable_versions.unwrap_or_default(),
        Vec::<String>::new()
    );
}

/// A dependent that names v1alpha1 is never collected after the drop.
#[tokio::test]
async fn a_version_that_references_name_is_not_among_the_droppable_ones() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "referred.example.com", 3, false).await;
    let owner = widgets.api(&client, "v1").get("widget-0000").await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let map = serde_json::from_value(json!({"metadata": {"name": "dependent", "ownerReferences": [{
        "apiVersion": "referred.example.com/v1alpha1", "kind": "Widget", "name": "widget-0000", "uid": owner.metadata.uid}]}})).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    let known = format!("--apiserver={}", control_plane.apiserver().url());
    let _operator = Operator::start(&control_plane, control_plane.admin(), "a", &[&known, LONG_LEASE]);
    label(&client, &widgets, Some("true")).await;
    let status = in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    assert_eq!(
        status.droppable_versions.unwrap_or_default(),
        Vec::<String>::new()
    );
}

/// Flux-like: the status has a default. Nothing was ever stored at v1alpha1.
#[tokio::test]
async fn a_clean_crd_with_a_default_in_the_status_is_never_listed_at_another_version() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("fluxlike.example.com");
    let mut crd = widgets.crd("v1");
    let status = &mut crd["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["status"];
    status["properties"]["observedGeneration"] = json!({"type": "integer"});
    status["default"] = json!({"observedGeneration": -1});
    widgets.install_crd(&client, crd).await.unwrap();
    widgets.create(&client, "v1", 3).await.unwrap();
    let known = format!("--apiserver={}", control_plane.apiserver().url());
    let _operator = Operator::start(&control_plane, control_plane.admin(), "a", &[&known, LONG_LEASE]);
    label(&client, &widgets, Some("true")).await;
    in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    let values = assert_every_trim_was_right(&control_plane, &widgets).await;
    assert_eq!(values, [["v1"]], "storedVersions over time");
}

/// A status default beside a busy old pod, one healthy server: no flapping, no accusation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_a_busy_status_writer_at_the_old_version_it_is_migrated_once() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("busypod.example.com");
    let mut crd = widgets.crd("v1alpha1");
    crd["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["observed"] =
        json!({"type": "integer", "default": -1});
    widgets.install_crd(&client, crd).await.unwrap();
    widgets.create(&client, "v1alpha1", 20).await.unwrap();
    widgets.flip_storage(&client, "v1").await.unwrap();
    let pods: Vec<_> = (0..20)
        .map(|index| {
            let api = widgets.api(&client, "v1alpha1");
            tokio::spawn(async move {
                for round in 0_u64.. {
                    let params = PatchParams {
                        field_manager: Some("old-pod".to_owned()),
                        ..PatchParams::default()
                    };
                    let status = Patch::Merge(json!({"status": {"ready": round}}));
                    let _ = api
                        .patch_status(&format!("widget-{index:04}"), &params, &status)
                        .await;
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            })
        })
        .collect();
    let known = format!("--apiserver={}", control_plane.apiserver().url());
    let _operator = Operator::start(&control_plane, control_plane.admin(), "a", &[&known, LONG_LEASE]);
    label(&client, &widgets, Some("true")).await;
    in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    for pod in &pods {
        pod.abort();
    }
    let values = assert_every_trim_was_right(&control_plane, &widgets).await;
    assert_eq!(values.len(), 3, "trimmed once: {values:?}");
    assert_eq!(events(&client, "ServerBehind").await, [], "no server is accused");
}
