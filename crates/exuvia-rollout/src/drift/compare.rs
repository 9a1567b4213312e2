//! The intent against the live object, by the server's own record of what is ours.

use std::fmt;

use serde_json::{Map, Value};

use super::intent::key_default;
use super::quantity;

/// How a live object differs from an intent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drift {
    /// Its intent hash is not that of the intent: somebody applied another one, or nobody applied any.
    pub other_intent: bool,
    /// What others changed since.
    pub edits: Vec<Edit>,
}

impl Drift {
    /// Whether an apply would change nothing.
    pub fn is_none(&self) -> bool {
        !self.other_intent && self.edits.is_empty()
    }
}

/// A place where the live object is not as the intent wants it. Without values: they may be secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// Such as `spec.template.spec.containers[name=till].image`.
    pub path: String,
    /// In which way.
    pub difference: Difference,
}

/// In which way a place differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// It has another value, or none.
    Value,
    /// The value is right, but no longer ours: somebody else wrote it, or nobody applied it.
    Owner,
    /// The elements of a list are there, in another order.
    Order,
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let difference = match self.difference {
            Difference::Value => "has another value",
            Difference::Owner => "is not ours any more",
            Difference::Order => "is in another order",
        };
        write!(f, "{} {difference}", self.path)
    }
}

/// Members of `metadata` that an apply can own; the others are the server's.
const OWNABLE_METADATA: [&str; 4] = ["annotations", "finalizers", "labels", "ownerReferences"];

/// All places where `live` is not as `intent` wants it.
pub(super) fn compare(intent: &Value, live: &Value, manager: &str) -> Vec<Edit> {
    let mut comparison = Comparison::default();
    let owned = applied_fields(live, manager);
    let Some(members) = intent.as_object() else {
        return Vec::new();
    };
    for (key, wanted) in members {
        match key.as_str() {
            "apiVersion" | "kind" => {}
            "metadata" => {
                let ownable = wanted.as_object().into_iter().flatten();
                let ownable: Map<String, Value> = ownable
                    .filter(|(key, _)| OWNABLE_METADATA.contains(&key.as_str()))
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect();
                if !ownable.is_empty() {
                    comparison.member(key, &Value::Object(ownable), live, owned);
                }
            }
            _ => comparison.member(key, wanted, live, owned),
        }
    }
    comparison.edits
}

/// What `manager` owns by apply, as a tree of fields.
fn applied_fields<'a>(live: &'a Value, manager: &str) -> Option<&'a Value> {
    let entries = live.pointer("/metadata/managedFields")?.as_array()?;
    let ours = entries.iter().find(|entry| {
        let is_main = entry
            .get("subresource")
            .is_none_or(|subresource| subresource == "");
        entry["manager"] == manager && entry["operation"] == "Apply" && is_main
    });
    ours?.get("fieldsV1")
}

#[derive(Default)]
struct Comparison {
    path: Vec<String>,
    edits: Vec<Edit>,
}

impl Comparison {
    fn note(&mut self, difference: Difference) {
        self.edits.push(Edit {
            path: self.path.concat().trim_start_matches('.').to_owned(),
            difference,
        });
    }

    /// A member of an object, `owned` being the tree of the object.
    fn member(&mut self, key: &str, wanted: &Value, live: &Value, owned: Option<&Value>) {
        self.path.push(format!(".{key}"));
        let owned = owned.and_then(|owned| owned.get(format!("f:{key}")));
        self.place(wanted, live.get(key), owned);
        self.path.pop();
    }

    fn place(&mut self, wanted: &Value, live: Option<&Value>, owned: Option<&Value>) {
        let Some(owned) = owned else {
            // What is applied is recorded, even what the server takes for nothing and does not show.
            let is_right = live.map_or_else(|| is_empty(wanted), |live| same(wanted, live));
            self.note(if is_right {
                Difference::Owner
            } else {
                Difference::Value
            });
            return;
        };
        let granular = owned
            .as_object()
            .is_some_and(|node| node.keys().any(|key| key != "."));
        match wanted {
            Value::Object(members) if granular && !members.is_empty() => {
                let nothing = Value::Null;
                let live = live.unwrap_or(&nothing);
                for (key, wanted) in members {
                    self.member(key, wanted, live, Some(owned));
                }
            }
            Value::Array(items) if granular && !items.is_empty() => self.list(items, live, owned),
            // We own it, and nobody changed it since: what is more in it was added by others, who may.
            _ if is_empty(wanted) => {}
            _ => {
                if !live.is_some_and(|live| same(wanted, live)) {
                    self.note(Difference::Value);
                }
            }
        }
    }

    /// A list that the server takes apart: by keys (`k:{…}`) or as a set of values (`v:…`).
    fn list(&mut self, items: &[Value], live: Option<&Value>, owned: &Value) {
        let nothing = Vec::new();
        let live = live.and_then(Value::as_array).unwrap_or(&nothing);
        let mut last = None;
        let mut is_ordered = true;
        for item in items {
            let Some((step, tree, index)) = element(item, live, owned) else {
                self.path.push("[…]".to_owned());
                self.note(Difference::Value);
                self.path.pop();
                continue;
            };
            self.path.push(step);
            match index {
                None => self.note(Difference::Value),
                Some(index) => {
                    is_ordered &= last.is_none_or(|last| last < index);
                    last = Some(index);
                    if item.is_object() {
                        self.place(item, Some(&live[index]), Some(tree));
                    }
                }
            }
            self.path.pop();
        }
        if !is_ordered {
            self.note(Difference::Order);
        }
    }
}

/// The step to an element, its tree, and where it is in the live list; `None` if it is not ours.
fn element<'a>(item: &Value, live: &[Value], owned: &'a Value) -> Option<(String, &'a Value, Option<usize>)> {
    let nodes = owned.as_object()?;
    let keyed = nodes.iter().filter_map(|(name, tree)| {
        let key: Map<String, Value> = serde_json::from_str(name.strip_prefix("k:")?).ok()?;
        Some((key, tree))
    });
    let fits = |key: &Map<String, Value>, is_default_known: bool| {
        key.iter().all(|(member, value)| match item.get(member) {
            Some(own) => own == value,
            None => !is_default_known || key_default(member) == *value,
        })
    };
    let mut found = keyed.clone().find(|(key, _)| fits(key, true));
    if found.is_none() {
        // A default of a key that only the schema of a custom resource knows.
        let mut possible = keyed.filter(|(key, _)| fits(key, false));
        found = possible.next().filter(|_| possible.next().is_none());
    }
    if let Some((key, tree)) = found {
        let is_it = |live: &Value| key.iter().all(|(member, value)| live.get(member) == Some(value));
        let words = key.iter().map(|(member, value)| match value {
            Value::String(text) => format!("{member}={text}"),
            other => format!("{member}={other}"),
        });
        let step = format!("[{}]", words.collect::<Vec<_>>().join(","));
        return Some((step, tree, live.iter().position(is_it)));
    }
    let value = nodes.get(&format!("v:{item}"))?;
    Some((
        format!("[{item}]"),
        value,
        live.iter().position(|live| live == item),
    ))
}

/// Whether a live value is what was wanted, inside of what is owned as one: elements by their position, and what the server
/// filled in does not count. Had somebody else changed it, it would not be ours.
fn same(wanted: &Value, live: &Value) -> bool {
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) => {
            wanted.iter().all(|(key, wanted)| match live.get(key) {
                Some(live) => same(wanted, live),
                None => is_empty(wanted),
            })
        }
        (Value::Array(wanted), Value::Array(live)) => {
            wanted.len() == live.len() && wanted.iter().zip(live).all(|(wanted, live)| same(wanted, live))
        }
        (Value::String(a), Value::String(b)) => a == b || quantity::same(a, b),
        // A quantity may be given as a number.
        (Value::Number(a), Value::String(b)) => quantity::same(&a.to_string(), b),
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (wanted, live) => wanted == live,
    }
}

/// What the server takes for nothing.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.values().all(is_empty),
    }
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
