//! A look at every object's metadata in the cluster: all resources that can be listed, a few at a time.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use exuvia_write::{Redacted, RetryPolicy, redacted, resource_name};
use futures::{FutureExt, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;
use kube::api::ApiResource;
use kube::core::PartialObjectMeta;

use crate::catalog::{Avoid, BETWEEN_SEARCHES, Catalog, MAX_SEARCHES, Unseen, is_not_found};
use crate::concealed::Crds;
use crate::{Error, Sweep, SweepReport, Verdict};

/// Resources that are swept at once. Pages of metadata are cheap for the server, but some resources have many.
const AT_ONCE: usize = 4;
/// Progress is told after so many objects, and after each resource.
const TOLD_EVERY: u64 = 500;
/// One resource of many is not worth half a minute: a resource that does not answer is named instead.
const RETRY: RetryPolicy = RetryPolicy {
    attempts: 5,
    conflicts: 5,
    base: Duration::from_millis(200),
    cap: Duration::from_secs(2),
    patience: Duration::from_secs(10),
};

/// The kind of an owner: references to it are looked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerKind {
    /// The group.
    pub group: String,
    /// The kind.
    pub kind: String,
}

impl OwnerKind {
    /// The version at which a reference names this kind, if it does.
    ///
    /// ```
    /// use exuvia_sweep::everything::OwnerKind;
    /// use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
    ///
    /// let widget = OwnerKind { group: "example.dev".into(), kind: "Widget".into() };
    /// let reference = OwnerReference {
    ///     api_version: "example.dev/v1".into(),
    ///     kind: "Widget".into(),
    ///     ..OwnerReference::default()
    /// };
    /// assert_eq!(widget.version_in(&reference), Some("v1"));
    /// ```
    pub fn version_in<'a>(&self, reference: &'a OwnerReference) -> Option<&'a str> {
        let api_version = reference.api_version.as_str();
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        (group == self.group && reference.kind == self.kind).then_some(version)
    }
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

/// How much was looked at, and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Looked {
    /// How much was looked at.
    pub extent: Extent,
    /// What was not, by name. Its objects are not known, which is not the same as that it has none.
    pub unseen: Vec<Unseen>,
    /// CRDs whose objects no list shows, although there may be some: no version is served, or another server answers.
    pub concealed: Vec<Unseen>,
    /// Resources whose objects can be read and written by name, but not listed, by anyone. The garbage collector never
    /// deletes one of these objects.
    pub unlistable: Vec<String>,
}

/// Looks at every object in the cluster.
///
/// A trait, not a closure: otherwise the look could not be spawned as a task.
pub trait Visitor: Sync {
    /// Looks at one object of this resource.
    fn visit(
        &self,
        resource: &ApiResource,
        object: PartialObjectMeta,
    ) -> impl Future<Output = Verdict> + Send;
}

/// Shows the metadata of every object in the cluster to `visitor`, four resources at a time; what could not be listed comes
/// back by name.
///
/// Each stored resource is listed once, at the version that the server prefers; versions in `avoid` only if no other is served,
/// since a client that asks for a version seems to use it.
///
/// # Errors
///
/// The list of API groups could not be read, so nothing is known at all.
pub async fn look_at_everything<V: Visitor>(
    client: &Client,
    avoid: &[Avoid],
    progress: &(dyn Fn(Extent) + Send + Sync),
    visitor: &V,
) -> Result<Looked, kube::Error> {
    let crds = Box::pin(Crds::read(client)).await;
    let Catalog {
        mut resources,
        unlistable,
        mut unseen,
    } = Catalog::read(client, avoid).await?;
    let mut concealed = Box::pin(crds.concealed(client, &mut resources)).await;
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
    concealed.retain(|one| unseen.iter().all(|unseen| unseen.what != one.what));
    concealed.sort_by(|a, b| a.what.cmp(&b.what));
    Ok(Looked {
        extent: walk.extent(),
        unseen,
        concealed,
        unlistable: unlistable.iter().map(name).collect(),
    })
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
                Ok(report) => return all_read(&resource, &report),
                Err(Error::List { source, .. }) => source,
                Err(error) => return Err(unlisted(&resource, Redacted::from_error(&error))),
            };
            if !is_not_found(&source) {
                return Err(Unseen::new(name(&resource), &source));
            }
            match Catalog::find(self.client, &resource.group, &resource.plural).await {
                Ok(Some(found)) => {
                    if found.version == resource.version {
                        tokio::time::sleep(BETWEEN_SEARCHES).await;
                    }
                    resource = found;
                }
                Ok(None) => return Ok(()),
                Err(error) => return Err(Unseen::new(name(&resource), &error)),
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

/// An object that could not be read was not looked at.
fn all_read(resource: &ApiResource, report: &SweepReport) -> Result<(), Unseen> {
    let unread = |class| report.failures.by_class.get(class).copied().unwrap_or_default();
    match unread("unreadable") + unread("panic") {
        0 => Ok(()),
        some => Err(unlisted(
            resource,
            redacted!("{} of its objects could not be read", some),
        )),
    }
}

fn unlisted(resource: &ApiResource, why: impl Into<Redacted>) -> Unseen {
    Unseen {
        what: name(resource),
        why: why.into(),
        forbidden: false,
    }
}

fn name(resource: &ApiResource) -> String {
    resource_name(&resource.plural, &resource.group)
}
