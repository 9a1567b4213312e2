//! The order of the steps in calm weather, and what single observations lead to.

use exuvia_api::DatastorePhase;

use super::*;

#[test]
fn every_undo_is_found_again_by_its_reason() {
    for undo in Undo::ALL {
        assert_eq!(Undo::from_reason(undo.reason()), Some(undo));
    }
}

#[test]
fn a_fresh_migration_is_checked_before_it_gets_a_finalizer() {
    let observed = Observed::default();
    assert_eq!(next(&observed), NextStep::Do(Step::Check));
}

#[test]
fn a_policy_that_vanishes_after_the_freeze_undoes_everything() {
    let observed = Observed {
        record: Record {
            phase: DatastorePhase::Migrating,
            frozen: true,
            ..Record::default()
        },
        ..Observed::default()
    };
    assert_eq!(next(&observed), NextStep::Do(Step::Undo(Undo::PolicyRemoved)));
}

#[test]
fn a_deleted_migration_that_was_complete_is_cleaned_up_and_never_undone() {
    let observed = Observed {
        record: Record {
            phase: DatastorePhase::Complete,
            deletion: Deletion::Asked,
            has_finalizer: true,
            ..Record::default()
        },
        ..Observed::default()
    };
    assert_eq!(next(&observed), NextStep::Do(Step::CleanUp));
}
