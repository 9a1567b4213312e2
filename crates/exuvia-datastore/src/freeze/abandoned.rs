//! Locks whose migration does not exist any more: somebody took its finalizer off by hand.

use std::collections::BTreeSet;

use exuvia_api::{DATASTORE_LABEL, DatastoreMigration};
use exuvia_write::{RetryPolicy, Writer};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy as Policy, ValidatingAdmissionPolicyBinding as Binding,
};
use kube::{Api, Client, ResourceExt};

use super::error::Error;
use super::flow;
use super::objects::{delete_all, is_retired, listed};
use super::policy::{FIELD_MANAGER, MIGRATIONS, Part, Scope};

/// What a migration that is gone has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abandoned {
    /// The uid of the migration.
    pub uid: String,
    /// Its name.
    pub migration: String,
    /// Whether it is as it was before the commit: nobody can write the target either. Then the source has everything, and
    /// copies of ours may be left in the target. Otherwise objects were moved.
    pub is_before_commit: bool,
}

/// Locks of migrations that do not exist, by a look at the server for each of them. Those that outlive their migration on
/// purpose do not count.
pub async fn abandoned(client: &Client) -> Result<Vec<Abandoned>, Error> {
    let policies = listed::<Policy>(client, DATASTORE_LABEL).await?;
    let bindings = listed::<Binding>(client, DATASTORE_LABEL).await?;
    let uid = |labels: &std::collections::BTreeMap<String, String>| labels.get(DATASTORE_LABEL).cloned();
    let kept: BTreeSet<String> = policies
        .iter()
        .filter(|policy| is_retired(*policy))
        .filter_map(|policy| uid(policy.labels()))
        .collect();
    let mut found: Vec<Abandoned> = Vec::new();
    for policy in &policies {
        let (Some(uid), Some(migration)) = (uid(policy.labels()), migration_of(policy)) else {
            continue;
        };
        if kept.contains(&uid) || found.iter().any(|other| other.uid == uid) {
            continue;
        }
        let scope = Scope {
            uid: uid.clone(),
            ..Scope::default()
        };
        let target = scope.name(Part::Target);
        let is_before_commit = bindings.iter().any(|binding| binding.name_any() == target);
        found.push(Abandoned {
            uid,
            migration,
            is_before_commit,
        });
    }
    let mut gone = Vec::new();
    for abandoned in found {
        let api: Api<DatastoreMigration> = Api::all(client.clone());
        let living = RetryPolicy::default()
            .read(|| api.get_opt(&abandoned.migration))
            .await;
        let living = living.map_err(Error::read(format!("DatastoreMigration {}", abandoned.migration)))?;
        if living.and_then(|migration| migration.uid()).as_ref() != Some(&abandoned.uid) {
            gone.push(abandoned);
        }
    }
    Ok(gone)
}

/// Removes them. It may be repeated.
pub async fn release(client: &Client, writer: &Writer, abandoned: &Abandoned) -> Result<(), Error> {
    let writer = writer.acting_as(FIELD_MANAGER);
    let selector = format!("{DATASTORE_LABEL}={}", abandoned.uid);
    let bindings = listed::<Binding>(client, &selector).await?;
    delete_all(client, &writer, &bindings).await?;
    let policies = listed::<Policy>(client, &selector).await?;
    delete_all(client, &writer, &policies).await?;
    let scope = Scope {
        uid: abandoned.uid.clone(),
        ..Scope::default()
    };
    flow::remove(client, &writer, &scope).await
}

/// The policies of migrations that do not exist any more, and that refuse every write: those were removed before the commit. After it
/// sources can be rewritten, as long as nothing changes. `living` are the uids of migrations that exist.
///
/// # Errors
///
/// Policies or bindings could not be listed.
pub async fn left_frozen(client: &Client, living: &BTreeSet<String>) -> Result<Vec<Policy>, Error> {
    let policies = listed::<Policy>(client, DATASTORE_LABEL).await?;
    let bindings = listed::<Binding>(client, DATASTORE_LABEL).await?;
    Ok(frozen_without(policies, &bindings, living))
}

/// A policy without a binding refuses nothing.
fn frozen_without(mut policies: Vec<Policy>, bindings: &[Binding], living: &BTreeSet<String>) -> Vec<Policy> {
    let is_bound = |name: &str| bindings.iter().any(|binding| binding.spec.policy_name == name);
    policies.retain(|policy| {
        let Some(uid) = policy.labels().get(DATASTORE_LABEL).cloned() else {
            return false;
        };
        let is_gone = !living.contains(&uid);
        let scope = Scope {
            uid,
            ..Scope::default()
        };
        is_gone && is_bound(&policy.name_any()) && is_bound(&scope.name(Part::Target))
    });
    policies
}

/// The name of the migration that this policy of ours was made for, if it refuses writes to objects of this resource.
pub fn freezer_of(policy: &Policy, group: &str, plural: &str) -> Option<String> {
    let constraints = policy.spec.as_ref()?.match_constraints.as_ref()?;
    let has = |names: &Option<Vec<String>>, name: &str| names.iter().flatten().any(|other| other == name);
    let mut rules = constraints.resource_rules.iter().flatten();
    rules
        .any(|rule| has(&rule.api_groups, group) && has(&rule.resources, plural))
        .then(|| migration_of(policy))
        .flatten()
}

/// Every policy but the shield denies an update of its migration, which is how it is probed.
fn migration_of(policy: &Policy) -> Option<String> {
    let constraints = policy.spec.as_ref()?.match_constraints.as_ref()?;
    let mut rules = constraints.resource_rules.iter().flatten();
    let of_migrations = rules.find(|rule| {
        rule.resources
            .iter()
            .flatten()
            .any(|resource| resource == MIGRATIONS)
    })?;
    of_migrations.resource_names.as_ref()?.first().cloned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::policy::{Form, FrozenKind};
    use super::*;

    #[test]
    fn a_policy_that_outlives_its_migration_says_whose_it_was_and_what_it_freezes() {
        let scope = Scope {
            uid: "u-1".into(),
            migration: "move".into(),
            source: vec![FrozenKind {
                group: "old.dev".into(),
                plural: "widgets".into(),
                ..FrozenKind::default()
            }],
            target: vec![("new.dev".into(), "widgets".into())],
            ..Scope::default()
        };
        let (source, binding) = scope.objects(Part::Source, Form::Converged);
        assert_eq!(freezer_of(&source, "old.dev", "widgets").as_deref(), Some("move"));
        assert_eq!(freezer_of(&source, "new.dev", "widgets"), None);
        assert_eq!(freezer_of(&source, "old.dev", "gadgets"), None);
        let (target, _) = scope.objects(Part::Target, Form::Frozen);
        assert_eq!(freezer_of(&target, "new.dev", "widgets").as_deref(), Some("move"));
        let (_, of_target) = scope.objects(Part::Target, Form::Frozen);
        let frozen = |bindings: &[&Binding], living: &[&str]| {
            let living = living.iter().map(|uid| (*uid).to_owned()).collect();
            let bindings: Vec<Binding> = bindings.iter().map(|&binding| binding.clone()).collect();
            frozen_without(vec![source.clone()], &bindings, &living).len()
        };
        assert_eq!(frozen(&[&binding, &of_target], &["another"]), 1);
        assert_eq!(frozen(&[&binding, &of_target], &["u-1"]), 0, "it lives");
        assert_eq!(frozen(&[&of_target], &[]), 0, "it refuses nothing");
        assert_eq!(frozen(&[&binding], &[]), 0, "after the commit");
    }
}
