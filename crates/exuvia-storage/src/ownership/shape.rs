//! How the server merges a value, and so what in it can have an owner: read from a version's schema. Pure.

use std::sync::LazyLock;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldsV1;
use serde_json::{Map, Value, json};

/// The children of a node in a `fieldsV1` tree.
pub(crate) type Node = Map<String, Value>;

/// The key by which a node with children says that its own path is in the set too.
pub(crate) const SELF: &str = ".";

/// Nothing is specified: the server goes by the value.
const FREE: &Value = &Value::Null;

/// The metadata of an embedded resource has this shape, whatever the CRD says.
static OBJECT_META: LazyLock<Value> = LazyLock::new(|| {
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
        "labels": texts, "annotations": texts,
        "finalizers": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "ownerReferences": {
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"],
            "items": {"type": "object", "x-kubernetes-map-type": "atomic"},
        },
        "name": {"type": "string"}, "namespace": {"type": "string"}, "generateName": {"type": "string"},
        "uid": {"type": "string"}, "resourceVersion": {"type": "string"}, "creationTimestamp": {"type": "string"},
    }})
});

/// What can have an owner at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape<'a> {
    /// The value as a whole: a scalar, or an atomic map or list.
    Whole,
    /// Each field or key by itself.
    Map,
    /// Each item by its value.
    Set,
    /// Each item by these fields of it.
    Items(Vec<&'a str>),
}

impl<'a> Shape<'a> {
    /// The shape of a value; `None`: the value is not known. Where nothing is specified, the server takes maps apart and
    /// lists as a whole.
    pub(crate) fn of(schema: &'a Value, value: Option<&Value>, node: &Node) -> Self {
        match Self::specified(schema) {
            Some(shape) => shape,
            None if value.map_or_else(|| has_fields(node), Value::is_object) => Self::Map,
            None => Self::Whole,
        }
    }

    /// What the schema alone says; `None`: it leaves that to the value.
    pub(crate) fn specified(schema: &'a Value) -> Option<Self> {
        match schema["type"].as_str() {
            Some("array") => Some(match schema["x-kubernetes-list-type"].as_str() {
                Some("set") => Self::Set,
                Some("map") => Self::Items(keys(schema)),
                _ => Self::Whole,
            }),
            Some("object") if schema["x-kubernetes-map-type"] == "atomic" => Some(Self::Whole),
            Some("object") => Some(Self::Map),
            Some(_) => Some(Self::Whole),
            None if schema["x-kubernetes-int-or-string"] == true => Some(Self::Whole),
            None => None,
        }
    }
}

/// The keys of a `listType: map`, in the order in which the server writes them.
fn keys(schema: &Value) -> Vec<&str> {
    let keys = schema["x-kubernetes-list-map-keys"].as_array();
    let mut keys: Vec<&str> = keys.into_iter().flatten().filter_map(Value::as_str).collect();
    keys.sort_unstable();
    keys
}

fn has_fields(node: &Node) -> bool {
    node.keys().any(|key| key.starts_with("f:"))
}

/// The schema of a field or key, and whether it is specified by name. `None`: the version does not have it, and prunes it.
pub(crate) fn field<'a>(schema: &'a Value, name: &str) -> Option<(&'a Value, bool)> {
    if name == "metadata" && schema["x-kubernetes-embedded-resource"] == true {
        return Some((&OBJECT_META, true));
    }
    if let Some(property) = schema["properties"].get(name) {
        return Some((property, true));
    }
    let others = &schema["additionalProperties"];
    if others.is_object() {
        return Some((others, false));
    }
    let is_free = schema.is_null()
        || schema["x-kubernetes-preserve-unknown-fields"] == true
        || schema["x-kubernetes-embedded-resource"] == true
        || *others == true;
    is_free.then_some((FREE, false))
}

/// What somebody owns who applies this value: the set that the server itself would write down.
pub(crate) fn fields_of(value: &Value, schema: &Value) -> Node {
    let mut node = Node::new();
    match (Shape::of(schema, Some(value), &node), value) {
        (Shape::Map, Value::Object(map)) => {
            for (key, value) in map {
                let Some((inner, is_named)) = field(schema, key) else {
                    continue;
                };
                let mut fields = fields_of(value, inner);
                // Of a list with owned items nothing is left without items.
                let is_nothing = value.as_array().is_some_and(Vec::is_empty)
                    && !matches!(Shape::of(inner, Some(value), &fields), Shape::Whole);
                if is_nothing && is_named {
                    continue;
                }
                if !is_named && !fields.is_empty() {
                    fields.insert(SELF.to_owned(), Value::Object(Node::new()));
                }
                node.insert(format!("f:{key}"), Value::Object(fields));
            }
        }
        (Shape::Set, Value::Array(items)) => {
            for item in items {
                node.insert(format!("v:{item}"), Value::Object(Node::new()));
            }
        }
        (Shape::Items(keys), Value::Array(items)) => {
            for item in items {
                let mut fields = fields_of(item, &schema["items"]);
                if !fields.is_empty() {
                    fields.insert(SELF.to_owned(), Value::Object(Node::new()));
                }
                node.insert(item_key(item, &keys, schema), Value::Object(fields));
            }
        }
        _ => {}
    }
    node
}

/// The path element of an item: `k:{"name":"a"}`. A key that the item lacks counts with its default.
pub(crate) fn item_key(item: &Value, keys: &[&str], list: &Value) -> String {
    let value = |key: &&str| {
        let default = &list["items"]["properties"][*key]["default"];
        let value = item.get(*key).or(Some(default).filter(|value| !value.is_null()));
        value.map(|value| ((*key).to_owned(), value.clone()))
    };
    let fields: Node = keys.iter().filter_map(value).collect();
    format!("k:{}", Value::Object(fields))
}

/// Whether every path of an entry exists in a schema. Metadata is the same at every version.
pub(crate) fn has_paths(schema: &Value, fields: &FieldsV1) -> bool {
    exuvia_write::field_paths(fields)
        .iter()
        .all(|path| has_path(schema, path))
}

/// Whether a managedFields path (`f:spec`, `k:{…}`, `v:…`) exists in an `openAPIV3Schema`.
pub fn has_path(schema: &Value, path: &[&str]) -> bool {
    let Some((first, rest)) = path.split_first() else {
        return true;
    };
    match first.split_once(':') {
        Some(("f", "metadata" | "apiVersion" | "kind")) => true,
        Some(("f", name)) => field(schema, name).is_some_and(|(inner, _)| has_path(inner, rest)),
        Some(("k" | "v" | "i", _)) => {
            schema.is_null() || (schema["items"].is_object() && has_path(&schema["items"], rest))
        }
        _ => true, // "." is the thing itself
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::needless_pass_by_value)] // reads better at the place of use
    fn object(properties: Value) -> Value {
        json!({"type": "object", "properties": properties})
    }

    #[test]
    fn paths_of_an_entry_are_found_in_a_schema() {
        let schema = object(json!({"spec": object(json!({
            "ports": {"type": "array", "items": object(json!({"port": {"type": "integer"}}))},
        }))}));
        let has = |fields: Value| has_paths(&schema, &FieldsV1(fields));
        assert!(has(json!({"f:metadata": {"f:labels": {"f:a": {}}}})));
        assert!(has(
            json!({"f:spec": {".": {}, "f:ports": {"k:{\"port\":1}": {"f:port": {}}}}})
        ));
        assert!(!has(
            json!({"f:spec": {"f:ports": {"k:{\"port\":1}": {"f:name": {}}}}})
        ));
        assert!(!has(json!({"f:spec": {"f:legacy": {}}})));
    }

    #[test]
    fn what_is_applied_is_owned_by_the_shape_of_its_schema() {
        let port = object(json!({"name": {"type": "string"}, "protocol": {"default": "TCP"}, "port": {}}));
        let schema = object(json!({
            "whole": {"type": "object", "x-kubernetes-map-type": "atomic"},
            "labels": {"type": "object", "additionalProperties": object(json!({"a": {"type": "string"}}))},
            "tags": {"type": "array", "x-kubernetes-list-type": "set"},
            "none": {"type": "array", "x-kubernetes-list-type": "set"},
            "ports": {"type": "array", "x-kubernetes-list-type": "map",
                      "x-kubernetes-list-map-keys": ["protocol", "name"], "items": port},
            "free": {"x-kubernetes-preserve-unknown-fields": true},
        }));
        let value = json!({
            "whole": {"a": 1}, "labels": {"x": {"a": "b"}}, "tags": ["t"], "none": [],
            "ports": [{"name": "web"}], "free": {"list": [{"deep": 1}], "map": {"k": 1}}, "pruned": 1,
        });
        assert_eq!(
            Value::Object(fields_of(&value, &schema)),
            json!({
                "f:whole": {},
                "f:labels": {"f:x": {".": {}, "f:a": {}}},
                "f:tags": {"v:\"t\"": {}},
                "f:ports": {"k:{\"name\":\"web\",\"protocol\":\"TCP\"}": {".": {}, "f:name": {}}},
                "f:free": {"f:list": {}, "f:map": {".": {}, "f:k": {}}},
            })
        );
    }
}
