//! Where a conversion webhook renames fields, nobody but the server knows what an old entry owns at the new version. So it is
//! asked: would it be a conflict with that entry to apply another value here? Only dry-runs are sent.
//!
//! That is the very question whose answer must be the same after the move. The server looks for conflicts before it validates
//! and before admission, so a value need not be a good one, only another one of the right type.

use std::collections::BTreeSet;

use exuvia_write::{Apply, Error, ErrorClass, Writer, unite_fields};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use kube::Api;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::shape::{Shape, field, item_key};
use crate::forbidden::MissingRule;

/// Under whose name it is asked. Nothing is stored, so the name is seen in audit logs only.
const ASKER: &str = "exuvia-asks";

/// An object with more fields than this is not asked about: a map of user data may have any number.
const MOST_FIELDS: usize = 2_000;

/// Where a field stands, and how to ask for its owner.
#[derive(Clone, Debug, Default, PartialEq)]
struct Leaf {
    /// As in managedFields: `f:spec`, `k:{…}`.
    path: Vec<String>,
    /// Paths that belong to the owner of this one: the item or key it stands in.
    along: Vec<Vec<String>>,
    /// Partial objects that hold another value here, one as good as the other. None: it cannot be asked for.
    others: Vec<Value>,
}

/// What these entries own of the object, in terms of the version at which it is shown; in their order. `Err`: why that could
/// not be found out.
pub(crate) async fn owned_at(
    writer: &Writer,
    api: &Api<DynamicObject>,
    (object, schema, has_status): (&DynamicObject, &Value, bool),
    entries: &[&ManagedFieldsEntry],
) -> Result<Vec<FieldsV1>, String> {
    let writer = writer.acting_as(ASKER).dry_run();
    let metadata = |entry: &&ManagedFieldsEntry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0["f:metadata"]);
        let fields = fields.filter(|fields| fields.is_object());
        FieldsV1(fields.map_or_else(|| json!({}), |fields| json!({"f:metadata": fields})))
    };
    let mut owned: Vec<FieldsV1> = entries.iter().map(metadata).collect();
    let leaves = leaves_of(&object.data, schema);
    if leaves.len() > MOST_FIELDS {
        let number = leaves.len();
        return Err(format!(
            "it has {number} fields, and the server is asked for {MOST_FIELDS} at most"
        ));
    }
    for leaf in leaves {
        let through_status = has_status && leaf.path.first().is_some_and(|first| first == "f:status");
        let of_this_part =
            |entry: &ManagedFieldsEntry| through_status == (entry.subresource.as_deref() == Some("status"));
        if !entries.iter().any(|entry| of_this_part(entry)) {
            continue;
        }
        let conflicts = if leaf.others.is_empty() {
            None
        } else {
            Some(conflicts(&writer, api, object, &leaf, through_status).await?)
        };
        for (entry, owned) in entries.iter().zip(&mut owned) {
            let is_owner = match &conflicts {
                Some(conflicts) => conflicts.iter().any(|conflict| is_about(conflict, entry)),
                // An empty value, or an item that consists of its keys: the same name is all there is to go by.
                None => of_this_part(entry) && has_member(entry, &leaf.path),
            };
            if is_owner {
                for path in leaf.along.iter().chain([&leaf.path]) {
                    *owned = unite_fields(owned, &single(path)).ok_or("its managedFields cannot be read")?;
                }
            }
        }
    }
    Ok(owned)
}

/// With whom it would be a conflict to apply another value here, in the server's words.
async fn conflicts(
    writer: &Writer,
    api: &Api<DynamicObject>,
    object: &DynamicObject,
    leaf: &Leaf,
    through_status: bool,
) -> Result<BTreeSet<String>, String> {
    let types = object.types.clone().unwrap_or_default();
    let mut last = String::new();
    for other in &leaf.others {
        let mut intent = other.clone();
        intent["apiVersion"] = json!(types.api_version);
        intent["kind"] = json!(types.kind);
        intent["metadata"] = json!({"name": object.metadata.name, "namespace": object.metadata.namespace});
        let how = Apply::default();
        let asked = if through_status {
            writer.apply_status(api, &intent, &how).await
        } else {
            writer.apply(api, &intent, &how).await
        };
        match asked {
            Ok(DynamicObject { .. }) => return Ok(BTreeSet::new()),
            Err(error) => match judge(&error) {
                Judged::Conflicts(conflicts) => return Ok(conflicts),
                Judged::Nobody => return Ok(BTreeSet::new()),
                Judged::NotKnown => last = error.to_string(),
            },
        }
    }
    Err(last)
}

enum Judged {
    Conflicts(BTreeSet<String>),
    /// It got past the search for conflicts.
    Nobody,
    NotKnown,
}

fn judge(error: &Error) -> Judged {
    let details = error.status().and_then(|status| status.details.as_ref());
    let causes = details
        .map(|details| details.causes.as_slice())
        .unwrap_or_default();
    let conflicts: BTreeSet<String> = causes
        .iter()
        .filter(|cause| cause.reason == "FieldManagerConflict")
        .map(|cause| cause.message.clone())
        .collect();
    match error.class() {
        ErrorClass::Conflict if !conflicts.is_empty() => Judged::Conflicts(conflicts),
        ErrorClass::Invalid => Judged::Nobody,
        ErrorClass::Denied if MissingRule::named_in(&error.to_string()).is_none() => Judged::Nobody,
        _ => Judged::NotKnown,
    }
}

/// Whether a conflict is with this entry: `conflict with "flux" with subresource "status" using example.com/v1 at …`. Of an
/// `Apply` entry the server names the manager alone, since there is one for each.
fn is_about(conflict: &str, entry: &ManagedFieldsEntry) -> bool {
    let mut owner = format!("conflict with {:?}", entry.manager.as_deref().unwrap_or_default());
    if let Some(subresource) = entry.subresource.as_deref().filter(|name| !name.is_empty()) {
        owner += &format!(" with subresource {subresource:?}");
    }
    if entry.operation.as_deref() == Some("Apply") {
        return conflict == owner;
    }
    owner += &format!(" using {}", entry.api_version.as_deref().unwrap_or_default());
    let rest = conflict.strip_prefix(&owner);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" at "))
}

/// A set of one path.
fn single(path: &[String]) -> FieldsV1 {
    let nested = path
        .iter()
        .rev()
        .fold(json!({}), |inner, element| json!({ element: inner }));
    FieldsV1(nested)
}

fn has_member(entry: &ManagedFieldsEntry, path: &[String]) -> bool {
    let fields = entry.fields_v1.as_ref();
    fields.is_some_and(|fields| {
        exuvia_write::field_paths(fields).contains(&path.iter().map(String::as_str).collect())
    })
}

/// Everything in an object that can have an owner by itself, metadata apart.
fn leaves_of(data: &Value, schema: &Value) -> Vec<Leaf> {
    let mut data = data.clone();
    if let Value::Object(data) = &mut data {
        data.retain(|key, _| !matches!(key.as_str(), "apiVersion" | "kind" | "metadata"));
    }
    leaves(&data, schema)
}

fn leaves(value: &Value, schema: &Value) -> Vec<Leaf> {
    let mut found = Vec::new();
    match (Shape::of(schema, Some(value), &serde_json::Map::new()), value) {
        (Shape::Map, Value::Object(map)) if !map.is_empty() => {
            for (key, value) in map {
                let Some((inner, is_named)) = field(schema, key) else {
                    continue;
                };
                let element = format!("f:{key}");
                for leaf in leaves(value, inner) {
                    let is_nested = !leaf.path.is_empty();
                    let mut leaf = leaf.below(&element, |other| json!({ key: other }));
                    if is_nested && !is_named {
                        leaf.along.push(vec![element.clone()]);
                    }
                    found.push(leaf);
                }
            }
        }
        (Shape::Items(keys), Value::Array(items)) => {
            for item in items {
                let element = item_key(item, &keys, schema);
                let in_item = |other: Value| {
                    let mut other = other;
                    for key in &keys {
                        if let Some(value) = item.get(*key) {
                            other[*key] = value.clone();
                        }
                    }
                    json!([other])
                };
                let own_fields = |leaf: &Leaf| {
                    !leaf
                        .path
                        .first()
                        .is_some_and(|first| keys.iter().any(|key| *first == format!("f:{key}")))
                };
                let below: Vec<Leaf> = leaves(item, &schema["items"])
                    .into_iter()
                    .filter(own_fields)
                    .collect();
                let mut identity = vec![vec![element.clone()]];
                identity.extend(
                    keys.iter()
                        .filter(|key| item.get(**key).is_some())
                        .map(|key| vec![element.clone(), format!("f:{key}")]),
                );
                if below.is_empty() {
                    found.push(Leaf {
                        path: vec![element.clone()],
                        along: identity,
                        others: Vec::new(),
                    });
                    continue;
                }
                for leaf in below {
                    let mut leaf = leaf.below(&element, in_item);
                    leaf.along.extend(identity.clone());
                    found.push(leaf);
                }
            }
        }
        (Shape::Set, Value::Array(items)) => {
            found.extend(items.iter().map(|item| Leaf {
                path: vec![format!("v:{item}")],
                ..Leaf::default()
            }));
        }
        _ => found.push(Leaf {
            others: others(value, schema),
            ..Leaf::default()
        }),
    }
    found
}

impl Leaf {
    fn below(mut self, element: &str, wrap: impl Fn(Value) -> Value) -> Self {
        self.path.insert(0, element.to_owned());
        for path in &mut self.along {
            path.insert(0, element.to_owned());
        }
        self.others = self.others.into_iter().map(wrap).collect();
        self
    }
}

/// Other values of the same type, the likeliest to be understood by a webhook first.
fn others(value: &Value, schema: &Value) -> Vec<Value> {
    let choices = schema["enum"].as_array();
    if let Some(choices) = choices.filter(|choices| choices.len() > 1) {
        return choices
            .iter()
            .filter(|choice| *choice != value)
            .cloned()
            .collect();
    }
    match value {
        Value::Null => Vec::new(),
        Value::Bool(value) => vec![json!(!value)],
        Value::Number(number) => match number.as_i64() {
            Some(number) => vec![json!(number.wrapping_add(1)), json!(number.wrapping_sub(1))],
            None => number
                .as_f64()
                .map(|number| json!(number + 1.0))
                .into_iter()
                .collect(),
        },
        Value::String(text) => {
            let counted = text.find(|c: char| c.is_ascii_digit()).map(|at| {
                let digit = if text[at..].starts_with('1') { "2" } else { "1" };
                json!(format!("{}{digit}{}", &text[..at], &text[at + 1..]))
            });
            counted.into_iter().chain([json!(format!("{text}x"))]).collect()
        }
        Value::Array(items) => changed_inside(
            items.iter().enumerate(),
            |at, other| {
                let mut items = items.clone();
                items[at] = other;
                json!(items)
            },
            |_| &schema["items"],
        ),
        Value::Object(map) => changed_inside(
            map.iter(),
            |key: &String, other| {
                let mut map = map.clone();
                map.insert(key.clone(), other);
                json!(map)
            },
            |key| field(schema, key).map_or(&Value::Null, |(inner, _)| inner),
        ),
    }
}

/// The first part of an atomic value that can be changed, changed.
fn changed_inside<'a, K: Copy>(
    mut parts: impl Iterator<Item = (K, &'a Value)>,
    put: impl Fn(K, Value) -> Value,
    schema: impl Fn(K) -> &'a Value,
) -> Vec<Value> {
    let found = parts
        .find_map(|(at, part)| Some((at, others(part, schema(at)))).filter(|(_, others)| !others.is_empty()));
    let Some((at, others)) = found else {
        return Vec::new();
    };
    others.into_iter().map(|other| put(at, other)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn entry(operation: &str, subresource: &str) -> ManagedFieldsEntry {
        serde_json::from_value(json!({
            "manager": "flux", "operation": operation, "subresource": subresource, "apiVersion": "example.com/v1alpha1",
        }))
        .unwrap()
    }

    #[test]
    fn a_conflict_names_its_entry() {
        let applied = entry("Apply", "");
        assert!(is_about("conflict with \"flux\"", &applied));
        assert!(!is_about("conflict with \"flux2\"", &applied));
        assert!(!is_about(
            "conflict with \"flux\" using example.com/v1alpha1 at 2026-11-16T10:00:00Z",
            &applied
        ));
        let updated = entry("Update", "status");
        let said = "conflict with \"flux\" with subresource \"status\" using example.com/v1alpha1";
        assert!(is_about(said, &updated));
        assert!(is_about(&format!("{said} at 2026-11-16T10:00:00Z"), &updated));
        assert!(!is_about(&format!("{said}0"), &updated));
    }

    #[test]
    fn every_field_is_asked_for_with_another_value_of_its_type() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "interval": {"type": "string"}, "on": {"type": "boolean"}, "kind": {"type": "string", "enum": ["a", "b"]},
            "ref": {"type": "object", "x-kubernetes-map-type": "atomic"}, "none": {"type": "object"},
            "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                      "items": {"type": "object", "properties": {"name": {"type": "string"}, "port": {"type": "integer"}}}},
        }}}});
        let data = json!({"apiVersion": "x", "spec": {
            "interval": "5m", "on": true, "kind": "a", "ref": {"deep": [1]}, "none": {}, "ports": [{"name": "web", "port": 80}],
        }});
        let asked: Vec<(String, Value)> = leaves_of(&data, &schema)
            .into_iter()
            .map(|leaf| {
                (
                    leaf.path.join("/"),
                    leaf.others.first().cloned().unwrap_or_default(),
                )
            })
            .collect();
        let spec = |inner: Value| json!({ "spec": inner });
        let wanted = [
            ("f:spec/f:interval", spec(json!({"interval": "1m"}))),
            ("f:spec/f:kind", spec(json!({"kind": "b"}))),
            ("f:spec/f:none", Value::Null),
            ("f:spec/f:on", spec(json!({"on": false}))),
            (
                "f:spec/f:ports/k:{\"name\":\"web\"}/f:port",
                spec(json!({"ports": [{"name": "web", "port": 81}]})),
            ),
            ("f:spec/f:ref", spec(json!({"ref": {"deep": [2]}}))),
        ];
        assert_eq!(asked, wanted.map(|(path, value)| (path.to_owned(), value)));
    }

    #[test]
    fn an_item_comes_along_with_its_fields() {
        let list = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                          "items": {"type": "object", "properties": {"name": {"type": "string"}, "port": {"type": "integer"}}}});
        let schema = json!({"type": "object", "properties": {"ports": list}});
        let found = leaves(
            &json!({"ports": [{"name": "web", "port": 80}, {"name": "bare"}]}),
            &schema,
        );
        let item = |name: &str| format!("k:{{\"name\":\"{name}\"}}");
        let along = |name: &str| {
            [
                vec!["f:ports".to_owned(), item(name)],
                vec!["f:ports".to_owned(), item(name), "f:name".to_owned()],
            ]
        };
        assert_eq!(found[0].along, along("web"));
        assert_eq!(
            (found[1].along.as_slice(), found[1].others.len()),
            (&along("bare")[..], 0)
        );
    }
}
