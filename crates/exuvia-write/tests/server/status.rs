//! Status: disjoint writers coexist, arrays are locked, times stay.

use exuvia_write::{Effect, ErrorClass, conditions};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::{Stage, Widget};

fn set(type_: &'static str, status: bool, reason: &'static str) -> impl FnMut(&mut Widget) {
    move |widget| {
        let condition = conditions::new(widget, type_, status, reason, "");
        conditions::set(&mut widget.status_mut().conditions, condition);
    }
}

#[tokio::test]
async fn writers_of_different_scalars_survive_a_stale_snapshot() {
    let stage = Stage::set("st-scalars").await;
    let snapshot = stage.widget("w").await;
    let (api, writer) = (stage.api(), &stage.writer);
    writer
        .patch_status(&api, &snapshot, |w| w.status_mut().phase = Some("Ready".into()))
        .await
        .unwrap();
    let second = writer
        .patch_status(&api, &snapshot, |w| w.status_mut().ready = Some(3))
        .await
        .unwrap();
    assert_eq!(
        stage.live("w").await["status"],
        json!({"phase": "Ready", "ready": 3})
    );
    assert_eq!(
        second.object.status.unwrap().phase.as_deref(),
        Some("Ready"),
        "the answer is the server's"
    );
    for sent in stage.proxy.writes() {
        assert!(sent.path.ends_with("/widgets/w/status"));
        assert!(sent.json().get("metadata").is_none(), "no lock: {}", sent.json());
    }
}

#[tokio::test]
async fn a_value_that_is_assigned_as_it_was_read_is_not_in_the_body() {
    let stage = Stage::set("st-same").await;
    let widget = stage.widget("w").await;
    let api = stage.api();
    let widget = stage
        .writer
        .patch_status(&api, &widget, |w| w.status_mut().phase = Some("Ready".into()))
        .await
        .unwrap()
        .object;
    stage.proxy.forget();
    stage
        .writer
        .patch_status(&api, &widget, |w| {
            w.status_mut().phase = Some("Ready".into());
            w.status_mut().ready = Some(1);
        })
        .await
        .unwrap();
    assert_eq!(stage.only_write().json(), json!({"status": {"ready": 1}}));
}

#[tokio::test]
async fn two_writers_of_different_conditions_from_the_same_snapshot_both_survive() {
    let stage = Stage::set("st-conditions").await;
    let snapshot = stage.widget("w").await;
    let (api, writer) = (stage.api(), &stage.writer);
    writer
        .patch_status(&api, &snapshot, set("Ready", true, "AllWell"))
        .await
        .unwrap();
    writer
        .patch_status(&api, &snapshot, set("Synced", false, "Waiting"))
        .await
        .unwrap();
    let types: Vec<String> = stage
        .read("w")
        .await
        .status
        .unwrap()
        .conditions
        .into_iter()
        .map(|c| c.type_)
        .collect();
    assert_eq!(types, ["Ready", "Synced"]);
    for sent in stage.proxy.writes() {
        assert!(
            sent.json()["metadata"]["resourceVersion"].is_string(),
            "locked: {}",
            sent.json()
        );
    }

    // The control: the same by an unlocked merge patch (PITFALLS B21).
    stage.widget("control").await;
    for type_ in ["Ready", "Synced"] {
        let unlocked = Patch::Merge(json!({"status": {"conditions": [{"type": type_, "status": "True"}]}}));
        stage
            .raw()
            .patch_status("control", &PatchParams::default(), &unlocked)
            .await
            .unwrap();
    }
    let live = stage.live("control").await;
    assert_eq!(live["status"]["conditions"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn many_writers_of_conditions_at_once_all_survive() {
    let stage = Stage::set("st-race").await;
    let snapshot = stage.widget("w").await;
    let (api, writer) = (stage.api(), &stage.writer);
    let types = ["A", "B", "C", "D"];
    let [a, b, c, d] = types.map(|type_| writer.patch_status(&api, &snapshot, set(type_, true, "Race")));
    let (a, b, c, d) = tokio::join!(a, b, c, d);
    for written in [a, b, c, d] {
        written.unwrap();
    }
    assert_eq!(
        stage.read("w").await.status.unwrap().conditions.len(),
        types.len()
    );
}

#[tokio::test]
async fn the_transition_time_moves_only_with_the_status_and_the_generation_is_noted() {
    let stage = Stage::set("st-times").await;
    let widget = stage.widget("w").await;
    let (api, writer) = (stage.api(), &stage.writer);
    let long_ago = Time(Timestamp::from_second(1_000_000_000).unwrap());
    let then = long_ago.clone();
    let widget = writer
        .patch_status(&api, &widget, move |w| {
            let mut condition = conditions::new(w, "Ready", true, "AllWell", "");
            condition.last_transition_time = then.clone();
            conditions::set(&mut w.status_mut().conditions, condition);
        })
        .await
        .unwrap()
        .object;
    // The spec moves on, so the condition is about a newer generation; its status is as it was.
    let widget = writer
        .patch(&api, &widget, |w| w.spec.size = 2)
        .await
        .unwrap()
        .object;
    let widget = writer
        .patch_status(&api, &widget, set("Ready", true, "StillWell"))
        .await
        .unwrap()
        .object;
    let condition = &widget.status.as_ref().unwrap().conditions[0];
    assert_eq!(condition.last_transition_time, long_ago);
    assert_eq!(
        (condition.reason.as_str(), condition.observed_generation),
        ("StillWell", Some(2))
    );

    // A status built from scratch, with a new time: still not a transition, so not even a request.
    stage.proxy.forget();
    let scratch = writer
        .patch_status(&api, &widget, |w| {
            let fresh = conditions::new(w, "Ready", true, "StillWell", "");
            w.status_mut().conditions = vec![fresh];
        })
        .await
        .unwrap();
    assert_eq!(scratch.effect, Effect::Unsent);
    assert!(stage.proxy.requests().is_empty());

    let widget = writer
        .patch_status(&api, &widget, set("Ready", false, "Broken"))
        .await
        .unwrap()
        .object;
    assert_ne!(
        widget.status.unwrap().conditions[0].last_transition_time,
        long_ago
    );
}

#[tokio::test]
async fn a_locked_status_patch_gives_a_409_back() {
    let stage = Stage::set("st-locked").await;
    let snapshot = stage.widget("w").await;
    let (api, writer) = (stage.api(), &stage.writer);
    writer
        .patch_status(&api, &snapshot, |w| w.status_mut().ready = Some(1))
        .await
        .unwrap();
    let error = writer
        .patch_status_locked(&api, &snapshot, |w| w.status_mut().phase = Some("Late".into()))
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Conflict);
}

/// PITFALLS B4: a trim of storedVersions is locked.
#[tokio::test]
async fn stored_versions_are_trimmed_under_a_lock() {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    let stage = Stage::set("st-stored").await;
    stage
        .widgets
        .flip_storage(&stage.direct, "v1alpha1")
        .await
        .unwrap();
    let crds: kube::Api<CustomResourceDefinition> = kube::Api::all(stage.proxied.clone());
    let crd = crds.get(&stage.widgets.crd_name()).await.unwrap();
    let trim = |crd: &mut CustomResourceDefinition| {
        crd.status.get_or_insert_default().stored_versions = Some(vec!["v1alpha1".to_owned()]);
    };
    let label = |crd: &mut CustomResourceDefinition| {
        crd.metadata
            .labels
            .get_or_insert_default()
            .insert("a".into(), "b".into());
    };
    let newer = stage.writer.patch(&crds, &crd, label).await.unwrap().object;
    let error = stage
        .writer
        .patch_status_locked(&crds, &crd, trim)
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Conflict);
    let trimmed = stage
        .writer
        .patch_status_locked(&crds, &newer, trim)
        .await
        .unwrap()
        .object;
    assert_eq!(
        trimmed.status.unwrap().stored_versions,
        Some(vec!["v1alpha1".to_owned()])
    );
}

#[tokio::test]
async fn a_status_with_one_writer_at_a_time_is_locked_even_for_scalars() {
    let stage = Stage::set("status-retry").await;
    let old = stage.widget("w").await;
    let set = |phase: &'static str| move |w: &mut super::Widget| w.status_mut().phase = Some(phase.into());
    stage
        .writer
        .patch_status_with_retry(&stage.api(), &old, set("Successor"))
        .await
        .unwrap();
    // What was decided on an old read is refused, and started over only if the writer still may.
    let error = stage
        .writer
        .once()
        .patch_status_with_retry(&stage.api(), &old, set("Former"))
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Conflict, "{error}");
    let asked = std::sync::atomic::AtomicU32::new(0);
    let deposed = stage.writer.clone().gate(move |_| {
        let first = asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
        first.then_some(()).ok_or_else(|| "deposed".to_owned())
    });
    let error = deposed
        .patch_status_with_retry(&stage.api(), &old, set("Former"))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), "GateClosed", "{error}");
    assert_eq!(stage.live("w").await["status"]["phase"], "Successor");

    let written = stage
        .writer
        .patch_status_with_retry(&stage.api(), &old, set("Leader"))
        .await
        .unwrap();
    assert_eq!(written.object.status.unwrap().phase.as_deref(), Some("Leader"));
}
