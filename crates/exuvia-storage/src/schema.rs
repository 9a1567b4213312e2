//! What schemas tell: which fields a rewrite would erase, and whether a field path exists at another version.

use serde_json::Value;

/// A path into an object: field names, and `[]` for the items of a list or the values of a map.
pub type Path = Vec<String>;

/// The fields that `old` knows and `new` does not: under conversion `None` a rewrite erases them without a trace
/// (PITFALLS A23). A field whose whole subtree is unknown is named once, at its top.
///
/// ```
/// use exuvia_storage::schema::only_in;
/// use serde_json::json;
///
/// let old = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
///     "size": {"type": "integer"}, "legacy": {"type": "string"}}}}});
/// let new = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
///     "size": {"type": "integer"}}}}});
/// assert_eq!(only_in(&old, &new), [["spec", "legacy"]]);
/// assert!(only_in(&new, &old).is_empty());
/// ```
pub fn only_in(old: &Value, new: &Value) -> Vec<Path> {
    let mut found = Vec::new();
    compare(old, new, &mut Vec::new(), &mut found);
    found
}

fn compare(old: &Value, new: &Value, at: &mut Path, found: &mut Vec<Path>) {
    if keeps_unknown(new) {
        return;
    }
    if let Some(properties) = old["properties"].as_object() {
        for (name, property) in properties {
            at.push(name.clone());
            match child(new, name) {
                // `metadata` and type meta are the server's own, whatever the schema says.
                _ if at.len() == 1 && matches!(name.as_str(), "metadata" | "apiVersion" | "kind") => {}
                Some(kept) => compare(property, kept, at, found),
                None => found.push(at.clone()),
            }
            at.pop();
        }
    }
    for inner in ["items", "additionalProperties"] {
        if old[inner].is_object() {
            at.push("[]".to_owned());
            if new[inner].is_object() {
                compare(&old[inner], &new[inner], at, found);
            } else if new[inner] != Value::Bool(true) {
                found.push(at.clone());
            }
            at.pop();
        }
    }
    // A free-form old field can hold anything; where the new one is typed, anything else is erased.
    if keeps_unknown(old) {
        at.push("*".to_owned());
        found.push(at.clone());
        at.pop();
    }
}

fn keeps_unknown(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == Value::Bool(true)
        || schema["additionalProperties"] == Value::Bool(true)
        || schema["x-kubernetes-embedded-resource"] == Value::Bool(true)
}

fn child<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    let property = schema["properties"].get(name);
    property.or_else(|| Some(&schema["additionalProperties"]).filter(|values| values.is_object()))
}

/// Whether the object has a value at one of the paths that [`only_in`] named for `new`; the first such path.
pub fn first_held<'a>(object: &Value, paths: &'a [Path], new: &Value) -> Option<&'a Path> {
    paths.iter().find(|path| holds(object, path, new))
}

fn holds(value: &Value, path: &[String], new: &Value) -> bool {
    let Some((first, rest)) = path.split_first() else {
        return !value.is_null();
    };
    match first.as_str() {
        "[]" => {
            let inner = if value.is_array() {
                &new["items"]
            } else {
                &new["additionalProperties"]
            };
            match value {
                Value::Array(items) => items.iter().any(|item| holds(item, rest, inner)),
                Value::Object(map) => map.values().any(|item| holds(item, rest, inner)),
                _ => false,
            }
        }
        // Anything that the new schema would not keep.
        "*" => value
            .as_object()
            .is_some_and(|map| map.keys().any(|name| child(new, name).is_none())),
        name => value.get(name).is_some_and(|inner| {
            let schema = child(new, name).unwrap_or(&Value::Null);
            holds(inner, rest, schema)
        }),
    }
}

/// Whether a managedFields path (`f:spec`, `k:{…}`, `v:…`, `.`) exists in a schema.
pub fn has_path(schema: &Value, path: &[&str]) -> bool {
    if keeps_unknown(schema) {
        return true;
    }
    let Some((first, rest)) = path.split_first() else {
        return true;
    };
    match first.split_once(':') {
        Some(("f", "metadata" | "apiVersion" | "kind")) => true,
        Some(("f", name)) => child(schema, name).is_some_and(|inner| has_path(inner, rest)),
        Some(("k" | "v" | "i", _)) => schema["items"].is_object() && has_path(&schema["items"], rest),
        _ => true, // "." is the thing itself
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[allow(clippy::needless_pass_by_value)] // reads better at the place of use
    fn object(properties: Value) -> Value {
        json!({"type": "object", "properties": properties})
    }

    #[test]
    fn lists_and_maps_are_looked_into() {
        let item = |fields: Value| json!({"type": "array", "items": object(fields)});
        let map = |fields: Value| json!({"type": "object", "additionalProperties": object(fields)});
        let text = json!({"type": "string"});
        let old =
            object(json!({"list": item(json!({"a": text, "b": text})), "map": map(json!({"c": text}))}));
        let new = object(json!({"list": item(json!({"a": text})), "map": map(json!({}))}));
        let paths = only_in(&old, &new);
        assert_eq!(paths, [["list", "[]", "b"], ["map", "[]", "c"]]);
        assert_eq!(first_held(&json!({"list": [{"a": "1"}]}), &paths, &new), None);
        assert_eq!(
            first_held(&json!({"list": [{"a": "1"}, {"b": "2"}]}), &paths, &new),
            Some(&paths[0])
        );
        assert_eq!(
            first_held(&json!({"map": {"x": {"c": "2"}}}), &paths, &new),
            Some(&paths[1])
        );
        assert_eq!(
            first_held(&json!({"map": {"x": {"c": null}}}), &paths, &new),
            None
        );
    }

    #[test]
    fn a_free_form_field_that_becomes_typed_loses_what_the_type_lacks() {
        let free = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let typed = object(json!({"known": {"type": "string"}}));
        let (old, new) = (object(json!({"spec": free})), object(json!({"spec": typed})));
        let paths = only_in(&old, &new);
        assert_eq!(first_held(&json!({"spec": {"known": "a"}}), &paths, &new), None);
        assert!(first_held(&json!({"spec": {"known": "a", "other": 1}}), &paths, &new).is_some());
        assert!(
            only_in(&new, &old).is_empty(),
            "the other way round nothing is lost"
        );
    }

    #[test]
    fn managed_fields_paths_are_found_in_a_schema() {
        let schema = object(json!({"spec": object(json!({
            "ports": {"type": "array", "items": object(json!({"port": {"type": "integer"}}))},
        }))}));
        assert!(has_path(&schema, &["f:metadata", "f:labels", "f:a"]));
        assert!(has_path(
            &schema,
            &["f:spec", "f:ports", "k:{\"port\":1}", "f:port"]
        ));
        assert!(has_path(&schema, &["f:spec", "."]));
        assert!(!has_path(
            &schema,
            &["f:spec", "f:ports", "k:{\"port\":1}", "f:name"]
        ));
        assert!(!has_path(&schema, &["f:spec", "f:legacy"]));
    }
}
