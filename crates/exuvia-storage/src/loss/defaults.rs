//! What a schema's defaults make of an object, as the server applies them to each write. Pure.

use serde_json::Value;

/// Sets the defaults of `schema` in `value`: for what is missing, and for a `null` that may not be one.
///
/// A read shows the defaults of the version that an object is stored at, not those of the version that it is read at; a
/// write at that version sets them (PITFALLS A35). So this part of a rewrite cannot be read from the server beforehand.
pub(crate) fn fill(value: &mut Value, schema: &Value) {
    let (properties, others) = (&schema["properties"], &schema["additionalProperties"]);
    match value {
        Value::Object(map) => {
            for (name, property) in properties.as_object().into_iter().flatten() {
                let default = &property["default"];
                if !default.is_null() && map.get(name).is_none_or(|held| is_refused_null(held, property)) {
                    map.insert(name.clone(), default.clone());
                }
            }
            for (name, inner) in map {
                match properties.get(name) {
                    Some(property) => fill(inner, property),
                    None if others.is_object() => fill_place(inner, others),
                    None => {}
                }
            }
        }
        Value::Array(items) if schema["items"].is_object() => {
            for item in items {
                fill_place(item, &schema["items"]);
            }
        }
        _ => {}
    }
}

/// An item, or a value under a free key: a `null` is replaced there, but nothing is ever added.
fn fill_place(value: &mut Value, schema: &Value) {
    if is_refused_null(value, schema) {
        value.clone_from(&schema["default"]);
    }
    fill(value, schema);
}

fn is_refused_null(value: &Value, schema: &Value) -> bool {
    value.is_null() && schema["nullable"] != Value::Bool(true)
}

/// Whether `value`, which was read through `schema`, is what its defaults alone would have put there; `path` leads to a
/// part of it, and any whole around that part counts: `{a: 1}` that is a default makes `a` one.
pub(crate) fn alone_explain(schema: &Value, value: &Value, path: &[Place<'_>]) -> bool {
    let (mut schema, mut value) = (schema, value);
    for place in path {
        match place {
            Place::Key(key) => {
                let property = schema["properties"].get(*key);
                let (Some(inner), Some(below)) = (property.or_else(|| others(schema)), value.get(*key))
                else {
                    return false;
                };
                if property.is_some_and(|property| is_default(property, below)) {
                    return true;
                }
                (schema, value) = (inner, below);
            }
            Place::Item(index) => {
                let Some(below) = value.get(*index) else {
                    return false;
                };
                (schema, value) = (&schema["items"], below);
            }
        }
    }
    false
}

/// One step into an object.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    /// The value under this key.
    Key(&'a str),
    /// The item at this index.
    Item(usize),
}

fn others(schema: &Value) -> Option<&Value> {
    Some(&schema["additionalProperties"]).filter(|values| values.is_object())
}

fn is_default(property: &Value, value: &Value) -> bool {
    let mut default = property["default"].clone();
    if default.is_null() {
        return false;
    }
    fill(&mut default, property);
    default == *value
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_fill_what_is_missing_and_what_may_not_be_null() {
        let schema = json!({"properties": {
            "a": {"default": 1},
            "b": {"default": 2, "nullable": true},
            "c": {"default": {}, "properties": {"d": {"default": 3}}},
            "list": {"items": {"default": 4}},
            "map": {"additionalProperties": {"properties": {"e": {"default": 5}}}},
            "free": {},
        }});
        let mut value =
            json!({"a": null, "b": null, "list": [null, 0], "map": {"x": {}, "y": {"e": 0}}, "free": {}});
        fill(&mut value, &schema);
        let expected = json!({
            "a": 1, "b": null, "c": {"d": 3}, "list": [4, 0], "map": {"x": {"e": 5}, "y": {"e": 0}}, "free": {},
        });
        assert_eq!(value, expected);
    }

    #[test]
    fn a_part_of_a_default_is_explained_by_the_whole() {
        let schema = json!({"properties": {"status": {"default": {"seen": -1}, "properties": {"seen": {}}}}});
        let path = [Place::Key("status"), Place::Key("seen")];
        assert!(alone_explain(&schema, &json!({"status": {"seen": -1}}), &path));
        assert!(!alone_explain(&schema, &json!({"status": {"seen": 4}}), &path));
        assert!(!alone_explain(
            &schema,
            &json!({"status": {"seen": -1, "by": "hand"}}),
            &path
        ));
    }
}
