//! ownerReferences that name a version of a kind: found by a look at every object's metadata in the whole cluster, and moved.
//!
//! The garbage collector asks for an owner at the version that the reference names. Once that is gone it cannot, and the
//! dependent is never collected (PITFALLS A38).

mod catalog;
mod mover;

pub use catalog::Avoid;
pub use mover::{Moved, move_to_storage};

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use exuvia_sweep::{Sweep, Verdict};
use exuvia_write::{ErrorClass, Redacted, RetryPolicy};
use futures::{FutureExt, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;
use kube::api::{ApiResource, ObjectMeta};
use kube::core::PartialObjectMeta;
use serde::Serialize;

use self::catalog::Catalog;
use crate::built_in_resource::resource_name;
use crate::ownership::object_name;

/// Resources that are swept at once. Pages of metadata are cheap for the server, but some resources have many.
const AT_ONCE: usize = 4;
/// How many dependents are remembered by name, for each resource.
const EXAMPLES: usize = 3;
/// Progress is told after so many objects, and after each resource.
const TOLD_EVERY: u64 = 500;
/// How often a resource that answers 404 is looked up again: its versions may be changing.
const MAX_SEARCHES: usize = 5;
/// The pause between: an API server sees a CRD's change within a second.
const BETWEEN_SEARCHES: Duration = Duration::from_millis(500);
/// One resource of many is not worth half a minute: a resource that does not answer is named instead.
const RETRY: RetryPolicy = RetryPolicy {
    attempts: 5,
    conflicts: 5,
    base: Duration::from_millis(200),
    cap: Duration::from_secs(2),
    patience: Duration::from_secs(10),
};

/// The kind of an owner: references to it are looked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnerKind {
    /// The group.
    pub group: String,
    /// The kind.
    pub kind: String,
}

impl OwnerKind {
    /// The version at which a reference names this kind, if it does.
    fn version_in<'a>(&self, reference: &'a OwnerReference) -> Option<&'a str> {
        let (group, version) = reference.api_version.rsplit_once('/')?;
        (group == self.group && reference.kind == self.kind).then_some(version)
    }
}

/// Objects of one resource that name a version as their owner's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Dependents {
    /// How many.
    pub objects: u64,
    /// Some of them.
    pub examples: Vec<String>,
}

/// Something that could not be looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unseen {
    /// A resource, or a group-version whose resources are not known.
    pub what: String,
    /// Why.
    pub why: Redacted,
    /// Whether it is a right that is missing.
    pub forbidden: bool,
}

/// How far the look is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Resources that were looked at.
    pub done: usize,
    /// Resources that there are.
    pub resources: usize,
    /// Objects that were looked at.
    pub objects: u64,
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
        let (extent, unseen) = walk(client, avoid, progress, &finder).await?;
        Ok(Self {
            found: finder.found.into_inner().unwrap_or_else(PoisonError::into_inner),
            extent,
            unseen,
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

/// Looks at every object in the cluster.
///
/// A trait, not a closure: otherwise the walk could not be spawned as a task.
trait Visitor: Sync {
    /// Looks at one object of this resource.
    fn visit(
        &self,
        resource: &ApiResource,
        object: PartialObjectMeta,
    ) -> impl Future<Output = Verdict> + Send;
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

/// How far a walk is, and where progress goes.
struct Walk<'a, V> {
    client: &'a Client,
    visitor: &'a V,
    progress: &'a (dyn Fn(Extent) + Send + Sync),
    resources: usize,
    done: AtomicUsize,
    objects: AtomicU64,
}

/// Shows every object in the cluster to `visitor`; what could not be listed comes back by name.
async fn walk<V: Visitor>(
    client: &Client,
    avoid: &[Avoid],
    progress: &(dyn Fn(Extent) + Send + Sync),
    visitor: &V,
) -> Result<(Extent, Vec<Unseen>), kube::Error> {
    let Catalog {
        resources,
        mut unseen,
    } = Catalog::read(client, avoid).await?;
    let walk = Walk {
        client,
        visitor,
        progress,
        resources: resources.len(),
        done: AtomicUsize::new(0),
        objects: AtomicU64::new(0),
    };
    progress(walk.extent());
    let sweeps = futures::stream::iter(resources).map(|resource| walk.through(resource).boxed());
    let ended: Vec<Result<(), Unseen>> = sweeps.buffer_unordered(AT_ONCE).collect().await;
    unseen.extend(ended.into_iter().filter_map(Result::err));
    unseen.sort_by(|a, b| a.what.cmp(&b.what));
    Ok((walk.extent(), unseen))
}

impl<V: Visitor> Walk<'_, V> {
    fn extent(&self) -> Extent {
        Extent {
            done: self.done.load(Ordering::Relaxed),
            resources: self.resources,
            objects: self.objects.load(Ordering::Relaxed),
        }
    }

    async fn through(&self, resource: ApiResource) -> Result<(), Unseen> {
        let swept = self.sweep(resource).await;
        self.done.fetch_add(1, Ordering::Relaxed);
        (self.progress)(self.extent());
        swept
    }

    /// One resource. If it answers 404 it may have moved to another version since discovery, or be gone for good.
    async fn sweep(&self, mut resource: ApiResource) -> Result<(), Unseen> {
        for _ in 0..MAX_SEARCHES {
            let sweep = Sweep::of(self.client.clone(), &resource).retry(RETRY);
            let source = match sweep.run(|object| self.visit(&resource, object)).await {
                Ok(_) => return Ok(()),
                Err(exuvia_sweep::Error::List { source, .. }) => source,
                Err(error) => return Err(unlisted(&resource, Redacted::from_error(&error))),
            };
            if ErrorClass::of(&source) != ErrorClass::Gone {
                return Err(Unseen::new(resource_name(&resource), &source));
            }
            match Catalog::find(self.client, &resource.group, &resource.plural).await {
                Ok(Some(found)) => {
                    if found.version == resource.version {
                        tokio::time::sleep(BETWEEN_SEARCHES).await;
                    }
                    resource = found;
                }
                Ok(None) => return Ok(()),
                Err(error) => return Err(Unseen::new(resource_name(&resource), &error)),
            }
        }
        Err(unlisted(&resource, "it is in discovery, but answers 404"))
    }

    async fn visit(&self, resource: &ApiResource, object: PartialObjectMeta) -> Verdict {
        let verdict = self.visitor.visit(resource, object).await;
        if self
            .objects
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(TOLD_EVERY)
        {
            (self.progress)(self.extent());
        }
        verdict
    }
}

fn unlisted(resource: &ApiResource, why: impl Into<Redacted>) -> Unseen {
    Unseen {
        what: resource_name(resource),
        why: why.into(),
        forbidden: false,
    }
}
