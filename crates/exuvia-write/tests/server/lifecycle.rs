//! Create, adopt, apply and delete.

use exuvia_testenv::proxy::{Fault, Match, Rule};
use exuvia_write::{Adopted, Apply, Delete, Deleted, Error, ErrorClass};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{Stage, Widget};

fn wanted(stage: &Stage, name: &str) -> Widget {
    serde_json::from_value(json!(stage.widgets.widget("v1", name))).unwrap()
}

#[tokio::test]
async fn a_create_whose_answer_is_lost_is_recognised_and_another_writers_object_is_not() {
    let stage = Stage::set("life-create").await;
    let (api, writer) = (stage.api(), &stage.writer);
    stage
        .proxy
        .inject(Rule::on(Match::writes()).nth(1).then(Fault::ResetAnswer));
    let created = writer.create(&api, &wanted(&stage, "w")).await.unwrap();
    assert!(created.uid().is_some());
    stage.only_write();

    let error = writer.create(&api, &wanted(&stage, "w")).await.unwrap_err();
    assert!(error.is_already_exists(), "{error}");
    assert_eq!(error.class(), ErrorClass::Conflict);
}

#[tokio::test]
async fn an_object_that_exists_is_adopted_with_consent_and_left_as_it_is() {
    let stage = Stage::set("life-adopt").await;
    let (api, writer) = (stage.api(), &stage.writer);
    let created = writer
        .create_or_adopt(&api, &wanted(&stage, "w"), |_| false)
        .await
        .unwrap();
    assert!(matches!(created, Adopted::Created(_)));
    let mut other = wanted(&stage, "w");
    other.spec.size = 99;
    let adopted = writer
        .create_or_adopt(&api, &other, |found| found.spec.size == 1)
        .await
        .unwrap();
    let Adopted::Existing(found) = adopted else {
        panic!("{adopted:?}")
    };
    assert_eq!((found.spec.size, found.uid()), (1, created.into_object().uid()));
    let error = writer.create_or_adopt(&api, &other, |_| false).await.unwrap_err();
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
}

fn intent(stage: &Stage, spec: &Value) -> Value {
    json!({
        "apiVersion": format!("{}/v1", stage.widgets.group()), "kind": "Widget",
        "metadata": {"name": "w", "namespace": "default"}, "spec": spec,
    })
}

#[tokio::test]
async fn an_apply_makes_takes_over_and_lets_go() {
    let stage = Stage::set("life-apply").await;
    let (api, writer) = (stage.api(), &stage.writer);
    let both = intent(&stage, &json!({"size": 1, "color": "red"}));
    writer.apply(&api, &both, &Apply::default()).await.unwrap();
    // PITFALLS A17: a field that was applied before and is left out goes.
    writer
        .apply(&api, &intent(&stage, &json!({"size": 2})), &Apply::default())
        .await
        .unwrap();
    assert_eq!(stage.live("w").await["spec"], json!({"size": 2}));

    let other = exuvia_write::Writer::named("other");
    let theirs = intent(&stage, &json!({"size": 3}));
    let error = other.apply(&api, &theirs, &Apply::default()).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Conflict);
    assert!(error.is_ownership_conflict(), "{error}");
    let taken = other
        .apply(&api, &theirs, &Apply::default().force())
        .await
        .unwrap();
    assert_eq!(taken.spec.size, 3);
}

fn only_at(widget: &Widget) -> Apply {
    Apply::default().only_at(widget.uid().unwrap(), widget.resource_version().unwrap())
}

/// PITFALLS A16.
#[tokio::test]
async fn an_apply_with_a_stale_precondition_is_a_409() {
    let stage = Stage::set("life-apply-lock").await;
    let (api, writer) = (stage.api(), &stage.writer);
    let first = writer
        .apply(&api, &intent(&stage, &json!({"size": 1})), &Apply::default())
        .await
        .unwrap();
    let at = only_at(&first).force();
    writer
        .apply(&api, &intent(&stage, &json!({"size": 2})), &at)
        .await
        .unwrap();
    let error = writer
        .apply(&api, &intent(&stage, &json!({"size": 3})), &at)
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Conflict);
    assert!(!error.is_ownership_conflict(), "{error}");
    assert_eq!(stage.live("w").await["spec"]["size"], 2);
}

#[tokio::test]
async fn a_locked_apply_whose_answer_is_lost_is_recognised_by_a_rehearsal() {
    let stage = Stage::set("life-apply-lost").await;
    let (api, writer) = (stage.api(), &stage.writer);
    let first = writer
        .apply(&api, &intent(&stage, &json!({"size": 1})), &Apply::default())
        .await
        .unwrap();
    let at = only_at(&first);
    stage.proxy.forget();
    stage
        .proxy
        .inject(Rule::on(Match::writes()).nth(1).then(Fault::ResetAnswer));
    let second = writer
        .apply(&api, &intent(&stage, &json!({"size": 2})), &at)
        .await
        .unwrap();
    assert_eq!(second.spec.size, 2);
    let sent = stage.proxy.writes();
    assert_eq!(sent.len(), 2, "the write and its rehearsal");
    assert!(sent[1].query.contains("dryRun=All"));

    // One that never arrived is told from it, although a dry-run of it passes: it would change something.
    let at = only_at(&second);
    stage.proxy.clear();
    stage.proxy.forget();
    stage
        .proxy
        .inject(Rule::on(Match::writes()).nth(1).then(Fault::ResetRequest));
    writer
        .apply(&api, &intent(&stage, &json!({"size": 3})), &at)
        .await
        .unwrap();
    assert_eq!(stage.live("w").await["spec"]["size"], 3);
    assert_eq!(stage.proxy.writes().len(), 3, "lost, rehearsed, sent again");
}

#[tokio::test]
async fn a_status_can_be_applied_too() {
    let stage = Stage::set("life-apply-status").await;
    stage.widget("w").await;
    let mut status = intent(&stage, &json!({}));
    status.as_object_mut().unwrap().remove("spec");
    status["status"] = json!({"phase": "Ready"});
    let live = stage
        .writer
        .apply_status(&stage.api(), &status, &Apply::default())
        .await
        .unwrap();
    assert_eq!(live.status.unwrap().phase.as_deref(), Some("Ready"));
}

#[tokio::test]
async fn a_deletion_hits_this_object_and_no_other_of_the_name() {
    let stage = Stage::set("life-delete").await;
    let (api, writer) = (stage.api(), &stage.writer);
    let first = stage.widget("w").await;
    assert!(matches!(
        writer.delete(&api, &first, &Delete::default()).await.unwrap(),
        Deleted::Gone
    ));
    let second = stage.widget("w").await;
    assert!(matches!(
        writer.delete(&api, &first, &Delete::default()).await.unwrap(),
        Deleted::Gone
    ));
    assert_eq!(
        stage.read("w").await.uid(),
        second.uid(),
        "the new one is still there"
    );

    writer.patch(&api, &second, |w| w.spec.size = 2).await.unwrap();
    let careful = Delete::default().only_unchanged();
    let error = writer.delete(&api, &second, &careful).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Conflict);
    let fresh = stage.read("w").await;
    assert!(matches!(
        writer.delete(&api, &fresh, &careful).await.unwrap(),
        Deleted::Gone
    ));
    assert_eq!(stage.raw().get_opt("w").await.unwrap(), None);
}

#[tokio::test]
async fn a_deletion_whose_answer_is_lost_is_found_to_be_done() {
    let stage = Stage::set("life-delete-lost").await;
    let widget = stage.widget("w").await;
    stage
        .proxy
        .inject(Rule::on(Match::writes()).nth(1).then(Fault::ResetAnswer));
    let deleted = stage
        .writer
        .delete(&stage.api(), &widget, &Delete::default())
        .await
        .unwrap();
    assert!(matches!(deleted, Deleted::Gone));
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let stage = Stage::set("life-dry").await;
    let (api, writer) = (stage.api(), stage.writer.dry_run());
    let widget = stage.widget("w").await;
    let before = stage.live("w").await;
    let would_be = writer
        .patch(&api, &widget, |w| w.spec.size = 2)
        .await
        .unwrap()
        .object;
    assert_eq!(would_be.spec.size, 2);
    writer
        .patch_status(&api, &widget, |w| w.status_mut().ready = Some(1))
        .await
        .unwrap();
    writer
        .ensure_finalizer(&api, &widget, super::CLEANUP)
        .await
        .unwrap();
    writer.create(&api, &wanted(&stage, "other")).await.unwrap();
    writer
        .apply(
            &api,
            &intent(&stage, &json!({"size": 3})),
            &Apply::default().force(),
        )
        .await
        .unwrap();
    writer.rewrite(&api, &widget.metadata).await.unwrap();
    writer.delete(&api, &widget, &Delete::default()).await.unwrap();
    assert_eq!(stage.live("w").await, before);
    assert_eq!(stage.raw().get_opt("other").await.unwrap(), None);
}
