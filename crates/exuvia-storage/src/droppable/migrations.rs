//! What `StorageMigration`s say of a resource, where there are any and they may be read.

use exuvia_api::{Phase, StorageMigration};
use exuvia_sweep::Pages;
use exuvia_write::{ErrorClass, Redacted, RetryPolicy, brief};
use kube::{Api, Client, ResourceExt};

/// A `StorageMigration`, as far as it matters for a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// Its name.
    pub name: String,
    /// The resource that it is about.
    pub resource: String,
    /// Where it is on its way.
    pub phase: Phase,
    /// Whether a pass was begun and has not come to its end.
    pub begun: bool,
}

impl Migration {
    /// Reads one.
    pub fn read(migration: &StorageMigration) -> Self {
        let status = migration.status.as_ref();
        let pass = status.and_then(|status| status.pass.as_ref());
        let is_over = pass.is_some_and(|pass| pass.patrolled || !pass.wanted);
        Self {
            name: migration.name_any(),
            resource: migration.spec.resource.clone(),
            phase: status.and_then(|status| status.phase).unwrap_or_default(),
            begun: status.is_some_and(|status| status.observed.is_some()) && !is_over,
        }
    }

    /// Whether it is at work, or stopped with work undone. One that was stopped before it began, or after its end, leaves
    /// nothing undone: it was suspended, or is a second one for its resource.
    pub fn is_under_way(&self) -> bool {
        match self.phase {
            Phase::Migrated => false,
            Phase::Suspended | Phase::Stalled => self.begun,
            _ => true,
        }
    }
}

/// All `StorageMigration`s; empty where the operator is not installed.
pub async fn storage_migrations(client: &Client) -> Result<Vec<StorageMigration>, kube::Error> {
    let api: Api<StorageMigration> = Api::all(client.clone());
    match Pages::of(&api).retry(RetryPolicy::default()).collect().await {
        Err(error) if matches!(ErrorClass::of(&error), ErrorClass::Gone | ErrorClass::Missing) => {
            Ok(Vec::new())
        }
        all => all,
    }
}

/// All of them, as far as they matter for a version; empty also where we may not list them. What is on record in the CRD
/// counts in any case.
pub(super) async fn migrations(client: &Client) -> Result<Vec<Migration>, Redacted> {
    match storage_migrations(client).await {
        Ok(all) => Ok(all.iter().map(Migration::read).collect()),
        Err(error) if ErrorClass::of(&error) == ErrorClass::Denied => Ok(Vec::new()),
        Err(error) => Err(Redacted::from_server(&brief(&error))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_that_is_suspended_holds_a_version_only_if_something_of_its_pass_is_left() {
        for (pass, held) in [
            (json!({"wanted": true}), true),
            (json!({"wanted": true, "patrolled": true}), false),
            (json!({}), false), // there was nothing to do
        ] {
            let migration: StorageMigration = serde_json::from_value(json!({
                "apiVersion": "exuvia.dev/v1beta1", "kind": "StorageMigration", "metadata": {"name": "m"},
                "spec": {"resource": "widgets.example.com", "suspend": true},
                "status": {
                    "phase": "Suspended", "pass": pass,
                    "observed": {"uid": "u", "generation": 2, "storageVersion": "v1"},
                },
            }))
            .unwrap();
            assert_eq!(Migration::read(&migration).is_under_way(), held, "{pass}");
        }
    }
}
