//! What the watches have seen, cut down to what decides; and the decision: which migration is to be made, removed, worked on.

use std::collections::{BTreeMap, BTreeSet};

use exuvia_api::{MADE_BY_LABEL, MADE_BY_OPERATOR, OPERATOR_ANNOTATION, Phase, StorageMigration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::ObjectMeta;

use crate::optin::OptIn;

/// A CRD, as far as it decides. A few hundred bytes each: a cluster may have thousands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenCrd {
    pub(super) uid: String,
    pub(super) generation: i64,
    resource_version: String,
    pub(super) opted_in: bool,
}

/// A `StorageMigration`, as far as it decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenMigration {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) generation: i64,
    pub(super) resource: String,
    created: Option<Time>,
    deleting: bool,
    /// The uid of the CRD for which an operator made it; `None`: somebody else did.
    made_for: Option<String>,
    /// Which operator that was, if it says so.
    made_by: Option<String>,
    stalled: bool,
}

/// All CRDs and migrations, by name.
#[derive(Debug, Default)]
pub(super) struct World {
    crds: BTreeMap<String, SeenCrd>,
    migrations: BTreeMap<String, SeenMigration>,
}

/// What is to become of a resource's migrations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    /// A migration is to be made, owned by the CRD of this uid.
    pub(super) make: Option<String>,
    /// Made by the operator for a CRD that does not take part any more.
    pub(super) remove: Vec<SeenMigration>,
    /// The one that works.
    pub(super) active: Option<SeenMigration>,
    /// Those that do not, because that one is older.
    pub(super) duplicates: Vec<SeenMigration>,
}

impl World {
    /// Takes note of a CRD; whether that may change anything.
    pub(super) fn see_crd(&mut self, metadata: &ObjectMeta, opt_in: &OptIn) -> bool {
        let name = metadata.name.clone().unwrap_or_default();
        let none = BTreeMap::new();
        let opted_in = metadata.deletion_timestamp.is_none()
            && opt_in.takes(
                &name,
                metadata.labels.as_ref().unwrap_or(&none),
                metadata.annotations.as_ref().unwrap_or(&none),
            );
        let seen = SeenCrd {
            uid: metadata.uid.clone().unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            opted_in,
        };
        let of_it = || {
            self.migrations
                .values()
                .filter(|migration| migration.resource == name)
        };
        let concerns = opted_in || of_it().next().is_some();
        // A stalled migration is tried again at its own pace, however often others touch the CRD.
        let stalled = of_it().any(|migration| migration.stalled)
            && of_it().all(|migration| migration.stalled || migration.deleting);
        let before = self.crds.get(&name);
        let changed = match before {
            Some(before) if stalled => {
                (&before.uid, before.generation, before.opted_in)
                    != (&seen.uid, seen.generation, seen.opted_in)
            }
            before => before != Some(&seen),
        };
        self.crds.insert(name, seen);
        concerns && changed
    }

    /// A CRD is gone; whether that may change anything.
    pub(super) fn lose_crd(&mut self, name: &str) -> bool {
        self.crds.remove(name).is_some()
            && self
                .migrations
                .values()
                .any(|migration| migration.resource == name)
    }

    /// Takes note of a migration; the resources for which anything may change. Our own writes of its status change nothing.
    pub(super) fn see_migration(&mut self, migration: &StorageMigration) -> Vec<String> {
        let seen = SeenMigration::of(migration);
        let differs = |before: &SeenMigration| {
            (&before.uid, before.generation, before.deleting, &before.made_for)
                != (&seen.uid, seen.generation, seen.deleting, &seen.made_for)
        };
        if !self.migrations.get(&seen.name).is_none_or(differs) {
            self.migrations.insert(seen.name.clone(), seen);
            return Vec::new();
        }
        let resource = seen.resource.clone();
        let before = self.migrations.insert(seen.name.clone(), seen);
        // One that was made again while nobody looked may be about another resource.
        let other = before.map(|before| before.resource);
        let other = other.filter(|other| *other != resource);
        [resource].into_iter().chain(other).collect()
    }

    /// A migration is gone; the resource that it was about.
    pub(super) fn lose_migration(&mut self, name: &str) -> Option<String> {
        Some(self.migrations.remove(name)?.resource)
    }

    /// Every resource that is migrated or is to be.
    pub(super) fn resources(&self) -> BTreeSet<String> {
        let opted_in = self.crds.iter().filter(|(_, crd)| crd.opted_in);
        let migrated = self.migrations.values().map(|migration| &migration.resource);
        opted_in.map(|(name, _)| name).chain(migrated).cloned().collect()
    }

    /// A CRD by name.
    pub(super) fn crd(&self, name: &str) -> Option<&SeenCrd> {
        self.crds.get(name)
    }

    /// What is to become of a resource's migrations, as the operator of this name sees it.
    pub(super) fn decide(&self, resource: &str, operator: &str) -> Decision {
        let crd = self.crds.get(resource);
        let wanted_for = crd.filter(|crd| crd.opted_in).map(|crd| crd.uid.as_str());
        // What another operator made for a CRD that is not ours is left alone: two that remove each other's migrations would
        // never come to an end.
        let of_another = |migration: &SeenMigration| {
            let by_another = migration.made_by.as_deref().is_some_and(|by| by != operator);
            wanted_for.is_none() && crd.is_some() && migration.made_for.is_some() && by_another
        };
        let all = self.migrations.values().filter(|migration| {
            migration.resource == resource && !migration.deleting && !of_another(migration)
        });
        let (remove, mut kept): (Vec<SeenMigration>, Vec<SeenMigration>) =
            all.cloned().partition(|migration| {
                migration.made_for.is_some() && migration.made_for.as_deref() != wanted_for
            });
        kept.sort_by(|a, b| (&a.created, &a.uid).cmp(&(&b.created, &b.uid)));
        let make = wanted_for.filter(|_| kept.is_empty() && remove.is_empty());
        let mut kept = kept.into_iter();
        Decision {
            make: make.map(str::to_owned),
            remove,
            active: kept.next(),
            duplicates: kept.collect(),
        }
    }
}

impl SeenMigration {
    /// Whether an operator made it, for a CRD that has opted in.
    pub(super) fn is_made_by_operator(&self) -> bool {
        self.made_for.is_some()
    }

    fn of(migration: &StorageMigration) -> Self {
        let ours = migration
            .labels()
            .get(MADE_BY_LABEL)
            .is_some_and(|by| by == MADE_BY_OPERATOR);
        let owner = migration
            .owner_references()
            .iter()
            .find(|owner| owner.kind == "CustomResourceDefinition" && owner.name == migration.spec.resource);
        Self {
            name: migration.name_any(),
            uid: migration.uid().unwrap_or_default(),
            generation: migration.metadata.generation.unwrap_or_default(),
            resource: migration.spec.resource.clone(),
            created: migration.creation_timestamp(),
            deleting: migration.metadata.deletion_timestamp.is_some(),
            made_for: owner.filter(|_| ours).map(|owner| owner.uid.clone()),
            made_by: migration.annotations().get(OPERATOR_ANNOTATION).cloned(),
            stalled: migration
                .status
                .as_ref()
                .is_some_and(|status| status.phase == Some(Phase::Stalled)),
        }
    }
}

#[cfg(test)]
mod tests {
    use exuvia_api::{OPT_IN_LABEL, StorageMigrationSpec, StorageMigrationStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    const NAME: &str = "widgets.example.com";
    const US: &str = "exuvia-system/exuvia";

    fn crd(uid: &str, generation: i64, labelled: bool) -> ObjectMeta {
        let label = labelled.then(|| [(OPT_IN_LABEL.to_owned(), "true".to_owned())].into());
        ObjectMeta {
            name: Some(NAME.into()),
            uid: Some(uid.into()),
            generation: Some(generation),
            resource_version: Some(generation.to_string()),
            labels: label,
            ..ObjectMeta::default()
        }
    }

    fn migration(name: &str, second: i64) -> StorageMigration {
        let spec = StorageMigrationSpec {
            resource: NAME.into(),
            ..StorageMigrationSpec::default()
        };
        let mut migration = StorageMigration::new(name, spec);
        migration.metadata.uid = Some(format!("uid-of-{name}"));
        migration.metadata.creation_timestamp = Timestamp::from_second(second).ok().map(Time);
        migration
    }

    fn made(uid: &str) -> StorageMigration {
        let mut made = migration(NAME, 5);
        made.labels_mut()
            .insert(MADE_BY_LABEL.into(), MADE_BY_OPERATOR.into());
        made.metadata.owner_references = Some(vec![OwnerReference {
            kind: "CustomResourceDefinition".into(),
            name: NAME.into(),
            uid: uid.into(),
            ..OwnerReference::default()
        }]);
        made
    }

    fn names(migrations: &[SeenMigration]) -> Vec<&str> {
        migrations
            .iter()
            .map(|migration| migration.name.as_str())
            .collect()
    }

    #[test]
    fn a_labelled_crd_gets_one_and_an_unlabelled_one_does_not() {
        let mut world = World::default();
        let opt_in = OptIn::default();
        assert!(!world.see_crd(&crd("a", 1, false), &opt_in));
        assert_eq!(world.decide(NAME, US), Decision::default());
        assert!(world.see_crd(&crd("a", 1, true), &opt_in));
        assert_eq!(world.decide(NAME, US).make.as_deref(), Some("a"));
        world.see_migration(&made("a"));
        let decision = world.decide(NAME, US);
        assert_eq!(
            (decision.make, decision.active.map(|m| m.name)),
            (None, Some(NAME.into()))
        );
    }

    #[test]
    fn what_the_operator_made_goes_with_the_label_and_what_others_made_stays() {
        let mut world = World::default();
        world.see_crd(&crd("a", 1, true), &OptIn::default());
        world.see_migration(&made("a"));
        world.see_migration(&migration("by-hand", 9));
        assert!(world.see_crd(&crd("a", 1, false), &OptIn::default()));
        let decision = world.decide(NAME, US);
        assert_eq!(names(&decision.remove), [NAME]);
        assert_eq!(decision.active.map(|m| m.name).as_deref(), Some("by-hand"));
    }

    #[test]
    fn what_another_operator_made_stays_unless_the_crd_is_ours() {
        let mut world = World::default();
        let mut theirs = made("a");
        theirs
            .annotations_mut()
            .insert(OPERATOR_ANNOTATION.into(), "other/exuvia".into());
        world.see_migration(&theirs);
        world.see_crd(&crd("a", 1, false), &OptIn::default());
        assert_eq!(world.decide(NAME, US), Decision::default());
        assert_eq!(names(&world.decide(NAME, "other/exuvia").remove), [NAME]);
        world.see_crd(&crd("a", 2, true), &OptIn::default());
        assert_eq!(
            world.decide(NAME, US).active.map(|m| m.name).as_deref(),
            Some(NAME)
        );
    }

    #[test]
    fn one_made_again_for_another_resource_concerns_both() {
        let mut world = World::default();
        let mut sm = migration("m", 1);
        world.see_migration(&sm);
        sm.spec.resource = "gadgets.example.com".into();
        sm.metadata.uid = Some("another".into());
        assert_eq!(world.see_migration(&sm), ["gadgets.example.com", NAME]);
    }

    #[test]
    fn a_crd_made_again_gets_a_new_one_once_the_old_one_is_gone() {
        let mut world = World::default();
        world.see_migration(&made("a"));
        world.see_crd(&crd("b", 1, true), &OptIn::default());
        let decision = world.decide(NAME, US);
        assert_eq!((names(&decision.remove), decision.make), (vec![NAME], None));
        world.lose_migration(NAME);
        assert_eq!(world.decide(NAME, US).make.as_deref(), Some("b"));
    }

    #[test]
    fn of_two_the_older_one_works() {
        let mut world = World::default();
        world.see_migration(&migration("younger", 2));
        world.see_migration(&migration("older", 1));
        let decision = world.decide(NAME, US);
        assert_eq!(decision.active.map(|m| m.name).as_deref(), Some("older"));
        assert_eq!(names(&decision.duplicates), ["younger"]);
    }

    #[test]
    fn one_made_by_hand_is_enough_for_a_labelled_crd() {
        let mut world = World::default();
        world.see_migration(&migration("by-hand", 1));
        world.see_crd(&crd("a", 1, true), &OptIn::default());
        assert_eq!(world.decide(NAME, US).make, None);
    }

    #[test]
    fn our_own_status_writes_change_nothing() {
        let mut world = World::default();
        let mut sm = migration("m", 1);
        assert_eq!(world.see_migration(&sm), [NAME]);
        sm.status = Some(StorageMigrationStatus::default());
        assert!(world.see_migration(&sm).is_empty());
        sm.metadata.generation = Some(2);
        assert_eq!(world.see_migration(&sm), [NAME]);
    }

    #[test]
    fn a_touched_crd_counts_unless_its_migration_is_stalled() {
        let mut world = World::default();
        let opt_in = OptIn::default();
        let mut touched = crd("a", 1, true);
        world.see_crd(&touched, &opt_in);
        let mut sm = made("a");
        world.see_migration(&sm);
        touched.resource_version = Some("8".into());
        assert!(world.see_crd(&touched, &opt_in));
        sm.status = Some(StorageMigrationStatus {
            phase: Some(Phase::Stalled),
            ..StorageMigrationStatus::default()
        });
        world.see_migration(&sm);
        touched.resource_version = Some("9".into());
        assert!(!world.see_crd(&touched, &opt_in));
        touched.generation = Some(2);
        assert!(world.see_crd(&touched, &opt_in));
    }
}
