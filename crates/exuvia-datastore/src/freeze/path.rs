//! Paths into an object, as people write them: `spec.paused`, `metadata.annotations["example.dev/paused"]`.

use serde_json::{Map, Value};

/// A text that is not a valid path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid path \"{0}\": expected names with dots between them, and [\"…\"] around names with other characters"
)]
pub struct InvalidPath(String);

/// Members from the outermost to the innermost; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Path(Vec<String>);

/// The path leads through something that is not an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocked;

impl Path {
    pub(super) fn parse(text: &str) -> Result<Self, InvalidPath> {
        let invalid = || InvalidPath(text.to_owned());
        let mut members = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            if let Some(quoted) = rest.strip_prefix("[\"") {
                let (name, after) = quoted.split_once("\"]").ok_or_else(invalid)?;
                members.push(name.to_owned());
                rest = after;
            } else {
                let plain = if members.is_empty() {
                    rest
                } else {
                    rest.strip_prefix('.').ok_or_else(invalid)?
                };
                let end = plain.find(['.', '[']).unwrap_or(plain.len());
                let (name, after) = plain.split_at(end);
                members.push(name.to_owned());
                rest = after;
            }
        }
        let is_bad = |name: &String| name.is_empty() || name.contains(['"', ']']);
        if members.is_empty() || members.iter().any(is_bad) {
            return Err(invalid());
        }
        Ok(Self(members))
    }

    /// The value there; `None`: it is absent. An explicit null is absent.
    pub(super) fn get<'a>(&self, object: &'a Value) -> Result<Option<&'a Value>, Blocked> {
        let mut at = object;
        for name in &self.0 {
            match at {
                Value::Object(members) => match members.get(name) {
                    None | Some(Value::Null) => return Ok(None),
                    Some(value) => at = value,
                },
                _ => return Err(Blocked),
            }
        }
        Ok(Some(at))
    }

    /// Sets the value, and makes what is missing on the way.
    pub(super) fn set(&self, object: &mut Value, value: Value) -> Result<(), Blocked> {
        let (last, way) = self.0.split_last().ok_or(Blocked)?;
        let mut at = object;
        for name in way {
            let members = at.as_object_mut().ok_or(Blocked)?;
            let next = members.entry(name).or_insert(Value::Null);
            if next.is_null() {
                *next = Value::Object(Map::new());
            }
            at = next;
        }
        at.as_object_mut().ok_or(Blocked)?.insert(last.clone(), value);
        Ok(())
    }

    /// Removes the value. Objects on the way stay, even if they are empty then.
    pub(super) fn remove(&self, object: &mut Value) {
        let Some((last, way)) = self.0.split_last() else {
            return;
        };
        let mut at = object;
        for name in way {
            match at.get_mut(name) {
                Some(next) => at = next,
                None => return,
            }
        }
        if let Some(members) = at.as_object_mut() {
            members.remove(last);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    fn members(text: &str) -> Vec<String> {
        Path::parse(text).unwrap().0
    }

    #[test]
    fn dots_part_names_and_brackets_hold_them_together() {
        assert_eq!(members("spec.paused"), ["spec", "paused"]);
        assert_eq!(
            members(r#"metadata.annotations["a.b/c"]"#),
            ["metadata", "annotations", "a.b/c"]
        );
        assert_eq!(members(r#"data["x.y"].z"#), ["data", "x.y", "z"]);
        for bad in [
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "a[b]",
            "a[\"b\"",
            "a[\"\"]",
            "a\"b",
            "a]b",
            "a[\"b\"]c",
        ] {
            assert!(Path::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_value_is_read_set_and_removed() {
        let path = Path::parse("spec.deep.paused").unwrap();
        let mut object = json!({"spec": {"size": 1}});
        assert_eq!(path.get(&object), Ok(None));
        path.set(&mut object, json!(true)).unwrap();
        assert_eq!(object, json!({"spec": {"size": 1, "deep": {"paused": true}}}));
        assert_eq!(path.get(&object), Ok(Some(&json!(true))));
        path.remove(&mut object);
        assert_eq!(path.get(&object), Ok(None));
        assert_eq!(Path::parse("spec.size.x").unwrap().get(&object), Err(Blocked));
        assert_eq!(
            Path::parse("spec.size.x").unwrap().set(&mut object, json!(1)),
            Err(Blocked)
        );
    }
}
