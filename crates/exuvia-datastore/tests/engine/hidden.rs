//! Content that is easily lost on the way without anybody noticing.

use exuvia_datastore::protocol::Hold;
use exuvia_runtime::machine::Ended;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use serde_json::{Value, json};

use crate::Stage;

/// Old and new widgets with one more property in their spec.
async fn stage_with(name: &str, property: &str, schema: Value) -> Stage {
    let stage = Stage::bare(name).await;
    for widgets in [&stage.old, &stage.new] {
        let mut crd = widgets.crd("v1");
        for version in 0..2 {
            crd["spec"]["versions"][version]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
                [property] = schema.clone();
        }
        widgets.install_crd(&stage.client, crd).await.unwrap();
    }
    stage
}

/// Without a conversion webhook a version shows what its own schema has. What only another one shows would not be copied.
#[tokio::test]
async fn content_that_shows_only_at_another_version_blocks_by_name() {
    let stage = Stage::bare("richer").await;
    let mut crd = stage.old.crd("v1alpha1");
    crd["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        .as_object_mut()
        .unwrap()
        .remove("color");
    stage.old.install_crd(&stage.client, crd).await.unwrap();
    stage.new.install(&stage.client, "v1").await.unwrap();
    let resource = stage.old.resource("v1alpha1");
    let richer: Api<DynamicObject> = Api::namespaced_with(stage.client.clone(), &stage.name, &resource);
    for (name, spec) in [
        ("plain", json!({"size": 1})),
        ("rich", json!({"size": 2, "color": "red"})),
    ] {
        let mut widget = stage.old.widget("v1alpha1", name);
        widget.metadata.namespace = Some(stage.name.clone());
        widget.data["spec"] = spec;
        richer.create(&PostParams::default(), &widget).await.unwrap();
    }
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    let blockers = engine.blockers();
    let named: Vec<&str> = blockers.iter().map(|blocker| blocker.name.as_str()).collect();
    assert_eq!(named, ["rich"], "{blockers:?}");
    assert!(blockers[0].message.contains("spec.color"), "{blockers:?}");
    // Once nothing is hidden, the schemas alone do not hold it.
    richer.delete("rich", &DeleteParams::default()).await.unwrap();
    assert_eq!(stage.goes_on(&mut engine, Hold::Blocked).await, Ended::Done);
}

/// These change their last digit where a parser takes the short way.
#[tokio::test]
async fn fractions_keep_every_digit() {
    let stage = stage_with("fractions", "ratio", json!({"type": "number"})).await;
    let ratios = [
        942.450_341_326_766_5,
        29.006_199_278_386_454,
        5.700_092_953_578_995e-13,
    ];
    for (index, ratio) in ratios.iter().enumerate() {
        stage
            .create_old(&format!("w{index}"), json!({"ratio": ratio}))
            .await;
    }
    assert_eq!(stage.run(stage.spec()).await, Ended::Done);
    let control_plane = crate::control_plane().await;
    let mut stored = Vec::new();
    for widgets in [&stage.old, &stage.new] {
        let objects = control_plane
            .stored(widgets.group(), "widgets")
            .all()
            .await
            .unwrap();
        let digits = objects
            .iter()
            .map(|object| object.json().unwrap()["spec"]["ratio"].to_string());
        stored.push(digits.collect::<Vec<String>>());
    }
    assert_eq!(stored[0], ratios.map(|ratio| json!(ratio).to_string()));
    assert_eq!(stored[0], stored[1]);
}

#[tokio::test]
async fn an_empty_object_is_not_the_same_as_none() {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    let stage = stage_with("emptied", "selfSigned", schema).await;
    stage.create_old("w", json!({"size": 1, "selfSigned": {}})).await;
    stage.create(&stage.new, "w", json!({"size": 1})).await;
    assert_eq!(stage.run(stage.spec()).await, Ended::Held(Hold::Conflicts));
}

#[tokio::test]
async fn a_target_that_is_being_deleted_is_not_there_already() {
    let stage = Stage::new("going", 1).await;
    stage
        .create(&stage.new, "w0", json!({"size": 0, "color": "red"}))
        .await;
    stage
        .merge(
            &stage.new,
            "w0",
            json!({"metadata": {"finalizers": ["example.com/hold"]}}),
        )
        .await;
    let targets = stage.api(&stage.new);
    targets.delete("w0", &DeleteParams::default()).await.unwrap();
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    assert!(engine.blockers()[0].message.contains("being deleted"));
    stage
        .merge(&stage.new, "w0", json!({"metadata": {"finalizers": null}}))
        .await;
    assert_eq!(stage.goes_on(&mut engine, Hold::Blocked).await, Ended::Done);
    assert_eq!(stage.all(&stage.new).await.len(), 1);
}

/// Somebody deletes what a flag is on: writers must not stay locked out for good.
#[tokio::test]
async fn a_flag_whose_object_is_deleted_does_not_outlast_the_longest_freeze() {
    let stage = Stage::new("unflagged", 1).await;
    stage.config_map("switch", &[], json!({})).await;
    let mut spec = stage.spec();
    spec["cutover"] = json!({"hold": true});
    spec["freeze"] = json!({"drain": "100ms", "maxDuration": "20s", "flags": [{
        "group": "", "version": "v1", "kind": "ConfigMap", "namespace": stage.name, "name": "switch",
        "path": "data.paused", "frozen": "yes", "thawed": "no", "side": "Source",
    }]});
    let migration = stage.migration(spec).await;
    let mut engine = stage.engine(&migration);
    crate::up_to(&mut engine, exuvia_datastore::protocol::Step::Copy).await;
    stage
        .config_maps()
        .delete("switch", &DeleteParams::default())
        .await
        .unwrap();
    let ended = loop {
        match stage.drive(&mut engine).await {
            Ended::Held(Hold::BeforeCutover) => {}
            ended => break ended,
        }
    };
    assert_eq!(ended, Ended::Held(Hold::Failed));
    stage.thawed().await;
}
