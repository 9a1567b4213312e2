//! What a run of the crash matrix came to: what it wrote and what it left behind, so that two runs can be compared.

use std::collections::{BTreeMap, BTreeSet};

use exuvia_api::StorageMigration;
use exuvia_testenv::Widgets;
use exuvia_testenv::proxy::Recorded;
use kube::Api;
use serde_json::{Value, json};

use super::{Lane, OBJECTS};
use crate::harness::*;

/// What a run came to.
#[derive(Clone)]
pub(super) struct Outcome {
    /// The write that a mishap struck, by its kind.
    pub(super) struck: Option<String>,
    /// The kind of each write, in the order of arrival.
    pub(super) writes: Vec<String>,
    /// All that is left behind, leaf by leaf.
    end: BTreeMap<String, String>,
    /// Objects whose rewrite the server answered more than once.
    asked_twice: Vec<String>,
}

impl Outcome {
    /// Looks at everything, when the operator has ended.
    pub(super) async fn of(
        lane: &Lane,
        widgets: &Widgets,
        struck: Option<String>,
        writes: Vec<Recorded>,
    ) -> Self {
        Self {
            struck,
            asked_twice: asked_twice(&writes),
            writes: writes.iter().map(kind).collect(),
            end: end(lane, widgets).await,
        }
    }

    /// What an undisturbed run must come to, so that "as an undisturbed run" says something.
    pub(super) fn check(&self) {
        let leaf = |path: &str| self.end.get(path).map_or("", String::as_str);
        for index in 0..OBJECTS {
            assert_eq!(
                leaf(&format!("/objects/{index}/stored/apiVersion")),
                "example.com/v1"
            );
            assert_eq!(
                leaf(&format!("/objects/{index}/writes")),
                "2",
                "made and rewritten"
            );
        }
        assert_eq!(leaf(&format!("/objects/{OBJECTS}/writes")), "");
        let said = [
            "phase",
            "blockers/0/version",
            "storedVersions/after/0",
            "progress/total",
            "pass/patrolled",
        ];
        let said = said.map(|path| leaf(&format!("/status/{path}")));
        assert_eq!(said, ["Migrated", "v1alpha1", "v1", "12", "true"]);
        assert_eq!((leaf("/storedVersions/0"), leaf("/storedVersions/1")), ("v1", ""));
        assert_eq!(self.asked_twice, [] as [&str; 0]);
    }

    pub(super) fn differences(&self, reference: &Self) -> Vec<String> {
        let paths: BTreeSet<&String> = self.end.keys().chain(reference.end.keys()).collect();
        let differ = paths
            .into_iter()
            .filter(|path| self.end.get(*path) != reference.end.get(*path));
        let twice = self
            .asked_twice
            .iter()
            .map(|name| format!("{name} was asked to be rewritten twice"));
        let ends = differ.map(|path| {
            format!(
                "{path} is {:?} instead of {:?}",
                self.end.get(path),
                reference.end.get(path)
            )
        });
        ends.chain(twice).collect()
    }
}

/// All that a migration leaves behind.
async fn end(lane: &Lane, widgets: &Widgets) -> BTreeMap<String, String> {
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
    // Who goes on after a crash cannot know which of those above R0 the dead one rewrote.
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
    let end = json!({
        "objects": objects.collect::<Vec<Value>>(),
        "storedVersions": stored_versions(&lane.client, widgets).await,
        "status": status,
        "events": told,
    });
    let mut leaves = BTreeMap::new();
    add_leaves(&end, "", &mut leaves);
    for leaf in leaves.values_mut() {
        *leaf = leaf.replace(widgets.group(), "example.com");
    }
    leaves
}

/// What a write is, by what is the same in all runs.
pub(super) fn kind(write: &Recorded) -> String {
    let Some(object) = write.object() else {
        return write.path.clone();
    };
    let body = write.json();
    let purpose = match object.resource {
        // A rewrite moves managedFields entries, or is empty where there is none to move; a verification has a lock alone.
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

fn asked_twice(writes: &[Recorded]) -> Vec<String> {
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

/// The leaves of a document by path, without what no two runs share: uids, times, and what revisions were.
fn add_leaves(value: &Value, path: &str, leaves: &mut BTreeMap<String, String>) {
    let add = |leaves: &mut BTreeMap<String, String>, leaf: String| leaves.insert(path.to_owned(), leaf);
    match (path.rsplit('/').next().unwrap_or_default(), value) {
        ("uid" | "creationTimestamp" | "time" | "lastTransitionTime", _) => {}
        ("r0" | "r0At" | "r1" | "trimmedAt", Value::String(_)) => drop(add(leaves, "some".to_owned())),
        (_, Value::Object(members)) if !members.is_empty() => {
            members
                .iter()
                .for_each(|(key, member)| add_leaves(member, &format!("{path}/{key}"), leaves));
        }
        (_, Value::Array(items)) if !items.is_empty() => {
            let items = items.iter().enumerate();
            items.for_each(|(index, item)| add_leaves(item, &format!("{path}/{index}"), leaves));
        }
        (_, Value::String(text)) => drop(add(leaves, text.clone())),
        (_, leaf) => drop(add(leaves, leaf.to_string())),
    }
}
