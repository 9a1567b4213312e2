//! The webhook server, called by a real API server for admission and for conversion.
#![allow(clippy::unwrap_used)] // a test may panic
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]

use std::sync::{Mutex, mpsc};
use std::time::Duration;

use exuvia_testenv::webhook::{Admission, Break, Conversion, Endpoint, WebhookServer};
use exuvia_testenv::{ControlPlane, Widgets, until};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// A webhook server for this test, and a client of the shared control plane.
async fn setup() -> (WebhookServer, Client) {
    let control_plane = ControlPlane::shared().await;
    (
        control_plane.webhooks().await.unwrap(),
        control_plane.client().unwrap(),
    )
}

/// A webhook for the config maps with the label `test`, so that tests do not meet each other's.
fn configuration(hooks: &WebhookServer, endpoint: Endpoint, test: &str) -> Value {
    json!({
        "metadata": {"name": test},
        "webhooks": [{
            "name": format!("{test}.example.com"),
            "clientConfig": hooks.client_config(endpoint),
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"],
                "operations": ["CREATE", "UPDATE"],
            }],
            "objectSelector": {"matchLabels": {"test": test}},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": 2,
        }],
    })
}

async fn create(client: &Client, test: &str, name: &str) -> Result<ConfigMap, String> {
    let metadata = json!({"name": name, "labels": {"test": test}});
    let object: ConfigMap = serde_json::from_value(json!({"metadata": metadata})).unwrap();
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    api.create(&PostParams::default(), &object)
        .await
        .map_err(|error| error.to_string())
}

/// Installs a validating webhook and waits until the server calls it.
async fn install_validating(hooks: &WebhookServer, client: &Client, test: &str) {
    let configuration = configuration(hooks, Endpoint::Validate, test);
    let configuration: ValidatingWebhookConfiguration = serde_json::from_value(configuration).unwrap();
    Api::all(client.clone())
        .create(&PostParams::default(), &configuration)
        .await
        .unwrap();
    wait_until_called(hooks, Endpoint::Validate, client, test).await;
}

/// PITFALLS A15: it takes effect in its own time, so probe until it does.
async fn wait_until_called(hooks: &WebhookServer, endpoint: Endpoint, client: &Client, test: &str) {
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let metadata = json!({"name": format!("{test}-probe"), "labels": {"test": test}});
    let probe: ConfigMap = serde_json::from_value(json!({"metadata": metadata})).unwrap();
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    until("the webhook is called", async || {
        let _ = api.create(&dry_run, &probe).await;
        hooks.calls(endpoint) > 0
    })
    .await;
}

#[tokio::test]
async fn a_denied_write_carries_the_webhooks_message_until_it_allows() {
    let (hooks, client) = setup().await;
    install_validating(&hooks, &client, "denies").await;
    hooks.on_validate(Admission::deny("not today"));
    let error = create(&client, "denies", "denied").await.unwrap_err();
    assert!(
        error.contains(r#"admission webhook "denies.example.com" denied the request: not today"#),
        "{error}"
    );
    hooks.on_validate(Admission::by(
        |request| match request["object"]["metadata"]["name"].as_str() {
            Some("good") => Admission::Allow,
            name => Admission::deny(format!("{name:?} is not good")),
        },
    ));
    let error = create(&client, "denies", "bad").await.unwrap_err();
    assert!(error.contains(r#"Some("bad") is not good"#), "{error}");
    create(&client, "denies", "good").await.unwrap();
    hooks.on_validate(Admission::Allow);
    create(&client, "denies", "bad").await.unwrap();
    let last = hooks.requests(Endpoint::Validate).pop().unwrap();
    assert_eq!(
        (&last["operation"], &last["object"]["metadata"]["name"]),
        (&json!("CREATE"), &json!("bad"))
    );
}

#[tokio::test]
async fn a_webhook_that_takes_too_long_fails_the_write() {
    let (hooks, client) = setup().await;
    install_validating(&hooks, &client, "slow").await;
    hooks.delay(Endpoint::Validate, Duration::from_secs(3600));
    let error = create(&client, "slow", "slow").await.unwrap_err();
    assert!(
        error.contains("failed calling webhook") && error.contains("slow.example.com"),
        "{error}"
    );
    hooks.delay(Endpoint::Validate, Duration::from_millis(10));
    create(&client, "slow", "slow").await.unwrap();
}

#[tokio::test]
async fn a_webhook_that_blocks_holds_the_write_until_it_is_let_go() {
    let (hooks, client) = setup().await;
    install_validating(&hooks, &client, "blocks").await;
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    hooks.on_validate(Admission::by(move |_| {
        released.lock().unwrap().recv().unwrap();
        Admission::Allow
    }));
    let calls = hooks.calls(Endpoint::Validate);
    let writing = tokio::spawn({
        let client = client.clone();
        async move { create(&client, "blocks", "held").await }
    });
    hooks.wait_for_calls(Endpoint::Validate, calls + 1).await;
    let config_maps: Api<ConfigMap> = Api::namespaced(client, "default");
    assert!(config_maps.get_opt("held").await.unwrap().is_none());
    release.send(()).unwrap();
    writing.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_broken_webhook_fails_the_write_until_it_is_repaired() {
    let (hooks, client) = setup().await;
    install_validating(&hooks, &client, "breaks").await;
    for how in [Break::Http500, Break::CutConnection] {
        hooks.break_down(Endpoint::Validate, how);
        let error = create(&client, "breaks", "broken").await.unwrap_err();
        assert!(error.contains("failed calling webhook"), "{how:?}: {error}");
    }
    hooks.repair(Endpoint::Validate);
    create(&client, "breaks", "broken").await.unwrap();
}

#[tokio::test]
async fn a_mutating_webhook_changes_what_is_stored() {
    let (hooks, client) = setup().await;
    let configuration = configuration(&hooks, Endpoint::Mutate, "mutates");
    let configuration: MutatingWebhookConfiguration = serde_json::from_value(configuration).unwrap();
    Api::all(client.clone())
        .create(&PostParams::default(), &configuration)
        .await
        .unwrap();
    wait_until_called(&hooks, Endpoint::Mutate, &client, "mutates").await;

    hooks.on_mutate(Admission::Mutate(
        json!([{"op": "add", "path": "/metadata/labels/by", "value": "patch"}]),
    ));
    assert_eq!(
        create(&client, "mutates", "patched").await.unwrap().labels()["by"],
        "patch"
    );
    hooks.on_mutate(Admission::by(|request| {
        let value = request["object"]["metadata"]["name"].clone();
        Admission::Mutate(json!([{"op": "add", "path": "/metadata/labels/by", "value": value}]))
    }));
    assert_eq!(
        create(&client, "mutates", "closure").await.unwrap().labels()["by"],
        "closure"
    );
}

/// Installs widgets, stored at v1alpha1, that are converted by `hooks`.
async fn install_widgets(hooks: &WebhookServer, client: &Client, group: &str) -> Widgets {
    let widgets = Widgets::in_group(group);
    let mut crd = widgets.crd("v1alpha1");
    crd["spec"]["conversion"] = hooks.conversion();
    widgets.install_crd(client, crd).await.unwrap();
    widgets
}

#[tokio::test]
async fn objects_are_converted_as_the_webhook_says() {
    let (hooks, client) = setup().await;
    let group = "converted.example.com";
    let widgets = install_widgets(&hooks, &client, group).await;
    hooks.on_convert(Conversion::by(|mut object, to| {
        object["apiVersion"] = to.into();
        object["spec"]["color"] = if to.ends_with("/v1") { "red" } else { "green" }.into();
        object
    }));
    widgets.create(&client, "v1alpha1", 3).await.unwrap();
    let at_v1 = widgets.api(&client, "v1");
    let list = at_v1.list(&ListParams::default()).await.unwrap();
    let colors: Vec<_> = list
        .items
        .iter()
        .map(|widget| &widget.data["spec"]["color"])
        .collect();
    assert_eq!(colors, ["red", "red", "red"]);
    let asked = hooks.requests(Endpoint::Convert).pop().unwrap();
    assert_eq!(asked["desiredAPIVersion"], format!("{group}/v1"));
    let stored = ControlPlane::shared()
        .await
        .stored(group, "widgets")
        .all()
        .await
        .unwrap();
    let colors: Vec<_> = stored
        .iter()
        .map(|object| object.json().unwrap()["spec"]["color"].take())
        .collect();
    assert_eq!(colors, ["green", "green", "green"]);

    // A list would still show what the server's cache was filled with; a get converts again.
    let calls = hooks.calls(Endpoint::Convert);
    hooks.on_convert(Conversion::ChangeApiVersion);
    assert_eq!(
        at_v1.get("widget-0000").await.unwrap().data["spec"]["color"],
        "green"
    );
    assert!(hooks.calls(Endpoint::Convert) > calls);
}

/// PITFALLS A24.
#[tokio::test]
async fn without_its_webhook_an_object_stored_old_can_neither_be_read_nor_rewritten() {
    let (hooks, client) = setup().await;
    let widgets = install_widgets(&hooks, &client, "unconverted.example.com").await;
    widgets.create(&client, "v1alpha1", 1).await.unwrap();
    widgets.flip_storage(&client, "v1").await.unwrap();
    let at_v1 = widgets.api(&client, "v1");
    at_v1
        .create(&PostParams::default(), &widgets.widget("v1", "stored-new"))
        .await
        .unwrap();

    hooks.on_convert(Conversion::fail("no conversion today"));
    let error = at_v1.get("widget-0000").await.unwrap_err().to_string();
    assert!(error.contains("no conversion today"), "{error}");
    for how in [Break::Http500, Break::CutConnection] {
        hooks.break_down(Endpoint::Convert, how);
        let read = at_v1.get("widget-0000").await.unwrap_err();
        let rewritten = at_v1
            .patch("widget-0000", &PatchParams::default(), &Patch::Merge(json!({})))
            .await
            .unwrap_err();
        for error in [read, rewritten] {
            assert!(
                matches!(&error, kube::Error::Api(status) if status.code == 500),
                "{how:?}: {error}"
            );
        }
        at_v1
            .get("stored-new")
            .await
            .expect("what is stored at v1 needs no conversion to v1");
    }
    hooks.on_convert(Conversion::ChangeApiVersion);
    hooks.repair(Endpoint::Convert);
    at_v1
        .patch("widget-0000", &PatchParams::default(), &Patch::Merge(json!({})))
        .await
        .unwrap();
    let group = widgets.group();
    let stored = ControlPlane::shared()
        .await
        .stored(group, "widgets")
        .all()
        .await
        .unwrap();
    assert!(
        stored
            .iter()
            .all(|object| object.api_version.as_deref() == Some(&format!("{group}/v1"))),
        "{stored:?}"
    );
}
