//! A default that only the storage version has (PITFALLS A35): nobody comes to own it, least of all us.

use exuvia_storage::End;
use exuvia_testenv::webhook::{Admission, Endpoint, WebhookServer};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::{Bench, managers, pairs, spec_of};

/// Flux' Receiver has it so: `interval` is new in v1, with a default.
fn with_interval(crd: &mut Value) {
    spec_of(crd, 1)["properties"]["interval"] = json!({"type": "string", "default": "10m"});
}

async fn migrated(group: &str, change: impl FnOnce(&mut Value)) -> (Bench, Option<i64>) {
    let bench = Bench::installed(group, |crd| {
        with_interval(crd);
        change(crd);
    })
    .await;
    bench
        .apply("v1alpha1", "flux", "a", json!({"spec": {"size": 1}}))
        .await;
    bench
        .create("v1alpha1", "kubectl", "b", json!({"spec": {"size": 2}}))
        .await;
    bench.flip().await;
    let generation = bench.live("a").await.metadata.generation;
    let report = bench.migrate().await;
    assert_eq!(report.end, End::Migrated, "{report:?}");
    assert_eq!(report.owned, 0);
    (bench, generation)
}

async fn assert_the_owner_can_go_on(bench: &Bench) {
    let a = bench.live("a").await;
    assert_eq!(a.data["spec"]["interval"], "10m");
    assert_eq!(managers(&a), pairs(&[("flux", "v1")]));
    assert_eq!(managers(&bench.live("b").await), pairs(&[("kubectl", "v1")]));
    let with_interval = json!({"spec": {"size": 1, "interval": "5m"}});
    for manager in ["flux", "another"] {
        let conflicts = bench.conflicts("v1", manager, "a", with_interval.clone()).await;
        assert!(conflicts.is_empty(), "{manager}: {conflicts:?}");
    }
    let group = bench.widgets.group();
    assert_eq!(
        bench.stored().await,
        [format!("{group}/v1"), format!("{group}/v1")]
    );
}

#[tokio::test]
async fn a_new_default_gets_no_owner_and_the_generation_stays() {
    let (bench, generation) = migrated("newdefault", |_| {}).await;
    assert_the_owner_can_go_on(&bench).await;
    assert_eq!(bench.live("a").await.metadata.generation, generation);
}

#[tokio::test]
async fn without_a_status_endpoint_a_new_default_gets_no_owner_either() {
    let (bench, generation) = migrated("nostatus", |crd| {
        for version in crd["spec"]["versions"].as_array_mut().unwrap() {
            version["subresources"] = json!({});
        }
    })
    .await;
    assert_the_owner_can_go_on(&bench).await;
    assert_eq!(bench.live("a").await.metadata.generation, generation);
}

#[tokio::test]
async fn with_defaults_in_spec_and_status_nobody_owns_them() {
    let (bench, generation) = migrated("bothdefaults", |crd| {
        let schema = &mut crd["spec"]["versions"][1]["schema"]["openAPIV3Schema"];
        schema["properties"]["status"]["properties"]["ready"]["default"] = json!(-1);
    })
    .await;
    assert_the_owner_can_go_on(&bench).await;
    assert_eq!(bench.live("a").await.metadata.generation, generation);
}

/// A crash between the write that sets a default and the one that takes our entry off.
#[tokio::test]
async fn an_entry_that_a_crash_has_left_is_taken_off_by_the_next_migration() {
    let bench = Bench::installed("leftover", with_interval).await;
    bench
        .apply("v1alpha1", "flux", "a", json!({"spec": {"size": 1}}))
        .await;
    bench.flip().await;
    let params = PatchParams {
        field_manager: Some("exuvia-rewrites".into()),
        ..PatchParams::default()
    };
    let api = bench.widgets.api(&bench.client, "v1");
    // A write that moves entries is what makes its sender the owner of a new default.
    let moved = {
        let a = bench.live("a").await;
        let mut entries = json!(a.metadata.managed_fields);
        entries[0]["apiVersion"] = json!(format!("{}/v1", bench.widgets.group()));
        json!({"metadata": {"resourceVersion": a.metadata.resource_version, "managedFields": entries}})
    };
    api.patch("a", &params, &Patch::Merge(moved)).await.unwrap();
    let left = managers(&bench.live("a").await);
    assert!(
        left.contains(&("exuvia-rewrites".into(), "v1".into())),
        "{left:?}"
    );
    assert_eq!(bench.migrate().await.end, End::Migrated);
    assert_eq!(managers(&bench.live("a").await), pairs(&[("flux", "v1")]));
}

pub(crate) async fn mutated_by(hooks: &WebhookServer, bench: &Bench) {
    let group = bench.widgets.group();
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": group},
        "webhooks": [{
            "name": format!("stamp.{group}"), "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": hooks.client_config(Endpoint::Mutate),
            "rules": [{"apiGroups": [group], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["widgets"]}],
        }],
    });
    let api: Api<MutatingWebhookConfiguration> = Api::all(bench.client.clone());
    api.create(
        &PostParams::default(),
        &serde_json::from_value(configuration).unwrap(),
    )
    .await
    .unwrap();
    // It is asked as soon as the server has learnt of it.
    let widgets = bench.widgets.api(&bench.client, "v1alpha1");
    let asked = hooks.calls(Endpoint::Mutate);
    while hooks.calls(Endpoint::Mutate) == asked {
        let touch = Patch::Merge(json!({"metadata": {"labels": {"touched": "yes"}}}));
        let dry = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        widgets.patch("a", &dry, &touch).await.unwrap();
    }
}

/// A webhook that completes objects: what it sets in our write is nobody's, and certainly not ours.
#[tokio::test]
async fn what_a_webhook_completes_in_our_write_is_not_ours() {
    let bench = Bench::installed("completed", |_| {}).await;
    bench
        .apply("v1alpha1", "flux", "a", json!({"spec": {"size": 1}}))
        .await;
    let hooks = bench.control_plane.webhooks().await.unwrap();
    hooks.on_mutate(Admission::by(|request| {
        if request["object"]["spec"]["color"].is_null() {
            Admission::Mutate(json!([{"op": "add", "path": "/spec/color", "value": "red"}]))
        } else {
            Admission::Allow
        }
    }));
    mutated_by(&hooks, &bench).await;
    bench.flip().await;
    let report = bench.migrate().await;
    assert_eq!((report.end, report.owned), (End::Migrated, 0));
    let a = bench.live("a").await;
    assert_eq!(a.data["spec"]["color"], "red");
    assert_eq!(managers(&a), pairs(&[("flux", "v1")]));
}

/// It stamps the very write that takes our entry off as well.
#[tokio::test]
async fn a_webhook_that_stamps_every_write_makes_us_an_owner_of_nothing() {
    let bench = Bench::installed("everstamped", |_| {}).await;
    bench
        .apply("v1alpha1", "flux", "a", json!({"spec": {"size": 1}}))
        .await;
    let hooks = bench.control_plane.webhooks().await.unwrap();
    let count = std::sync::atomic::AtomicU64::new(0);
    hooks.on_mutate(Admission::by(move |_| {
        let number = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Admission::Mutate(json!([{"op": "add", "path": "/spec/color", "value": number.to_string()}]))
    }));
    mutated_by(&hooks, &bench).await;
    bench.flip().await;
    let report = bench.migrate().await;
    assert_eq!((report.end, report.owned), (End::Migrated, 0));
    let a = bench.live("a").await;
    assert!(a.data["spec"]["color"].is_string(), "it has been stamped");
    assert_eq!(managers(&a), pairs(&[("flux", "v1")]));
}

/// An apply would give it an owner of everything, `before-first-apply`.
#[tokio::test]
async fn an_object_without_owners_stays_without() {
    let bench = Bench::installed("ownerless", with_interval).await;
    bench
        .apply("v1alpha1", "flux", "a", json!({"spec": {"size": 1}}))
        .await;
    let strip = Patch::Merge(json!({"metadata": {"managedFields": [{}]}}));
    let api = bench.widgets.api(&bench.client, "v1alpha1");
    api.patch("a", &PatchParams::default(), &strip).await.unwrap();
    bench.flip().await;
    assert_eq!(bench.migrate().await.end, End::Migrated);
    assert_eq!(managers(&bench.live("a").await), pairs(&[]));
    assert_eq!(bench.stored().await, [format!("{}/v1", bench.widgets.group())]);
}
