//! Keeps dependents alive after a switch that was undone: those that name the aggregated API server's uids name their sources, too.
//!
//! The garbage collector that looks for such an owner while the target CRDs answer does not find it. It is kept from
//! deleting the dependent then, but it remembers the owner as absent and asks nobody again, however long the old backend has been
//! back. With one more owner that exists it only removes the reference that it holds to be wrong.

mod named;

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use exuvia_sweep::everything::{Visitor, look_at_everything};
use exuvia_sweep::{Identity, Pressure, Verdict};
use exuvia_write::{ErrorClass, Name, Redacted, redacted, resource_name};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, ObjectMeta, PartialObjectMeta};

use self::named::{Anchor, Behind, Memory, Place, anchored};
use super::Mover;
use super::trial::all_looked_at;
use crate::Error;
use crate::kinds::MovedKind;
use crate::lock::lock;

/// How many dependents are kept until the sources of their owners are known. With more of them everything is looked at again.
const MAX_POSTPONED: usize = 1_000;

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
            memory: Memory::default(),
            found: Mutex::default(),
        };
        anchors.look().await?;
        let Found {
            unknown, postponed, ..
        } = std::mem::take(&mut *lock(&anchors.found));
        if unknown.is_empty() {
            return Ok(());
        }
        anchors.renamed = Some(self.sources_of(&unknown).await?);
        if postponed.len() > MAX_POSTPONED {
            return anchors.look().await;
        }
        for (resource, dependent) in postponed {
            let _ = anchors.visit(&resource, dependent).await; // what failed is among what was found
        }
        anchors.came_to(None)
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
    memory: Memory,
    found: Mutex<Found>,
}

#[derive(Default)]
struct Found {
    /// Owners whose sources have other names.
    unknown: HashSet<Place>,
    /// Dependents of these, one more than are kept at most.
    postponed: Vec<(ApiResource, PartialObjectMeta)>,
    failed: u64,
    first: Option<Redacted>,
}

impl Anchors<'_> {
    async fn look(&self) -> Result<(), Error> {
        let looked = look_at_everything(&self.mover.client, &[], &|_| {}, self).await?;
        self.came_to(looked.unseen.first().map(|unseen| {
            redacted!(
                "dependents are not known among {}: {}",
                Name(&unseen.what),
                unseen.why.clone()
            )
        }))
    }

    /// Whether everything was done; `unseen`: why some objects were not looked at.
    fn came_to(&self, unseen: Option<Redacted>) -> Result<(), Error> {
        let found = lock(&self.found);
        match found.first.clone().or(unseen) {
            Some(first) => Err(Error::Unfinished {
                objects: found.failed.max(1),
                first,
                ambiguous: false,
            }),
            None => Ok(()),
        }
    }

    /// What stands behind a reference. The same is not asked for twice, unless the answer was an error.
    async fn behind(&self, reference: &OwnerReference, namespace: Option<&str>) -> Result<Behind, Redacted> {
        if self.mover.target_kind(reference).is_none() {
            return Ok(Behind::Nothing); // most references: not worth remembering
        }
        let cell = self.memory.cell(reference, namespace);
        cell.get_or_try_init(|| self.ask(reference, namespace))
            .await
            .cloned()
    }

    async fn ask(&self, reference: &OwnerReference, namespace: Option<&str>) -> Result<Behind, Redacted> {
        let mover = self.mover;
        let Some(target) = mover.target_kind(reference) else {
            return Ok(Behind::Nothing);
        };
        let namespace_of_owner = namespace.map(str::to_owned).filter(|_| target.namespaced);
        let named = ObjectMeta {
            name: Some(reference.name.clone()),
            namespace: namespace_of_owner.clone(),
            ..ObjectMeta::default()
        };
        if target.namespaced && named.namespace.is_none() {
            return Ok(Behind::Nothing); // nobody can find such an owner
        }
        let api: Api<PartialObjectMeta<DynamicObject>> =
            Api::all_with(mover.client.clone(), &target.resource);
        let shown = mover.writer.look(&api, &named).await;
        let shown = shown.map_err(|error| Redacted::from_error(&error))?;
        if shown.and_then(|shown| shown.uid).as_ref() != Some(&reference.uid) {
            return Ok(Behind::Nothing); // it does not exist, and the collector is right
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
                return Ok(Behind::Source(Anchor::new(&moved.source, &source.metadata)));
            }
        }
        let place = (reference.kind.clone(), namespace_of_owner, reference.name.clone());
        Ok(Behind::Renamed(place))
    }

    /// The source of another name that was looked for.
    fn source_at(
        renamed: &HashMap<Place, Anchor>,
        place: &Place,
        reference: &OwnerReference,
        namespace: Option<&str>,
    ) -> Result<Anchor, Redacted> {
        let group = reference.api_version.split('/').next().unwrap_or_default();
        let (kind, name) = (resource_name(&reference.kind, group), &reference.name);
        match renamed.get(place) {
            None => Err(redacted!(
                "the source of its owner {} {} is not known",
                Name(&kind),
                Name(name)
            )),
            Some(anchor) if anchor.namespace.is_some() && anchor.namespace.as_deref() != namespace => {
                Err(redacted!(
                    "the source of its owner {} {} is in another namespace",
                    Name(&kind),
                    Name(name)
                ))
            }
            Some(anchor) => Ok(anchor.clone()),
        }
    }

    /// The sources that a dependent is to name, each with the uid that it names now; `None`: one is looked for first.
    async fn anchors_of(
        &self,
        metadata: &ObjectMeta,
    ) -> Result<Option<Vec<(String, OwnerReference)>>, Redacted> {
        let namespace = metadata.namespace.as_deref();
        let (mut anchors, mut is_complete) = (Vec::new(), true);
        for reference in metadata.owner_references.iter().flatten() {
            let anchor = match (self.behind(reference, namespace).await?, &self.renamed) {
                (Behind::Nothing, _) => continue,
                (Behind::Source(anchor), _) => anchor,
                (Behind::Renamed(place), Some(renamed)) => {
                    Self::source_at(renamed, &place, reference, namespace)?
                }
                (Behind::Renamed(place), None) => {
                    lock(&self.found).unknown.insert(place);
                    is_complete = false;
                    continue;
                }
            };
            anchors.push((reference.uid.clone(), anchor.reference));
        }
        Ok(is_complete.then_some(anchors))
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
        let anchors = match self.anchors_of(&object.metadata).await {
            Ok(Some(anchors)) if anchors.is_empty() => return Verdict::skipped(),
            Ok(Some(anchors)) => anchors,
            Ok(None) => {
                let mut found = lock(&self.found);
                if found.postponed.len() <= MAX_POSTPONED {
                    found.postponed.push((resource.clone(), object));
                }
                return Verdict::skipped();
            }
            Err(why) => {
                self.failed(resource, &object.metadata, why);
                return Verdict::skipped();
            }
        };
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
