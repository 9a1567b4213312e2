//! Where a conversion webhook may rename fields, nobody but the server knows what an old entry owns at the new version. So it
//! is asked: would it be a conflict with that entry to apply another value here? Only dry-runs are sent.
//!
//! That is the very question whose answer must be the same after the move. The server looks for conflicts before it validates
//! and before admission, so a value need not be a good one, only another one of the right type. Each conflict names the old
//! field that it is about: an entry is moved only if each of its fields was named. One that no question brings up may have no
//! place at the new version, or one that was not found; nobody can tell, so the entry stays.

use std::collections::BTreeSet;

use exuvia_write::{Apply, Error, ErrorClass, Writer, unite_fields};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use kube::Api;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::leaves::{Leaf, leaves_of};
use super::paths::{as_the_server_writes, in_words, quoted, required, value_at};
use crate::forbidden::MissingRule;

/// Under whose name it is asked. Nothing is stored, so the name is seen in audit logs only.
const ASKER: &str = "exuvia-asks";

/// An object with more fields than this is not asked about: a map of user data may have any number.
const MAX_FIELDS: usize = 2_000;

/// An object at the version to which entries are to be moved.
pub(super) struct Shown<'a> {
    pub(super) object: &'a DynamicObject,
    pub(super) schema: &'a Value,
    pub(super) has_status: bool,
}

/// An entry, and the object as the version that it names shows it.
pub(super) struct Asked<'a> {
    pub(super) entry: &'a ManagedFieldsEntry,
    pub(super) before: &'a Value,
}

/// With whom an apply would be a conflict, and about which field of theirs, in the server's words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Conflict {
    with: String,
    field: String,
}

/// What each of these entries owns in terms of the version at which the object is shown; an `Err` says why that is not known.
pub(super) async fn owned_at(
    writer: &Writer,
    api: &Api<DynamicObject>,
    shown: &Shown<'_>,
    asked: &[Asked<'_>],
) -> Vec<Result<FieldsV1, String>> {
    match ask(writer, api, shown, asked).await {
        Ok(found) => found,
        Err(why) => vec![Err(why); asked.len()],
    }
}

async fn ask(
    writer: &Writer,
    api: &Api<DynamicObject>,
    shown: &Shown<'_>,
    asked: &[Asked<'_>],
) -> Result<Vec<Result<FieldsV1, String>>, String> {
    let writer = writer.acting_as(ASKER).dry_run();
    let leaves = leaves_of(&shown.object.data, shown.schema);
    if leaves.len() > MAX_FIELDS {
        let number = leaves.len();
        return Err(format!(
            "it has {number} fields, and the server is asked for {MAX_FIELDS} at most"
        ));
    }
    let mut owned: Vec<FieldsV1> = asked.iter().map(|asked| metadata_of(asked.entry)).collect();
    let mut named: Vec<BTreeSet<String>> = vec![BTreeSet::new(); asked.len()];
    for leaf in leaves {
        let through_status = shown.has_status && leaf.path.first().is_some_and(|first| first == "f:status");
        if !asked.iter().any(|asked| may_own(asked.entry, through_status)) {
            continue;
        }
        let conflicts = if leaf.others.is_empty() {
            None
        } else {
            Some(conflicts(&writer, api, shown.object, &leaf, through_status).await?)
        };
        for (index, asked) in asked.iter().enumerate() {
            let about: Vec<String> = match &conflicts {
                Some(conflicts) => conflicts
                    .iter()
                    .filter(|conflict| is_about(&conflict.with, asked.entry))
                    .map(|conflict| conflict.field.clone())
                    .collect(),
                // An empty value, a set, an item that consists of its keys: it is the same one if it is there before and after.
                None if is_same(asked, &leaf.path, &shown.object.data) => {
                    let along = leaf.along.iter().chain([&leaf.path]);
                    along.map(|path| as_the_server_writes(path)).collect()
                }
                None => Vec::new(),
            };
            if !about.is_empty() {
                named[index].extend(about);
                for path in leaf.along.iter().chain([&leaf.path]) {
                    let united = unite_fields(&owned[index], &single(path));
                    owned[index] = united.ok_or("its managedFields cannot be read")?;
                }
            }
        }
    }
    let judged = asked.iter().zip(owned).zip(named).map(|((asked, owned), named)| {
        let missing = required(asked.entry, asked.before)
            .into_iter()
            .find(|path| !named.contains(&as_the_server_writes(path)));
        match missing {
            None => Ok(owned),
            Some(path) => {
                let manager = asked.entry.manager.as_deref().unwrap_or_default();
                Err(format!(
                    "nobody can tell what became of {} of {manager}",
                    in_words(&path)
                ))
            }
        }
    });
    Ok(judged.collect())
}

/// The part of an entry that is the same at every version.
fn metadata_of(entry: &ManagedFieldsEntry) -> FieldsV1 {
    let fields = entry.fields_v1.as_ref().map(|fields| &fields.0["f:metadata"]);
    let fields = fields.filter(|fields| fields.is_object());
    FieldsV1(fields.map_or_else(|| json!({}), |fields| json!({"f:metadata": fields})))
}

/// Whether an entry can own anything there: it has fields of the status, or others.
fn may_own(entry: &ManagedFieldsEntry, of_status: bool) -> bool {
    let fields = entry.fields_v1.as_ref().and_then(|fields| fields.0.as_object());
    let of_part = |name: &String| name != "f:metadata" && (name == "f:status") == of_status;
    fields.is_some_and(|fields| fields.keys().any(of_part))
}

/// Whether the entry owns this very path, and the same is there at both versions.
fn is_same(asked: &Asked<'_>, path: &[String], after: &Value) -> bool {
    let fields = asked.entry.fields_v1.as_ref();
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let is_owned = fields.is_some_and(|fields| exuvia_write::field_paths(fields).contains(&path));
    let before = value_at(asked.before, &path);
    is_owned && before.is_some() && before == value_at(after, &path)
}

/// With whom it would be a conflict to apply another value here. All that can be told by several values counts: what is
/// derived from two fields may show a change of one of them only with one of the values, and one that rounds may show none.
async fn conflicts(
    writer: &Writer,
    api: &Api<DynamicObject>,
    object: &DynamicObject,
    leaf: &Leaf,
    through_status: bool,
) -> Result<BTreeSet<Conflict>, String> {
    let types = object.types.clone().unwrap_or_default();
    let mut found = BTreeSet::new();
    let mut is_answered = false;
    let mut last = String::new();
    for other in &leaf.others {
        let mut intent = other.clone();
        intent["apiVersion"] = json!(types.api_version);
        intent["kind"] = json!(types.kind);
        intent["metadata"] = json!({"name": object.metadata.name});
        if let Some(namespace) = &object.metadata.namespace {
            intent["metadata"]["namespace"] = json!(namespace);
        }
        let how = Apply::default();
        let asked = if through_status {
            writer.apply_status(api, &intent, &how).await
        } else {
            writer.apply(api, &intent, &how).await
        };
        match asked {
            Ok(DynamicObject { .. }) => is_answered = true,
            Err(error) => match judge(&error) {
                Judged::Conflicts(conflicts) => {
                    is_answered = true;
                    found.extend(conflicts);
                }
                Judged::Nobody => is_answered = true,
                Judged::NotKnown => last = error.to_string(),
            },
        }
    }
    let known: Vec<&ManagedFieldsEntry> = object.metadata.managed_fields.iter().flatten().collect();
    let is_known = |conflict: &&Conflict| known.iter().any(|entry| is_about(&conflict.with, entry));
    if let Some(unknown) = found.iter().find(|conflict| !is_known(conflict)) {
        return Err(format!(
            "the server names an owner that is not in managedFields: {}",
            unknown.with
        ));
    }
    if is_answered { Ok(found) } else { Err(last) }
}

enum Judged {
    Conflicts(BTreeSet<Conflict>),
    /// It got past the search for conflicts.
    Nobody,
    NotKnown,
}

fn judge(error: &Error) -> Judged {
    let details = error.status().and_then(|status| status.details.as_ref());
    let causes = details
        .map(|details| details.causes.as_slice())
        .unwrap_or_default();
    let conflicts: BTreeSet<Conflict> = causes
        .iter()
        .filter(|cause| cause.reason == "FieldManagerConflict")
        .map(|cause| Conflict {
            with: cause.message.clone(),
            field: cause.field.clone(),
        })
        .collect();
    match error.class() {
        ErrorClass::Conflict if !conflicts.is_empty() => Judged::Conflicts(conflicts),
        ErrorClass::Invalid => Judged::Nobody,
        ErrorClass::Denied if MissingRule::named_in(&error.to_string()).is_none() => Judged::Nobody,
        _ => Judged::NotKnown,
    }
}

/// Whether a conflict is with this entry: `conflict with "flux" with subresource "status" using example.com/v1 at …`. Of an
/// `Apply` entry the server names the manager alone, since there is one for each.
fn is_about(conflict: &str, entry: &ManagedFieldsEntry) -> bool {
    let mut owner = format!(
        "conflict with {}",
        quoted(entry.manager.as_deref().unwrap_or_default())
    );
    if let Some(subresource) = entry.subresource.as_deref().filter(|name| !name.is_empty()) {
        owner += &format!(" with subresource {}", quoted(subresource));
    }
    if entry.operation.as_deref() == Some("Apply") {
        return conflict == owner;
    }
    owner += &format!(" using {}", entry.api_version.as_deref().unwrap_or_default());
    let rest = conflict.strip_prefix(&owner);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" at "))
}

/// A set of one path.
fn single(path: &[String]) -> FieldsV1 {
    let nested = path
        .iter()
        .rev()
        .fold(json!({}), |inner, element| json!({ element: inner }));
    FieldsV1(nested)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn entry(operation: &str, subresource: &str) -> ManagedFieldsEntry {
        serde_json::from_value(json!({
            "manager": "flux", "operation": operation, "subresource": subresource, "apiVersion": "example.com/v1alpha1",
        }))
        .unwrap()
    }

    #[test]
    fn a_conflict_names_its_entry() {
        let applied = entry("Apply", "");
        assert!(is_about("conflict with \"flux\"", &applied));
        assert!(!is_about("conflict with \"flux2\"", &applied));
        assert!(!is_about(
            "conflict with \"flux\" using example.com/v1alpha1 at 2026-11-16T10:00:00Z",
            &applied
        ));
        let updated = entry("Update", "status");
        let said = "conflict with \"flux\" with subresource \"status\" using example.com/v1alpha1";
        assert!(is_about(said, &updated));
        assert!(is_about(&format!("{said} at 2026-11-16T10:00:00Z"), &updated));
        assert!(!is_about(&format!("{said}0"), &updated));
    }
}
