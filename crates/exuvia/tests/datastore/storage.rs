//! A storage migration of a kind that is being moved waits; one of a kind that was left frozen says what ends that.

use exuvia_api::{DatastorePhase, Phase, StorageMigration, StorageMigrationSpec};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use crate::harness::*;

#[tokio::test]
async fn a_storage_migration_of_a_moved_kind_waits_and_says_for_what() {
    let stage = Stage::new("both", 3).await;
    let mut spec = stage.spec();
    spec["cutover"] = json!({"hold": true});
    spec["cleanup"] = json!({"source": "Thaw"});
    stage.migrate(spec).await;
    stage
        .status_when("held", |status| status.step == "Verified")
        .await;

    let storage: Api<StorageMigration> = Api::all(stage.client.clone());
    let resource = stage.new.crd_name();
    let asked = StorageMigrationSpec {
        resource: resource.clone(),
        ..StorageMigrationSpec::default()
    };
    let asked = StorageMigration::new(&resource, asked);
    storage.create(&PostParams::default(), &asked).await.unwrap();
    let status = async || storage.get(&resource).await.unwrap().status.unwrap_or_default();
    until("it waits", async || {
        let status = status().await;
        let said = status.conditions.iter().any(|condition| {
            condition.type_ == "Ready"
                && condition
                    .message
                    .contains("DatastoreMigration both moves these objects")
        });
        (status.phase == Some(Phase::Pending) && said)
            .then_some(())
            .ok_or(status)
    })
    .await;
    stage.change(json!({"spec": {"cutover": {"hold": false}}})).await;
    stage.in_phase(DatastorePhase::Complete).await;
    until("it goes on", async || {
        let status = status().await;
        (status.phase == Some(Phase::Migrated))
            .then_some(())
            .ok_or(status)
    })
    .await;
}

/// Deletes the migration, with its finalizer or without, and waits until it is gone.
async fn delete(stage: &Stage, by_force: bool) {
    if by_force {
        stage.change(json!({"metadata": {"finalizers": null}})).await;
    }
    let migrations = stage.migrations();
    migrations
        .delete(&stage.name, &DeleteParams::default())
        .await
        .unwrap();
    until("it is gone", async || {
        migrations.get_opt(&stage.name).await.unwrap().is_none()
    })
    .await;
}

/// No operator runs that would let writers go.
#[tokio::test]
async fn a_storage_migration_of_a_kind_that_was_left_frozen_names_the_policy_and_the_command() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let access = control_plane.user("exuvia", &["system:masters"]).unwrap();
    let operator = Operator::start(&control_plane, &access, "first", &[]);
    operator.ready().await;
    let stage = Stage::at(client, "leftfrozen", 3).await;
    let mut spec = stage.spec();
    spec["cutover"] = json!({"hold": true});
    stage.migrate(spec).await;
    stage
        .status_when("held", |status| status.step == "Verified")
        .await;
    operator.process.kill().unwrap();
    let uid = stage.migrations().get(&stage.name).await.unwrap().metadata.uid;
    delete(&stage, true).await;

    let resource = stage.old.crd_name();
    let policy = format!("exuvia-{}-source", uid.unwrap());
    let frozen = format!("the policy {policy} of DatastoreMigration leftfrozen refuses writes");
    let thaw = "`exuvia datastore thaw leftfrozen`";
    let migrate = ["storage", "migrate", &resource, "--settle=1s"];
    let (done, said, noted) = exuvia(&control_plane, &migrate, None).await;
    assert!(!done, "{said}");
    assert!(said.contains(&frozen) && said.contains(thaw), "{said}");
    let note =
        format!("the policy {policy} of the DatastoreMigration leftfrozen, which is deleted, still freezes");
    assert!(noted.contains(&note) && noted.contains(thaw), "{noted}");

    let only_storage = ["--enable-datastore-migration=false"];
    let operator = Operator::start(&control_plane, &access, "second", &only_storage);
    operator.ready().await;
    let storage: Api<StorageMigration> = Api::all(stage.client.clone());
    let asked = StorageMigrationSpec {
        resource: resource.clone(),
        ..StorageMigrationSpec::default()
    };
    let asked = StorageMigration::new(&resource, asked);
    storage.create(&PostParams::default(), &asked).await.unwrap();
    let status = async || storage.get(&resource).await.unwrap().status.unwrap_or_default();
    until("it says what ends that", async || {
        let status = status().await;
        let mut conditions = status.conditions.iter();
        conditions
            .any(|condition| condition.message.contains(&frozen) && condition.message.contains(thaw))
            .then_some(())
            .ok_or(status)
    })
    .await;

    let (done, _, said) = exuvia(&control_plane, &["datastore", "thaw", "leftfrozen"], None).await;
    assert!(done, "{said}");
    until("it goes on", async || {
        let status = status().await;
        (status.phase == Some(Phase::Migrated))
            .then_some(())
            .ok_or(status)
    })
    .await;
}

/// The policy outlives its migration on purpose (`cleanup.source: KeepFrozen`), and lets updates pass that change nothing.
#[tokio::test]
async fn a_kind_that_stays_frozen_after_its_move_can_be_rewritten() {
    let stage = Stage::new("staysfrozen", 3).await;
    stage.migrate(stage.spec()).await;
    stage.in_phase(DatastorePhase::Complete).await;
    delete(&stage, false).await;
    stage.old.flip_storage(&stage.client, "v1alpha1").await.unwrap();
    let resource = stage.old.crd_name();
    let migrate = ["storage", "migrate", &resource, "--settle=1s"];
    let (done, said, noted) = exuvia(&shared().await.control_plane, &migrate, None).await;
    assert!(done && said.contains("3 rewritten"), "{said}{noted}");
    let stored = stage.old.stored_at(&shared().await.control_plane).await.unwrap();
    assert_eq!(stored.len(), 1, "{stored:?}");
}
