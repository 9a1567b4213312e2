//! Reads every source and every target again: only then nothing is lost.

use std::collections::HashSet;
use std::sync::Mutex;

use exuvia_api::datastore_reason as reason;
use exuvia_sweep::Verdict;
use exuvia_write::{Name, redacted};
use kube::api::DynamicObject;

use super::Mover;
use super::findings::Problem;
use super::target::{Attempt, Place, UNKNOWN_TARGET, has_owners};
use super::trial::{all_looked_at, held_by, key_of};
use crate::Error;
use crate::kinds::Kind;
use crate::lock::lock;
use crate::mapping::Output;
use crate::owners::{Lookup, Outcome, Owners};

/// What the second look found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// Sources whose target is right.
    pub right: u64,
    /// Sources that were written, created or deleted after they were copied: a write that was under way over the freeze.
    pub moved: u64,
    /// Copies of ours that somebody else has written to; they are among the findings.
    pub conflicts: u64,
    /// Targets that are not what they should be, with what is wrong: the first ones.
    pub wrong: Vec<String>,
    /// How many there are.
    pub wrong_total: u64,
}

impl Mover {
    /// Reads every source and every target again. Targets of ours whose source is gone are taken back.
    ///
    /// # Errors
    ///
    /// Not every object could be looked at.
    pub async fn verify_all(&self) -> Result<Verification, Error> {
        let found = Mutex::new(Verification::default());
        let expected: Mutex<HashSet<u128>> = Mutex::default();
        let lookup = self.lookup();
        self.forget_successors();
        for kind in self.kinds.sources() {
            let report = self
                .sweep(kind)
                .run_whole(async |source: DynamicObject| {
                    match self.verify_one(&source, &found, &expected, &lookup).await {
                        Ok(Ok(())) => Verdict::unchanged(),
                        Ok(Err(problem)) => {
                            let name = source.metadata.name.as_deref().unwrap_or_default();
                            let mut found = lock(&found);
                            found.wrong_total += 1;
                            if found.wrong.len() < super::findings::MAX_LISTED {
                                let said =
                                    redacted!("{} {}: {}", Name(&kind.shown()), Name(name), problem.message);
                                found.wrong.push(said.into_string());
                            }
                            Verdict::unchanged()
                        }
                        Err(error) => self.verdict(kind, &source, Err(error)),
                    }
                })
                .await?;
            all_looked_at(&report)?;
        }
        let expected = expected
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let stale = self.take_back(Some(&expected)).await?;
        let mut found = found
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        found.moved += stale.deleted + stale.going;
        for (kind, namespace, name) in &stale.changed {
            self.contested_stray(kind, namespace.as_deref(), name);
        }
        found.conflicts += u64::try_from(stale.changed.len()).unwrap_or(u64::MAX);
        // Their sources are gone.
        found.wrong_total += stale.refused;
        for refusal in stale.refusals {
            found
                .wrong
                .push(format!("{} {}: {}", refusal.kind, refusal.name, refusal.message));
        }
        found.wrong.truncate(super::findings::MAX_LISTED);
        Ok(found)
    }

    async fn verify_one(
        &self,
        source: &DynamicObject,
        found: &Mutex<Verification>,
        expected: &Mutex<HashSet<u128>>,
        lookup: &Lookup,
    ) -> Attempt<()> {
        let converted = match self.convert(source).await {
            Ok(converted) => converted,
            Err(problem) => return Ok(Err(problem)),
        };
        for output in &converted.outputs {
            let Some(target) = self.kinds.target(&output.group, &output.kind) else {
                return Err(Error::Changed(UNKNOWN_TARGET));
            };
            lock(expected).insert(key_of(output));
            let live = match self.place(target, output).await? {
                Err(problem) => return Ok(Err(problem)),
                Ok(Place::Free) => {
                    lock(found).moved += 1;
                    return Ok(Ok(()));
                }
                Ok(Place::Ours(live)) if !self.is_up_to_date(source, &live, output) => {
                    lock(found).moved += 1;
                    return Ok(Ok(()));
                }
                Ok(Place::Ours(live)) => live,
                Ok(Place::Equal(_)) => continue,
                Ok(Place::Differs(_)) if self.prefers_target() => continue,
                Ok(Place::Differs(field)) => return Ok(Err(wrong(&field))),
                Ok(Place::Contested(field)) => {
                    let mapping = &self.migration.spec.mappings[output.mapping].name;
                    let place = (output.namespace.as_deref(), output.name.as_str());
                    let kind = source.types.as_ref().map_or("", |types| &types.kind);
                    self.contested(kind, mapping, (target, place), field);
                    lock(found).conflicts += 1;
                    return Ok(Ok(()));
                }
            };
            if let Err(problem) = self.is_as_written(target, &live, source, output).await? {
                return Ok(Err(problem));
            }
            // An owner that went after its dependent was copied: the next copy decides what becomes of that.
            if !self.owners_are_right(source, &live, output, lookup).await? {
                lock(found).moved += 1;
                return Ok(Ok(()));
            }
        }
        lock(found).right += 1;
        Ok(Ok(()))
    }

    /// Whether a target of ours has everything that was written, and nothing else that counts.
    pub(super) async fn is_as_written(
        &self,
        target: &Kind,
        live: &DynamicObject,
        source: &DynamicObject,
        output: &Output,
    ) -> Attempt<()> {
        if let Some(status) = &output.status
            && !Self::has_status_of(live, source, status)
        {
            return Ok(Err(wrong("status")));
        }
        match self
            .compared(&target.all(&self.client), live.clone(), &output.object)
            .await?
        {
            Err(problem) => Ok(Err(problem)),
            Ok(Place::Differs(field)) => Ok(Err(wrong(&field))),
            Ok(_) => Ok(Ok(())),
        }
    }

    /// Whether a target names the owners that it should.
    async fn owners_are_right(
        &self,
        source: &DynamicObject,
        live: &DynamicObject,
        output: &Output,
        lookup: &Lookup,
    ) -> Result<bool, Error> {
        let owners = Owners {
            kinds: self.owner_kinds(),
            successors: self,
            lookup,
        };
        let (from, to) = (source.metadata.namespace.as_deref(), output.namespace.as_deref());
        let references = if output.extra { &[][..] } else { &output.owners };
        let policy = self.migration.spec.references.missing_owner;
        match owners.rewritten(references, (from, to), policy).await {
            Outcome::Ready { references, .. } => Ok(has_owners(live, &references)),
            Outcome::WaitFor(_) => Ok(false),
            Outcome::Held(faults) => held_by::<()>(&faults).map(|_| false),
        }
    }
}

fn wrong(field: &str) -> Problem {
    Problem::new(
        reason::VERIFY_FAILED,
        redacted!("the target's {} is not what was written", Name(field)),
    )
}
