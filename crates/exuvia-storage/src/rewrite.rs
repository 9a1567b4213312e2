//! One object of the rewrite sweep: one write that re-encodes it and moves its managedFields entries.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use exuvia_sweep::{Pressure, ResourceVersion, Verdict};
use exuvia_write::{Effect, EntryId, Error, ErrorClass, Moved, Plan, Redacted, Writer, lost_owners};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DynamicObject, ObjectMeta, TypeMeta};

use crate::definition::Definition;
use crate::options::ManagedFields;
use crate::ownership::{self, Experience, Known, object_name};
use crate::probe::Prober;
use crate::verify::{is_explained, is_pure_move, patch_settled};

const WRITTEN_EACH_TIME: &str = "somebody else wrote it each time that its owners were to be moved";

/// What the rewrite sweep does to each object.
pub(crate) struct Rewriter {
    pub(crate) writer: Writer,
    /// All namespaces, at the endpoint's version.
    pub(crate) api: Api<DynamicObject>,
    /// `None` for a built-in type, which has no versions of its own to shed.
    pub(crate) definition: Option<Arc<Definition>>,
    pub(crate) managed_fields: ManagedFields,
    pub(crate) status_fallback: bool,
    /// What is above it was stored by a settled server; `None`: nothing is known to be.
    pub(crate) r0: Option<ResourceVersion>,
    /// `storedVersions` lists nothing old: a move must be ours alone, and unexplained, to contradict it.
    pub(crate) is_clean: bool,
    /// A write at another version since then explains a move.
    pub(crate) since: Option<Timestamp>,
    /// Asks whether an object of a version that was not seen before can be written, before it is.
    pub(crate) prober: Option<Prober>,
    /// What the server said of entries that were asked about.
    pub(crate) experience: Experience,
    pub(crate) found: Found,
}

/// What a rewrite sweep found, beside its tally.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Objects that moved with nothing changed in them: they were stored in another form, such as an old version.
    pub(crate) stored_otherwise: AtomicU64,
    /// Objects whose managedFields lost an owner in our write (PITFALLS A6, A21).
    pub(crate) lost_owners: AtomicU64,
    /// One of them.
    pub(crate) lost_example: OnceLock<String>,
    /// Objects of which we own a field after our write, because something sets it with every write.
    pub(crate) owned: AtomicU64,
    /// One of them.
    pub(crate) owned_example: OnceLock<String>,
    /// Objects with an old entry of which nobody can tell what it owns at the storage version.
    pub(crate) unmoved: AtomicU64,
    /// One of them, and why.
    pub(crate) unmoved_example: OnceLock<String>,
    /// The versions that those name.
    unmoved_versions: Mutex<BTreeSet<String>>,
}

impl Found {
    /// The versions that entries go on naming.
    pub(crate) fn left(&self) -> Vec<String> {
        let versions = self
            .unmoved_versions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        versions.iter().cloned().collect()
    }
}

impl Rewriter {
    pub(crate) async fn rewrite(&self, metadata: &ObjectMeta) -> Verdict {
        let plan = self.plan(entries(metadata), &Known::default());
        if !plan.left.is_empty() {
            let why = "nobody can be asked what it owns at the storage version, because its version is not served any more";
            self.note_unmoved(metadata, why);
        }
        let nothing_to_move = plan.is_empty();
        let nothing_to_do = nothing_to_move && !ownership::has_ours(metadata);
        if nothing_to_do && self.r0.is_some_and(|r0| r0.precedes(metadata)) {
            return Verdict::skipped();
        }
        if let Some(prober) = &self.prober
            && let Some(unanswered) = prober.probe(metadata).await
        {
            return Verdict::failed(ErrorClass::Transient(None).as_str(), unanswered);
        }
        let written = if nothing_to_move && self.is_clean {
            let patched = patch_settled(&self.writer, &self.api, metadata.clone(), false).await;
            patched.map(|(before, written)| {
                self.compare_bytes(&before, &written.object);
                (written.effect, written.object)
            })
        } else {
            self.rewrite_unnoticed(metadata, nothing_to_move).await
        };
        let written = match written {
            Err(error) if self.status_fallback && error.class() == ErrorClass::Denied => {
                let written = self.writer.rewrite_through_status(&self.api, metadata).await;
                written.map(|written| (written.effect, written.object))
            }
            written => written,
        };
        match written {
            Ok((effect, after)) => {
                self.compare(metadata, &after);
                self.disown(&after).await;
                match effect {
                    Effect::Changed => Verdict::changed(),
                    _ => Verdict::unchanged(),
                }
            }
            Err(error) => failed(&self.writer, &self.api, metadata, &error).await,
        }
    }

    fn plan(&self, entries: &[ManagedFieldsEntry], known: &Known) -> Plan {
        match &self.definition {
            Some(definition) => ownership::plan(definition, self.managed_fields, entries, known),
            None => Plan::default(),
        }
    }

    async fn rewrite_unnoticed(
        &self,
        metadata: &ObjectMeta,
        nothing_to_move: bool,
    ) -> Result<(Effect, ObjectMeta), Error> {
        if let Some(definition) = &self.definition
            && ownership::needs_object(definition, self.managed_fields, entries(metadata))
        {
            return self.move_by_content(definition, metadata).await;
        }
        let re_encoded = match self.definition.as_ref() {
            Some(definition) => self.re_encode_without_defaults(definition, metadata, false).await,
            None => Err(None),
        };
        let re_encoded = re_encoded.ok();
        let current = re_encoded.as_ref().unwrap_or(metadata);
        let (effect, after) = if nothing_to_move {
            let written = self.writer.rewrite(&self.api, current).await?;
            (written.effect, written.object)
        } else {
            let plan = |entries: &[_]| self.plan(entries, &Known::default());
            let moved = self.writer.move_ownership(&self.api, current, plan).await;
            self.after_move(current, moved, &Known::default()).await?
        };
        let effect = if re_encoded.is_some() {
            Effect::Changed
        } else {
            effect
        };
        Ok((effect, after))
    }

    /// Stores an object at the storage version without the defaults that only this version has, by an apply of nothing. The
    /// server shows them by itself from then on, and the next write stores them: nobody owns them, and the generation stays.
    /// A patch would store them at once and move the generation, and one that moves entries would make us their owner
    /// (PITFALLS A35, A52).
    ///
    /// `Err`: not needed, or not possible; with the error of the server, if it is one. To an object without managedFields an
    /// apply would give an owner of everything.
    async fn re_encode_without_defaults(
        &self,
        definition: &Definition,
        metadata: &ObjectMeta,
        lock: bool,
    ) -> Result<ObjectMeta, Option<Error>> {
        let endpoint = definition.endpoint().unwrap_or_default();
        if !definition.sets_defaults_that_others_lack() || entries(metadata).is_empty() {
            return Err(None);
        }
        let types = TypeMeta {
            api_version: definition.api_version(endpoint),
            kind: definition.kind.clone(),
        };
        let applied = self
            .writer
            .rewrite_by_apply(&self.api, &types, metadata, lock)
            .await;
        match applied {
            Ok(applied) if applied.effect == Effect::Changed => Ok(applied.object),
            Ok(_) => Err(None),
            Err(error) => Err(Some(error)),
        }
    }

    /// What is left to do when entries were moved, or were not.
    async fn after_move(
        &self,
        metadata: &ObjectMeta,
        moved: Result<Moved, Error>,
        known: &Known,
    ) -> Result<(Effect, ObjectMeta), Error> {
        let moved = match moved {
            // The object is rewritten anyway, and the entries hold the old version, which is told.
            Err(Error::OwnershipIgnored { .. }) => {
                let written = self.writer.rewrite(&self.api, metadata).await?;
                let wanted = self.plan(entries(metadata), known);
                if let Some(restored) = self.restore_merged(wanted, &written.object).await {
                    return Ok((Effect::Changed, restored));
                }
                let why = "the server did not take the moved entries; a value may be of a type that the storage version does \
                           not have";
                self.note_unmoved(metadata, why);
                return Ok((written.effect, written.object));
            }
            // Somebody writes it faster than we can under a lock, such as a heartbeat. Without one the server itself tries until
            // it is written: the bytes are brought over, and the entries hold the old version.
            Err(error) if error.class() == ErrorClass::Conflict => {
                self.note_unmoved(metadata, WRITTEN_EACH_TIME);
                let written = self.writer.rewrite(&self.api, metadata).await?;
                return Ok((written.effect, written.object));
            }
            moved => moved?,
        };
        match moved.effect {
            // Somebody else's write has moved the last old entry meanwhile, or none can be moved; that tells nothing of the bytes.
            Effect::Unsent => {
                let written = self.writer.rewrite(&self.api, &moved.metadata).await?;
                Ok((written.effect, written.object))
            }
            effect => {
                let restored = self.restore_merged(moved.plan, &moved.metadata).await;
                Ok((effect, restored.unwrap_or(moved.metadata)))
            }
        }
    }

    /// The server keeps ten entries of updates. Where our write sets a default, our entry is the eleventh, and the server merges
    /// the oldest two into `ancient-changes`. With the default in place, the list that was wanted is sent again: nothing is set
    /// by that, so that we get no entry.
    ///
    /// `None`: nothing was merged, or somebody else has written the object meanwhile.
    async fn restore_merged(&self, wanted: Plan, after: &ObjectMeta) -> Option<ObjectMeta> {
        if !ownership::has_ours(after) || !ownership::has_merged(after) {
            return None;
        }
        let mut wanted = wanted.without(ownership::is_ours);
        let kept: Vec<EntryId> = wanted.entries.iter().map(EntryId::of).collect();
        let now = entries(after).iter().map(EntryId::of);
        wanted.dropped = now.filter(|id| !kept.contains(id)).collect();
        // Once only: after a conflict the entries are other ones.
        let moved = self
            .writer
            .once()
            .move_ownership(&self.api, after, |_| wanted.clone())
            .await;
        moved.ok().map(|moved| moved.metadata)
    }

    /// Moves entries that mean something else at the storage version: by what the object holds, or by asking the server. Each
    /// write is locked, so that what was found out is still true when it is carried out. The server is asked before the first
    /// of them: with a new default in place it may not be able to read the object at the old version any more.
    async fn move_by_content(
        &self,
        definition: &Definition,
        metadata: &ObjectMeta,
    ) -> Result<(Effect, ObjectMeta), Error> {
        let once = self.writer.once();
        let mut round = 0;
        loop {
            round += 1;
            let object = self.writer.get(&self.api, metadata).await?;
            let known = Known::find(
                definition,
                self.managed_fields,
                &self.writer,
                &self.api,
                &object,
                &self.experience,
            )
            .await?;
            let class = if let Some(known) = &known {
                let re_encoded = self
                    .re_encode_without_defaults(definition, &object.metadata, true)
                    .await;
                match re_encoded {
                    Err(Some(error)) if error.class() == ErrorClass::Conflict => ErrorClass::Conflict,
                    re_encoded => {
                        let re_encoded = re_encoded.ok();
                        let current = re_encoded.as_ref().unwrap_or(&object.metadata);
                        let plan = |entries: &[_]| self.plan(entries, known);
                        match once.move_ownership(&self.api, current, plan).await {
                            Err(error) if error.class() == ErrorClass::Conflict => ErrorClass::Conflict,
                            moved => {
                                if let Some(why) = known.why_left() {
                                    self.note_unmoved(metadata, why);
                                }
                                let (effect, after) = self.after_move(current, moved, known).await?;
                                let effect = re_encoded.as_ref().map_or(effect, |_| Effect::Changed);
                                return Ok((effect, after));
                            }
                        }
                    }
                }
            } else {
                ErrorClass::Conflict // it was written between two looks
            };
            let Some(delay) = self.writer.retry_policy().after(round, class) else {
                // Somebody writes it all the time: the bytes are brought over, and the entries hold the old version.
                self.note_unmoved(metadata, WRITTEN_EACH_TIME);
                let written = self.writer.rewrite(&self.api, &object.metadata).await?;
                return Ok((written.effect, written.object));
            };
            tokio::time::sleep(delay).await;
        }
    }

    fn note_unmoved(&self, metadata: &ObjectMeta, why: &str) {
        self.found.unmoved.fetch_add(1, Ordering::Relaxed);
        let example = format!("{}: {}", object_name(metadata), Redacted::from_server(why));
        let _ = self.found.unmoved_example.set(example);
        if let Some(definition) = &self.definition {
            let named = entries(metadata)
                .iter()
                .filter_map(|entry| entry.api_version.as_deref());
            let old = definition.old_among(named);
            let versions = old.iter().filter_map(|named| named.rsplit('/').next());
            let mut left = self
                .found
                .unmoved_versions
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            left.extend(versions.map(str::to_owned));
        }
    }

    /// Takes our own entry off the object again, if our write has left one.
    async fn disown(&self, after: &ObjectMeta) {
        if !ownership::disown(&self.writer, &self.api, after).await {
            self.found.owned.fetch_add(1, Ordering::Relaxed);
            let _ = self.found.owned_example.set(object_name(after));
        }
    }

    /// Counts an object whose bytes contradict a clean `storedVersions`.
    fn compare_bytes(&self, before: &ObjectMeta, after: &ObjectMeta) {
        let explained = |definition: &Arc<Definition>| is_explained(definition, before, self.since);
        if is_pure_move(before, after) && !self.definition.as_ref().is_some_and(explained) {
            self.found.stored_otherwise.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Looks at what the write did beside re-encoding the object.
    fn compare(&self, before: &ObjectMeta, after: &ObjectMeta) {
        let dropped = self.managed_fields == ManagedFields::Drop;
        if !dropped && !lost_owners(entries(before), entries(after)).is_empty() {
            self.found.lost_owners.fetch_add(1, Ordering::Relaxed);
            let _ = self.found.lost_example.set(object_name(before));
        }
    }
}

fn entries(metadata: &ObjectMeta) -> &[ManagedFieldsEntry] {
    metadata.managed_fields.as_deref().unwrap_or_default()
}

/// What a failed write comes to: gone is done, a conflict never is (docs/protocol.md, "Rewrite").
pub(crate) async fn failed(
    writer: &Writer,
    api: &Api<DynamicObject>,
    metadata: &ObjectMeta,
    error: &Error,
) -> Verdict {
    let class = error.class();
    match class {
        // An object that was recreated meanwhile was stored by the server as it is now.
        _ if matches!(error, Error::Recreated { .. }) => Verdict::gone(),
        _ if is_gone(writer, api, metadata, error).await => Verdict::gone(),
        ErrorClass::Conflict => Verdict::conflict(said(error)),
        _ => Verdict::failed(class.as_str(), said(error)).under(Pressure::of(class)),
    }
}

/// Whether the object is gone: a consistent read of that very object says so. The 404 of a write may be about its
/// namespace, while etcd goes on holding the object (PITFALLS A33).
pub(crate) async fn is_gone(
    writer: &Writer,
    api: &Api<DynamicObject>,
    metadata: &ObjectMeta,
    error: &Error,
) -> bool {
    let may_be = matches!(error.class(), ErrorClass::Gone | ErrorClass::Missing);
    may_be && !error.is_unserved() && matches!(writer.look(api, metadata).await, Ok(None))
}

/// What the server said. The object and the class are told beside it: long names would not fit twice.
fn said(error: &Error) -> Redacted {
    Redacted::from_server(&match error.status() {
        Some(status) => format!("{} (http {})", status.message, status.code),
        None => error.to_string(),
    })
}
