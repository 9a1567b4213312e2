//! Whether a value is as a CRD's schema wants it: enough of `OpenAPI` to say in a sentence what the API server would refuse.

use exuvia_api::counted;
use exuvia_lint::Segment;
use exuvia_usage::nearest;
use serde_json::Value;

use exuvia_usage::or;

/// What is wrong with a field.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) path: Vec<Segment>,
    pub(super) problem: String,
    /// The field itself is unknown, and not only its value wrong.
    pub(super) is_unknown: bool,
}

/// Everything that is wrong with a value.
pub(super) fn faults(schema: &Value, value: &Value) -> Vec<Fault> {
    let mut check = Check {
        faults: Vec::new(),
        path: Vec::new(),
    };
    check.value(schema, value);
    check.faults
}

struct Check {
    faults: Vec<Fault>,
    path: Vec<Segment>,
}

impl Check {
    fn fault(&mut self, problem: String) {
        self.faults.push(Fault {
            path: self.path.clone(),
            problem,
            is_unknown: false,
        });
    }

    fn below(&mut self, segment: Segment, schema: &Value, value: &Value) {
        self.path.push(segment);
        self.value(schema, value);
        self.path.pop();
    }

    fn value(&mut self, schema: &Value, value: &Value) {
        // The server drops nulls, and says so if something is missing then.
        if value.is_null() || schema["x-kubernetes-int-or-string"] == true {
            return;
        }
        let Some((is_it, expected)) = schema["type"].as_str().and_then(|type_| is_of(type_, value)) else {
            return; // anything
        };
        if !is_it {
            return self.fault(format!("it is {}: expected {expected}", article(value)));
        }
        if let Some(known) = schema["enum"].as_array()
            && !known.contains(value)
        {
            let known: Vec<String> = known
                .iter()
                .filter_map(|known| known.as_str().map(str::to_owned))
                .collect();
            return self.fault(format!("unknown value {value}: expected {}", or(&known)));
        }
        match value {
            Value::Object(fields) => self.object(schema, fields),
            Value::Array(items) => {
                self.size(schema, ("minItems", "maxItems"), items.len(), "entry");
                for (index, item) in items.iter().enumerate() {
                    self.below(Segment::Index(index), &schema["items"], item);
                }
            }
            Value::String(text) => {
                self.size(
                    schema,
                    ("minLength", "maxLength"),
                    text.chars().count(),
                    "character",
                );
            }
            Value::Number(number) => {
                let number = number.as_f64().unwrap_or_default();
                let (least, most) = (schema["minimum"].as_f64(), schema["maximum"].as_f64());
                if least.is_some_and(|least| number < least) || most.is_some_and(|most| number > most) {
                    let bound = |bound: Option<f64>| bound.map(|bound| bound.to_string());
                    let expected = match (bound(least), bound(most)) {
                        (Some(least), Some(most)) => format!("{least} to {most}"),
                        (Some(least), None) => format!("at least {least}"),
                        (_, most) => format!("at most {}", most.unwrap_or_default()),
                    };
                    self.fault(format!("invalid value {value}: expected {expected}"));
                }
            }
            _ => {}
        }
    }

    fn size(&mut self, schema: &Value, (least, most): (&str, &str), size: usize, what: &str) {
        let size = size as u64;
        if let Some(least) = schema[least].as_u64().filter(|least| size < *least) {
            self.fault(match size {
                0 => format!("it is empty: expected at least {}", counted(least, what)),
                size => format!("it has {}: expected at least {least}", counted(size, what)),
            });
        } else if let Some(most) = schema[most].as_u64().filter(|most| size > *most) {
            self.fault(format!("it has {}: expected at most {most}", counted(size, what)));
        }
    }

    fn object(&mut self, schema: &Value, fields: &serde_json::Map<String, Value>) {
        let known = schema["properties"].as_object();
        for (key, value) in fields {
            let segment = Segment::Key(key.clone());
            if let Some(property) = known.and_then(|known| known.get(key)) {
                self.below(segment, property, value);
            } else if let Some(additional) =
                schema.get("additionalProperties").filter(|more| more.is_object())
            {
                self.below(segment, additional, value);
            } else if schema["x-kubernetes-preserve-unknown-fields"] != true {
                let names = known.into_iter().flatten().map(|(name, _)| name.as_str());
                let meant: Vec<String> = nearest(key, names).into_iter().map(str::to_owned).collect();
                let path = self.path.iter().cloned().chain([segment]).collect();
                self.faults.push(Fault {
                    path,
                    problem: match meant.as_slice() {
                        [] => "unknown field".to_owned(),
                        meant => format!("unknown field: did you mean {}?", or(meant)),
                    },
                    is_unknown: true,
                });
            }
        }
        for required in schema["required"].as_array().into_iter().flatten() {
            let name = required.as_str().unwrap_or_default();
            if fields.get(name).is_none_or(Value::is_null) {
                self.path.push(Segment::Key(name.to_owned()));
                self.fault("the field is missing".to_owned());
                self.path.pop();
            }
        }
    }
}

/// Whether the value has this type, and what the type is called.
fn is_of(type_: &str, value: &Value) -> Option<(bool, &'static str)> {
    let is_it = match type_ {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        _ => value.is_number(),
    };
    Some((is_it, called(type_)?))
}

/// What a type is called; `None`: it is not known.
pub(super) fn called(type_: &str) -> Option<&'static str> {
    Some(match type_ {
        "object" => "a mapping",
        "array" => "a list",
        "string" => "text",
        "boolean" => "true or false",
        "integer" => "a whole number",
        "number" => "a number",
        _ => return None,
    })
}

fn article(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false (without quotes)",
        Value::Number(_) => "a number (without quotes)",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::datastore::field_path::shown;

    #[test]
    fn each_fault_is_named_with_its_path() {
        let schema = json!({
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "maxLength": 3},
                "mode": {"type": "string", "enum": ["A", "B"]},
                "count": {"type": "integer", "minimum": 1, "maximum": 64},
                "list": {"type": "array", "minItems": 1, "items": {"type": "boolean"}},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "any": {"x-kubernetes-preserve-unknown-fields": true},
            },
        });
        let value = json!({
            "mode": "C", "count": 65, "list": [true, "x"], "labels": {"a.b/c": 1}, "any": {"x": 1}, "nane": "a",
        });
        let said: Vec<String> = faults(&schema, &value)
            .iter()
            .map(|fault| format!("{}: {}", shown(&fault.path), fault.problem))
            .collect();
        assert_eq!(
            said,
            [
                "count: invalid value 65: expected 1 to 64",
                "labels[\"a.b/c\"]: it is a number (without quotes): expected text",
                "list[1]: it is text: expected true or false",
                "mode: unknown value \"C\": expected A or B",
                "nane: unknown field: did you mean name?",
                "name: the field is missing",
            ]
        );
        assert_eq!(faults(&schema, &json!({"name": "abc", "count": null})), []);
        assert_eq!(
            faults(&schema, &json!({"name": "abcd"}))[0].problem,
            "it has 4 characters: expected at most 3"
        );
    }
}
