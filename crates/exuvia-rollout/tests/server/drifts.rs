//! The local verdict on drift against the server's: it must say "no drift" exactly where a dry-run apply changes nothing.

use std::collections::BTreeMap;

use exuvia_rollout::{Drift, Intent, Names, Stamps};
use exuvia_write::{Apply, Writer};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams, TypeMeta};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

use super::{Stage, corpus::corpus, writer};

const MANAGER: &str = "mcp-runner";

/// One step to a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Member(String),
    Element(usize),
}

type Path = Vec<Step>;

fn shown(path: &[Step]) -> String {
    let words = path.iter().map(|step| match step {
        Step::Member(key) => format!("/{key}"),
        Step::Element(index) => format!("/{index}"),
    });
    words.collect()
}

/// One object, and the two who may say whether an apply would change it.
struct Subject {
    api: Api<DynamicObject>,
    writer: Writer,
    intent: Intent,
    /// With stamps, as it is applied.
    body: Value,
    name: String,
}

/// How many verdicts were compared, by what was done; the server refused the others.
#[derive(Debug, Default)]
struct Tally {
    compared: BTreeMap<&'static str, usize>,
    refused: usize,
    disagreements: Vec<String>,
    /// What was dropped inside of something atomic, and comes back as the server's default.
    defaulted: Vec<String>,
}

/// The only drops that the server makes undone, and does not count: our hash does. It costs one apply that moves the stamp.
const DEFAULTED: [&str; 2] = [
    "NetworkPolicy /spec/policyTypes/0",
    "RoleBinding /roleRef/apiGroup",
];

impl Subject {
    fn new(stage: &Stage, manifest: &Value) -> Self {
        let mut manifest = manifest.clone();
        manifest["metadata"]["namespace"] = json!(stage.namespace);
        let types: TypeMeta = serde_json::from_value(manifest.clone()).unwrap();
        let kind = GroupVersionKind::try_from(&types).unwrap();
        let resource = ApiResource::from_gvk(&kind);
        let intent = Intent::new(&manifest).unwrap();
        Self {
            api: Api::namespaced_with(stage.direct.clone(), &stage.namespace, &resource),
            writer: writer(MANAGER),
            body: intent.stamped(&Stamps::default(), &Names::default()),
            name: intent.name().to_owned(),
            intent,
        }
    }

    async fn apply(&self) -> Value {
        let applied: DynamicObject = self
            .writer
            .apply(&self.api, &self.body, &Apply::default().force())
            .await
            .unwrap();
        json!(applied)
    }

    /// Takes an edit back. Some edits make every later apply fail, so what was there before is put there.
    async fn restore(&self, before: &Value, stored: &Value) {
        let mut before = before.clone();
        before["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
        let before: DynamicObject = serde_json::from_value(before).unwrap();
        self.api
            .replace(&self.name, &PostParams::default(), &before)
            .await
            .unwrap();
        self.apply().await;
    }

    async fn live(&self) -> Value {
        json!(self.api.get(&self.name).await.unwrap())
    }

    /// What the server says: would an apply of `body` change the live object? `None`: it would refuse it.
    async fn would_change(&self, body: &Value, live: &Value) -> Option<bool> {
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::apply(MANAGER).force()
        };
        match self.api.patch(&self.name, &params, &Patch::Apply(body)).await {
            Ok(would_be) => Some(json!(would_be) != *live),
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 409 | 422 | 500) => None,
            Err(error) => panic!("{}: {error}", self.name),
        }
    }

    fn drift(intent: &Intent, live: &Value) -> Drift {
        intent.drift(live, MANAGER, &Names::default())
    }

    /// Compares the verdicts. All disagreements are told at the end, because each of them says something about the server.
    fn compare(&self, server: bool, drift: &Drift, what: &str, live: &Value, tally: &mut Tally) {
        let place = format!("{} {what}", self.intent.kind());
        let is_defaulted = !server && drift.other_intent && drift.edits.is_empty();
        if let Some(known) = DEFAULTED
            .iter()
            .find(|known| is_defaulted && place == known.replace(' ', " dropped "))
        {
            tally.defaulted.push((*known).to_owned());
        } else if drift.is_none() == server {
            let entries = &live["metadata"]["managedFields"];
            let kind = self.intent.kind();
            tally.disagreements.push(format!(
                "{kind} {what}: the server says {server}, we say {drift:?}; entries: {entries}"
            ));
        }
    }
}

/// Every leaf of what an apply can own, every member and element above them, and every list.
fn paths(value: &Value, at: &mut Path, leaves: &mut Vec<Path>, lists: &mut Vec<Path>) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (key, member) in members {
                let is_servers = at.is_empty() && matches!(key.as_str(), "apiVersion" | "kind")
                    || *at == [Step::Member("metadata".to_owned())]
                        && matches!(key.as_str(), "name" | "namespace");
                if !is_servers {
                    at.push(Step::Member(key.clone()));
                    paths(member, at, leaves, lists);
                    at.pop();
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            if items.len() > 1 {
                lists.push(at.clone());
            }
            for (index, item) in items.iter().enumerate() {
                at.push(Step::Element(index));
                paths(item, at, leaves, lists);
                at.pop();
            }
        }
        _ => leaves.push(at.clone()),
    }
}

fn at<'a>(value: &'a mut Value, path: &[Step]) -> Option<&'a mut Value> {
    path.iter().try_fold(value, |value, step| match step {
        Step::Member(key) => value.get_mut(key),
        Step::Element(index) => value.get_mut(index),
    })
}

fn remove(value: &mut Value, path: &[Step]) -> bool {
    let Some((last, parent)) = path.split_last() else {
        return false;
    };
    match (at(value, parent), last) {
        (Some(Value::Object(members)), Step::Member(key)) => members.remove(key).is_some(),
        (Some(Value::Array(items)), Step::Element(index)) if *index < items.len() => {
            items.remove(*index);
            true
        }
        _ => false,
    }
}

/// Other values of the same type, one of which the server may take.
fn others(value: &Value) -> Vec<Value> {
    match value {
        Value::Bool(value) => vec![json!(!value)],
        Value::Number(number) => vec![json!(number.as_i64().unwrap_or(0) + 1)],
        Value::String(text) => {
            let known = [
                "UDP",
                "3Gi",
                "Never",
                "Exists",
                "Exact",
                "Egress",
                "d2hv",
                "*/7 * * * *",
            ];
            let known = known
                .iter()
                .filter(|other| *other != text)
                .map(|other| json!(other));
            [json!(format!("{text}x"))].into_iter().chain(known).collect()
        }
        Value::Array(_) => vec![json!(["x"])],
        Value::Object(_) => vec![json!({"x": "y"})],
        Value::Null => Vec::new(),
    }
}

/// What can be done to an object at one place.
fn changes(object: &Value) -> Vec<(&'static str, String, Vec<Value>)> {
    let (mut leaves, mut lists) = (Vec::new(), Vec::new());
    paths(object, &mut Vec::new(), &mut leaves, &mut lists);
    let mut changes = Vec::new();
    for path in &leaves {
        let old = at(&mut object.clone(), path).cloned().unwrap();
        let mutated = others(&old).into_iter().map(|other| {
            let mut variant = object.clone();
            *at(&mut variant, path).unwrap() = other;
            variant
        });
        changes.push(("mutated", shown(path), mutated.collect()));
    }
    // Drops: each leaf, and each element of a list.
    let elements = leaves.iter().filter_map(|path| {
        let index = path.iter().rposition(|step| matches!(step, Step::Element(_)))?;
        Some(path[..=index].to_vec())
    });
    let mut drops: Vec<Path> = leaves.iter().cloned().chain(elements).collect();
    drops.sort();
    drops.dedup();
    for path in drops {
        let mut variant = object.clone();
        if remove(&mut variant, &path) {
            changes.push(("dropped", shown(&path), vec![variant]));
        }
    }
    for path in lists {
        let mut variant = object.clone();
        at(&mut variant, &path)
            .and_then(Value::as_array_mut)
            .unwrap()
            .reverse();
        changes.push(("reordered", shown(&path), vec![variant]));
    }
    changes
}

/// Another intent of ours against what is live.
async fn other_intents(subject: &Subject, tally: &mut Tally) {
    let live = subject.live().await;
    for (what, place, variants) in changes(subject.intent.body()) {
        let mut compared = false;
        for variant in variants {
            let Ok(intent) = Intent::new(&variant) else {
                continue;
            };
            // With the stamps of the old one, or the hash alone would make the difference for the server.
            let mut body = variant;
            let annotations = &mut body["metadata"]["annotations"];
            annotations["exuvia.dev/intent-hash"] = json!(subject.intent.hash());
            if let Some(server) = subject.would_change(&body, &live).await {
                let drift = Subject::drift(&intent, &live);
                subject.compare(server, &drift, &format!("{what} {place}"), &live, tally);
                compared = true;
                break;
            }
        }
        if compared {
            *tally.compared.entry(what).or_default() += 1;
        } else {
            tally.refused += 1;
        }
    }
}

/// What is live, edited by somebody else, against our intent.
async fn foreign_edits(subject: &Subject, tally: &mut Tally) {
    let params = PostParams {
        field_manager: Some("somebody".to_owned()),
        ..PostParams::default()
    };
    for (what, place, variants) in changes(&subject.body) {
        // What was done to the intent is done to the live object: where we did not ask for it, it stays.
        let mut compared = false;
        for variant in variants {
            let live = subject.live().await;
            let edited = transplanted(&subject.body, &variant, &live);
            let Ok(edited) = serde_json::from_value::<DynamicObject>(edited) else {
                continue;
            };
            let Ok(stored) = subject.api.replace(&subject.name, &params, &edited).await else {
                continue;
            };
            let stored = json!(stored);
            if let Some(server) = subject.would_change(&subject.body, &stored).await {
                let drift = Subject::drift(&subject.intent, &stored);
                subject.compare(server, &drift, &format!("live {what} {place}"), &stored, tally);
                compared = true;
            }
            subject.restore(&live, &stored).await;
            break;
        }
        if compared {
            *tally.compared.entry(what).or_default() += 1;
        } else {
            tally.refused += 1;
        }
    }
}

/// `live` with the difference between `before` and `after`. Lists have the same elements at the same places.
fn transplanted(before: &Value, after: &Value, live: &Value) -> Value {
    match (before, after, live) {
        (Value::Object(before), Value::Object(after), Value::Object(live)) => {
            let mut result = live.clone();
            for (key, old) in before {
                match (after.get(key), live.get(key)) {
                    (None, _) => drop(result.remove(key)),
                    (Some(new), _) if new == old => {}
                    (Some(new), None) => drop(result.insert(key.clone(), new.clone())),
                    (Some(new), Some(live)) => {
                        result.insert(key.clone(), transplanted(old, new, live));
                    }
                }
            }
            Value::Object(result)
        }
        (Value::Array(before), Value::Array(after), Value::Array(live)) if before.len() == live.len() => {
            if before.len() == after.len() && !is_permuted(before, after) {
                let zipped = before.iter().zip(after).zip(live);
                return zipped
                    .map(|((before, after), live)| transplanted(before, after, live))
                    .collect();
            }
            // Dropped or reordered: each is where it was before.
            let from = |element: &Value| before.iter().position(|before| before == element);
            after
                .iter()
                .filter_map(|element| Some(live[from(element)?].clone()))
                .collect()
        }
        _ => after.clone(),
    }
}

fn is_permuted(before: &[Value], after: &[Value]) -> bool {
    before.len() > 1 && before.iter().all(|element| after.contains(element))
}

#[tokio::test]
async fn the_local_verdict_is_the_servers_for_every_mutation_drop_and_reorder_of_every_kind() {
    let stage = Stage::set("drift-corpus").await;
    let mut tally = Tally::default();
    let manifests = corpus();
    assert!(manifests.len() >= 11);
    for manifest in &manifests {
        let subject = Subject::new(&stage, manifest);
        subject.apply().await;
        let live = subject.live().await;
        let drift = Subject::drift(&subject.intent, &live);
        assert_eq!(subject.would_change(&subject.body, &live).await, Some(false));
        subject.compare(false, &drift, "as applied", &live, &mut tally);
        other_intents(&subject, &mut tally).await;
        foreign_edits(&subject, &mut tally).await;
    }
    let Tally {
        compared, refused, ..
    } = &tally;
    println!(
        "{} kinds: {compared:?}, {refused} refused by the server",
        manifests.len()
    );
    tally.defaulted.sort();
    assert_eq!(tally.defaulted, DEFAULTED);
    let found = tally.disagreements.len();
    assert!(
        found == 0,
        "{found} disagreements:\n{}",
        tally.disagreements.join("\n")
    );
    let compared = |what: &str| tally.compared.get(what).copied().unwrap_or_default();
    assert!(
        compared("mutated") >= 300 && compared("dropped") >= 300 && compared("reordered") >= 40,
        "{tally:?}"
    );
}
