//! Paths of managedFields: as the server writes them in a conflict, in words, and what an object holds there. Pure.

use exuvia_write::field_paths;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde_json::Value;

/// The fields of an entry that must have come along: those that the object has, metadata apart. A key of an item comes with
/// the item's other fields; an item that has none is required itself.
pub(super) fn required(entry: &ManagedFieldsEntry, object: &Value) -> Vec<Vec<String>> {
    let Some(fields) = &entry.fields_v1 else {
        return Vec::new();
    };
    let paths = field_paths(fields);
    let is_parent = |path: &[&str]| {
        paths
            .iter()
            .any(|other| other.len() > path.len() && other.starts_with(path))
    };
    let is_wanted = |path: &&Vec<&str>| {
        let is_metadata = path.first() == Some(&"f:metadata");
        !is_metadata && !is_parent(path) && value_at(object, path).is_some()
    };
    let mut wanted: Vec<Vec<String>> = Vec::new();
    for path in paths.iter().filter(is_wanted) {
        let owned = |path: &[&str]| {
            path.iter()
                .map(|element| (*element).to_owned())
                .collect::<Vec<_>>()
        };
        let path = match path.as_slice() {
            [item @ .., field] if is_key(item.last().copied(), field) => {
                let has_others = paths.iter().any(|other| {
                    other.len() == item.len() + 1
                        && other.starts_with(item)
                        && !is_key(item.last().copied(), other[item.len()])
                });
                if has_others {
                    continue;
                }
                owned(item)
            }
            path => owned(path),
        };
        if !wanted.contains(&path) {
            wanted.push(path);
        }
    }
    wanted
}

/// Whether a field is one of the keys by which its item is called.
fn is_key(item: Option<&str>, field: &str) -> bool {
    let keys = item.and_then(keys_of);
    let name = field.strip_prefix("f:");
    keys.zip(name).is_some_and(|(keys, name)| keys.contains_key(name))
}

fn keys_of(element: &str) -> Option<serde_json::Map<String, Value>> {
    serde_json::from_str(element.strip_prefix("k:")?).ok()
}

/// Whether an item is the one that `k:{…}` calls.
pub(super) fn is_called(item: &Value, element: &str, default: impl Fn(&str) -> Option<Value>) -> bool {
    let Some(keys) = keys_of(element) else {
        return false;
    };
    keys.iter().all(|(key, wanted)| {
        let value = item.get(key).cloned().or_else(|| default(key));
        value.is_some_and(|value| is_equal(&value, wanted))
    })
}

/// A number is the same however it is written.
fn is_equal(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a.total_cmp(&b).is_eq(),
        _ => a == b,
    }
}

/// What an object holds at a path.
pub(super) fn value_at<'a>(object: &'a Value, path: &[impl AsRef<str>]) -> Option<&'a Value> {
    path.iter().try_fold(object, |value, element| {
        let element = element.as_ref();
        match element.split_once(':')? {
            ("f", name) => value.get(name),
            ("k", _) => {
                let mut items = value.as_array()?.iter();
                items.find(|item| is_called(item, element, |_| None))
            }
            ("v", text) => {
                let wanted: Value = serde_json::from_str(text).ok()?;
                value.as_array()?.iter().find(|item| is_equal(item, &wanted))
            }
            ("i", index) => value.get(index.parse::<usize>().ok()?),
            _ => None,
        }
    })
}

/// `["f:spec", "f:ports", "k:{\"name\":\"web\"}"]` as the server names it in a conflict: `.spec.ports[name="web"]`.
pub(super) fn as_the_server_writes(path: &[impl AsRef<str>]) -> String {
    let mut text = String::new();
    for element in path {
        let element = element.as_ref();
        match element.split_once(':') {
            Some(("f", name)) => text.push_str(&format!(".{name}")),
            Some(("k", _)) => {
                let keys = keys_of(element).unwrap_or_default();
                let keys: Vec<String> = keys
                    .iter()
                    .map(|(key, value)| format!("{key}={}", literal(value)))
                    .collect();
                text.push_str(&format!("[{}]", keys.join(",")));
            }
            Some(("v", value)) => {
                let value: Value = serde_json::from_str(value).unwrap_or_default();
                text.push_str(&format!("[={}]", literal(&value)));
            }
            Some(("i", index)) => text.push_str(&format!("[{index}]")),
            _ => {}
        }
    }
    text
}

fn literal(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        other => other.to_string(),
    }
}

/// As Go quotes: only what cannot be printed is escaped. What it writes otherwise is not recognised, and so not moved.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_ascii_control() => quoted.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// `["f:spec", "f:ports", "k:{…}", "f:port"]` as `spec.ports[].port`: without the keys and values of list items, which are the
/// object's content.
pub fn in_words(path: &[impl AsRef<str>]) -> String {
    let mut text = String::new();
    for element in path {
        match element.as_ref().split_once(':') {
            Some(("f", name)) if text.is_empty() => text.push_str(name),
            Some(("f", name)) => text.push_str(&format!(".{name}")),
            _ => text.push_str("[]"),
        }
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_is_written_as_the_server_does() {
        let path = [
            "f:spec",
            "f:ports",
            "k:{\"name\":\"w\\u0026\",\"port\":80}",
            "f:host",
        ];
        assert_eq!(
            as_the_server_writes(&path),
            ".spec.ports[name=\"w&\",port=80].host"
        );
        assert_eq!(as_the_server_writes(&["f:tags", "v:\"a\""]), ".tags[=\"a\"]");
        assert_eq!(in_words(&path), "spec.ports[].host");
        assert_eq!(quoted("a\"b\u{301}\n"), "\"a\\\"b\u{301}\\n\"");
    }

    #[test]
    fn a_value_is_found_however_its_key_is_written() {
        let object = json!({"items": [{"name": "a&b", "n": 1e-7}], "tags": ["x"]});
        assert!(value_at(&object, &["f:items", "k:{\"name\":\"a\\u0026b\"}", "f:n"]).is_some());
        assert!(value_at(&object, &["f:items", "k:{\"n\":1e-07}"]).is_some());
        assert!(value_at(&object, &["f:tags", "v:\"x\""]).is_some());
        assert!(value_at(&object, &["f:items", "k:{\"name\":\"b\"}"]).is_none());
    }

    #[test]
    fn what_is_required_is_what_the_object_has() {
        let entry: ManagedFieldsEntry = serde_json::from_value(json!({"fieldsV1": {
            "f:metadata": {"f:labels": {}},
            "f:spec": {".": {}, "f:gone": {}, "f:size": {}, "f:items": {
                "k:{\"name\":\"a\"}": {".": {}, "f:name": {}, "f:port": {}}, "k:{\"name\":\"b\"}": {".": {}, "f:name": {}},
            }},
        }}))
        .unwrap();
        let object = json!({"spec": {"size": 1, "items": [{"name": "a", "port": 1}, {"name": "b"}]}});
        let required: Vec<String> = required(&entry, &object)
            .iter()
            .map(|path| as_the_server_writes(path))
            .collect();
        assert_eq!(
            required,
            [
                ".spec.items[name=\"a\"].port",
                ".spec.items[name=\"b\"]",
                ".spec.size"
            ]
        );
    }
}
