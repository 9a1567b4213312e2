//! 404s: which of them say that an object is gone, and which are about something else (PITFALLS A33).

use exuvia_testenv::{
    ControlPlane, until,
    webhook::{Endpoint, WebhookServer},
};
use exuvia_write::{Delete, ErrorClass};
use http::Request;
use k8s_openapi::api::{
    admissionregistration::v1::ValidatingWebhookConfiguration,
    apps::v1::Deployment,
    core::v1::{ConfigMap, Namespace},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{CLEANUP, Stage};

/// A widget with a finalizer, in a namespace that was finalized by force, as people do with one that hangs: the namespace
/// is gone and the widget is not. A webhook that chooses by namespace is healthy.
async fn stranded(stage: &Stage, namespace: &str) -> (WebhookServer, DynamicObject) {
    let control_plane = ControlPlane::shared().await;
    let namespaces: Api<Namespace> = Api::all(stage.direct.clone());
    let made = serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap();
    namespaces.create(&PostParams::default(), &made).await.unwrap();
    let inside: Api<DynamicObject> =
        Api::namespaced_with(stage.direct.clone(), namespace, &stage.widgets.resource("v1"));
    let mut widget = stage.widgets.widget("v1", "w");
    widget.metadata.namespace = Some(namespace.to_owned());
    widget.metadata.finalizers = Some(vec![CLEANUP.as_str().to_owned()]);
    let widget = inside.create(&PostParams::default(), &widget).await.unwrap();

    let hooks = control_plane.webhooks().await.unwrap();
    let configuration: ValidatingWebhookConfiguration = serde_json::from_value(json!({
        "metadata": {"name": namespace},
        "webhooks": [{
            "name": format!("{namespace}.example.com"),
            "clientConfig": hooks.client_config(Endpoint::Validate),
            "rules": [{"apiGroups": [stage.widgets.group()], "apiVersions": ["*"],
                       "resources": ["widgets", "widgets/status"],
                       "operations": ["UPDATE", "DELETE"]}],
            "namespaceSelector": {"matchExpressions": [{"key": "unwatched", "operator": "DoesNotExist"}]},
            "sideEffects": "None", "admissionReviewVersions": ["v1"],
        }],
    }))
    .unwrap();
    Api::all(stage.direct.clone())
        .create(&PostParams::default(), &configuration)
        .await
        .unwrap();
    let nothing = Patch::Merge(json!({}));
    until("the webhook is asked", async || {
        inside
            .patch("w", &PatchParams::default(), &nothing)
            .await
            .unwrap();
        hooks.calls(Endpoint::Validate) > 0
    })
    .await;

    namespaces
        .delete(namespace, &DeleteParams::default())
        .await
        .unwrap();
    let finalized = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    let finalize = Request::put(format!("/api/v1/namespaces/{namespace}/finalize"))
        .body(serde_json::to_vec(&finalized).unwrap())
        .unwrap();
    stage.direct.request::<Value>(finalize).await.unwrap();
    // The server's own cache of namespaces comes after.
    until("the namespace is gone", async || {
        inside
            .patch("w", &PatchParams::default(), &nothing)
            .await
            .is_err()
    })
    .await;
    (hooks, widget)
}

#[tokio::test]
async fn an_object_whose_namespace_is_gone_is_not_gone() {
    let stage = Stage::set("missing-namespace").await;
    let (_hooks, widget) = stranded(&stage, "stranded").await;
    let api: Api<DynamicObject> = Api::all_with(stage.proxied.clone(), &stage.widgets.resource("v1"));

    for answer in [
        stage.writer.rewrite(&api, &widget.metadata).await,
        stage.writer.rewrite_through_status(&api, &widget.metadata).await,
    ] {
        let error = answer.unwrap_err();
        assert_eq!(
            (error.class(), error.is_unserved()),
            (ErrorClass::Missing, false),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains(r#"namespaces "stranded" not found"#), "{text}");
        assert!(
            text.contains("which may still exist: create the namespace again"),
            "{text}"
        );
    }
    let deleted = stage.writer.delete(&api, &widget, &Delete::default()).await;
    assert_eq!(deleted.unwrap_err().class(), ErrorClass::Missing);
    let removed = stage.writer.remove_finalizer(&api, &widget, CLEANUP).await;
    assert_eq!(removed.unwrap_err().class(), ErrorClass::Missing);

    // All that while it is there, and a read says so.
    let live = stage.writer.look(&api, &widget.metadata).await.unwrap();
    assert_eq!(live.unwrap().uid, widget.metadata.uid);
}

#[tokio::test]
async fn a_look_finds_what_is_there_and_tells_what_is_not() {
    let stage = Stage::set("missing-look").await;
    let widget = stage.widget("w").await;
    let api: Api<DynamicObject> = Api::all_with(stage.proxied.clone(), &stage.widgets.resource("v1alpha1"));
    stage.proxy.forget();
    let live = stage.writer.look(&api, &widget.metadata).await.unwrap().unwrap();
    assert_eq!(
        (&live.uid, &live.resource_version),
        (&widget.metadata.uid, &widget.metadata.resource_version)
    );
    let asked = stage.proxy.requests().pop().unwrap();
    assert!(
        asked.path.ends_with("/v1alpha1/namespaces/default/widgets/w") && asked.query.is_empty(),
        "consistent: {asked:?}"
    );

    // Under its name there is another one: the caller compares.
    stage.raw().delete("w", &DeleteParams::default()).await.unwrap();
    let other = stage.widget("w").await;
    let live = stage.writer.look(&api, &widget.metadata).await.unwrap().unwrap();
    assert_eq!(live.uid, other.metadata.uid);
    stage.raw().delete("w", &DeleteParams::default()).await.unwrap();
    assert_eq!(stage.writer.look(&api, &widget.metadata).await.unwrap(), None);

    // An endpoint that is not served knows nothing of objects.
    let unserved: Api<DynamicObject> = Api::all_with(stage.proxied.clone(), &stage.widgets.resource("v2"));
    let error = stage.writer.look(&unserved, &widget.metadata).await.unwrap_err();
    assert!(
        error.class() == ErrorClass::Missing && error.is_unserved(),
        "{error}"
    );
    assert!(
        error.to_string().contains("does not serve this endpoint"),
        "{error}"
    );
}

/// How the server names an object in a 404: resource as `kind`, group, name; the same for custom resources and built-ins,
/// on the object's own endpoint and on `/status`.
#[tokio::test]
async fn what_was_deleted_is_gone_for_every_kind_and_endpoint() {
    let stage = Stage::set("missing-kinds").await;
    let absent = ObjectMeta {
        name: Some("absent".to_owned()),
        namespace: Some("default".to_owned()),
        ..ObjectMeta::default()
    };
    let widgets: Api<DynamicObject> = Api::all_with(stage.proxied.clone(), &stage.widgets.resource("v1"));
    let deployments: Api<Deployment> = Api::all(stage.proxied.clone());
    let maps: Api<ConfigMap> = Api::all(stage.proxied.clone());
    let writer = &stage.writer;
    for (what, answer) in [
        ("widgets", writer.rewrite(&widgets, &absent).await),
        (
            "widgets/status",
            writer.rewrite_through_status(&widgets, &absent).await,
        ),
        ("deployments", writer.rewrite(&deployments, &absent).await),
        (
            "deployments/status",
            writer.rewrite_through_status(&deployments, &absent).await,
        ),
        ("configmaps", writer.rewrite(&maps, &absent).await),
    ] {
        let error = answer.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Gone, "{what}: {error}");
    }
    assert_eq!(writer.look(&maps, &absent).await.unwrap(), None);

    // A built-in kind without a status answers for the endpoint. It says nothing about the object.
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "there"}})).unwrap();
    let api: Api<ConfigMap> = Api::namespaced(stage.direct.clone(), "default");
    let map = api.create(&PostParams::default(), &map).await.unwrap();
    let error = writer
        .rewrite_through_status(&maps, &map.metadata)
        .await
        .unwrap_err();
    assert_eq!(
        (error.reason(), map.name_any().as_str()),
        ("NoStatus", "there"),
        "{error}"
    );
}
