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
