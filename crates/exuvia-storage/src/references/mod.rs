//! ownerReferences that name a version of a kind: found by a look at every object's metadata in the whole cluster, and moved.
//!
//! The garbage collector asks for an owner at the version that the reference names. Once that is gone it cannot, and the
//! dependent is never collected (PITFALLS A38).

mod mover;

pub use exuvia_sweep::catalog::{Avoid, Unseen};
pub use exuvia_sweep::everything::{Extent, OwnerKind};
pub use mover::{Moved, move_to_storage};

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use exuvia_sweep::Verdict;
use exuvia_sweep::everything::{Looked, Visitor, look_at_everything};
use kube::Client;
use kube::api::{ApiResource, ObjectMeta};
use kube::core::PartialObjectMeta;
use serde::Serialize;

use crate::built_in_resource::resource_name;
use crate::ownership::object_name;

/// How many dependents are remembered by name, for each resource.
const EXAMPLES: usize = 3;

/// Objects of one resource that name a version as their owner's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Dependents {
    /// How many.
    pub objects: u64,
    /// Some of them.
    pub examples: Vec<String>,
}

/// By kind and version, then by the dependents' resource.
type Found = BTreeMap<(OwnerKind, String), BTreeMap<String, Dependents>>;

/// What the look found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// By kind and version, then by the dependents' resource.
    found: Found,
    /// How much was looked at.
    pub extent: Extent,
    /// What was not.
    pub unseen: Vec<Unseen>,
    /// CRDs whose objects no list shows, although there may be some.
    pub concealed: Vec<Unseen>,
}

impl References {
    /// Looks at the metadata of everything that can be listed, once for all kinds.
    ///
    /// `avoid` names versions that are not to be asked for if there is another, since a client that asks for a version seems to
    /// use it.
    pub async fn look(
        client: &Client,
        kinds: &[OwnerKind],
        avoid: &[Avoid],
        progress: &(dyn Fn(Extent) + Send + Sync),
    ) -> Result<Self, kube::Error> {
        let finder = Finder {
            kinds,
            found: Mutex::default(),
        };
        let Looked {
            extent,
            unseen,
            concealed,
            ..
        } = look_at_everything(client, avoid, progress, &finder).await?;
        Ok(Self {
            found: finder.found.into_inner().unwrap_or_else(PoisonError::into_inner),
            extent,
            unseen,
            concealed,
        })
    }

    /// So many dependents of one resource, and nothing else.
    #[cfg(test)]
    pub(crate) fn found(kind: OwnerKind, version: &str, resource: &str, dependents: &Dependents) -> Self {
        let by_resource = BTreeMap::from([(resource.to_owned(), dependents.clone())]);
        Self {
            found: BTreeMap::from([((kind, version.to_owned()), by_resource)]),
            ..Self::default()
        }
    }

    /// Who names this version of this kind, by resource.
    pub fn at<'a>(
        &'a self,
        kind: &OwnerKind,
        version: &str,
    ) -> impl Iterator<Item = (&'a str, &'a Dependents)> {
        let by_resource = self.found.get(&(kind.clone(), version.to_owned()));
        by_resource
            .into_iter()
            .flatten()
            .map(|(resource, dependents)| (resource.as_str(), dependents))
    }
}

/// The kinds and versions that an object's references name, each once.
fn versions_named(metadata: &ObjectMeta, kinds: &[OwnerKind]) -> Vec<(OwnerKind, String)> {
    let mut named = Vec::new();
    for reference in metadata.owner_references.iter().flatten() {
        for kind in kinds {
            let key = kind
                .version_in(reference)
                .map(|version| (kind.clone(), version.to_owned()));
            named.extend(key.filter(|key| !named.contains(key)));
        }
    }
    named
}

fn note(found: &mut Found, key: (OwnerKind, String), resource: &ApiResource, metadata: &ObjectMeta) {
    let by_resource = found.entry(key).or_default();
    let dependents = by_resource.entry(resource_name(resource)).or_default();
    dependents.objects += 1;
    if dependents.examples.len() < EXAMPLES {
        dependents.examples.push(object_name(metadata));
    }
}

/// Counts who names what.
struct Finder<'a> {
    kinds: &'a [OwnerKind],
    found: Mutex<Found>,
}

impl Visitor for Finder<'_> {
    async fn visit(&self, resource: &ApiResource, object: PartialObjectMeta) -> Verdict {
        let named = versions_named(&object.metadata, self.kinds);
        if !named.is_empty() {
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            for key in named {
                note(&mut found, key, resource, &object.metadata);
            }
        }
        Verdict::skipped()
    }
}
