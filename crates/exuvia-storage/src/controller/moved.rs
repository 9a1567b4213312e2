//! Whether a `DatastoreMigration` is moving the objects of a resource: its storage migration waits for the end.

use exuvia_api::{DatastoreMigration, DatastorePhase};
use exuvia_sweep::{Item, Pages};
use exuvia_write::{Name, Redacted, redacted};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, CustomResourceExt, ResourceExt};
use serde_json::Value;

use super::StorageController;
use crate::Error;

impl StorageController {
    /// Why the objects of this CRD cannot be rewritten now, in words. Where `DatastoreMigration`s are not installed nothing is
    /// asked but that.
    pub(super) async fn moved_by(&self, group: &str, kind: &str) -> Result<Option<Redacted>, Error> {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        if crds
            .get_metadata_opt(DatastoreMigration::crd_name())
            .await?
            .is_none()
        {
            return Ok(None);
        }
        let api: Api<DatastoreMigration> = Api::all(self.client.clone());
        let mut pages = Pages::of(&api);
        while let Some(page) = pages.next().await.map_err(kube::Error::from)? {
            let mut items = page.items.iter();
            if let Some(why) = items.find_map(|item| waits_for(item, group, kind)) {
                return Ok(Some(why));
            }
        }
        Ok(None)
    }
}

/// Why objects of this kind have to wait for this `DatastoreMigration`, in words; `None`: they do not.
fn waits_for(item: &Item, group: &str, kind: &str) -> Option<Redacted> {
    if let Ok(migration) = item.read::<DatastoreMigration>() {
        return is_moving(&migration, group, kind).then(|| {
            redacted!(
                "DatastoreMigration {} moves these objects; the storage migration goes on when that has come to its end",
                Name(&migration.name_any())
            )
        });
    }
    // Another version of the CRD may be installed. What it is about cannot be told, whether it has come to its end can.
    let raw: Value = item.read().unwrap_or_default();
    let is_at_rest = matches!(
        raw["status"]["phase"].as_str(),
        None | Some("Pending" | "Complete" | "Failed")
    );
    let name = raw["metadata"]["name"].as_str().unwrap_or_default();
    (!is_at_rest).then(|| {
        redacted!(
            "DatastoreMigration {} cannot be read by this version of the operator, and may move these objects; the storage \
             migration goes on when that has come to its end, or when both are of one version",
            Name(name)
        )
    })
}

/// Whether it works on objects of this kind now: as its source, or as its target.
fn is_moving(migration: &DatastoreMigration, group: &str, kind: &str) -> bool {
    let phase = migration.status.as_ref().and_then(|status| status.phase);
    let is_at_work = matches!(phase, Some(DatastorePhase::Migrating | DatastorePhase::Converged));
    is_at_work && migration.spec.side_of(group, kind).is_some()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sources_and_targets_are_worked_on_from_the_start_to_the_end() {
        let migration = |phase: &str| -> DatastoreMigration {
            serde_json::from_value(json!({
                "apiVersion": "exuvia.dev/v1beta1", "kind": "DatastoreMigration", "metadata": {"name": "m"},
                "spec": {"mappings": [
                    {"name": "a", "from": {"group": "old.dev", "version": "v1", "kinds": ["Widget"]},
                     "to": {"group": "new.dev", "version": "v1"}},
                    {"name": "b", "from": {"group": "old.dev", "version": "v1", "kinds": ["Gadget"]},
                     "to": {"group": "new.dev", "version": "v1", "kind": "Device"}},
                ]},
                "status": {"phase": phase},
            }))
            .unwrap()
        };
        let moving = migration("Migrating");
        for (group, kind, expected) in [
            ("old.dev", "Widget", true),
            ("new.dev", "Widget", true),
            ("new.dev", "Device", true),
            ("new.dev", "Gadget", false),
            ("other.dev", "Widget", false),
        ] {
            assert_eq!(is_moving(&moving, group, kind), expected, "{kind}.{group}");
        }
        for (phase, expected) in [
            ("Pending", false),
            ("Converged", true),
            ("Complete", false),
            ("Failed", false),
        ] {
            assert_eq!(
                is_moving(&migration(phase), "old.dev", "Widget"),
                expected,
                "{phase}"
            );
        }
    }
}
