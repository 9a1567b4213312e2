//! What becomes of single objects: who takes them, what is copied, what fails and how that is said.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{compile, convert, from, only, spec, widget, widgets};

#[test]
fn everything_but_metadata_and_status_is_content() {
    let object = widget(json!({
        "data": {"a": [1, null, {"b": i64::MAX, "c": u64::MAX, "d": -1, "e": 1000.5, "f": 0}]},
        "spec": {"x": null, "empty": {}, "list": []},
        "rules": "text",
        "status": {"phase": "Ready"},
        "metadata": {
            "uid": "u", "resourceVersion": "1", "generation": 4, "creationTimestamp": "2024-01-01T00:00:00Z",
            "deletionTimestamp": "2024-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0, "selfLink": "/x",
            "generateName": "a-", "managedFields": [], "finalizers": ["example.com/f"], "labels": {}, "annotations": {},
            "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "1", "controller": true}],
        },
    }));
    let output = only(convert(json!({}), &object));
    let mut expected = object.clone();
    expected["apiVersion"] = json!("example.com/v1");
    expected["metadata"] = json!({"name": "a", "namespace": "shop"});
    expected.as_object_mut().expect("an object").remove("status");
    assert_eq!(output.object, expected);
    assert_eq!(output.owners[0].controller, Some(true));
    // To the digit, as it would be sent.
    assert!(output.object.to_string().contains("18446744073709551615"));
    assert!(output.object.to_string().contains("1000.5"));
}

#[test]
fn the_first_mapping_that_takes_an_object_moves_it() {
    let to = |name: &str, from: Value| {
        let mut mapping = widgets(json!({"name": name, "to": {"kind": name.to_uppercase()}}));
        super::merge(&mut mapping, json!({"from": from}));
        mapping
    };
    let mappings = compile(&spec(json!([
        to("gold", json!({"selector": {"matchLabels": {"tier": "gold"}}})),
        to(
            "big",
            json!({"when": "object.?spec.?size.orValue(0) > 10", "ready": "object.spec.size < 100"})
        ),
        to("rest", json!({"when": "object.metadata.name != 'stays'"})),
    ])));
    assert_eq!(mappings.names().collect::<Vec<_>>(), ["gold", "big", "rest"]);
    let gold = json!({"metadata": {"labels": {"tier": "gold"}}, "spec": {"size": 50}});
    for (more, taken_by, ready) in [
        (gold, Some(0), true),
        (json!({"spec": {"size": 50}}), Some(1), true),
        (json!({"spec": {"size": 500}}), Some(1), false),
        (json!({"spec": {"size": 5}}), Some(2), true),
        (json!({"metadata": {"name": "stays"}}), None, false),
    ] {
        let converted = mappings.convert(&widget(more.clone())).expect("it converts");
        assert_eq!((converted.taken_by, converted.ready), (taken_by, ready), "{more}");
        assert_eq!(converted.outputs.len(), usize::from(taken_by.is_some()));
    }
    let other = json!({"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": "a"}});
    assert_eq!(mappings.convert(&other).expect("it is not ours").taken_by, None);
}

#[test]
fn an_extra_mapping_makes_nothing_of_an_object_that_is_not_moved() {
    let mappings = compile(&spec(json!([
        widgets(json!({"from": {"when": "object.spec.moved"}})),
        widgets(json!({"name": "more", "extra": true, "to": {"kind": "Gadget"}, "from": {"ready": "false"}})),
    ])));
    let moved = mappings
        .convert(&widget(json!({"spec": {"moved": true}})))
        .expect("it converts");
    assert_eq!((moved.outputs.len(), moved.ready), (2, false));
    let stays = mappings
        .convert(&widget(json!({"spec": {"moved": false}})))
        .expect("it converts");
    assert_eq!((stays.taken_by, stays.outputs.len()), (None, 0));
}

#[test]
fn the_scope_can_change_in_both_directions() {
    let output = only(convert(
        json!({"metadata": {"name": "object.metadata.namespace + '-' + object.metadata.name", "namespace": "optional.none()"}}),
        &widget(json!({})),
    ));
    assert_eq!((output.namespace, output.name.as_str()), (None, "shop-a"));
    assert_eq!(output.object["metadata"], json!({"name": "shop-a"}));

    let mut cluster = widget(json!({}));
    cluster["metadata"]
        .as_object_mut()
        .expect("an object")
        .remove("namespace");
    let output = only(convert(json!({"metadata": {"namespace": "'system'"}}), &cluster));
    assert_eq!(output.namespace.as_deref(), Some("system"));
    assert_eq!(
        output.object["metadata"],
        json!({"name": "a", "namespace": "system"})
    );
}

#[test]
fn two_sources_with_one_target_have_the_same_key() {
    let more = json!({"metadata": {"name": "object.spec.id"}});
    let one = only(convert(
        more.clone(),
        &widget(json!({"spec": {"id": "x"}, "metadata": {"name": "one"}})),
    ));
    let two = only(convert(
        more,
        &widget(json!({"spec": {"id": "x"}, "metadata": {"name": "two"}})),
    ));
    assert_eq!(one.key(), two.key());

    let twice = compile(&spec(json!([
        widgets(json!({})),
        widgets(json!({"name": "again", "extra": true}))
    ])));
    let error = twice
        .convert(&widget(json!({})))
        .expect_err("one object cannot become the same twice");
    assert_eq!(
        (error.mapping(), error.path()),
        (Some("again"), "mappings[1].metadata.name")
    );
}

#[test]
fn conversions_are_done_in_order_onto_the_copy() {
    let output = only(convert(
        json!({
            "convert": [
                {"path": "spec.a", "value": "object.spec.b"},
                {"path": "spec.b", "value": "object.spec.a"},
                {"path": "spec.gone", "value": "object.spec.?nothing"},
                {"path": "spec.c.d[\"e.f/g\"]", "value": "[1, 2.5, -3]"},
                {"path": "spec.null", "value": "null"},
                {"path": "metadata.labels[\"example.com/a\"]", "value": "string(object.spec.a)"},
                {"path": "metadata.annotations", "value": "{'only': 'this'}"},
                {"path": "status.phase", "value": "'Moved'"},
            ],
            "metadata": {"annotations": {"lost": "'x'"}},
            "remove": ["spec.old", "spec.never.there"],
            "status": "Copy",
        }),
        &widget(json!({
            "spec": {"a": 1, "b": 2, "gone": true, "old": {}},
            "status": {"phase": "Ready", "n": 1},
        })),
    ));
    assert_eq!(
        output.object["spec"],
        json!({"a": 2, "b": 1, "c": {"d": {"e.f/g": [1, 2.5, -3]}}, "null": null})
    );
    assert_eq!(
        output.object["metadata"],
        json!({"name": "a", "namespace": "shop", "labels": {"example.com/a": "1"}, "annotations": {"only": "this"}})
    );
    assert_eq!(output.status, Some(json!({"phase": "Moved", "n": 1})));
    assert_eq!(output.object.get("status"), None);
}

#[test]
fn a_failure_names_mapping_path_and_expression_and_no_value() {
    let object = widget(json!({
        "metadata": {"annotations": {"packed": "{\"labels\": \"hunter2\"", "a/x": "hunter2", "b/x": "other"}},
        "spec": {"secret": "hunter2", "list": ["hunter2"]},
    }));
    for (more, path, expression) in [
        (
            json!({"from": {"when": "object.spec.secret"}}),
            "mappings[0].from.when",
            Some("object.spec.secret"),
        ),
        (
            json!({"from": {"ready": "object.spec.nothing"}}),
            "mappings[0].from.ready",
            Some("object.spec.nothing"),
        ),
        (
            json!({"metadata": {"name": "1"}}),
            "mappings[0].metadata.name",
            Some("1"),
        ),
        (
            json!({"metadata": {"name": "''"}}),
            "mappings[0].metadata.name",
            None,
        ),
        (
            json!({"metadata": {"namespace": "object.spec.list"}}),
            "mappings[0].metadata.namespace",
            Some("object.spec.list"),
        ),
        (
            json!({"metadata": {"unpack": "packed"}}),
            "mappings[0].metadata.unpack",
            None,
        ),
        (
            json!({"metadata": {"rewriteKeys": [{"from": "a/", "to": "b/"}]}}),
            "mappings[0].metadata.rewriteKeys",
            None,
        ),
        (
            json!({"metadata": {"annotations": {"k": "object.spec.list"}}}),
            "mappings[0].metadata.annotations[\"k\"]",
            Some("object.spec.list"),
        ),
        (
            json!({"convert": [{"path": "spec.n", "value": "int(object.spec.secret)"}]}),
            "mappings[0].convert[0].value",
            Some("int(object.spec.secret)"),
        ),
        (
            json!({"convert": [{"path": "spec.secret.x", "value": "1"}]}),
            "mappings[0].convert[0].path",
            None,
        ),
        (
            json!({"convert": [{"path": "metadata.labels", "value": "{'a': 1}"}]}),
            "mappings[0].convert",
            None,
        ),
        (
            json!({"convert": [{"path": "spec.n", "value": "[object.spec.?secret]"}]}),
            "mappings[0].convert[0].value",
            Some("[object.spec.?secret]"),
        ),
    ] {
        let error = convert(more.clone(), &object).expect_err(path);
        assert_eq!(
            (error.mapping(), error.path(), error.expression()),
            (Some("widgets"), path, expression),
            "{more}"
        );
        let text = error.to_string();
        assert!(!text.contains("hunter2") && !text.contains('\n'), "{text}");
        assert!(text.starts_with("mapping \"widgets\": mappings[0]."), "{text}");
    }
}

#[test]
fn keys_that_become_one_are_fine_only_with_one_value() {
    let more = json!({"metadata": {"rewriteKeys": [{"from": "a/", "to": "b/"}]}});
    let same = widget(json!({"metadata": {"annotations": {"a/x": "1", "b/x": "1"}}}));
    assert_eq!(
        only(convert(more, &same)).object["metadata"]["annotations"],
        json!({"b/x": "1"})
    );
}

#[test]
fn an_exceeded_budget_is_not_hidden() {
    let ten = "[0,1,2,3,4,5,6,7,8,9]";
    let expensive = (0..7).fold("x0".to_owned(), |inner, n| format!("{ten}.map(x{n}, {inner})"));
    let more = json!({"from": {"when": format!("{expensive} == [] || true")}});
    let error = convert(more, &widget(json!({}))).expect_err("it costs too much");
    assert!(
        error.problem().contains("costs more than 100000 units"),
        "{error}"
    );
    assert!(error.to_string().len() < 600, "{error}");
}

#[tokio::test]
async fn a_task_gets_the_same_answer_as_a_thread() {
    let mappings = compile(&from(json!({
        "mappings": [widgets(json!({"convert": [{"path": "spec.n", "value": "object.spec.n + 1"}]}))],
        "cutover": {"waitFor": [
            {"version": "v1", "kind": "ConfigMap", "name": "x"},
            {"version": "v1", "kind": "ConfigMap", "name": "x", "when": "object.data.?ready.orValue('') == 'yes'"},
        ]},
    })));
    let object = widget(json!({"spec": {"n": 1}}));
    let waited = mappings.convert_async(Arc::new(object.clone())).await;
    assert_eq!(waited, mappings.convert(&object));
    assert_eq!(only(waited).object["spec"], json!({"n": 2}));

    assert!(mappings.wait_for(0).is_none() && mappings.wait_for(7).is_none());
    let condition = mappings.wait_for(1).expect("it has one");
    for (map, holds) in [
        (json!({"data": {"ready": "yes"}}), true),
        (json!({"data": {}}), false),
    ] {
        assert_eq!(condition.is_true(&map), Ok(holds));
        assert_eq!(condition.is_true_async(Arc::new(map)).await, Ok(holds));
    }
    let error = condition.is_true(&json!({})).expect_err("no data is there");
    assert_eq!(error.path(), "cutover.waitFor[1].when");
}
