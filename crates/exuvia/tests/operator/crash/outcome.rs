//! What a migration leaves behind and what each write of it is, so that two runs can be compared.

use std::collections::BTreeMap;

use exuvia_api::StorageMigration;
use exuvia_testenv::Widgets;
use exuvia_testenv::crash::Lane;
use exuvia_testenv::proxy::Recorded;
use kube::Api;
use serde_json::{Value, json};

use super::OBJECTS;
use crate::harness::*;

/// What an undisturbed run must come to.
pub(super) fn check_clean(end: &Value) {
    let objects = end["objects"].as_array().unwrap();
    assert_eq!(objects.len(), OBJECTS);
    for object in objects {
        assert_eq!(object["stored"]["apiVersion"], "example.com/v1");
        assert_eq!(object["writes"], 2, "made and rewritten");
    }
    let status = &end["status"];
    let said = [
        &status["phase"],
        &status["blockers"][0]["version"],
        &status["storedVersions"]["after"][0],
        &status["progress"]["total"],
        &status["pass"]["patrolled"],
    ];
    assert_eq!(json!(said), json!(["Migrated", "v1alpha1", "v1", 12, true]));
    assert_eq!(end["storedVersions"], json!(["v1"]));
}

/// All that a migration leaves behind.
pub(super) async fn end(lane: &Lane, widgets: &Widgets) -> Value {
    let stored = lane
        .control_plane
        .stored(widgets.group(), "widgets")
        .all()
        .await
        .unwrap();
    let objects = stored
        .iter()
        .map(|object| json!({"writes": object.version, "stored": object.json()}));
    let migrations: Api<StorageMigration> = Api::all(lane.client.clone());
    let migration = migrations.get(&widgets.crd_name()).await.unwrap();
    let mut status = serde_json::to_value(migration.status).unwrap();
    // The operator that goes on after a crash cannot know which of those above R0 the dead one rewrote.
    let progress = &mut status["progress"];
    let done =
        progress["rewritten"].as_u64().unwrap_or_default() + progress["current"].as_u64().unwrap_or_default();
    (progress["rewritten"], progress["current"]) = (Value::Null, json!(done));
    let mut told: BTreeMap<String, usize> = BTreeMap::new();
    for event in events_about(&lane.client, &widgets.crd_name()).await {
        let about = event.regarding.unwrap_or_default().kind;
        let text = [about, event.type_, event.reason, event.note]
            .map(Option::unwrap_or_default)
            .join(" ");
        *told.entry(text).or_default() += 1;
    }
    let mut end = json!({
        "objects": objects.collect::<Vec<Value>>(),
        "storedVersions": stored_versions(&lane.client, widgets).await,
        "status": status,
        "events": told,
    });
    make_comparable(&mut end);
    serde_json::from_str(&end.to_string().replace(widgets.group(), "example.com")).unwrap()
}

/// Takes out what no two runs share: uids, times, and what revisions were.
fn make_comparable(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|key, _| {
                ![
                    "uid",
                    "creationTimestamp",
                    "time",
                    "lastTransitionTime",
                    "lookedAt",
                ]
                .contains(&key.as_str())
            });
            for (key, member) in members {
                if [
                    "settledResourceVersion",
                    "settledAt",
                    "verifiedResourceVersion",
                    "trimmedAt",
                ]
                .contains(&key.as_str())
                    && member.is_string()
                {
                    *member = json!("some");
                }
                make_comparable(member);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(make_comparable),
        _ => {}
    }
}

/// What a write is, by what is the same in all runs.
pub(super) fn kind(write: &Recorded) -> String {
    let Some(object) = write.object() else {
        return write.path.clone();
    };
    let body = write.json();
    let purpose = match object.resource {
        // A rewrite moves managedFields entries, or is empty without entries to move; a verification has only a lock.
        "widgets" if body["metadata"]["managedFields"].is_null() && body != json!({}) => "verify",
        "widgets" => "rewrite",
        "storagemigrations" => body["status"]["phase"].as_str().unwrap_or_default(),
        "events" => body["reason"].as_str().unwrap_or_default(),
        _ => "",
    };
    let dry_run = if is_dry_run(write) { "dry-run" } else { "" };
    let words = [
        dry_run,
        write.method.as_str(),
        object.resource,
        object.version,
        object.subresource,
        purpose,
    ];
    words
        .into_iter()
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

fn is_dry_run(write: &Recorded) -> bool {
    write.query.contains("dryRun=All")
}

/// Objects whose rewrite the server answered more than once.
pub(super) fn asked_twice(writes: &[Recorded]) -> Vec<String> {
    let mut answered: BTreeMap<&str, usize> = BTreeMap::new();
    let is_rewrite = |write: &&Recorded| kind(write).ends_with("rewrite") && !is_dry_run(write);
    let rewrites = writes
        .iter()
        .filter(is_rewrite)
        .filter(|write| write.upstream == Some(200));
    rewrites.for_each(|write| *answered.entry(&write.path).or_default() += 1);
    let twice = answered.into_iter().filter(|(_, times)| *times > 1);
    twice.map(|(path, _)| path.to_owned()).collect()
}
