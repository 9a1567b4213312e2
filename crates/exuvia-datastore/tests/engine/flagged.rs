//! Flags that tell controllers to stop, alone and beside policies, and what is left of them in the end.

use exuvia_api::{DatastorePhase, RETIRED_ANNOTATION, RETIRED_FLAGS_ANNOTATION};
use exuvia_datastore::freeze;
use exuvia_datastore::protocol::{Hold, NextStep, Step};
use exuvia_runtime::machine::{Ended, Machine};
use exuvia_testenv::until;
use exuvia_write::Writer;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::{Stage, control_plane, up_to};

fn flag(stage: &Stage, side: &str) -> Value {
    json!({
        "group": "", "version": "v1", "kind": "ConfigMap", "namespace": stage.name, "name": "switch",
        "path": "data.paused", "frozen": "yes", "side": side,
    })
}

async fn paused(stage: &Stage) -> Option<String> {
    let map = stage.config_maps().get("switch").await.unwrap();
    map.data.unwrap_or_default().get("paused").cloned()
}

/// The migration is gone, and with it its status: what it knew of the flags is where the thaw finds it.
#[tokio::test]
async fn a_flag_of_a_source_that_stays_frozen_gets_its_value_back_with_the_thaw() {
    let stage = Stage::new("keptflag", 1).await;
    stage
        .config_map("switch", &[], json!({"paused": "not today"}))
        .await;
    let mut spec = stage.spec();
    spec["freeze"]["flags"] = json!([flag(&stage, "Source")]);
    assert_eq!(stage.run(spec).await, Ended::Done);
    assert_eq!(stage.delete().await, Ended::Done);
    assert!(stage.migrations().get_opt(&stage.name).await.unwrap().is_none());
    assert_eq!(
        paused(&stage).await.as_deref(),
        Some("yes"),
        "the source stays frozen"
    );
    let removed = freeze::thaw(&stage.client, &Writer::named("exuvia"), &stage.name).await;
    assert_eq!(removed.unwrap(), 2, "policy and binding");
    assert_eq!(paused(&stage).await.as_deref(), Some("not today"));
    stage.thawed().await;
}

/// By somebody who may do nothing with policies, and on a server that need not have any.
#[tokio::test]
async fn without_policies_flags_are_the_freeze_and_no_right_to_policies_is_needed() {
    let stage = Stage::new("flagsonly", 2).await;
    stage.config_map("switch", &[], json!({})).await;
    let rules = json!([
        {"apiGroups": ["exuvia.dev"], "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": [stage.old.group(), stage.new.group()], "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"], "resourceNames": ["switch"]},
        {"apiGroups": [""], "resources": ["resourcequotas"], "verbs": ["list"]},
    ]);
    let us = control_plane().await.user_with_rules("flags-only", &rules).await;
    let client = us.unwrap().client().unwrap();
    let sources = stage.old.api(&client, "v1");
    until("the rights are in force", async || {
        sources.list(&ListParams::default()).await.is_ok()
    })
    .await;
    let mut spec = stage.spec();
    spec["freeze"] = json!({"admission": false, "drain": "100ms", "flags": [flag(&stage, "Source")]});
    spec["references"] = json!({"dependents": "None"});
    let migration = stage.migration(spec).await;
    let mut engine = stage.engine_by(&client, &migration);
    up_to(&mut engine, Step::Copy).await;
    assert_eq!(paused(&stage).await.as_deref(), Some("yes"));
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert_eq!(stage.phase().await, DatastorePhase::Complete);
    assert_eq!(stage.all(&stage.new).await.len(), 2);
    assert_eq!(stage.policies(&migration.uid().unwrap()).await, 0);
    // KeepFrozen: no policy can say what the flag was, so its object does.
    stage
        .migrations()
        .delete(&stage.name, &DeleteParams::default())
        .await
        .unwrap();
    let mut another = stage.engine_by(&client, &migration);
    assert_eq!(stage.drive(&mut another).await, Ended::Done);
    assert!(stage.migrations().get_opt(&stage.name).await.unwrap().is_none());
    let map = stage.config_maps().get("switch").await.unwrap();
    assert_eq!(map.data.clone().unwrap()["paused"], "yes");
    assert_eq!(map.annotations()[RETIRED_ANNOTATION], stage.name);
    let noted: Value = serde_json::from_str(&map.annotations()[RETIRED_FLAGS_ANNOTATION]).unwrap();
    assert_eq!(noted[0]["flag"]["path"], "data.paused");
    assert_eq!(noted[0]["saved"].get("value"), None, "it was absent");
}

/// The pause after an undo is on record: a process that follows waits as well.
#[tokio::test]
async fn another_process_waits_as_long_after_an_undo() {
    let stage = Stage::new("pause", 1).await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Start).await;
    stage.create(&stage.new, "w0", json!({"color": "green"})).await;
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Conflicts));
    let status = stage.read().await.status.unwrap();
    assert!(status.not_before.is_some(), "{status:?}");
    // On a busy machine the few seconds are soon over.
    let later = (Timestamp::now() + SignedDuration::from_hours(1)).to_string();
    let patch = json!({"status": {"notBefore": later}});
    stage
        .migrations()
        .patch_status(&stage.name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
    stage
        .api(&stage.new)
        .delete("w0", &DeleteParams::default())
        .await
        .unwrap();
    let mut another = stage.engine(&migration);
    let pause = until("it waits", async || {
        match another.next().await.map_err(|error| error.to_string())? {
            NextStep::Wait(time) => return Ok(time),
            NextStep::Do(Step::Start) => panic!("it freezes again at once"),
            NextStep::Do(step) => drop(another.carry_out(step).await.map_err(|error| error.to_string())?),
            other => panic!("{other:?}"),
        }
        Err("on its way".to_owned())
    })
    .await;
    assert!(pause.as_secs() > 1800, "{pause:?}");
    assert_eq!(stage.policies(&migration.uid().unwrap()).await, 0);
    // Somebody who asks for it does not wait.
    let patch = json!({"status": {"notBefore": null}});
    stage
        .migrations()
        .patch_status(&stage.name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
    assert_eq!(stage.drive(&mut another).await, Ended::Done);
    assert_eq!(stage.read().await.status.unwrap().not_before, None);
}
