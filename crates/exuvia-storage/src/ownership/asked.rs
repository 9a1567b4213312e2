//! Where a conversion webhook renames fields, nobody but the server knows what an old entry owns at the new version. So it is
//! asked: would it be a conflict with that entry to apply another value here? Only dry-runs are sent.
//!
//! That is the very question whose answer must be the same after the move. The server looks for conflicts before it validates
//! and before admission, so a value need not be a good one, only another one of the right type.

use std::collections::BTreeSet;

use exuvia_write::{Apply, Error, ErrorClass, Writer, unite_fields};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use kube::Api;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::leaves::{Leaf, leaves_of};
use crate::forbidden::MissingRule;

/// Under whose name it is asked. Nothing is stored, so the name is seen in audit logs only.
const ASKER: &str = "exuvia-asks";

/// An object with more fields than this is not asked about: a map of user data may have any number.
const MOST_FIELDS: usize = 2_000;

/// What these entries own of the object, in terms of the version at which it is shown; in their order. `Err`: why that could
/// not be found out.
pub(crate) async fn owned_at(
    writer: &Writer,
    api: &Api<DynamicObject>,
    (object, schema, has_status): (&DynamicObject, &Value, bool),
    entries: &[&ManagedFieldsEntry],
) -> Result<Vec<FieldsV1>, String> {
    let writer = writer.acting_as(ASKER).dry_run();
    let metadata = |entry: &&ManagedFieldsEntry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0["f:metadata"]);
        let fields = fields.filter(|fields| fields.is_object());
        FieldsV1(fields.map_or_else(|| json!({}), |fields| json!({"f:metadata": fields})))
    };
    let mut owned: Vec<FieldsV1> = entries.iter().map(metadata).collect();
    let leaves = leaves_of(&object.data, schema);
    if leaves.len() > MOST_FIELDS {
        let number = leaves.len();
        return Err(format!(
            "it has {number} fields, and the server is asked for {MOST_FIELDS} at most"
        ));
    }
    for leaf in leaves {
        let through_status = has_status && leaf.path.first().is_some_and(|first| first == "f:status");
        let of_this_part =
            |entry: &ManagedFieldsEntry| through_status == (entry.subresource.as_deref() == Some("status"));
        if !entries.iter().any(|entry| of_this_part(entry)) {
            continue;
        }
        let conflicts = if leaf.others.is_empty() {
            None
        } else {
            Some(conflicts(&writer, api, object, &leaf, through_status).await?)
        };
        for (entry, owned) in entries.iter().zip(&mut owned) {
            let is_owner = match &conflicts {
                Some(conflicts) => conflicts.iter().any(|conflict| is_about(conflict, entry)),
                // An empty value, or an item that consists of its keys: the same name is all there is to go by.
                None => of_this_part(entry) && has_member(entry, &leaf.path),
            };
            if is_owner {
                for path in leaf.along.iter().chain([&leaf.path]) {
                    *owned = unite_fields(owned, &single(path)).ok_or("its managedFields cannot be read")?;
                }
            }
        }
    }
    Ok(owned)
}

/// With whom it would be a conflict to apply another value here, in the server's words.
async fn conflicts(
    writer: &Writer,
    api: &Api<DynamicObject>,
    object: &DynamicObject,
    leaf: &Leaf,
    through_status: bool,
) -> Result<BTreeSet<String>, String> {
    let types = object.types.clone().unwrap_or_default();
    let mut last = String::new();
    for other in &leaf.others {
        let mut intent = other.clone();
        intent["apiVersion"] = json!(types.api_version);
        intent["kind"] = json!(types.kind);
        intent["metadata"] = json!({"name": object.metadata.name, "namespace": object.metadata.namespace});
        let how = Apply::default();
        let asked = if through_status {
            writer.apply_status(api, &intent, &how).await
        } else {
            writer.apply(api, &intent, &how).await
        };
        match asked {
            Ok(DynamicObject { .. }) => return Ok(BTreeSet::new()),
            Err(error) => match judge(&error) {
                Judged::Conflicts(conflicts) => return Ok(conflicts),
                Judged::Nobody => return Ok(BTreeSet::new()),
                Judged::NotKnown => last = error.to_string(),
            },
        }
    }
    Err(last)
}

enum Judged {
    Conflicts(BTreeSet<String>),
    /// It got past the search for conflicts.
    Nobody,
    NotKnown,
}

fn judge(error: &Error) -> Judged {
    let details = error.status().and_then(|status| status.details.as_ref());
    let causes = details
        .map(|details| details.causes.as_slice())
        .unwrap_or_default();
    let conflicts: BTreeSet<String> = causes
        .iter()
        .filter(|cause| cause.reason == "FieldManagerConflict")
        .map(|cause| cause.message.clone())
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
    let mut owner = format!("conflict with {:?}", entry.manager.as_deref().unwrap_or_default());
    if let Some(subresource) = entry.subresource.as_deref().filter(|name| !name.is_empty()) {
        owner += &format!(" with subresource {subresource:?}");
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

fn has_member(entry: &ManagedFieldsEntry, path: &[String]) -> bool {
    let fields = entry.fields_v1.as_ref();
    fields.is_some_and(|fields| {
        exuvia_write::field_paths(fields).contains(&path.iter().map(String::as_str).collect())
    })
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
