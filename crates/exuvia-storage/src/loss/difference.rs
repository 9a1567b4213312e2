//! What a rewrite makes of one object, from the server's two views of it. Pure.

use std::collections::BTreeSet;

use serde_json::Value;

use super::defaults::{Place, alone_explain, fill};
use super::unfit::unfit;

/// A path is cut here: keys of a map can be as long as their user likes.
const LONGEST_PATH: usize = 200;

/// What becomes of one object's fields. Paths such as `spec.items[].name`, and never a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// The rewrite erases them.
    pub(crate) erased: BTreeSet<String>,
    /// The rewrite gives them another value.
    pub(crate) changed: BTreeSet<String>,
    /// The old version's default put them there, as far as can be told; nothing that a user wrote is lost.
    pub(crate) defaults_not_kept: BTreeSet<String>,
    /// The rewrite sets them, by a default.
    pub(crate) added: BTreeSet<String>,
    /// The storage version does not take values of their type.
    pub(crate) unfit: BTreeSet<String>,
}

impl Difference {
    /// Whether something is lost.
    pub(crate) fn is_loss(&self) -> bool {
        !(self.erased.is_empty() && self.changed.is_empty())
    }

    /// Adds what a comparison with another version's view found.
    pub(crate) fn merge(&mut self, other: Self) {
        self.erased.extend(other.erased);
        self.changed.extend(other.changed);
        self.defaults_not_kept.extend(other.defaults_not_kept);
        self.added.extend(other.added);
        self.unfit.extend(other.unfit);
    }

    /// Compares an object as the old version shows it with what a rewrite would store: the same object as the storage
    /// version shows it, with that version's defaults.
    ///
    /// Something that only the storage version shows is not an addition: the object is stored there already.
    pub(crate) fn between(old: &Value, old_schema: &Value, new: &Value, new_schema: &Value) -> Self {
        let mut stored = new.clone();
        fill(&mut stored, new_schema);
        let mut difference = Self {
            unfit: unfit(new, new_schema, old_schema),
            ..Self::default()
        };
        let mut lost = Walk::default();
        lost.walk(old, &stored, true);
        for (path, is_erased) in lost.missing {
            let name = shown(&path);
            match is_erased {
                true if alone_explain(old_schema, old, &path) => difference.defaults_not_kept.insert(name),
                true => difference.erased.insert(name),
                false => difference.changed.insert(name),
            };
        }
        let mut set = Walk::default();
        set.walk(&stored, new, true);
        for (path, is_added) in set.missing {
            let name = shown(&path);
            if is_added {
                difference.added.insert(name);
            } else {
                difference.changed.insert(name);
            }
        }
        difference
    }
}

/// A walk through two values at once.
#[derive(Default)]
struct Walk<'a> {
    at: Vec<Place<'a>>,
    /// What is missing in the second (`true`), or another value there.
    missing: Vec<(Vec<Place<'a>>, bool)>,
}

impl<'a> Walk<'a> {
    fn walk(&mut self, first: &'a Value, second: &'a Value, is_root: bool) {
        match (first, second) {
            (Value::Object(first), Value::Object(second)) => {
                for (key, value) in first {
                    let is_type = is_root && (key == "apiVersion" || key == "kind");
                    let is_entries = self.is_in_metadata() && key == "managedFields";
                    if is_type || is_entries {
                        continue;
                    }
                    self.at.push(Place::Key(key));
                    match second.get(key) {
                        Some(other) => self.walk(value, other, false),
                        None => self.missing.push((self.at.clone(), true)),
                    }
                    self.at.pop();
                }
            }
            (Value::Array(first), Value::Array(second)) if first.len() == second.len() => {
                for (index, (value, other)) in first.iter().zip(second).enumerate() {
                    self.at.push(Place::Item(index));
                    self.walk(value, other, false);
                    self.at.pop();
                }
            }
            _ if first != second => self.missing.push((self.at.clone(), false)),
            _ => {}
        }
    }

    fn is_in_metadata(&self) -> bool {
        matches!(self.at.as_slice(), [Place::Key("metadata")])
    }
}

/// For people; a key may hold whatever its user likes, so control characters are taken out.
pub(super) fn shown(path: &[Place<'_>]) -> String {
    let mut text = String::new();
    for place in path {
        match place {
            Place::Key(key) => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.extend(key.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }));
            }
            Place::Item(_) => text.push_str("[]"),
        }
        if text.len() > LONGEST_PATH {
            let end = (0..=LONGEST_PATH).rev().find(|at| text.is_char_boundary(*at));
            text.truncate(end.unwrap_or_default());
            text.push('…');
            break;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn paths(paths: &BTreeSet<String>) -> Vec<&str> {
        paths.iter().map(String::as_str).collect()
    }

    #[test]
    fn what_is_erased_and_changed_is_named_once_whatever_the_number_of_items() {
        let old = json!({
            "apiVersion": "a/v1alpha1", "metadata": {"name": "x", "managedFields": [{"apiVersion": "a/v1alpha1"}]},
            "spec": {"list": [{"a": 1, "b": 2}, {"b": 3}], "gone": {"deep": [1]}, "null": null, "same": "s", "n": 1},
        });
        let new = json!({
            "apiVersion": "a/v1", "metadata": {"name": "x"},
            "spec": {"list": [{"a": 1}, {}], "same": "s", "n": 2, "more": true},
        });
        let found = Difference::between(&old, &Value::Null, &new, &Value::Null);
        assert_eq!(paths(&found.erased), ["spec.gone", "spec.list[].b", "spec.null"]);
        assert_eq!(paths(&found.changed), ["spec.n"]);
        assert!(
            found.added.is_empty(),
            "it is stored already, and only the old version hides it"
        );
    }

    #[test]
    fn defaults_are_told_apart() {
        let schema = |properties| json!({"properties": {"spec": {"properties": properties}}});
        let old_schema = schema(json!({"implementation": {"default": "go"}, "null": {"nullable": true}}));
        let new_schema = schema(json!({"interval": {"default": "5m"}, "null": {"default": 1}}));
        let old = json!({"spec": {"implementation": "go", "null": null}});
        let new = json!({"spec": {"null": null}});
        let found = Difference::between(&old, &old_schema, &new, &new_schema);
        assert_eq!(paths(&found.defaults_not_kept), ["spec.implementation"]);
        assert_eq!(paths(&found.added), ["spec.interval"]);
        assert_eq!(paths(&found.changed), ["spec.null"]);
        assert!(found.erased.is_empty());
        let by_hand = json!({"spec": {"implementation": "other"}});
        let found = Difference::between(&by_hand, &old_schema, &new, &new_schema);
        assert_eq!(paths(&found.erased), ["spec.implementation"]);
    }

    #[test]
    fn a_path_is_bounded_and_fit_for_a_terminal() {
        let key = format!("\u{1b}[31m{}", "é".repeat(300));
        let found = Difference::between(&json!({ key: 1 }), &Value::Null, &json!({}), &Value::Null);
        let path = paths(&found.erased)[0].to_owned();
        assert!(path.starts_with("\u{fffd}[31mé") && path.ends_with('…'), "{path}");
        assert!(path.len() <= LONGEST_PATH + '…'.len_utf8());
    }
}
