//! One object of the verify sweep: an empty patch must come back unchanged; if the object moves, this finds out why.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use exuvia_sweep::{Outcome, ResourceVersion, Verdict};
use exuvia_write::{Effect, Error, ErrorClass, Writer, Written};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DynamicObject, ObjectMeta};

use crate::definition::Definition;
use crate::ownership;
use crate::report::VerifiedBy;
use crate::rewrite::failed;

/// The share of proven objects that is patched as well: 1 %, and about 100 objects at least.
pub(crate) fn sample_share(objects: u64) -> f64 {
    #[allow(clippy::cast_precision_loss)] // a share, not a count
    let at_least = 100.0 / objects.max(1) as f64;
    at_least.clamp(0.01, 1.0)
}

/// What the verify sweep does to each object.
#[derive(Debug)]
pub(crate) struct Verifier {
    pub(crate) writer: Writer,
    pub(crate) api: Api<DynamicObject>,
    /// `None` for a built-in type, whose objects a server may change once more by itself (PITFALLS A27).
    pub(crate) definition: Option<Arc<Definition>>,
    /// Which objects need no request.
    pub(crate) trust: Trust,
    /// A write at another version since then explains a move.
    pub(crate) since: Option<Timestamp>,
    pub(crate) status_fallback: bool,
    pub(crate) found: Found,
}

/// Which objects are taken for proven by their resourceVersion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Trust {
    /// Not one.
    Nothing,
    /// Those at or below it: an earlier sweep patched them, and they were not written since.
    UpTo(ResourceVersion),
    /// Those above it, which a settled server has written, except for a random share.
    Above {
        r0: ResourceVersion,
        /// See [`sample_share`].
        sample: f64,
    },
}

/// What a verify sweep found, beside its tally.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Objects that moved, are proven by a second patch, and were written at another version meanwhile.
    pub(crate) explained: AtomicU64,
    /// Objects that moved and are proven by a second patch, and nothing tells why.
    pub(crate) unexplained: AtomicU64,
    /// Objects that moved, and moved again with nothing changed in them: servers store them in two alternating forms.
    pub(crate) came_back: AtomicU64,
    /// Objects that change with every write, because a webhook stamps them. Not a failure.
    pub(crate) mutated: AtomicU64,
    /// Objects that their resourceVersion proves.
    pub(crate) by_resource_version: AtomicU64,
    /// Objects that an answer to a patch proves.
    pub(crate) by_patch: AtomicU64,
}

impl Found {
    pub(crate) fn count(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    /// How many objects are proven, and how, if so many API servers were asked.
    pub(crate) fn proofs(&self, api_servers: usize) -> VerifiedBy {
        VerifiedBy {
            resource_version: Self::count(&self.by_resource_version),
            patch: Self::count(&self.by_patch),
            api_servers,
        }
    }

    /// Whether something moved that should not have.
    pub(crate) fn is_suspicious(&self) -> bool {
        Self::count(&self.unexplained) + Self::count(&self.came_back) > 0
    }
}

/// Why an object moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Explained,
    Unexplained,
    CameBack,
    Mutated,
}

/// Whether nothing but the resourceVersion moved, as when only the encoding is another. A change of content shows in
/// generation, managedFields, labels or annotations.
pub(crate) fn is_pure_move(before: &ObjectMeta, after: &ObjectMeta) -> bool {
    let moved = before.resource_version != after.resource_version;
    let alike = ObjectMeta {
        resource_version: before.resource_version.clone(),
        ..after.clone()
    };
    moved && alike == *before
}

/// How often an object is patched until it comes to rest. A default in the status takes two (PITFALLS A51).
const PATCHES: usize = 4;

impl Verifier {
    pub(crate) async fn verify(&self, metadata: &ObjectMeta) -> Verdict {
        if self.is_proven(metadata) {
            self.found.by_resource_version.fetch_add(1, Ordering::Relaxed);
            return Verdict::skipped();
        }
        // Why it moved first, and why it moved later, in case it never comes to rest.
        let (mut first, mut later): (Option<Move>, Option<Move>) = (None, None);
        let mut current = metadata.clone();
        for _ in 0..PATCHES {
            let (before, patched) = match self.patch_settled(current.clone()).await {
                Ok(patched) => patched,
                Err(error) => {
                    // If it did move, the reason is lost: better one verification too many.
                    let verdict = failed(&self.writer, &self.api, metadata, &error).await;
                    if verdict.outcome() != Outcome::Gone {
                        self.count(first);
                    }
                    return verdict;
                }
            };
            if patched.effect != Effect::Changed {
                // This answer proves it, whatever came before: an object that is stored in alternating forms never rests.
                self.count(first);
                self.found.by_patch.fetch_add(1, Ordering::Relaxed);
                if first.is_none() {
                    return Verdict::unchanged();
                }
                ownership::disown(&self.writer, &self.api, &patched.object).await;
                return Verdict::changed();
            }
            let undisturbed = before.resource_version == current.resource_version;
            let is_pure = is_pure_move(&before, &patched.object);
            if first.is_none() {
                first = Some(self.why_once(&before, is_pure));
            } else if undisturbed {
                // Only our own last write came in between. A stamp would show, so two forms alternate in storage.
                later = Some(match self.definition {
                    _ if !is_pure => Move::Mutated,
                    Some(_) => Move::CameBack,
                    None => Move::Unexplained, // some built-in kinds have no generation that would show a stamp
                });
            }
            current = patched.object;
        }
        // Where others write it all the time, the moves may be theirs as well as ours.
        let found = later.or(first);
        self.count(found);
        ownership::disown(&self.writer, &self.api, &current).await;
        match found {
            Some(Move::Mutated) => {
                self.found.by_patch.fetch_add(1, Ordering::Relaxed);
                Verdict::unchanged()
            }
            _ => Verdict::changed(),
        }
    }

    fn is_proven(&self, metadata: &ObjectMeta) -> bool {
        let Some(version) = ResourceVersion::of(metadata) else {
            return false;
        };
        match self.trust {
            Trust::Nothing => false,
            Trust::UpTo(verified) => version <= verified,
            Trust::Above { r0, sample } => version > r0 && !is_drawn(sample),
        }
    }

    /// Why an object moved.
    fn why_once(&self, before: &ObjectMeta, is_pure: bool) -> Move {
        match &self.definition {
            None => Move::Explained,
            // Our write changed its content: a webhook, or a default that its last writer did not set.
            Some(_) if !is_pure => Move::Explained,
            Some(definition) if is_explained(definition, before, self.since) => Move::Explained,
            Some(_) => Move::Unexplained,
        }
    }

    fn count(&self, came_to: Option<Move>) {
        let counter = match came_to {
            None => return,
            Some(Move::Explained) => &self.found.explained,
            Some(Move::Unexplained) => &self.found.unexplained,
            Some(Move::CameBack) => &self.found.came_back,
            Some(Move::Mutated) => &self.found.mutated,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    async fn patch_settled(&self, metadata: ObjectMeta) -> Result<(ObjectMeta, Written<ObjectMeta>), Error> {
        patch_settled(&self.writer, &self.api, metadata, self.status_fallback).await
    }
}

/// Patches the object at its resourceVersion, and returns which one that was. After a write in between it is read again:
/// otherwise a busy object would look like one that a server had stored at the old version.
pub(crate) async fn patch_settled(
    writer: &Writer,
    api: &Api<DynamicObject>,
    mut metadata: ObjectMeta,
    status_fallback: bool,
) -> Result<(ObjectMeta, Written<ObjectMeta>), Error> {
    let mut attempt = 1;
    loop {
        // One try at a time: if the writer itself tried again, a 409 might come from our own write and hide a move.
        let error = match writer.once().rewrite_unmoved(api, &metadata).await {
            Ok(written) => return Ok((metadata, written)),
            Err(error) if status_fallback && error.class() == ErrorClass::Denied => {
                let written = writer.rewrite_through_status(api, &metadata).await?;
                return Ok((metadata, written));
            }
            Err(error) => error,
        };
        let Some(delay) = writer.retry_policy().after(attempt, error.class()) else {
            if error.class() != ErrorClass::Conflict {
                return Err(error);
            }
            // Others write it faster than we can. The server stores it in today's form in any case; only how it was stored
            // before is not known.
            let written = writer.rewrite(api, &metadata).await?;
            let effect = Effect::Unchanged;
            return Ok((metadata, Written { effect, ..written }));
        };
        tokio::time::sleep(delay).await;
        attempt += 1;
        let Some(fresh) = writer.look(api, &metadata).await? else {
            return Err(error); // the caller checks whether it is gone
        };
        if error.class() == ErrorClass::Ambiguous && is_pure_move(&metadata, &fresh) {
            let written = Written {
                object: fresh,
                effect: Effect::Changed,
            };
            return Ok((metadata, written));
        }
        metadata = fresh;
    }
}

/// Whether healthy servers can have re-encoded the object although its metadata shows no change: it was written at another
/// version since, and such a write may leave what a write at the endpoint changes; or the storage version has defaults that
/// show only with the next write (PITFALLS A51).
pub(crate) fn is_explained(definition: &Definition, before: &ObjectMeta, since: Option<Timestamp>) -> bool {
    if definition.has_defaults_in_status() || definition.has_own_defaults() || definition.stores_otherwise() {
        return true;
    }
    let Some(since) = since else { return false };
    before.managed_fields.iter().flatten().any(|entry| {
        let version = entry.api_version.as_deref().unwrap_or_default();
        // Both have whole seconds.
        let is_younger = entry
            .time
            .as_ref()
            .is_some_and(|time| time.0.as_second() >= since.as_second());
        is_younger && definition.writes_otherwise(version)
    })
}

/// At random: the keys of hash maps are the only source of randomness in the standard library.
fn is_drawn(share: f64) -> bool {
    use std::hash::{BuildHasher, RandomState};
    #[allow(clippy::cast_precision_loss)]
    let drawn = RandomState::new().hash_one(0) as f64 / u64::MAX as f64;
    drawn < share
}
