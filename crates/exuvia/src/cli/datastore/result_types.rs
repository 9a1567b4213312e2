//! What expressions give, against the types of the fields that they set. Only what is certain is said.

use exuvia_datastore::mapping::ResultType;
use exuvia_lint::Segment;
use serde_json::Value;

use super::crd_paths::{Below, below};
use super::schema::called;

/// What the field takes instead, if it never takes such a value.
pub(super) fn unfit(schema: &Value, path: &[Segment], result: ResultType) -> Option<&'static str> {
    if matches!(path.first(), Some(Segment::Key(key)) if key == "metadata") {
        return None; // the same for all kinds
    }
    let mut schema = schema;
    for segment in path {
        let Segment::Key(key) = segment else {
            return None;
        };
        schema = match below(schema, key) {
            Below::Known(schema) => schema,
            Below::Anything | Below::Unknown => return None,
        };
    }
    let is_open = [
        "x-kubernetes-int-or-string",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-embedded-resource",
    ];
    if is_open.iter().any(|mark| schema[*mark] == true) {
        return None;
    }
    let type_ = schema["type"].as_str()?;
    let takes = match type_ {
        "object" => result == ResultType::Map,
        "array" => result == ResultType::List,
        "string" => result == ResultType::Text,
        "boolean" => result == ResultType::Bool,
        // A double may be a whole number.
        "integer" | "number" => matches!(result, ResultType::Integer | ResultType::Double),
        _ => true,
    };
    called(type_).filter(|_| !takes)
}

/// What an expression gives, in the words of schemas.
pub(super) fn said(result: ResultType) -> &'static str {
    match result {
        ResultType::Text => "text",
        ResultType::Integer => "a whole number",
        ResultType::Double => "a number",
        ResultType::Bool => "true or false",
        ResultType::List => "a list",
        ResultType::Map => "a mapping",
    }
}

#[cfg(test)]
mod tests {
    use exuvia_datastore::mapping::Mappings;
    use serde_json::json;

    use super::super::field_path::segments;
    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "size": {"type": "integer"},
            "share": {"type": "number"},
            "color": {"type": "string", "nullable": true},
            "on": {"type": "boolean"},
            "parts": {"type": "array", "items": {"type": "string"}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "template": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
            "object": {"type": "object", "x-kubernetes-embedded-resource": true},
            "free": {},
        }}}})
    }

    /// What the field takes instead of what this expression gives, if that is certain.
    fn unfit_for(path: &str, expression: &str) -> Option<&'static str> {
        let spec = serde_json::from_value(json!({"mappings": [{
            "name": "all",
            "from": {"group": "old.dev", "version": "v1", "kinds": ["Widget"]},
            "to": {"group": "new.dev", "version": "v1"},
            "convert": [{"path": path, "value": expression}],
        }]}))
        .expect("a spec");
        let results = Mappings::compile(&spec).expect("it is valid").results(0);
        unfit(&schema(), &segments(path), results[0]?)
    }

    #[test]
    fn a_value_that_a_field_never_takes_is_found() {
        for (path, expression, expected) in [
            ("spec.size", "'4'", "a whole number"),
            ("spec.size", "string(object.spec.width)", "a whole number"),
            ("spec.size", "object.spec.width == 1", "a whole number"),
            ("spec.share", "'a' + object.spec.width", "a number"),
            ("spec.color", "4", "text"),
            ("spec.color", "object.spec.on ? 1 : 2", "text"),
            ("spec.color", "{'a': object.spec.width}", "text"),
            ("spec.on", "object.metadata.name.size()", "true or false"),
            ("spec.parts", "'a'", "a list"),
            ("spec.labels", "['a']", "a mapping"),
            ("spec.labels.a", "has(object.spec.width)", "text"),
            ("spec", "'text'", "a mapping"),
        ] {
            assert_eq!(
                unfit_for(path, expression),
                Some(expected),
                "{path}: {expression}"
            );
        }
    }

    #[test]
    fn what_fits_or_is_not_certain_is_not_said() {
        for (path, expression) in [
            ("spec.size", "4"),
            ("spec.size", "4.0"),
            ("spec.size", "object.spec.width * 2"),
            ("spec.size", "object.spec.?width.orValue('4')"),
            ("spec.size", "object.spec.on ? 4 : optional.none()"),
            ("spec.size", "object.spec.on ? '4' : object.spec.width"),
            ("spec.size", "null"),
            ("spec.size", "cel.bind(x, 'a', x)"),
            ("spec.size", "optional.of('4')"),
            ("spec.share", "1"),
            ("spec.color", "object.spec.width + object.spec.width"),
            ("spec.color", "null"),
            ("spec.parts", "object.spec.parts.map(p, p)"),
            ("spec.parts", "object.spec.parts + ['a']"),
            ("spec.labels", "{'a': 'b'}"),
            ("spec.template", "'text'"),
            ("spec.template.anything", "4"),
            ("spec.port", "4"),
            ("spec.port", "'http'"),
            ("spec.object", "[]"),
            ("spec.free", "true"),
            ("metadata.labels.a", "4"),
        ] {
            assert_eq!(unfit_for(path, expression), None, "{path}: {expression}");
        }
    }
}
