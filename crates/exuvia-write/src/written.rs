//! What a write gives back: the server's answer, and whether anything moved.

use kube::{Resource, api::ObjectMeta};
use serde::{Serialize, de::DeserializeOwned};

/// What a kind needs to be written: every typed object, `DynamicObject` and `PartialObjectMeta` have it.
pub trait Writable: Resource + Clone + Serialize + DeserializeOwned + Send + Sync {}

impl<K: Resource + Clone + Serialize + DeserializeOwned + Send + Sync> Writable for K {}

/// The server's answer to a write: start the next one from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written<K> {
    /// The object as the server has it now, or as it was given if nothing was sent.
    pub object: K,
    /// Whether anything moved.
    pub effect: Effect,
}

/// Whether a write moved anything, by the resourceVersion before and after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// There was nothing to change: no request was sent.
    Unsent,
    /// The server has the object at the very resourceVersion that we knew: nothing was written.
    Unchanged,
    /// The resourceVersion is another one. It was this write that moved it if the write was locked; without a lock it may
    /// have been somebody else since our last read.
    Changed,
}

impl Effect {
    /// A bounded name for metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unsent => "unsent",
            Self::Unchanged => "unchanged",
            Self::Changed => "changed",
        }
    }

    pub(crate) fn between(before: &ObjectMeta, after: &ObjectMeta) -> Self {
        match &before.resource_version {
            Some(version) if Some(version) == after.resource_version.as_ref() => Self::Unchanged,
            _ => Self::Changed,
        }
    }
}

impl<K> Written<K> {
    /// The object alone.
    pub fn into_object(self) -> K {
        self.object
    }
}
