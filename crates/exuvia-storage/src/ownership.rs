//! Who owns fields at which version: what shall become of old entries, and what is left of them.

use std::collections::BTreeMap;

use exuvia_write::{Fate, Plan, field_paths, plan_move};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use k8s_openapi::jiff::Timestamp;
use kube::api::ObjectMeta;
use serde::Serialize;

use crate::definition::Definition;
use crate::options::ManagedFields;
use crate::schema;

/// Plans what one object's write does to its managedFields.
pub(crate) fn plan(definition: &Definition, policy: ManagedFields, entries: &[ManagedFieldsEntry]) -> Plan {
    let named = entries.iter().filter_map(|entry| entry.api_version.as_deref());
    let old = definition.old_among(named);
    let target = definition.api_version(&definition.crd.storage);
    plan_move(entries, &old, &target, |entry| match policy {
        ManagedFields::Keep => Fate::Leave,
        ManagedFields::Drop => Fate::Drop,
        ManagedFields::Rewrite if may_move(definition, entry) => Fate::Move,
        ManagedFields::Rewrite => Fate::Leave,
    })
}

/// Under conversion `None` a path means the same at every version. A webhook may rename fields, so there only an entry
/// all of whose paths exist at the storage version is moved.
fn may_move(definition: &Definition, entry: &ManagedFieldsEntry) -> bool {
    if !definition.webhook_conversion {
        return true;
    }
    let Some(storage) = definition.version(&definition.crd.storage) else {
        return false;
    };
    let Some(fields) = &entry.fields_v1 else {
        return true;
    };
    field_paths(fields)
        .iter()
        .all(|path| schema::has_path(&storage.schema, path))
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
