//! The engine is dropped at every write of a small migration, before the request is sent and after it is committed: another one
//! goes on, or undoes everything, and the end is always the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use exuvia_api::DatastorePhase;
use exuvia_runtime::machine::Ended;
use exuvia_testenv::aggregated::Aggregated;
use exuvia_testenv::proxy::{Fault, Match, Recorded, Rule};
use exuvia_testenv::{in_time, until};
use futures::StreamExt;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{Stage, control_plane, made, owned_by};

/// So many migrations run at a time.
const SLOTS: usize = 6;

/// Three objects, an owner and its dependent among them, two flags and a dependent that is not moved.
struct Slot {
    stage: Stage,
    mode: &'static str,
    /// Answers for the targets until the switch.
    backend: Option<Aggregated>,
}

impl Slot {
    async fn new(name: &str, mode: &'static str) -> Self {
        Self {
            stage: Stage::new(name, 0).await,
            mode,
            backend: None,
        }
    }

    /// One whose targets another API server answers for.
    async fn routed(name: &str) -> Self {
        let (stage, backend) = crate::routed::stage(name, 0).await;
        Self {
            stage,
            mode: "SyncThenFreeze",
            backend: Some(backend),
        }
    }

    fn spec(&self) -> Value {
        let flag = |path: &str, side: &str| {
            json!({
                "group": "", "version": "v1", "kind": "ConfigMap", "namespace": self.stage.name, "name": "switch",
                "path": path, "frozen": "yes", "thawed": "no", "side": side,
            })
        };
        let mut spec = self.stage.spec();
        spec["mode"] = json!(self.mode);
        spec["concurrency"] = json!(1);
        spec["mappings"][0]["status"] = json!("Copy");
        spec["freeze"] = json!({
            "drain": "100ms", "flags": [flag("data.paused", "Target"), flag("data.stopped", "Source")],
        });
        spec["cleanup"] = json!({"source": "Thaw"});
        if self.backend.is_some() {
            spec["cutover"] = json!({"apiService": format!("v1.{}", self.stage.new.group())});
        }
        spec
    }

    async fn set_up(&self) {
        let stage = &self.stage;
        if let Some(backend) = &self.backend {
            // So does the one that keeps APIServices away.
            until("the APIService can come back", async || {
                backend
                    .install(&stage.client)
                    .await
                    .map_err(|error| error.to_string())
            })
            .await;
        }
        stage.config_map("switch", &[], json!({"stopped": "yes"})).await;
        let mut root = stage.old.widget("v1", "root");
        root.metadata.namespace = Some(stage.name.clone());
        // A policy that is gone refuses for about a second more (PITFALLS D10).
        let root = until("the source is thawed", async || {
            stage.api(&stage.old).create(&PostParams::default(), &root).await
        })
        .await;
        let mut leaf = stage.old.widget("v1", "leaf");
        leaf.metadata.namespace = Some(stage.name.clone());
        leaf.metadata.owner_references = Some(vec![owned_by(&root)]);
        made(&stage.api(&stage.old), &leaf).await;
        stage.create_old("state", json!({"size": 3})).await;
        stage
            .merge_status(
                &stage.old,
                "state",
                json!({"status": {"ready": 3, "phase": "On"}}),
            )
            .await;
        // Somebody has put this one there already, equal.
        if self.backend.is_none() {
            until("the target is thawed", async || {
                let mut there = stage.new.widget("v1", "there");
                there.metadata.namespace = Some(stage.name.clone());
                stage.api(&stage.new).create(&PostParams::default(), &there).await
            })
            .await;
        }
        let mut there = stage.old.widget("v1", "there");
        there.metadata.namespace = Some(stage.name.clone());
        made(&stage.api(&stage.old), &there).await;
        stage
            .config_map("dependent", &[owned_by(&root)], json!({"kept": "yes"}))
            .await;
        stage.migration(self.spec()).await;
    }

    async fn tear_down(&self) {
        let (delete, all) = (DeleteParams::default(), ListParams::default());
        let stage = &self.stage;
        if self.backend.is_some() {
            crate::routed::leave(stage).await;
        }
        stage
            .config_maps()
            .delete_collection(&delete, &all)
            .await
            .unwrap();
        for widgets in [&stage.old, &stage.new] {
            until("the objects can be deleted", async || {
                stage.api(widgets).delete_collection(&delete, &all).await
            })
            .await;
        }
    }

    /// Everything that people see, without what differs from run to run.
    async fn seen(&self) -> Value {
        let stage = &self.stage;
        let config_maps: Vec<Value> = stage
            .config_maps()
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .iter()
            .map(|object| serde_json::to_value(object).unwrap())
            .collect();
        let mut uids = BTreeMap::new();
        let mut all = BTreeMap::new();
        for widgets in [&stage.old, &stage.new] {
            for object in stage.all(widgets).await {
                let place = format!("{} {}", widgets.group(), object.name_any());
                uids.insert(object.uid().unwrap(), place.clone());
                all.insert(place, serde_json::to_value(&object).unwrap());
            }
        }
        for object in config_maps {
            all.insert(format!("{}", object["metadata"]["name"]), object);
        }
        for object in all.values_mut() {
            same_in_each_run(object, &uids);
        }
        let migration = stage.migrations().get_opt(&stage.name).await.unwrap();
        let migration = migration.map(|migration| {
            let status = serde_json::to_value(migration.status.clone().unwrap_or_default()).unwrap();
            let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
            let conditions: Vec<Value> = conditions
                .iter()
                .map(|condition| json!([condition["type"], condition["status"], condition["reason"]]))
                .collect();
            json!({
                "finalizers": migration.metadata.finalizers, "phase": status["phase"], "undo": status["undo"],
                "progress": status["progress"], "conditions": conditions,
            })
        });
        let behind = match &self.backend {
            Some(_) => self.behind().await,
            None => Value::Null,
        };
        json!({"objects": all, "policies": self.policies().await, "migration": migration, "behind": behind})
    }

    /// The target CRD, and how many objects of it are stored, also while another server answers for them.
    async fn behind(&self) -> Value {
        let stage = &self.stage;
        let crds: Api<CustomResourceDefinition> = Api::all(stage.client.clone());
        let crd = crds.get(&stage.new.crd_name()).await.unwrap();
        let versions: Vec<String> = crd
            .spec
            .versions
            .into_iter()
            .map(|version| version.name)
            .collect();
        let stored = stage.new.stored_at(control_plane().await).await.unwrap();
        json!([
            versions,
            crd.metadata.labels,
            crd.status.unwrap().stored_versions,
            stored
        ])
    }

    /// The locks, by the ends of their names: in between is the migration's uid.
    async fn policies(&self) -> Value {
        let client = self.stage.client.clone();
        let mut locks = BTreeMap::new();
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
        for policy in policies.list(&ListParams::default()).await.unwrap() {
            let spec = serde_json::to_string(&policy.spec).unwrap();
            if spec.contains(&format!("DatastoreMigration {}:", self.stage.name)) {
                let name = policy.name_any();
                let part = name.rsplit('-').next().unwrap().to_owned();
                let rules = policy.spec.unwrap().match_constraints.unwrap().resource_rules;
                locks.insert(part, json!([rules, "unbound"]));
                let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
                if bindings.get_opt(&name).await.unwrap().is_some() {
                    let part = name.rsplit('-').next().unwrap();
                    locks.get_mut(part).unwrap()[1] = json!("bound");
                }
            }
        }
        json!(locks)
    }
}

fn same_in_each_run(object: &mut Value, uids: &BTreeMap<String, String>) {
    let metadata = object["metadata"].as_object_mut().unwrap();
    for key in ["uid", "resourceVersion", "creationTimestamp"] {
        metadata.remove(key);
    }
    if let Some(entries) = metadata.get_mut("managedFields").and_then(Value::as_array_mut) {
        for entry in entries {
            let version = &entry["apiVersion"];
            *entry = json!([
                entry["manager"],
                entry["operation"],
                entry["subresource"],
                version
            ]);
        }
    }
    for reference in metadata
        .get_mut("ownerReferences")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let owner = uids.get(reference["uid"].as_str().unwrap());
        reference["uid"] = json!(owner.map_or("nobody", String::as_str));
    }
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        for (key, value) in annotations {
            let text = value.as_str().unwrap_or_default();
            if key.ends_with("source-uids") {
                *value = json!(uids.get(text));
            } else if key.starts_with("exuvia.dev/") {
                *value = json!("set");
            }
        }
    }
}

/// The writes of the engine that store something.
fn counted() -> Match {
    let mut counted = Match::writes().except(Match::any().query("dryRun="));
    for question in ["selfsubjectaccessreviews", "selfsubjectreviews"] {
        counted = counted.except(Match::any().resource(question));
    }
    counted
}

fn described(write: &Recorded) -> String {
    let object = write.object().unwrap();
    format!("{} {} {}", write.method, object.resource, object.subresource)
}

/// What a run leaves behind: when it is complete, and when it is deleted.
type Left = (Option<Value>, Value);

/// Carries the migration out and deletes it when it is complete.
async fn carried_out(slot: &Slot, client: &Client, complete: &Mutex<Option<Value>>) {
    let stage = &slot.stage;
    let Some(migration) = stage.migrations().get_opt(&stage.name).await.unwrap() else {
        return;
    };
    let mut engine = Stage::engine_by(client, &migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    if migration.metadata.deletion_timestamp.is_none()
        && let Some(migration) = stage.migrations().get_opt(&stage.name).await.unwrap()
        && migration.metadata.deletion_timestamp.is_none()
    {
        *complete.lock().unwrap() = Some(slot.seen().await);
        stage
            .migrations()
            .delete(&stage.name, &DeleteParams::default())
            .await
            .unwrap();
        assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    }
}

/// What goes wrong at a write. What a process leaves that ends before a write is what one leaves that ended after the write
/// before it; so there is one of that kind.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Crash {
    /// The engine is dropped, and the request was never sent.
    Before,
    /// The engine is dropped when the write is committed.
    After,
    /// The write is committed, and the engine goes on without its answer.
    AnswerLost,
}

/// A crash at the n-th write.
#[derive(Clone, Copy, Debug)]
struct Point {
    write: usize,
    crash: Crash,
}

/// What came of a run.
struct Ran {
    left: Left,
    writes: Vec<String>,
    /// The phase that the crash met.
    at_crash: DatastorePhase,
    /// The run had as many writes as the crash needs. How often an engine on its way says how far it is depends on the time.
    met: bool,
}

/// One run. The engine is dropped at `point`; with `aborts`, somebody then deletes the migration.
async fn run(slot: &Slot, point: Option<Point>, aborts: bool) -> Ran {
    slot.set_up().await;
    let proxy = control_plane().await.proxy().await.unwrap();
    let (tell, mut hear) = mpsc::unbounded_channel();
    if let Some(Point { write, crash }) = point {
        let rule = Rule::on(counted()).nth(write as u64);
        let tell = move |_: &Recorded| {
            let _ = tell.send(());
        };
        proxy.inject(match crash {
            Crash::Before => rule.then(Fault::StallRequest).on_request(tell),
            Crash::After => rule.then(Fault::StallAnswer).on_commit(tell),
            Crash::AnswerLost if write % 2 == 0 => rule.then(Fault::replace(504)),
            Crash::AnswerLost => rule.then(Fault::ResetAnswer),
        });
    }
    let complete = Mutex::default();
    let client = proxy.client().unwrap();
    let mut at_crash = DatastorePhase::Complete;
    let mut met = true;
    tokio::select! {
        () = carried_out(slot, &client, &complete) => {
            met = point.is_none_or(|point| point.crash == Crash::AnswerLost);
        }
        () = async { if hear.recv().await.is_none() { std::future::pending::<()>().await } } => {
            let migration = slot.stage.migrations().get_opt(&slot.stage.name).await.unwrap();
            if let Some(migration) = migration {
                at_crash = migration.status.unwrap_or_default().phase.unwrap_or_default();
            }
            if aborts {
                let _ = slot.stage.migrations().delete(&slot.stage.name, &DeleteParams::default()).await;
            }
        }
    }
    in_time(
        "the second life",
        Box::pin(carried_out(slot, &slot.stage.client, &complete)),
    )
    .await;
    let mut writes = proxy.writes();
    writes.retain(|write| counted().holds(write));
    let left = slot.seen().await;
    slot.tear_down().await;
    Ran {
        left: (complete.into_inner().unwrap(), left),
        writes: writes.iter().map(described).collect(),
        at_crash,
        met,
    }
}

/// A crash that most runs do not come to shows nothing.
fn are_met(met: &[bool]) {
    let missed = met.iter().filter(|met| !**met).count();
    assert!(
        missed * 10 <= met.len(),
        "{missed} of {} crashes did not come",
        met.len()
    );
}

fn slots(prefix: &str, mode: &'static str) -> impl Future<Output = Vec<Slot>> {
    futures::future::join_all((0..SLOTS).map(move |number| {
        let name = format!("{prefix}{number}");
        async move { Slot::new(&name, mode).await }
    }))
}

/// The same text for all slots.
fn unnamed(slot: &Slot, left: &Value) -> Value {
    let text = left.to_string().replace(&slot.stage.name, "slot");
    serde_json::from_str(&text).unwrap()
}

/// Runs all points, several at a time, and gives what each left behind.
async fn run_all<'a, T>(
    slots: &'a [Slot],
    points: Vec<Point>,
    run: impl AsyncFn(&'a Slot, Point) -> T,
) -> Vec<T> {
    let points = Mutex::new(points.into_iter());
    let each = futures::stream::iter(slots).map(async |slot| {
        let mut came = Vec::new();
        loop {
            let Some(point) = points.lock().unwrap().next() else {
                return came;
            };
            came.push(run(slot, point).await);
        }
    });
    each.buffer_unordered(SLOTS).concat().await
}

/// Every write, and a lost answer to one of each sort: the engine looks again in the same way after each of a sort.
fn all_points(writes: &[String]) -> Vec<Point> {
    let first = Point {
        write: 1,
        crash: Crash::Before,
    };
    let mut sorts = BTreeSet::new();
    let of_write = |(index, sort): (usize, &String)| {
        let point = |crash| Point {
            write: index + 1,
            crash,
        };
        let lost = sorts.insert(sort.clone()).then(|| point(Crash::AnswerLost));
        std::iter::once(point(Crash::After))
            .chain(lost)
            .collect::<Vec<_>>()
    };
    let each = writes.iter().enumerate().flat_map(of_write);
    std::iter::once(first).chain(each).collect()
}

#[tokio::test]
async fn a_crash_at_any_write_changes_nothing_of_the_end() {
    crashes_change_nothing("crash", "FreezeAndCopy").await;
}

#[tokio::test]
async fn a_crash_at_any_write_changes_nothing_where_objects_are_copied_before_the_freeze() {
    crashes_change_nothing("sync-crash", "SyncThenFreeze").await;
}

/// Not each write to each object, which the test above has.
#[tokio::test]
async fn a_crash_changes_nothing_where_objects_are_copied_behind_an_api_service() {
    let slots = (0..SLOTS).map(async |number| Slot::routed(&format!("second-crashes{number}")).await);
    let slots = futures::future::join_all(slots).await;
    Box::pin(crashes_in(slots, |writes| {
        let mut sorts = BTreeSet::new();
        let is_chosen = |sort: &String| {
            let decides = ["customresourcedefinitions", "apiservices", "datastoremigrations"];
            decides.iter().any(|resource| sort.contains(resource)) || sorts.insert(sort.clone())
        };
        let mut is_chosen = is_chosen;
        let chosen = writes.iter().enumerate().filter(|(_, sort)| is_chosen(sort));
        let points = chosen.map(|(index, _)| Point {
            write: index + 1,
            crash: Crash::After,
        });
        points.collect()
    }))
    .await;
}

async fn crashes_change_nothing(prefix: &str, mode: &'static str) {
    crashes_in(slots(prefix, mode).await, all_points).await;
}

async fn crashes_in(slots: Vec<Slot>, points: impl Fn(&[String]) -> Vec<Point>) {
    let Ran {
        left: (complete, deleted),
        writes,
        ..
    } = Box::pin(run(&slots[0], None, false)).await;
    assert!(writes.len() > 25, "{writes:#?}");
    let complete = unnamed(&slots[0], &complete.unwrap());
    let deleted = unnamed(&slots[0], &deleted);
    assert_eq!(complete["migration"]["phase"], "Complete", "{complete:#}");
    let targets = complete["objects"].as_object().unwrap().keys();
    assert_eq!(targets.filter(|name| name.starts_with("new.")).count(), 4);
    assert!(!complete.to_string().contains("v1exuvia"), "{complete:#}");
    assert_eq!(deleted["policies"], json!({}));
    let came = run_all(&slots, points(&writes), async |slot, point| {
        let Ran {
            left, writes, met, ..
        } = Box::pin(run(slot, Some(point), false)).await;
        let mut wrong = String::new();
        // After a crash behind the commit of `Complete` nobody was there to look.
        for (left, expected) in [(left.0.as_ref(), &complete), (Some(&left.1), &deleted)] {
            if let Some(left) = left.map(|left| unnamed(slot, left))
                && left != *expected
            {
                wrong += &format!("{point:?} {:?}: {left:#}\n", writes.get(point.write - 1));
            }
        }
        (wrong, met)
    })
    .await;
    let (mut wrong, met): (Vec<String>, Vec<bool>) = came.into_iter().unzip();
    are_met(&met);
    wrong.retain(|wrong| !wrong.is_empty());
    assert!(
        wrong.is_empty(),
        "{} runs end otherwise than {complete:#} {deleted:#}:\n{}",
        wrong.len(),
        wrong.concat()
    );
}

#[tokio::test]
async fn an_abort_after_any_write_leaves_everything_as_it_was_or_goes_on_to_the_end() {
    aborts_leave_nothing("abort-at", "FreezeAndCopy").await;
}

#[tokio::test]
async fn an_abort_after_any_write_leaves_everything_as_it_was_where_objects_are_copied_before_the_freeze() {
    aborts_leave_nothing("sync-abort-at", "SyncThenFreeze").await;
}

async fn aborts_leave_nothing(prefix: &str, mode: &'static str) {
    let slots = slots(prefix, mode).await;
    slots[0].set_up().await;
    let stage = &slots[0].stage;
    let mut before = unnamed(&slots[0], &slots[0].seen().await);
    stage
        .migrations()
        .delete(&stage.name, &DeleteParams::default())
        .await
        .unwrap();
    slots[0].tear_down().await;
    before["migration"] = Value::Null;
    let Ran { left, writes, .. } = Box::pin(run(&slots[0], None, false)).await;
    let deleted = unnamed(&slots[0], &left.1);
    // The last ones are behind the commit: two of those will do.
    let commit = writes
        .iter()
        .position(|write| write.starts_with("PATCH validatingadmission") || write.starts_with("DELETE valid"))
        .unwrap()
        + 2;
    let points = (1..=commit).map(|write| Point {
        write,
        crash: Crash::After,
    });
    let came = run_all(&slots, points.collect(), async |slot, point| {
        (point, Box::pin(run(slot, Some(point), true)).await, slot)
    })
    .await;
    are_met(&came.iter().map(|(_, ran, _)| ran.met).collect::<Vec<_>>());
    let mut aborted = 0;
    for (point, ran, slot) in came {
        let (left, at_crash) = (unnamed(slot, &ran.left.1), ran.at_crash);
        let is_committed = matches!(at_crash, DatastorePhase::Converged | DatastorePhase::Complete);
        aborted += usize::from(!is_committed);
        let expected = if is_committed { &deleted } else { &before };
        // What an undo leaves of a flag: who wrote it.
        let (left, expected) = (without_managers(left), without_managers(expected.clone()));
        assert_eq!(left, expected, "{point:?} in {at_crash:?}: {left:#}");
    }
    assert!(aborted > 15 && aborted < commit, "{aborted} of {commit}");
}

fn without_managers(mut seen: Value) -> Value {
    for object in seen["objects"].as_object_mut().unwrap().values_mut() {
        object["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("managedFields");
    }
    seen
}
