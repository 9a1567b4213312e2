//! Whether a target that exists is what would be written: only real differences count. Pure.

use exuvia_api::{
    Compared, Conflicts, MIGRATION_UID_ANNOTATION, SOURCE_HASH_ANNOTATION, SOURCE_RV_ANNOTATION,
    SOURCE_UIDS_ANNOTATION,
};
use serde_json::{Map, Value};

use crate::copy::EDITED_ANNOTATION;

/// Annotations that tools put on objects to know them again. They say nothing about what people want.
const TOOLS: [&str; 7] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "argocd.argoproj.io/tracking-id",
    MIGRATION_UID_ANNOTATION,
    SOURCE_RV_ANNOTATION,
    SOURCE_UIDS_ANNOTATION,
    SOURCE_HASH_ANNOTATION,
    EDITED_ANNOTATION,
];

/// Keys that begin like this are Helm's.
const HELM: &str = "meta.helm.sh/";

/// What counts as a difference.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    compared: Vec<Compared>,
    ignored: Vec<String>,
}

impl Comparison {
    /// As the spec says.
    pub(crate) fn new(conflicts: &Conflicts) -> Self {
        Self {
            compared: conflicts.compare.clone(),
            ignored: conflicts.ignore_annotations.clone(),
        }
    }

    /// Whether an annotation does not count.
    pub(crate) fn ignores(&self, annotation: &str) -> bool {
        TOOLS.contains(&annotation)
            || annotation.starts_with(HELM)
            || self.ignored.iter().any(|ignored| ignored == annotation)
    }

    /// The first field in which two objects differ, as a path.
    pub(crate) fn difference(&self, one: &Value, other: &Value) -> Option<String> {
        self.compared.iter().find_map(|compared| match compared {
            Compared::Content => first_difference(&content(one), &content(other), String::new()),
            Compared::Labels => first_difference(
                &object_or_empty(&one["metadata"]["labels"]),
                &object_or_empty(&other["metadata"]["labels"]),
                "metadata.labels".to_owned(),
            ),
            Compared::Annotations => first_difference(
                &self.annotations(one),
                &self.annotations(other),
                "metadata.annotations".to_owned(),
            ),
        })
    }

    /// Every field in which two objects differ, with its value in each; null: it is absent.
    pub(crate) fn differences(&self, one: &Value, other: &Value) -> Vec<(String, Value, Value)> {
        let mut found = Vec::new();
        for compared in &self.compared {
            let (one, other, path) = match compared {
                Compared::Content => (content(one), content(other), ""),
                Compared::Labels => (
                    object_or_empty(&one["metadata"]["labels"]),
                    object_or_empty(&other["metadata"]["labels"]),
                    "metadata.labels",
                ),
                Compared::Annotations => (
                    self.annotations(one),
                    self.annotations(other),
                    "metadata.annotations",
                ),
            };
            all_differences(&one, &other, path.to_owned(), &mut found);
        }
        found
    }

    /// The annotations that count.
    fn annotations(&self, object: &Value) -> Value {
        let annotations = object["metadata"]["annotations"].as_object();
        let counting = annotations.into_iter().flatten();
        let counting = counting.filter(|(key, _)| !self.ignores(key));
        Value::Object(
            counting
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        )
    }

    /// What to ask the server for: the live object with the wanted content, labels and annotations. What does not count stays as
    /// it is live, and so do owners, finalizers and status.
    pub(crate) fn put_over(&self, live: &Value, wanted: &Value) -> Value {
        let mut put = Map::new();
        for key in ["apiVersion", "kind"] {
            put.insert(key.to_owned(), live[key].clone());
        }
        let mut metadata = live["metadata"].clone();
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.remove("managedFields");
            metadata.insert(
                "labels".to_owned(),
                object_or_empty(&wanted["metadata"]["labels"]),
            );
            let mut annotations = self.annotations(wanted);
            let live_annotations = live["metadata"]["annotations"].as_object();
            for (key, value) in live_annotations.into_iter().flatten() {
                if self.ignores(key) {
                    annotations[key] = value.clone();
                }
            }
            metadata.insert("annotations".to_owned(), annotations);
        }
        put.insert("metadata".to_owned(), metadata);
        if let Value::Object(content) = content(wanted) {
            put.extend(content);
        }
        if let Some(status) = live.get("status") {
            put.insert("status".to_owned(), status.clone());
        }
        Value::Object(put)
    }
}

fn object_or_empty(value: &Value) -> Value {
    if value.is_object() {
        value.clone()
    } else {
        Value::Object(Map::new())
    }
}

/// Everything but apiVersion, kind, metadata and status: kinds without a spec compare whole.
fn content(object: &Value) -> Value {
    let fields = object.as_object().into_iter().flatten();
    let content =
        fields.filter(|(key, _)| !matches!(key.as_str(), "apiVersion" | "kind" | "metadata" | "status"));
    Value::Object(content.map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// The path of the first difference. Absent and null are the same. An empty object is not: `selfSigned: {}` means something.
fn first_difference(one: &Value, other: &Value, path: String) -> Option<String> {
    match (one, other) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            keys.into_iter().find_map(|key| {
                let (a, b) = (
                    a.get(key).unwrap_or(&Value::Null),
                    b.get(key).unwrap_or(&Value::Null),
                );
                first_difference(a, b, join(&path, key))
            })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let pairs = a.iter().zip(b).enumerate();
            pairs
                .into_iter()
                .find_map(|(index, (a, b))| first_difference(a, b, format!("{path}[{index}]")))
        }
        (a, b) if a == b || (is_nothing(a) && is_nothing(b)) => None,
        _ => Some(path),
    }
}

/// As [`first_difference`], but all of them.
fn all_differences(one: &Value, other: &Value, path: String, found: &mut Vec<(String, Value, Value)>) {
    match (one, other) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let (a, b) = (
                    a.get(key).unwrap_or(&Value::Null),
                    b.get(key).unwrap_or(&Value::Null),
                );
                all_differences(a, b, join(&path, key), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                all_differences(a, b, format!("{path}[{index}]"), found);
            }
        }
        (a, b) if a == b || (is_nothing(a) && is_nothing(b)) => {}
        (a, b) => found.push((path, a.clone(), b.clone())),
    }
}

fn is_nothing(value: &Value) -> bool {
    value.is_null()
}

fn join(path: &str, key: &str) -> String {
    let is_plain = key
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    match (path.is_empty(), is_plain) {
        (true, true) => key.to_owned(),
        (false, true) => format!("{path}.{key}"),
        (_, false) => format!("{path}[{key:?}]"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn difference(one: &Value, other: &Value) -> Option<String> {
        Comparison::new(&Conflicts::default()).difference(one, other)
    }

    #[test]
    fn labels_annotations_and_content_count_each_by_itself() {
        let plain = json!({"metadata": {"name": "a"}, "spec": {"size": 3, "list": [{"a": 1}]}});
        let mut labelled = plain.clone();
        labelled["metadata"]["labels"] = json!({"team": "x"});
        assert_eq!(
            difference(&plain, &labelled),
            Some("metadata.labels.team".to_owned())
        );
        let mut annotated = plain.clone();
        annotated["metadata"]["annotations"] = json!({"a.b/c": "x"});
        assert_eq!(
            difference(&plain, &annotated),
            Some("metadata.annotations[\"a.b/c\"]".to_owned())
        );
        let mut changed = plain.clone();
        changed["spec"]["list"][0]["a"] = json!(2);
        assert_eq!(difference(&plain, &changed), Some("spec.list[0].a".to_owned()));
    }

    #[test]
    fn kinds_without_a_spec_compare_whole_and_status_never_counts() {
        let one = json!({"rules": [1], "status": {"ready": true}});
        let other = json!({"rules": [2], "status": {"ready": false}});
        assert_eq!(difference(&one, &other), Some("rules[0]".to_owned()));
        assert_eq!(difference(&one, &json!({"rules": [1]})), None);
    }

    #[test]
    fn what_tools_put_on_objects_does_not_count() {
        let plain = json!({"metadata": {"annotations": {"keep": "1"}}});
        let tracked = json!({"metadata": {"annotations": {
            "keep": "1", "meta.helm.sh/release-name": "x", "argocd.argoproj.io/tracking-id": "y",
            "kubectl.kubernetes.io/last-applied-configuration": "{}",
        }}});
        assert_eq!(difference(&plain, &tracked), None);
    }

    #[test]
    fn what_is_asked_for_keeps_what_is_not_compared() {
        let comparison = Comparison::new(&Conflicts::default());
        let live = json!({
            "apiVersion": "g/v1", "kind": "K",
            "metadata": {"name": "a", "uid": "u", "finalizers": ["f"], "annotations": {"meta.helm.sh/x": "h", "old": "1"}},
            "spec": {"a": 1}, "status": {"ready": true},
        });
        let wanted = json!({"metadata": {"annotations": {"new": "2"}}, "data": {"b": 2}});
        let put = comparison.put_over(&live, &wanted);
        let expected = json!({
            "apiVersion": "g/v1", "kind": "K",
            "metadata": {
                "name": "a", "uid": "u", "finalizers": ["f"], "labels": {},
                "annotations": {"meta.helm.sh/x": "h", "new": "2"},
            },
            "data": {"b": 2}, "status": {"ready": true},
        });
        assert_eq!(put, expected);
    }
}
