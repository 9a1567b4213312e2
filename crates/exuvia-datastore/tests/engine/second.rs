//! `SyncThenFreeze` behind an APIService: objects are copied through a second version of the target CRDs, which leaves no trace.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use exuvia_api::{DatastorePhase, SECOND_VERSION_LABEL, SOURCE_UIDS_ANNOTATION, datastore_reason as reason};
use exuvia_datastore::Engine;
use exuvia_datastore::protocol::{Hold, Step};
use exuvia_runtime::machine::Ended;
use exuvia_testenv::aggregated::{Aggregated, alias_uid};
use exuvia_testenv::until;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::routed::{dependent, leave, stage};
use crate::writers::{OBJECTS, answered, writes_are_in_the_target};
use crate::{Stage, control_plane, owned_by, up_to};

/// The second version of the widgets of these tests.
const SECOND: &str = "v1exuvia";

fn spec(stage: &Stage) -> Value {
    let mut spec = stage.spec();
    spec["mode"] = json!("SyncThenFreeze");
    spec["mappings"][0]["status"] = json!("Copy");
    spec["cutover"] = json!({"apiService": format!("v1.{}", stage.new.group())});
    spec
}

/// The target CRD as people see it: versions, labels, and at which ones objects are stored.
async fn crd(stage: &Stage) -> Value {
    let crds: Api<CustomResourceDefinition> = Api::all(stage.client.clone());
    let crd = crds.get(&stage.new.crd_name()).await.unwrap();
    json!([
        crd.spec.versions,
        crd.metadata.labels,
        crd.status.unwrap().stored_versions
    ])
}

/// The targets in the CRD, also while another server answers for the group: the versions at which they are stored.
async fn stored(stage: &Stage) -> BTreeMap<String, usize> {
    stage.new.stored_at(control_plane().await).await.unwrap()
}

/// The targets through the second version.
fn behind(stage: &Stage) -> Api<DynamicObject> {
    Api::namespaced_with(stage.client.clone(), &stage.name, &stage.new.resource(SECOND))
}

/// Versions that the managedFields of an object name.
fn named_versions(object: &DynamicObject) -> Vec<String> {
    let entries = object.managed_fields().iter();
    let versions = entries.filter_map(|entry| entry.api_version.clone());
    versions.collect()
}

/// Everything is in step, nothing is frozen, and the other API server answers.
async fn in_step(stage: &Stage, spec: Value) -> Engine {
    let migration = stage.migration(spec).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::MarkFreeze).await;
    engine
}

/// Reads all the time, one by one and all at once; every object is there each time.
async fn read(stage: &Stage, stop: &AtomicBool) -> usize {
    let (api, mut reads) = (stage.api(&stage.new), 0);
    while !stop.load(Ordering::Relaxed) {
        for object in 0..OBJECTS {
            let name = format!("w{object}");
            answered(async || api.get(&name).await).await.unwrap();
            reads += 1;
        }
        let all = answered(async || api.list(&ListParams::default()).await)
            .await
            .unwrap()
            .items;
        let names: Vec<String> = all.iter().map(ResourceExt::name_any).collect();
        let lacks = |object: &usize| !names.contains(&format!("w{object}"));
        let missing: Vec<usize> = (0..OBJECTS).filter(lacks).collect();
        assert!(missing.is_empty(), "{missing:?} are not in the list of {names:?}");
        // Everything else has to be done on the same cores.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    reads
}

/// PITFALLS D5, D7, D8, D33.
#[tokio::test]
async fn readers_find_everything_and_writers_lose_nothing_over_the_switch() {
    let (stage, backend) = stage("second-whole", OBJECTS).await;
    let before = crd(&stage).await;
    dependent(&stage, "w1").await;
    let stop = AtomicBool::new(false);
    let migrated = async {
        let mut spec = spec(&stage);
        spec["freeze"]["drain"] = json!("3s");
        Box::pin(writes_are_in_the_target(&stage, stage.run(spec))).await;
        stop.store(true, Ordering::Relaxed);
    };
    let (reads, ()) = tokio::join!(read(&stage, &stop), Box::pin(migrated));
    assert!(reads > OBJECTS, "{reads} reads");
    assert!(!backend.answers(&stage.client).await.unwrap());
    assert_eq!(crd(&stage).await, before, "nothing of ours is left");
    until("nobody serves the second version any more", async || {
        let groups = stage.client.list_api_groups().await.unwrap().groups;
        let group = groups
            .into_iter()
            .find(|group| group.name == stage.new.group())
            .unwrap();
        group.versions.iter().all(|version| version.version != SECOND)
    })
    .await;
    let versions = stored(&stage).await;
    assert_eq!(versions.keys().collect::<Vec<_>>(), ["v1"]);
    for target in stage.all(&stage.new).await {
        let name = target.name_any();
        assert!(!named_versions(&target).contains(&SECOND.to_owned()), "{name}");
        let source = stage.api(&stage.old).get_opt(&name).await.unwrap();
        if let Some(uid) = source.and_then(|source| source.uid()) {
            let uids = &target.annotations()[SOURCE_UIDS_ANNOTATION];
            assert_eq!(*uids, format!("{uid},{}", alias_uid(&uid)), "{name}");
        }
    }
    // PITFALLS A7: an entry at a version that is gone would make it fail.
    let applied = json!({
        "apiVersion": format!("{}/v1", stage.new.group()), "kind": "Widget",
        "metadata": {"name": "w0"}, "spec": {"color": "applied"},
    });
    let apply = PatchParams::apply("somebody").force();
    let api = stage.api(&stage.new);
    api.patch("w0", &apply, &Patch::Apply(&applied)).await.unwrap();
    let target = api.get("w1").await.unwrap();
    let owned = stage.config_maps().get("dependent").await.unwrap();
    let owners = owned.metadata.owner_references.unwrap();
    assert_eq!((owners.len(), &owners[0].uid), (1, &target.uid().unwrap()));
}

/// The garbage collector runs here: it would delete a copy whose owner it cannot find.
#[tokio::test]
async fn copies_are_stored_at_their_version_and_name_owners_at_it() {
    let (stage, backend) = stage("second-stored", 1).await;
    let before = crd(&stage).await;
    let root = stage.api(&stage.old).get("w0").await.unwrap();
    let mut leaf = stage.old.widget("v1", "leaf");
    leaf.metadata.namespace = Some(stage.name.clone());
    leaf.metadata.owner_references = Some(vec![owned_by(&root)]);
    let leaf = stage
        .api(&stage.old)
        .create(&PostParams::default(), &leaf)
        .await
        .unwrap();
    let mut engine = in_step(&stage, spec(&stage)).await;
    assert!(
        backend.answers(&stage.client).await.unwrap(),
        "nothing is switched"
    );
    let uid = engine.migration().uid().unwrap();
    assert_eq!(stage.policies(&uid).await, 0, "and nothing is locked");
    assert_eq!(stored(&stage).await, BTreeMap::from([("v1".to_owned(), 2)]));
    let added = crd(&stage).await;
    assert_eq!(
        added[0].as_array().unwrap().len(),
        before[0].as_array().unwrap().len() + 1
    );
    assert_eq!(added[1][SECOND_VERSION_LABEL], json!(uid));
    assert_eq!(added[2], json!(["v1"]));
    // What comes late is known by both uids, too.
    let late = stage.create_old("late", json!({"size": 7})).await;
    let owner_of = async |api: &Api<DynamicObject>| {
        let owner = api.get("w0").await.unwrap();
        let mut owner = owned_by(&owner);
        owner.api_version = format!("{}/v1", stage.new.group());
        owner
    };
    let copy = behind(&stage).get("leaf").await.unwrap();
    assert_eq!(
        copy.metadata.owner_references,
        Some(vec![owner_of(&behind(&stage)).await])
    );
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert_eq!(crd(&stage).await, before);
    let target = stage.api(&stage.new).get("leaf").await.unwrap();
    assert_eq!(target.uid(), copy.uid(), "it was copied once");
    assert_eq!(
        target.owner_references(),
        [owner_of(&stage.api(&stage.new)).await]
    );
    for source in [leaf, late] {
        let target = stage.api(&stage.new).get(&source.name_any()).await.unwrap();
        let uid = source.uid().unwrap();
        assert_eq!(
            target.annotations()[SOURCE_UIDS_ANNOTATION],
            format!("{uid},{}", alias_uid(&uid))
        );
    }
}

#[tokio::test]
async fn an_abort_at_any_step_leaves_the_crds_and_the_route_as_they_were() {
    let steps = [
        ("second-abort-a", Step::AddVersion),
        ("second-abort-b", Step::RecordRouted),
        ("second-abort-c", Step::MarkFreeze),
        ("second-abort-d", Step::CatchUp),
        ("second-abort-e", Step::RemoveRoute),
        ("second-abort-f", Step::AwaitRoute),
        ("second-abort-g", Step::Commit),
    ];
    let aborts = steps.map(async |(name, step)| {
        let (stage, backend) = stage(name, 2).await;
        let before = crd(&stage).await;
        let migration = stage.migration(spec(&stage)).await;
        let mut engine = stage.engine(&migration);
        up_to(&mut engine, step).await;
        // Another process goes on.
        drop(engine);
        assert_eq!(stage.delete().await, Ended::Done, "{step:?}");
        assert_eq!(crd(&stage).await, before, "{step:?}");
        assert!(backend.answers(&stage.client).await.unwrap(), "{step:?}");
        assert_eq!(stored(&stage).await, BTreeMap::new(), "{step:?}");
        assert_eq!(stage.policies(&migration.uid().unwrap()).await, 0, "{step:?}");
        stage.thawed().await;
        leave(&stage).await;
    });
    futures::future::join_all(aborts).await;
}

/// It is on the way between two looks that most is known in memory alone.
#[tokio::test]
async fn a_process_that_ends_before_the_switch_loses_nothing_and_after_it_everything_is_undone() {
    let steps = [
        ("second-crash-a", Step::Sync),
        ("second-crash-b", Step::CatchUp),
        ("second-crash-c", Step::RemoveRoute),
        ("second-crash-d", Step::Commit),
        ("second-crash-e", Step::RetireVersion),
    ];
    let crashes = steps.map(async |(name, step)| {
        let (stage, _backend) = stage(name, 3).await;
        let before = crd(&stage).await;
        let migration = stage.migration(spec(&stage)).await;
        let mut engine = stage.engine(&migration);
        up_to(&mut engine, step).await;
        drop(engine);
        assert_eq!(
            stage.drive(&mut stage.engine(&migration)).await,
            Ended::Done,
            "{step:?}"
        );
        assert_eq!(stage.phase().await, DatastorePhase::Complete, "{step:?}");
        assert_eq!(crd(&stage).await, before, "{step:?}");
        for source in stage.all(&stage.old).await {
            let target = stage.api(&stage.new).get(&source.name_any()).await.unwrap();
            assert_eq!(target.data["spec"], source.data["spec"]);
            let uid = source.uid().unwrap();
            let uids = format!("{uid},{}", alias_uid(&uid));
            assert_eq!(target.annotations()[SOURCE_UIDS_ANNOTATION], uids, "{step:?}");
            assert!(!named_versions(&target).contains(&SECOND.to_owned()), "{step:?}");
        }
    });
    futures::future::join_all(crashes).await;
}

/// Such as a tool that keeps CRDs as they are in a repository.
#[tokio::test]
async fn a_crd_whose_second_version_is_taken_away_is_named_and_nothing_is_locked() {
    let (stage, backend) = stage("second-reverted", 2).await;
    let before = crd(&stage).await;
    let mut engine = in_step(&stage, spec(&stage)).await;
    let versions = json!({"spec": {"versions": before[0]}});
    stage.new.merge_crd(&stage.client, versions).await.unwrap();
    up_to(&mut engine, Step::Check).await;
    let status = stage.read().await.status.unwrap();
    assert_eq!(status.phase, Some(DatastorePhase::Pending));
    let [blocker] = &status.blockers[..] else {
        panic!("{:?}", status.blockers);
    };
    assert_eq!(blocker.reason, reason::SECOND_VERSION);
    assert_eq!(blocker.kind, stage.new.crd_name());
    assert!(blocker.message.contains(SECOND), "{}", blocker.message);
    assert_eq!(
        stored(&stage).await,
        BTreeMap::new(),
        "the copies were reached once more"
    );
    assert_eq!(crd(&stage).await, before);
    assert!(backend.answers(&stage.client).await.unwrap());
    let uid = engine.migration().uid().unwrap();
    assert_eq!(stage.policies(&uid).await, 0);
    // Nobody does it again.
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert_eq!(crd(&stage).await, before);
}

/// What somebody else has written to stays, and must not name a version that is gone.
#[tokio::test]
async fn a_copy_that_somebody_edited_stays_and_can_still_be_applied() {
    let (stage, backend) = stage("second-edited", 2).await;
    let before = crd(&stage).await;
    let mut engine = in_step(&stage, spec(&stage)).await;
    let theirs = json!({"spec": {"color": "theirs"}});
    let edit = PatchParams::default();
    behind(&stage)
        .patch("w1", &edit, &Patch::Merge(&theirs))
        .await
        .unwrap();
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Conflicts));
    assert_eq!(crd(&stage).await, before);
    assert!(backend.answers(&stage.client).await.unwrap());
    assert_eq!(stored(&stage).await, BTreeMap::from([("v1".to_owned(), 1)]));
    leave(&stage).await;
    let left = until("the CRD answers", async || {
        let left = stage.api(&stage.new).get("w1").await;
        left.ok().filter(|left| left.data["spec"]["color"] == "theirs")
    })
    .await;
    assert!(!named_versions(&left).contains(&SECOND.to_owned()));
    let applied = json!({
        "apiVersion": format!("{}/v1", stage.new.group()), "kind": "Widget",
        "metadata": {"name": "w1"}, "spec": {"color": "applied"},
    });
    let apply = PatchParams::apply("somebody").force();
    // A policy that is gone refuses for about a second more (PITFALLS D10).
    until("it is applied", async || {
        let applied = Patch::Apply(&applied);
        stage.api(&stage.new).patch("w1", &apply, &applied).await
    })
    .await;
}

/// Only this combination needs to change CRDs.
#[tokio::test]
async fn the_right_to_change_crds_is_asked_for_where_it_is_needed() {
    let stage = Stage::new("second-rights", 0).await;
    let both = spec(&stage);
    let mut frozen = both.clone();
    frozen["mode"] = json!("FreezeAndCopy");
    let mut unrouted = both.clone();
    unrouted["cutover"] = json!({});
    for (spec, expected) in [(both, 1), (frozen, 0), (unrouted, 0)] {
        let migration = serde_json::from_value(json!({
            "apiVersion": "exuvia.dev/v1beta1", "kind": "DatastoreMigration", "metadata": {}, "spec": spec,
        }));
        let migration: exuvia_api::DatastoreMigration = migration.unwrap();
        let (kinds, _) = exuvia_datastore::Kinds::read(&stage.client, &migration.spec)
            .await
            .unwrap();
        let rules = exuvia_datastore::rights::of_migration(&migration, &kinds);
        let patches = rules.iter().map(|rule| &rule.rule).filter(|rule| {
            let crds = ["customresourcedefinitions".to_owned()];
            rule.resources.as_deref() == Some(&crds[..]) && rule.verbs.contains(&"patch".to_owned())
        });
        let names: Vec<_> = patches.map(|rule| rule.resource_names.clone().unwrap()).collect();
        assert_eq!(names, vec![vec![stage.new.crd_name()]; expected]);
    }
}

async fn is_blocked(stage: &Stage, expected: &str) {
    let before = crd(stage).await;
    let migration = stage.migration(spec(stage)).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    let [blocker] = engine.blockers() else {
        panic!("{:?}", engine.blockers());
    };
    assert_eq!(blocker.reason, reason::SECOND_VERSION);
    assert!(blocker.message.contains(expected), "{}", blocker.message);
    assert_eq!(crd(stage).await, before);
    assert_eq!(stage.policies(&migration.uid().unwrap()).await, 0);
    leave(stage).await;
}

#[tokio::test]
async fn a_crd_that_cannot_get_a_second_version_is_named_before_anything_is_locked() {
    let (converted, _backend) = stage("second-webhook", 1).await;
    let conversion = json!({"spec": {"conversion": {"strategy": "Webhook", "webhook": {
        "conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://127.0.0.1:1/convert"},
    }}}});
    converted
        .new
        .merge_crd(&converted.client, conversion)
        .await
        .unwrap();
    is_blocked(&converted, "conversion webhook").await;

    let (taken, _backend) = stage("second-taken", 1).await;
    let mut versions = crd(&taken).await[0].clone();
    let mut another = versions[1].clone();
    (another["name"], another["storage"]) = (json!(SECOND), json!(false));
    versions.as_array_mut().unwrap().push(another);
    let versions = json!({"spec": {"versions": versions}});
    taken.new.merge_crd(&taken.client, versions).await.unwrap();
    is_blocked(&taken, "has a version v1exuvia that is not of this migration").await;
}

/// PITFALLS D20: at the only version that shows the kind, the garbage collector would look for its owner at the other server.
#[tokio::test]
async fn an_owned_copy_of_a_kind_that_the_other_server_does_not_show_is_named() {
    let stage = Stage::new("second-unshown", 1).await;
    let root = stage.api(&stage.old).get("w0").await.unwrap();
    let mut leaf = stage.old.widget("v1", "leaf");
    leaf.metadata.namespace = Some(stage.name.clone());
    leaf.metadata.owner_references = Some(vec![owned_by(&root)]);
    stage
        .api(&stage.old)
        .create(&PostParams::default(), &leaf)
        .await
        .unwrap();
    let (new, old) = (stage.new.group().to_owned(), stage.old.group().to_owned());
    let backend = Aggregated::start(control_plane().await, (&new, "v1"), (&old, "v1"), &[])
        .await
        .unwrap();
    backend.install(&stage.client).await.unwrap();
    is_blocked(&stage, "the garbage collector").await;
    // Without an owner there is nothing that it would look for.
    let delete = DeleteParams::default();
    stage.migrations().delete(&stage.name, &delete).await.unwrap();
}
