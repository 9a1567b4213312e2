//! A pass through the status and back, and what a status says when.

use super::*;

fn some_pass() -> Pass {
    let at = Timestamp::from_second(1_800_000_000).unwrap();
    Pass {
        uid: "u".into(),
        generation: 3,
        patrol_owed: false,
        stored_before: vec!["v1alpha1".into(), "v1".into()],
        wanted: true,
        preflight: Some(Preflight::Passed),
        r0: "17".parse().ok(),
        r0_at: Some(at),
        rewrite: Some(SweepEnd { unfinished: 0 }),
        unexplained: 1,
        came_back: true,
        verified_up_to: "6".parse().ok(),
        verify: Some(SweepEnd { unfinished: 2 }),
        r1: "19".parse().ok(),
        verified_in_full: true,
        trimmed: true,
        trimmed_at: Some(at),
        patrolled: true,
        spec: Some(exuvia_api::PassSpec {
            generation: 4,
            json: r#"{"resource":"widgets.example.com"}"#.into(),
        }),
    }
}

fn told(update: &StatusUpdate) -> StorageMigration {
    let mut migration = StorageMigration::new("m", exuvia_api::StorageMigrationSpec::default());
    update.apply(&mut migration, Some(1));
    migration
}

/// A crash at any point must not lose R0: what is done would get a second request.
#[test]
fn every_part_of_a_pass_survives_the_way_through_the_status() {
    let blocked = [Blocked::Preflight, Blocked::Pruning, Blocked::Forbidden];
    let passes = blocked.map(|why| Pass {
        preflight: Some(Preflight::Blocked(why)),
        ..some_pass()
    });
    let owing = Pass {
        patrol_owed: true,
        patrolled: false,
        ..some_pass()
    };
    for pass in passes.into_iter().chain([some_pass(), owing, Pass::default()]) {
        let update = StatusUpdate {
            pass: Some(pass.clone()),
            ..StatusUpdate::new(Phase::Patrolling, "", None)
        };
        let kept = serde_json::to_value(told(&update).status).unwrap();
        let status: StorageMigrationStatus = serde_json::from_value(kept).unwrap();
        assert_eq!(pass_of(&status), Some(pass));
    }
}

#[test]
fn what_was_done_for_an_older_spec_is_not_called_observed_for_a_newer_one() {
    let mut migration = StorageMigration::new("m", exuvia_api::StorageMigrationSpec::default());
    migration.metadata.generation = Some(2);
    StatusUpdate::new(Phase::Migrated, "", None).apply(&mut migration, Some(1));
    let status = migration.status.unwrap();
    assert_eq!(status.observed_generation, Some(1));
    let conditions = status.conditions.iter();
    assert!(
        conditions
            .map(|condition| condition.observed_generation)
            .all(|of| of == Some(1))
    );
}

#[test]
fn a_version_that_is_stored_again_is_not_droppable() {
    let mut migration = StorageMigration::new("m", exuvia_api::StorageMigrationSpec::default());
    migration.status.get_or_insert_default().droppable_versions = Some(vec!["v1alpha1".into()]);
    let update = StatusUpdate {
        stored_after: vec!["v1alpha1".into(), "v1".into()],
        ..StatusUpdate::new(Phase::Suspended, "", None)
    };
    update.apply(&mut migration, Some(1));
    assert_eq!(migration.status.unwrap().droppable_versions, Some(Vec::new()));
}

#[test]
fn times_are_kept_upwards_to_the_second() {
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    assert_eq!(
        whole_second(at("2026-01-01T00:00:00.001Z")).0,
        at("2026-01-01T00:00:01Z")
    );
    assert_eq!(
        whole_second(at("2026-01-01T00:00:01Z")).0,
        at("2026-01-01T00:00:01Z")
    );
}

#[test]
fn a_new_pass_withdraws_what_the_last_one_said_may_be_dropped() {
    let done = StatusUpdate {
        outlook: Some(Outlook {
            droppable: vec!["v1alpha1".into()],
            ..Outlook::default()
        }),
        ..StatusUpdate::new(Phase::Migrated, "", None)
    };
    let mut migration = told(&done);
    let droppable = |migration: &StorageMigration| migration.status.clone().unwrap().droppable_versions;
    assert_eq!(droppable(&migration), Some(vec!["v1alpha1".to_owned()]));
    StatusUpdate::new(Phase::Pending, "", None).apply(&mut migration, Some(1));
    assert_eq!(droppable(&migration), None);
}

#[test]
fn what_is_not_known_blocks_and_says_what_would_find_out() {
    let unknown = Unknown {
        what: crate::droppable::Holds::References,
        why: "not looked at".into(),
        command: "exuvia storage droppable widgets.example.com v1alpha1".into(),
    };
    let done = StatusUpdate {
        outlook: Some(Outlook {
            unknown: vec![("v1alpha1".into(), unknown)],
            ..Outlook::default()
        }),
        ..StatusUpdate::new(Phase::Migrated, "", None)
    };
    let status = told(&done).status.unwrap();
    assert_eq!(status.droppable_versions, Some(Vec::new()));
    let blocker = &status.blockers[0];
    assert_eq!(
        (blocker.version.as_str(), blocker.holds.as_str()),
        ("v1alpha1", "References")
    );
    assert_eq!(
        blocker.message,
        "not known: not looked at; to find out: exuvia storage droppable widgets.example.com v1alpha1"
    );
}

#[test]
fn only_a_migrated_one_is_ready_and_only_a_cause_stalls() {
    let status = |migration: &StorageMigration, wanted: &str| {
        let conditions = &migration.status.as_ref().unwrap().conditions;
        let found = conditions
            .iter()
            .find(|condition| condition.type_ == wanted)
            .unwrap();
        (found.status.clone(), found.reason.clone())
    };
    let cause = StallCause {
        reason: reason::FAILURES,
        message: "one object".into(),
    };
    let stalled = told(&StatusUpdate::new(Phase::Stalled, "one object", Some(cause)));
    assert_eq!(status(&stalled, "Ready"), ("False".into(), "Failures".into()));
    assert_eq!(status(&stalled, "Stalled"), ("True".into(), "Failures".into()));
    let migrated = told(&StatusUpdate::new(Phase::Migrated, "", None));
    assert_eq!(status(&migrated, "Migrated").0, "True");
    assert_eq!(
        status(&migrated, "Stalled"),
        ("False".into(), "NotStalled".into())
    );
}

/// A process that comes later, and did not look itself, says the same.
#[test]
fn a_migrated_one_says_which_crd_it_speaks_of_what_went_and_what_becomes_of_each_old_version() {
    let holder = Holder::new(
        crate::droppable::Holds::Usage,
        "1 watch is open: update the client",
    );
    let lost = Count {
        objects: 2,
        first: vec!["default/a".into(), "default/b".into()],
    };
    let mut losses = Losses::default();
    (losses.accepted, losses.objects) = (true, 2);
    losses.erased.insert("spec.legacy".into(), lost);
    let done = StatusUpdate {
        pass: Some(some_pass()),
        losses: super::losses(&losses),
        outlook: Some(Outlook {
            droppable: vec!["v1alpha1".into()],
            held: vec![("v1beta1".into(), holder.clone()), ("v1beta1".into(), holder)],
            ..Outlook::default()
        }),
        ..StatusUpdate::new(Phase::Migrated, "every object is stored at v1", None)
    };
    let mut migration = told(&done);
    let message = |migration: &StorageMigration| {
        let conditions = migration.status.clone().unwrap().conditions;
        let ready = conditions
            .into_iter()
            .find(|condition| condition.type_ == "Ready");
        ready.unwrap().message
    };
    let said = message(&migration);
    assert_eq!(
        said,
        "every object is stored at v1 (generation 3 of the CRD); accepted by spec.acceptPruning: the rewrite erased \
         spec.legacy (2 objects); v1alpha1 may be dropped; v1beta1 is held by usage: 1 watch is open: update the client (and 1 \
         more in status.blockers)"
    );
    assert_eq!(migration.status.clone().unwrap().migrated_generation, Some(3));
    let later = StatusUpdate {
        outlook: None,
        ..done
    };
    later.apply(&mut migration, Some(1));
    assert_eq!(message(&migration), said);
    StatusUpdate::new(Phase::Pending, "", None).apply(&mut migration, Some(1));
    let status = migration.status.unwrap();
    assert_eq!((status.migrated_generation, status.losses), (None, None));
}

#[test]
fn what_a_status_lists_of_losses_is_bounded_and_the_rest_is_counted() {
    let mut losses = Losses::default();
    for number in 0..60 {
        losses
            .erased
            .insert(format!("spec.f{number:02}"), Count::default());
    }
    losses.more_paths = 7;
    let listed = super::losses(&losses).unwrap();
    assert_eq!((listed.erased.len(), listed.more_fields), (50, 17));
    assert_eq!(super::losses(&Losses::default()), None, "nothing is taken away");
}

#[test]
fn what_is_at_rest_has_no_pace() {
    let running = MigrationProgress {
        total: 5,
        done: 3,
        rate: Some(2),
        eta: Some(Time(Timestamp::from_second(1).unwrap())),
        ..MigrationProgress::default()
    };
    let rest = at_rest(running);
    assert_eq!((rest.total, rest.done, rest.rate, rest.eta), (5, 3, None, None));
}

/// As Flux and Argo CD see it: at work in every phase but three, failed only when it is stalled.
#[test]
fn every_phase_reads_as_kstatus_expects_it() {
    use exuvia_testenv::kstatus::{Kstatus, kstatus};

    for phase in Phase::ALL {
        let expected = match phase {
            Phase::Migrated => Kstatus::Current,
            Phase::Stalled => Kstatus::Failed,
            _ => Kstatus::InProgress,
        };
        let cause = StallCause {
            reason: reason::FAILURES,
            message: "one object".into(),
        };
        let cause = (phase == Phase::Stalled).then_some(cause);
        let mut migration = told(&StatusUpdate::new(phase, "", cause));
        migration.metadata.generation = Some(1);
        let read = |migration: &StorageMigration| kstatus(&serde_json::to_value(migration).unwrap());
        assert_eq!(read(&migration), expected, "{phase:?}");
        let conditions = migration.status.clone().unwrap().conditions;
        let reconciling = conditions
            .iter()
            .find(|condition| condition.type_ == "Reconciling")
            .unwrap();
        let is_suspended = phase == Phase::Suspended;
        let is_working = expected == Kstatus::InProgress && !is_suspended;
        assert_eq!(reconciling.status == "True", is_working, "{phase:?}");
        migration.metadata.generation = Some(2);
        assert_eq!(read(&migration), Kstatus::InProgress, "the spec was changed");
    }
}

/// The runtime writes these conditions for any controller, and knows nothing of our API.
#[test]
fn the_runtime_publishes_the_conditions_of_our_api() {
    use exuvia_api::condition;
    use exuvia_runtime::publish;

    assert_eq!(
        [publish::READY, publish::RECONCILING, publish::STALLED],
        [condition::READY, condition::RECONCILING, condition::STALLED]
    );
}
