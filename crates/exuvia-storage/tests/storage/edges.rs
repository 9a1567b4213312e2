//! Edges: built-in types, objects under deletion, large objects, an expired continue token, a CRD made again.

use exuvia_storage::{End, Engine, Options};
use exuvia_testenv::webhook::{Admission, Endpoint};
use exuvia_testenv::{ControlPlane, ENCRYPTION_FILE, Widgets};
use exuvia_write::Writer;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{ApiResource, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::Bench;

fn encryption(first: &str, second: &str) -> String {
    let key = |name: &str| {
        // 32 bytes that differ with the name; nothing here is worth a secret.
        let letter = if name == "key1" { "QUFB" } else { "QkJC" };
        format!(
            "{{name: {name}, secret: {}{}}}",
            letter.repeat(10),
            if name == "key1" { "QUE=" } else { "QkI=" }
        )
    };
    format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  \
         providers:\n  - secretbox: {{keys: [{}, {}]}}\n  - identity: {{}}\n",
        key(first),
        key(second)
    )
}

#[tokio::test]
async fn after_a_key_rotation_every_secret_is_encrypted_with_the_new_key() {
    let control_plane = ControlPlane::builder()
        .encryption(encryption("key1", "key2"))
        .start()
        .await
        .unwrap();
    let secrets: Api<Secret> = Api::namespaced(control_plane.client().unwrap(), "default");
    for index in 0..20 {
        let secret = serde_json::from_value(json!({"metadata": {"name": format!("s-{index}")}})).unwrap();
        secrets.create(&PostParams::default(), &secret).await.unwrap();
    }
    let encrypted_with = async |key: &str| {
        let stored = control_plane
            .etcd()
            .stored_under("/registry/secrets/")
            .all()
            .await
            .unwrap();
        let prefix = format!("k8s:enc:secretbox:v1:{key}:");
        stored
            .iter()
            .filter(|stored| stored.bytes.starts_with(prefix.as_bytes()))
            .count()
    };
    assert_eq!(
        (encrypted_with("key1").await, encrypted_with("key2").await),
        (20, 0)
    );
    std::fs::write(
        control_plane.directory().join(ENCRYPTION_FILE),
        encryption("key2", "key1"),
    )
    .unwrap();
    control_plane.apiserver().process().restart().unwrap();
    control_plane.apiserver().ready().await.unwrap();

    let config = control_plane.admin().config().unwrap();
    let writer = Writer::named("exuvia-test");
    let client = writer.connect(config.clone()).unwrap();
    let resource = ApiResource::erase::<Secret>(&());
    let mut engine = Engine::for_built_in(&config, client, writer, resource, Options::default());
    let report = engine.run().await.unwrap();
    assert_eq!((report.end, report.rewrite.rewritten), (End::Migrated, 20));
    assert_eq!(
        (encrypted_with("key1").await, encrypted_with("key2").await),
        (0, 20)
    );
}

/// PITFALLS A9, and a namespace that is on its way out.
#[tokio::test]
async fn objects_under_deletion_are_rewritten_like_any_other() {
    let bench = Bench::installed("deleting").await;
    bench.widgets.create(&bench.client, "v1alpha1", 3).await.unwrap();
    let api = bench.widgets.api(&bench.client, "v1alpha1");
    let held = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/hold"]}}));
    api.patch("widget-0001", &PatchParams::default(), &held)
        .await
        .unwrap();
    api.delete("widget-0001", &DeleteParams::default()).await.unwrap();

    let namespaces: Api<Namespace> = Api::all(bench.client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": "going"}})).unwrap();
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let inside = Api::namespaced_with(bench.client.clone(), "going", &bench.widgets.resource("v1alpha1"));
    let mut widget = bench.widgets.widget("v1alpha1", "inside");
    widget.metadata.namespace = Some("going".into());
    inside.create(&PostParams::default(), &widget).await.unwrap();
    namespaces
        .delete("going", &DeleteParams::default())
        .await
        .unwrap(); // stays: no namespace controller runs

    bench.widgets.flip_storage(&bench.client, "v1").await.unwrap();
    let report = bench.migrate().await;
    assert_eq!(
        (report.end, report.rewrite.rewritten),
        (End::Migrated, 4),
        "{:?}",
        report.failures
    );
    bench.assert_trimmed_rightly("v1alpha1").await;
    let held = bench
        .widgets
        .api(&bench.client, "v1")
        .get("widget-0001")
        .await
        .unwrap();
    assert!(
        held.metadata.deletion_timestamp.is_some(),
        "still there, still being deleted"
    );
}

/// PITFALLS A21.
#[tokio::test]
async fn large_objects_keep_their_bytes_and_their_owners() {
    let bench = Bench::installed("large").await;
    let api = bench.widgets.api(&bench.client, "v1alpha1");
    let mut widget = bench.widgets.widget("v1alpha1", "large");
    widget.data["spec"]["payload"] = json!("x".repeat(1_000_000));
    api.create(&PostParams::default(), &widget).await.unwrap();
    bench.widgets.flip_storage(&bench.client, "v1").await.unwrap();
    assert_eq!(bench.migrate().await.end, End::Migrated);
    let after = bench.widgets.api(&bench.client, "v1").get("large").await.unwrap();
    assert_eq!(after.data["spec"]["payload"].as_str().unwrap().len(), 1_000_000);
    assert!(!after.metadata.managed_fields.unwrap().is_empty());
    bench.assert_trimmed_rightly("v1alpha1").await;
}

/// PITFALLS A8: on a server that compacts every two seconds a sweep of many small pages meets a real 410.
#[tokio::test]
async fn an_expired_continue_token_loses_no_object() {
    let control_plane = ControlPlane::builder()
        .apiserver_flag("--etcd-compaction-interval=1s")
        .start()
        .await
        .unwrap();
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("expired.example.com");
    widgets.install(&client, "v1alpha1").await.unwrap();
    widgets.create(&client, "v1alpha1", 120).await.unwrap();
    widgets.flip_storage(&client, "v1").await.unwrap();
    let proxy = control_plane.proxy().await.unwrap();
    let access = control_plane.admin().clone().at(proxy.url());
    let writer = Writer::named("exuvia-test");
    let config = access.config().unwrap();
    let server = control_plane.apiserver().url().parse().unwrap();
    // Ten objects a second: a page of ten lasts as long as a compaction interval, a token outlives none.
    let options = Options {
        settle: crate::SETTLE,
        api_servers: vec![server],
        page_size: 10,
        qps: Some(10),
        ..Options::default()
    };
    let connected = writer.connect(config.clone()).unwrap();
    let crd = widgets.crd_name();
    let mut engine = exuvia_storage::Engine::new(&config, connected, writer, crd, options);
    let report = engine.run().await.unwrap();
    assert!(
        proxy.requests().iter().any(|r| r.answer == Some(410)),
        "no token expired: this showed nothing"
    );
    assert_eq!((report.end, report.rewrite.done()), (End::Migrated, 120));
    let counts = control_plane
        .stored("expired.example.com", "widgets")
        .count_by_version()
        .await
        .unwrap();
    assert_eq!(counts["expired.example.com/v1"], 120);
}

#[tokio::test]
async fn a_denied_object_goes_through_status_only_if_asked() {
    let bench = Bench::flipped("fallback", 3).await;
    let webhooks = bench.control_plane.webhooks().await.unwrap();
    webhooks.on_validate(Admission::deny("frozen by policy"));
    let configuration = serde_json::from_value(json!({
        "metadata": {"name": "fallback"},
        "webhooks": [{
            "name": "fallback.example.com",
            "clientConfig": webhooks.client_config(Endpoint::Validate),
            "rules": [{"apiGroups": ["fallback.example.com"], "apiVersions": ["*"], "resources": ["widgets"],
                       "operations": ["UPDATE"]}],
            "sideEffects": "None", "admissionReviewVersions": ["v1"],
        }],
    }))
    .unwrap();
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(bench.client.clone());
    configurations
        .create(&PostParams::default(), &configuration)
        .await
        .unwrap();
    let api = bench.widgets.api(&bench.client, "v1");
    exuvia_testenv::until("the webhook denies", async || {
        api.patch("widget-0000", &PatchParams::default(), &Patch::Merge(json!({})))
            .await
            .is_err()
    })
    .await;

    let options = || Options {
        managed_fields: exuvia_storage::ManagedFields::Keep,
        ..bench.options()
    };
    let denied = bench.engine(options()).run().await.unwrap();
    assert!(
        matches!(
            denied.end,
            End::Stalled {
                reason: "Failures",
                ..
            }
        ),
        "{:?}",
        denied.end
    );
    assert!(
        denied
            .failures
            .first
            .iter()
            .all(|f| f.class == "denied" && f.message.contains("frozen by policy"))
    );

    let through = Options {
        status_fallback: true,
        ..options()
    };
    let report = bench.engine(through).run().await.unwrap();
    configurations
        .delete("fallback", &DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(bench.stored_at("v1alpha1").await, 0, "{:?}", report.rewrite);
    assert_eq!(report.end, End::Migrated, "{:?}", report.failures);
}

#[tokio::test]
async fn a_crd_made_again_is_another_one() {
    let bench = Bench::flipped("again", 3).await;
    let crds: Api<CustomResourceDefinition> = Api::all(bench.client.clone());
    let mut engine = bench.engine(bench.options());
    while engine.pass().and_then(|pass| pass.rewrite).is_none() {
        crate::step(&mut engine).await;
    }
    crds.delete(&bench.widgets.crd_name(), &DeleteParams::default())
        .await
        .unwrap();
    exuvia_testenv::until("it is gone", async || {
        crds.get_opt(&bench.widgets.crd_name()).await.unwrap().is_none()
    })
    .await;
    bench.widgets.install(&bench.client, "v1alpha1").await.unwrap();
    bench.widgets.create(&bench.client, "v1alpha1", 2).await.unwrap();
    bench.widgets.flip_storage(&bench.client, "v1").await.unwrap();
    assert_eq!(engine.run().await.unwrap().end, End::Migrated);
    assert_eq!(
        (bench.stored_at("v1alpha1").await, bench.stored_at("v1").await),
        (0, 2)
    );
    bench.assert_trimmed_rightly("v1alpha1").await;
}
