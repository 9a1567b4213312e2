//! Ownership that a write took from others: who is in the list before it and not after it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;

use super::plan::EntryId;

/// The owners that an object had before a write and does not have after it, as they were before.
///
/// A rewrite changes nothing, so that nobody may lose a field by it. Two servers' faults take all entries away, and both
/// answer 200: a conversion that fails while the list is converted (before 1.37, PITFALLS A6), and an object so large that
/// the server tries again without the list (A21).
///
/// An owner is a manager with its operation and subresource. One whose entry names another version now, or was united
/// with another entry of its own, still owns its fields. If an entry in `after` is younger than all of `before`, somebody
/// wrote in between, and nothing can be said: the answer is empty. What remains: an owner that gave up all its fields in
/// between leaves no trace, and looks as if it had lost them.
///
/// ```
/// use exuvia_write::lost_owners;
/// use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
/// use serde_json::json;
///
/// let before: Vec<ManagedFieldsEntry> = serde_json::from_value(json!([
///     {"manager": "flux", "operation": "Apply", "apiVersion": "example.dev/v1alpha1", "time": "2026-11-16T10:00:00Z"},
///     {"manager": "till", "operation": "Update", "apiVersion": "example.dev/v1", "time": "2026-11-16T11:00:00Z"},
/// ]))?;
/// let mut after = before.clone();
/// after[0].api_version = Some("example.dev/v1".to_owned());
/// assert!(lost_owners(&before, &after).is_empty());
///
/// let lost = lost_owners(&before, &after[1..]);
/// assert_eq!(lost[0].to_string(), "flux (Apply at example.dev/v1alpha1)");
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn lost_owners(before: &[ManagedFieldsEntry], after: &[ManagedFieldsEntry]) -> Vec<EntryId> {
    let last = before.iter().map(|entry| &entry.time).max();
    let wrote_in_between = last.is_some_and(|last| after.iter().any(|entry| entry.time > *last));
    if wrote_in_between {
        return Vec::new();
    }
    let kept: Vec<EntryId> = after.iter().map(EntryId::of).collect();
    before
        .iter()
        .map(EntryId::of)
        .filter(|owner| !kept.iter().any(|kept| is_same_owner(owner, kept)))
        .collect()
}

/// The version is how an owner puts it, not who it is.
fn is_same_owner(a: &EntryId, b: &EntryId) -> bool {
    a.manager == b.manager && a.operation == b.operation && a.subresource == b.subresource
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::slice::from_ref;

    use serde_json::{Value, json};

    use super::*;

    fn entry(manager: &str, operation: &str, version: &str, minute: u32) -> Value {
        json!({
            "manager": manager, "operation": operation, "apiVersion": format!("example.dev/{version}"),
            "time": format!("2026-11-16T10:{minute:02}:00Z"),
        })
    }

    fn list(entries: &[Value]) -> Vec<ManagedFieldsEntry> {
        serde_json::from_value(json!(entries)).unwrap()
    }

    fn lost(before: &[Value], after: &[Value]) -> Vec<String> {
        let lost = lost_owners(&list(before), &list(after));
        lost.iter().map(ToString::to_string).collect()
    }

    fn on_status(mut entry: Value) -> Value {
        entry["subresource"] = json!("status");
        entry
    }

    /// PITFALLS A6, A21: all are gone at once.
    #[test]
    fn a_list_that_comes_back_empty_has_lost_every_owner() {
        let before = [
            entry("flux", "Apply", "v1", 1),
            on_status(entry("till", "Update", "v1alpha1", 2)),
        ];
        assert_eq!(
            lost(&before, &[]),
            [
                "flux (Apply at example.dev/v1)",
                "till (Update at example.dev/v1alpha1, status)"
            ]
        );
        assert_eq!(lost(&[], &[]), Vec::<String>::new());
        assert_eq!(lost(&[], &before), Vec::<String>::new());
    }

    #[test]
    fn an_owner_is_a_manager_with_its_operation_and_subresource() {
        let flux = entry("flux", "Apply", "v1", 1);
        for other in [
            entry("till", "Apply", "v1", 1),
            entry("flux", "Update", "v1", 1),
            on_status(entry("flux", "Apply", "v1", 1)),
        ] {
            assert_eq!(
                lost(from_ref(&flux), &[other]),
                ["flux (Apply at example.dev/v1)"]
            );
        }
        assert_eq!(lost(from_ref(&flux), from_ref(&flux)), Vec::<String>::new());
    }

    #[test]
    fn an_entry_that_moved_or_was_united_is_not_lost() {
        let before = [
            entry("till", "Update", "v1alpha1", 1),
            entry("till", "Update", "v1", 2),
        ];
        assert_eq!(
            lost(&before, &[entry("till", "Update", "v1", 2)]),
            Vec::<String>::new()
        );
        assert_eq!(
            lost(&before, &[entry("till", "Update", "v2", 1)]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn nothing_is_said_if_somebody_wrote_in_between() {
        let before = [entry("flux", "Apply", "v1", 1), entry("till", "Update", "v1", 2)];
        for writer in [
            entry("kubectl", "Update", "v1", 3),
            entry("till", "Update", "v1", 3),
        ] {
            assert_eq!(lost(&before, &[writer]), Vec::<String>::new());
        }
        // As old as the youngest is not younger: flux had its entry when that was written.
        let flux = ["flux (Apply at example.dev/v1)"];
        assert_eq!(lost(&before, &[entry("till", "Update", "v1", 2)]), flux);
        assert_eq!(lost(&before, &[entry("till", "Update", "v1", 1)]), flux);
    }

    #[test]
    fn an_entry_without_a_time_is_not_younger_than_any() {
        let mut timeless = entry("kubectl", "Update", "v1", 0);
        timeless["time"] = Value::Null;
        let flux = entry("flux", "Apply", "v1", 1);
        assert_eq!(lost(from_ref(&flux), from_ref(&timeless)).len(), 1);
        // Of a list without times nobody can tell what came later.
        assert_eq!(lost(&[timeless], &[flux]), Vec::<String>::new());
    }
}
