//! What stands in the way is named, and when it goes the migration goes on by itself.

use exuvia_api::{DatastorePhase, datastore_reason as reason};
use exuvia_testenv::kstatus::{Kstatus, kstatus};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::harness::*;

#[tokio::test]
async fn a_missing_crd_is_named_and_its_coming_is_enough() {
    let client = shared().await.control_plane.client().unwrap();
    let stage = Stage::without_target(client, "late", 3).await;
    stage.migrate(stage.spec()).await;
    let status = stage
        .status_when("blocked", |status| is_stalled_for(status, reason::NOT_SERVED))
        .await;
    assert_eq!(status.phase, Some(DatastorePhase::Pending));
    let expected = "no CRD for kind Widget in group new.late.dev";
    assert!(status.message.contains(expected), "{status:?}");
    assert_eq!(status.blockers.len(), 1, "{status:?}");
    assert_eq!(status.blockers[0].kind, "Widget.new.late.dev");
    let migration = stage.migrations().get(&stage.name).await.unwrap();
    assert_eq!(
        kstatus(&serde_json::to_value(&migration).unwrap()),
        Kstatus::Failed
    );

    stage.new.install(&stage.client, "v1").await.unwrap();
    let status = stage.in_phase(DatastorePhase::Complete).await;
    assert!(status.blockers.is_empty(), "{status:?}");
    assert_eq!(stage.names(&stage.new).await.len(), 3);
    let events = stage.event_reasons().await;
    assert_eq!(
        events.iter().filter(|reason| *reason == "Blocked").count(),
        1,
        "{events:?}"
    );
}

#[tokio::test]
async fn conflicts_are_waited_for_unfrozen_and_their_end_is_noticed() {
    let stage = Stage::new("differs", 2).await;
    stage.create(&stage.new, "w1", "blue").await;
    let mut spec = stage.spec();
    spec["conflicts"] = json!({"pollInterval": "1s"});
    stage.migrate(spec).await;
    let status = stage.in_phase(DatastorePhase::WaitingForConflictResolution).await;
    assert!(is_stalled_for(&status, reason::CONFLICT), "{status:?}");
    assert_eq!(status.conflicts.len(), 1, "{status:?}");
    assert_eq!(status.conflicts[0].name, "w1");
    assert_eq!(status.conflicts[0].namespace, stage.name);
    assert!(
        status.frozen_at.is_none() && status.started_at.is_none(),
        "{status:?}"
    );
    assert!(
        !status.message.contains("blue"),
        "it may be a secret: {}",
        status.message
    );
    // Writers are not refused meanwhile.
    stage.create(&stage.old, "w2", "red").await;

    let blue = Patch::Merge(json!({"spec": {"color": "blue"}}));
    stage
        .api(&stage.old)
        .patch("w1", &PatchParams::default(), &blue)
        .await
        .unwrap();
    let status = stage.in_phase(DatastorePhase::Complete).await;
    let progress = status.progress.unwrap();
    assert_eq!((progress.migrated, progress.skipped), (2, 1));
    assert!(status.conflicts.is_empty());
    assert!(stage.event_reasons().await.contains(&"Conflict".to_owned()));
}

#[tokio::test]
async fn a_suspended_migration_begins_when_it_is_let_go() {
    let stage = Stage::new("suspended", 2).await;
    let mut spec = stage.spec();
    spec["suspend"] = json!(true);
    stage.migrate(spec).await;
    let status = stage
        .status_when("suspended", |status| status.message.contains("suspended"))
        .await;
    assert_eq!(status.phase, Some(DatastorePhase::Pending));
    assert_eq!(condition(&status, "Stalled").0, "False");
    assert_eq!(condition(&status, "Reconciling").0, "False");
    stage.change(json!({"spec": {"suspend": false}})).await;
    stage.in_phase(DatastorePhase::Complete).await;
}

#[tokio::test]
async fn a_migration_that_is_held_before_the_cut_over_can_be_let_go_or_aborted() {
    let stage = Stage::new("held", 3).await;
    let mut spec = stage.spec();
    spec["cutover"] = json!({"hold": true});
    stage.migrate(spec.clone()).await;
    let held = |status: &exuvia_api::DatastoreMigrationStatus| status.step == "Verified";
    let status = stage.status_when("held", held).await;
    assert_eq!(status.phase, Some(DatastorePhase::Migrating));
    assert!(status.message.contains("cutover.hold"), "{status:?}");
    let frozen = format!("exuvia_datastore_frozen_seconds{{resource=\"{}\"}}", stage.name);
    until("the freeze is timed", async || {
        shared().await.operator.get("/metrics").await.1.contains(&frozen)
    })
    .await;
    stage.change(json!({"spec": {"cutover": {"hold": false}}})).await;
    stage.in_phase(DatastorePhase::Complete).await;

    let stage = Stage::new("aborted", 3).await;
    spec["mappings"] = stage.spec()["mappings"].clone();
    stage.migrate(spec).await;
    stage.status_when("held", held).await;
    assert_eq!(stage.names(&stage.new).await.len(), 3);
    let migrations = stage.migrations();
    migrations
        .delete(&stage.name, &DeleteParams::default())
        .await
        .unwrap();
    until("it is gone", async || {
        migrations.get_opt(&stage.name).await.unwrap().is_none()
    })
    .await;
    assert_eq!(stage.names(&stage.new).await, Vec::<String>::new());
    let events = stage.event_reasons().await;
    assert!(events.contains(&"Undoing".to_owned()), "{events:?}");
}

#[tokio::test]
async fn of_two_that_overlap_the_second_waits_for_the_first() {
    let stage = Stage::new("overlap", 3).await;
    let mut spec = stage.spec();
    spec["cutover"] = json!({"hold": true});
    stage.migrate(spec).await;
    stage
        .status_when("held", |status| status.step == "Verified")
        .await;
    stage.migrate_as("overlap-second", stage.spec()).await;
    let status = status_when(&stage.client, "overlap-second", "blocked", |status| {
        is_stalled_for(status, reason::OVERLAP)
    })
    .await;
    assert!(
        status.message.contains("DatastoreMigration overlap "),
        "{status:?}"
    );
    stage.change(json!({"spec": {"cutover": {"hold": false}}})).await;
    stage.in_phase(DatastorePhase::Complete).await;
    let status = status_when(&stage.client, "overlap-second", "complete", |status| {
        status.phase == Some(DatastorePhase::Complete)
    })
    .await;
    assert_eq!(status.progress.unwrap().skipped, 3, "nothing was left to copy");
}

/// `maxDuration` runs out while the spec asks to hold: everything is undone, and a retry begins again.
#[tokio::test]
async fn a_failed_migration_says_why_and_begins_again_when_it_is_asked_to() {
    let stage = Stage::new("failed", 2).await;
    let mut spec = stage.spec();
    spec["freeze"]["maxDuration"] = json!("8s");
    spec["cutover"] = json!({"hold": true});
    stage.migrate(spec).await;
    let status = stage
        .status_when("failed", |status| is_stalled_for(status, reason::MAX_DURATION))
        .await;
    assert_eq!(status.phase, Some(DatastorePhase::Failed));
    assert!(status.message.contains("everything was undone"), "{status:?}");
    assert!(status.frozen_at.is_none() && status.undo.is_none(), "{status:?}");
    assert_eq!(stage.names(&stage.new).await, Vec::<String>::new());
    let events = stage.event_reasons().await;
    for reason in ["Undoing", "Thawed", "Failed"] {
        assert!(events.contains(&reason.to_owned()), "{events:?}");
    }
    stage
        .change(json!({
            "metadata": {"annotations": {"exuvia.dev/retry": ""}},
            "spec": {"freeze": {"maxDuration": "15m"}, "cutover": {"hold": false}},
        }))
        .await;
    stage.in_phase(DatastorePhase::Complete).await;
}
