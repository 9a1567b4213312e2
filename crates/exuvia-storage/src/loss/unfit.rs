//! Values of a type that the storage version does not take. Pure.
//!
//! The server lets them pass as long as nobody changes them, and stores them. But it cannot read such an object as one of the
//! storage version: every apply to it answers 500, and no entry of its managedFields can be moved (PITFALLS A55).

use std::collections::BTreeSet;

use serde_json::Value;

use super::defaults::Place;
use super::difference::shown;
use crate::ownership::shape::{Shape, item_key};

/// The paths of such values, each with its type and the one that is wanted. What the old version does not take either is
/// not news: nobody can apply to such an object as it is.
pub(super) fn unfit(object: &Value, schema: &Value, old: &Value) -> BTreeSet<String> {
    let mut found = mismatches(object, schema);
    if !found.is_empty() {
        let path = |text: &String| text.split(" (type ").next().unwrap_or_default().to_owned();
        let known: BTreeSet<String> = mismatches(object, old).iter().map(path).collect();
        found.retain(|text| !known.contains(&path(text)));
    }
    found
}

fn mismatches(object: &Value, schema: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (key, value) in object.as_object().into_iter().flatten() {
        if matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
            continue;
        }
        let mut at = vec![Place::Key(key)];
        walk(value, &schema["properties"][key], &mut at, &mut found);
    }
    found
}

fn walk<'a>(value: &'a Value, schema: &Value, at: &mut Vec<Place<'a>>, found: &mut BTreeSet<String>) {
    let Some(wanted) = schema["type"].as_str() else {
        return; // anything goes
    };
    let is = match value {
        Value::Null => return,
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is_taken = match wanted {
        "integer" | "number" => is == "number",
        wanted => is == wanted,
    };
    if !is_taken {
        found.insert(format!("{} (type {is}, must be {wanted})", shown(at)));
        return;
    }
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let property = schema["properties"].get(key);
                at.push(Place::Key(key));
                walk(
                    value,
                    property.unwrap_or(&schema["additionalProperties"]),
                    at,
                    found,
                );
                at.pop();
            }
        }
        Value::Array(items) => {
            if let Some(what) = twice(items, schema) {
                found.insert(format!(
                    "{} (type array with {what} twice, must be unique)",
                    shown(at)
                ));
            }
            for (index, item) in items.iter().enumerate() {
                at.push(Place::Item(index));
                walk(item, &schema["items"], at, found);
                at.pop();
            }
        }
        _ => {}
    }
}

/// What a list holds twice that may be there once.
fn twice(items: &[Value], schema: &Value) -> Option<&'static str> {
    let (what, names): (_, Vec<Value>) = match Shape::specified(schema)? {
        Shape::Set => ("an item", items.to_vec()),
        Shape::Items(keys) => {
            let key = |item: &Value| Value::String(item_key(item, &keys, schema));
            ("a key", items.iter().map(key).collect())
        }
        Shape::Map | Shape::Whole => return None,
    };
    let is_twice = names
        .iter()
        .enumerate()
        .any(|(at, name)| names[..at].contains(name));
    is_twice.then_some(what)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_item_or_a_key_that_is_there_twice_is_named() {
        let list = |kind: &str| {
            json!({"properties": {"spec": {"type": "array", "x-kubernetes-list-type": kind,
                   "x-kubernetes-list-map-keys": ["name"], "items": {}}}})
        };
        let named = json!({"spec": [{"name": "a"}, {"name": "a", "n": 1}]});
        assert_eq!(unfit(&named, &list("map"), &list("atomic")).len(), 1);
        assert_eq!(unfit(&named, &list("set"), &list("atomic")).len(), 0);
        let twice = json!({"spec": ["a", "b", "a"]});
        let found = unfit(&twice, &list("set"), &list("atomic"));
        assert!(
            found.contains("spec (type array with an item twice, must be unique)"),
            "{found:?}"
        );
        assert_eq!(unfit(&twice, &list("set"), &list("set")).len(), 0, "as before");
    }

    #[test]
    fn values_of_another_type_are_named_with_both_types() {
        let schema = json!({"properties": {"spec": {"type": "object", "properties": {
            "amount": {"type": "integer"}, "port": {"x-kubernetes-int-or-string": true}, "share": {"type": "number"},
            "list": {"type": "array", "items": {"type": "object", "properties": {"on": {"type": "boolean"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "string"}}, "null": {"type": "string"},
        }}}});
        let fine = json!({"metadata": {"x": 1}, "spec": {
            "amount": 3, "port": "http", "share": 1, "list": [{"on": true}], "map": {"a": "b"}, "null": null, "more": 1,
        }});
        assert_eq!(unfit(&fine, &schema, &Value::Null), BTreeSet::new());
        let unfit_one =
            json!({"spec": {"amount": "3", "list": [{"on": 1}, {"on": "x"}], "map": {"a": 1}, "null": {}}});
        let found = unfit(&unfit_one, &schema, &Value::Null);
        let wanted = [
            "spec.amount (type string, must be integer)",
            "spec.list[].on (type number, must be boolean)",
            "spec.list[].on (type string, must be boolean)",
            "spec.map.a (type number, must be string)",
            "spec.null (type object, must be string)",
        ];
        assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), wanted);
        assert_eq!(unfit(&unfit_one, &schema, &schema), BTreeSet::new(), "as before");
    }
}
