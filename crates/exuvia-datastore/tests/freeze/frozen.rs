//! Who is refused what, in both forms.

use exuvia_api::{LabelSelector, MIGRATION_UID_ANNOTATION};
use exuvia_datastore::freeze::{FIELD_MANAGER, Form};
use exuvia_testenv::until;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::Stage;
use crate::requests::{
    MERGE, Write, at, create, delete, delete_collection, empty, updates, without_finalizers,
};

const FROZEN: &str = "writes are refused until it has converged";
const MOVED: &str = "its objects can be deleted, but not created or changed";

async fn stored(stage: &Stage, name: &str) -> Value {
    let api = stage.source.api(&stage.admin, "v1");
    serde_json::to_value(api.get(name).await.unwrap()).unwrap()
}

#[tokio::test]
async fn while_frozen_every_write_of_others_is_refused_and_ours_pass() {
    let stage = Stage::set("table").await;
    let held = json!({"finalizers": ["example.com/hold"]});
    stage.widget("w", held).await;
    let freeze = stage.freeze();
    stage.set_and_wait(&freeze, Form::Frozen, false).await;
    let before = stored(&stage, "w").await;
    let group = stage.source.group();

    let mut writes = updates(&before, "w");
    writes.extend([
        empty("w"),
        without_finalizers("w"),
        create(group, "fresh", json!({})),
        delete("w"),
        delete_collection(),
    ]);
    for write in &writes {
        for (client, manager) in [
            (&stage.other, "kubectl"),
            (&stage.other, FIELD_MANAGER),
            (&stage.ours, "exuvia"),
        ] {
            let answer = write.send(client, group, manager).await;
            assert!(
                answer.is_refused(FROZEN),
                "{} by {manager}: {answer:?}",
                write.what
            );
            assert!(answer.message.contains("DatastoreMigration table"), "{answer:?}");
        }
    }
    assert_eq!(stored(&stage, "w").await, before, "nothing came of it");

    // A DELETE has no field manager, so ours are refused as well: none is needed before the commit.
    for write in [delete("w"), delete_collection()] {
        let answer = write.send(&stage.ours, group, FIELD_MANAGER).await;
        assert!(answer.is_refused(FROZEN), "{}: {answer:?}", write.what);
    }
    for write in &writes {
        if write.method != "DELETE" && write.method != "PUT" {
            let answer = write.send(&stage.ours, group, FIELD_MANAGER).await;
            let is_ok = answer.is_ok();
            assert!(is_ok, "{} by us: {answer:?}", write.what);
        }
    }
}

#[tokio::test]
async fn after_the_commit_a_source_can_be_deleted_and_let_go_but_not_changed() {
    let stage = Stage::set("moved").await;
    for name in ["w", "x"] {
        stage
            .widget(
                name,
                json!({"finalizers": ["example.com/hold", "example.com/second"]}),
            )
            .await;
    }
    // The comparison of old and new must not cost more than the server allows.
    let mut big = stage.source.widget("v1", "big");
    big.metadata.finalizers = Some(vec!["example.com/hold".to_owned()]);
    let parts: serde_json::Map<String, Value> =
        (0..10_000).map(|n| (format!("part-{n}"), json!("x"))).collect();
    big.data["spec"] = json!({"payload": "x".repeat(900_000), "parts": parts});
    let widgets = stage.source.api(&stage.admin, "v1");
    widgets.create(&PostParams::default(), &big).await.unwrap();
    let freeze = stage.freeze();
    stage.set_and_wait(&freeze, Form::Frozen, false).await;
    stage.set_and_wait(&freeze, Form::Converged, false).await;
    let group = stage.source.group();
    let before = stored(&stage, "w").await;
    let mut writes = updates(&before, "w");
    let both = json!({"metadata": {"finalizers": null}, "spec": {"color": "sneaked in"}});
    let swapped = json!({"metadata": {"finalizers": ["example.com/other"]}});
    writes.extend([
        create(group, "fresh", json!({})),
        Write::new("a change beside a finalizer", "PATCH", at("v1", "w")).body(MERGE, both),
        Write::new("a finalizer swapped", "PATCH", at("v1", "w")).body(MERGE, swapped),
    ]);
    for write in &writes {
        let answer = write.send(&stage.other, group, "kubectl").await;
        assert!(answer.is_refused(MOVED), "{}: {answer:?}", write.what);
    }
    let one = Write::new("one finalizer removed", "PATCH", at("v1", "w"))
        .body(MERGE, json!({"metadata": {"finalizers": ["example.com/second"]}}));
    for write in [
        one,
        delete("w"),
        without_finalizers("w"),
        without_finalizers("x"),
        delete("x"),
        without_finalizers("big"),
        delete("big"),
    ] {
        let answer = write.send(&stage.other, group, "kubectl").await;
        assert!(answer.is_ok(), "{}: {answer:?}", write.what);
    }
    let api = stage.source.api(&stage.admin, "v1");
    for name in ["w", "x"] {
        until("it is gone", async || api.get_opt(name).await.unwrap().is_none()).await;
    }
    // The target is free.
    let answer = create(stage.target.group(), "fresh", json!({}));
    let answer = answer.send(&stage.other, stage.target.group(), "kubectl").await;
    assert!(answer.is_ok(), "{answer:?}");
}

#[tokio::test]
async fn a_namespace_waits_for_the_commit_and_is_then_deleted() {
    let stage = Stage::set("leaving").await;
    let namespaces: Api<Namespace> = Api::all(stage.admin.clone());
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "leaving"}})).unwrap();
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    stage.widget("w", json!({"namespace": "leaving"})).await;
    let freeze = stage.freeze();
    stage.set_and_wait(&freeze, Form::Frozen, false).await;
    namespaces
        .delete("leaving", &DeleteParams::default())
        .await
        .unwrap();
    until("the namespace controller was refused", async || {
        let namespace = namespaces.get("leaving").await.unwrap();
        let conditions = namespace
            .status
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        let mut failed = conditions.iter().filter(|condition| condition.status == "True");
        failed.any(|condition| condition.message.as_deref().unwrap_or_default().contains(FROZEN))
    })
    .await;
    let widgets: Api<DynamicObject> =
        Api::namespaced_with(stage.admin.clone(), "leaving", &stage.source.resource("v1"));
    assert!(widgets.get_opt("w").await.unwrap().is_some());
    freeze.set(Form::Converged, false).await.unwrap();
    until("the namespace is gone", async || {
        namespaces.get_opt("leaving").await.unwrap().is_none()
    })
    .await;
}

#[tokio::test]
async fn a_selector_freezes_what_it_chooses_before_and_after_the_write() {
    let stage = Stage::set("selected").await;
    let selector: LabelSelector = serde_json::from_value(json!({
        "matchLabels": {"moved": "yes"},
        "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["gold", "silver"]},
            {"key": "zone", "operator": "NotIn", "values": ["far"]},
            {"key": "kept", "operator": "DoesNotExist"},
            {"key": "app", "operator": "Exists"},
        ],
    }))
    .unwrap();
    let chosen = json!({"moved": "yes", "tier": "gold", "app": ""});
    let but = |key: &str, value: Value| {
        let mut labels = chosen.clone();
        labels[key] = value;
        labels
            .as_object_mut()
            .unwrap()
            .retain(|_, value| !value.is_null());
        labels
    };
    let others = [
        ("bare", json!({})),
        ("unmoved", but("moved", json!("no"))),
        ("bronze", but("tier", json!("bronze"))),
        ("far", but("zone", json!("far"))),
        ("kept", but("kept", json!(""))),
        ("appless", but("app", json!(null))),
    ];
    stage.widget("chosen", json!({"labels": chosen})).await;
    stage
        .widget("near", json!({"labels": but("zone", json!("near"))}))
        .await;
    for (name, labels) in &others {
        stage.widget(name, json!({"labels": labels})).await;
    }
    let mut scope = stage.scope.clone();
    scope.source[0].selector = selector;
    let freeze = stage.freeze_of(scope);
    stage.set_and_wait(&freeze, Form::Frozen, false).await;
    let group = stage.source.group();
    let recolor = |name: &str| {
        Write::new("recolor", "PATCH", at("v1", name)).body(MERGE, json!({"spec": {"color": "blue"}}))
    };
    let relabel = |name: &str, labels: Value| {
        Write::new("relabel", "PATCH", at("v1", name)).body(MERGE, json!({"metadata": {"labels": labels}}))
    };

    for name in ["chosen", "near"] {
        for write in [recolor(name), delete(name), relabel(name, json!({"moved": null}))] {
            let answer = write.send(&stage.other, group, "kubectl").await;
            assert!(answer.is_refused(FROZEN), "{} {name}: {answer:?}", write.what);
        }
    }
    let answer = relabel("unmoved", json!({"moved": "yes"}))
        .send(&stage.other, group, "kubectl")
        .await;
    assert!(answer.is_refused(FROZEN), "a label lets an object in: {answer:?}");
    let answer = create(group, "fresh", chosen.clone())
        .send(&stage.other, group, "kubectl")
        .await;
    assert!(answer.is_refused(FROZEN), "{answer:?}");
    // Scale has no labels by which one could choose.
    let scale = Write::new("/scale", "PATCH", at("v1", "bare") + "/scale")
        .body(MERGE, json!({"spec": {"replicas": 2}}));
    let answer = scale.send(&stage.other, group, "kubectl").await;
    assert!(answer.is_refused(FROZEN), "{answer:?}");

    for (name, _) in &others {
        for write in [recolor(name), delete(name)] {
            let answer = write.send(&stage.other, group, "kubectl").await;
            assert!(answer.is_ok(), "{} {name}: {answer:?}", write.what);
        }
    }
    let answer = create(group, "free", json!({}))
        .send(&stage.other, group, "kubectl")
        .await;
    assert!(answer.is_ok(), "{answer:?}");
    let answer = delete_collection().send(&stage.other, group, "kubectl").await;
    assert!(answer.is_refused(FROZEN), "{answer:?}");
    assert!(
        stage
            .source
            .api(&stage.admin, "v1")
            .get_opt("chosen")
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test]
async fn others_neither_make_targets_nor_touch_our_copies() {
    let stage = Stage::set("copies").await;
    let targets = stage.target.api(&stage.admin, "v1");
    let widget = stage.target.widget("v1", "foreign");
    targets.create(&PostParams::default(), &widget).await.unwrap();
    let freeze = stage.freeze();
    stage.set_and_wait(&freeze, Form::Frozen, false).await;
    let group = stage.target.group();

    let mut copy = create(group, "copy", json!({}));
    let mark = json!({MIGRATION_UID_ANNOTATION: stage.scope.uid});
    copy.body["metadata"]["annotations"] = mark.clone();
    copy.body["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let refused = copy.send(&stage.other, group, "kubectl").await;
    assert!(refused.is_refused("until it has converged"), "{refused:?}");
    let made = copy.send(&stage.ours, group, FIELD_MANAGER).await;
    assert!(made.is_ok(), "{made:?}");

    let live = serde_json::to_value(targets.get("copy").await.unwrap()).unwrap();
    let mut writes = updates(&live, "copy");
    let unmark = json!({"metadata": {"annotations": {MIGRATION_UID_ANNOTATION: null}}});
    let mark_foreign = json!({"metadata": {"annotations": mark}});
    writes.extend([
        empty("copy"),
        without_finalizers("copy"),
        delete("copy"),
        Write::new("unmark", "PATCH", at("v1", "copy")).body(MERGE, unmark),
        Write::new("mark a foreign one", "PATCH", at("v1", "foreign")).body(MERGE, mark_foreign),
    ]);
    for write in &writes {
        let answer = write.send(&stage.other, group, "kubectl").await;
        assert!(
            answer.is_refused("until it has converged"),
            "{}: {answer:?}",
            write.what
        );
    }
    let recolor = json!({"spec": {"color": "blue"}});
    let foreign = Write::new("a foreign one", "PATCH", at("v1", "foreign")).body(MERGE, recolor);
    let answer = foreign.send(&stage.other, group, "kubectl").await;
    assert!(answer.is_ok(), "{answer:?}");
    // An undo deletes copies: without a field manager, by our user.
    for write in [without_finalizers("copy"), delete("copy")] {
        let answer = write.send(&stage.ours, group, FIELD_MANAGER).await;
        assert!(answer.is_ok(), "{}: {answer:?}", write.what);
    }
    assert!(targets.get_opt("copy").await.unwrap().is_none());
    assert_eq!(targets.get("foreign").await.unwrap().name_any(), "foreign");
}
