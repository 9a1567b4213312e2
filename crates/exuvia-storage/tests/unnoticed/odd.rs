//! Odd but legal clusters without a conversion webhook: does every apply answer as before, and is every value still there?

use std::collections::BTreeMap;

use exuvia_storage::End;
use exuvia_testenv::webhook::{Admission, Endpoint};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::odd_webhook::text;
use crate::{Bench, managers, spec_of};

/// What an apply without force comes to: the spec and status as they would be, or who stands in the way.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    Taken(Value),
    Conflict(Vec<String>),
    Failed(u16, String),
}

impl Bench {
    pub(crate) async fn tried(&self, version: &str, manager: &str, data: Value) -> Answer {
        let intent = self.intent(version, "a", data);
        let api = self.widgets.api(&self.client, version);
        let params = PatchParams::apply(manager).dry_run();
        match api.patch("a", &params, &Patch::Apply(&intent)).await {
            Ok(object) => Answer::Taken(object.data),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let causes = status.details.unwrap().causes;
                let mut with: Vec<String> = causes
                    .iter()
                    .map(|cause| cause.message.split(" using ").next().unwrap().to_owned())
                    .collect();
                with.sort();
                with.dedup();
                Answer::Conflict(with)
            }
            Err(kube::Error::Api(status)) => Answer::Failed(status.code, status.message.clone()),
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) async fn tried_all(&self, tries: &[(&str, &str, Value)]) -> Vec<Answer> {
        let mut answers = Vec::new();
        for (version, manager, data) in tries {
            answers.push(self.tried(version, manager, data.clone()).await);
        }
        answers
    }

    /// Owned fields by manager, operation and subresource.
    pub(crate) async fn owned(&self) -> BTreeMap<String, Value> {
        let entries = self.live("a").await.metadata.managed_fields.unwrap_or_default();
        let one = |entry: k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry| {
            let id = format!(
                "{}/{}/{}@{}",
                entry.manager.unwrap_or_default(),
                entry.operation.unwrap_or_default(),
                entry.subresource.unwrap_or_default(),
                entry
                    .api_version
                    .unwrap_or_default()
                    .rsplit('/')
                    .next()
                    .unwrap_or_default()
            );
            (id, entry.fields_v1.map_or(Value::Null, |fields| fields.0))
        };
        entries.into_iter().map(one).collect()
    }
}

/// Asks, migrates, asks again: what answers otherwise.
pub(crate) async fn differences(bench: &Bench, tries: &[(&str, &str, Value)]) -> Vec<String> {
    let before = bench.tried_all(tries).await;
    let owned_before = bench.owned().await;
    let shown_before = bench.live("a").await.data;
    let report = bench.migrate().await;
    eprintln!(
        "end {:?} rewritten {:?} lost {} {:?} owned {} unmoved {} {:?} losses {:?}",
        report.end,
        report.rewrite,
        report.lost_owners,
        report.lost_owners_example,
        report.owned,
        report.unmoved,
        report.unmoved_example,
        report.losses
    );
    assert_eq!(report.end, End::Migrated, "{report:?}");
    let owned_after = bench.owned().await;
    for (id, fields) in &owned_before {
        eprintln!("before {id}: {fields}");
    }
    for (id, fields) in &owned_after {
        eprintln!("after  {id}: {fields}");
    }
    let after = bench.tried_all(tries).await;
    let mut found = Vec::new();
    let mut shown_after = bench.live("a").await.data;
    if shown_before["spec"]["interval"].is_null() {
        shown_after["spec"].as_object_mut().unwrap().remove("interval");
    }
    if shown_before != shown_after {
        eprintln!("content: was {shown_before} is {shown_after}");
    }
    for (at, (was, is)) in before.iter().zip(&after).enumerate() {
        if was == is {
            eprintln!("same {:?}: {was:?}", tries[at]);
        } else {
            found.push(format!("{:?}:\n   was {was:?}\n   is  {is:?}", tries[at]));
        }
    }
    found
}

/// `&`, `<` and `>` are escaped in a path element of managedFields, and not in the object.
#[tokio::test]
async fn an_item_whose_key_has_an_ampersand_keeps_the_owner_of_its_reference() {
    let list = |atomic: bool| {
        let mut inner = json!({"type": "object", "properties": {"name": text(), "kind": text()}});
        if atomic {
            inner["x-kubernetes-map-type"] = json!("atomic");
        }
        json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["url"],
               "items": {"type": "object", "required": ["url"], "properties": {"url": text(), "ref": inner}}})
    };
    let bench = Bench::installed("ampersand", |crd| {
        spec_of(crd, 0)["properties"]["links"] = list(true);
        spec_of(crd, 1)["properties"]["links"] = list(false);
    })
    .await;
    let url = "https://example.com/?a=1&b=2";
    let links = |name: &str| json!({"spec": {"links": [{"url": url, "ref": {"name": name, "kind": "k"}}]}});
    bench.apply("v1alpha1", "flux", "a", links("mine")).await;
    bench.flip().await;
    let wrong = differences(&bench, &[("v1", "intruder", links("other"))]).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The server keeps ten entries of updates and unites the oldest in `ancient-changes`: our own entry is one too many.
#[tokio::test]
async fn ten_updaters_and_a_webhook_that_completes_objects_stay_ten_updaters() {
    let bench = Bench::installed("tenupdaters", |_| {}).await;
    bench
        .create("v1alpha1", "updater-0", "a", json!({"spec": {"size": 1}}))
        .await;
    let api = bench.widgets.api(&bench.client, "v1alpha1");
    for number in 1..10 {
        let by = PatchParams {
            field_manager: Some(format!("updater-{number}")),
            ..PatchParams::default()
        };
        let part = json!({"spec": {"parts": {format!("p{number}"): "x"}}});
        api.patch("a", &by, &Patch::Merge(part)).await.unwrap();
    }
    let hooks = bench.control_plane.webhooks().await.unwrap();
    hooks.on_mutate(Admission::by(|request| {
        if request["object"]["spec"]["color"].is_null() {
            Admission::Mutate(json!([{"op": "add", "path": "/spec/color", "value": "red"}]))
        } else {
            Admission::Allow
        }
    }));
    crate::defaults::mutated_by(&hooks, &bench).await;
    bench.flip().await;
    let before = managers(&bench.live("a").await);
    assert_eq!(before.len(), 10);
    let report = bench.migrate().await;
    let after = managers(&bench.live("a").await);
    let names = |of: &std::collections::BTreeSet<(String, String)>| {
        of.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    assert!(hooks.calls(Endpoint::Mutate) > 0);
    assert_eq!((names(&after), report.lost_owners), (names(&before), 0));
}

async fn duplicates(group: &str, to: Value, value: Value, default: bool) {
    let mut from = to.clone();
    for key in ["x-kubernetes-list-type", "x-kubernetes-list-map-keys"] {
        from.as_object_mut().unwrap().remove(key);
    }
    from["items"].as_object_mut().unwrap().remove("required");
    let bench = Bench::installed(group, |crd| {
        spec_of(crd, 0)["properties"]["list"] = from;
        spec_of(crd, 1)["properties"]["list"] = to;
        if default {
            spec_of(crd, 1)["properties"]["interval"] = json!({"type": "string", "default": "10m"});
        }
    })
    .await;
    bench
        .apply(
            "v1alpha1",
            "flux",
            "a",
            json!({"spec": {"size": 1, "list": value}}),
        )
        .await;
    bench.flip().await;
    assert_named_before(&bench, "spec.list (type array with").await;
}

/// What would make every apply at the old version answer 500 afterwards is named, and nothing is written.
pub(crate) async fn assert_named_before(bench: &Bench, what: &str) {
    let report = bench.migrate().await;
    let End::Stalled { reason, message } = &report.end else {
        panic!("{report:?}");
    };
    assert_eq!(*reason, "Pruning");
    assert!(
        message.contains(what) && message.contains("must be unique"),
        "{message}"
    );
    assert_eq!(report.rewrite.done(), 0);
    let old = format!("{}/v1alpha1", bench.widgets.group());
    assert!(bench.stored().await.iter().all(|stored| *stored == old));
}

#[tokio::test]
async fn an_item_that_is_twice_in_a_list_which_becomes_a_set_is_named_before_anything_is_written() {
    let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": text()});
    duplicates("twiceinset", set, json!(["x", "x", "y"]), false).await;
}

#[tokio::test]
async fn a_key_that_is_twice_in_a_list_which_becomes_a_map_is_named_before_anything_is_written() {
    let by_name = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "required": ["name"], "properties": {"name": text(), "n": {"type": "integer"}}}});
    let value = json!([{"name": "x", "n": 1}, {"name": "x", "n": 2}]);
    duplicates("twiceinmap", by_name, value, true).await;
}

/// It cannot be written at the storage version, which is said; nothing is trimmed.
#[tokio::test]
async fn an_item_without_the_key_that_the_storage_version_wants_holds_the_migration() {
    let items = json!({"type": "object", "properties": {"name": text(), "n": {"type": "integer"}}});
    let bench = Bench::installed("keyless", |crd| {
        spec_of(crd, 0)["properties"]["list"] = json!({"type": "array", "items": items});
        let mut required = items.clone();
        required["required"] = json!(["name"]);
        spec_of(crd, 1)["properties"]["list"] = json!({"type": "array", "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"], "items": required});
    })
    .await;
    bench
        .apply("v1alpha1", "flux", "a", json!({"spec": {"list": [{"n": 1}]}}))
        .await;
    bench.flip().await;
    let report = bench.migrate().await;
    assert!(
        matches!(
            report.end,
            End::Stalled {
                reason: "Failures",
                ..
            }
        ),
        "{report:?}"
    );
    assert_eq!(report.stored_after, ["v1alpha1", "v1"]);
}

fn map(atomic: bool) -> Value {
    let mut map = json!({"type": "object", "additionalProperties": text()});
    if atomic {
        map["x-kubernetes-map-type"] = json!("atomic");
    }
    map
}

/// Taken apart, the owner of a large map needs more room than there is; the server then stores the object without owners.
#[tokio::test]
async fn a_large_atomic_map_that_is_taken_apart_keeps_its_owner() {
    let bench = Bench::installed("largemap", |crd| {
        spec_of(crd, 0)["properties"]["data"] = map(true);
        spec_of(crd, 1)["properties"]["data"] = map(false);
    })
    .await;
    let data: serde_json::Map<String, Value> = (0..30_000)
        .map(|n| (format!("key-{n:09}"), json!("value-0123456")))
        .collect();
    bench
        .apply(
            "v1alpha1",
            "flux",
            "a",
            json!({"spec": {"size": 1, "data": data}}),
        )
        .await;
    bench.flip().await;
    let report = bench.migrate().await;
    eprintln!(
        "{:?} lost {} unmoved {} {:?} {:?}",
        report.end, report.lost_owners, report.unmoved, report.unmoved_example, report.failures
    );
    let owned: Vec<String> = bench.owned().await.into_keys().collect();
    assert!(owned.iter().any(|id| id.starts_with("flux/")), "{owned:?}");
}

/// The version whose schema tells what the entry means is gone: it is moved as it is, so that apply works again.
#[tokio::test]
async fn after_the_drop_who_owned_a_map_as_a_whole_does_not_own_its_keys() {
    let bench = Bench::installed("gonewhole", |crd| {
        spec_of(crd, 0)["properties"]["data"] = map(true);
        spec_of(crd, 1)["properties"]["data"] = map(false);
    })
    .await;
    let spec = json!({"spec": {"size": 1, "data": {"k": "v"}}});
    bench.apply("v1alpha1", "flux", "a", spec).await;
    bench.flip().await;
    let intruder = json!({"spec": {"data": {"k": "other"}}});
    let before = bench.tried("v1", "intruder", intruder.clone()).await;
    assert!(matches!(before, Answer::Conflict(_)), "{before:?}");
    bench.drop_old_version(&intruder).await;

    let report = bench.migrate().await;
    assert_eq!((&report.end, report.unmoved), (&End::Migrated, 0), "{report:?}");
    let entry = json!({"f:spec": {"f:data": {}, "f:size": {}}});
    assert_eq!(bench.owned().await, [("flux/Apply/@v1".to_owned(), entry)].into());
    let after = bench.tried("v1", "intruder", intruder).await;
    assert!(matches!(after, Answer::Taken(_)), "{after:?}");
}
