//! Whom the server names when it is asked: odd managers, subresources, annotations, gone versions, and webhooks that fail.

use exuvia_storage::{End, ManagedFields};
use exuvia_testenv::until;
use exuvia_testenv::webhook::Conversion;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::odd::{Answer, differences};
use crate::odd_webhook::{assert_same, converted, integer, rename_between, renaming, renaming_phase, text};
use crate::{Bench, spec_of};

/// The name of the manager is written in the server's way, which is Go's.
#[tokio::test]
async fn a_manager_with_a_combining_accent_comes_along() {
    let (bench, _hooks) = renaming("accent", ["before", "after"], text()).await;
    bench
        .apply(
            "v1alpha1",
            "e\u{301}quipe \"a\\b'",
            "a",
            json!({"spec": {"before": "x", "size": 1}}),
        )
        .await;
    bench.flip().await;
    assert_same(&differences(&bench, &[("v1", "intruder", json!({"spec": {"after": "y"}}))]).await);
}

/// As kubebuilder's hubs do with what the new version does not have.
#[tokio::test]
async fn the_owner_of_a_field_that_is_kept_in_an_annotation_keeps_it() {
    let hooks = exuvia_testenv::ControlPlane::shared()
        .await
        .webhooks()
        .await
        .unwrap();
    hooks.on_convert(Conversion::by(|mut object: Value, to: &str| {
        if to.ends_with("/v1") {
            if let Some(legacy) = object["spec"]
                .as_object_mut()
                .and_then(|spec| spec.remove("legacy"))
            {
                object["metadata"]["annotations"]["example.com/legacy"] = legacy;
            }
        } else if let Some(legacy) = object["metadata"]["annotations"]
            .as_object_mut()
            .and_then(|all| all.remove("example.com/legacy"))
        {
            object["spec"]["legacy"] = legacy;
        }
        object["apiVersion"] = json!(to);
        object
    }));
    let conversion = hooks.conversion();
    let bench = Bench::installed("annotated", |crd| {
        crd["spec"]["conversion"] = conversion;
        spec_of(crd, 0)["properties"]["legacy"] = text();
    })
    .await;
    bench
        .apply(
            "v1alpha1",
            "alice",
            "a",
            json!({"spec": {"legacy": "x", "size": 1}}),
        )
        .await;
    bench.flip().await;
    let tries = [
        ("v1alpha1", "intruder", json!({"spec": {"legacy": "y"}})),
        ("v1alpha1", "alice", json!({"spec": {"size": 1}})),
    ];
    assert_same(&differences(&bench, &tries).await);
}

/// At v1alpha1 the status is a part of the object; at v1 it has a separate endpoint.
#[tokio::test]
async fn an_owner_of_the_status_that_wrote_it_with_the_object_keeps_it() {
    let without_status = |crd: &mut Value| crd["spec"]["versions"][0]["subresources"] = json!({});
    let (bench, _hooks) = renaming_phase("statuslater", without_status).await;
    bench
        .apply(
            "v1alpha1",
            "alice",
            "a",
            json!({"spec": {"size": 1}, "status": {"phase": "Ready"}}),
        )
        .await;
    bench.flip().await;
    let at_status = async || {
        let intent = bench.intent("v1", "a", json!({"status": {"state": "Broken"}}));
        let api = bench.widgets.api(&bench.client, "v1");
        let params = PatchParams::apply("intruder").dry_run();
        api.patch_status("a", &params, &Patch::Apply(&intent))
            .await
            .map(|object| object.data["status"].clone())
            .map_err(|error| error.to_string())
    };
    let before = at_status().await;
    let tries = [("v1alpha1", "intruder", json!({"status": {"phase": "Broken"}}))];
    let wrong = differences(&bench, &tries).await;
    let after = at_status().await;
    eprintln!("at /status: was {before:?} is {after:?}");
    assert_same(&wrong);
    assert_eq!(before.is_err(), after.is_err());
}

/// Every third conversion fails.
#[tokio::test]
async fn a_webhook_that_fails_now_and_then_costs_no_owner() {
    let calls = std::sync::atomic::AtomicU64::new(0);
    let flaky = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_flaky = flaky.clone();
    let (bench, _hooks) = converted(
        "flaky",
        [json!({"before": text()}), json!({"after": text()})],
        move |spec, to_new| {
            let number = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let fails = is_flaky.load(std::sync::atomic::Ordering::Relaxed) && number.is_multiple_of(3);
            assert!(!fails, "now and then");
            rename_between(["before", "after"], spec, to_new);
        },
    )
    .await;
    bench
        .apply(
            "v1alpha1",
            "alice",
            "a",
            json!({"spec": {"before": "x", "size": 1}}),
        )
        .await;
    bench.flip().await;
    let tries = [("v1", "intruder", json!({"spec": {"after": "y"}}))];
    let before = bench.tried_all(&tries).await;
    flaky.store(true, std::sync::atomic::Ordering::Relaxed);
    let report = bench.migrate().await;
    flaky.store(false, std::sync::atomic::Ordering::Relaxed);
    eprintln!(
        "{:?} unmoved {} {:?} {:?}",
        report.end, report.unmoved, report.unmoved_example, report.failures
    );
    let report = bench.migrate().await;
    eprintln!(
        "{:?} unmoved {} {:?} {:?}",
        report.end, report.unmoved, report.unmoved_example, report.failures
    );
    assert_eq!(bench.tried_all(&tries).await, before, "{:?}", bench.owned().await);
}

/// One that scales owns the replicas, wherever they are.
#[tokio::test]
async fn who_scaled_an_object_keeps_the_replicas() {
    let (bench, _hooks) = renaming("scaled", ["size", "count"], integer()).await;
    bench
        .change_crd(|crd| {
            let new = spec_of(crd, 1)["properties"].as_object_mut().unwrap();
            new.remove("size");
            for (version, path) in [".spec.size", ".spec.count"].into_iter().enumerate() {
                crd["spec"]["versions"][version]["subresources"]["scale"] =
                    json!({"specReplicasPath": path, "statusReplicasPath": ".status.ready"});
            }
        })
        .await;
    bench
        .apply(
            "v1alpha1",
            "alice",
            "a",
            json!({"spec": {"color": "x", "size": 1}}),
        )
        .await;
    let api = bench.widgets.api(&bench.client, "v1alpha1");
    let params = PatchParams {
        field_manager: Some("hpa".into()),
        ..PatchParams::default()
    };
    let scale = Patch::Merge(json!({"spec": {"replicas": 3}}));
    until("it can be scaled", async || {
        api.patch_scale("a", &params, &scale).await
    })
    .await;
    bench.flip().await;
    assert_same(&differences(&bench, &[("v1", "intruder", json!({"spec": {"count": 9}}))]).await);
}

/// After the drop nobody can be asked, and the storage version does not have the path: the entry stays and is named.
#[tokio::test]
async fn after_the_drop_an_entry_through_a_webhook_stays_and_is_named() {
    let (bench, _hooks) = renaming("gonerenamed", ["before", "after"], text()).await;
    let spec = json!({"spec": {"before": "x", "size": 1}});
    bench.apply("v1alpha1", "alice", "a", spec).await;
    bench.flip().await;
    let intruder = json!({"spec": {"after": "y"}});
    bench.drop_old_version(&intruder).await;

    let report = bench.migrate().await;
    assert_eq!(report.unmoved, 1, "{report:?}");
    let why = report.unmoved_example.unwrap();
    assert!(
        why.contains("default/a") && why.contains("nobody can be asked"),
        "{why}"
    );
    let after = bench.tried("v1", "intruder", intruder.clone()).await;
    assert!(matches!(after, Answer::Failed(500, _)), "{after:?}");

    // What the documentation says to do.
    let mut dropping = bench.engine(|options| options.managed_fields = ManagedFields::Drop);
    assert_eq!(dropping.run().await.unwrap().end, End::Migrated);
    let after = bench.tried("v1", "intruder", intruder).await;
    assert!(!matches!(after, Answer::Failed(..)), "{after:?}");
}
