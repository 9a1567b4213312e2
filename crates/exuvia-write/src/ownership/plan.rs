//! What becomes of an object's managedFields when versions go: decided without any IO.

use std::{collections::BTreeSet, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};

use super::fields::unite_fields;

/// What becomes of one entry that names an old version.
#[derive(Debug, Clone, PartialEq)]
pub enum Fate {
    /// It is given the target version. Right only if every path of it exists there and means the same.
    Move,
    /// It is given the target version and these fields: what it owns is called otherwise there, or is taken apart otherwise.
    MoveAs(FieldsV1),
    /// It is removed, and its fields have no owner any more.
    Drop,
    /// It stays as it is, and goes on holding the old version.
    Leave,
}

/// What makes an entry itself for the API server, apart from the fields it owns.
///
/// Two entries with one identity are one entry to the server: the last wins (PITFALLS A22).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// Who wrote.
    pub manager: String,
    /// `Apply` or `Update`.
    pub operation: String,
    /// Through which subresource; empty for the object itself.
    pub subresource: String,
    /// In terms of which version.
    pub api_version: String,
}

impl EntryId {
    /// The identity of an entry.
    pub fn of(entry: &ManagedFieldsEntry) -> Self {
        Self {
            manager: entry.manager.clone().unwrap_or_default(),
            operation: entry.operation.clone().unwrap_or_default(),
            subresource: entry.subresource.clone().unwrap_or_default(),
            api_version: entry.api_version.clone().unwrap_or_default(),
        }
    }

    /// Whether the server takes both for one entry: for `Apply` the version does not count (PITFALLS A7).
    pub fn coincides(&self, other: &Self) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == "Apply" || self.api_version == other.api_version)
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} at {}", self.manager, self.operation, self.api_version)?;
        if !self.subresource.is_empty() {
            write!(f, ", {}", self.subresource)?;
        }
        f.write_str(")")
    }
}

/// What [`plan_move`] decided. All identities are those from before the move.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// The list as it is to be.
    pub entries: Vec<ManagedFieldsEntry>,
    /// Entries that get the target version.
    pub moved: Vec<EntryId>,
    /// Those of `moved` that were united with another entry of the same manager.
    pub united: Vec<EntryId>,
    /// Entries that are removed.
    pub dropped: Vec<EntryId>,
    /// Entries at an old version that stay, and hold it.
    pub left: Vec<EntryId>,
    to: String,
}

impl Plan {
    /// Nothing to change: no entry is at an old version, or all of them are left.
    pub fn is_empty(&self) -> bool {
        self.moved.is_empty() && self.dropped.is_empty()
    }

    /// Also removes entries that name no old version.
    #[must_use]
    pub fn without(mut self, is_unwanted: impl Fn(&ManagedFieldsEntry) -> bool) -> Self {
        let (unwanted, entries) = self.entries.into_iter().partition(is_unwanted);
        self.entries = entries;
        self.dropped.extend(unwanted.iter().map(EntryId::of));
        self
    }

    /// What to send as `metadata.managedFields`: `[]` would be ignored, `[{}]` strips the list (PITFALLS A22).
    pub(crate) fn body(&self) -> Vec<ManagedFieldsEntry> {
        if self.entries.is_empty() {
            vec![ManagedFieldsEntry::default()]
        } else {
            self.entries.clone()
        }
    }

    /// Why the server's answer shows that it ignored the list; `None`: it took it.
    ///
    /// Only what the plan changed is looked at. Should the very same write also change the object (a webhook that
    /// stamps it, a default that is new), the server adds an entry for that, and no harm is done.
    pub fn ignored(&self, answer: &[ManagedFieldsEntry]) -> Option<EntryId> {
        let found: Vec<EntryId> = answer.iter().map(EntryId::of).collect();
        let stayed = self
            .moved
            .iter()
            .chain(&self.dropped)
            .find(|old| found.contains(old));
        let lost = || {
            let target = |old: &EntryId| EntryId {
                api_version: self.to.clone(),
                ..old.clone()
            };
            self.moved.iter().find(|old| !found.contains(&target(old)))
        };
        stayed.or_else(lost).cloned()
    }

    /// Whether the answer holds exactly the entries that were sent, fields and all, in whatever order.
    pub fn matches(&self, answer: &[ManagedFieldsEntry]) -> bool {
        let same = |sent: &ManagedFieldsEntry, found: &ManagedFieldsEntry| {
            EntryId::of(sent) == EntryId::of(found) && sent.fields_v1 == found.fields_v1
        };
        answer.len() == self.entries.len()
            && self
                .entries
                .iter()
                .all(|sent| answer.iter().any(|found| same(sent, found)))
    }
}

/// Plans what becomes of the entries that name one of the `old` versions (`group/version`), for a target version `to`.
///
/// `fate` is asked once for each such entry. Under conversion `None` all of them may be moved; with a conversion
/// webhook only those whose every path exists in the target's schema (see [`field_paths`](crate::field_paths)).
/// Entries that coincide after the move are united field by field: the server would keep the last one and the
/// fields of the other would lose their owner (PITFALLS A7, A22). One that is not a `fieldsV1` tree is left.
///
/// ```
/// use exuvia_write::{Fate, plan_move};
/// use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
/// use serde_json::json;
///
/// let entries: Vec<ManagedFieldsEntry> = serde_json::from_value(json!([
///     {"manager": "op", "operation": "Update", "apiVersion": "example.dev/v1alpha1",
///      "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:a": {}}}},
///     {"manager": "op", "operation": "Update", "apiVersion": "example.dev/v1",
///      "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:b": {}}}},
/// ]))?;
/// let old = ["example.dev/v1alpha1".to_owned()].into();
/// let plan = plan_move(&entries, &old, "example.dev/v1", |_| Fate::Move);
/// assert_eq!((plan.entries.len(), plan.moved.len(), plan.united.len()), (1, 1, 1));
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn plan_move(
    managed_fields: &[ManagedFieldsEntry],
    old: &BTreeSet<String>,
    to: &str,
    mut fate: impl FnMut(&ManagedFieldsEntry) -> Fate,
) -> Plan {
    let mut plan = Plan {
        to: to.to_owned(),
        ..Plan::default()
    };
    let is_old = |entry: &ManagedFieldsEntry| {
        entry
            .api_version
            .as_ref()
            .is_some_and(|version| old.contains(version) && version != to)
    };
    // Those that stay come first, so that a moved entry always meets the one that it coincides with.
    let (candidates, staying): (Vec<_>, Vec<_>) = managed_fields.iter().partition(|entry| is_old(entry));
    plan.entries = staying.into_iter().cloned().collect();
    for entry in candidates {
        let id = EntryId::of(entry);
        let is_moved = match fate(entry) {
            Fate::Move => take_in(&mut plan, entry, &id, to),
            Fate::MoveAs(fields) => {
                let fields_v1 = Some(fields);
                let entry = ManagedFieldsEntry {
                    fields_v1,
                    ..entry.clone()
                };
                take_in(&mut plan, &entry, &id, to)
            }
            Fate::Drop => {
                plan.dropped.push(id);
                continue;
            }
            Fate::Leave => false,
        };
        if is_moved {
            plan.moved.push(id);
        } else {
            plan.left.push(id);
            plan.entries.push(entry.clone());
        }
    }
    plan
}

/// Adds the moved entry to the list, or to the entry it coincides with; `false` if its fields cannot be read.
fn take_in(plan: &mut Plan, entry: &ManagedFieldsEntry, id: &EntryId, to: &str) -> bool {
    let empty = FieldsV1(serde_json::json!({}));
    let fields = entry.fields_v1.as_ref().unwrap_or(&empty);
    let target = EntryId {
        api_version: to.to_owned(),
        ..id.clone()
    };
    let twin = plan
        .entries
        .iter_mut()
        .find(|other| EntryId::of(other).coincides(&target));
    let readable = entry
        .fields_type
        .as_deref()
        .is_none_or(|fields_type| fields_type == "FieldsV1");
    let Some(united) = unite_fields(
        twin.as_ref()
            .and_then(|twin| twin.fields_v1.as_ref())
            .unwrap_or(&empty),
        fields,
    )
    .filter(|_| readable) else {
        return false;
    };
    match twin {
        Some(twin) => {
            twin.fields_v1 = Some(united);
            // The later of the two: that is when this manager last wrote any of it.
            twin.time = twin.time.take().max(entry.time.clone());
            twin.api_version = Some(to.to_owned());
            plan.united.push(id.clone());
        }
        None => plan.entries.push(ManagedFieldsEntry {
            api_version: Some(to.to_owned()),
            ..entry.clone()
        }),
    }
    true
}
