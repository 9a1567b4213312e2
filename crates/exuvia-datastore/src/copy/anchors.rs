//! Keeps dependents alive after a switch that was undone: those that name the aggregated API server's uids name their sources, too.
//!
//! The garbage collector that looks for such an owner while the target CRDs answer does not find it. It is kept from
//! deleting the dependent then, but it remembers the owner as absent and asks nobody again, however long the old backend has been
//! back. With one more owner that exists it only removes the reference that it holds to be wrong.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use exuvia_sweep::everything::{Visitor, look_at_everything};
use exuvia_sweep::{Identity, Pressure, Verdict};
use exuvia_write::{ErrorClass, Name, Redacted, redacted, resource_name};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, ObjectMeta, PartialObjectMeta};

use super::Mover;
use super::trial::all_looked_at;
use crate::Error;
use crate::kinds::{Kind, MovedKind};
use crate::lock::lock;

/// Target kind, namespace and name.
type Place = (String, Option<String>, String);

/// A source, as a dependent may name it.
#[derive(Clone, Debug)]
struct Anchor {
    namespace: Option<String>,
    reference: OwnerReference,
}

impl Anchor {
    fn new(kind: &Kind, source: &ObjectMeta) -> Self {
        Self {
            namespace: source.namespace.clone(),
            reference: OwnerReference {
                api_version: kind.resource.api_version.clone(),
                kind: kind.resource.kind.clone(),
                name: source.name.clone().unwrap_or_default(),
                uid: source.uid.clone().unwrap_or_default(),
                ..OwnerReference::default()
            },
        }
    }
}

/// The references of a dependent with its anchors: each `(alias uid, source)` is added, unless it is there.
///
/// A source that has the alias' own uid takes the place of that reference: the collector removes references by uid, and would
/// remove both.
fn anchored(
    mut references: Vec<OwnerReference>,
    anchors: &[(String, OwnerReference)],
) -> Vec<OwnerReference> {
    for (alias, source) in anchors {
        let is_source = |reference: &OwnerReference| {
            reference.uid == source.uid && reference.api_version == source.api_version
        };
        if references.iter().any(is_source) {
            continue;
        }
        let same_uid = references
            .iter_mut()
            .find(|reference| reference.uid == source.uid && *alias == source.uid);
        match same_uid {
            Some(reference) => {
                reference.api_version.clone_from(&source.api_version);
                reference.kind.clone_from(&source.kind);
                reference.name.clone_from(&source.name);
            }
            None => references.push(source.clone()),
        }
    }
    references
}

impl Mover {
    /// Gives every object that names an owner by the aggregated API server's uid its source as one more owner. That server must
    /// answer. Repeating it changes nothing.
    ///
    /// # Errors
    ///
    /// Not everything could be looked at, or some objects could not be written.
    pub(crate) async fn anchor_dependents(&self) -> Result<(), Error> {
        let mut anchors = Anchors {
            mover: self,
            renamed: None,
            found: Mutex::default(),
        };
        anchors.look().await?;
        let unknown = std::mem::take(&mut lock(&anchors.found).unknown);
        if !unknown.is_empty() {
            anchors.renamed = Some(self.sources_of(&unknown).await?);
            anchors.look().await?;
        }
        Ok(())
    }

    /// The sources of targets in these places: one look at all sources.
    async fn sources_of(&self, places: &HashSet<Place>) -> Result<HashMap<Place, Anchor>, Error> {
        let found = Mutex::new(HashMap::new());
        for kind in self.kinds.sources() {
            let report = self
                .sweep(kind)
                .run_whole(async |source: DynamicObject| {
                    // What cannot be converted was never moved under another name.
                    if let Ok(Some(output)) = self.main_output(&source).await {
                        let place = (output.kind, output.namespace, output.name);
                        if places.contains(&place) {
                            lock(&found).insert(place, Anchor::new(kind, &source.metadata));
                        }
                    }
                    Verdict::skipped()
                })
                .await?;
            all_looked_at(&report)?;
        }
        Ok(found
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

/// A look at everything.
struct Anchors<'a> {
    mover: &'a Mover,
    /// Sources whose names are not those of their targets; `None`: not looked for.
    renamed: Option<HashMap<Place, Anchor>>,
    found: Mutex<Found>,
}

#[derive(Default)]
struct Found {
    /// Owners whose sources have other names.
    unknown: HashSet<Place>,
    failed: u64,
    first: Option<Redacted>,
}

impl Anchors<'_> {
    async fn look(&self) -> Result<(), Error> {
        let looked = look_at_everything(&self.mover.client, &[], &|_| {}, self).await?;
        let found = lock(&self.found);
        let unseen = looked.unseen.first().map(|unseen| {
            redacted!(
                "dependents are not known among {}: {}",
                Name(&unseen.what),
                unseen.why.clone()
            )
        });
        match found.first.clone().or(unseen) {
            Some(first) => Err(Error::Unfinished {
                objects: found.failed.max(1),
                first,
                ambiguous: false,
            }),
            None => Ok(()),
        }
    }

    /// The source that stands behind a reference to an object that the aggregated API server shows; `None`: it names no such
    /// object, or its source is looked for.
    async fn anchor(
        &self,
        reference: &OwnerReference,
        namespace: Option<&str>,
    ) -> Result<Option<Anchor>, Redacted> {
        let mover = self.mover;
        let Some(target) = mover.target_kind(reference) else {
            return Ok(None);
        };
        let namespace_of_owner = namespace.map(str::to_owned).filter(|_| target.namespaced);
        let named = ObjectMeta {
            name: Some(reference.name.clone()),
            namespace: namespace_of_owner.clone(),
            ..ObjectMeta::default()
        };
        if target.namespaced && named.namespace.is_none() {
            return Ok(None); // nobody can find such an owner
        }
        let api: Api<PartialObjectMeta<DynamicObject>> =
            Api::all_with(mover.client.clone(), &target.resource);
        let shown = mover.writer.look(&api, &named).await;
        let shown = shown.map_err(|error| Redacted::from_error(&error))?;
        if shown.and_then(|shown| shown.uid).as_ref() != Some(&reference.uid) {
            return Ok(None); // it does not exist, and the collector is right
        }
        let becoming_it = |moved: &&MovedKind| !moved.extra && moved.target.name() == target.name();
        for moved in mover.kinds.moved.iter().filter(becoming_it) {
            let read = mover.read(&moved.source, namespace, &reference.name).await;
            let Some(source) = read.map_err(|error| Redacted::from_error(&error))? else {
                continue;
            };
            // One that no mapping takes is shown under its own name.
            let is_it = mover
                .main_output(&source)
                .await
                .ok()
                .flatten()
                .is_none_or(|output| {
                    output.kind == reference.kind
                        && output.name == reference.name
                        && output.namespace == namespace_of_owner
                });
            if is_it {
                return Ok(Some(Anchor::new(&moved.source, &source.metadata)));
            }
        }
        let place = (reference.kind.clone(), namespace_of_owner, reference.name.clone());
        let Some(renamed) = &self.renamed else {
            lock(&self.found).unknown.insert(place);
            return Ok(None);
        };
        let owner = resource_name(&reference.kind, &target.resource.group);
        match renamed.get(&place) {
            None => Err(redacted!(
                "the source of its owner {} {} is not known",
                Name(&owner),
                Name(&reference.name)
            )),
            Some(anchor) if anchor.namespace.is_some() && anchor.namespace.as_deref() != namespace => {
                Err(redacted!(
                    "the source of its owner {} {} is in another namespace",
                    Name(&owner),
                    Name(&reference.name)
                ))
            }
            Some(anchor) => Ok(Some(anchor.clone())),
        }
    }

    /// Whether its objects are sources as the aggregated API server shows them. The collector forgot these when the CRDs answered, and
    /// sees them as new ones; and that server may store in its own way what is written to them.
    fn is_shown(&self, resource: &ApiResource) -> bool {
        let targets = self.mover.kinds.targets().into_iter();
        let mut names = targets.map(|kind| (&kind.resource.group, &kind.resource.plural));
        names.any(|(group, plural)| *group == resource.group && *plural == resource.plural)
    }

    fn failed(&self, resource: &ApiResource, metadata: &ObjectMeta, why: Redacted) {
        let mut found = lock(&self.found);
        found.failed += 1;
        found.first.get_or_insert_with(|| {
            let name = Identity::from(metadata).to_string();
            redacted!(
                "the garbage collector may delete {} {} when it is let go: {}",
                Name(&resource_name(&resource.plural, &resource.group)),
                Name(&name),
                why
            )
        });
    }
}

impl Visitor for Anchors<'_> {
    async fn visit(&self, resource: &ApiResource, object: PartialObjectMeta) -> Verdict {
        let references = object.metadata.owner_references.as_deref().unwrap_or_default();
        if references.is_empty() || object.metadata.deletion_timestamp.is_some() || self.is_shown(resource) {
            return Verdict::skipped();
        }
        let mut anchors = Vec::new();
        for reference in references {
            match self.anchor(reference, object.metadata.namespace.as_deref()).await {
                Ok(None) => {}
                Ok(Some(anchor)) => anchors.push((reference.uid.clone(), anchor.reference)),
                Err(why) => {
                    self.failed(resource, &object.metadata, why);
                    return Verdict::skipped();
                }
            }
        }
        if anchors.is_empty() {
            return Verdict::skipped();
        }
        let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(self.mover.client.clone(), resource);
        let written = self
            .mover
            .writer
            .patch_with_retry(&api, &object, |dependent| {
                let references = dependent.metadata.owner_references.take().unwrap_or_default();
                dependent.metadata.owner_references = Some(anchored(references, &anchors));
            })
            .await;
        match written {
            Ok(_) => Verdict::changed(),
            Err(error) if error.class() == ErrorClass::Gone => Verdict::gone(),
            Err(error) => {
                let class = error.class();
                // A refusal may quote the object (PITFALLS B27).
                let why = Redacted::from_error(&error).only_causes(&[]);
                self.failed(resource, &object.metadata, why.clone());
                Verdict::failed(class.as_str(), why).under(Pressure::of(class))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(api_version: &str, uid: &str) -> OwnerReference {
        OwnerReference {
            api_version: api_version.to_owned(),
            kind: "Widget".to_owned(),
            name: "till".to_owned(),
            uid: uid.to_owned(),
            controller: Some(true),
            ..OwnerReference::default()
        }
    }

    fn source(uid: &str) -> OwnerReference {
        OwnerReference {
            controller: None,
            ..reference("old/v1", uid)
        }
    }

    #[test]
    fn a_dependent_gets_its_source_as_one_more_owner_once() {
        let anchors = [("alias".to_owned(), source("raw"))];
        let once = anchored(vec![reference("new/v1", "alias")], &anchors);
        assert_eq!(once, [reference("new/v1", "alias"), source("raw")]);
        assert_eq!(anchored(once.clone(), &anchors), once);
    }

    #[test]
    fn a_source_of_the_same_uid_takes_the_place_of_the_reference() {
        let anchors = [("same".to_owned(), source("same"))];
        let references = anchored(vec![reference("new/v1", "same")], &anchors);
        assert_eq!(
            references,
            [reference("old/v1", "same")],
            "it controls the dependent as before"
        );
    }
}
