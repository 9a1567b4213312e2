//! What became of the objects that references name: found by looking, so that memory does not grow with the number of objects.

use std::sync::PoisonError;

use exuvia_write::{ErrorClass, Redacted};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DynamicObject, ObjectMeta};

use super::Mover;
use crate::kinds::{Kind, MovedKind};
use crate::mapping::Output;
use crate::owners::{Fate, Successor, Successors, source_uids};

/// How many successors are remembered: about 300 bytes each.
const MAX_KEPT: usize = 10_000;

/// What will become of a source.
enum Becomes {
    /// Its successor.
    One(Box<Output>),
    /// It does not exist, or no mapping takes it.
    Nothing,
    /// Its conversion fails. It is blocked by its own name, and its dependents wait.
    Unconvertible,
}

impl Mover {
    /// Reads one object by its name; `None`: it does not exist.
    pub(crate) async fn read(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<DynamicObject>, exuvia_write::Error> {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            namespace: namespace.map(str::to_owned).filter(|_| kind.namespaced),
            ..ObjectMeta::default()
        };
        match self.writer.get(&kind.all(&self.client), &metadata).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.class() == ErrorClass::Gone => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Remembers what an object became, so that its dependents need not look.
    pub(super) fn note(&self, uids: &[String], kind: &Kind, target: &ObjectMeta) {
        let Some(successor) = Successor::new(&kind.resource, target) else {
            return;
        };
        let mut known = self.successors.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KEPT {
            known.clear();
        }
        for uid in uids {
            known.insert(uid.clone(), successor.clone());
        }
    }

    /// Forgets what objects became: a target may have been taken back and made again since, with another uid.
    pub(super) fn forget_successors(&self) {
        self.successors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    fn noted(&self, uid: &str) -> Option<Successor> {
        let known = self.successors.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(uid).cloned()
    }

    /// The output that takes a source's place: never an extra one.
    pub(crate) async fn main_output(&self, source: &DynamicObject) -> Result<Option<Output>, Redacted> {
        let converted = self.convert(source).await.map_err(|problem| problem.message)?;
        Ok(converted.outputs.into_iter().find(|output| !output.extra))
    }

    /// What will become of the source that a reference names.
    async fn becomes(
        &self,
        kind: &Kind,
        reference: &OwnerReference,
        namespace: Option<&str>,
    ) -> Result<Becomes, Redacted> {
        let read = self.read(kind, namespace, &reference.name).await;
        let source = read.map_err(|error| Redacted::from_error(&error))?;
        let Some(source) = source.filter(|source| source.metadata.uid.as_ref() == Some(&reference.uid))
        else {
            return Ok(Becomes::Nothing);
        };
        Ok(match self.main_output(&source).await {
            Ok(Some(output)) => Becomes::One(Box::new(output)),
            Ok(None) => Becomes::Nothing,
            Err(_) => Becomes::Unconvertible,
        })
    }

    /// The source kind that a reference names.
    fn source_kind(&self, reference: &OwnerReference) -> Option<&Kind> {
        self.kinds
            .sources()
            .into_iter()
            .find(|kind| is_named(kind, reference))
    }

    /// The target kind that a reference names.
    pub(super) fn target_kind(&self, reference: &OwnerReference) -> Option<&Kind> {
        let mut targets = self.kinds.targets().into_iter();
        targets.find(|kind| is_named(kind, reference))
    }

    /// Whether the reference names a target by the uid that an aggregated API server shows.
    fn is_alias(&self, kind: &Kind, reference: &OwnerReference, namespace: Option<&str>) -> bool {
        let namespace = namespace.filter(|_| kind.namespaced);
        let known = self.aliases.at(&reference.kind, namespace, &reference.name);
        known.as_ref() == Some(&reference.uid)
    }

    /// Whether the reference names a target by the uid of its source: an annotation that holds an object's metadata has its
    /// owners as the other API calls them, and as they are stored. Only a source of the same name is found.
    async fn is_source_uid(
        &self,
        kind: &Kind,
        reference: &OwnerReference,
        namespace: Option<&str>,
    ) -> Result<bool, Redacted> {
        let becoming_it = |moved: &&MovedKind| !moved.extra && moved.target.name() == kind.name();
        for moved in self.kinds.moved.iter().filter(becoming_it) {
            if let Becomes::One(output) = self.becomes(&moved.source, reference, namespace).await?
                && output.kind == reference.kind
                && output.name == reference.name
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The reference names a source.
    async fn fate_of_source(
        &self,
        kind: &Kind,
        reference: &OwnerReference,
        namespace: Option<&str>,
    ) -> Result<Fate, Redacted> {
        let output = match self.becomes(kind, reference, namespace).await? {
            Becomes::One(output) => output,
            Becomes::Nothing => return Ok(Fate::NotMoved),
            Becomes::Unconvertible => return Ok(Fate::NotYet),
        };
        let Some(target) = self.kinds.target(&output.group, &output.kind) else {
            return Ok(Fate::NotMoved);
        };
        let read = self.read(target, output.namespace.as_deref(), &output.name).await;
        let live = read.map_err(|error| Redacted::from_error(&error))?;
        let successor = live.and_then(|live| Successor::new(&target.resource, &live.metadata));
        Ok(successor.map_or(Fate::NotYet, Fate::Moved))
    }

    /// The reference names a target, perhaps by the uid that an aggregated API server showed.
    async fn fate_of_alias(
        &self,
        kind: &Kind,
        reference: &OwnerReference,
        namespace: Option<&str>,
    ) -> Result<Fate, Redacted> {
        let read = self.read(kind, namespace, &reference.name).await;
        let live = read.map_err(|error| Redacted::from_error(&error))?;
        if let Some(live) = live {
            let was_known_so = source_uids(&live.metadata).any(|uid| uid == reference.uid);
            return Ok(match Successor::new(&kind.resource, &live.metadata) {
                Some(successor) if was_known_so => Fate::Moved(successor),
                _ => Fate::NotMoved,
            });
        }
        let expected = self.is_alias(kind, reference, namespace)
            || self.is_source_uid(kind, reference, namespace).await?;
        Ok(if expected { Fate::NotYet } else { Fate::NotMoved })
    }
}

impl Successors for Mover {
    async fn fate(&self, reference: &OwnerReference, namespace: Option<&str>) -> Result<Fate, Redacted> {
        if let Some(successor) = self.noted(&reference.uid) {
            return Ok(Fate::Moved(successor));
        }
        let fate = if let Some(kind) = self.source_kind(reference) {
            self.fate_of_source(kind, reference, namespace).await?
        } else if let Some(kind) = self.target_kind(reference) {
            self.fate_of_alias(kind, reference, namespace).await?
        } else {
            Fate::NotMoved
        };
        if let Fate::Moved(successor) = &fate {
            let mut known = self.successors.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() < MAX_KEPT {
                known.insert(reference.uid.clone(), successor.clone());
            }
        }
        Ok(fate)
    }
}

fn is_named(kind: &Kind, reference: &OwnerReference) -> bool {
    let group = reference
        .api_version
        .rsplit_once('/')
        .map_or("", |(group, _)| group);
    kind.resource.group == group && kind.resource.kind == reference.kind
}

/// What will become of objects, before any of them is copied: a successor is known by its place, and has no uid yet.
pub(super) struct Planned<'a>(pub(super) &'a Mover);

impl Successors for Planned<'_> {
    async fn fate(&self, reference: &OwnerReference, namespace: Option<&str>) -> Result<Fate, Redacted> {
        let Some(kind) = self.0.source_kind(reference) else {
            return self.fate_of_target(reference, namespace).await;
        };
        let output = match self.0.becomes(kind, reference, namespace).await? {
            Becomes::One(output) => output,
            Becomes::Nothing => return Ok(Fate::NotMoved),
            Becomes::Unconvertible => return Ok(Fate::NotYet),
        };
        Ok(Fate::Moved(Successor {
            api_version: format!("{}/{}", output.group, output.version),
            kind: output.kind,
            name: output.name,
            namespace: output.namespace,
            uid: String::new(),
        }))
    }
}

impl Planned<'_> {
    /// The reference names a target, which need not exist yet.
    async fn fate_of_target(
        &self,
        reference: &OwnerReference,
        namespace: Option<&str>,
    ) -> Result<Fate, Redacted> {
        let Some(kind) = self.0.target_kind(reference) else {
            return Ok(Fate::NotMoved);
        };
        let is_moved = self.0.is_alias(kind, reference, namespace)
            || self.0.is_source_uid(kind, reference, namespace).await?;
        Ok(if is_moved {
            Fate::Moved(Successor {
                api_version: kind.resource.api_version.clone(),
                kind: kind.resource.kind.clone(),
                name: reference.name.clone(),
                namespace: namespace.map(str::to_owned).filter(|_| kind.namespaced),
                uid: String::new(),
            })
        } else {
            Fate::NotMoved
        })
    }
}
