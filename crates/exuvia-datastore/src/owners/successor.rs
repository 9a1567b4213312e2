//! What a moved object has become, and who knows it.

use std::collections::HashMap;

use exuvia_api::SOURCE_UIDS_ANNOTATION;
use exuvia_write::Redacted;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ApiResource, ObjectMeta};

/// What a moved object has become: its references name this from now on.
///
/// An `extra` output of a mapping never is: an object that one source became twice would have two owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Successor {
    /// Group and version of the target.
    pub api_version: String,
    /// The target's kind.
    pub kind: String,
    /// The target's name.
    pub name: String,
    /// The target's namespace, if it has one.
    pub namespace: Option<String>,
    /// The target's uid.
    pub uid: String,
}

impl Successor {
    /// An object that exists; `None` if the server has not given it a uid yet.
    pub fn new(resource: &ApiResource, metadata: &ObjectMeta) -> Option<Self> {
        Some(Self {
            api_version: resource.api_version.clone(),
            kind: resource.kind.clone(),
            name: metadata.name.clone()?,
            namespace: metadata.namespace.clone(),
            uid: metadata.uid.clone()?,
        })
    }

    /// Whether a reference names it, at whatever version.
    pub fn is_named_by(&self, reference: &OwnerReference) -> bool {
        let group = |api_version: &str| api_version.split_once('/').map(|(group, _)| group.to_owned());
        group(&reference.api_version) == group(&self.api_version)
            && (&reference.kind, &reference.name, &reference.uid) == (&self.kind, &self.name, &self.uid)
    }

    /// A reference to it, in the place of `old`: whether it is the controller and whether it blocks its owner's deletion is
    /// as before.
    #[must_use]
    pub fn in_place_of(&self, old: &OwnerReference) -> OwnerReference {
        OwnerReference {
            api_version: self.api_version.clone(),
            kind: self.kind.clone(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            controller: old.controller,
            block_owner_deletion: old.block_owner_deletion,
        }
    }
}

/// What became of an object of a moved kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was moved.
    Moved(Successor),
    /// It will be moved, and its target does not exist yet.
    NotYet,
    /// No mapping takes it, or it does not exist.
    NotMoved,
}

/// Knows what became of the objects of moved kinds.
///
/// A trait, not a closure: otherwise a scan that asks it could not be spawned as a task.
pub trait Successors: Sync {
    /// What became of the object that a reference names. It is asked only about references to moved kinds. The uid decides;
    /// `namespace` is that of the dependent, in which a namespaced owner is.
    ///
    /// # Errors
    ///
    /// It could not be found out.
    fn fate(
        &self,
        reference: &OwnerReference,
        namespace: Option<&str>,
    ) -> impl Future<Output = Result<Fate, Redacted>> + Send;
}

/// What became of moved objects, by each uid under which they were known: memory for those that are noted, and no others.
///
/// ```
/// use exuvia_datastore::owners::{Fate, Moves, Successor};
///
/// let mut moves = Moves::default();
/// moves.expect("source-uid");
/// assert_eq!(moves.get("source-uid"), Fate::NotYet);
/// let successor = Successor {
///     api_version: "new.example.dev/v1".into(),
///     kind: "Widget".into(),
///     name: "till".into(),
///     namespace: Some("shop".into()),
///     uid: "target-uid".into(),
/// };
/// moves.note(["source-uid", "alias-uid"], &successor);
/// assert_eq!(moves.get("alias-uid"), Fate::Moved(successor));
/// assert_eq!(moves.get("another"), Fate::NotMoved);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Moves(HashMap<String, Option<Successor>>);

impl Moves {
    /// An object of this uid will be moved.
    pub fn expect(&mut self, source_uid: impl Into<String>) {
        self.0.entry(source_uid.into()).or_default();
    }

    /// The object of these uids became `successor`. Not for `extra` outputs.
    pub fn note<'a>(&mut self, source_uids: impl IntoIterator<Item = &'a str>, successor: &Successor) {
        for uid in source_uids {
            self.0.insert(uid.to_owned(), Some(successor.clone()));
        }
    }

    /// What became of the object of this uid; [`Fate::NotMoved`] if nobody noted it.
    pub fn get(&self, uid: &str) -> Fate {
        match self.0.get(uid) {
            Some(Some(successor)) => Fate::Moved(successor.clone()),
            Some(None) => Fate::NotYet,
            None => Fate::NotMoved,
        }
    }
}

impl Successors for Moves {
    async fn fate(&self, reference: &OwnerReference, _: Option<&str>) -> Result<Fate, Redacted> {
        Ok(self.get(&reference.uid))
    }
}

/// The uids under which a target's source was known, as the target's annotation says.
pub fn source_uids(target: &ObjectMeta) -> impl Iterator<Item = &str> {
    let annotations = target.annotations.as_ref();
    let uids = annotations.and_then(|annotations| annotations.get(SOURCE_UIDS_ANNOTATION));
    uids.into_iter()
        .flat_map(|uids| uids.split(','))
        .map(str::trim)
        .filter(|uid| !uid.is_empty())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_target_tells_under_which_uids_its_source_was_known() {
        let target: ObjectMeta = serde_json::from_value(json!({
            "annotations": {SOURCE_UIDS_ANNOTATION: "first, second,"},
        }))
        .unwrap();
        assert_eq!(source_uids(&target).collect::<Vec<_>>(), ["first", "second"]);
        assert_eq!(source_uids(&ObjectMeta::default()).count(), 0);
    }

    #[test]
    fn an_object_that_was_moved_is_not_expected_again() {
        let target: ObjectMeta = serde_json::from_value(json!({"name": "till", "uid": "target"})).unwrap();
        let resource = ApiResource {
            group: "new.example.dev".into(),
            version: "v1".into(),
            api_version: "new.example.dev/v1".into(),
            kind: "Widget".into(),
            plural: "widgets".into(),
        };
        let successor = Successor::new(&resource, &target).unwrap();
        let mut moves = Moves::default();
        moves.note(["source"], &successor);
        moves.expect("source");
        assert_eq!(moves.get("source"), Fate::Moved(successor));
        assert_eq!(
            Successor::new(&resource, &ObjectMeta::default()),
            None,
            "an object without a uid cannot be named"
        );
    }
}
