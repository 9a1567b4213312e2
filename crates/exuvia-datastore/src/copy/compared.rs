//! Whether a live target is what is wanted, as the server sees it: with its defaults, policies and webhooks on both sides.

use exuvia_write::{ErrorClass, Writer};
use kube::Api;
use kube::api::DynamicObject;
use serde_json::Value;

use super::marks::written_by_others;
use super::target::{read, refusal};
use crate::Error;
use crate::compare::Comparison;

/// A field, what is wanted there, and what the live object has. Null: it is absent.
pub(crate) type Field = (String, Value, Value);

/// How a live object compares with what is wanted.
pub(crate) enum Compared {
    /// The server would make of what is wanted what there is.
    Equal,
    /// It would not: at least one field.
    Differs(Vec<Field>),
    /// We may not write there, or a policy is in the way: the server's own defaults look like differences.
    AsTheyStand(Vec<Field>),
}

/// What came of a dry-run replacement.
enum Put {
    Stored(Value),
    /// The object is not valid.
    Refused,
    /// We may not write, or a policy is in the way, such as that of a freeze.
    Denied,
}

/// Compares a live object with what is wanted, by dry runs (PITFALLS D34).
pub(crate) async fn compare(
    writer: &Writer,
    api: &Api<DynamicObject>,
    comparison: &Comparison,
    live: &DynamicObject,
    wanted: &Value,
) -> Result<Compared, Error> {
    let live_value = serde_json::to_value(live).unwrap_or_default();
    // What is the same as it stands needs no server.
    if comparison.difference(&live_value, wanted).is_none() {
        return Ok(Compared::Equal);
    }
    let put = async |object: &Value| put(writer, api, live, comparison.put_over(&live_value, object)).await;
    // The control: what changes even if the live object is put over itself is the server's noise.
    let (would_be, as_stored) = match (put(wanted).await?, put(&live_value).await?) {
        (Put::Denied, _) | (_, Put::Denied) => {
            return Ok(Compared::AsTheyStand(comparison.differences(wanted, &live_value)));
        }
        (would_be, as_stored) => (
            would_be.stored().unwrap_or_else(|| wanted.clone()),
            as_stored.stored().unwrap_or_else(|| live_value.clone()),
        ),
    };
    let shown = comparison.differences(&would_be, &as_stored);
    let made = made_of(writer, api, live, wanted).await?;
    let differs = if shown.is_empty() {
        // What an update adds to a copy that nobody else has written to is the server's. A value that it changes is not: our
        // own may have been put back.
        let mut added = comparison.differences(wanted, &would_be);
        added.retain(|(_, wanted, _)| wanted.is_null() && !written_by_others(&live.metadata));
        let mut hidden = hidden(comparison, &live_value, wanted, made.as_ref());
        hidden.retain(|(path, wanted, _)| {
            !wanted.is_null() || !added.iter().any(|(added, ..)| overlap(path, added))
        });
        hidden
    } else if made.is_some_and(|made| comparison.difference(&live_value, &made).is_none()) {
        // What policies and webhooks do to objects only as they are created shows in no update.
        Vec::new()
    } else {
        shown
    };
    Ok(if differs.is_empty() {
        Compared::Equal
    } else {
        Compared::Differs(differs)
    })
}

/// Differences that an update does not show: somebody's policy or webhook puts the old value back. A new object would have the
/// value that is wanted there, so the server makes nothing else of it.
fn hidden(comparison: &Comparison, live: &Value, wanted: &Value, made: Option<&Value>) -> Vec<Field> {
    let mut standing = comparison.differences(wanted, live);
    if let Some(made) = made {
        let changed = comparison.differences(wanted, made);
        let is_changed = |path: &str| changed.iter().any(|(other, ..)| overlap(path, other));
        standing.retain(|(path, ..)| !is_changed(path));
    } else {
        // What one side lacks may be a default.
        standing.retain(|(_, wanted, live)| !wanted.is_null() && !live.is_null());
    }
    standing
}

/// Whether one path is the other, or a part of it.
fn overlap(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() <= other.len() {
        (one, other)
    } else {
        (other, one)
    };
    long.strip_prefix(short)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// What the server would make of what is wanted. It is tried under another name, because this one is taken. `None`: it would
/// not make it under that name.
async fn made_of(
    writer: &Writer,
    api: &Api<DynamicObject>,
    live: &DynamicObject,
    wanted: &Value,
) -> Result<Option<Value>, Error> {
    let Ok(mut another) = read(wanted) else {
        return Ok(None);
    };
    another.types.clone_from(&live.types); // at the version at which it is asked for
    another.metadata.name = live.metadata.name.as_deref().map(another_name);
    another.metadata.namespace.clone_from(&live.metadata.namespace);
    match writer.dry_run().create(api, &another).await {
        Ok(made) => Ok(Some(serde_json::to_value(&made).unwrap_or_default())),
        Err(error) if error.is_already_exists() || refusal(&error).is_some() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Like this name, and within the 63 characters that some kinds allow.
pub(super) fn another_name(name: &str) -> String {
    let start: String = name.chars().take(50).collect();
    format!("{start}-exuvia-try")
}

async fn put(
    writer: &Writer,
    api: &Api<DynamicObject>,
    live: &DynamicObject,
    object: Value,
) -> Result<Put, Error> {
    let Ok(object) = serde_json::from_value::<DynamicObject>(object) else {
        return Ok(Put::Refused);
    };
    match writer.rehearse_replace(api, &live.metadata, &object).await {
        Ok(stored) => Ok(Put::Stored(serde_json::to_value(&stored).unwrap_or_default())),
        Err(error) => match error.class() {
            ErrorClass::Denied => Ok(Put::Denied),
            _ if refusal(&error).is_some() => Ok(Put::Refused),
            _ => Err(error.into()),
        },
    }
}

impl Put {
    fn stored(self) -> Option<Value> {
        match self {
            Self::Stored(value) => Some(value),
            Self::Refused | Self::Denied => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(live: &Value, wanted: &Value, made: Option<&Value>) -> Vec<String> {
        let comparison = Comparison::new(&exuvia_api::Conflicts::default());
        let hidden = hidden(&comparison, live, wanted, made);
        hidden.into_iter().map(|(path, ..)| path).collect()
    }

    #[test]
    fn a_value_that_an_update_would_put_back_is_a_difference_and_a_default_is_not() {
        let live = json!({"spec": {"size": 1, "tier": "basic", "owner": "a"}});
        let wanted = json!({"spec": {"size": 2}});
        let made = json!({"spec": {"size": 2, "tier": "basic", "owner": "b"}});
        assert_eq!(fields(&live, &wanted, Some(&made)), ["spec.size"]);
        assert_eq!(fields(&live, &wanted, None), ["spec.size"]);
    }

    #[test]
    fn what_the_server_makes_of_the_wanted_value_is_not_a_difference() {
        let live = json!({"spec": {"size": 1, "limits": {"cpu": 1}}});
        let wanted = json!({"spec": {"size": 2}});
        let made = json!({"spec": {"size": 1, "limits": {"cpu": 1}}});
        assert_eq!(fields(&live, &wanted, Some(&made)), Vec::<String>::new());
    }
}
