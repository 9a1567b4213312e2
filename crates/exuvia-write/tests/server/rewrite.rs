//! `rewrite`: the empty patch that brings an object to the storage version.

use exuvia_testenv::ControlPlane;
use exuvia_write::{Effect, ErrorClass};
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, ListParams, TypeMeta},
};
use serde_json::json;

use super::Stage;

async fn stored_at(stage: &Stage, name: &str) -> serde_json::Value {
    let control_plane = ControlPlane::shared().await;
    let stored = control_plane
        .stored(stage.widgets.group(), "widgets")
        .all()
        .await
        .unwrap();
    let object = stored.iter().find(|stored| stored.name() == name).unwrap();
    object.json().unwrap()["apiVersion"].clone()
}

/// PITFALLS A1, A2: the bytes in etcd are the proof.
#[tokio::test]
async fn a_rewrite_re_encodes_the_object_and_a_second_one_changes_nothing() {
    let stage = Stage::bare("rw-stored").await;
    stage.widgets.install(&stage.direct, "v1alpha1").await.unwrap();
    let widget = stage.widget("w").await;
    stage.flip().await;
    let group = stage.widgets.group().to_owned();

    let dry = stage
        .writer
        .dry_run()
        .rewrite(&stage.api(), &widget.metadata)
        .await
        .unwrap();
    assert_eq!(dry.object.resource_version, widget.metadata.resource_version);
    assert_eq!(stored_at(&stage, "w").await, format!("{group}/v1alpha1"));

    stage.proxy.forget();
    let first = stage
        .writer
        .rewrite(&stage.api(), &widget.metadata)
        .await
        .unwrap();
    assert_eq!(first.effect, Effect::Changed);
    assert_eq!(first.object.generation, widget.metadata.generation);
    assert_eq!(stored_at(&stage, "w").await, format!("{group}/v1"));
    let sent = stage.only_write();
    assert_eq!(
        (sent.json(), sent.content_type()),
        (json!({}), Some("application/merge-patch+json"))
    );
    assert!(sent.query.contains("fieldValidation=Ignore"), "{}", sent.query);
    assert!(
        sent.headers["accept"]
            .to_str()
            .unwrap()
            .contains("as=PartialObjectMetadata")
    );

    let second = stage.writer.rewrite(&stage.api(), &first.object).await.unwrap();
    assert_eq!(second.effect, Effect::Unchanged);
}

/// PITFALLS A41, A52.
#[tokio::test]
async fn an_apply_of_nothing_re_encodes_the_object_owns_nothing_and_creates_nothing() {
    let stage = Stage::bare("rw-applied").await;
    stage.widgets.install(&stage.direct, "v1alpha1").await.unwrap();
    let widget = stage.widget("w").await;
    stage.flip().await;
    let group = stage.widgets.group().to_owned();
    let types = TypeMeta {
        api_version: format!("{group}/v1"),
        kind: "Widget".into(),
    };
    let api = stage.api();
    let first = stage
        .writer
        .rewrite_by_apply(&api, &types, &widget.metadata, false);
    let first = first.await.unwrap();
    assert_eq!(first.effect, Effect::Changed);
    assert_eq!(stored_at(&stage, "w").await, format!("{group}/v1"));
    assert_eq!(first.object.managed_fields, widget.metadata.managed_fields);
    let second = stage.writer.rewrite_by_apply(&api, &types, &first.object, true);
    assert_eq!(second.await.unwrap().effect, Effect::Unchanged);

    let whole = stage.writer.get(&api, &widget.metadata).await.unwrap();
    assert_eq!(json!(whole)["spec"], json!(widget)["spec"]);
    let direct = stage.widgets.api(&stage.direct, "v1");
    direct
        .delete("w", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    let gone = stage
        .writer
        .rewrite_by_apply(&api, &types, &widget.metadata, false);
    assert_eq!(gone.await.unwrap_err().class(), ErrorClass::Conflict);
    assert!(direct.get_opt("w").await.unwrap().is_none(), "it was not created");
}

#[tokio::test]
async fn a_locked_rewrite_tells_whose_write_it_was() {
    let stage = Stage::bare("rw-unmoved").await;
    stage.widgets.install(&stage.direct, "v1alpha1").await.unwrap();
    let original = stage.widget("w").await;
    stage.flip().await;
    let first = stage
        .writer
        .rewrite_unmoved(&stage.api(), &original.metadata)
        .await
        .unwrap();
    assert_eq!(first.effect, Effect::Changed);
    let version = serde_json::json!({"resourceVersion": original.metadata.resource_version});
    assert_eq!(stage.only_write().json(), json!({"metadata": version}));
    let second = stage
        .writer
        .rewrite_unmoved(&stage.api(), &first.object)
        .await
        .unwrap();
    assert_eq!(second.effect, Effect::Unchanged);
    // Stale by the encoding alone: as a rule a 409, but 200 while the server's cache lags. Never "unchanged".
    match stage
        .writer
        .rewrite_unmoved(&stage.api(), &original.metadata)
        .await
    {
        Ok(written) => {
            assert_eq!(written.effect, Effect::Changed);
            assert_eq!(written.object.resource_version, first.object.resource_version);
        }
        Err(error) => assert_eq!(error.class(), ErrorClass::Conflict),
    }
    // Stale by the content: always a 409.
    let fresh = stage.read("w").await;
    stage
        .writer
        .patch(&stage.api(), &fresh, |w| w.spec.size = 2)
        .await
        .unwrap();
    let error = stage
        .writer
        .rewrite_unmoved(&stage.api(), &fresh.metadata)
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Conflict);
}

#[tokio::test]
async fn a_rewrite_through_status_does_the_same() {
    let stage = Stage::bare("rw-status").await;
    stage.widgets.install(&stage.direct, "v1alpha1").await.unwrap();
    let widget = stage.widget("w").await;
    stage.flip().await;
    let written = stage
        .writer
        .rewrite_through_status(&stage.api(), &widget.metadata)
        .await
        .unwrap();
    assert_eq!(written.effect, Effect::Changed);
    assert!(stage.only_write().path.ends_with("/widgets/w/status"));
    assert_eq!(
        stored_at(&stage, "w").await,
        format!("{}/v1", stage.widgets.group())
    );
}

#[tokio::test]
async fn a_sweep_needs_one_api_for_all_namespaces_and_no_more_than_metadata() {
    let stage = Stage::set("rw-sweep").await;
    stage.widget("w").await;
    let api: Api<DynamicObject> = Api::all_with(stage.proxied.clone(), &stage.widgets.resource("v1alpha1"));
    for item in api.list_metadata(&ListParams::default()).await.unwrap() {
        let written = stage.writer.rewrite(&api, &item.metadata).await.unwrap();
        assert_eq!(
            (written.object.name.as_deref(), written.effect),
            (Some("w"), Effect::Unchanged)
        );
    }
    assert!(
        stage
            .only_write()
            .path
            .contains("/v1alpha1/namespaces/default/widgets/w"),
        "at the version chosen"
    );
}

#[tokio::test]
async fn a_rewrite_of_what_is_gone_says_so() {
    let stage = Stage::set("rw-gone").await;
    let widget = stage.widget("w").await;
    stage
        .raw()
        .delete(&widget.name_any(), &kube::api::DeleteParams::default())
        .await
        .unwrap();
    let error = stage
        .writer
        .rewrite(&stage.api(), &widget.metadata)
        .await
        .unwrap_err();
    assert_eq!(
        (error.class(), error.is_unserved()),
        (ErrorClass::Gone, false),
        "{error}"
    );
}
