//! What a schema tells about managedFields: whether a field path exists at another version.

use serde_json::Value;

fn keeps_unknown(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == Value::Bool(true)
        || schema["additionalProperties"] == Value::Bool(true)
        || schema["x-kubernetes-embedded-resource"] == Value::Bool(true)
}

fn child<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    let property = schema["properties"].get(name);
    property.or_else(|| Some(&schema["additionalProperties"]).filter(|values| values.is_object()))
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
mod tests {
    use serde_json::json;

    use super::*;

    #[allow(clippy::needless_pass_by_value)] // reads better at the place of use
    fn object(properties: Value) -> Value {
        json!({"type": "object", "properties": properties})
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
