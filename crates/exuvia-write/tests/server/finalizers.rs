//! Finalizers: no entry of anybody's is lost.

use exuvia_testenv::proxy::{Fault, Match, Rule};
use exuvia_write::{Delete, Deleted, ErrorClass, Finalizer};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::{CLEANUP, Stage};

const OTHER: Finalizer = Finalizer::new("other.example.com/cleanup");

/// PITFALLS B20.
#[tokio::test]
async fn two_writers_add_different_finalizers_from_the_same_snapshot() {
    let stage = Stage::set("fin-two").await;
    let snapshot = stage.widget("w").await;
    stage
        .writer
        .ensure_finalizer(&stage.api(), &snapshot, CLEANUP)
        .await
        .unwrap();
    let second = stage
        .writer
        .ensure_finalizer(&stage.api(), &snapshot, OTHER)
        .await
        .unwrap();
    let both = json!([CLEANUP.as_str(), OTHER.as_str()]);
    assert_eq!(stage.live("w").await["metadata"]["finalizers"], both);
    assert_eq!(
        json!(second.object.metadata.finalizers),
        both,
        "the answer is the server's"
    );

    // The control: the same two by an unlocked merge patch.
    stage.widget("control").await;
    for finalizer in [CLEANUP, OTHER] {
        let unlocked = Patch::Merge(json!({"metadata": {"finalizers": [finalizer.as_str()]}}));
        stage
            .raw()
            .patch("control", &PatchParams::default(), &unlocked)
            .await
            .unwrap();
    }
    assert_eq!(
        stage.live("control").await["metadata"]["finalizers"],
        json!([OTHER.as_str()])
    );
}

#[tokio::test]
async fn a_removal_from_an_old_snapshot_keeps_what_was_added_since() {
    let stage = Stage::set("fin-remove").await;
    let widget = stage.widget("w").await;
    let snapshot = stage
        .writer
        .ensure_finalizer(&stage.api(), &widget, CLEANUP)
        .await
        .unwrap()
        .object;
    stage
        .writer
        .ensure_finalizer(&stage.api(), &snapshot, OTHER)
        .await
        .unwrap();
    stage
        .writer
        .remove_finalizer(&stage.api(), &snapshot, CLEANUP)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        stage.live("w").await["metadata"]["finalizers"],
        json!([OTHER.as_str()])
    );
}

/// PITFALLS A9.
#[tokio::test]
async fn the_last_removal_lets_the_object_go_and_the_next_finds_it_gone() {
    let stage = Stage::set("fin-gone").await;
    let widget = stage.widget("w").await;
    let held = stage
        .writer
        .ensure_finalizer(&stage.api(), &widget, CLEANUP)
        .await
        .unwrap()
        .object;
    let deleted = stage
        .writer
        .delete(&stage.api(), &held, &Delete::default())
        .await
        .unwrap();
    let Deleted::Going(going) = deleted else {
        panic!("{deleted:?}")
    };
    let error = stage
        .writer
        .ensure_finalizer(&stage.api(), &going, OTHER)
        .await
        .unwrap_err();
    assert!(
        matches!(error.class(), ErrorClass::Denied | ErrorClass::Invalid),
        "{error}"
    );

    assert!(
        stage
            .writer
            .remove_finalizer(&stage.api(), &going, CLEANUP)
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(stage.raw().get_opt("w").await.unwrap(), None);
    assert!(
        stage
            .writer
            .remove_finalizer(&stage.api(), &going, CLEANUP)
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test]
async fn a_removal_whose_answer_is_lost_is_found_to_be_done() {
    let stage = Stage::set("fin-lost").await;
    let widget = stage.widget("w").await;
    let held = stage
        .writer
        .ensure_finalizer(&stage.api(), &widget, CLEANUP)
        .await
        .unwrap()
        .object;
    stage
        .proxy
        .inject(Rule::on(Match::writes()).nth(1).then(Fault::ResetAnswer));
    let removed = stage
        .writer
        .remove_finalizer(&stage.api(), &held, CLEANUP)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(removed.object.metadata.finalizers, None);
    assert_eq!(
        stage
            .proxy
            .writes()
            .iter()
            .filter(|sent| sent.upstream.is_some())
            .count(),
        2
    );
}
