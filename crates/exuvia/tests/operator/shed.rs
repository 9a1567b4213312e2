//! `spec.shed`: what can be shed is judged by the spec that is carried out, and not by what the status said last.

use exuvia_api::{Phase, StorageMigration};
use k8s_openapi::jiff::Timestamp;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::harness::*;

/// What is done once is not asked for again, whatever else in the spec changes.
#[tokio::test]
async fn a_version_that_was_shed_and_dropped_does_not_make_the_spec_invalid() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let widgets = flipped(&client, "dropped-shed.example.com", 2, false).await;
    let shed = json!({"shed": ["v1alpha1"]});
    by_hand(&client, "dropped-shed", spec_of(&widgets, shed)).await;
    in_phase(&client, "dropped-shed", Phase::Migrated).await;
    widgets.drop_version(&client, "v1alpha1").await.unwrap();
    change_spec(&client, "dropped-shed", json!({"qps": 500})).await;
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    let generation = migrations.get("dropped-shed").await.unwrap().metadata.generation;
    let what = "the new spec was looked at";
    let status = status_when(&client, "dropped-shed", what, |status| {
        let is_said = matches!(status.phase, Some(Phase::Migrated | Phase::Stalled));
        is_said && status.observed_generation == generation
    })
    .await;
    assert_eq!(status.phase, Some(Phase::Migrated), "{status:?}");
    // A version that was never there is refused as before.
    change_spec(&client, "dropped-shed", json!({"shed": ["v1alpha1", "v9"]})).await;
    stalled_for(&client, "dropped-shed", "InvalidSpec").await;
}

#[tokio::test]
async fn a_suspended_migration_with_an_invalid_shed_is_suspended() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let widgets = flipped(&client, "idle-shed.example.com", 1, false).await;
    by_hand(&client, "idle-shed", spec_of(&widgets, json!({"shed": ["v9"]}))).await;
    stalled_for(&client, "idle-shed", "InvalidSpec").await;
    change_spec(&client, "idle-shed", json!({"suspend": true})).await;
    in_phase(&client, "idle-shed", Phase::Suspended).await;
    change_spec(&client, "idle-shed", json!({"suspend": false})).await;
    stalled_for(&client, "idle-shed", "InvalidSpec").await;
}

/// That it stood by says nothing about its spec.
#[tokio::test]
async fn an_invalid_shed_is_refused_when_the_migration_takes_over_from_an_older_one() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let widgets = flipped(&client, "next-shed.example.com", 1, false).await;
    let elder = by_hand(
        &client,
        "next-shed-elder",
        spec_of(&widgets, json!({"suspend": true})),
    )
    .await;
    in_phase(&client, "next-shed-elder", Phase::Suspended).await;
    let created = elder.creation_timestamp().unwrap().0;
    until("a second passes: the server counts no less", async || {
        (Timestamp::now().as_second() > created.as_second()).then_some(())
    })
    .await;
    let shed = json!({"shed": ["v9"]});
    by_hand(&client, "next-shed-younger", spec_of(&widgets, shed)).await;
    stalled_for(&client, "next-shed-younger", "Duplicate").await;
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    migrations
        .delete("next-shed-elder", &DeleteParams::default())
        .await
        .unwrap();
    let what = "it takes over";
    let status = status_when(&client, "next-shed-younger", what, |status| {
        let mut conditions = status.conditions.iter();
        !conditions.any(|condition| condition.reason == "Duplicate")
            && !status.phase.is_some_and(Phase::is_working)
    })
    .await;
    assert_eq!(status.phase, Some(Phase::Stalled), "{status:?}");
    stalled_for(&client, "next-shed-younger", "InvalidSpec").await;
}
