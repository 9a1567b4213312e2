//! Flags of other objects: frozen, and given back as they were.

use exuvia_api::Flag;
use exuvia_datastore::freeze::{Error, FlagGoal, Restored, freeze_flag, read_flag, restore_flag, save_flag};
use exuvia_testenv::{ControlPlane, Widgets};
use exuvia_write::Writer;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::control_plane;

fn flag(path: &str, frozen: Value) -> Flag {
    Flag {
        version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "default".into(),
        path: path.into(),
        frozen,
        ..Flag::default()
    }
}

async fn map(control_plane: &ControlPlane, name: &str, data: Value) -> Api<ConfigMap> {
    let api: Api<ConfigMap> = Api::namespaced(control_plane.client().unwrap(), "default");
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": name}, "data": data})).unwrap();
    api.create(&PostParams::default(), &map).await.unwrap();
    api
}

async fn round(client: &Client, flag: &Flag, goal: FlagGoal) -> (Option<Value>, Restored, Option<Value>) {
    let writer = Writer::named("exuvia-datastore");
    let saved = save_flag(0, &read_flag(client, flag).await.unwrap());
    for _ in 0..2 {
        freeze_flag(client, &writer, flag, &saved).await.unwrap();
    }
    let frozen = read_flag(client, flag).await.unwrap().value;
    let restored = restore_flag(client, &writer, flag, &saved, goal).await.unwrap();
    restore_flag(client, &writer, flag, &saved, goal).await.unwrap();
    (frozen, restored, read_flag(client, flag).await.unwrap().value)
}

#[tokio::test]
async fn a_flag_goes_back_to_what_it_was() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let api = map(control_plane, "flags", json!({"a.b": "free", "other": "kept"})).await;
    let at = |path: &str, frozen: &str| Flag {
        name: "flags".into(),
        ..flag(path, json!(frozen))
    };
    let there = at(r#"data["a.b"]"#, "stop");
    let expected = (Some(json!("stop")), Restored::Done, Some(json!("free")));
    assert_eq!(round(&client, &there, FlagGoal::Undo).await, expected);

    let absent = at("data.paused", "yes");
    let expected = (Some(json!("yes")), Restored::Done, None);
    assert_eq!(round(&client, &absent, FlagGoal::Undo).await, expected);

    let annotation = at(r#"metadata.annotations["example.com/paused"]"#, "true");
    let expected = (Some(json!("true")), Restored::Done, None);
    assert_eq!(round(&client, &annotation, FlagGoal::Thaw).await, expected);

    let thawed = Flag {
        thawed: json!("go"),
        ..there.clone()
    };
    let expected = (Some(json!("stop")), Restored::Done, Some(json!("go")));
    assert_eq!(round(&client, &thawed, FlagGoal::Thaw).await, expected);

    let data = api.get("flags").await.unwrap().data.unwrap();
    assert_eq!(data.len(), 2, "nothing else was touched");
    assert_eq!(data["other"], "kept");
}

#[tokio::test]
async fn a_flag_that_somebody_froze_stays_frozen() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let api = map(control_plane, "frozen-before", json!({"paused": "yes"})).await;
    let before = api.get("frozen-before").await.unwrap();
    let flag = Flag {
        name: "frozen-before".into(),
        thawed: json!("no"),
        ..flag("data.paused", json!("yes"))
    };
    for goal in [FlagGoal::Undo, FlagGoal::Thaw] {
        let expected = (Some(json!("yes")), Restored::WasFrozen, Some(json!("yes")));
        assert_eq!(round(&client, &flag, goal).await, expected);
    }
    assert_eq!(
        api.get("frozen-before").await.unwrap(),
        before,
        "it was not written"
    );
}

#[tokio::test]
async fn what_somebody_set_meanwhile_stays() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let writer = Writer::named("exuvia-datastore");
    let api = map(control_plane, "contested", json!({"paused": "no"})).await;
    let flag = Flag {
        name: "contested".into(),
        ..flag("data.paused", json!("yes"))
    };
    let saved = save_flag(3, &read_flag(&client, &flag).await.unwrap());
    freeze_flag(&client, &writer, &flag, &saved).await.unwrap();
    let patch = Patch::Merge(json!({"data": {"paused": "maybe"}}));
    api.patch("contested", &PatchParams::default(), &patch)
        .await
        .unwrap();
    let restored = restore_flag(&client, &writer, &flag, &saved, FlagGoal::Undo)
        .await
        .unwrap();
    assert_eq!(restored, Restored::LeftAlone);
    assert_eq!(
        read_flag(&client, &flag).await.unwrap().value,
        Some(json!("maybe"))
    );
}

#[tokio::test]
async fn an_object_that_is_gone_or_was_made_again_is_an_error_that_says_so() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let writer = Writer::named("exuvia-datastore");
    let api = map(control_plane, "recreated", json!({"paused": "no"})).await;
    let flag = Flag {
        name: "recreated".into(),
        ..flag("data.paused", json!("yes"))
    };
    let saved = save_flag(0, &read_flag(&client, &flag).await.unwrap());
    freeze_flag(&client, &writer, &flag, &saved).await.unwrap();
    api.delete("recreated", &DeleteParams::default()).await.unwrap();
    let gone = restore_flag(&client, &writer, &flag, &saved, FlagGoal::Undo)
        .await
        .unwrap_err();
    assert_eq!(
        gone.to_string(),
        "flag ConfigMap default/recreated data.paused: the object does not exist"
    );
    map(control_plane, "recreated", json!({"paused": "yes"})).await;
    let again = restore_flag(&client, &writer, &flag, &saved, FlagGoal::Undo)
        .await
        .unwrap_err();
    assert!(matches!(again, Error::Recreated { .. }), "{again}");
    assert_eq!(
        read_flag(&client, &flag).await.unwrap().value,
        Some(json!("yes")),
        "untouched"
    );

    let unknown = Flag {
        kind: "ConfigMop".into(),
        ..flag.clone()
    };
    let unknown = read_flag(&client, &unknown).await.unwrap_err();
    assert!(matches!(unknown, Error::NoKind { .. }), "{unknown}");
    let through = Flag {
        path: "data.paused.deep".into(),
        ..flag
    };
    let through = read_flag(&client, &through).await.unwrap_err();
    assert!(matches!(through, Error::NotAnObject { .. }), "{through}");
}

#[tokio::test]
async fn a_flag_of_a_custom_resource_keeps_its_type() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("flag.example.com");
    widgets.install(&client, "v1").await.unwrap();
    let api: Api<DynamicObject> = widgets.api(&client, "v1");
    let widget = widgets.widget("v1", "w");
    api.create(&PostParams::default(), &widget).await.unwrap();
    let flag = Flag {
        group: widgets.group().into(),
        version: "v1".into(),
        kind: "Widget".into(),
        namespace: "default".into(),
        name: "w".into(),
        path: "spec.size".into(),
        frozen: json!(0),
        ..Flag::default()
    };
    let expected = (Some(json!(0)), Restored::Done, Some(json!(1)));
    assert_eq!(round(&client, &flag, FlagGoal::Undo).await, expected);
}
