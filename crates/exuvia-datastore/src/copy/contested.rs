//! Copies of ours that are not ours alone: somebody else has written to them, or another migration may take them back.

use std::collections::HashSet;

use exuvia_api::{DatastoreMigration, DatastorePhase, MIGRATION_UID_ANNOTATION};
use exuvia_sweep::{Sweep, Verdict};
use kube::Api;
use kube::api::DynamicObject;

use super::ledger::Key;
use super::marks::written_by_others;
use super::trial::{all_looked_at, key};
use super::{EDITED_ANNOTATION, Mover, annotation, content_of};
use crate::kinds::Kind;
use crate::lock::lock;
use crate::{Error, check};

/// The path of the annotation that says whose a copy is.
pub(super) fn mark() -> String {
    format!("metadata.annotations[{MIGRATION_UID_ANNOTATION:?}]")
}

impl Mover {
    /// Whether another migration made this object and may still take it back.
    pub(super) async fn is_of_another(&self, live: &DynamicObject) -> Result<bool, Error> {
        let mark = annotation(live, MIGRATION_UID_ANNOTATION).filter(|uid| *uid != self.uid);
        let Some(uid) = mark.filter(|_| !written_by_others(&live.metadata)) else {
            return Ok(false);
        };
        if let Some(takes_back) = lock(&self.others).get(uid) {
            return Ok(*takes_back);
        }
        let all: Vec<DatastoreMigration> = check::all(&Api::all(self.client.clone())).await?;
        let mut others = all
            .iter()
            .filter(|other| other.metadata.uid.as_deref() == Some(uid));
        let is_complete = |other: &DatastoreMigration| {
            let phase = other.status.as_ref().and_then(|status| status.phase);
            phase == Some(DatastorePhase::Complete)
        };
        let takes_back = others.any(|other| !is_complete(other));
        lock(&self.others).insert(uid.to_owned(), takes_back);
        Ok(takes_back)
    }

    /// A copy of ours is not ours alone any more. No policy decides about it.
    pub(super) fn contested(
        &self,
        kind: &str,
        mapping: &str,
        (target, (namespace, name)): (&Kind, (Option<&str>, &str)),
        field: String,
    ) {
        let mut found = self.found();
        found.count(kind, mapping, |progress| progress.conflicts += 1);
        found.conflict(target, namespace, name, field);
    }

    /// The same, of a copy whose source is gone.
    pub(super) fn contested_stray(&self, target: &Kind, namespace: Option<&str>, name: &str) {
        let mut moved = self.kinds.moved.iter();
        let moved = moved.find(|moved| moved.target.name() == target.name());
        let (kind, mapping) = moved.map_or(("", ""), |moved| {
            (moved.source.resource.kind.as_str(), moved.mapping_name.as_str())
        });
        self.contested(kind, mapping, (target, (namespace, name)), mark());
    }

    /// Copies of ours that somebody else has written to, and that no source becomes any more.
    pub(super) async fn find_contested_strays(&self, wanted: &HashSet<u128>) -> Result<(), Error> {
        for target in self.kinds.targets() {
            let sweep = Sweep::of(self.client.clone(), &target.through).controlled_by(&self.control);
            let report = sweep
                .run(async |object| {
                    let metadata = &object.metadata;
                    let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
                    let name = name.unwrap_or_default();
                    let is_wanted = wanted.contains(&key(&target.shown(), namespace, name));
                    if !is_wanted && self.marked_as_ours(metadata) && written_by_others(metadata) {
                        self.contested_stray(target, namespace, name);
                    }
                    Verdict::skipped()
                })
                .await?;
            all_looked_at(&report)?;
        }
        Ok(())
    }

    /// Whether a copy is as it was when it was last in step, as far as that is known.
    pub(super) fn is_as_known(&self, place: Key, live: &DynamicObject) -> bool {
        let known = lock(&self.known).get(&place).copied();
        known.is_none_or(|known| known == content_of(live))
    }

    /// Somebody has changed a copy of ours and left no trace: from now on there is one, so that nobody takes it back.
    pub(super) async fn mark_as_edited(&self, target: &Kind, live: &DynamicObject) -> Result<(), Error> {
        if !self.kinds.are_current(&self.client).await? {
            return Err(Error::Changed("the CRDs were changed"));
        }
        let mark = |object: &mut DynamicObject| {
            let annotations = object.metadata.annotations.get_or_insert_default();
            annotations.insert(EDITED_ANNOTATION.to_owned(), "true".to_owned());
        };
        self.writer.patch(&target.all(&self.client), live, mark).await?;
        Ok(())
    }
}
