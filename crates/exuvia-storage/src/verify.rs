//! One object of the verify sweep: patched with nothing, it must come back unchanged.

use std::sync::atomic::{AtomicU64, Ordering};

use exuvia_sweep::{ResourceVersion, Verdict};
use exuvia_write::{Effect, Error, ErrorClass, Writer, Written};
use kube::Api;
use kube::api::{DynamicObject, ObjectMeta};

use crate::rewrite::failed;

/// The share of proven objects that is patched all the same: 1 %, and at least 500 objects.
pub(crate) fn sample_share(objects: u64) -> f64 {
    #[allow(clippy::cast_precision_loss)] // a share, not a count
    let at_least = 500.0 / objects.max(1) as f64;
    at_least.clamp(0.01, 1.0)
}

/// What the verify sweep does to each object.
#[derive(Debug)]
pub(crate) struct Verifier {
    pub(crate) writer: Writer,
    pub(crate) api: Api<DynamicObject>,
    /// `Some`: a resourceVersion above it proves an object. `None`: nothing does.
    pub(crate) proof: Option<ResourceVersion>,
    pub(crate) status_fallback: bool,
    /// See [`sample_share`].
    pub(crate) sample: f64,
    pub(crate) found: Found,
}

/// Whether nothing but the resourceVersion moved, as our own patch would do whose answer was lost. Another's write mostly
/// shows in generation or managedFields.
fn is_our_own_move(before: &ObjectMeta, after: &ObjectMeta) -> bool {
    let moved = before.resource_version != after.resource_version;
    let alike = ObjectMeta {
        resource_version: before.resource_version.clone(),
        ..after.clone()
    };
    moved && alike == *before
}

/// What a verify sweep found, beside its tally.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Objects that moved once and then stood still: some server had them stored at another version.
    pub(crate) moved: AtomicU64,
    /// Objects that move with every write: a webhook stamps them, which is no failure.
    pub(crate) mutated: AtomicU64,
}

impl Verifier {
    pub(crate) async fn verify(&self, metadata: &ObjectMeta) -> Verdict {
        let is_proven = self
            .proof
            .is_some_and(|r0| ResourceVersion::of(metadata).is_some_and(|version| version > r0));
        if is_proven && !self.is_sampled() {
            return Verdict::skipped();
        }
        match self.patch_settled(metadata.clone()).await {
            Ok(patched) if patched.effect != Effect::Changed => Verdict::current(),
            Ok(patched) => match self.patch_settled(patched.object).await {
                Ok(again) if again.effect == Effect::Changed => {
                    self.found.mutated.fetch_add(1, Ordering::Relaxed);
                    Verdict::current()
                }
                Ok(_) => {
                    self.found.moved.fetch_add(1, Ordering::Relaxed);
                    Verdict::rewritten()
                }
                Err(error) => {
                    // It did move, and nobody can tell any more that a webhook stamped it: better one verification too many.
                    if error.class() != ErrorClass::Gone {
                        self.found.moved.fetch_add(1, Ordering::Relaxed);
                    }
                    failed(&error)
                }
            },
            Err(error) => failed(&error),
        }
    }

    /// Patches the object where it stands. If somebody writes in between, it is read again: else a busy object would be
    /// taken for one that a server had stored at the old version.
    async fn patch_settled(&self, mut metadata: ObjectMeta) -> Result<Written<ObjectMeta>, Error> {
        let mut attempt = 1;
        loop {
            // One try at a time: after a repetition by the writer itself, a 409 might be our own doing and hide a move.
            let error = match self.writer.once().rewrite_unmoved(&self.api, &metadata).await {
                Ok(written) => return Ok(written),
                Err(error) if self.status_fallback && error.class() == ErrorClass::Denied => {
                    return self.writer.rewrite_through_status(&self.api, &metadata).await;
                }
                Err(error) => error,
            };
            let Some(delay) = self.writer.retry_policy().after(attempt, error.class()) else {
                return Err(error);
            };
            tokio::time::sleep(delay).await;
            attempt += 1;
            // The shortest way to fresh metadata for an `Api` of all namespaces.
            let fresh = self.writer.dry_run().rewrite(&self.api, &metadata).await?.object;
            if error.class() == ErrorClass::Ambiguous && is_our_own_move(&metadata, &fresh) {
                return Ok(Written {
                    object: fresh,
                    effect: Effect::Changed,
                });
            }
            metadata = fresh;
        }
    }

    /// At random: the standard library's only source of it are the keys of its hash maps.
    fn is_sampled(&self) -> bool {
        use std::hash::{BuildHasher, RandomState};
        #[allow(clippy::cast_precision_loss)]
        let drawn = RandomState::new().hash_one(0) as f64 / u64::MAX as f64;
        drawn < self.sample
    }
}
