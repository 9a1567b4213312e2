//! Kinds that a datastore migration moves or has moved: their objects may be frozen, and those who migrate their storage should
//! know.

use std::collections::BTreeSet;

use exuvia_api::{DatastoreMigration, DatastorePhase, FlagSide};
use exuvia_datastore::freeze;
use exuvia_storage::definition::Definition;
use exuvia_sweep::Pages;
use exuvia_write::{ErrorClass, RetryPolicy};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy as Policy;
use kube::{Api, ResourceExt};

use super::cluster::Cluster;

/// A sentence for each CRD that a datastore migration holds, or that the freeze of a deleted one holds. Where migrations
/// or policies may not be read, nothing is known, and nothing is said.
pub(super) async fn notes(cluster: &Cluster, crds: &[&Definition]) -> Vec<String> {
    let api: Api<DatastoreMigration> = Api::all(cluster.client.clone());
    let listed = Pages::of(&api).retry(RetryPolicy::default()).collect().await;
    let migrations: Vec<DatastoreMigration> = match listed {
        Ok(migrations) => migrations,
        // They are not installed, or not any more: every policy is one that was left.
        Err(error) if ErrorClass::of(&error) == ErrorClass::Missing => Vec::new(),
        Err(_) => return Vec::new(),
    };
    let living: BTreeSet<String> = migrations.iter().filter_map(ResourceExt::uid).collect();
    let left = freeze::left_frozen(&cluster.client, &living)
        .await
        .unwrap_or_default();
    let about = |crd: &&Definition| {
        let name = &crd.name;
        let mut migrations = migrations.iter();
        migrations
            .find_map(|migration| held(migration, name, &crd.group, &crd.kind))
            .or_else(|| left_frozen(&left, name, &crd.group, &crd.plural))
    };
    crds.iter().filter_map(about).collect()
}

/// Why objects of this CRD cannot be written although no migration is about them any more.
fn left_frozen(left: &[Policy], crd: &str, group: &str, plural: &str) -> Option<String> {
    let mut found = left.iter();
    let (policy, migration) = found.find_map(|policy| {
        let migration = freeze::freezer_of(policy, group, plural)?;
        Some((policy.name_any(), migration))
    })?;
    Some(format!(
        "{crd}: the policy {policy} of the DatastoreMigration {migration}, which is deleted, still freezes its objects, so that no \
         object can be rewritten now; `exuvia datastore thaw {migration}` ends that"
    ))
}

/// Why objects of this CRD cannot be written, or should not be, because of one migration.
fn held(migration: &DatastoreMigration, crd: &str, group: &str, kind: &str) -> Option<String> {
    let (name, status) = (migration.name_any(), migration.status.clone().unwrap_or_default());
    let side = migration.spec.side_of(group, kind)?;
    let phase = status.phase.unwrap_or_default();
    let frozen = match (phase, side) {
        (DatastorePhase::Migrating, _) if status.frozen_at.is_some() => {
            ", and freezes them, so that no object can be rewritten now"
        }
        (DatastorePhase::Migrating, _) | (DatastorePhase::Converged, FlagSide::Target) => "",
        // The policy lets updates pass that change nothing.
        (DatastorePhase::Converged | DatastorePhase::Complete, FlagSide::Source) => {
            ", and refuses every rewrite that would change one of them"
        }
        _ => return None,
    };
    let (moves, end) = match (phase, side) {
        (DatastorePhase::Complete, _) => (
            "has moved its objects away",
            format!(
                "`exuvia datastore abort {name} --cleanup` ends it, and then cleanup.source says what is thawed"
            ),
        ),
        (_, FlagSide::Source) => (
            "moves its objects away",
            format!("migrate it after the end, which `exuvia datastore status {name}` shows"),
        ),
        (_, FlagSide::Target) => (
            "moves objects to it",
            format!("migrate it after the end, which `exuvia datastore status {name}` shows"),
        ),
    };
    Some(format!(
        "{crd}: the DatastoreMigration {name} ({}) {moves}{frozen}; {end}",
        phase.as_str()
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_kind_that_is_frozen_says_by_which_migration() {
        let said = |group: &str, status| {
            let migration = serde_json::from_value(json!({
                "apiVersion": "exuvia.dev/v1beta1", "kind": "DatastoreMigration", "metadata": {"name": "move"},
                "spec": {"mappings": [{"name": "a", "from": {"group": "old.dev", "version": "v1", "kinds": ["Widget"]},
                    "to": {"group": "new.dev", "version": "v1"}}]},
                "status": status,
            }))
            .expect("a migration");
            held(&migration, &format!("widgets.{group}"), group, "Widget")
        };
        let frozen = said(
            "old.dev",
            json!({"phase": "Migrating", "frozenAt": "2026-11-17T10:00:00Z"}),
        );
        assert_eq!(
            frozen.as_deref(),
            Some(
                "widgets.old.dev: the DatastoreMigration move (Migrating) moves its objects away, and freezes them, so that no object \
                 can be rewritten now; migrate it after the end, which `exuvia datastore status move` shows"
            )
        );
        let synced = said("new.dev", json!({"phase": "Migrating"})).expect("a note");
        assert!(
            synced.contains("moves objects to it; migrate it after"),
            "{synced}"
        );
        let complete = said("old.dev", json!({"phase": "Complete"})).expect("a note");
        assert!(
            complete.contains(
                "has moved its objects away, and refuses every rewrite that would change one of them;"
            ),
            "{complete}"
        );
        assert_eq!(said("new.dev", json!({"phase": "Complete"})), None);
        assert_eq!(said("old.dev", json!({"phase": "Pending"})), None);
        assert_eq!(said("other.dev", json!({"phase": "Migrating"})), None);
    }
}
