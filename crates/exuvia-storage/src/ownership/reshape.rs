//! The same ownership at another version: what one schema takes as a whole another takes apart, or the reverse. Pure.
//!
//! Moved as it is, an entry that owns an atomic map would own nothing below it where the map is granular, and anybody could
//! take its fields without a conflict (PITFALLS A36).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldsV1;
use serde_json::Value;

use super::paths::is_called;
use super::shape::{Node, SELF, Shape, field, fields_of, item_key};

/// Whether an entry's fields mean the same under both schemas, so that it can be moved without a look at the object.
pub(crate) fn keeps_shape(fields: &FieldsV1, from: &Value, to: &Value) -> bool {
    let Value::Object(root) = &fields.0 else {
        return true;
    };
    fields_keep_shape(root, from, to, true)
}

fn node_keeps_shape(node: &Node, from: &Value, to: &Value) -> bool {
    let is_list = |schema: &Value| schema["type"] == "array";
    match (Shape::specified(from), Shape::specified(to)) {
        (None, None) => true,
        (Some(Shape::Map), Some(Shape::Map)) => fields_keep_shape(node, from, to, false),
        // The server goes by the value: maps are taken apart, lists and scalars are not.
        (None, Some(Shape::Map)) | (Some(Shape::Map), None) => fields_keep_shape(node, from, to, false),
        (None, Some(Shape::Whole)) => is_list(to) || to["type"] != "object",
        (Some(Shape::Whole), None) => is_list(from) || from["type"] != "object",
        (Some(Shape::Whole), Some(Shape::Whole)) | (Some(Shape::Set), Some(Shape::Set)) => true,
        (Some(Shape::Items(old)), Some(Shape::Items(new))) => {
            let mut items = node.iter().filter(|(key, _)| *key != SELF);
            old == new
                && items.all(|(_, item)| {
                    item.as_object()
                        .is_none_or(|item| node_keeps_shape(item, &from["items"], &to["items"]))
                })
        }
        _ => false,
    }
}

fn fields_keep_shape(node: &Node, from: &Value, to: &Value, is_root: bool) -> bool {
    node.iter().all(|(key, child)| {
        let Some(name) = key.strip_prefix("f:").filter(|name| !(is_root && is_meta(name))) else {
            return true;
        };
        match (field(from, name), field(to, name), child) {
            (Some((from, _)), Some((to, _)), Value::Object(child)) => node_keeps_shape(child, from, to),
            _ => true, // one of them does not have it
        }
    })
}

/// The fields of an entry as its owner would own them at the other version, for an object that holds this value.
pub(crate) fn reshape(fields: &FieldsV1, from: &Value, to: &Value, object: &Value) -> FieldsV1 {
    let Value::Object(root) = &fields.0 else {
        return fields.clone();
    };
    FieldsV1(Value::Object(reshape_fields(root, Some(object), from, to, true)))
}

fn reshape_node(node: &Node, value: Option<&Value>, from: &Value, to: &Value) -> Node {
    match (Shape::of(from, value, node), Shape::of(to, value, node)) {
        (Shape::Whole, Shape::Whole) => node.clone(),
        (Shape::Whole, _) => value.map_or_else(|| node.clone(), |value| fields_of(value, to)),
        (_, Shape::Whole) => Node::new(), // the owner of a part owns all of it
        (Shape::Map, Shape::Map) => reshape_fields(node, value, from, to, false),
        (Shape::Items(old), Shape::Items(new)) => reshape_items(node, value, (from, &old), (to, &new)),
        _ => node.clone(),
    }
}

fn reshape_fields(node: &Node, value: Option<&Value>, from: &Value, to: &Value, is_root: bool) -> Node {
    let reshaped = |(key, child): (&String, &Value)| {
        let unchanged = (key.clone(), child.clone());
        let Some(name) = key.strip_prefix("f:").filter(|name| !(is_root && is_meta(name))) else {
            return unchanged;
        };
        match (field(from, name), field(to, name), child) {
            (Some((from, _)), Some((to, _)), Value::Object(child)) => {
                let value = value.and_then(|value| value.get(name));
                (key.clone(), Value::Object(reshape_node(child, value, from, to)))
            }
            _ => unchanged,
        }
    };
    node.iter().map(reshaped).collect()
}

fn reshape_items(
    node: &Node,
    value: Option<&Value>,
    (from, old): (&Value, &[&str]),
    (to, new): (&Value, &[&str]),
) -> Node {
    let items = value.and_then(Value::as_array);
    let default = |key: &str| {
        Some(from["items"]["properties"][key]["default"].clone()).filter(|value| !value.is_null())
    };
    let find = |key: &str| items?.iter().find(|item| is_called(item, key, default));
    let mut reshaped = Node::new();
    for (key, child) in node {
        let (Value::Object(child), true) = (child, key.starts_with("k:")) else {
            reshaped.insert(key.clone(), child.clone());
            continue;
        };
        let item = find(key);
        let mut fields = reshape_node(child, item, &from["items"], &to["items"]);
        // A field that made an item what it is could not be taken from its owner, only another item be added: no conflict.
        fields.retain(|name, _| {
            let name = name.strip_prefix("f:").unwrap_or_default();
            !old.contains(&name) || new.contains(&name)
        });
        // An item that is not there any more is called what it was called.
        let key = item.map_or_else(|| key.clone(), |item| item_key(item, new, to));
        reshaped.insert(key, Value::Object(fields));
    }
    reshaped
}

/// The same at every version.
fn is_meta(name: &str) -> bool {
    matches!(name, "metadata" | "apiVersion" | "kind")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(schema: &Value) -> Value {
        json!({"type": "object", "properties": {"spec": schema}})
    }

    /// What `f:spec` becomes; it must not be said to keep its shape if it does not.
    #[allow(clippy::needless_pass_by_value)] // reads better at the place of use
    fn moved(owned: Value, from: &Value, to: &Value, value: Value) -> Value {
        let fields = FieldsV1(json!({"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": owned}));
        let (from, to) = (spec(from), spec(to));
        let reshaped = reshape(&fields, &from, &to, &json!({"spec": value}));
        assert_eq!(reshaped.0["f:metadata"], fields.0["f:metadata"]);
        assert!(reshaped == fields || !keeps_shape(&fields, &from, &to));
        reshaped.0["f:spec"].clone()
    }

    fn granular() -> Value {
        json!({"type": "object", "properties": {"name": {"type": "string"}, "kind": {"type": "string"}}})
    }

    fn atomic() -> Value {
        let mut schema = granular();
        schema["x-kubernetes-map-type"] = json!("atomic");
        schema
    }

    fn list(kind: &str, keys: &[&str]) -> Value {
        json!({"type": "array", "x-kubernetes-list-type": kind, "x-kubernetes-list-map-keys": keys, "items": granular()})
    }

    #[test]
    fn an_atomic_map_that_becomes_granular_is_expanded_to_what_the_object_holds() {
        let value = json!({"name": "pool"});
        assert_eq!(
            moved(json!({}), &atomic(), &granular(), value.clone()),
            json!({"f:name": {}})
        );
        let free = json!({"x-kubernetes-preserve-unknown-fields": true});
        assert_eq!(moved(json!({}), &atomic(), &free, value)["f:name"], json!({}));
        assert_eq!(moved(json!({}), &atomic(), &granular(), json!({})), json!({}));
    }

    #[test]
    fn a_granular_map_that_becomes_atomic_belongs_to_everybody_who_had_a_part() {
        let value = json!({"name": "pool", "kind": "k"});
        assert_eq!(
            moved(json!({"f:name": {}}), &granular(), &atomic(), value),
            json!({})
        );
    }

    #[test]
    fn lists_are_taken_apart_and_put_together() {
        let value = json!([{"name": "a", "kind": "x"}, {"name": "b"}]);
        let by_name = json!({
            "k:{\"name\":\"a\"}": {".": {}, "f:kind": {}, "f:name": {}}, "k:{\"name\":\"b\"}": {".": {}, "f:name": {}},
        });
        let (whole, by) = (list("atomic", &[]), list("map", &["name"]));
        assert_eq!(moved(json!({}), &whole, &by, value.clone()), by_name);
        assert_eq!(moved(by_name, &by, &whole, value), json!({}));
        let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
        let whole = json!({"type": "array", "items": {"type": "string"}});
        let items = json!({"v:\"a\"": {}, "v:\"b\"": {}});
        assert_eq!(moved(json!({}), &whole, &set, json!(["a", "b"])), items);
        assert_eq!(moved(items, &set, &whole, json!(["a", "b"])), json!({}));
    }

    #[test]
    fn items_are_called_by_the_keys_of_the_other_version() {
        let (by_name, by_both) = (list("map", &["name"]), list("map", &["name", "kind"]));
        let owned = json!({"k:{\"name\":\"a\"}": {"f:kind": {}}, "k:{\"name\":\"gone\"}": {"f:kind": {}}});
        let renamed = json!({
            "k:{\"kind\":\"x\",\"name\":\"a\"}": {"f:kind": {}}, "k:{\"name\":\"gone\"}": {"f:kind": {}},
        });
        let value = json!([{"name": "a", "kind": "x"}]);
        assert_eq!(moved(owned, &by_name, &by_both, value.clone()), renamed);
        let owned = json!({"k:{\"kind\":\"x\",\"name\":\"a\"}": {".": {}, "f:kind": {}, "f:name": {}}});
        assert_eq!(
            moved(owned, &by_both, &by_name, value),
            json!({"k:{\"name\":\"a\"}": {".": {}, "f:name": {}}})
        );
    }

    #[test]
    fn a_change_is_found_at_any_depth() {
        let nest = |inner: Value| json!({"type": "object", "additionalProperties": {"type": "object", "properties": {"ref": inner}}});
        let value = json!({"any": {"ref": {"kind": "k"}}});
        assert_eq!(
            moved(
                json!({"f:any": {"f:ref": {}}}),
                &nest(atomic()),
                &nest(granular()),
                value
            ),
            json!({"f:any": {"f:ref": {"f:kind": {}}}})
        );
    }

    #[test]
    fn what_keeps_its_shape_needs_no_look_at_the_object() {
        let owned = FieldsV1(json!({"f:spec": {"f:name": {}, "f:gone": {}}, "f:metadata": {}}));
        assert!(keeps_shape(&owned, &spec(&granular()), &spec(&granular())));
        assert!(!keeps_shape(&owned, &spec(&granular()), &spec(&atomic())));
        let free = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        assert!(keeps_shape(&owned, &spec(&free), &spec(&granular())));
        assert!(keeps_shape(&owned, &spec(&granular()), &spec(&free)));
    }
}
