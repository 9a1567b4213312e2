//! One object of the verify sweep: patched with nothing, it must come back unchanged; if it moves, why is looked into.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use exuvia_sweep::{Outcome, ResourceVersion, Verdict};
use exuvia_write::{Effect, Error, ErrorClass, Writer, Written};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DynamicObject, ObjectMeta};

use crate::definition::Definition;
use crate::ownership;
use crate::rewrite::failed;

/// The share of proven objects that is patched all the same: 1 %, and at least 100 objects.
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
    /// `None` for a built-in type: there a server may well change an object once more by itself (PITFALLS A27).
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
    /// None.
    Nothing,
    /// Those at or below it: an earlier sweep patched them, and they were not written since.
    UpTo(ResourceVersion),
    /// Those above it, which a settled server has written, but for a random share.
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
    /// Objects that moved, and moved again with nothing changed in them: servers store them in two forms by turns.
    pub(crate) came_back: AtomicU64,
    /// Objects that change with every write: a webhook stamps them, which is no failure.
    pub(crate) mutated: AtomicU64,
}

impl Found {
    pub(crate) fn count(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    /// Whether something moved that should not have.
    pub(crate) fn is_suspicious(&self) -> bool {
        Self::count(&self.unexplained) + Self::count(&self.came_back) > 0
    }
}

/// What an object's moves tell.
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
            return Verdict::skipped();
        }
        // Why it moved first, and what its moves after that tell, should it never come to rest.
        let (mut first, mut later): (Option<Move>, Option<Move>) = (None, None);
        let mut current = metadata.clone();
        for _ in 0..PATCHES {
            let (before, patched) = match self.patch_settled(current.clone()).await {
                Ok(patched) => patched,
                Err(error) => {
                    // If it did move, nobody can tell any more why: better one verification too many.
                    let verdict = failed(&self.writer, &self.api, metadata, &error).await;
                    if verdict.outcome() != Outcome::Gone {
                        self.count(first);
                    }
                    return verdict;
                }
            };
            if patched.effect != Effect::Changed {
                // It is proven by this answer, whatever came before it: what is stored by turns does not come to rest.
                self.count(first);
                if first.is_none() {
                    return Verdict::current();
                }
                ownership::disown(&self.writer, &self.api, &patched.object).await;
                return Verdict::rewritten();
            }
            let undisturbed = before.resource_version == current.resource_version;
            let is_pure = is_pure_move(&before, &patched.object);
            if first.is_none() {
                first = Some(self.why_once(&before, is_pure));
            } else if undisturbed {
                // Our own last write is all that happened in between. A stamp would show; so it is stored in two forms by turns.
                later = Some(match self.definition {
                    _ if !is_pure => Move::Mutated,
                    Some(_) => Move::CameBack,
                    None => Move::Unexplained, // some built-in kinds have no generation that would show a stamp
                });
            }
            current = patched.object;
        }
        // Where somebody else writes it all the time, what we saw is their doing as much as ours.
        let found = later.or(first);
        self.count(found);
        ownership::disown(&self.writer, &self.api, &current).await;
        match found {
            Some(Move::Mutated) => Verdict::current(),
            _ => Verdict::rewritten(),
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

/// Patches the object where it stands, and returns where that was. If somebody writes in between, it is read again: else a
/// busy object would be taken for one that a server had stored at the old version.
pub(crate) async fn patch_settled(
    writer: &Writer,
    api: &Api<DynamicObject>,
    mut metadata: ObjectMeta,
    status_fallback: bool,
) -> Result<(ObjectMeta, Written<ObjectMeta>), Error> {
    let mut attempt = 1;
    loop {
        // One try at a time: after a repetition by the writer itself, a 409 might be our own doing and hide a move.
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
            // Somebody writes it faster than we can. The server stores it as it stores things now all the same; what cannot
            // be told is only whether it was stored otherwise before.
            let written = writer.rewrite(api, &metadata).await?;
            let effect = Effect::Unchanged;
            return Ok((metadata, Written { effect, ..written }));
        };
        tokio::time::sleep(delay).await;
        attempt += 1;
        let Some(fresh) = writer.look(api, &metadata).await? else {
            return Err(error); // the caller looks for itself whether it is gone
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

/// Whether healthy servers can have re-encoded the object although nothing in its metadata shows a change: somebody wrote it at
/// another version since, and a write there may leave what a write at the endpoint changes; or the storage version has
/// defaults that show only with the next write (PITFALLS A51).
pub(crate) fn is_explained(definition: &Definition, before: &ObjectMeta, since: Option<Timestamp>) -> bool {
    if definition.has_defaults_in_status()
        || definition.has_defaults_of_its_own()
        || definition.stores_otherwise()
    {
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

/// At random: the standard library's only source of it are the keys of its hash maps.
fn is_drawn(share: f64) -> bool {
    use std::hash::{BuildHasher, RandomState};
    #[allow(clippy::cast_precision_loss)]
    let drawn = RandomState::new().hash_one(0) as f64 / u64::MAX as f64;
    drawn < share
}
