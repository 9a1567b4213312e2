//! Finds out about all owners of one object, moved or not.

use exuvia_api::MissingOwner;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::OwnerKind;
use super::lookup::Lookup;
use super::rewritten::{Outcome, Owner, rewritten};
use super::successor::{Fate, Successors};

/// Knows both kinds of owners: those that are moved, and all others.
///
/// A moved source still exists while it is frozen, so the server is asked only about objects that are not moved.
pub struct Owners<'a, S> {
    /// The kinds that are moved. Where the objects were known at the target group too, under other uids, that kind as well.
    pub kinds: &'a [OwnerKind],
    /// What became of them.
    pub successors: &'a S,
    /// Asks about the others.
    pub lookup: &'a Lookup,
}

impl<S: Successors> Owners<'_, S> {
    /// What is known of the owner that a reference of an object in `namespace` names.
    pub async fn find(&self, reference: &OwnerReference, namespace: Option<&str>) -> Owner {
        if names_one_of(self.kinds, reference) {
            match self.successors.fate(reference, namespace).await {
                Ok(Fate::Moved(successor)) => return Owner::Moved(successor),
                Ok(Fate::NotYet) => return Owner::NotYet,
                Ok(Fate::NotMoved) => {}
                Err(why) => return Owner::Unknown(why),
            }
        }
        self.lookup.find(reference, namespace).await.into()
    }

    /// The references of a copy: its source is in `from`, and the copy will be in `to`. See [`rewritten`].
    pub async fn rewritten(
        &self,
        references: &[OwnerReference],
        (from, to): (Option<&str>, Option<&str>),
        policy: MissingOwner,
    ) -> Outcome {
        let mut owners = Vec::with_capacity(references.len());
        for reference in references {
            owners.push((reference, self.find(reference, from).await));
        }
        rewritten(owners, to, policy)
    }
}

/// Whether a reference names one of these kinds, at whatever version.
pub(super) fn names_one_of(kinds: &[OwnerKind], reference: &OwnerReference) -> bool {
    kinds.iter().any(|kind| kind.version_in(reference).is_some())
}
