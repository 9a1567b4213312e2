//! Compares two documents leaf by leaf.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Each leaf that differs, with both values.
pub(super) fn differences(is: &Value, should_be: &Value) -> Vec<String> {
    let [is, should_be] = [is, should_be].map(|document| {
        let mut leaves = BTreeMap::new();
        add(document, "", &mut leaves);
        leaves
    });
    let paths: BTreeSet<&String> = is.keys().chain(should_be.keys()).collect();
    let text = |leaf: Option<&&Value>| leaf.map_or_else(|| "absent".to_owned(), ToString::to_string);
    paths
        .into_iter()
        .map(|path| (path, is.get(path), should_be.get(path)))
        .filter(|(_, is, should_be)| is != should_be)
        .map(|(path, is, should_be)| {
            format!(
                "{path} is {}, and {} after a clean run",
                text(is),
                text(should_be)
            )
        })
        .collect()
}

fn add<'a>(value: &'a Value, path: &str, leaves: &mut BTreeMap<String, &'a Value>) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (key, member) in members {
                add(member, &format!("{path}/{key}"), leaves);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                add(item, &format!("{path}/{index}"), leaves);
            }
        }
        leaf => drop(leaves.insert(path.to_owned(), leaf)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_leaf_that_differs_is_named() {
        let is = json!({"same": [1, {"a": 2}], "other": [1], "more": {}});
        let should_be = json!({"same": [1, {"a": 2}], "other": [2, 3]});
        assert_eq!(
            differences(&is, &should_be),
            [
                "/more is {}, and absent after a clean run",
                "/other/0 is 1, and 2 after a clean run",
                "/other/1 is absent, and 3 after a clean run",
            ]
        );
        assert!(differences(&is, &is).is_empty());
    }
}
