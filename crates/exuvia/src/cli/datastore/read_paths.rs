//! Fields of the source that expressions read, against the schemas of its CRDs: a field that no object can have is a slip.

use exuvia_datastore::mapping::{FieldRead, ReadStep};
use exuvia_usage::nearest;
use serde_json::Value;

use super::crd_paths::{Answer, Below, below};
use super::manifest::Manifest;
use exuvia_usage::or;

/// Names each field that none of the kinds can have. `sources` are the schemas of all of them.
pub(super) fn check(
    manifest: &Manifest,
    reads: &[(String, FieldRead)],
    source: &str,
    sources: &[&Value],
    answer: &mut Answer,
) {
    for (at, read) in reads {
        // A field that only one of several kinds has is fine.
        let unknown: Option<Vec<Unknown>> =
            sources.iter().map(|schema| unknown(schema, &read.path)).collect();
        let Some(unknown) = unknown.and_then(|all| all.into_iter().max_by_key(|unknown| unknown.depth))
        else {
            continue;
        };
        let field = shown(&read.path[..=unknown.depth]);
        let meant = match unknown.meant.as_slice() {
            [] => String::new(),
            meant => format!("; did you mean {}?", or(meant)),
        };
        let is_optional = read.optional_from.is_some_and(|from| unknown.depth >= from);
        let consequence = if is_optional {
            "it is always absent"
        } else {
            "the expression fails for every object"
        };
        let problem = format!("unknown field {field} of {source}: {consequence}{meant}");
        let fault = manifest.fault_in(at, read.position, problem);
        if is_optional {
            let note = fault.to_string();
            if !answer.notes.contains(&note) {
                answer.notes.push(note);
            }
        } else if !answer.faults.contains(&fault) {
            answer.faults.push(fault);
        }
    }
}

/// Where a path leaves a schema.
struct Unknown {
    depth: usize,
    meant: Vec<String>,
}

/// `None`: the field may be there, as far as is known.
fn unknown(schema: &Value, path: &[ReadStep]) -> Option<Unknown> {
    if let Some(ReadStep::Field(first)) = path.first()
        && ["apiVersion", "kind", "metadata"].contains(&first.as_str())
    {
        return None; // the same for all kinds
    }
    let mut schema = schema;
    for (depth, step) in path.iter().enumerate() {
        schema = match step {
            ReadStep::Item if schema["type"] == "array" => &schema["items"],
            ReadStep::Item => schema
                .get("additionalProperties")
                .filter(|more| more.is_object())?,
            ReadStep::Field(key) => match below(schema, key) {
                Below::Known(schema) => schema,
                Below::Anything => return None,
                Below::Unknown => {
                    let known = schema["properties"].as_object();
                    let names = known.into_iter().flatten().map(|(name, _)| name.as_str());
                    return Some(Unknown {
                        depth,
                        meant: nearest(key, names).into_iter().map(str::to_owned).collect(),
                    });
                }
            },
        };
    }
    None
}

fn shown(path: &[ReadStep]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            ReadStep::Item => text.push_str("[]"),
            ReadStep::Field(key) if text.is_empty() => text.push_str(key),
            ReadStep::Field(key) => text.push_str(&format!(".{key}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use exuvia_datastore::mapping::Mappings;
    use serde_json::json;

    use super::*;

    /// The fields of an expression that no object of this kind can have; those that it can do without have a `?`.
    fn unknown_in(expression: &str) -> Vec<String> {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "width": {"type": "integer"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "template": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "port": {"x-kubernetes-int-or-string": true},
            "parts": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
        }}}});
        let spec = serde_json::from_value(json!({"mappings": [{
            "name": "all",
            "from": {"group": "old.dev", "version": "v1", "kinds": ["Widget"]},
            "to": {"group": "new.dev", "version": "v1"},
            "convert": [{"path": "spec.size", "value": expression}],
        }]}))
        .expect("a spec");
        let mappings = Mappings::compile(&spec).expect("it is valid");
        let found = mappings.reads(0).into_iter().filter_map(|(at, read)| {
            assert_eq!(at, "mappings[0].convert[0].value");
            let unknown = unknown(&schema, &read.path)?;
            let mark = if read.optional_from.is_some_and(|from| unknown.depth >= from) {
                "?"
            } else {
                ""
            };
            Some(format!("{}{mark}", shown(&read.path[..=unknown.depth])))
        });
        found.collect()
    }

    #[test]
    fn fields_that_no_object_can_have_are_found() {
        for (expression, expected) in [
            ("object.spec.widht", "spec.widht"),
            ("object.spec.width + object.spec.depth", "spec.depth"),
            ("object.spec['depth']", "spec.depth"),
            ("object.spec.width.cells", "spec.width.cells"),
            ("object.spec.parts[0].nam", "spec.parts[].nam"),
            ("object.spec.parts.map(p, object.spec.depth)", "spec.depth"),
            ("has(object.spek.width)", "spek"),
            ("object.spec.?widht.orValue(1)", "spec.widht?"),
            ("{'a': [object.data]}", "data"),
        ] {
            assert_eq!(unknown_in(expression), [expected], "{expression}");
        }
    }

    #[test]
    fn what_is_not_certain_is_not_said() {
        for expression in [
            "object.spec.width",
            "object.spec.?width.orValue(1)",
            "object.spec.labels.anything + object.spec.labels['a.b/c']",
            "object.spec.template.spec.x",
            "object.spec.port",
            "object.metadata.labels.x + object.kind",
            "object.spec.parts.map(p, p.nam)",
            "object.spec.parts[object.spec.width].name",
            "has(object.spec.depth) ? object.spec.depth.x : 1",
            "'depth' in object.spec ? object.spec.depth : 1",
            "cel.bind(s, object.spec, s.depth)",
            "object.spec[object.metadata.name].x",
            "object.spec",
        ] {
            assert_eq!(unknown_in(expression), [""; 0], "{expression}");
        }
    }
}
