//! Who owns fields of a CRD's objects at which version, and which entries a migration could not move.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use exuvia_storage::definition::Definition;
use exuvia_storage::{Owners, has_path, in_words};
use exuvia_sweep::{Sweep, Verdict};
use exuvia_write::field_paths;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use k8s_openapi::jiff::Timestamp;
use kube::api::ObjectMeta;

/// What a look at the metadata of all objects tells.
#[derive(Clone, Debug, Default)]
pub(super) struct Ownership {
    pub(super) objects: u64,
    pub(super) owners: Owners,
    /// By version, entries that do not fit the storage version.
    pub(super) misfits: BTreeMap<String, Misfits>,
}

/// Entries with fields that the storage version does not have under that name: a conversion webhook renames them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Misfits {
    pub(super) managers: BTreeSet<String>,
    /// How many objects have such an entry.
    pub(super) objects: u64,
    /// One of the fields, such as `spec.color`.
    pub(super) field: String,
    /// When the oldest of the entries was written; `None`: one does not say.
    pub(super) oldest: Option<Timestamp>,
}

impl Ownership {
    /// Looks at every object's metadata, page by page.
    pub(super) async fn look(definition: &Definition, sweep: Sweep) -> Result<Self, exuvia_sweep::Error> {
        let seen = Mutex::new(Self::default());
        sweep
            .run(async |object| {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.add(definition, &object.metadata);
                Verdict::skipped()
            })
            .await?;
        Ok(seen.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&mut self, definition: &Definition, metadata: &ObjectMeta) {
        self.objects += 1;
        self.owners.add(metadata);
        let mut counted = BTreeSet::new();
        for entry in metadata.managed_fields.iter().flatten() {
            let Some(version) = version_in(definition, entry) else {
                continue;
            };
            let Some(field) = misfit(definition, version, entry) else {
                continue;
            };
            let misfits = self.misfits.entry(version.to_owned()).or_default();
            let time = entry.time.as_ref().map(|time| time.0);
            if misfits.objects == 0 {
                misfits.field = field;
                misfits.oldest = time;
            }
            misfits.oldest = misfits.oldest.min(time);
            misfits.managers.insert(entry.manager.clone().unwrap_or_default());
            if counted.insert(version.to_owned()) {
                misfits.objects += 1;
            }
        }
    }

    /// The versions of the CRD's own group that entries name.
    pub(super) fn versions<'a>(&'a self, definition: &'a Definition) -> impl Iterator<Item = &'a str> {
        let named = self.owners.versions();
        named.filter_map(|named| version_of(definition, named))
    }
}

fn version_in<'a>(definition: &Definition, entry: &'a ManagedFieldsEntry) -> Option<&'a str> {
    version_of(definition, entry.api_version.as_deref()?)
}

fn version_of<'a>(definition: &Definition, api_version: &'a str) -> Option<&'a str> {
    let (group, version) = api_version.rsplit_once('/')?;
    (group == definition.group).then_some(version)
}

/// A field of the entry that the storage version does not have; `None`: all of it fits, or no webhook renames anything.
fn misfit(definition: &Definition, version: &str, entry: &ManagedFieldsEntry) -> Option<String> {
    if !definition.webhook_conversion || version == definition.crd.storage {
        return None;
    }
    let storage = definition.version(&definition.crd.storage)?;
    let fields = entry.fields_v1.as_ref()?;
    let paths = field_paths(fields);
    let path = paths.iter().find(|path| !has_path(&storage.schema, path))?;
    Some(in_words(path))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definition(webhook: bool) -> Definition {
        let version = |name: &str, field: &str| {
            json!({"name": name, "served": true, "storage": name == "v1", "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {"type": "object", "properties": {
                    "size": {"type": "integer"}, field: {"type": "string"}}}}}}})
        };
        let strategy = if webhook { "Webhook" } else { "None" };
        let crd = serde_json::from_value(json!({
            "metadata": {"name": "widgets.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"kind": "Widget", "plural": "widgets"},
                "conversion": {"strategy": strategy},
                "versions": [version("v1alpha1", "color"), version("v1", "paint")],
            },
            "status": {"storedVersions": ["v1"]},
        }))
        .unwrap();
        Definition::read(&crd)
    }

    fn object(entries: &[(&str, &str, &str)]) -> ObjectMeta {
        let entries: Vec<_> = entries
            .iter()
            .map(|(manager, field, time)| {
                json!({"manager": manager, "operation": "Update", "apiVersion": "example.com/v1alpha1", "time": time,
                       "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {format!("f:{field}"): {}}}})
            })
            .collect();
        serde_json::from_value(json!({"name": "a", "managedFields": entries})).unwrap()
    }

    #[test]
    fn an_entry_whose_field_a_webhook_renames_does_not_fit() {
        let definition = definition(true);
        let mut seen = Ownership::default();
        seen.add(
            &definition,
            &object(&[
                ("painter", "color", "2026-11-16T10:00:00Z"),
                ("other", "color", "2026-11-16T09:00:00Z"),
                ("sizer", "size", "2026-11-16T08:00:00Z"),
            ]),
        );
        let misfits = &seen.misfits["v1alpha1"];
        assert_eq!(misfits.objects, 1, "the object counts once");
        assert_eq!(misfits.field, "spec.color");
        assert!(
            misfits.managers.iter().eq(["other", "painter"]),
            "what fits is not among them"
        );
        assert_eq!(misfits.oldest.unwrap().to_string(), "2026-11-16T09:00:00Z");
    }

    #[test]
    fn without_a_webhook_every_entry_fits() {
        let mut seen = Ownership::default();
        seen.add(
            &definition(false),
            &object(&[("painter", "color", "2026-11-16T10:00:00Z")]),
        );
        assert!(seen.misfits.is_empty());
    }
}
