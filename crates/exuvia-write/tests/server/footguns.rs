//! What the writer cannot save anybody from: each footgun of the crate's documentation, pinned.

use exuvia_write::ErrorClass;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::Stage;

/// A status patch of a scalar is not locked: the last writer wins, from however old a read.
#[tokio::test]
async fn a_differing_stale_scalar_overwrites() {
    let stage = Stage::set("foot-scalar").await;
    let snapshot = stage.widget("w").await;
    let (api, writer) = (stage.api(), &stage.writer);
    writer
        .patch_status(&api, &snapshot, |w| w.status_mut().phase = Some("New".into()))
        .await
        .unwrap();
    writer
        .patch_status(&api, &snapshot, |w| w.status_mut().phase = Some("Stale".into()))
        .await
        .unwrap();
    assert_eq!(stage.live("w").await["status"]["phase"], "Stale");
}

/// The status of an object that was deleted and created again is written as if it were the same one's.
#[tokio::test]
async fn an_unlocked_status_patch_hits_a_new_object_of_the_same_name() {
    let stage = Stage::set("foot-recreated").await;
    let old = stage.widget("w").await;
    stage.raw().delete("w", &DeleteParams::default()).await.unwrap();
    stage.widget("w").await;
    let hit = |w: &mut super::Widget| w.status_mut().phase = Some("OfTheOld".into());
    stage.writer.patch_status(&stage.api(), &old, hit).await.unwrap();
    assert_eq!(stage.live("w").await["status"]["phase"], "OfTheOld");
    let error = stage
        .writer
        .patch_status_locked(&stage.api(), &old, |w| w.status_mut().ready = Some(1))
        .await;
    assert_eq!(
        error.unwrap_err().class(),
        ErrorClass::Conflict,
        "the lock tells them apart"
    );
}

/// An array goes as a whole, so that what the type does not know of its elements is lost when the array changes.
#[tokio::test]
async fn an_unknown_field_within_an_array_is_lost_when_the_array_changes() {
    let stage = Stage::bare("foot-array").await;
    let mut crd = stage.widgets.crd("v1");
    for version in crd["spec"]["versions"].as_array_mut().unwrap() {
        let condition =
            &mut version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["conditions"];
        condition["items"]["properties"]["extra"] = json!({"type": "string"});
    }
    stage.widgets.install_crd(&stage.direct, crd).await.unwrap();
    stage.widget("w").await;
    let now = "2026-01-01T00:00:00Z";
    let theirs = json!({"type": "Theirs", "status": "True", "reason": "R", "message": "", "lastTransitionTime": now,
                        "extra": "kept?"});
    let patch = Patch::Merge(json!({"status": {"conditions": [theirs]}}));
    stage
        .raw()
        .patch_status("w", &PatchParams::default(), &patch)
        .await
        .unwrap();

    let add = |w: &mut super::Widget| {
        let ours = exuvia_write::conditions::new(w, "Ours", true, "R", "");
        exuvia_write::conditions::set(&mut w.status_mut().conditions, ours);
    };
    let typed = stage.read("w").await;
    stage
        .writer
        .patch_status(&stage.api(), &typed, add)
        .await
        .unwrap();
    let live = stage.live("w").await;
    assert_eq!(live["status"]["conditions"][0]["type"], "Theirs");
    assert_eq!(live["status"]["conditions"][0].get("extra"), None);

    // The way out: the same on an untyped object.
    stage
        .raw()
        .patch_status("w", &PatchParams::default(), &patch)
        .await
        .unwrap();
    let untyped = stage.raw().get("w").await.unwrap();
    stage
        .writer
        .patch_status(&stage.raw(), &untyped, |w| {
            let ours = exuvia_write::conditions::new(w, "Ours", true, "R", "");
            exuvia_write::conditions::set_in(&mut w.data, &ours);
        })
        .await
        .unwrap();
    assert_eq!(stage.live("w").await["status"]["conditions"][0]["extra"], "kept?");
}

/// A closure that assigns the list of conditions rather than to set its own erases everybody else's.
#[tokio::test]
async fn a_list_of_conditions_that_is_assigned_erases_the_others() {
    let stage = Stage::set("foot-assign").await;
    let widget = stage.widget("w").await;
    let (api, writer) = (stage.api(), &stage.writer);
    for type_ in ["A", "B"] {
        writer
            .patch_status(&api, &widget, |w| {
                let only = exuvia_write::conditions::new(w, type_, true, "R", "");
                w.status_mut().conditions = vec![only];
            })
            .await
            .unwrap();
    }
    let live = stage.live("w").await;
    assert_eq!(live["status"]["conditions"].as_array().unwrap().len(), 1);
}

/// A kind without a status subresource answers `/status` with the 404 that it has for an object that is gone. The writer
/// tells the two apart; a direct request to the server does not.
#[tokio::test]
async fn a_kind_without_a_status_subresource_is_not_an_object_that_is_gone() {
    let stage = Stage::bare("foot-plain").await;
    let mut crd = stage.widgets.crd("v1");
    for version in crd["spec"]["versions"].as_array_mut().unwrap() {
        version.as_object_mut().unwrap().remove("subresources");
    }
    stage.widgets.install_crd(&stage.direct, crd).await.unwrap();
    let widget = stage.widget("w").await;
    let set = |w: &mut super::Widget| w.status_mut().phase = Some("Ready".into());
    let error = stage
        .writer
        .patch_status(&stage.api(), &widget, set)
        .await
        .unwrap_err();
    assert_eq!(
        (error.class(), error.reason()),
        (ErrorClass::Fatal, "NoStatus"),
        "{error}"
    );
    let error = stage
        .writer
        .rewrite_through_status(&stage.api(), &widget.metadata)
        .await
        .unwrap_err();
    assert_eq!(error.reason(), "NoStatus", "never done by mistake: {error}");
    let patch = Patch::Merge(json!({}));
    let plain = stage
        .raw()
        .patch_status("w", &PatchParams::default(), &patch)
        .await
        .unwrap_err();
    assert_eq!(ErrorClass::of(&plain), ErrorClass::Gone, "what the server says");
    stage.writer.patch(&stage.api(), &widget, set).await.unwrap();
    assert_eq!(stage.live("w").await["status"]["phase"], "Ready");
}
