//! The mode `SyncThenFreeze`: objects are copied while writers go on, and nothing that they do meanwhile is lost or left over.

use std::sync::atomic::{AtomicBool, Ordering};

use exuvia_api::DatastorePhase;
use exuvia_datastore::Engine;
use exuvia_datastore::protocol::{Hold, Step};
use exuvia_runtime::machine::Ended;
use exuvia_testenv::proxy::{Answer, Fault, Match, Recorded, Rule};
use exuvia_testenv::until;
use http::Method;
use kube::ResourceExt;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::{Stage, control_plane, owned_by, up_to};

fn spec(stage: &Stage) -> Value {
    let mut spec = stage.spec();
    spec["mode"] = json!("SyncThenFreeze");
    spec["mappings"][0]["status"] = json!("Copy");
    spec
}

/// A migration with everything in step and nothing frozen, carried out through this client.
async fn in_step(stage: &Stage, client: &kube::Client, spec: Value) -> Engine {
    let migration = stage.migration(spec).await;
    let mut engine = stage.engine_by(client, &migration);
    up_to(&mut engine, Step::MarkFreeze).await;
    engine
}

/// What people see of the targets: name and spec, in the order of their names.
async fn targets(stage: &Stage) -> Vec<(String, Value)> {
    let all = stage.all(&stage.new).await;
    all.iter()
        .map(|target| (target.name_any(), target.data["spec"].clone()))
        .collect()
}

async fn sources(stage: &Stage) -> Vec<(String, Value)> {
    let all = stage.all(&stage.old).await;
    all.iter()
        .map(|source| (source.name_any(), source.data["spec"].clone()))
        .collect()
}

async fn delete_old(stage: &Stage, name: &str) {
    let delete = DeleteParams::default();
    stage.api(&stage.old).delete(name, &delete).await.unwrap();
}

/// Creates, changes, deletes, and creates again under the same name.
async fn writers_go_on(stage: &Stage) {
    stage
        .merge(&stage.old, "w0", json!({"spec": {"size": 100}}))
        .await;
    stage.create_old("new", json!({"size": 7})).await;
    delete_old(stage, "w1").await;
    delete_old(stage, "w2").await;
    stage.create_old("w2", json!({"color": "green"})).await;
}

#[tokio::test]
async fn what_writers_do_before_the_freeze_is_in_the_targets() {
    let stage = Stage::new("sync-writes", 4).await;
    let status = json!({"status": {"ready": 3}});
    stage.merge_status(&stage.old, "w2", status).await;
    let mut engine = in_step(&stage, &stage.client, spec(&stage)).await;
    assert_eq!(
        targets(&stage).await,
        sources(&stage).await,
        "copied, and nobody was refused"
    );
    let uid = engine.migration().metadata.uid.clone().unwrap();
    assert_eq!(stage.policies(&uid).await, 0);
    let former = stage.api(&stage.new).get("w2").await.unwrap();
    assert_eq!(former.data["status"]["ready"], 3);
    writers_go_on(&stage).await;
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert_eq!(stage.phase().await, DatastorePhase::Complete);
    assert_eq!(targets(&stage).await, sources(&stage).await);
    // The one of the same name is another object: nothing of the former one is left.
    let target = stage.api(&stage.new).get("w2").await.unwrap();
    assert_ne!(target.uid(), former.uid());
    assert_eq!(target.data.get("status"), None);
    let source = stage.api(&stage.old).get("w2").await.unwrap();
    assert_eq!(
        target.annotations()[exuvia_api::SOURCE_UIDS_ANNOTATION],
        source.uid().unwrap()
    );
    let progress = stage.read().await.status.unwrap().progress.unwrap();
    assert_eq!((progress.total, progress.migrated, progress.conflicts), (4, 4, 0));
}

#[tokio::test]
async fn a_source_that_is_no_longer_selected_loses_its_target() {
    let stage = Stage::new("sync-selected", 3).await;
    let label = |value: Value| json!({"metadata": {"labels": {"tier": value}}});
    for name in ["w0", "w1"] {
        stage.merge(&stage.old, name, label(json!("gold"))).await;
    }
    let mut spec = spec(&stage);
    spec["mappings"][0]["from"]["selector"] = json!({"matchLabels": {"tier": "gold"}});
    spec["mappings"][0]["metadata"] = json!({"name": "object.spec.?payload.orValue(object.metadata.name)"});
    let mut engine = in_step(&stage, &stage.client, spec).await;
    let names = async || -> Vec<String> { targets(&stage).await.into_iter().map(|(name, _)| name).collect() };
    assert_eq!(names().await, ["w0", "w1"]);
    stage.merge(&stage.old, "w0", label(Value::Null)).await;
    stage.merge(&stage.old, "w2", label(json!("gold"))).await;
    // Its target gets another name.
    stage
        .merge(&stage.old, "w1", json!({"spec": {"payload": "other"}}))
        .await;
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert_eq!(names().await, ["other", "w2"]);
}

#[tokio::test]
async fn a_target_that_somebody_edits_meanwhile_is_a_conflict() {
    for (name, moves) in [("sync-edited", false), ("sync-edited-both", true)] {
        let stage = Stage::new(name, 3).await;
        let mut engine = in_step(&stage, &stage.client, spec(&stage)).await;
        let theirs = json!({"spec": {"color": "theirs"}});
        stage.merge(&stage.new, "w1", theirs).await;
        if moves {
            stage.merge(&stage.old, "w1", json!({"spec": {"size": 50}})).await;
        }
        assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Conflicts));
        assert_eq!(stage.phase().await, DatastorePhase::WaitingForConflictResolution);
        let left = targets(&stage).await;
        assert_eq!(left, [("w1".to_owned(), json!({"size": 1, "color": "theirs"}))]);
        let uid = engine.migration().metadata.uid.clone().unwrap();
        assert_eq!(stage.policies(&uid).await, 0);
        stage.thawed().await;
        let delete = DeleteParams::default();
        stage.api(&stage.new).delete("w1", &delete).await.unwrap();
        assert_eq!(stage.goes_on(&mut engine, Hold::Conflicts).await, Ended::Done);
        assert_eq!(targets(&stage).await, sources(&stage).await);
    }
}

#[tokio::test]
async fn a_target_that_somebody_deletes_meanwhile_is_copied_again() {
    let stage = Stage::new("sync-deleted", 2).await;
    let mut engine = in_step(&stage, &stage.client, spec(&stage)).await;
    let delete = DeleteParams::default();
    stage.api(&stage.new).delete("w1", &delete).await.unwrap();
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert_eq!(targets(&stage).await, sources(&stage).await);
}

#[tokio::test]
async fn an_abort_before_the_freeze_leaves_nothing_behind() {
    let stage = Stage::new("sync-abort", 3).await;
    let engine = in_step(&stage, &stage.client, spec(&stage)).await;
    let uid = engine.migration().metadata.uid.clone().unwrap();
    assert_eq!(stage.all(&stage.new).await.len(), 3);
    // Another process goes on.
    drop(engine);
    assert_eq!(stage.delete().await, Ended::Done);
    assert!(stage.all(&stage.new).await.is_empty());
    assert_eq!(stage.policies(&uid).await, 0);
    assert!(stage.migrations().get_opt(&stage.name).await.unwrap().is_none());
    stage.create_old("after", json!({})).await;
}

#[tokio::test]
async fn a_hold_comes_before_the_freeze() {
    let stage = Stage::new("sync-hold", 2).await;
    let mut spec = spec(&stage);
    spec["cutover"] = json!({"hold": true});
    let migration = stage.migration(spec).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::BeforeCutover));
    assert_eq!(
        stage.policies(migration.metadata.uid.as_deref().unwrap()).await,
        0
    );
    writers_go_on_with(&stage).await;
    let cutover = json!({"spec": {"cutover": {"hold": false}}});
    stage
        .migrations()
        .patch(&stage.name, &PatchParams::default(), &Patch::Merge(&cutover))
        .await
        .unwrap();
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert_eq!(targets(&stage).await, sources(&stage).await);
}

async fn writers_go_on_with(stage: &Stage) {
    stage
        .merge(&stage.old, "w0", json!({"spec": {"size": 100}}))
        .await;
    stage.create_old("late", json!({"size": 7})).await;
}

/// An owner and its dependent that appear late, and one that is made again.
#[tokio::test]
async fn owners_are_the_new_ones_whatever_happens_to_them() {
    let stage = Stage::new("sync-owners", 0).await;
    let create_owned = async |name: &str, owner: &DynamicObject| {
        let mut widget = stage.old.widget("v1", name);
        widget.metadata.namespace = Some(stage.name.clone());
        widget.metadata.owner_references = Some(vec![owned_by(owner)]);
        let api = stage.api(&stage.old);
        api.create(&PostParams::default(), &widget).await.unwrap()
    };
    let root = stage.create_old("root", json!({})).await;
    create_owned("leaf", &root).await;
    let mut engine = in_step(&stage, &stage.client, spec(&stage)).await;
    delete_old(&stage, "root").await;
    until("the leaf is collected with its owner", async || {
        stage.api(&stage.old).get_opt("leaf").await.unwrap().is_none()
    })
    .await;
    let root = stage.create_old("root", json!({"size": 2})).await;
    create_owned("leaf", &root).await;
    let late = stage.create_old("z-late", json!({})).await;
    create_owned("a-late-leaf", &late).await;
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert_eq!(targets(&stage).await, sources(&stage).await);
    for (name, owner) in [("leaf", "root"), ("a-late-leaf", "z-late")] {
        let target = stage.api(&stage.new).get(name).await.unwrap();
        let expected = stage.api(&stage.new).get(owner).await.unwrap();
        assert_eq!(
            target.metadata.owner_references,
            Some(vec![owned_by(&expected)]),
            "{name}"
        );
    }
}

/// Under the freeze the garbage collector is kept away, so nobody else would notice.
#[tokio::test]
async fn a_dependent_follows_an_owner_whose_target_is_made_again() {
    let stage = Stage::new("sync-follows", 0).await;
    let root = stage.create_old("root", json!({})).await;
    let mut leaf = stage.old.widget("v1", "leaf");
    leaf.metadata.namespace = Some(stage.name.clone());
    leaf.metadata.owner_references = Some(vec![owned_by(&root)]);
    let api = stage.api(&stage.old);
    api.create(&PostParams::default(), &leaf).await.unwrap();
    let mut spec = spec(&stage);
    spec["mappings"][0]["metadata"] = json!({"name": "object.spec.?payload.orValue(object.metadata.name)"});
    let mut engine = in_step(&stage, &stage.client, spec).await;
    up_to(&mut engine, Step::Lock).await;
    let renamed = json!({"spec": {"payload": "other-root"}});
    stage.merge(&stage.old, "root", renamed).await;
    up_to(&mut engine, Step::Commit).await;
    let root = stage.api(&stage.new).get("other-root").await.unwrap();
    let leaf = stage.api(&stage.new).get("leaf").await.unwrap();
    assert_eq!(leaf.metadata.owner_references, Some(vec![owned_by(&root)]));
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert_eq!(stage.all(&stage.new).await.len(), 2);
}

/// Nobody is undone because of what passes by itself.
#[tokio::test]
async fn a_source_that_is_being_deleted_is_waited_for_before_the_freeze() {
    let stage = Stage::new("sync-terminating", 2).await;
    let migration = stage.migration(spec(&stage)).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Sync).await;
    let held = json!({"metadata": {"finalizers": ["example.com/held"]}});
    stage.merge(&stage.old, "w1", held).await;
    delete_old(&stage, "w1").await;
    let stop = AtomicBool::new(false);
    let finish = async {
        until("the other one is copied", async || {
            stage.all(&stage.new).await.len() == 1
        })
        .await;
        assert_eq!(
            stage.policies(migration.metadata.uid.as_deref().unwrap()).await,
            0
        );
        stage
            .merge(&stage.old, "w1", json!({"metadata": {"finalizers": null}}))
            .await;
        stop.store(true, Ordering::Relaxed);
    };
    let (ended, ()) = tokio::join!(stage.drive(&mut engine), finish);
    assert_eq!(ended, Ended::Done);
    assert!(stop.into_inner());
    assert_eq!(stage.read().await.status.unwrap().retreats, 0);
    assert_eq!(targets(&stage).await, sources(&stage).await);
    assert_eq!(stage.all(&stage.new).await.len(), 1);
}

pub(crate) fn watches(stage: &Stage) -> Match {
    Match::method(Method::GET)
        .path(format!("/apis/{}/v1/widgets", stage.old.group()))
        .query("watch=")
}

type MakeFault = fn() -> Fault;

/// Whatever happens to the watches, what they may have missed is found.
#[tokio::test]
async fn a_watch_that_is_cut_or_expires_or_is_silent_loses_nothing() {
    let faults: [(&str, MakeFault); 4] = [
        ("sync-cut", || Fault::Truncate(600)),
        ("sync-expired", || Fault::refuse(Answer::status(410))),
        ("sync-reset", || Fault::ResetAnswer),
        ("sync-silent", || Fault::StallRequest),
    ];
    let cuts = faults.map(async |(name, fault)| {
        let stage = Stage::new(name, 4).await;
        let proxy = control_plane().await.proxy().await.unwrap();
        let watches = Rule::on(watches(&stage)).always().then(fault());
        let struck = proxy.inject(watches);
        let mut engine = in_step(&stage, &proxy.client().unwrap(), spec(&stage)).await;
        writers_go_on(&stage).await;
        assert_eq!(stage.drive(&mut engine).await, Ended::Done, "{name}");
        assert!(struck.applied() > 0, "{name}");
        assert_eq!(targets(&stage).await, sources(&stage).await, "{name}");
    });
    futures::future::join_all(cuts).await;
}

/// Another process knows nothing of what was in step, and reads everything again.
#[tokio::test]
async fn a_process_that_ends_under_the_freeze_loses_nothing() {
    let stage = Stage::new("sync-restart", 4).await;
    let mut engine = in_step(&stage, &stage.client, spec(&stage)).await;
    writers_go_on(&stage).await;
    up_to(&mut engine, Step::CatchUp).await;
    let migration = stage.read().await;
    drop(engine);
    assert_eq!(stage.drive(&mut stage.engine(&migration)).await, Ended::Done);
    assert_eq!(targets(&stage).await, sources(&stage).await);
}

/// The requests of a migration between the first policy and the commit that are about its objects.
async fn requests_under_the_freeze(name: &str, objects: usize) -> Vec<Recorded> {
    let stage = Stage::new(name, objects).await;
    let proxy = control_plane().await.proxy().await.unwrap();
    let mut engine = in_step(&stage, &proxy.client().unwrap(), spec(&stage)).await;
    stage
        .merge(&stage.old, "w0", json!({"spec": {"size": 100}}))
        .await;
    proxy.forget();
    up_to(&mut engine, Step::Thaw).await;
    assert_eq!(targets(&stage).await, sources(&stage).await);
    let mut requests = proxy.requests();
    requests.retain(|request| request.path.contains("/widgets"));
    requests
}

#[tokio::test]
async fn the_freeze_asks_for_no_more_with_more_objects() {
    let few = Box::pin(requests_under_the_freeze("sync-few", 2)).await;
    let many = Box::pin(requests_under_the_freeze("sync-many", 150)).await;
    assert!(!few.is_empty());
    // How often an API server is asked whether it refuses, and how far a watch is, depends on how busy it is.
    assert!(
        many.len() < few.len() + 60,
        "{} and {}: {many:#?}",
        few.len(),
        many.len()
    );
}
