//! A namespace without which its objects live on (PITFALLS A33).

use exuvia_testenv::webhook::Endpoint;
use exuvia_testenv::{ControlPlane, Widgets, force_finalize_namespace};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

#[tokio::test]
async fn objects_outlive_a_namespace_that_is_finalized_by_force_and_a_selector_makes_them_answer_404() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("bereft.example.com");
    widgets.install(&client, "v1").await.unwrap();
    widgets.create(&client, "v1", 1).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": "bereft"}})).unwrap();
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let inside = Api::namespaced_with(client.clone(), "bereft", &widgets.resource("v1"));
    let mut widget = widgets.widget("v1", "inside");
    widget.metadata.namespace = Some("bereft".into());
    inside.create(&PostParams::default(), &widget).await.unwrap();

    force_finalize_namespace(&client, "bereft").await.unwrap();
    assert!(namespaces.get_opt("bereft").await.unwrap().is_none());
    inside.get("inside").await.unwrap();
    let stored = control_plane
        .stored("bereft.example.com", "widgets")
        .all()
        .await
        .unwrap();
    assert_eq!(stored.len(), 2, "etcd still holds it");
    let nothing = Patch::Merge(json!({}));
    let params = PatchParams::default();
    inside.patch("inside", &params, &nothing).await.unwrap();

    let webhooks = control_plane.webhooks().await.unwrap();
    let configuration = webhooks.validating_in_selected_namespaces("bereft.example.com");
    let configuration: ValidatingWebhookConfiguration = serde_json::from_value(configuration).unwrap();
    Api::all(client.clone())
        .create(&PostParams::default(), &configuration)
        .await
        .unwrap();
    let at_home = widgets.api(&client, "v1");
    exuvia_testenv::until("the webhook is asked", async || {
        at_home.patch("widget-0000", &params, &nothing).await.unwrap();
        webhooks.calls(Endpoint::Validate) > 0
    })
    .await;
    let Err(kube::Error::Api(status)) = inside.patch("inside", &params, &nothing).await else {
        panic!("it is not answered 404");
    };
    assert_eq!(
        (status.code, status.message.as_str()),
        (404, r#"namespaces "bereft" not found"#)
    );
    assert_eq!(status.details.unwrap().kind, "namespaces");
    inside.get("inside").await.unwrap();
}
