//! Tries every object before anything is locked: what cannot be copied is named, and nothing is stored.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use exuvia_api::datastore_reason as reason;
use exuvia_sweep::Verdict;
use exuvia_write::{Name, Redacted, redacted};
use kube::Api;
use kube::api::DynamicObject;

use super::findings::Problem;
use super::successors::Planned;
use super::target::{Attempt, Place, rebased};
use super::{Findings, Mover, quota};
use crate::Error;
use crate::kinds::Kind;
use crate::lock::lock;
use crate::mapping::{Converted, Output};
use crate::owners::{Edges, Fault, Lookup, Member, Outcome, Owners};
use crate::route::Clones;

/// What a trial remembers of all objects: 16 bytes for each, and the references between them.
#[derive(Default)]
struct Trial {
    names: HashSet<u128>,
    edges: Edges,
    planned: quota::Planned,
}

impl Mover {
    /// Converts an object. What goes wrong is a problem of this object.
    pub(super) async fn convert(&self, source: &DynamicObject) -> Result<Converted, Problem> {
        let value = Arc::new(serde_json::to_value(source).unwrap_or_default());
        self.mappings
            .convert_async(value)
            .await
            .map_err(|error| Problem::new(reason::CONVERSION, error.redacted()))
    }

    /// Tries every object. `clones` tell what the targets themselves do not. `is_shadowed`: these cannot be looked at, as
    /// another API server answers for them.
    ///
    /// # Errors
    ///
    /// Not every object could be tried.
    pub async fn try_all(&self, clones: Option<&Clones>, is_shadowed: bool) -> Result<Findings, Error> {
        self.forget_findings();
        let (trial, lookup) = (Mutex::new(Trial::default()), self.lookup());
        let sources: Vec<Kind> = self.kinds.sources().into_iter().cloned().collect();
        for (done, kind) in sources.iter().enumerate() {
            self.found().at_kind(&kind.resource.kind, done);
            let report = self
                .sweep(kind)
                .run_whole(async |source: DynamicObject| {
                    let tried = self
                        .try_one(kind, &source, (clones, is_shadowed), &trial, &lookup)
                        .await;
                    self.verdict(kind, &source, tried)
                })
                .await?;
            all_looked_at(&report)?;
        }
        self.found().at_kind("", sources.len());
        let names = std::mem::take(&mut lock(&trial).names);
        if !is_shadowed {
            self.find_contested_strays(&names).await?;
        }
        let planned = std::mem::take(&mut lock(&trial).planned);
        for exceeded in quota::exceeded(&self.client, &planned).await? {
            let namespace = kube::api::ObjectMeta {
                namespace: Some(exceeded.namespace),
                ..kube::api::ObjectMeta::default()
            };
            let mut targets = self.kinds.targets().into_iter();
            if let Some(kind) = targets.find(|kind| kind.name() == exceeded.resource) {
                let problem = Problem::new(reason::QUOTA, exceeded.message);
                self.found().block(kind, &namespace, problem);
            }
        }
        let edges = std::mem::take(&mut lock(&trial).edges);
        if let Err(disorders) = edges.order() {
            for disorder in disorders {
                let problem = Problem::new(reason::OWNER_CYCLE, Redacted::ours(disorder.to_string()));
                let mut found = self.found();
                if let Some(kind) = sources.first() {
                    found.block(kind, &kube::api::ObjectMeta::default(), problem);
                }
            }
        }
        Ok(self.findings())
    }

    async fn try_one(
        &self,
        kind: &Kind,
        source: &DynamicObject,
        (clones, is_shadowed): (Option<&Clones>, bool),
        trial: &Mutex<Trial>,
        lookup: &Lookup,
    ) -> Attempt<()> {
        let converted = match self.movable(source).await {
            Ok(Some(converted)) => converted,
            Ok(None) => return Ok(Ok(())),
            Err(problem) => return Ok(Err(problem)),
        };
        for output in &converted.outputs {
            let mapping = &self.migration.spec.mappings[output.mapping];
            self.found()
                .count(&kind.resource.kind, &mapping.name, |progress| progress.total += 1);
            if let Err(problem) = self.place_is_its_own(kind, source, output, trial) {
                return Ok(Err(problem));
            }
            let owners = Owners {
                kinds: self.owner_kinds(),
                successors: &Planned(self),
                lookup,
            };
            let (from, to) = (source.metadata.namespace.as_deref(), output.namespace.as_deref());
            let references = if output.extra { &[][..] } else { &output.owners };
            let outcome = owners
                .rewritten(
                    references,
                    (from, to),
                    self.migration.spec.references.missing_owner,
                )
                .await;
            let Some(target) = self.kinds.target(&output.group, &output.kind) else {
                continue;
            };
            match outcome {
                Outcome::Held(faults) => return held_by(&faults),
                Outcome::Ready { references, .. } => {
                    if let Some(problem) = self.collected_early(target, &references) {
                        return Ok(Err(problem));
                    }
                }
                Outcome::WaitFor(_) => {}
            }
            if !is_shadowed {
                match self.place(target, output).await? {
                    Err(problem) => return Ok(Err(problem)),
                    Ok(Place::Free) => {}
                    Ok(Place::Ours(_) | Place::Equal(_)) => {
                        self.found()
                            .count(&kind.resource.kind, &mapping.name, |progress| {
                                progress.skipped += 1;
                            });
                        continue;
                    }
                    Ok(Place::Differs(field)) => {
                        self.differs(kind, target, output, field);
                        continue;
                    }
                    Ok(Place::Contested(field)) => {
                        let place = (output.namespace.as_deref(), output.name.as_str());
                        self.contested(&kind.resource.kind, &mapping.name, (target, place), field);
                        continue;
                    }
                }
            }
            if let Some(namespace) = &output.namespace {
                let place = (namespace.clone(), target.name());
                *lock(trial).planned.entry(place).or_default() += 1;
            }
            if !is_shadowed {
                let mut object = self.marked(source, output, &[]);
                // Where it is a subresource the server drops it from a create, but not before it has named fields that it
                // does not know.
                if let Some(status) = &output.status {
                    object["status"] = status.clone();
                }
                if let Err(problem) = self.rehearse(&target.all(&self.client), &object).await? {
                    return Ok(Err(problem));
                }
            }
            if let Some(clones) = clones
                && let Err(problem) = self
                    .try_at_clone(clones, is_shadowed, target, source, output)
                    .await?
            {
                return Ok(Err(problem));
            }
        }
        Ok(Ok(()))
    }

    /// Tries an object at the clone of its target: as it is created, and with its status.
    async fn try_at_clone(
        &self,
        clones: &Clones,
        is_shadowed: bool,
        target: &Kind,
        source: &DynamicObject,
        output: &Output,
    ) -> Attempt<()> {
        let resource = clones.resource(&target.resource);
        let api = Api::all_with(self.client.clone(), &resource);
        let mut object = self.marked(source, output, &[]);
        object["apiVersion"] = resource.api_version.clone().into();
        let without = Some(object.clone()).filter(|_| is_shadowed);
        let with = output.status.as_ref().map(|status| {
            object["status"] = rebased(status.clone(), source.metadata.generation, Some(1));
            object
        });
        for object in without.into_iter().chain(with) {
            if let Err(problem) = self.rehearse(&api, &object).await? {
                let said = clones.in_words_of_target(&problem.message, &target.resource);
                return Ok(Err(Problem::new(problem.reason, Redacted::ours(said))));
            }
        }
        Ok(Ok(()))
    }

    /// The converted object if it is to be moved now; `None`: no mapping takes it.
    pub(super) async fn movable(&self, source: &DynamicObject) -> Result<Option<Converted>, Problem> {
        let converted = self.convert(source).await?;
        if converted.outputs.is_empty() {
            self.found().unmoved += 1;
            return Ok(None);
        }
        // PITFALLS B19: a copy of an object that is being deleted would bring it back to life.
        if source.metadata.deletion_timestamp.is_some() {
            return Err(Problem::new(
                reason::TERMINATING,
                "it is being deleted: wait until it is gone, or remove what holds it",
            ));
        }
        if !converted.ready {
            return Err(Problem::new(
                reason::NOT_READY,
                "the mapping's `ready` says that it cannot be moved now",
            ));
        }
        Ok(Some(converted))
    }

    /// Whether no other source has the same target; also remembers who owns it.
    fn place_is_its_own(
        &self,
        kind: &Kind,
        source: &DynamicObject,
        output: &Output,
        trial: &Mutex<Trial>,
    ) -> Result<(), Problem> {
        let mut trial = lock(trial);
        if !trial.names.insert(key_of(output)) {
            let place = match &output.namespace {
                Some(namespace) => format!("{namespace}/{}", output.name),
                None => output.name.clone(),
            };
            return Err(Problem::new(
                reason::NAME_COLLISION,
                redacted!(
                    "another source also becomes {} {}: let the mapping give them different names",
                    Name(&output.kind),
                    Name(&place)
                ),
            ));
        }
        if !output.extra {
            let uids = self.uids_of(source, output);
            let uids: Vec<&str> = uids.iter().map(String::as_str).collect();
            let named = |owner: &&_| {
                self.owner_kinds()
                    .iter()
                    .any(|kind| kind.version_in(owner).is_some())
            };
            let owners = output.owners.iter().filter(named);
            let name = shown(&source.metadata);
            let member = Member {
                uids: &uids,
                wave: self.migration.spec.mappings[output.mapping].wave,
                name: &format!("{} {name}", kind.name()),
            };
            trial.edges.add(member, owners.map(|owner| owner.uid.as_str()));
        }
        Ok(())
    }

    /// A target exists and differs.
    pub(super) fn differs(&self, kind: &Kind, target: &Kind, output: &Output, field: String) {
        let mapping = &self.migration.spec.mappings[output.mapping].name;
        let mut found = self.found();
        if self.prefers_target() {
            found.count(&kind.resource.kind, mapping, |progress| progress.skipped += 1);
        } else {
            found.count(&kind.resource.kind, mapping, |progress| progress.conflicts += 1);
            found.conflict(target, output.namespace.as_deref(), &output.name, field);
        }
    }

    /// What the sweep is told of one object.
    pub(super) fn verdict(&self, kind: &Kind, source: &DynamicObject, came_of_it: Attempt<()>) -> Verdict {
        match came_of_it {
            Ok(Ok(())) => Verdict::changed(),
            Ok(Err(problem)) => {
                self.found().block(kind, &source.metadata, problem);
                Verdict::changed()
            }
            Err(Error::Write(error)) => {
                let class = error.class();
                let why = Redacted::from_error(&error).without_values_of(source, &[]);
                Verdict::failed(class.as_str(), why).under(exuvia_sweep::Pressure::of(class))
            }
            Err(error) => Verdict::failed("failed", Redacted::from_error(&error)),
        }
    }
}

/// Owners that keep a copy back. Whether one exists may just not have been found out: then it is asked again, and nothing is
/// undone because of it.
pub(super) fn held_by<T>(faults: &[Fault]) -> Attempt<T> {
    if let Some(unknown) = faults.iter().find(|fault| fault.may_pass()) {
        return Err(Error::Unfinished {
            objects: 1,
            first: unknown.message(),
            ambiguous: false,
        });
    }
    let first = faults.first();
    let message = first.map_or_else(|| "an owner is missing".into(), Fault::message);
    Ok(Err(Problem::new(reason::MISSING_OWNER, message)))
}

/// A sweep that left objects out says nothing about them.
pub(crate) fn all_looked_at(report: &exuvia_sweep::SweepReport) -> Result<(), Error> {
    let unfinished = report.tally.failed + report.tally.conflict;
    if unfinished == 0 {
        return Ok(());
    }
    let first = report.failures.first.first();
    Err(Error::Unfinished {
        objects: unfinished,
        first: first.map_or_else(|| "not known".into(), |failure| failure.message.clone()),
        ambiguous: report
            .failures
            .by_class
            .contains_key(exuvia_write::ErrorClass::Ambiguous.as_str()),
    })
}

/// Namespace and name, as people write them.
fn shown(metadata: &kube::api::ObjectMeta) -> String {
    let name = metadata.name.as_deref().unwrap_or_default();
    match metadata.namespace.as_deref() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// The place of a target as a number: 16 bytes for each object instead of its names.
pub(super) fn key_of(output: &Output) -> u128 {
    key(
        &format!("{}.{}", output.kind, output.group),
        output.namespace.as_deref(),
        &output.name,
    )
}

/// As [`key_of`], of a live object.
pub(super) fn key(kind: &str, namespace: Option<&str>, name: &str) -> u128 {
    let text = format!("{kind}\n{}\n{name}", namespace.unwrap_or_default());
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest.as_ref()[..16]);
    u128::from_be_bytes(bytes)
}
