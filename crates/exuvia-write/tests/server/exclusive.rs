//! Compare-and-swap by apply, and objects that are made exclusively: PITFALLS A41 and A42.

use exuvia_testenv::proxy::{Fault, Match, Rule};
use exuvia_write::{Apply, Delete, Effect, Error, ErrorClass, Writer};
use kube::{ResourceExt, api::DeleteParams, api::DynamicObject};
use serde_json::{Value, json};

use super::{Stage, Widget};

fn intent(stage: &Stage, spec: &Value) -> Value {
    json!({
        "apiVersion": format!("{}/v1", stage.widgets.group()), "kind": "Widget",
        "metadata": {"name": "w", "namespace": "default"}, "spec": spec,
    })
}

fn dynamic(intent: &Value) -> DynamicObject {
    serde_json::from_value(intent.clone()).unwrap()
}

async fn applied(stage: &Stage, spec: &Value) -> Widget {
    let how = Apply::default();
    stage
        .writer
        .apply(&stage.api(), &intent(stage, spec), &how)
        .await
        .unwrap()
}

fn only_at(widget: &Widget) -> Apply {
    Apply::default()
        .force()
        .only_at(widget.uid().unwrap(), widget.resource_version().unwrap())
}

#[tokio::test]
async fn deleted_in_between_is_a_conflict_and_not_a_creation() {
    let stage = Stage::set("cas-deleted").await;
    let first = applied(&stage, &json!({"size": 1})).await;
    stage.raw().delete("w", &DeleteParams::default()).await.unwrap();
    let error = stage
        .writer
        .apply(
            &stage.api(),
            &intent(&stage, &json!({"size": 2})),
            &only_at(&first),
        )
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Conflict, "{error}");
    assert!(stage.raw().get_opt("w").await.unwrap().is_none());
}

#[tokio::test]
async fn deleted_and_created_again_in_between_is_a_conflict() {
    let stage = Stage::set("cas-recreated").await;
    let first = applied(&stage, &json!({"size": 1})).await;
    stage
        .writer
        .delete(&stage.api(), &first, &Delete::default())
        .await
        .unwrap();
    let second = applied(&stage, &json!({"size": 5})).await;
    let refused = async |how: &Apply| {
        let intent = intent(&stage, &json!({"size": 2}));
        stage.writer.apply(&stage.api(), &intent, how).await.unwrap_err()
    };
    let error = refused(&only_at(&first)).await;
    assert_eq!(error.class(), ErrorClass::Conflict, "{error}");
    // No read gives the uid of one and the resourceVersion of the other. If it did, the server would refuse that as well.
    let mixed = Apply::default()
        .force()
        .only_at(first.uid().unwrap(), second.resource_version().unwrap());
    let error = refused(&mixed).await;
    assert_eq!(error.class(), ErrorClass::Invalid, "{error}");
    assert_eq!(stage.live("w").await["spec"]["size"], 5);
}

#[tokio::test]
async fn a_lost_answer_does_not_hide_that_the_object_was_deleted() {
    let stage = Stage::set("cas-lost").await;
    let first = applied(&stage, &json!({"size": 1})).await;
    stage.raw().delete("w", &DeleteParams::default()).await.unwrap();
    stage
        .proxy
        .inject(Rule::on(Match::writes()).nth(1).then(Fault::ResetAnswer));
    let error = stage
        .writer
        .apply(
            &stage.api(),
            &intent(&stage, &json!({"size": 2})),
            &only_at(&first),
        )
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Conflict, "{error}");
    assert!(stage.raw().get_opt("w").await.unwrap().is_none());
}

/// The operations of our entries.
async fn operations(stage: &Stage) -> Vec<String> {
    let live = stage.live("w").await;
    let entries = live["metadata"]["managedFields"].as_array().unwrap().clone();
    let ours = entries.iter().filter(|entry| entry["manager"] == "tester");
    ours.map(|entry| entry["operation"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_field_that_was_created_is_removed_by_an_apply_that_leaves_it_out() {
    let stage = Stage::set("made-applied").await;
    let api = stage.widgets.api(&stage.proxied, "v1");
    let both = intent(&stage, &json!({"size": 1, "color": "red"}));
    stage.writer.create_applied(&api, &dynamic(&both)).await.unwrap();
    assert_eq!(operations(&stage).await, ["Apply"]);
    let writes = stage.proxy.writes().len();
    assert_eq!(writes, 2, "the creation, and the entry");
    applied(&stage, &json!({"size": 2})).await;
    assert_eq!(stage.live("w").await["spec"], json!({"size": 2}));

    // It says that the name is taken, and changes nothing.
    let before = stage.live("w").await;
    let error = stage
        .writer
        .create_applied(&api, &dynamic(&both))
        .await
        .unwrap_err();
    assert!(error.is_already_exists(), "{error}");
    assert_eq!(stage.live("w").await, before);
    // The control: after a plain creation the field stays.
    stage.raw().delete("w", &DeleteParams::default()).await.unwrap();
    stage.writer.create(&api, &dynamic(&both)).await.unwrap();
    let less = intent(&stage, &json!({"size": 2}));
    let force = Apply::default().force();
    stage.writer.apply(&stage.api(), &less, &force).await.unwrap();
    assert_eq!(stage.live("w").await["spec"], json!({"size": 2, "color": "red"}));
}

#[tokio::test]
async fn a_crash_between_creation_and_ownership_is_healed_before_the_next_apply() {
    let stage = Stage::set("made-crash").await;
    let api = stage.widgets.api(&stage.proxied, "v1");
    let both = intent(&stage, &json!({"size": 1, "color": "red"}));

    stage
        .proxy
        .inject(Rule::on(Match::writes()).nth(2).then(Fault::refuse(403)));
    let error = stage
        .writer
        .create_applied(&api, &dynamic(&both))
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Denied, "{error}");
    assert_eq!(operations(&stage).await, ["Update"]);
    // The next process finds the name taken, and applies: the fields then have two entries of ours.
    let error = stage
        .writer
        .create_applied(&api, &dynamic(&both))
        .await
        .unwrap_err();
    assert!(error.is_already_exists(), "{error}");
    applied(&stage, &json!({"size": 1, "color": "red"})).await;
    assert_eq!(operations(&stage).await.len(), 2);
    let live = api.get("w").await.unwrap();
    let healed = stage.writer.own_as_applied(&api, &live).await.unwrap();
    assert_eq!(healed.effect, Effect::Changed);
    assert_eq!(operations(&stage).await, ["Apply"]);
    assert_eq!(healed.object.metadata.generation, live.metadata.generation);
    let again = stage.writer.own_as_applied(&api, &healed.object).await.unwrap();
    assert_eq!(again.effect, Effect::Unsent);
    applied(&stage, &json!({"size": 2})).await;
    assert_eq!(stage.live("w").await["spec"], json!({"size": 2}));
}

#[tokio::test]
async fn ownership_is_taken_over_writes_in_between_and_never_of_another_object() {
    let stage = Stage::set("made-between").await;
    let api = stage.widgets.api(&stage.proxied, "v1");
    let both = intent(&stage, &json!({"size": 1, "color": "red"}));
    let before = stage.writer.create(&api, &dynamic(&both)).await.unwrap();
    let theirs = Writer::named("other");
    let widget = stage.read("w").await;
    theirs
        .patch(&stage.api(), &widget, |widget| widget.spec.size = 7)
        .await
        .unwrap();
    let written = stage.writer.own_as_applied(&api, &before).await.unwrap();
    assert_eq!(written.object.data["spec"]["size"], 7);
    let live = stage.live("w").await;
    let entries = live["metadata"]["managedFields"].as_array().unwrap().clone();
    let of = |manager: &str| {
        entries
            .iter()
            .find(|entry| entry["manager"] == manager)
            .cloned()
            .unwrap()
    };
    assert_eq!(of("other")["fieldsV1"], json!({"f:spec": {"f:size": {}}}));
    assert_eq!(of("tester")["operation"], "Apply");

    stage.raw().delete("w", &DeleteParams::default()).await.unwrap();
    stage.writer.create(&api, &dynamic(&both)).await.unwrap();
    let error = stage.writer.own_as_applied(&api, &before).await.unwrap_err();
    assert!(matches!(error, Error::Recreated { .. }), "{error}");
    assert_eq!(operations(&stage).await, ["Update"]);
}

#[tokio::test]
async fn lost_answers_of_both_writes_are_recognised() {
    let stage = Stage::set("made-lost").await;
    let api = stage.widgets.api(&stage.proxied, "v1");
    let both = intent(&stage, &json!({"size": 1, "color": "red"}));
    for nth in [1, 2] {
        stage.proxy.forget();
        stage
            .proxy
            .inject(Rule::on(Match::writes()).nth(nth).then(Fault::ResetAnswer));
        stage.writer.create_applied(&api, &dynamic(&both)).await.unwrap();
        assert_eq!(operations(&stage).await, ["Apply"]);
        assert_eq!(stage.proxy.writes().len(), 2, "nothing is sent twice");
        stage.proxy.clear();
        stage.raw().delete("w", &DeleteParams::default()).await.unwrap();
    }
}
