//! The one hash of this crate: SHA-256 in hexadecimal, over bytes or over JSON in one fixed form.

use ring::digest::{SHA256, digest};
use serde_json::Value;

/// SHA-256 in lower-case hexadecimal: 64 characters.
///
/// ```
/// assert!(exuvia_rollout::hash_bytes(b"").starts_with("e3b0c442"));
/// ```
pub fn hash_bytes(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    let hex = digest.as_ref().iter().map(|byte| format!("{byte:02x}"));
    hex.collect()
}

/// As [`hash_bytes`], of JSON: the order of members does not count, that of list elements does.
///
/// ```
/// use exuvia_rollout::hash_value;
/// use serde_json::json;
///
/// assert_eq!(hash_value(&json!({"a": 1, "b": 2})), hash_value(&json!({"b": 2, "a": 1})));
/// assert_ne!(hash_value(&json!([1, 2])), hash_value(&json!([2, 1])));
/// ```
pub fn hash_value(value: &Value) -> String {
    let mut text = String::new();
    write(value, &mut text);
    hash_bytes(text.as_bytes())
}

/// JSON without white space, members sorted, whatever order the map keeps (a feature of `serde_json` that anybody may turn on).
fn write(value: &Value, text: &mut String) {
    match value {
        Value::Object(members) => {
            let mut keys: Vec<&String> = members.keys().collect();
            keys.sort_unstable();
            text.push('{');
            for (index, key) in keys.into_iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                write(&members[key], text);
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                write(item, text);
            }
            text.push(']');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}
