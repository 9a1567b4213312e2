//! Objects that are not moved and are owned by moved ones: found in the whole cluster, and given their new owner.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use exuvia_sweep::catalog::Unseen;
use exuvia_sweep::everything::{Extent, Looked, Visitor, look_at_everything};
use exuvia_sweep::{Identity, Pressure, Verdict};
use exuvia_write::{ErrorClass, Redacted, Writer, redacted, resource_name};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ApiResource, DynamicObject, ObjectMeta};
use kube::core::PartialObjectMeta;
use kube::{Api, Client};

use super::OwnerKind;
use super::resolve::names_one_of;
use super::rewritten::{Fault, Replaced, replaced};
use super::successor::{Fate, Successors};

/// How many dependents are remembered by name, for each resource.
const EXAMPLES: usize = 3;
/// How many that could not be rewritten are named.
const MAX_NAMED: usize = 32;

/// Looks for objects that moved ones own, in everything that can be listed.
///
/// Copies and moved sources are not among them, though their kinds are looked at: an object of a moved kind that no mapping
/// takes may well have a moved owner.
pub struct Dependents<'a, S> {
    /// For lists, reads and writes.
    pub client: &'a Client,
    /// The kinds that are moved. Where the objects were known at the target group too, under other uids, that kind as well.
    pub kinds: &'a [OwnerKind],
    /// What became of them.
    pub successors: &'a S,
}

/// Dependents of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Examples {
    /// How many.
    pub objects: u64,
    /// Some of them.
    pub names: Vec<String>,
}

/// A dependent that still has its old owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Plural and group.
    pub resource: String,
    /// Namespace and name.
    pub object: String,
    /// Why.
    pub why: Redacted,
}

/// What a look at everything found, and what was done about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// Objects that are not moved and have references to moved ones, by resource.
    pub dependents: BTreeMap<String, Examples>,
    /// Objects with references to objects of moved kinds that are not moved. These references stay.
    pub unmoved: BTreeMap<String, Examples>,
    /// Dependents that got their new owner.
    pub rewritten: u64,
    /// Dependents that were deleted meanwhile, or had their new owner already.
    pub gone: u64,
    /// Dependents that could not get their new owner, or only for some of their references.
    pub failed: u64,
    /// The first of them, and why.
    pub left: Vec<Left>,
    /// How much was looked at.
    pub extent: Extent,
    /// What was not: it may have dependents too.
    pub unseen: Vec<Unseen>,
    /// Resources that cannot be listed, by anyone. The garbage collector cannot see these objects either.
    pub unlistable: Vec<String>,
}

impl Found {
    /// How many dependents were found.
    pub fn count(&self) -> u64 {
        self.dependents.values().map(|examples| examples.objects).sum()
    }

    /// Whether everything was looked at. If not, there may be more dependents, however many were found.
    pub fn is_complete(&self) -> bool {
        self.unseen.is_empty()
    }
}

impl<S: Successors> Dependents<'_, S> {
    /// Counts them, and names some; nothing is written. Before the copy too, when their successors do not exist yet.
    ///
    /// # Errors
    ///
    /// The list of API groups could not be read, so nothing is known at all.
    pub async fn scan(&self, progress: &(dyn Fn(Extent) + Send + Sync)) -> Result<Found, kube::Error> {
        self.look(None, progress).await
    }

    /// Gives each its new owner, see [`rewrite_one`](Self::rewrite_one). Done when another [`scan`](Self::scan) finds none: an object
    /// that was made meanwhile may be on no list of this one.
    ///
    /// # Errors
    ///
    /// The list of API groups could not be read, so nothing is known at all.
    pub async fn rewrite(
        &self,
        writer: &Writer,
        progress: &(dyn Fn(Extent) + Send + Sync),
    ) -> Result<Found, kube::Error> {
        self.look(Some(writer), progress).await
    }

    /// Gives one dependent its new owners: each reference to a moved object is replaced by one to its successor, all in one
    /// write under the dependent's resourceVersion.
    ///
    /// Not in two writes, one to add and one to remove: the garbage collector removes a reference that it cannot resolve
    /// (PITFALLS D21, D23), and after the other order there is a moment without any owner. On a 409 the dependent is read again,
    /// and what to replace is decided from that. Repeating it changes nothing.
    pub async fn rewrite_one(
        &self,
        writer: &Writer,
        resource: &ApiResource,
        object: &PartialObjectMeta,
    ) -> Rewrite {
        let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(self.client.clone(), resource);
        let mut current = object.clone();
        let mut round = 0;
        loop {
            round += 1;
            let plan = self.plan(&current.metadata).await;
            if !plan.changed {
                return held(&plan).unwrap_or(Rewrite::Unchanged);
            }
            let written = writer
                .patch(&api, &current, |dependent| {
                    dependent.metadata.owner_references = Some(plan.references.clone());
                })
                .await;
            let Err(error) = written else {
                return held(&plan).unwrap_or(Rewrite::Rewritten);
            };
            let class = error.class();
            let failed = async || Rewrite::Failed {
                class,
                why: without_values(self.client, resource, &current.metadata, &error).await,
            };
            match class {
                ErrorClass::Conflict => match writer.retry_policy().after(round, class) {
                    Some(delay) => tokio::time::sleep(delay).await,
                    None => return failed().await,
                },
                ErrorClass::Gone => {}
                _ => return failed().await,
            }
            // A 404 may also be about its namespace (PITFALLS A33), so it is looked at.
            match writer.look(&api, &current.metadata).await {
                Ok(Some(live)) if live.uid == current.metadata.uid && class == ErrorClass::Conflict => {
                    current.metadata = live;
                }
                Ok(Some(live)) if live.uid == current.metadata.uid => return failed().await,
                Ok(_) => return Rewrite::Gone,
                Err(error) => {
                    return Rewrite::Failed {
                        class: error.class(),
                        why: Redacted::from_error(&error),
                    };
                }
            }
        }
    }

    async fn look(
        &self,
        writer: Option<&Writer>,
        progress: &(dyn Fn(Extent) + Send + Sync),
    ) -> Result<Found, kube::Error> {
        let scan = Scan {
            dependents: self,
            writer,
            found: Mutex::default(),
        };
        let Looked {
            extent,
            unseen,
            unlistable,
            ..
        } = look_at_everything(self.client, &[], progress, &scan).await?;
        Ok(Found {
            extent,
            unseen,
            unlistable,
            ..scan.found.into_inner().unwrap_or_else(PoisonError::into_inner)
        })
    }

    /// What becomes of an object's references.
    async fn plan(&self, metadata: &ObjectMeta) -> Replaced {
        let references = metadata.owner_references.as_deref().unwrap_or_default();
        let namespace = metadata.namespace.as_deref();
        let mut fates = Vec::with_capacity(references.len());
        for reference in references {
            let fate = if names_one_of(self.kinds, reference) {
                Some(self.successors.fate(reference, namespace).await)
            } else {
                None
            };
            fates.push((reference, fate));
        }
        replaced(fates, namespace)
    }

    /// Whether the object is moved itself: its references are those of a frozen source, and stay.
    async fn is_moved(&self, resource: &ApiResource, metadata: &ObjectMeta) -> Result<bool, Redacted> {
        let itself = OwnerReference {
            api_version: resource.api_version.clone(),
            kind: resource.kind.clone(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            ..OwnerReference::default()
        };
        if !names_one_of(self.kinds, &itself) {
            return Ok(false);
        }
        let fate = self
            .successors
            .fate(&itself, metadata.namespace.as_deref())
            .await?;
        Ok(fate != Fate::NotMoved)
    }
}

/// Counts dependents, and rewrites them if it has a writer.
struct Scan<'a, S> {
    dependents: &'a Dependents<'a, S>,
    writer: Option<&'a Writer>,
    found: Mutex<Found>,
}

impl<S: Successors> Visitor for Scan<'_, S> {
    async fn visit(&self, resource: &ApiResource, object: PartialObjectMeta) -> Verdict {
        let dependents = self.dependents;
        let mut references = object.metadata.owner_references.iter().flatten();
        if !references.any(|reference| names_one_of(dependents.kinds, reference)) {
            return Verdict::skipped();
        }
        match dependents.is_moved(resource, &object.metadata).await {
            Ok(false) => {}
            Ok(true) => return Verdict::skipped(),
            Err(why) => {
                let why = redacted!("whether it is moved itself is not known: {}", why);
                self.left(resource, &object.metadata, why);
                return Verdict::skipped();
            }
        }
        let plan = dependents.plan(&object.metadata).await;
        self.note(resource, &object.metadata, &plan);
        let Some(writer) = self.writer.filter(|_| plan.is_dependent()) else {
            if !plan.held.is_empty() {
                let whys: Vec<Redacted> = plan.held.iter().map(Fault::message).collect();
                self.left(resource, &object.metadata, all_of(&whys));
            }
            return Verdict::skipped();
        };
        let rewrite = dependents.rewrite_one(writer, resource, &object).await;
        let verdict = match &rewrite {
            Rewrite::Rewritten => Verdict::changed(),
            Rewrite::Unchanged => Verdict::unchanged(),
            Rewrite::Gone => Verdict::gone(),
            Rewrite::Held(_) => Verdict::skipped(),
            Rewrite::Failed { class, why } => {
                Verdict::failed(class.as_str(), why).under(Pressure::of(*class))
            }
        };
        match rewrite {
            Rewrite::Rewritten => self.with(|found| found.rewritten += 1),
            Rewrite::Unchanged | Rewrite::Gone => self.with(|found| found.gone += 1),
            Rewrite::Held(whys) => self.left(resource, &object.metadata, all_of(&whys)),
            Rewrite::Failed { why, .. } => self.left(resource, &object.metadata, why),
        }
        verdict
    }
}

impl<S> Scan<'_, S> {
    fn with(&self, change: impl FnOnce(&mut Found)) {
        change(&mut self.found.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn note(&self, resource: &ApiResource, metadata: &ObjectMeta, plan: &Replaced) {
        let add = |examples: &mut BTreeMap<String, Examples>| {
            let examples = examples.entry(name(resource)).or_default();
            examples.objects += 1;
            if examples.names.len() < EXAMPLES {
                examples.names.push(Identity::from(metadata).to_string());
            }
        };
        self.with(|found| {
            if plan.is_dependent() {
                add(&mut found.dependents);
            }
            if plan.unmoved > 0 {
                add(&mut found.unmoved);
            }
        });
    }

    fn left(&self, resource: &ApiResource, metadata: &ObjectMeta, why: Redacted) {
        self.with(|found| {
            found.failed += 1;
            if found.left.len() < MAX_NAMED {
                found.left.push(Left {
                    resource: name(resource),
                    object: Identity::from(metadata).to_string(),
                    why,
                });
            }
        });
    }
}

fn name(resource: &ApiResource) -> String {
    resource_name(&resource.plural, &resource.group)
}

/// What came of one dependent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rewrite {
    /// It names its new owners, by one write.
    Rewritten,
    /// It names no moved object any more, or named none: nothing was sent.
    Unchanged,
    /// It is gone.
    Gone,
    /// It names an owner that it cannot get, or not yet; what could be replaced was.
    Held(Vec<Redacted>),
    /// It could not be written.
    Failed {
        /// What kind of failure.
        class: ErrorClass,
        /// The failure.
        why: Redacted,
    },
}

fn all_of(whys: &[Redacted]) -> Redacted {
    let mut texts = whys.iter();
    let first = texts.next().cloned().unwrap_or_default();
    texts.fold(first, |text, why| redacted!("{}; {}", text, why))
}

/// What keeps a dependent at an old owner.
fn held(plan: &Replaced) -> Option<Rewrite> {
    let mut whys: Vec<Redacted> = plan.held.iter().map(Fault::message).collect();
    if plan.not_yet > 0 {
        whys.push("an owner of it is moved, but not copied yet".into());
    }
    (!whys.is_empty()).then_some(Rewrite::Held(whys))
}

/// A refusal may quote the object (PITFALLS B27), so it is compared with it.
async fn without_values(
    client: &Client,
    resource: &ApiResource,
    metadata: &ObjectMeta,
    error: &exuvia_write::Error,
) -> Redacted {
    let said = Redacted::from_error(error);
    let api: Api<DynamicObject> = match metadata.namespace.as_deref() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    };
    match api.get(metadata.name.as_deref().unwrap_or_default()).await {
        Ok(object) => said.without_values_of(&object, &[]),
        Err(_) => said.only_causes(&[]),
    }
}
