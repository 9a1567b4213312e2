//! Sets of owned fields (`fieldsV1` trees) and their union.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldsV1;
use serde_json::{Map, Value};

/// The key by which a node with children says that its own path is in the set too.
const SELF: &str = ".";

/// The set of all fields that are in either set; `None` if one of them is not a `fieldsV1` tree.
///
/// Not the same as merging the two JSON trees. A node without children stands for its own path; one with children
/// stands only for theirs, unless it has a `.` as well. So where one set owns `spec` itself and the other only
/// `spec.size`, the union needs a `.`, or the owner of `spec` loses it.
///
/// ```
/// use k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldsV1;
/// use serde_json::json;
///
/// let a = FieldsV1(json!({"f:spec": {}}));
/// let b = FieldsV1(json!({"f:spec": {"f:size": {}}}));
/// let both = exuvia_write::unite_fields(&a, &b).unwrap();
/// assert_eq!(both.0, json!({"f:spec": {".": {}, "f:size": {}}}));
/// ```
pub fn unite_fields(a: &FieldsV1, b: &FieldsV1) -> Option<FieldsV1> {
    let (Value::Object(a), Value::Object(b)) = (&a.0, &b.0) else {
        return None;
    };
    if !well_formed(a) || !well_formed(b) {
        return None;
    }
    // The root itself is not a path: an empty root is the empty set, not a leaf.
    Some(FieldsV1(Value::Object(unite_children(a, b))))
}

fn unite_children(a: &Map<String, Value>, b: &Map<String, Value>) -> Map<String, Value> {
    let mut united = a.clone();
    for (key, theirs) in b {
        let merged = match (a.get(key), theirs) {
            (Some(Value::Object(ours)), Value::Object(theirs)) => Value::Object(unite_nodes(ours, theirs)),
            _ => theirs.clone(),
        };
        united.insert(key.clone(), merged);
    }
    united
}

fn unite_nodes(a: &Map<String, Value>, b: &Map<String, Value>) -> Map<String, Value> {
    let mut united = unite_children(a, b);
    let parent = united.keys().any(|key| key != SELF);
    if !parent {
        return Map::new();
    }
    if is_member(a) || is_member(b) {
        united.insert(SELF.to_owned(), Value::Object(Map::new()));
    }
    united
}

/// Whether a node's own path is in the set: it says so, or it has no children.
fn is_member(node: &Map<String, Value>) -> bool {
    node.contains_key(SELF) || node.is_empty()
}

fn well_formed(node: &Map<String, Value>) -> bool {
    node.values()
        .all(|child| child.as_object().is_some_and(well_formed))
}

/// Every path of a set, each as its path elements from the root (`f:spec`, `k:{"name":"a"}`, …).
///
/// For a predicate that decides whether an entry may be moved: compare these with the target version's schema.
///
/// ```
/// use k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldsV1;
/// use serde_json::json;
///
/// let fields = FieldsV1(json!({"f:spec": {".": {}, "f:size": {}}}));
/// let paths: Vec<Vec<&str>> = exuvia_write::field_paths(&fields);
/// assert_eq!(paths, [vec!["f:spec"], vec!["f:spec", "f:size"]]);
/// ```
pub fn field_paths(fields: &FieldsV1) -> Vec<Vec<&str>> {
    let mut paths = Vec::new();
    if let Value::Object(root) = &fields.0 {
        collect(root, &mut Vec::new(), &mut paths);
    }
    paths
}

fn collect<'a>(node: &'a Map<String, Value>, at: &mut Vec<&'a str>, paths: &mut Vec<Vec<&'a str>>) {
    for (key, child) in node.iter().filter(|(key, _)| *key != SELF) {
        at.push(key);
        if let Value::Object(child) = child {
            if child.contains_key(SELF) || child.is_empty() {
                paths.push(at.clone());
            }
            collect(child, at, paths);
        }
        at.pop();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::{collection::btree_map, prelude::*, sample::select};
    use serde_json::json;

    use super::*;

    /// An independent reading of a tree, after the rules of structured-merge-diff: a node is a member if it holds a `.`
    /// or nothing else.
    fn members(node: &Value, path: &str, into: &mut BTreeSet<String>) {
        let children = node.as_object().unwrap();
        if !path.is_empty() && (children.contains_key(".") || children.is_empty()) {
            into.insert(path.to_owned());
        }
        for (key, child) in children {
            if key != "." {
                members(child, &format!("{path}/{key}"), into);
            }
        }
    }

    fn set(fields: &FieldsV1) -> BTreeSet<String> {
        let mut set = BTreeSet::new();
        members(&fields.0, "", &mut set);
        set
    }

    fn tree() -> impl Strategy<Value = FieldsV1> {
        let leaf = Just(json!({}));
        let key = select(vec!["f:a", "f:b", "f:c", "k:{\"name\":\"x\"}", "v:\"y\"", "."]);
        leaf.prop_recursive(4, 40, 5, move |inner| {
            btree_map(key.clone(), inner, 0..5).prop_map(|children| {
                let fixed = children
                    .into_iter()
                    .map(|(key, child)| (key.to_owned(), if key == "." { json!({}) } else { child }));
                Value::Object(fixed.collect())
            })
        })
        .prop_map(FieldsV1)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn the_union_holds_the_paths_of_both_and_no_other(a in tree(), b in tree()) {
            let united = unite_fields(&a, &b).unwrap();
            let expected: BTreeSet<String> = set(&a).union(&set(&b)).cloned().collect();
            prop_assert_eq!(set(&united), expected);
        }

        #[test]
        fn paths_are_those_of_the_set(a in tree()) {
            let listed: BTreeSet<String> =
                field_paths(&a).iter().map(|path| format!("/{}", path.join("/"))).collect();
            prop_assert_eq!(listed, set(&a));
        }
    }

    #[test]
    fn what_is_not_a_tree_of_fields_is_not_united() {
        let tree = FieldsV1(json!({"f:spec": {}}));
        for broken in [
            json!(null),
            json!([]),
            json!({"f:spec": 1}),
            json!({"f:spec": {"f:a": null}}),
        ] {
            assert!(
                unite_fields(&tree, &FieldsV1(broken.clone())).is_none(),
                "{broken}"
            );
            assert!(unite_fields(&FieldsV1(broken), &tree).is_none());
        }
    }
}
