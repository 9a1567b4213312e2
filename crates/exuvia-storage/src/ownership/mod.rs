//! Who owns fields at which version: what shall become of old entries, and what is left of them.

mod asked;
mod leaves;
mod reshape;
mod shape;

pub use shape::has_path;

use std::collections::{BTreeMap, BTreeSet};

use exuvia_write::{EntryId, Fate, Plan, Writer, plan_move};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DynamicObject, ObjectMeta};
use serde::Serialize;
use serde_json::Value;

use crate::definition::Definition;
use crate::options::ManagedFields;

/// The field manager of every write that shall change nothing. What an entry of this name owns was set by the server or by a
/// webhook in such a write (PITFALLS A35), and we must not own it: its owner's next apply would be a conflict with us.
pub(crate) const REWRITER: &str = "exuvia-rewrites";

fn is_ours(entry: &ManagedFieldsEntry) -> bool {
    entry.manager.as_deref() == Some(REWRITER)
}

/// Whether one of our rewrites has left an entry.
pub(crate) fn has_ours(metadata: &ObjectMeta) -> bool {
    metadata.managed_fields.iter().flatten().any(is_ours)
}

/// Takes our own entry off an object, if there is one; `false`: it could not be done, or the same write has left another one,
/// as where a webhook stamps every write.
pub(crate) async fn disown(writer: &Writer, api: &Api<DynamicObject>, metadata: &ObjectMeta) -> bool {
    if !has_ours(metadata) {
        return true;
    }
    let nothing_old = BTreeSet::new();
    let without_ours = |entries: &[_]| plan_move(entries, &nothing_old, "", |_| Fate::Leave).without(is_ours);
    let moved = writer.move_ownership(api, metadata, without_ours).await;
    moved.is_ok_and(|moved| !has_ours(&moved.metadata))
}

/// How an entry gets to the storage version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// As it is: its paths mean the same there.
    AsItIs,
    /// In another shape, by what the object holds.
    Reshaped,
    /// By asking the server, because a webhook converts and the storage version does not have all of its paths.
    Asked,
    /// Not at all.
    None,
}

impl Way {
    fn of(definition: &Definition, entry: &ManagedFieldsEntry) -> Self {
        let (Some(storage), Some(fields)) = (definition.version(&definition.crd.storage), &entry.fields_v1)
        else {
            return Self::AsItIs;
        };
        if definition.webhook_conversion && !shape::has_paths(&storage.schema, fields) {
            return if storage.served { Self::Asked } else { Self::None };
        }
        let named = entry.api_version.as_deref().unwrap_or_default();
        let version = named.rsplit('/').next().unwrap_or_default();
        match definition.version(version) {
            Some(old) if !reshape::keeps_shape(fields, &old.schema, &storage.schema) => Self::Reshaped,
            _ => Self::AsItIs,
        }
    }
}

/// What the entries of one object own at the storage version, where that takes a look at it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// `Err`: it could not be found out.
    fields: BTreeMap<EntryId, Result<FieldsV1, String>>,
}

impl Known {
    /// Why an entry could not be moved.
    pub(crate) fn why_left(&self) -> Option<&str> {
        self.fields
            .values()
            .find_map(|found| found.as_ref().err())
            .map(String::as_str)
    }

    /// Finds out, for an object as the storage version shows it.
    pub(crate) async fn find(
        definition: &Definition,
        writer: &Writer,
        api: &Api<DynamicObject>,
        object: &DynamicObject,
    ) -> Self {
        let mut known = Self::default();
        let Some(storage) = definition.version(&definition.crd.storage) else {
            return known;
        };
        let mut asked = Vec::new();
        for entry in object.metadata.managed_fields.iter().flatten() {
            let named = entry.api_version.as_deref().unwrap_or_default();
            if !definition.is_old(named) {
                continue;
            }
            match (Way::of(definition, entry), &entry.fields_v1) {
                (Way::Asked, _) => asked.push(entry),
                (Way::Reshaped, Some(fields)) => {
                    let version = named.rsplit('/').next().unwrap_or_default();
                    let from = definition
                        .version(version)
                        .map_or(&Value::Null, |old| &old.schema);
                    let fields = reshape::reshape(fields, from, &storage.schema, &object.data);
                    known.fields.insert(EntryId::of(entry), Ok(fields));
                }
                _ => {}
            }
        }
        if asked.is_empty() {
            return known;
        }
        let shown = (object, &storage.schema, storage.has_status);
        let answers = match asked::owned_at(writer, api, shown, &asked).await {
            Ok(owned) => owned.into_iter().map(Ok).collect(),
            Err(why) => vec![Err(why); asked.len()],
        };
        known
            .fields
            .extend(asked.into_iter().map(EntryId::of).zip(answers));
        known
    }
}

/// Whether some entry can only be moved with a look at the object.
pub(crate) fn needs_object(
    definition: &Definition,
    policy: ManagedFields,
    entries: &[ManagedFieldsEntry],
) -> bool {
    policy == ManagedFields::Rewrite
        && entries.iter().any(|entry| {
            definition.is_old(entry.api_version.as_deref().unwrap_or_default())
                && matches!(Way::of(definition, entry), Way::Reshaped | Way::Asked)
        })
}

/// Plans what one object's write does to its managedFields.
pub(crate) fn plan(
    definition: &Definition,
    policy: ManagedFields,
    entries: &[ManagedFieldsEntry],
    known: &Known,
) -> Plan {
    let named = entries.iter().filter_map(|entry| entry.api_version.as_deref());
    let old = definition.old_among(named);
    let target = definition.api_version(&definition.crd.storage);
    let moved = |entry: &ManagedFieldsEntry| match known.fields.get(&EntryId::of(entry)) {
        Some(Ok(fields)) if is_empty(fields) => Fate::Drop, // nothing of it is there at the storage version
        Some(Ok(fields)) => Fate::MoveAs(fields.clone()),
        Some(Err(_)) => Fate::Leave,
        None if Way::of(definition, entry) == Way::None => Fate::Leave,
        None => Fate::Move,
    };
    plan_move(entries, &old, &target, |entry| match policy {
        ManagedFields::Keep => Fate::Leave,
        ManagedFields::Drop => Fate::Drop,
        ManagedFields::Rewrite => moved(entry),
    })
}

fn is_empty(fields: &FieldsV1) -> bool {
    fields.0.as_object().is_none_or(serde_json::Map::is_empty)
}

/// Who names which version in managedFields, counted over a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Owners {
    /// By `apiVersion`, then by manager.
    pub by_version: BTreeMap<String, BTreeMap<String, Owner>>,
}

/// One manager at one version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Owner {
    /// On how many objects.
    pub objects: u64,
    /// When it last wrote, as far as entries tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Timestamp>,
    /// One of the objects, as `namespace/name`.
    pub example: String,
}

impl Owners {
    /// Counts one object's entries.
    pub fn add(&mut self, metadata: &ObjectMeta) {
        for entry in metadata.managed_fields.iter().flatten() {
            let (Some(version), manager) = (&entry.api_version, entry.manager.clone().unwrap_or_default())
            else {
                continue;
            };
            let owner = self
                .by_version
                .entry(version.clone())
                .or_default()
                .entry(manager)
                .or_default();
            let object = object_name(metadata);
            // A manager may have several entries on one object (`/status`): it counts once.
            if owner.example != object {
                owner.objects += 1;
                owner.example = object;
            }
            owner.last = owner.last.max(entry.time.as_ref().map(|time| time.0));
        }
    }

    /// How many objects name this version at least (the largest count of any one manager).
    pub fn objects_at(&self, api_version: &str) -> u64 {
        self.at(api_version)
            .map(|(_, owner)| owner.objects)
            .max()
            .unwrap_or_default()
    }

    /// The managers at one version.
    pub fn at(&self, api_version: &str) -> impl Iterator<Item = (&str, &Owner)> {
        let managers = self.by_version.get(api_version).into_iter().flatten();
        managers.map(|(manager, owner)| (manager.as_str(), owner))
    }

    /// The versions that entries name.
    pub fn versions(&self) -> impl Iterator<Item = &str> {
        self.by_version.keys().map(String::as_str)
    }
}

/// `namespace/name`, or the name alone.
pub(crate) fn object_name(metadata: &ObjectMeta) -> String {
    let name = metadata.name.as_deref().unwrap_or_default();
    metadata
        .namespace
        .as_ref()
        .map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
}
