//! Others at work while a migration runs: the CRD goes, changes or is fought over, an object is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use exuvia_api::{OPT_IN_LABEL, Phase, StorageMigration};
use exuvia_testenv::proxy::Proxy;
use exuvia_testenv::webhook::{Admission, Endpoint, WebhookServer};
use exuvia_testenv::{ControlPlane, Widgets, until};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::harness::{
    condition, control_plane, flipped, in_phase, label, migration_names, status_when, stored_at,
    stored_versions,
};
use crate::oracle::*;
use crate::verdict::is_free_but_for_references;

/// For some renewals of its Lease the operator asks for nothing else.
async fn assert_silent(proxy: &Proxy) {
    let renewals = async |count: usize| {
        let renewals = || proxy.writes().iter().filter(|request| is_lease(request)).count();
        let before = renewals();
        until("the lease is renewed", async || {
            (renewals() >= before + count).then_some(())
        })
        .await;
    };
    renewals(1).await; // for what is still under way
    proxy.forget();
    renewals(4).await;
    let mut others = proxy.requests();
    others.retain(|request| !is_lease(request));
    assert!(others.is_empty(), "{others:?}");
}

#[tokio::test]
async fn a_crd_that_is_deleted_half_way_and_made_again_is_migrated_again() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "again.example.com", 20, true).await;
    let proxy = control_plane.proxy().await.unwrap();
    let gate = Gate::after(6, &proxy, &widgets);
    let operator = start_behind(&proxy, &control_plane, &[]);
    gate.reached().await;
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    let first = migrations.get(&widgets.crd_name()).await.unwrap().uid();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.delete(&widgets.crd_name(), &DeleteParams::default())
        .await
        .unwrap();
    until("the CRD is gone", async || {
        crds.get_opt(&widgets.crd_name())
            .await
            .unwrap()
            .is_none()
            .then_some(())
    })
    .await;
    gate.open();
    until("its migration is gone", async || {
        migration_names(&client).await.is_empty().then_some(())
    })
    .await;
    assert_silent(&proxy).await;
    let (_, metrics) = operator.get("/metrics").await;
    let errors = metric(&metrics, "controller_runtime_reconcile_errors_total", "");
    assert_eq!(errors, 0, "{metrics}");

    let mut crd = widgets.crd("v1alpha1");
    crd["metadata"]["labels"] = json!({OPT_IN_LABEL: "true"});
    widgets.install_crd(&client, crd).await.unwrap();
    widgets.create(&client, "v1alpha1", 12).await.unwrap();
    in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    widgets.flip_storage(&client, "v1").await.unwrap();
    until("it is trimmed", async || {
        (stored_versions(&client, &widgets).await == ["v1"]).then_some(())
    })
    .await;
    in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    assert_all_at(&control_plane, &widgets, "v1", 12).await;
    assert_each_written(&control_plane, &widgets, 1).await;
    assert_ne!(migrations.get(&widgets.crd_name()).await.unwrap().uid(), first);
}

/// There and back while the pass is half-way, forth again half-way back; and once more when all is done (PITFALLS B1).
#[tokio::test]
async fn each_flip_is_followed_whenever_it_comes() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "flips.example.com", 30, true).await;
    let proxy = control_plane.proxy().await.unwrap();
    let gate = Gate::after(10, &proxy, &widgets);
    let _operator = start_behind(&proxy, &control_plane, &[]);
    for back_or_forth in ["v1alpha1", "v1"] {
        gate.reached().await;
        widgets.flip_storage(&client, back_or_forth).await.unwrap();
        gate.open_for(10);
    }
    gate.open();
    until("it is trimmed", async || {
        (stored_versions(&client, &widgets).await.len() == 1).then_some(())
    })
    .await;
    let status = in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    assert!(is_free_but_for_references(&status), "{status:?}");
    assert_all_at(&control_plane, &widgets, "v1", 30).await;

    widgets.flip_storage(&client, "v1alpha1").await.unwrap();
    let about = |status: &exuvia_api::StorageMigrationStatus| {
        status
            .observed
            .as_ref()
            .is_some_and(|observed| observed.storage_version == "v1alpha1")
    };
    let name = widgets.crd_name();
    status_when(&client, &name, "the second flip is done", |status| {
        about(status) && status.phase == Some(Phase::Migrated)
    })
    .await;
    assert_all_at(&control_plane, &widgets, "v1alpha1", 30).await;
}

/// As a controller that fights over the CRD does: metadata only, and the spec too, so that the generation moves.
#[tokio::test]
async fn a_crd_that_is_applied_again_and_again_is_migrated_when_that_ends() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let touched = flipped(&client, "touched.example.com", 20, true).await;
    let changed = flipped(&client, "changed.example.com", 20, true).await;
    let crds: &Api<CustomResourceDefinition> = &Api::all(client.clone());
    let change = async |widgets: &Widgets, path: &str, value: Value| {
        let add = json!([{"op": "add", "path": path, "value": value}]);
        let add = Patch::Json::<()>(serde_json::from_value(add).unwrap());
        let changed = crds
            .patch(&widgets.crd_name(), &PatchParams::default(), &add)
            .await;
        changed.unwrap().metadata.generation
    };
    let describe = async |times: u32| {
        let path = "/spec/versions/0/schema/openAPIV3Schema/description";
        change(&changed, path, json!(format!("told {times} times"))).await
    };
    let proxy = control_plane.proxy().await.unwrap();
    let gate = Gate::after(4, &proxy, &changed);
    let _operator = start_behind(&proxy, &control_plane, &[]);

    // In a loop: whose spec stays the same is migrated in the midst of it.
    let ended = AtomicBool::new(false);
    let fight = async {
        for times in 0.. {
            change(
                &touched,
                "/metadata/annotations",
                json!({"times": times.to_string()}),
            )
            .await;
            if times % 4 == 0 {
                describe(times).await;
            }
            if ended.load(Ordering::Relaxed) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await; // the fight itself
        }
    };
    let outlived = async {
        in_phase(&client, &touched.crd_name(), Phase::Migrated).await;
        ended.store(true, Ordering::Relaxed);
    };
    tokio::join!(fight, outlived);
    assert_all_at(&control_plane, &touched, "v1", 20).await;
    assert_each_written(&control_plane, &touched, 1).await;

    // And each time that a pass is half-way.
    let mut generation = None;
    for times in 1000..1004 {
        gate.reached().await;
        generation = describe(times).await;
        gate.open_for(4);
    }
    gate.open();
    status_when(
        &client,
        &changed.crd_name(),
        "it is done as it is now",
        |status| {
            let observed = status.observed.as_ref().map(|observed| observed.generation);
            observed == generation && status.phase == Some(Phase::Migrated)
        },
    )
    .await;
    assert_all_at(&control_plane, &changed, "v1", 20).await;
    assert_each_written(&control_plane, &changed, 1).await;
}

const REFUSED: &str = "widget-0007";

/// Refuses one widget as long as `refusing` is true.
async fn refuse_one(control_plane: &ControlPlane, widgets: &Widgets) -> (WebhookServer, Arc<AtomicBool>) {
    let client = control_plane.client().unwrap();
    let webhooks = control_plane.webhooks().await.unwrap();
    let refusing = Arc::new(AtomicBool::new(true));
    let refuses = Arc::clone(&refusing);
    webhooks.on_validate(Admission::by(move |request| {
        if request["name"] == REFUSED && refuses.load(Ordering::Relaxed) {
            Admission::deny("not this one")
        } else {
            Admission::Allow
        }
    }));
    let configuration = json!({
        "metadata": {"name": "one"},
        "webhooks": [{
            "name": "one.example.com",
            "clientConfig": webhooks.client_config(Endpoint::Validate),
            "rules": [{"apiGroups": [widgets.group()], "apiVersions": ["*"], "resources": ["widgets"],
                       "operations": ["UPDATE"]}],
            "sideEffects": "None", "admissionReviewVersions": ["v1"],
        }],
    });
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let configuration = serde_json::from_value(configuration).unwrap();
    configurations
        .create(&PostParams::default(), &configuration)
        .await
        .unwrap();
    let api = widgets.api(&client, "v1");
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    until("it is refused", async || {
        api.patch(REFUSED, &dry_run, &Patch::Merge(json!({})))
            .await
            .err()
            .map(drop)
    })
    .await;
    (webhooks, refusing)
}

/// Waits for some tries of the refused object and checks that there were pauses between them: never shorter than half of
/// half a second, as the back-off's base is half a second and half of that is jitter.
async fn assert_paced(proxy: &Proxy, widgets: &Widgets) {
    let tries = || rewrites(proxy, widgets).get(REFUSED).copied().unwrap_or_default();
    let (before, since) = (tries(), Instant::now());
    until("it is tried again", async || {
        (tries() >= before + 4).then_some(())
    })
    .await;
    let (more, passed) = (tries() - before, since.elapsed().as_millis() as usize);
    assert!(more <= 2 + passed / 250, "{more} tries in {passed} ms");
}

#[tokio::test]
async fn one_object_that_is_refused_is_named_and_the_migration_waits_for_it() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "refused.example.com", 30, false).await;
    let (_webhooks, refusing) = refuse_one(&control_plane, &widgets).await;
    label(&client, &widgets, Some("true")).await;
    let proxy = control_plane.proxy().await.unwrap();
    let trim = Stop::once_stored(&proxy, on_trims(&widgets), |_| true);
    let _operator = start_behind(&proxy, &control_plane, &[]);
    let name = widgets.crd_name();
    let status = in_phase(&client, &name, Phase::Stalled).await;
    let (stalled, reason, _) = condition(&status, "Stalled");
    assert_eq!((stalled.as_str(), reason.as_str()), ("True", "Failures"));
    let failures = status.failures.unwrap();
    assert_eq!(
        (failures.count, failures.first[0].object.as_str()),
        (1, "default/widget-0007")
    );
    assert_eq!(failures.first[0].class, "denied");
    let told = events(&client, "Failures").await;
    for kind in ["StorageMigration", "CustomResourceDefinition"] {
        let named = |(about, note): &(String, String)| about == kind && note.contains("default/widget-0007");
        assert!(told.iter().any(named), "{told:?}");
    }
    assert_paced(&proxy, &widgets).await;
    let mut tries = rewrites(&proxy, &widgets);
    tries.remove(REFUSED);
    assert_eq!(tries.len(), 29);
    assert!(tries.values().all(|tries| *tries == 1), "{tries:?}");
    let stored = stored_at(&control_plane, &widgets).await;
    assert_eq!(stored, [("v1".to_owned(), 29), ("v1alpha1".to_owned(), 1)].into());
    assert_eq!(stored_versions(&client, &widgets).await, ["v1alpha1", "v1"]);

    refusing.store(false, Ordering::Relaxed);
    trim.reached().await;
    // From the trim on it is refused again: now the patrol cannot look at it.
    refusing.store(true, Ordering::Relaxed);
    trim.go();
    status_when(&client, &name, "the patrol is told of", |status| {
        status.trimmed_at.is_some() && status.phase == Some(Phase::Stalled)
    })
    .await;
    assert_paced(&proxy, &widgets).await;
    refusing.store(false, Ordering::Relaxed);
    let status = in_phase(&client, &name, Phase::Migrated).await;
    assert_eq!(condition(&status, "Stalled").0, "False");
    assert_all_at(&control_plane, &widgets, "v1", 30).await;
    assert_each_written(&control_plane, &widgets, 1).await;
}
