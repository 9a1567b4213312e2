//! What stands behind the owners that dependents name, what is remembered of it, and what a dependent names in the end. Pure.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use tokio::sync::OnceCell;

use crate::kinds::Kind;
use crate::lock::lock;

/// How many answers about owners are kept. One has about 500 bytes.
const MAX_KEPT: usize = 10_000;

/// Target kind, namespace and name.
pub(super) type Place = (String, Option<String>, String);

/// A source, as a dependent may name it.
#[derive(Clone, Debug)]
pub(super) struct Anchor {
    pub(super) namespace: Option<String>,
    pub(super) reference: OwnerReference,
}

impl Anchor {
    pub(super) fn new(kind: &Kind, source: &ObjectMeta) -> Self {
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

/// What stands behind an owner that a dependent names.
#[derive(Clone, Debug)]
pub(super) enum Behind {
    /// The aggregated API server does not show such an object, or it is not of a target kind.
    Nothing,
    /// A source.
    Source(Anchor),
    /// A source of another name, which is to be looked for.
    Renamed(Place),
}

/// apiVersion, kind, name and uid of an owner, and the namespace of the dependent.
type Named = (String, String, String, String, Option<String>);

/// What was found out about owners: many dependents may have one owner, which is asked for once.
#[derive(Default)]
pub(super) struct Memory(Mutex<HashMap<Named, Arc<OnceCell<Behind>>>>);

impl Memory {
    /// Where the answer is, or will be: the first one asks, and others wait for it.
    pub(super) fn cell(&self, reference: &OwnerReference, namespace: Option<&str>) -> Arc<OnceCell<Behind>> {
        let named = (
            reference.api_version.clone(),
            reference.kind.clone(),
            reference.name.clone(),
            reference.uid.clone(),
            namespace.map(str::to_owned),
        );
        let mut cells = lock(&self.0);
        if cells.len() >= MAX_KEPT && !cells.contains_key(&named) {
            cells.clear();
        }
        Arc::clone(cells.entry(named).or_default())
    }
}

/// The references of a dependent with its anchors: each `(alias uid, source)` is added, unless it is there.
///
/// A source that has the alias' own uid takes the place of that reference: the collector removes references by uid, and would
/// remove both.
pub(super) fn anchored(
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
    fn an_owner_of_many_dependents_is_asked_for_once_and_few_answers_are_kept() {
        let memory = Memory::default();
        let first = memory.cell(&reference("new/v1", "a"), Some("shop"));
        assert!(first.set(Behind::Nothing).is_ok());
        let of_another_dependent = memory.cell(&reference("new/v1", "a"), Some("shop"));
        assert!(matches!(of_another_dependent.get(), Some(Behind::Nothing)));
        for other in [
            memory.cell(&reference("new/v1", "a"), Some("till")),
            memory.cell(&reference("new/v1", "b"), Some("shop")),
        ] {
            assert!(other.get().is_none());
        }
        for number in 0..2 * MAX_KEPT {
            memory.cell(&reference("new/v1", &number.to_string()), None);
            assert!(lock(&memory.0).len() <= MAX_KEPT);
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
