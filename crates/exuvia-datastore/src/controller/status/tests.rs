use serde_json::{Value, json};

use super::*;

fn migration(generation: i64, status: &Value) -> DatastoreMigration {
    serde_json::from_value(json!({
        "apiVersion": "exuvia.dev/v1beta1", "kind": "DatastoreMigration",
        "metadata": {"name": "m", "uid": "u", "generation": generation},
        "spec": {"mappings": []}, "status": status,
    }))
    .unwrap()
}

fn update(decided_in: Option<DatastorePhase>, phase: DatastorePhase) -> StatusUpdate {
    StatusUpdate {
        decided_in,
        phase,
        step: "Trying".to_owned(),
        message: "trying".into(),
        reason: None,
        is_working: true,
        stall_cause: None,
        progress: None,
        conflicts: None,
        blockers: None,
    }
}

fn applied(update: &StatusUpdate, status: &Value) -> Value {
    let mut migration = migration(7, status);
    update.apply(&mut migration, Some(7));
    serde_json::to_value(migration.status).unwrap()
}

#[test]
fn the_phase_is_set_only_while_nothing_is_locked() {
    use DatastorePhase::{Converged, Migrating, Pending, WaitingForConflictResolution};
    let new = applied(&update(None, Pending), &json!({}));
    assert_eq!(new["phase"], "Pending");
    let waits = update(Some(Pending), WaitingForConflictResolution);
    assert_eq!(
        applied(&waits, &json!({"phase": "Pending"}))["phase"],
        "WaitingForConflictResolution"
    );
    for phase in [Migrating, Converged] {
        let wrong = update(Some(phase), Pending);
        let status = applied(&wrong, &json!({"phase": phase.as_str()}));
        assert_eq!(status["phase"], phase.as_str(), "that is the engine's");
    }
}

#[test]
fn what_was_decided_in_another_phase_is_not_written() {
    let before = json!({"phase": "Converged", "message": "as it was"});
    let late = update(Some(DatastorePhase::Migrating), DatastorePhase::Migrating);
    assert_eq!(applied(&late, &before), before);
}

#[test]
fn a_failed_migration_keeps_the_generation_by_which_a_new_spec_is_seen() {
    let failed = update(Some(DatastorePhase::Failed), DatastorePhase::Failed);
    let status = applied(&failed, &json!({"phase": "Failed", "observedGeneration": 3}));
    assert_eq!(status["observedGeneration"], 3);
    let pending = update(Some(DatastorePhase::Pending), DatastorePhase::Pending);
    let status = applied(&pending, &json!({"phase": "Pending", "observedGeneration": 3}));
    assert_eq!(status["observedGeneration"], 7);
}

#[test]
fn a_long_message_is_cut_to_what_the_crd_takes() {
    let long = StatusUpdate {
        message: Redacted::ours("ü".repeat(2000)),
        ..update(None, DatastorePhase::Pending)
    };
    let status = applied(&long, &json!({}));
    let message = status["message"].as_str().unwrap();
    assert!(
        message.len() <= MESSAGE_BYTES && message.len() > 1000,
        "{}",
        message.len()
    );
}

#[test]
fn totals_of_the_trial_show_how_much_is_left() {
    let progress = |total: i64, migrated: i64| -> DatastoreProgress {
        serde_json::from_value(json!({
            "totalTypes": 1, "completedTypes": 1, "typeProgress": "1 / 1",
            "total": total, "migrated": migrated, "skipped": 0, "conflicts": 0,
            "types": [{"kind": "Widget", "mapping": "all", "total": total, "migrated": migrated, "skipped": 0, "conflicts": 0}],
        }))
        .unwrap()
    };
    let trial = before_the_copy(progress(20, 3));
    assert_eq!((trial.migrated, trial.type_progress.as_str()), (0, "0 / 1"));
    let running = with_totals_of(progress(4, 4), Some(&trial));
    assert_eq!(
        (running.total, running.types[0].total, running.migrated),
        (20, 20, 4)
    );
}
