//! What is done about targets of ours as such: they are taken back, or lose their marks.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use exuvia_api::{Blocker, MIGRATION_UID_ANNOTATION, SOURCE_RV_ANNOTATION, datastore_reason as reason};
use exuvia_sweep::{Sweep, Verdict};
use exuvia_write::{Delete, Deleted, ErrorClass, Redacted, redacted};
use kube::Api;
use kube::api::{DynamicObject, ObjectMeta, PartialObjectMeta};

use super::findings::MAX_LISTED;
use super::trial::{all_looked_at, key};
use super::{FIELD_MANAGER, Mover};
use crate::Error;
use crate::kinds::Kind;
use crate::lock::lock;

/// On a copy that somebody changed without a trace in its managed fields: who only removes fields owns none.
pub(crate) const EDITED_ANNOTATION: &str = "exuvia.dev/edited";

/// Targets that were taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TakenBack {
    /// How many are gone.
    pub(crate) deleted: u64,
    /// How many are on their way.
    pub(crate) going: u64,
    /// Targets that somebody else has written to since. They stay.
    pub(crate) changed: Vec<(Kind, Option<String>, String)>,
    /// How many somebody keeps from being deleted, and the first of them.
    pub(crate) refused: u64,
    pub(crate) refusals: Vec<Blocker>,
}

impl TakenBack {
    /// Nobody refuses it for good, and it does not work.
    pub(crate) fn failed(why: &Redacted) -> Self {
        let message = redacted!("our copies cannot be deleted: {}", why.clone()).into_string();
        Self {
            refusals: vec![Blocker {
                reason: reason::COPIES_LEFT.to_owned(),
                message,
                ..Blocker::default()
            }],
            ..Self::default()
        }
    }

    fn refuse(&mut self, kind: &Kind, metadata: &ObjectMeta, error: &exuvia_write::Error) {
        self.refused += 1;
        if self.refusals.len() < MAX_LISTED {
            // Only its metadata was read: what of the words quotes the rest is not known.
            let why = redacted!(
                "it cannot be deleted: {}",
                Redacted::from_error(error).only_causes(&[])
            );
            self.refusals.push(Blocker {
                reason: reason::COPIES_LEFT.to_owned(),
                kind: kind.shown(),
                namespace: metadata.namespace.clone().unwrap_or_default(),
                name: metadata.name.clone().unwrap_or_default(),
                message: why.into_string(),
            });
        }
    }
}

impl Mover {
    pub(super) fn marked_as_ours(&self, metadata: &ObjectMeta) -> bool {
        let annotations = metadata.annotations.as_ref();
        annotations.and_then(|all| all.get(MIGRATION_UID_ANNOTATION)) == Some(&self.uid)
    }

    /// Deletes every target of ours that nobody else has written to. With `but`, only those that are not among these places.
    ///
    /// # Errors
    ///
    /// Not every target could be looked at.
    pub(crate) async fn take_back(&self, but: Option<&HashSet<u128>>) -> Result<TakenBack, Error> {
        let taken = Mutex::new(TakenBack::default());
        for kind in self.kinds.targets() {
            let api = kind.all_metadata(&self.client);
            let sweep = Sweep::of(self.client.clone(), &kind.through).controlled_by(&self.control);
            let report = sweep
                .run(async |object| {
                    if !self.marked_as_ours(&object.metadata) {
                        return Verdict::skipped();
                    }
                    let place = key(
                        &kind.shown(),
                        object.metadata.namespace.as_deref(),
                        object.metadata.name.as_deref().unwrap_or_default(),
                    );
                    if but.is_some_and(|places| places.contains(&place)) {
                        return Verdict::skipped();
                    }
                    if written_by_others(&object.metadata) {
                        let name = object.metadata.name.unwrap_or_default();
                        let changed = (kind.clone(), object.metadata.namespace, name);
                        lock(&taken).changed.push(changed);
                        return Verdict::unchanged();
                    }
                    match self.delete(&api, &object.metadata).await {
                        Ok(Deleted::Gone) => lock(&taken).deleted += 1,
                        Ok(Deleted::Going(_)) => lock(&taken).going += 1,
                        // A policy or webhook of somebody else: to try again helps only if they change it.
                        Err(error) if matches!(error.class(), ErrorClass::Denied | ErrorClass::Invalid) => {
                            lock(&taken).refuse(kind, &object.metadata, &error);
                            return Verdict::unchanged();
                        }
                        Err(error) => return failed(&error),
                    }
                    Verdict::changed()
                })
                .await?;
            all_looked_at(&report)?;
        }
        Ok(taken
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Finalizers that came along with the copy are taken off first: their controllers would clean up what the source still uses.
    pub(super) async fn delete(
        &self,
        api: &Api<PartialObjectMeta<DynamicObject>>,
        metadata: &ObjectMeta,
    ) -> Result<Deleted<PartialObjectMeta<DynamicObject>>, exuvia_write::Error> {
        let mut object = PartialObjectMeta {
            metadata: metadata.clone(),
            types: None,
            _phantom: std::marker::PhantomData,
        };
        if metadata.finalizers.as_ref().is_some_and(|held| !held.is_empty()) {
            let written = self
                .writer
                .patch(api, &object, |object| object.metadata.finalizers = None);
            object = written.await?.object;
        }
        // PITFALLS D36: a foreign write in between is a 409, and the next try looks again.
        self.writer
            .delete(api, &object, &Delete::default().only_unchanged())
            .await
    }

    /// How many targets of ours are left.
    pub(crate) async fn own_targets(&self) -> Result<u64, Error> {
        let found = AtomicU64::new(0);
        for kind in self.kinds.targets() {
            let sweep = Sweep::of(self.client.clone(), &kind.through).controlled_by(&self.control);
            sweep
                .run(async |object| {
                    if self.marked_as_ours(&object.metadata) && !written_by_others(&object.metadata) {
                        found.fetch_add(1, Ordering::Relaxed);
                    }
                    Verdict::skipped()
                })
                .await?;
        }
        Ok(found.load(Ordering::Relaxed))
    }

    /// Takes the mark of the migration off its targets. What they were made from stays on them, for the clean-up.
    ///
    /// # Errors
    ///
    /// Not every target could be looked at.
    pub(crate) async fn drop_marks(&self) -> Result<(), Error> {
        for kind in self.kinds.targets() {
            let api = kind.all_metadata(&self.client);
            let sweep = Sweep::of(self.client.clone(), &kind.through).controlled_by(&self.control);
            let report = sweep
                .run(async |object| {
                    if !self.marked_as_ours(&object.metadata) {
                        return Verdict::skipped();
                    }
                    let object = PartialObjectMeta {
                        metadata: object.metadata,
                        types: object.types,
                        _phantom: std::marker::PhantomData,
                    };
                    let unmark = |object: &mut PartialObjectMeta<DynamicObject>| {
                        if let Some(annotations) = &mut object.metadata.annotations {
                            annotations.remove(MIGRATION_UID_ANNOTATION);
                            annotations.remove(SOURCE_RV_ANNOTATION);
                        }
                    };
                    match self.writer.patch_with_retry(&api, &object, unmark).await {
                        Ok(_) => Verdict::changed(),
                        Err(error) if error.class() == ErrorClass::Gone => Verdict::gone(),
                        Err(error) => failed(&error),
                    }
                })
                .await?;
            all_looked_at(&report)?;
        }
        Ok(())
    }
}

fn failed(error: &exuvia_write::Error) -> Verdict {
    let class = error.class();
    Verdict::failed(class.as_str(), Redacted::from_error(error)).under(exuvia_sweep::Pressure::of(class))
}

/// Whether another manager than ours has an entry: then the object is no longer ours alone.
pub(crate) fn written_by_others(metadata: &ObjectMeta) -> bool {
    let annotations = metadata.annotations.as_ref();
    if annotations.is_some_and(|all| all.contains_key(EDITED_ANNOTATION)) {
        return true;
    }
    let entries = metadata.managed_fields.iter().flatten();
    let mut managers = entries.map(|entry| entry.manager.as_deref().unwrap_or_default());
    managers.any(|manager| manager != FIELD_MANAGER)
}

impl TakenBack {
    /// The first target that somebody else has written to.
    pub(crate) fn first_changed(&self) -> Option<String> {
        let (kind, namespace, name) = self.changed.first()?;
        Some(match namespace {
            Some(namespace) => format!("{} {namespace}/{name}", kind.shown()),
            None => format!("{} {name}", kind.shown()),
        })
    }
}
