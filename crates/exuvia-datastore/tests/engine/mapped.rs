//! What the mapping says, on the server.

use exuvia_api::{DatastorePhase, datastore_reason as reason};
use exuvia_datastore::protocol::Hold;
use exuvia_runtime::machine::Ended;
use exuvia_testenv::{Widgets, until};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::{Stage, up_to};

fn names(objects: &[DynamicObject]) -> Vec<String> {
    objects.iter().map(ResourceExt::name_any).collect()
}

#[tokio::test]
async fn one_object_becomes_two_with_other_names() {
    let stage = Stage::new("twofold", 2).await;
    let colors = Widgets::in_group("colors.twofold.dev");
    colors.install(&stage.client, "v1").await.unwrap();
    let mut spec = stage.spec();
    spec["mappings"][0]["metadata"] = json!({"name": "'new-' + object.metadata.name"});
    spec["mappings"][0]["remove"] = json!(["spec.color"]);
    let mut extra = spec["mappings"][0].clone();
    extra["name"] = json!("colors");
    extra["extra"] = json!(true);
    extra["to"]["group"] = json!(colors.group());
    extra["metadata"]["name"] = json!("'color-' + object.metadata.name");
    extra["remove"] = json!(["spec.size"]);
    spec["mappings"].as_array_mut().unwrap().push(extra);
    assert_eq!(stage.run(spec).await, Ended::Done);
    let (main, extra) = (stage.all(&stage.new).await, stage.all(&colors).await);
    assert_eq!(names(&main), ["new-w0", "new-w1"]);
    assert_eq!(names(&extra), ["color-w0", "color-w1"]);
    assert_eq!(main[1].data["spec"], json!({"size": 1}));
    assert_eq!(extra[1].data["spec"], json!({"color": "red"}));
    let progress = stage.read().await.status.unwrap().progress.unwrap();
    assert_eq!((progress.total, progress.migrated), (4, 4));
}

#[tokio::test]
async fn two_sources_with_one_target_name_block_and_nothing_is_locked() {
    let stage = Stage::new("samename", 2).await;
    let mut spec = stage.spec();
    spec["mappings"][0]["metadata"] = json!({"name": "'same'"});
    let migration = stage.migration(spec).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    assert_eq!(engine.blockers().len(), 1);
    assert_eq!(engine.blockers()[0].reason, reason::NAME_COLLISION);
    assert_eq!(stage.policies(migration.uid().as_deref().unwrap()).await, 0);
}

#[tokio::test]
async fn namespaced_objects_become_cluster_scoped_ones() {
    let stage = Stage::bare("scope").await;
    stage.old.install(&stage.client, "v1").await.unwrap();
    stage.create_old("one", json!({"size": 1})).await;
    let mut crd = stage.new.crd("v1");
    crd["spec"]["scope"] = json!("Cluster");
    let crd: CustomResourceDefinition = serde_json::from_value(crd).unwrap();
    Api::all(stage.client.clone())
        .create(&PostParams::default(), &crd)
        .await
        .unwrap();
    let targets: Api<DynamicObject> = Api::all_with(stage.client.clone(), &stage.new.resource("v1"));
    until("the cluster-scoped kind is served", async || {
        targets.list(&ListParams::default()).await.is_ok()
    })
    .await;
    let mut spec = stage.spec();
    spec["mappings"][0]["metadata"] = json!({
        "name": "object.metadata.namespace + '-' + object.metadata.name", "namespace": "''",
    });
    assert_eq!(stage.run(spec).await, Ended::Done);
    let targets = targets.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(names(&targets), ["scope-one"]);
    assert_eq!(targets[0].metadata.namespace, None);
}

#[tokio::test]
async fn only_objects_that_a_mapping_takes_are_moved() {
    let stage = Stage::new("taken", 3).await;
    let mut spec = stage.spec();
    spec["mappings"][0]["from"]["when"] = json!("object.spec.size >= 1");
    assert_eq!(stage.run(spec).await, Ended::Done);
    assert_eq!(names(&stage.all(&stage.new).await), ["w1", "w2"]);
}

#[tokio::test]
async fn an_object_that_is_not_ready_holds_the_migration_until_it_is() {
    let stage = Stage::new("ready", 2).await;
    let mut spec = stage.spec();
    spec["mappings"][0]["from"]["ready"] = json!("object.spec.size > 0");
    let migration = stage.migration(spec).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    let blockers = engine.blockers();
    assert_eq!(blockers.len(), 1);
    assert_eq!(
        (blockers[0].reason.as_str(), blockers[0].name.as_str()),
        (reason::NOT_READY, "w0")
    );
    assert_eq!(stage.policies(migration.uid().as_deref().unwrap()).await, 0);
    stage.merge(&stage.old, "w0", json!({"spec": {"size": 7}})).await;
    assert_eq!(stage.goes_on(&mut engine, Hold::Blocked).await, Ended::Done);
    assert_eq!(stage.phase().await, DatastorePhase::Complete);
}

#[tokio::test]
async fn a_selector_freezes_and_moves_only_what_it_selects() {
    let stage = Stage::new("selected", 3).await;
    stage
        .merge(&stage.old, "w1", json!({"metadata": {"labels": {"move": "yes"}}}))
        .await;
    let mut spec = stage.spec();
    spec["mappings"][0]["from"]["selector"] = json!({"matchLabels": {"move": "yes"}});
    let migration = stage.migration(spec).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, exuvia_datastore::protocol::Step::Copy).await;
    // Others are written as before; nobody can become selected.
    let color = json!({"spec": {"color": "blue"}});
    stage.merge(&stage.old, "w0", color.clone()).await;
    let api = stage.api(&stage.old);
    let (params, label) = (
        kube::api::PatchParams::default(),
        json!({"metadata": {"labels": {"move": "yes"}}}),
    );
    for (name, patch) in [("w1", &color), ("w2", &label)] {
        let refused = api
            .patch(name, &params, &kube::api::Patch::Merge(patch))
            .await
            .unwrap_err();
        assert!(
            refused.to_string().contains("DatastoreMigration selected"),
            "{name}: {refused}"
        );
    }
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert_eq!(names(&stage.all(&stage.new).await), ["w1"]);
}
