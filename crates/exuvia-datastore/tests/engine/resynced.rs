//! The mode `SyncThenFreeze` while kinds change under it: what was in step under another schema is read again.

use exuvia_api::DatastorePhase;
use exuvia_datastore::Engine;
use exuvia_datastore::protocol::Hold;
use exuvia_runtime::machine::Ended;
use exuvia_testenv::{Widgets, until};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::Stage;
use crate::copied::{schema, stage_with};

/// In step, and held before the freeze.
pub(crate) async fn held(stage: &Stage, change: impl FnOnce(&mut Value)) -> Engine {
    let mut spec = stage.spec();
    spec["mode"] = json!("SyncThenFreeze");
    spec["mappings"][0]["status"] = json!("Copy");
    spec["cutover"] = json!({"hold": true});
    change(&mut spec);
    let migration = stage.migration(spec).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::BeforeCutover));
    engine
}

pub(crate) async fn cut_over(stage: &Stage) {
    let cutover = json!({"spec": {"cutover": {"hold": false}}});
    stage
        .migrations()
        .patch(&stage.name, &PatchParams::default(), &Patch::Merge(&cutover))
        .await
        .unwrap();
}

fn crds(stage: &Stage) -> Api<CustomResourceDefinition> {
    Api::all(stage.client.clone())
}

/// Changes the CRD of these widgets.
async fn change_crd(stage: &Stage, widgets: &Widgets, change: impl Fn(&mut Value)) {
    until("the CRD is changed", async || {
        let crd = crds(stage).get(&widgets.crd_name()).await.unwrap();
        let mut changed = serde_json::to_value(&crd).unwrap();
        change(&mut changed);
        let changed = serde_json::from_value(changed).unwrap();
        let params = PostParams::default();
        crds(stage)
            .replace(&widgets.crd_name(), &params, &changed)
            .await
            .map_err(|error| error.to_string())
    })
    .await;
}

/// The target kind does not know this field any more.
async fn forget_color(stage: &Stage) {
    change_crd(stage, &stage.new, |crd| {
        let fields = schema(crd)["spec"]["properties"].as_object_mut().unwrap();
        fields.remove("color");
    })
    .await;
    until("the field does not show any more", async || {
        contents(stage, &stage.new).await[0].1.get("color").is_none()
    })
    .await;
}

/// Name and content of all widgets of a group.
pub(crate) async fn contents(stage: &Stage, widgets: &Widgets) -> Vec<(String, Value, Value)> {
    // After a change of its CRD a server may ask to come back later.
    let all = until("the widgets are listed", async || {
        let all = stage.api(widgets).list(&ListParams::default()).await;
        all.map_err(|error| error.to_string())
    })
    .await;
    let part = |widget: &kube::api::DynamicObject, part: &str| widget.data.get(part).cloned();
    all.iter()
        .map(|widget| {
            let (spec, status) = (part(widget, "spec"), part(widget, "status"));
            (
                widget.name_any(),
                spec.unwrap_or_default(),
                status.unwrap_or_default(),
            )
        })
        .collect()
}

/// Source and target kinds are read again together with the spec: what was followed before is about other kinds.
#[tokio::test]
async fn a_target_kind_that_gets_a_status_meanwhile_is_copied_again() {
    let stage = stage_with("resync-status", |crd| {
        for version in crd["spec"]["versions"].as_array_mut().unwrap() {
            version.as_object_mut().unwrap().remove("subresources");
        }
    })
    .await;
    for name in ["w0", "w1"] {
        stage.create_old(name, json!({"size": 1, "color": "red"})).await;
        let status = json!({"status": {"ready": 1}});
        stage.merge_status(&stage.old, name, status).await;
    }
    let mut engine = held(&stage, |_| {}).await;
    change_crd(&stage, &stage.new, |crd| {
        for version in crd["spec"]["versions"].as_array_mut().unwrap() {
            version["subresources"] = json!({"status": {}});
        }
    })
    .await;
    until("the subresource is served", async || {
        stage.api(&stage.new).get_status("w0").await.is_ok()
    })
    .await;
    let size = json!({"spec": {"size": 5}});
    stage.merge(&stage.old, "w0", size).await;
    let status = json!({"status": {"ready": 2}});
    stage.merge_status(&stage.old, "w1", status).await;
    cut_over(&stage).await;
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert_eq!(
        contents(&stage, &stage.new).await,
        contents(&stage, &stage.old).await
    );
}

#[tokio::test]
async fn a_target_kind_that_is_made_again_meanwhile_is_copied_again() {
    let stage = Stage::new("resync-recreated", 3).await;
    let mut engine = held(&stage, |_| {}).await;
    let name = stage.new.crd_name();
    crds(&stage)
        .delete(&name, &DeleteParams::default())
        .await
        .unwrap();
    until("the CRD is gone", async || {
        crds(&stage).get_opt(&name).await.unwrap().is_none()
    })
    .await;
    stage.new.install(&stage.client, "v1").await.unwrap();
    stage.merge(&stage.old, "w0", json!({"spec": {"size": 5}})).await;
    cut_over(&stage).await;
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert_eq!(
        contents(&stage, &stage.new).await,
        contents(&stage, &stage.old).await
    );
}

/// No object changes, so no watch tells of it.
#[tokio::test]
async fn a_field_that_the_target_kind_loses_meanwhile_is_missed_before_the_commit() {
    let stage = Stage::new("resync-pruned", 2).await;
    let mut engine = held(&stage, |_| {}).await;
    forget_color(&stage).await;
    cut_over(&stage).await;
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Failed));
    let status = stage.read().await.status.unwrap();
    assert_eq!(status.phase, Some(DatastorePhase::Failed));
    for named in [
        "spec.color",
        &format!("Widget.{}", stage.old.group()),
        "resync-pruned/w",
    ] {
        assert!(status.message.contains(named), "{named}: {}", status.message);
    }
    assert!(stage.all(&stage.new).await.is_empty());
    assert_eq!(contents(&stage, &stage.old).await[0].1["color"], "red");
}

/// After the commit nothing is undone, and nothing is deleted that is nowhere else.
#[tokio::test]
async fn a_source_is_kept_whose_target_lost_a_field_with_its_schema() {
    let stage = Stage::new("resync-kept", 1).await;
    let mut spec = stage.spec();
    spec["cleanup"] = json!({"source": "DeleteCRDs"});
    assert_eq!(stage.run(spec).await, Ended::Done);
    forget_color(&stage).await;
    assert_eq!(stage.delete().await, Ended::Held(Hold::CleanupBlocked));
    assert_eq!(contents(&stage, &stage.old).await[0].1["color"], "red");
    change_crd(&stage, &stage.new, |crd| {
        schema(crd)["spec"]["properties"]["color"] = json!({"type": "string"});
    })
    .await;
    until("the field shows again", async || {
        contents(&stage, &stage.new).await[0].1.get("color").is_some()
    })
    .await;
    let migration = stage.read().await;
    assert_eq!(stage.drive(&mut stage.engine(&migration)).await, Ended::Done);
}

#[tokio::test]
async fn a_default_that_the_source_kind_gets_meanwhile_is_copied() {
    let stage = Stage::new("resync-default", 2).await;
    let mut engine = held(&stage, |_| {}).await;
    change_crd(&stage, &stage.old, |crd| {
        schema(crd)["spec"]["properties"]["payload"]["default"] = json!("new");
    })
    .await;
    until("the default shows", async || {
        contents(&stage, &stage.old).await[0].1["payload"] == "new"
    })
    .await;
    cut_over(&stage).await;
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert_eq!(
        contents(&stage, &stage.new).await,
        contents(&stage, &stage.old).await
    );
    assert_eq!(contents(&stage, &stage.new).await[0].1["payload"], "new");
}

/// The target kind refuses the change of a field that its sources may change: nobody uses the target yet.
#[tokio::test]
async fn a_target_that_cannot_be_changed_is_made_again() {
    let stage = Stage::new("resync-immutable", 2).await;
    change_crd(&stage, &stage.new, |crd| {
        schema(crd)["spec"]["properties"]["size"]["x-kubernetes-validations"] =
            json!([{"rule": "self == oldSelf", "message": "is immutable"}]);
    })
    .await;
    let mut engine = held(&stage, |_| {}).await;
    until("the rule is in force", async || {
        let change = json!({"spec": {"size": 77}});
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let changed = stage
            .api(&stage.new)
            .patch("w0", &params, &Patch::Merge(&change))
            .await;
        changed.is_err()
    })
    .await;
    stage.merge(&stage.old, "w0", json!({"spec": {"size": 5}})).await;
    cut_over(&stage).await;
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    let targets = contents(&stage, &stage.new).await;
    assert_eq!(targets, contents(&stage, &stage.old).await);
    assert_eq!(targets[0].1["size"], 5);
}
