//! What is refused before any request, each by name.

use exuvia_write::{Apply, Delete, Error, ErrorClass, Fate, Plan, Refusal, plan_move};
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry};
use kube::{Api, core::DynamicObject, discovery::ApiResource};
use serde_json::{Value, json};

use super::{Answer, Script, map, read, set_apple, writer};

fn refused(error: &Error, text: &str) -> bool {
    assert_eq!(error.class(), ErrorClass::Fatal);
    let message = error.to_string();
    matches!(error, Error::Refused { .. }) && message.contains(text)
}

#[tokio::test]
async fn an_object_without_a_name_is_refused() {
    let script = Script::of([]);
    let mut object = read("1", &json!({}));
    object.metadata.name = None;
    let (api, writer) = (script.api(), writer());
    let texts = [
        writer.patch(&api, &object, set_apple("3")).await.unwrap_err(),
        writer
            .patch_with_retry(&api, &object, set_apple("3"))
            .await
            .unwrap_err(),
        writer.patch_status(&api, &object, |_| {}).await.unwrap_err(),
        writer
            .delete(&api, &object, &Delete::default())
            .await
            .unwrap_err(),
        writer.create(&api, &object).await.unwrap_err(),
        writer.rewrite(&api, &object.metadata).await.unwrap_err(),
        writer
            .move_ownership(&api, &object.metadata, |_| Plan::default())
            .await
            .unwrap_err(),
        writer.apply(&api, &object, &Apply::default()).await.unwrap_err(),
    ];
    for error in texts {
        assert!(
            refused(&error, "configmaps shop/(unnamed): the object has no name"),
            "{error}"
        );
    }
    assert!(script.sent().is_empty());
}

#[tokio::test]
async fn a_lock_without_a_resource_version_is_refused() {
    let script = Script::of([]);
    let mut object = read("1", &json!({}));
    object.metadata.resource_version = None;
    let entries: Vec<ManagedFieldsEntry> =
        serde_json::from_value(json!([{"manager": "a", "operation": "Apply", "apiVersion": "v0"}])).unwrap();
    object.metadata.managed_fields = Some(entries);
    let (api, writer) = (script.api(), writer());
    let old = ["v0".to_owned()].into();
    for error in [
        writer.patch(&api, &object, set_apple("3")).await.unwrap_err(),
        writer
            .delete(&api, &object, &Delete::default().only_unchanged())
            .await
            .unwrap_err(),
        writer
            .move_ownership(&api, &object.metadata, |entries| {
                plan_move(entries, &old, "v1", |_| Fate::Move)
            })
            .await
            .unwrap_err(),
    ] {
        assert!(refused(&error, "configmaps shop/prices: "), "{error}");
        assert!(refused(&error, "no resourceVersion; read it first"), "{error}");
    }
    assert!(script.sent().is_empty());
}

#[tokio::test]
async fn a_name_that_would_make_another_url_is_refused() {
    let script = Script::of([]);
    for name in ["prices/status", "..", "a?b", "a%2fb", "a#b", "a b"] {
        let mut object = read("1", &json!({}));
        object.metadata.name = Some(name.to_owned());
        let error = writer()
            .patch(&script.api(), &object, set_apple("3"))
            .await
            .unwrap_err();
        assert!(refused(&error, "cannot be part of a url"), "{error}");
    }
    assert!(script.sent().is_empty());
}

#[tokio::test]
async fn an_api_for_another_namespace_is_refused() {
    let script = Script::of([]);
    let mut object = read("1", &json!({}));
    object.metadata.namespace = Some("elsewhere".to_owned());
    let error = writer()
        .patch(&script.api(), &object, set_apple("3"))
        .await
        .unwrap_err();
    assert!(
        refused(
            &error,
            "configmaps elsewhere/prices: the api is for namespace shop"
        ),
        "{error}"
    );
    assert!(script.sent().is_empty());
}

#[tokio::test]
async fn an_objects_namespace_does_for_an_api_of_all_namespaces() {
    let script = Script::of([Answer::Json(200, map("2", &json!({"apple": "3"})))]);
    let api: Api<ConfigMap> = Api::all(script.client());
    writer()
        .patch(&api, &read("1", &json!({})), set_apple("3"))
        .await
        .unwrap();
    assert!(
        script.sent()[0]
            .uri
            .starts_with("/api/v1/namespaces/shop/configmaps/prices?")
    );
}

#[tokio::test]
async fn a_deletion_needs_a_uid() {
    let script = Script::of([]);
    let mut object = read("1", &json!({}));
    object.metadata.uid = None;
    let error = writer()
        .delete(&script.api(), &object, &Delete::default())
        .await
        .unwrap_err();
    assert!(refused(&error, "no uid"), "{error}");
    assert!(script.sent().is_empty());
}

#[tokio::test]
async fn an_intent_needs_a_type() {
    let script = Script::of([]);
    let intent = json!({"metadata": {"name": "prices"}});
    let error = writer()
        .apply(&script.api(), &intent, &Apply::default())
        .await
        .unwrap_err();
    assert!(refused(&error, "no apiVersion or kind"), "{error}");
    assert!(script.sent().is_empty());
}

#[tokio::test]
async fn a_null_that_shall_stay_is_refused_by_its_path() {
    let script = Script::of([]);
    let kind = ApiResource::erase::<ConfigMap>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(script.client(), "shop", &kind);
    let object: DynamicObject = serde_json::from_value(map("1", &json!({"apple": "3"}))).unwrap();
    let error = writer()
        .patch(&api, &object, |object| object.data["data"]["apple"] = Value::Null)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::Refused { why: Refusal::Inexpressible(null), .. } if null.path == "/data/apple")
    );
    assert!(
        refused(
            &error,
            "configmaps shop/prices: /data/apple would become an explicit null"
        ),
        "{error}"
    );
    assert!(script.sent().is_empty());
}

#[tokio::test]
async fn a_change_outside_the_status_is_refused() {
    let script = Script::of([]);
    let error = writer()
        .patch_status(&script.api(), &read("1", &json!({})), set_apple("3"))
        .await
        .unwrap_err();
    assert!(refused(&error, "/data was changed too"), "{error}");
    assert!(script.sent().is_empty());
}
