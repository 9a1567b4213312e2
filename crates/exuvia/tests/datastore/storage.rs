//! A storage migration of a kind that is being moved waits.

use exuvia_api::{DatastorePhase, Phase, StorageMigration, StorageMigrationSpec};
use kube::Api;
use kube::api::PostParams;
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
