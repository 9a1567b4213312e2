//! Paths to fields: names with dots, `["a.b/c"]` for other keys, and nothing that could mean several fields.

use serde_json::{Map, Value};

/// How long a path may be, in bytes.
pub(super) const MAX_PATH_BYTES: usize = 512;

/// A field of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Path {
    keys: Vec<String>,
}

/// On the way to a field there is something that is not an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InTheWay;

impl Path {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let invalid = |problem: &str| {
            Err(format!(
                "invalid path \"{text}\": {problem}; expected names with dots, such as spec.a[\"b.c/d\"]"
            ))
        };
        if text.len() > MAX_PATH_BYTES {
            return Err(format!(
                "the path has {} bytes: expected at most {MAX_PATH_BYTES}",
                text.len()
            ));
        }
        let mut keys = Vec::new();
        let mut rest = text;
        loop {
            if let Some(bracket) = rest.strip_prefix('[') {
                if !bracket.starts_with('"') {
                    return invalid("an element of a list has no path, convert the whole list");
                }
                let mut texts = serde_json::Deserializer::from_str(bracket).into_iter::<String>();
                let Some(Ok(key)) = texts.next() else {
                    return invalid("a key in brackets is a text in double quotes");
                };
                let Some(after) = bracket[texts.byte_offset()..].strip_prefix(']') else {
                    return invalid("a bracket is not closed");
                };
                if key.is_empty() {
                    return invalid("a key is empty");
                }
                keys.push(key);
                rest = after;
            } else {
                let end = rest.find(|c: char| !is_plain(c)).unwrap_or(rest.len());
                if end == 0 {
                    return match rest.chars().next() {
                        Some('*') => invalid("a path has no wildcard"),
                        Some(other) if other != '.' => invalid("a name has a character that needs brackets"),
                        _ => invalid("a name is empty"),
                    };
                }
                keys.push(rest[..end].to_owned());
                rest = &rest[end..];
            }
            match rest.chars().next() {
                None => return Ok(Self { keys }),
                Some('[') => {}
                Some('.') => rest = &rest[1..],
                Some('*') => return invalid("a path has no wildcard"),
                Some(_) => return invalid("a name has a character that needs brackets"),
            }
        }
    }

    /// The names from the outside in.
    pub(super) fn keys(&self) -> &[String] {
        &self.keys
    }

    /// Whether the other is this field, or inside of it.
    pub(super) fn contains(&self, other: &Self) -> bool {
        other.keys.starts_with(&self.keys)
    }

    /// Sets the field. Objects on the way that are absent are made.
    pub(super) fn set(&self, root: &mut Map<String, Value>, value: Value) -> Result<(), InTheWay> {
        let Some((last, parents)) = self.keys.split_last() else {
            return Err(InTheWay);
        };
        let mut current = root;
        for key in parents {
            let next = current.entry(key.as_str()).or_insert(Value::Null);
            if next.is_null() {
                *next = Value::Object(Map::new());
            }
            current = next.as_object_mut().ok_or(InTheWay)?;
        }
        current.insert(last.clone(), value);
        Ok(())
    }

    /// Removes the field. An absent one stays absent.
    pub(super) fn remove(&self, root: &mut Map<String, Value>) {
        let Some((last, parents)) = self.keys.split_last() else {
            return;
        };
        let mut current = root;
        for key in parents {
            match current.get_mut(key).and_then(Value::as_object_mut) {
                Some(next) => current = next,
                None => return,
            }
        }
        current.remove(last);
    }
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '$')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(value: &Value) -> Map<String, Value> {
        value.as_object().cloned().expect("an object")
    }

    #[test]
    fn names_and_keys_in_brackets_are_read() {
        for (text, keys) in [
            ("spec", vec!["spec"]),
            ("spec.nodeSelector", vec!["spec", "nodeSelector"]),
            (r#"metadata.labels["a.b/c"]"#, vec!["metadata", "labels", "a.b/c"]),
            (r#"a["\"]"].b"#, vec!["a", "\"]", "b"]),
            (r#"["a.b"]["*"]"#, vec!["a.b", "*"]),
            ("spec.x-kind", vec!["spec", "x-kind"]),
        ] {
            assert_eq!(Path::parse(text).expect(text).keys(), keys, "{text}");
        }
    }

    #[test]
    fn what_is_not_one_field_is_refused_by_name() {
        for (text, reason) in [
            ("", "empty"),
            (".spec", "empty"),
            ("spec.", "empty"),
            ("spec..a", "empty"),
            ("spec.*", "wildcard"),
            ("spec.a*", "wildcard"),
            ("spec.rules[0]", "whole list"),
            ("spec.rules[*]", "whole list"),
            ("spec.a/b", "brackets"),
            ("spec['a']", "whole list"),
            (r#"spec["a"#, "double quotes"),
            (r#"spec["a""#, "not closed"),
            (r#"spec[""]"#, "empty"),
            (r#"spec["a"]b"#, "brackets"),
        ] {
            let error = Path::parse(text).expect_err(text);
            assert!(error.contains(reason) && error.contains(text), "{text}: {error}");
        }
        assert!(Path::parse(&"a".repeat(513)).is_err());
    }

    #[test]
    fn a_field_is_set_with_its_parents_and_removed_without_them() {
        let path = Path::parse("spec.a.b").expect("valid");
        let mut object = map(&json!({"spec": {"a": null, "c": 1}}));
        path.set(&mut object, json!(7)).expect("nothing in the way");
        assert_eq!(object, map(&json!({"spec": {"a": {"b": 7}, "c": 1}})));
        path.remove(&mut object);
        path.remove(&mut object);
        assert_eq!(object, map(&json!({"spec": {"a": {}, "c": 1}})));
    }

    #[test]
    fn what_is_in_the_way_is_not_overwritten() {
        let path = Path::parse("spec.a.b").expect("valid");
        for blocked in [json!({"spec": {"a": [1]}}), json!({"spec": "text"})] {
            let mut object = map(&blocked);
            assert_eq!(path.set(&mut object, json!(7)), Err(InTheWay));
            path.remove(&mut object);
            assert_eq!(object, map(&blocked));
        }
    }
}
