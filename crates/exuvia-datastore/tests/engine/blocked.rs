//! What stands in the way before anything is locked.

use exuvia_api::{DatastorePhase, datastore_reason as reason};
use exuvia_datastore::protocol::Hold;
use exuvia_runtime::machine::Ended;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::Stage;

#[tokio::test]
async fn an_object_that_the_target_refuses_blocks_by_name_and_nothing_is_locked() {
    let stage = Stage::bare("refused").await;
    stage.old.install(&stage.client, "v1").await.unwrap();
    let mut crd = stage.new.crd("v1");
    crd["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["size"]["maximum"] =
        json!(5);
    stage.new.install_crd(&stage.client, crd).await.unwrap();
    stage.create_old("small", json!({"size": 1})).await;
    stage.create_old("large", json!({"size": 9})).await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    let blockers = engine.blockers();
    assert_eq!(blockers.len(), 1, "{blockers:?}");
    assert_eq!(
        (blockers[0].reason.as_str(), blockers[0].name.as_str()),
        (reason::REFUSED, "large")
    );
    assert!(
        !blockers[0].message.contains('9'),
        "no value: {}",
        blockers[0].message
    );
    assert_eq!(
        stage.policies(migration.metadata.uid.as_deref().unwrap()).await,
        0
    );
    assert!(stage.all(&stage.new).await.is_empty());
    // Mended, it goes on by itself.
    let patch = json!({"spec": {"size": 2}});
    stage
        .api(&stage.old)
        .patch("large", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
    exuvia_runtime::machine::Machine::retry(&mut engine, &Hold::Blocked);
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert_eq!(stage.phase().await, DatastorePhase::Complete);
}

#[tokio::test]
async fn a_target_that_differs_is_a_conflict_and_stays_as_it_is() {
    let stage = Stage::new("differs", 2).await;
    stage
        .create(&stage.new, "w1", json!({"size": 1, "color": "green"}))
        .await;
    stage
        .create(&stage.new, "w0", json!({"size": 0, "color": "red"}))
        .await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Conflicts));
    let found = engine.found();
    assert_eq!((found.progress.skipped, found.progress.conflicts), (1, 1));
    assert_eq!(
        (
            found.conflicts[0].name.as_str(),
            found.conflicts[0].field.as_str()
        ),
        ("w1", "spec.color")
    );
    assert_eq!(
        stage.policies(migration.metadata.uid.as_deref().unwrap()).await,
        0
    );
    // Resolved, it goes on.
    let patch = json!({"spec": {"color": "red"}});
    stage
        .api(&stage.new)
        .patch("w1", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
    exuvia_runtime::machine::Machine::retry(&mut engine, &Hold::Conflicts);
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    let progress = stage.read().await.status.unwrap().progress.unwrap();
    assert_eq!((progress.total, progress.migrated, progress.skipped), (2, 0, 2));
}

/// A kind that is not there, and a mistake in the spec: there is nothing yet that could work on either.
#[tokio::test]
async fn a_missing_kind_and_an_invalid_spec_block_until_they_are_mended() {
    let stage = Stage::bare("nothing").await;
    stage.old.install(&stage.client, "v1").await.unwrap();
    stage.create_old("one", json!({"size": 1})).await;
    let mut spec = stage.spec();
    spec["mappings"][0]["from"]["when"] = json!("object.(");
    let migration = stage.migration(spec).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    assert_eq!(engine.blockers()[0].reason, reason::INVALID_SPEC);
    let patch = json!({"spec": stage.spec()});
    stage
        .migrations()
        .patch(&stage.name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
    // Another spec is looked at without being asked.
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    assert_eq!(
        (
            engine.blockers()[0].reason.as_str(),
            engine.blockers()[0].kind.clone()
        ),
        (reason::NOT_SERVED, format!("Widget.{}", stage.new.group()))
    );
    stage.new.install(&stage.client, "v1").await.unwrap();
    assert_eq!(stage.goes_on(&mut engine, Hold::Blocked).await, Ended::Done);
    assert_eq!(stage.all(&stage.new).await.len(), 1);
}

/// The API server here does not list itself, so the writes under way cannot be counted, and the drain takes longer than the freeze may.
#[tokio::test]
async fn a_freeze_that_its_drain_would_outlast_is_told_before_anything_is_locked() {
    let stage = Stage::new("outlasted", 1).await;
    let mut spec = stage.spec();
    spec["freeze"] = json!({"drain": "Auto", "maxDuration": "40s"});
    let migration = stage.migration(spec).await;
    let mut engine = stage.engine_of_unlisted(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    let blockers = engine.blockers();
    assert_eq!(
        (blockers.len(), blockers[0].reason.as_str()),
        (1, reason::INVALID_SPEC)
    );
    let expected = "freeze.maxDuration (40s) is too short: not every API server can be asked itself";
    assert!(blockers[0].message.starts_with(expected), "{blockers:?}");
    assert_eq!(
        stage.policies(migration.metadata.uid.as_deref().unwrap()).await,
        0
    );
    assert!(
        stage
            .read()
            .await
            .status
            .is_none_or(|status| status.frozen_at.is_none())
    );
}
