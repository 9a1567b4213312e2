//! The comparison on objects as the server stores them.
#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;

fn live(fields: &Value, rest: &Value) -> Value {
    let mut live = rest.clone();
    live["metadata"]["managedFields"] = json!([{"manager": "us", "operation": "Update", "fieldsV1": {}},
               {"manager": "us", "operation": "Apply", "fieldsV1": fields},
               {"manager": "us", "operation": "Apply", "subresource": "status", "fieldsV1": {}}]);
    live
}

fn edits(intent: &Value, live: &Value) -> Vec<String> {
    compare(intent, live, "us")
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn lists_are_taken_as_the_server_takes_them() {
    let fields = json!({"f:spec": {"f:ports": {
        "k:{\"port\":53,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}},
        "k:{\"port\":53,\"protocol\":\"UDP\"}": {".": {}, "f:port": {}, "f:protocol": {}},
    }, "f:args": {}, "f:tags": {"v:\"a\"": {}}}});
    let intent = json!({"spec": {
        "ports": [{"port": 53}, {"port": 53, "protocol": "UDP"}], "args": ["x", {"fieldPath": "p"}], "tags": ["a"],
    }});
    let as_stored = json!({"spec": {
        "ports": [{"port": 53, "protocol": "TCP"}, {"port": 99, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}],
        "args": ["x", {"fieldPath": "p", "apiVersion": "v1"}], "tags": ["z", "a"],
    }});
    assert_eq!(edits(&intent, &live(&fields, &as_stored)), Vec::<String>::new());

    let mut reordered = as_stored.clone();
    reordered["spec"]["ports"].as_array_mut().unwrap().reverse();
    assert_eq!(
        edits(&intent, &live(&fields, &reordered)),
        ["spec.ports is in another order"]
    );
    let mut swapped = as_stored.clone();
    swapped["spec"]["args"].as_array_mut().unwrap().reverse();
    assert_eq!(
        edits(&intent, &live(&fields, &swapped)),
        ["spec.args has another value"]
    );
    let mut gone = as_stored;
    gone["spec"]["ports"].as_array_mut().unwrap().pop();
    gone["spec"]["tags"] = json!(["z"]);
    assert_eq!(
        edits(&intent, &live(&fields, &gone)),
        [
            "spec.ports[port=53,protocol=UDP] has another value",
            "spec.tags[\"a\"] has another value"
        ]
    );
}

#[test]
fn what_the_server_takes_for_nothing_is_nothing() {
    let fields = json!({"f:spec": {"f:a": {}, "f:b": {}, "f:c": {}, "f:d": {}, "f:e": {}, "f:q": {}}});
    let intent = json!({"spec": {"a": "", "b": 0, "c": [], "d": {}, "e": false, "q": "1000m"}});
    let as_stored = json!({"spec": {"q": "1"}});
    assert_eq!(edits(&intent, &live(&fields, &as_stored)), Vec::<String>::new());
}

#[test]
fn what_is_not_ours_any_more_is_told() {
    let fields = json!({"f:spec": {"f:a": {}}});
    let intent = json!({"metadata": {"name": "x"}, "spec": {"a": 1, "b": 2, "c": 3}});
    let as_stored = json!({"metadata": {"name": "x"}, "spec": {"a": 1, "b": 2, "c": 4}});
    assert_eq!(
        edits(&intent, &live(&fields, &as_stored)),
        ["spec.b is not ours any more", "spec.c has another value"]
    );
    let unowned = json!({"spec": {"a": 1}});
    assert_eq!(
        edits(&json!({"spec": {"a": 1}}), &unowned),
        ["spec is not ours any more"]
    );
}
