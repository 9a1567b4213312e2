//! What became of the objects that references name: found by looking, so that memory does not grow with the number of objects.

use std::sync::PoisonError;

use exuvia_write::{ErrorClass, Redacted};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DynamicObject, ObjectMeta};

use super::Mover;
use crate::kinds::Kind;
use crate::mapping::Output;
use crate::owners::{Fate, Successor, Successors, source_uids};

/// How many successors are remembered: about 300 bytes each.
const MAX_KEPT: usize = 10_000;

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

    fn noted(&self, uid: &str) -> Option<Successor> {
        let known = self.successors.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(uid).cloned()
    }

    /// The output that takes a source's place: never an extra one.
    pub(crate) async fn main_output(&self, source: &DynamicObject) -> Result<Option<Output>, Redacted> {
        let converted = self.convert(source).await.map_err(|problem| problem.message)?;
        Ok(converted.outputs.into_iter().find(|output| !output.extra))
    }

    /// The reference names a source.
    async fn fate_of_source(
        &self,
        kind: &Kind,
        reference: &OwnerReference,
        namespace: Option<&str>,
    ) -> Result<Fate, Redacted> {
        let read = self.read(kind, namespace, &reference.name).await;
        let source = read.map_err(|error| Redacted::from_error(&error))?;
        let Some(source) = source.filter(|source| source.metadata.uid.as_ref() == Some(&reference.uid))
        else {
            return Ok(Fate::NotMoved);
        };
        let Some(output) = self.main_output(&source).await? else {
            return Ok(Fate::NotMoved);
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
        let namespace = namespace.map(str::to_owned).filter(|_| kind.namespaced);
        let key = (reference.kind.clone(), namespace, reference.name.clone());
        let expected = self.aliases.get(&key) == Some(&reference.uid);
        Ok(if expected { Fate::NotYet } else { Fate::NotMoved })
    }
}

impl Successors for Mover {
    async fn fate(&self, reference: &OwnerReference, namespace: Option<&str>) -> Result<Fate, Redacted> {
        if let Some(successor) = self.noted(&reference.uid) {
            return Ok(Fate::Moved(successor));
        }
        let group = reference
            .api_version
            .rsplit_once('/')
            .map_or("", |(group, _)| group);
        let names = |kind: &&Kind| kind.resource.group == group && kind.resource.kind == reference.kind;
        let fate = if let Some(kind) = self.kinds.sources().into_iter().find(names) {
            self.fate_of_source(kind, reference, namespace).await?
        } else if let Some(kind) = self.kinds.targets().into_iter().find(names) {
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
