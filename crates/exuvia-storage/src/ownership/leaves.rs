//! Everything in an object that can have an owner by itself, and other values to ask for it with. Pure.

use serde_json::{Value, json};

use super::shape::{Shape, field, item_key};

/// So many other values of a scalar are tried.
const MAX_VALUES: usize = 3;

/// So many changes of an atomic value are tried.
const MAX_CHANGES: usize = 60;

/// Where a field stands, and how to ask for its owner.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Leaf {
    /// As in managedFields: `f:spec`, `k:{…}`.
    pub(super) path: Vec<String>,
    /// Paths that belong to the owner of this one: the item or key it stands in.
    pub(super) along: Vec<Vec<String>>,
    /// Partial objects that hold another value here, one as good as the other. None: it cannot be asked for.
    pub(super) others: Vec<Value>,
}

/// Everything in an object that can have an owner by itself, metadata apart.
pub(super) fn leaves_of(data: &Value, schema: &Value) -> Vec<Leaf> {
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
            .take(MAX_VALUES)
            .cloned()
            .collect();
    }
    match value {
        Value::Null => Vec::new(),
        Value::Bool(value) => vec![json!(!value)],
        Value::Number(number) => match number.as_i64() {
            // Another unit may round a small change away.
            Some(number) => vec![
                json!(number.wrapping_add(1)),
                json!(number.wrapping_mul(2).wrapping_add(86_400)),
            ],
            None => number
                .as_f64()
                .map(|number| vec![json!(number + 1.0), json!(number * 2.0 + 86_400.0)])
                .unwrap_or_default(),
        },
        Value::String(text) => {
            let counted = text.find(|c: char| c.is_ascii_digit()).map(|at| {
                let digit = if text[at..].starts_with('1') { "2" } else { "1" };
                json!(format!("{}{digit}{}", &text[..at], &text[at + 1..]))
            });
            // What is put together from two values may show only one of them at either end.
            let longer = [json!(format!("{text}x")), json!(format!("x{text}"))];
            counted.into_iter().chain(longer).collect()
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

/// An atomic value with each of its parts changed in turn: several fields of another version may have become one.
fn changed_inside<'a, K: Copy>(
    parts: impl Iterator<Item = (K, &'a Value)>,
    put: impl Fn(K, Value) -> Value,
    schema: impl Fn(K) -> &'a Value,
) -> Vec<Value> {
    let changed = parts.flat_map(|(at, part)| {
        let others = others(part, schema(at)).into_iter().take(MAX_VALUES);
        others.map(|other| put(at, other)).collect::<Vec<_>>()
    });
    changed.take(MAX_CHANGES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
