//! What becomes of an object's metadata: labels, annotations, finalizers, owners and what an annotation had packed.

use exuvia_api::{KeyPrefix, MappingFinalizers};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Map, Value};

/// Written by `kubectl apply`: it repeats the object as it was, at the old group.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Labels or annotations.
pub(super) type Entries = Map<String, Value>;

/// The labels or annotations of an object's metadata, or of an unpacked one.
pub(super) fn entries(metadata: Option<&Value>, field: &str) -> Result<Entries, String> {
    match metadata.and_then(|metadata| metadata.get(field)) {
        None | Some(Value::Null) => Ok(Entries::new()),
        Some(Value::Object(entries)) if entries.values().all(Value::is_string) => Ok(entries.clone()),
        Some(_) => Err(format!("{field} are not a map of strings")),
    }
}

/// What the annotation holds; an object if it is absent or empty.
pub(super) fn unpack(object: &Value, annotation: &str) -> Result<Value, String> {
    let annotations = object
        .get("metadata")
        .and_then(|metadata| metadata.get("annotations"));
    let packed = annotations
        .and_then(|annotations| annotations.get(annotation))
        .and_then(Value::as_str);
    match packed {
        None | Some("") => Ok(Value::Object(Map::new())),
        // serde_json's message would quote the annotation.
        Some(packed) => match serde_json::from_str(packed) {
            Ok(unpacked @ Value::Object(_)) => Ok(unpacked),
            _ => Err(format!("the annotation {annotation} does not hold a JSON object")),
        },
    }
}

/// The owners, untouched.
pub(super) fn owners(metadata: Option<&Value>) -> Result<Vec<OwnerReference>, String> {
    match metadata.and_then(|metadata| metadata.get("ownerReferences")) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(references) => serde_json::from_value(references.clone())
            .map_err(|_| "ownerReferences are not a list of owner references".to_owned()),
    }
}

/// Removes the annotations that are not copied.
pub(super) fn drop_annotations(annotations: &mut Entries, dropped: &[String]) {
    annotations.remove(LAST_APPLIED);
    for key in dropped {
        annotations.remove(key);
    }
}

/// Replaces the prefixes of keys. Each key is changed by the first prefix that it has, and two keys never become one unless they
/// have the same value: the other value would be lost.
pub(super) fn rewrite_keys(entries: Entries, prefixes: &[KeyPrefix]) -> Result<Entries, String> {
    if prefixes.is_empty() {
        return Ok(entries);
    }
    let mut rewritten = Entries::new();
    for (key, value) in entries {
        let prefix = prefixes
            .iter()
            .find_map(|prefix| Some((prefix, key.strip_prefix(&prefix.from)?)));
        let key = prefix.map_or_else(|| key.clone(), |(prefix, rest)| format!("{}{rest}", prefix.to));
        if key.is_empty() {
            return Err("a key would become empty".to_owned());
        }
        match rewritten.get(&key) {
            Some(other) if *other != value => {
                return Err("two keys with different values would become one: remove one of them".to_owned());
            }
            _ => {
                rewritten.insert(key, value);
            }
        }
    }
    Ok(rewritten)
}

/// The finalizers that are copied, in the source's order.
pub(super) fn finalizers(object: &Value, kept: &MappingFinalizers) -> Vec<Value> {
    let mut copied: Vec<Value> = Vec::new();
    let finalizers = object
        .get("metadata")
        .and_then(|metadata| metadata.get("finalizers"));
    for finalizer in finalizers
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        let name = if kept.keep.iter().any(|keep| keep == finalizer) {
            finalizer
        } else if let Some(name) = kept.rename.get(finalizer) {
            name
        } else {
            continue;
        };
        if !copied.iter().any(|other| other == name) {
            copied.push(Value::from(name));
        }
    }
    copied
}
