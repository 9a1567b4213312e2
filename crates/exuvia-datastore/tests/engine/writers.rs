//! Writers and readers that know nothing of the migration: each write is in the target, or was refused, and each read is answered.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use exuvia_api::DatastorePhase;
use exuvia_datastore::protocol::Hold;
use exuvia_runtime::machine::Ended;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::Stage;

pub(crate) const OBJECTS: usize = 5;

/// What a writer's acknowledged writes amount to, by object.
type Acknowledged = BTreeMap<String, i64>;

/// Writes ever higher numbers to each object in turn until it is told to stop.
async fn write(
    api: &Api<DynamicObject>,
    patch: impl Fn(i64) -> Value,
    is_status: bool,
    stop: &AtomicBool,
) -> (Acknowledged, usize) {
    let (mut acknowledged, mut refused) = (Acknowledged::new(), 0);
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        for object in 0..OBJECTS {
            number += 1;
            let (name, patch) = (format!("w{object}"), Patch::Merge(patch(number)));
            let written = if is_status {
                api.patch_status(&name, &PatchParams::default(), &patch).await
            } else {
                api.patch(&name, &PatchParams::default(), &patch).await
            };
            match written {
                Ok(_) => drop(acknowledged.insert(name, number)),
                Err(kube::Error::Api(status)) if status.code == 403 => refused += 1,
                Err(error) => panic!("neither written nor refused: {error}"),
            }
            tokio::time::sleep(PACE).await;
        }
    }
    (acknowledged, refused)
}

/// The pause of each writer: everything else has to be done on the same cores.
const PACE: Duration = Duration::from_millis(5);

/// How many objects come and go.
const NAMES: usize = 20;

/// Creates objects and deletes every second one, until it is told to stop: what must exist, and what must not.
///
/// It deletes nothing more once a write was refused: a source may be deleted again from the commit on, and then its
/// target stays.
async fn create_and_delete(stage: &Stage, stop: &AtomicBool) -> BTreeMap<String, bool> {
    let (api, mut exists) = (stage.api(&stage.old), BTreeMap::new());
    let (mut number, mut frozen) = (0, false);
    while !stop.load(Ordering::Relaxed) {
        let name = format!("made-{}", number % NAMES);
        let mut widget = stage.old.widget("v1", &name);
        widget.metadata.namespace = Some(stage.name.clone());
        match api.create(&PostParams::default(), &widget).await {
            Ok(_) => drop(exists.insert(name.clone(), true)),
            Err(kube::Error::Api(status)) if status.code == 403 => frozen = true,
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => panic!("neither created nor refused: {error}"),
        }
        if !frozen && number % 2 == 1 && exists.get(&name) == Some(&true) {
            match api.delete(&name, &DeleteParams::default()).await {
                Ok(_) => drop(exists.insert(name, false)),
                Err(kube::Error::Api(status)) if status.code == 403 => frozen = true,
                Err(error) => panic!("neither deleted nor refused: {error}"),
            }
        }
        number += 1;
        tokio::time::sleep(PACE).await;
    }
    exists
}

/// An answer. A server that sets up the storage of a CRD asks to come back (429, PITFALLS D2), which clients do by themselves.
pub(crate) async fn answered<T>(
    mut ask: impl AsyncFnMut() -> Result<T, kube::Error>,
) -> Result<T, kube::Error> {
    loop {
        match ask().await {
            Err(kube::Error::Api(status)) if status.code == 429 => tokio::task::yield_now().await,
            answer => return answer,
        }
    }
}

/// Reads one object and all of them, until it is told to stop: how often, and what was not answered.
async fn read(api: &Api<DynamicObject>, is_there: bool, stop: &AtomicBool) -> (usize, Vec<String>) {
    let (mut reads, mut failed) = (0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let read = match answered(async || api.list(&ListParams::default()).await).await {
            Ok(list) if is_there && list.items.len() < OBJECTS => Err("objects are missing".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        let got = match answered(async || api.get_opt("w0").await).await {
            Ok(None) if is_there => Err("w0 is missing".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        reads += 1;
        failed.extend([read, got].into_iter().filter_map(Result::err));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    (reads, failed)
}

#[tokio::test]
async fn every_acknowledged_write_is_in_the_target() {
    let stage = Stage::new("writers", OBJECTS).await;
    let run = stage.run(spec(&stage, "FreezeAndCopy"));
    Box::pin(writes_are_in_the_target(&stage, run)).await;
}

#[tokio::test]
async fn every_write_that_is_acknowledged_while_objects_are_copied_is_in_the_target() {
    let stage = Stage::new("sync-writers", OBJECTS).await;
    let run = stage.run(spec(&stage, "SyncThenFreeze"));
    Box::pin(writes_are_in_the_target(&stage, run)).await;
}

/// A move of objects and statuses.
pub(crate) fn spec(stage: &Stage, in_mode: &str) -> Value {
    let mut spec = stage.spec();
    spec["mode"] = json!(in_mode);
    spec["mappings"][0]["status"] = json!("Copy");
    spec["freeze"]["drain"] = json!("3s");
    spec
}

/// Several writers write as fast as they can while a migration runs, and readers of both sides read.
pub(crate) async fn writes_are_in_the_target(stage: &Stage, run: impl Future<Output = Ended<Hold>>) {
    let alpha: Api<DynamicObject> =
        Api::namespaced_with(stage.client.clone(), &stage.name, &stage.old.resource("v1alpha1"));
    let stop = AtomicBool::new(false);
    let migrated = async {
        let ended = run.await;
        stop.store(true, Ordering::Relaxed);
        ended
    };
    let (api, new) = (stage.api(&stage.old), stage.api(&stage.new));
    let (ended, main, status, other, made, old_reads, new_reads) = tokio::join!(
        migrated,
        write(&api, |number| json!({"spec": {"size": number}}), false, &stop),
        write(&api, |number| json!({"status": {"ready": number}}), true, &stop),
        write(
            &alpha,
            |number| json!({"spec": {"payload": number.to_string()}}),
            false,
            &stop
        ),
        create_and_delete(stage, &stop),
        read(&api, true, &stop),
        read(&new, false, &stop),
    );
    assert_eq!(ended, Ended::Done);
    assert_eq!(stage.phase().await, DatastorePhase::Complete);
    for (reads, failed) in [old_reads, new_reads] {
        assert!(reads > 0 && failed.is_empty(), "{failed:?}");
    }
    for (acknowledged, refused) in [&main, &status, &other] {
        assert_eq!(
            acknowledged.len(),
            OBJECTS,
            "every object was written before the freeze"
        );
        assert!(*refused > 0, "writers were refused during it");
    }
    let targets = stage.all(&stage.new).await;
    let target = |name: &str| {
        let named = |object: &&DynamicObject| object.metadata.name.as_deref() == Some(name);
        targets.iter().find(named).map(|object| &object.data)
    };
    for name in main.0.keys() {
        let target = target(name).unwrap();
        let expected = (main.0[name], status.0[name], other.0[name].to_string());
        let found = (
            target["spec"]["size"].as_i64().unwrap(),
            target["status"]["ready"].as_i64().unwrap(),
            target["spec"]["payload"].as_str().unwrap().to_owned(),
        );
        assert_eq!(found, expected, "{name}");
    }
    for (name, exists) in made {
        assert_eq!(target(&name).is_some(), exists, "{name}");
    }
}
