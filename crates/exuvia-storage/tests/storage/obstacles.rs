//! What stands in the way: found before anything is written, or reported and left alone.

use exuvia_runtime::machine::Machine;
use exuvia_storage::{End, Obstacle, Options};
use exuvia_testenv::webhook::{Admission, Break, Endpoint};
use exuvia_testenv::{ControlPlane, Widgets};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::Bench;

/// A bench whose CRD was changed before it was installed.
pub(crate) async fn installed_with(group: &str, change: impl FnOnce(&mut Value)) -> Bench {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group(format!("{group}.example.com"));
    let mut crd = widgets.crd("v1alpha1");
    change(&mut crd);
    widgets.install_crd(&client, crd).await.unwrap();
    Bench {
        control_plane,
        client,
        widgets,
    }
}

/// PITFALLS A23; the object lies beyond the first page.
#[tokio::test]
async fn a_field_that_only_the_old_version_knows_stops_it_before_any_write() {
    let bench = installed_with("prune", |crd| {
        let old = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        old["properties"]["legacy"] = json!({"type": "string"});
    })
    .await;
    bench
        .widgets
        .create(&bench.client, "v1alpha1", 600)
        .await
        .unwrap();
    let api = bench.widgets.api(&bench.client, "v1alpha1");
    let legacy = Patch::Merge(json!({"spec": {"legacy": "precious"}}));
    api.patch("widget-0555", &PatchParams::default(), &legacy)
        .await
        .unwrap();
    bench.widgets.flip_storage(&bench.client, "v1").await.unwrap();

    let proxy = bench.control_plane.proxy().await.unwrap();
    let report = bench.engine_through(&proxy, bench.options()).run().await.unwrap();
    assert!(
        matches!(
            report.end,
            End::Stalled {
                reason: "Pruning",
                ..
            }
        ),
        "{:?}",
        report.end
    );
    let Some(Obstacle::Pruning(losses)) = &report.obstacle else {
        panic!("{report:?}")
    };
    assert_eq!((losses.looked_at, losses.objects), (600, 1));
    let legacy = &losses.erased["spec.legacy"];
    assert_eq!(
        (legacy.objects, legacy.first[0].as_str()),
        (1, "default/widget-0555")
    );
    let real: Vec<_> = proxy
        .writes()
        .into_iter()
        .filter(|w| !w.query.contains("dryRun=All"))
        .collect();
    assert!(real.is_empty(), "{real:?}");
    assert_eq!(bench.stored_at("v1alpha1").await, 600);

    let accepted = Options {
        accept_pruning: true,
        ..bench.options()
    };
    let report = bench.engine(accepted).run().await.unwrap();
    assert_eq!((report.end, report.rewrite.rewritten), (End::Migrated, 600));
    let accepted = report.losses.unwrap();
    assert!(accepted.erased.contains_key("spec.legacy"), "{accepted:?}");
    bench.assert_trimmed_rightly("v1alpha1").await;
}

/// PITFALLS A24, A6: a list still answers, from the watch cache.
#[tokio::test]
async fn a_dead_conversion_webhook_stops_it_before_any_write() {
    let webhooks = ControlPlane::shared().await.webhooks().await.unwrap();
    let conversion = webhooks.conversion();
    let bench = installed_with("webhook", |crd| crd["spec"]["conversion"] = conversion).await;
    bench.widgets.create(&bench.client, "v1alpha1", 5).await.unwrap();
    bench.widgets.flip_storage(&bench.client, "v1").await.unwrap();
    webhooks.break_down(Endpoint::Convert, Break::Http500);
    let proxy = bench.control_plane.proxy().await.unwrap();
    let mut engine = bench.engine_through(&proxy, bench.options());
    let report = engine.run().await.unwrap();
    assert!(
        matches!(
            report.end,
            End::Stalled {
                reason: "Preflight",
                ..
            }
        ),
        "{:?}",
        report.end
    );
    assert!(
        proxy.writes().iter().all(|w| w.query.contains("dryRun=All")),
        "nothing but dry-runs"
    );
    assert_eq!(bench.stored_at("v1alpha1").await, 5);

    webhooks.repair(Endpoint::Convert);
    engine.retry(&exuvia_storage::protocol::Hold::Blocked(
        exuvia_storage::protocol::Blocked::Preflight,
    ));
    assert_eq!(engine.run().await.unwrap().end, End::Migrated);
    bench.assert_trimmed_rightly("v1alpha1").await;
}

/// PITFALLS A10.
#[tokio::test]
async fn an_unserved_storage_version_is_migrated_through_a_served_one() {
    let bench = Bench::installed("unserved").await;
    bench.widgets.create(&bench.client, "v1alpha1", 5).await.unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(bench.client.clone());
    let mut crd = crds.get(&bench.widgets.crd_name()).await.unwrap();
    for version in &mut crd.spec.versions {
        version.storage = version.name == "v1";
        version.served = version.name == "v1alpha1";
    }
    crds.replace(&bench.widgets.crd_name(), &PostParams::default(), &crd)
        .await
        .unwrap();
    exuvia_testenv::until("v1 is not served", async || {
        bench
            .widgets
            .api(&bench.client, "v1")
            .get("widget-0000")
            .await
            .is_err()
    })
    .await;
    let report = bench.migrate().await;
    assert_eq!(report.end, End::Migrated, "{report:?}");
    assert_eq!(
        report.verified,
        Some(exuvia_storage::Verified::Full),
        "without a hash nobody can be asked"
    );
    bench.assert_trimmed_rightly("v1alpha1").await;
    assert_eq!(bench.stored_at("v1").await, 5);
}

/// PITFALLS A27: no failure, and no server is accused.
#[tokio::test]
async fn a_webhook_that_stamps_each_write_is_reported_as_such() {
    let bench = Bench::flipped("stamped", 4).await;
    let webhooks = bench.control_plane.webhooks().await.unwrap();
    let count = std::sync::atomic::AtomicU64::new(0);
    webhooks.on_mutate(Admission::by(move |_| {
        let stamp = count
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed)
            .to_string();
        Admission::Mutate(json!([{"op": "add", "path": "/spec/payload", "value": stamp}]))
    }));
    let configuration = serde_json::from_value(json!({
        "metadata": {"name": "stamped"},
        "webhooks": [{
            "name": "stamped.example.com",
            "clientConfig": webhooks.client_config(Endpoint::Mutate),
            "rules": [{"apiGroups": ["stamped.example.com"], "apiVersions": ["*"], "resources": ["widgets"],
                       "operations": ["UPDATE"]}],
            "sideEffects": "None", "admissionReviewVersions": ["v1"],
        }],
    }))
    .unwrap();
    let configurations: Api<k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration> =
        Api::all(bench.client.clone());
    configurations
        .create(&PostParams::default(), &configuration)
        .await
        .unwrap();
    let api = bench.widgets.api(&bench.client, "v1");
    exuvia_testenv::until("the webhook is called", async || {
        api.patch("widget-0000", &PatchParams::default(), &Patch::Merge(json!({})))
            .await
            .unwrap();
        webhooks.calls(Endpoint::Mutate) > 0
    })
    .await;
    let report = bench.migrate().await;
    configurations
        .delete("stamped", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(report.end, End::Migrated, "{report:?}");
    assert_eq!(report.mutated, 4);
    bench.assert_trimmed_rightly("v1alpha1").await;
}

/// PITFALLS B10.
#[tokio::test]
async fn empty_stored_versions_do_not_make_it_panic() {
    let bench = Bench::installed("empty").await;
    let crds: Api<CustomResourceDefinition> = Api::all(bench.client.clone());
    let patch = Patch::Merge(json!({"status": {"storedVersions": []}}));
    crds.patch_status(&bench.widgets.crd_name(), &PatchParams::default(), &patch)
        .await
        .unwrap();
    assert_eq!(bench.migrate().await.end, End::Clean);
}

#[tokio::test]
async fn a_crd_that_goes_away_ends_it() {
    let bench = Bench::flipped("vanish", 3).await;
    let crds: Api<CustomResourceDefinition> = Api::all(bench.client.clone());
    let mut engine = bench.engine(bench.options());
    crate::step(&mut engine).await;
    crds.delete(&bench.widgets.crd_name(), &kube::api::DeleteParams::default())
        .await
        .unwrap();
    exuvia_testenv::until("it is gone", async || {
        crds.get_opt(&bench.widgets.crd_name()).await.unwrap().is_none()
    })
    .await;
    assert_eq!(engine.run().await.unwrap().end, End::Gone);
}

/// PITFALLS A11: a transition rule that the object as it is does not fulfil.
#[tokio::test]
async fn an_object_that_a_transition_rule_refuses_is_named_and_nothing_is_trimmed() {
    let bench = Bench::flipped("transition", 3).await;
    let crds: Api<CustomResourceDefinition> = Api::all(bench.client.clone());
    let mut crd = crds.get(&bench.widgets.crd_name()).await.unwrap();
    let mut value = json!(crd);
    let rule = json!([{"rule": "self.size > oldSelf.size", "message": "size must grow"}]);
    value["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"] =
        rule;
    crd = serde_json::from_value(value).unwrap();
    crds.replace(&bench.widgets.crd_name(), &PostParams::default(), &crd)
        .await
        .unwrap();
    let api = bench.widgets.api(&bench.client, "v1");
    exuvia_testenv::until("the rule is in force", async || {
        api.patch("widget-0000", &PatchParams::default(), &Patch::Merge(json!({})))
            .await
            .is_err()
    })
    .await;
    let report = bench.migrate().await;
    assert!(
        matches!(
            report.end,
            End::Stalled {
                reason: "Failures",
                ..
            }
        ),
        "{:?}",
        report.end
    );
    assert!(
        report
            .failures
            .first
            .iter()
            .all(|failure| failure.class == "invalid"),
        "{:?}",
        report.failures
    );
    assert_eq!(bench.stored_versions().await, ["v1alpha1", "v1"]);
}

#[tokio::test]
async fn a_single_version_needs_no_webhook_dead_or_alive() {
    let webhooks = ControlPlane::shared().await.webhooks().await.unwrap();
    webhooks.break_down(Endpoint::Convert, Break::CutConnection);
    let conversion = webhooks.conversion();
    let bench = installed_with("single", |crd| {
        crd["spec"]["conversion"] = conversion;
        crd["spec"]["versions"].as_array_mut().unwrap().remove(1);
    })
    .await;
    bench.widgets.create(&bench.client, "v1alpha1", 2).await.unwrap();
    assert_eq!(bench.migrate().await.end, End::Clean);
    assert_eq!(webhooks.calls(Endpoint::Convert), 0);
}
