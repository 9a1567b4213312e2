//! What is on the wire, and what survives it.

use exuvia_write::{Effect, ErrorClass};
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, PartialObjectMeta, PostParams},
};
use serde_json::json;

use super::{CLEANUP, Stage, Widget};

const MERGE: Option<&str> = Some("application/merge-patch+json");

#[tokio::test]
async fn a_patch_carries_the_changed_field_and_the_lock_and_nothing_else() {
    let stage = Stage::set("wire-patch").await;
    let widget = stage.widget("w").await;
    let version = widget.resource_version().unwrap();
    let written = stage
        .writer
        .patch(&stage.api(), &widget, |w| w.spec.size = 2)
        .await
        .unwrap();
    let sent = stage.only_write();
    assert_eq!((sent.method.as_str(), sent.content_type()), ("PATCH", MERGE));
    assert_eq!(sent.query.trim_start_matches('&'), "fieldManager=tester");
    assert_eq!(sent.headers["user-agent"], "tester");
    assert_eq!(
        sent.json(),
        json!({"spec": {"size": 2}, "metadata": {"resourceVersion": version}})
    );
    assert_eq!(written.effect, Effect::Changed);
    assert_eq!(
        stage.live("w").await["metadata"]["resourceVersion"],
        json!(written.object.resource_version())
    );
    assert_eq!(written.object.spec.size, 2);
}

#[tokio::test]
async fn every_locked_write_carries_the_resource_version_and_no_untouched_field() {
    let stage = Stage::set("wire-locks").await;
    let (api, writer) = (stage.api(), &stage.writer);
    let widget = stage.widget("w").await;
    let lock = |widget: &Widget| json!(widget.resource_version().unwrap());
    let mut locks = vec![lock(&widget)];

    let widget = writer
        .ensure_finalizer(&api, &widget, CLEANUP)
        .await
        .unwrap()
        .object;
    locks.push(lock(&widget));
    let widget = writer
        .patch(&api, &widget, |w| {
            w.annotations_mut()
                .insert("example.com/marked".into(), "yes".into());
        })
        .await
        .unwrap()
        .object;
    locks.push(lock(&widget));
    let widget = writer
        .patch_status_locked(&api, &widget, |w| w.status_mut().phase = Some("Ready".into()))
        .await
        .unwrap()
        .object;
    locks.push(lock(&widget));
    writer
        .remove_finalizer(&api, &widget, CLEANUP)
        .await
        .unwrap()
        .unwrap();

    let sent = stage.proxy.writes();
    let expected = [
        json!({"metadata": {"finalizers": [CLEANUP.as_str()]}}),
        json!({"metadata": {"annotations": {"example.com/marked": "yes"}}}),
        json!({"metadata": {}, "status": {"phase": "Ready"}}),
        json!({"metadata": {"finalizers": null}}),
    ];
    assert_eq!(sent.len(), expected.len());
    for ((sent, mut expected), lock) in sent.iter().zip(expected).zip(locks) {
        expected["metadata"]["resourceVersion"] = lock;
        assert_eq!(sent.json(), expected);
        assert_eq!(sent.content_type(), MERGE);
    }
    assert!(sent[2].path.ends_with("/status"));
}

#[tokio::test]
async fn a_field_that_the_type_does_not_know_survives_where_put_loses_it() {
    let stage = Stage::set("wire-unknown").await;
    let (api, writer) = (stage.api(), &stage.writer);
    let widget = stage.widget("w").await;
    let color = async || stage.live("w").await["spec"]["color"].clone();
    assert!(
        serde_json::to_value(&widget).unwrap()["spec"]
            .get("color")
            .is_none()
    );

    let widget = writer
        .ensure_finalizer(&api, &widget, CLEANUP)
        .await
        .unwrap()
        .object;
    assert_eq!(color().await, "green");
    let widget = writer
        .patch(&api, &widget, |w| {
            w.annotations_mut()
                .insert("example.com/marked".into(), "yes".into());
        })
        .await
        .unwrap()
        .object;
    assert_eq!(color().await, "green");
    let widget = writer
        .remove_finalizer(&api, &widget, CLEANUP)
        .await
        .unwrap()
        .unwrap()
        .object;
    assert_eq!(color().await, "green");

    // The control: the same type in a full replacement.
    api.replace("w", &PostParams::default(), &widget).await.unwrap();
    assert_eq!(color().await, serde_json::Value::Null);
}

#[tokio::test]
async fn no_change_sends_nothing() {
    let stage = Stage::set("wire-noop").await;
    let (api, writer) = (stage.api(), &stage.writer);
    let mut widget = stage.widget("w").await;
    let held = writer
        .ensure_finalizer(&api, &widget, CLEANUP)
        .await
        .unwrap()
        .object;
    stage.proxy.forget();
    let unsent = [
        writer.patch(&api, &widget, |w| w.spec.size = 1).await.unwrap(),
        writer.patch_with_retry(&api, &widget, |_| {}).await.unwrap(),
        writer.patch_status(&api, &widget, |_| {}).await.unwrap(),
        writer.patch_status_locked(&api, &widget, |_| {}).await.unwrap(),
        writer.ensure_finalizer(&api, &held, CLEANUP).await.unwrap(),
        writer
            .remove_finalizer(&api, &widget, CLEANUP)
            .await
            .unwrap()
            .unwrap(),
    ];
    assert!(unsent.iter().all(|written| written.effect == Effect::Unsent));
    widget.metadata.resource_version = None;
    assert_eq!(
        writer.patch(&api, &widget, |_| {}).await.unwrap().effect,
        Effect::Unsent
    );
    assert!(stage.proxy.requests().is_empty(), "{:?}", stage.proxy.requests());
}

#[tokio::test]
async fn a_409_reaches_the_caller_as_409_and_a_retry_starts_from_a_fresh_read() {
    let stage = Stage::set("wire-conflict").await;
    let snapshot = stage.widget("w").await;
    stage
        .writer
        .patch(&stage.api(), &snapshot, |w| w.spec.size = 2)
        .await
        .unwrap();
    stage.proxy.forget();

    let error = stage
        .writer
        .patch(&stage.api(), &snapshot, |w| w.spec.size += 10)
        .await
        .unwrap_err();
    assert_eq!(
        (error.class(), error.status().unwrap().code),
        (ErrorClass::Conflict, 409)
    );
    assert!(
        error
            .to_string()
            .contains("widgets.wire-conflict.example.com default/w"),
        "{error}"
    );
    stage.only_write();

    let written = stage
        .writer
        .patch_with_retry(&stage.api(), &snapshot, |w| w.spec.size += 10)
        .await
        .unwrap();
    assert_eq!(
        written.object.spec.size, 12,
        "run on the fresh read, not on the stale one"
    );
}

#[tokio::test]
async fn untyped_objects_and_metadata_alone_are_written_alike() {
    let stage = Stage::set("wire-kinds").await;
    stage.widget("w").await;
    let untyped: Api<DynamicObject> = stage.widgets.api(&stage.proxied, "v1");
    let object = untyped.get("w").await.unwrap();
    let written = stage
        .writer
        .patch(&untyped, &object, |object| object.data["spec"]["size"] = json!(7))
        .await
        .unwrap();
    assert_eq!(written.object.data["spec"], json!({"size": 7, "color": "green"}));

    let metadata: Api<PartialObjectMeta> =
        Api::namespaced_with(stage.proxied.clone(), "default", &stage.widgets.resource("v1"));
    let object = metadata.get("w").await.unwrap();
    stage.proxy.forget();
    let written = stage
        .writer
        .patch(&metadata, &object, |object| {
            object.labels_mut().insert("a".into(), "b".into());
        })
        .await
        .unwrap();
    assert_eq!(written.object.labels()["a"], "b");
    let sent = stage.only_write();
    assert!(
        sent.headers["accept"]
            .to_str()
            .unwrap()
            .contains("PartialObjectMetadata")
    );
    assert_eq!(
        stage.live("w").await["spec"],
        json!({"size": 7, "color": "green"})
    );
}

#[tokio::test]
async fn a_change_of_status_at_the_objects_own_endpoint_is_not_silently_lost() {
    let stage = Stage::set("wire-status").await;
    let widget = stage.widget("w").await;
    let error = stage
        .writer
        .patch(&stage.api(), &widget, |w| {
            w.spec.size = 5;
            w.status_mut().phase = Some("Ready".into());
        })
        .await
        .unwrap_err();
    assert_eq!(error.reason(), "StatusIgnored", "{error}");
    let live = stage.live("w").await;
    assert_eq!((&live["spec"]["size"], live.get("status")), (&json!(5), None));
}
