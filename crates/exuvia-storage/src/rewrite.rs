//! One object of the rewrite sweep: one write that re-encodes it and moves its managedFields entries.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use exuvia_sweep::{Pressure, ResourceVersion, Verdict};
use exuvia_write::{Effect, Error, ErrorClass, Writer, lost_owners};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DynamicObject, ObjectMeta};

use crate::definition::Definition;
use crate::options::ManagedFields;
use crate::ownership::{self, object_name};
use crate::probe::Prober;
use crate::redact::redact;
use crate::verify::{is_explained, is_pure_move, patch_settled};

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
    pub(crate) lost_example: std::sync::OnceLock<String>,
}

impl Rewriter {
    pub(crate) async fn rewrite(&self, metadata: &ObjectMeta) -> Verdict {
        let plan = |entries: &[_]| match &self.definition {
            Some(definition) => ownership::plan(definition, self.managed_fields, entries),
            None => exuvia_write::Plan::default(),
        };
        let entries = metadata.managed_fields.as_deref().unwrap_or_default();
        let nothing_to_move = plan(entries).is_empty();
        if nothing_to_move && self.r0.is_some_and(|r0| r0.precedes(metadata)) {
            return Verdict::skipped();
        }
        if let Some(prober) = &self.prober
            && let Some(unanswered) = prober.probe(metadata).await
        {
            return Verdict::failed(ErrorClass::Transient(None).as_str(), redact(&unanswered));
        }
        let written = if !nothing_to_move {
            self.move_and_rewrite(metadata, plan).await
        } else if self.is_clean {
            let patched = patch_settled(&self.writer, &self.api, metadata.clone(), false).await;
            patched.map(|(before, written)| {
                self.compare_bytes(&before, &written.object);
                (written.effect, written.object)
            })
        } else {
            let written = self.writer.rewrite(&self.api, metadata).await;
            written.map(|written| (written.effect, written.object))
        };
        let written = match written {
            Err(error) if self.status_fallback && error.class() == ErrorClass::Denied => {
                let written = self.writer.rewrite_through_status(&self.api, metadata).await;
                written.map(|written| (written.effect, written.object))
            }
            written => written,
        };
        match written {
            Ok((Effect::Changed, after)) => {
                self.compare(metadata, &after);
                Verdict::rewritten()
            }
            Ok(_) => Verdict::current(),
            Err(error) => failed(&self.writer, &self.api, metadata, &error).await,
        }
    }

    async fn move_and_rewrite(
        &self,
        metadata: &ObjectMeta,
        plan: impl FnMut(
            &[k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry],
        ) -> exuvia_write::Plan,
    ) -> Result<(Effect, ObjectMeta), Error> {
        let moved = self.writer.move_ownership(&self.api, metadata, plan).await?;
        match moved.effect {
            // Somebody else's write has moved the last old entry meanwhile; that tells nothing of the bytes.
            Effect::Unsent => {
                let written = self.writer.rewrite(&self.api, &moved.metadata).await?;
                Ok((written.effect, written.object))
            }
            effect => Ok((effect, moved.metadata)),
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
        let entries = |metadata: &ObjectMeta| metadata.managed_fields.clone().unwrap_or_default();
        let dropped = self.managed_fields == ManagedFields::Drop;
        if !dropped && !lost_owners(&entries(before), &entries(after)).is_empty() {
            self.found.lost_owners.fetch_add(1, Ordering::Relaxed);
            let _ = self.found.lost_example.set(object_name(before));
        }
    }
}

/// What a failed write comes to: gone is done, a conflict never is (DESIGN §3 step 5).
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

/// What the server said. The object and the class are told beside it: with long names there is no room for them twice.
fn said(error: &Error) -> String {
    redact(&match error.status() {
        Some(status) => format!("{} (http {})", status.message, status.code),
        None => error.to_string(),
    })
}
