//! What the watches have seen of migrations: which change wakes which of them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use exuvia_api::{DatastoreMigration, DatastorePhase, RETRY_ANNOTATION};
use kube::ResourceExt;

/// CRDs that a migration makes itself to try objects: their coming and going wakes nobody.
const CLONES: &str = ".preflight.exuvia.dev";

/// What of a migration matters to a reconcile. Its status does not: the controller itself writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SeenMigration {
    uid: Option<String>,
    generation: Option<i64>,
    is_deleted: bool,
    is_retry_asked: bool,
    /// Another operator carries it out.
    is_of_another: bool,
    phase: Option<DatastorePhase>,
}

/// All that was seen.
#[derive(Debug, Default)]
pub(super) struct World {
    migrations: BTreeMap<String, SeenMigration>,
    /// Migrations that something stands in the way of.
    held: BTreeSet<String>,
}

impl World {
    /// A migration is there, ours or another operator's; returns the migrations to look at.
    pub(super) fn see(&mut self, migration: &DatastoreMigration, is_of_another: bool) -> Vec<String> {
        let name = migration.name_any();
        let now = SeenMigration {
            uid: migration.uid(),
            generation: migration.metadata.generation,
            is_deleted: migration.metadata.deletion_timestamp.is_some(),
            is_retry_asked: migration.annotations().contains_key(RETRY_ANNOTATION),
            is_of_another,
            phase: migration.status.as_ref().and_then(|status| status.phase),
        };
        let before = self.migrations.insert(name.clone(), now.clone());
        let without_phase = |seen: SeenMigration| SeenMigration { phase: None, ..seen };
        let mut woken = Vec::new();
        // One that ends may have been in the way of others.
        if before.as_ref().is_some_and(|before| before.phase != now.phase) {
            woken.extend(self.held.iter().filter(|held| **held != name).cloned());
        }
        if before.map(without_phase) != Some(without_phase(now)) {
            woken.push(name);
        }
        woken
    }

    /// A migration is gone; returns the migrations to look at.
    pub(super) fn lose(&mut self, name: &str) -> Vec<String> {
        self.migrations.remove(name);
        self.held.remove(name);
        let mut woken: Vec<String> = self.held.iter().cloned().collect();
        woken.push(name.to_owned());
        woken
    }

    /// A CRD came, changed or went; returns the migrations to look at.
    pub(super) fn see_crd(&self, name: &str) -> Vec<String> {
        if name.ends_with(CLONES) {
            return Vec::new();
        }
        self.held.iter().cloned().collect()
    }

    /// Whether something stands in the way of this one.
    pub(super) fn hold(&mut self, name: &str, is_held: bool) {
        if is_held {
            self.held.insert(name.to_owned());
        } else {
            self.held.remove(name);
        }
    }

    /// Whether somebody deletes this one, or it is gone.
    pub(super) fn is_leaving(&self, name: &str) -> bool {
        self.migrations.get(name).is_none_or(|seen| seen.is_deleted)
    }

    /// Whether another operator carries this one out.
    pub(super) fn is_of_another(&self, name: &str) -> bool {
        self.migrations.get(name).is_some_and(|seen| seen.is_of_another)
    }

    /// All migrations.
    pub(super) fn names(&self) -> Vec<String> {
        self.migrations.keys().cloned().collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn migration(name: &str, mut metadata: Value, phase: &str) -> DatastoreMigration {
        metadata["name"] = name.into();
        metadata["uid"] = name.into();
        serde_json::from_value(json!({
            "apiVersion": "exuvia.dev/v1beta1", "kind": "DatastoreMigration",
            "metadata": metadata, "spec": {"mappings": []}, "status": {"phase": phase},
        }))
        .unwrap()
    }

    #[test]
    fn a_change_of_the_status_alone_wakes_others_and_not_itself() {
        let mut world = World::default();
        assert_eq!(
            world.see(&migration("a", json!({"generation": 1}), "Pending"), false),
            ["a"]
        );
        world.hold("b", true);
        let same = migration("a", json!({"generation": 1}), "Pending");
        assert_eq!(world.see(&same, false), Vec::<String>::new());
        let further = migration("a", json!({"generation": 1}), "Complete");
        assert_eq!(world.see(&further, false), ["b"], "it may have been in the way");
    }

    #[test]
    fn spec_deletion_and_retry_wake_it() {
        let mut world = World::default();
        for metadata in [
            json!({"generation": 1}),
            json!({"generation": 2}),
            json!({"generation": 2, "annotations": {"exuvia.dev/retry": ""}}),
            json!({"generation": 2, "deletionTimestamp": "2026-01-01T00:00:00Z"}),
        ] {
            assert_eq!(world.see(&migration("a", metadata, "Failed"), false), ["a"]);
        }
        assert!(world.is_leaving("a"));
        assert_eq!(world.lose("a"), ["a"]);
    }

    #[test]
    fn to_be_handed_over_wakes_it_and_to_be_marked_as_ours_does_not() {
        let mut world = World::default();
        let seen = migration("a", json!({}), "Migrating");
        assert_eq!(world.see(&seen, false), ["a"]);
        assert_eq!(world.see(&seen, false), Vec::<String>::new());
        assert_eq!(world.see(&seen, true), ["a"]);
        assert!(world.is_of_another("a"));
        assert_eq!(world.see(&seen, false), ["a"]);
        assert!(!world.is_of_another("a"));
    }

    #[test]
    fn a_crd_wakes_what_is_held_unless_a_migration_made_it_itself() {
        let mut world = World::default();
        world.see(&migration("a", json!({}), "Pending"), false);
        assert_eq!(world.see_crd("widgets.example.com"), Vec::<String>::new());
        world.hold("a", true);
        assert_eq!(world.see_crd("widgets.example.com"), ["a"]);
        assert_eq!(
            world.see_crd("widgets.u1.preflight.exuvia.dev"),
            Vec::<String>::new()
        );
        world.hold("a", false);
        assert_eq!(world.see_crd("widgets.example.com"), Vec::<String>::new());
    }
}
