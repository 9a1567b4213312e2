//! Moves ownerReferences from old versions of a kind to its storage version, one patch per dependent.

use std::sync::{Mutex, PoisonError};

use exuvia_sweep::everything::{Looked, Visitor, look_at_everything};
use exuvia_sweep::{Pressure, Verdict};
use exuvia_write::{Effect, ErrorClass, Redacted, Writer};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ApiResource, DynamicObject, ObjectMeta};
use kube::core::{PartialObjectMeta, Version};
use kube::{Api, Client};
use serde::Serialize;

use super::{Extent, OwnerKind, Unseen};
use crate::built_in_resource::resource_name;
use crate::definition::Definition;
use crate::failures::without_values;
use crate::ownership::object_name;

/// How many failures are kept by name.
const NAMED: usize = 20;

/// What became of one kind's references.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Moved {
    /// Whether nothing was written.
    pub dry_run: bool,
    /// Dependents whose references were moved; in a dry run, would be.
    pub moved: u64,
    /// Dependents that were deleted meanwhile, or moved by another client.
    pub gone: u64,
    /// Dependents whose references could not be moved.
    pub failed: u64,
    /// Some of them, with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    /// What could not be looked at: it may have more of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<Unseen>,
}

impl Moved {
    /// Whether every dependent was seen and moved.
    pub fn is_complete(&self) -> bool {
        self.failed == 0 && self.unseen.is_empty()
    }
}

/// A kind and the version that its references are to name.
struct Target {
    kind: OwnerKind,
    definition: Definition,
}

impl Target {
    /// Why nothing can be moved: the collector could not ask for an owner there either.
    fn unserved(&self) -> Option<String> {
        let storage = &self.definition.crd.storage;
        let served = self.definition.served().any(|version| version == storage);
        (!served).then(|| {
            format!("the storage version {storage} is not served, so no owner could be found at it: serve it first")
        })
    }

    /// Whether a reference names an old version of the kind: one that is older than the storage version, that the CRD does
    /// no longer has, or that is to be shed. References to a newer version stay.
    fn is_old(&self, reference: &OwnerReference) -> bool {
        let Some(version) = self.kind.version_in(reference) else {
            return false;
        };
        let priority = |version: &str| Version::parse(version).priority();
        let storage = self.definition.crd.storage.as_str();
        version != storage
            && (self.definition.version(version).is_none()
                || priority(version) < priority(storage)
                || self.definition.shed.iter().any(|shed| shed == version))
    }
}

/// Moves the references to these CRDs' objects, looking at the whole cluster once; or only counts them.
///
/// Each write replaces the whole list of a dependent's references, and is therefore made under its resourceVersion: on a
/// conflict the dependent is read again. Only `apiVersion` changes; uid, name and the rest stay what they are. The answer is
/// in the order of the definitions.
pub async fn move_to_storage(
    client: &Client,
    writer: &Writer,
    definitions: &[Definition],
    dry_run: bool,
    progress: &(dyn Fn(Extent) + Send + Sync),
) -> Result<Vec<Moved>, kube::Error> {
    let targets: Vec<Target> = definitions
        .iter()
        .map(|definition| Target {
            kind: OwnerKind {
                group: definition.group.clone(),
                kind: definition.kind.clone(),
            },
            definition: definition.clone(),
        })
        .collect();
    let mover = Mover {
        client,
        writer,
        dry_run,
        tallies: Mutex::new(vec![Moved::default(); targets.len()]),
        targets,
    };
    let Looked {
        mut unseen,
        concealed,
        ..
    } = look_at_everything(client, &[], progress, &mover).await?;
    unseen.extend(concealed);
    let mut tallies = mover.tallies.into_inner().unwrap_or_else(PoisonError::into_inner);
    for tally in &mut tallies {
        tally.unseen.clone_from(&unseen);
        tally.dry_run = dry_run;
    }
    Ok(tallies)
}

/// Moves references, and counts them.
struct Mover<'a> {
    client: &'a Client,
    writer: &'a Writer,
    targets: Vec<Target>,
    dry_run: bool,
    tallies: Mutex<Vec<Moved>>,
}

impl Visitor for Mover<'_> {
    async fn visit(&self, resource: &ApiResource, object: PartialObjectMeta) -> Verdict {
        let references = object.metadata.owner_references.as_deref().unwrap_or_default();
        let is_concerned = |target: &Target| references.iter().any(|reference| target.is_old(reference));
        let concerned: Vec<usize> = (0..self.targets.len())
            .filter(|index| is_concerned(&self.targets[*index]))
            .collect();
        if concerned.is_empty() {
            return Verdict::skipped();
        }
        let unserved = concerned.iter().find_map(|index| self.targets[*index].unserved());
        let (outcome, verdict) = match unserved {
            Some(why) => {
                let named = format!(
                    "{} {}: {why}",
                    resource_name(resource),
                    object_name(&object.metadata)
                );
                (Outcome::Failed(named), Verdict::skipped())
            }
            None if self.dry_run => (Outcome::Moved, Verdict::skipped()),
            None => move_all(self.client, self.writer, resource, &object, &self.targets).await,
        };
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        for index in concerned {
            tallies[index].add(&outcome);
        }
        verdict
    }
}

enum Outcome {
    Moved,
    Gone,
    Failed(String),
}

impl Moved {
    fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Moved => self.moved += 1,
            Outcome::Gone => self.gone += 1,
            Outcome::Failed(why) => {
                self.failed += 1;
                if self.failures.len() < NAMED {
                    self.failures.push(why.clone());
                }
            }
        }
    }
}

/// All old references of one dependent, in one patch.
async fn move_all(
    client: &Client,
    writer: &Writer,
    resource: &ApiResource,
    object: &PartialObjectMeta,
    targets: &[Target],
) -> (Outcome, Verdict) {
    let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client.clone(), resource);
    let moved = writer
        .patch_with_retry(&api, object, |dependent| {
            for reference in dependent.metadata.owner_references.iter_mut().flatten() {
                if let Some(target) = targets.iter().find(|target| target.is_old(reference)) {
                    reference.api_version = target.definition.api_version(&target.definition.crd.storage);
                }
            }
        })
        .await;
    let error = match moved {
        Ok(written) if written.effect == Effect::Unsent => return (Outcome::Gone, Verdict::skipped()),
        Ok(_) => return (Outcome::Moved, Verdict::changed()),
        Err(error) => error,
    };
    if error.class() == ErrorClass::Gone && is_gone(client, resource, &object.metadata).await {
        return (Outcome::Gone, Verdict::gone());
    }
    let class = error.class();
    let named = (
        object.metadata.namespace.as_deref(),
        object.metadata.name.as_deref().unwrap_or_default(),
    );
    let why = without_values(
        client,
        resource,
        None,
        named,
        class.as_str(),
        Redacted::from_error(&error),
    )
    .await;
    (
        Outcome::Failed(why.to_string()),
        Verdict::failed(class.as_str(), why).under(Pressure::of(class)),
    )
}

/// Whether the object itself is gone: a 404 to a write may be about its namespace (PITFALLS A33).
async fn is_gone(client: &Client, resource: &ApiResource, metadata: &ObjectMeta) -> bool {
    let api: Api<DynamicObject> = match metadata.namespace.as_deref() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    };
    let name = metadata.name.as_deref().unwrap_or_default();
    matches!(api.get_metadata(name).await, Err(error) if ErrorClass::of(&error) == ErrorClass::Gone)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    use serde_json::json;

    use super::*;

    #[test]
    fn older_gone_and_shed_versions_are_moved_and_newer_ones_and_other_kinds_are_not() {
        let crd: CustomResourceDefinition = serde_json::from_value(json!({
            "metadata": {"name": "widgets.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"kind": "Widget", "plural": "widgets"},
                "versions": [{"name": "v1beta1", "served": true, "storage": false},
                             {"name": "v1", "served": true, "storage": true},
                             {"name": "v2", "served": true, "storage": false}],
            },
        }))
        .unwrap();
        let mut target = Target {
            kind: OwnerKind {
                group: "example.com".into(),
                kind: "Widget".into(),
            },
            definition: Definition::read(&crd),
        };
        let is_old = |target: &Target, api_version: &str, kind: &str| {
            target.is_old(&OwnerReference {
                api_version: api_version.into(),
                kind: kind.into(),
                ..OwnerReference::default()
            })
        };
        for (api_version, kind, wanted) in [
            ("example.com/v1beta1", "Widget", true),
            ("example.com/v1alpha1", "Widget", true), // the CRD no longer has it
            ("example.com/v3", "Widget", true),       // nor this one
            ("example.com/v1", "Widget", false),
            ("example.com/v2", "Widget", false),
            ("example.com/v1beta1", "Gadget", false),
            ("other.com/v1beta1", "Widget", false),
            ("v1beta1", "Widget", false),
        ] {
            assert_eq!(is_old(&target, api_version, kind), wanted, "{api_version} {kind}");
        }
        target.definition.shed = vec!["v2".into()];
        assert!(is_old(&target, "example.com/v2", "Widget"));
        assert_eq!(target.unserved(), None);
        target.definition.versions[1].served = false;
        assert!(target.unserved().unwrap().contains("v1 is not served"));
    }
}
