//! The difference between two JSON values as an RFC 7396 merge patch.

use serde_json::{Map, Value};

/// A wanted value that no merge patch can bring about: an explicit `null`.
///
/// In a merge patch `null` means "delete", so a `null` that is to *stay* cannot be sent. The usual source is a
/// Rust `Option` without `#[serde(skip_serializing_if = "Option::is_none")]`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{path} would become an explicit null, which a merge patch can only delete; leave the field out \
     (serde: skip_serializing_if = \"Option::is_none\") or use server-side apply"
)]
pub struct Inexpressible {
    /// JSON pointer to the `null`.
    pub path: String,
}

/// The merge patch that turns `before` into `after`; `None` if they are equal.
///
/// Only what differs is copied, so the work on the heap is in proportion to the change and not to the object.
/// Arrays have no inner differences in RFC 7396: one that differs is in the patch as a whole.
///
/// ```
/// use serde_json::json;
///
/// let before = json!({"spec": {"size": 1, "colour": "red"}, "kept": [1, 2]});
/// let after = json!({"spec": {"size": 2}, "kept": [1, 2]});
/// let patch = exuvia_write::diff(&before, &after)?;
/// assert_eq!(patch, Some(json!({"spec": {"size": 2, "colour": null}})));
/// assert_eq!(exuvia_write::diff(&before, &before)?, None);
///
/// // A null that is to stay is refused: sent as it is, it would delete.
/// let nulled = json!({"spec": {"size": null}});
/// assert_eq!(exuvia_write::diff(&before, &nulled).unwrap_err().path, "/spec/size");
/// # Ok::<(), exuvia_write::Inexpressible>(())
/// ```
pub fn diff(before: &Value, after: &Value) -> Result<Option<Value>, Inexpressible> {
    step(before, after, &Path::ROOT)
}

fn step(before: &Value, after: &Value, at: &Path<'_>) -> Result<Option<Value>, Inexpressible> {
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            let patch = members(old, new, at)?;
            Ok((!patch.is_empty()).then_some(Value::Object(patch)))
        }
        _ if before == after => Ok(None),
        _ => copied(after, at).map(Some),
    }
}

fn members(
    before: &Map<String, Value>,
    after: &Map<String, Value>,
    at: &Path<'_>,
) -> Result<Map<String, Value>, Inexpressible> {
    let mut patch = Map::new();
    let mut shared = 0;
    // Both maps nearly always hold the same keys in the same order (whether serde_json keeps them sorted or as
    // inserted), so walking them abreast saves a look-up per key until the first key that one of them lacks.
    let mut abreast = Some(before.iter());
    for (key, new) in after {
        let next = abreast.as_mut().and_then(Iterator::next);
        let old = match next {
            Some((k, old)) if k == key => Some(old),
            _ => {
                abreast = None;
                before.get(key)
            }
        };
        let here = at.then(key);
        let change = match old {
            Some(old) => {
                shared += 1;
                if new.is_null() && !old.is_null() {
                    return Err(here.inexpressible());
                }
                step(old, new, &here)?
            }
            None if new.is_null() => return Err(here.inexpressible()),
            None => Some(copied(new, &here)?),
        };
        if let Some(change) = change {
            patch.insert(key.clone(), change);
        }
    }
    if shared < before.len() {
        let deleted = before.keys().filter(|key| !after.contains_key(*key));
        patch.extend(deleted.map(|key| (key.clone(), Value::Null)));
    }
    Ok(patch)
}

/// A copy for the patch, refused if a member of it is `null`: where the old value was not an object, the server starts
/// from an empty one and the member would go missing. Within an array `null` is a value like any other.
fn copied(value: &Value, at: &Path<'_>) -> Result<Value, Inexpressible> {
    check(value, at)?;
    Ok(value.clone())
}

fn check(value: &Value, at: &Path<'_>) -> Result<(), Inexpressible> {
    let Value::Object(members) = value else {
        return Ok(());
    };
    members.iter().try_for_each(|(key, member)| {
        let here = at.then(key);
        if member.is_null() {
            Err(here.inexpressible())
        } else {
            check(member, &here)
        }
    })
}

/// Whether a live object already is as `patch` would make it.
///
/// Tells after a request of unknown outcome whether it was carried out. A field that the server stores in another
/// spelling (a quantity, say) reads as "no", which costs a retry and never a lost write.
pub(crate) fn holds(live: &Value, patch: &Value) -> bool {
    match (live, patch) {
        (Value::Object(live), Value::Object(patch)) => {
            patch.iter().all(|(key, wanted)| match live.get(key) {
                Some(found) => holds(found, wanted),
                None => absent(wanted),
            })
        }
        _ => live == patch,
    }
}

/// The server leaves out empty members of built-in kinds, so `{}` counts as absent too.
fn absent(wanted: &Value) -> bool {
    match wanted {
        Value::Null => true,
        Value::Object(members) => members.values().all(absent),
        _ => false,
    }
}

/// Where we are, as a list on the stack: a pointer is only spelt out when an error needs it.
struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    key: &'a str,
}

impl Path<'_> {
    const ROOT: Path<'static> = Path {
        parent: None,
        key: "",
    };

    fn then<'a>(&'a self, key: &'a str) -> Path<'a> {
        Path {
            parent: Some(self),
            key,
        }
    }

    fn inexpressible(&self) -> Inexpressible {
        Inexpressible { path: self.pointer() }
    }

    fn pointer(&self) -> String {
        self.parent.map_or_else(String::new, |parent| {
            let mut pointer = parent.pointer();
            pointer.push('/');
            pointer.push_str(&self.key.replace('~', "~0").replace('/', "~1"));
            pointer
        })
    }
}

/// Whether a patch replaces an array.
pub(crate) fn has_array(patch: &Value) -> bool {
    match patch {
        Value::Array(_) => true,
        Value::Object(members) => members.values().any(has_array),
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod properties;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_holds_once_it_was_applied() {
        let patch = json!({"spec": {"size": 2, "gone": null, "list": [1, {"a": 1}]}});
        assert!(holds(
            &json!({"spec": {"size": 2, "list": [1, {"a": 1}], "other": 1}}),
            &patch
        ));
        assert!(!holds(
            &json!({"spec": {"size": 1, "list": [1, {"a": 1}]}}),
            &patch
        ));
        assert!(!holds(
            &json!({"spec": {"size": 2, "gone": 0, "list": [1, {"a": 1}]}}),
            &patch
        ));
        assert!(!holds(&json!({"spec": {"size": 2, "list": [1]}}), &patch));
    }

    #[test]
    fn an_empty_member_that_the_server_left_out_holds() {
        assert!(holds(&json!({}), &json!({"spec": {"labels": {}}})));
        assert!(!holds(&json!({}), &json!({"spec": {"labels": {"a": "b"}}})));
    }

    #[test]
    fn an_array_is_found_at_any_depth() {
        assert!(has_array(&json!({"status": {"a": {"b": []}}})));
        assert!(!has_array(&json!({"status": {"a": {"b": {}}, "c": null}})));
    }
}
