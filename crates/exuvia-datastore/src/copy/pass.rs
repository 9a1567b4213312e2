//! Writes the targets: wave by wave, owners before their dependents.

use std::sync::atomic::{AtomicU64, Ordering};

use exuvia_api::datastore_reason as reason;
use kube::api::DynamicObject;

use super::findings::Problem;
use super::target::{Attempt, Place, UNKNOWN_TARGET, has_owners};
use super::trial::{all_looked_at, held_by, key_of};
use super::{Findings, Mover};
use crate::Error;
use crate::kinds::Kind;
use crate::lock::lock;
use crate::mapping::Output;
use crate::owners::{Lookup, Outcome, Owners};

/// What came of one output.
enum Written {
    /// It is there, and it is ours.
    Migrated,
    /// It was there, and stays as it is.
    Skipped,
    /// It is there and differs in this field.
    Differs(String),
    /// It is a copy that is not ours alone.
    Contested(String),
    /// Its owners are not there yet.
    Later,
}

impl Mover {
    /// Copies every object. What is there already is left alone or brought up to date, so it can be repeated.
    ///
    /// # Errors
    ///
    /// Not every object could be looked at.
    pub async fn copy_all(&self) -> Result<Findings, Error> {
        self.forget_findings();
        self.forget_successors();
        lock(&self.waited).clear();
        lock(&self.known).clear();
        let waves = self.kinds.waves();
        let mut done = 0;
        for wave in waves {
            let kinds: Vec<Kind> = self.kinds_of(wave);
            let mut first_pass = true;
            // Dependents wait for their owners: as many passes as owners are deep.
            loop {
                let (later, written) = (AtomicU64::new(0), AtomicU64::new(0));
                let lookup = self.lookup();
                for kind in &kinds {
                    self.found().at_kind(&kind.resource.kind, done);
                    let report = self
                        .sweep(kind)
                        .run_whole(async |source: DynamicObject| {
                            let pass = Pass {
                                wave,
                                first: first_pass,
                                lookup: &lookup,
                                later: &later,
                                written: &written,
                            };
                            let copied = self.copy_one(kind, &source, &pass).await;
                            self.verdict(kind, &source, copied)
                        })
                        .await?;
                    all_looked_at(&report)?;
                }
                if later.load(Ordering::Relaxed) == 0 {
                    break;
                }
                if written.load(Ordering::Relaxed) == 0 {
                    // Owners that were refused say so themselves.
                    if self.found().blocked > 0 {
                        break;
                    }
                    let problem = Problem::new(
                        reason::OWNER_CYCLE,
                        "objects wait for owners that are copied in a later wave, or own each other in a circle: change the waves",
                    );
                    if let Some(kind) = kinds.first() {
                        self.found()
                            .block(kind, &kube::api::ObjectMeta::default(), problem);
                    }
                    break;
                }
                first_pass = false;
            }
            done += self.kinds.moved.iter().filter(|moved| moved.wave == wave).count();
        }
        self.found().at_kind("", done);
        Ok(self.findings())
    }

    fn kinds_of(&self, wave: i32) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = Vec::new();
        for moved in self.kinds.moved.iter().filter(|moved| moved.wave == wave) {
            if !kinds.contains(&moved.source) {
                kinds.push(moved.source.clone());
            }
        }
        kinds
    }

    async fn copy_one(&self, kind: &Kind, source: &DynamicObject, pass: &Pass<'_>) -> Attempt<()> {
        let converted = match self.movable(source).await {
            Ok(Some(converted)) => converted,
            Ok(None) => return Ok(Ok(())),
            Err(problem) => return Ok(Err(problem)),
        };
        for output in &converted.outputs {
            let mapping = &self.migration.spec.mappings[output.mapping];
            let Some(target) = self.kinds.target(&output.group, &output.kind) else {
                return Err(Error::Changed(UNKNOWN_TARGET));
            };
            // After the first pass only those come in question that had to wait.
            let key = key_of(output);
            if mapping.wave != pass.wave || (!pass.first && !lock(&self.waited).contains(&key)) {
                continue;
            }
            let written = match self.write_one(target, source, output, pass).await? {
                Ok(written) => written,
                Err(problem) => return Ok(Err(problem)),
            };
            let count = |add: fn(&mut exuvia_api::TypeProgress)| {
                self.found().count(&kind.resource.kind, &mapping.name, add);
            };
            if matches!(written, Written::Later) {
                lock(&self.waited).insert(key);
                pass.later.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            lock(&self.waited).remove(&key);
            pass.written.fetch_add(1, Ordering::Relaxed);
            count(|progress| progress.total += 1);
            match written {
                Written::Migrated => count(|progress| progress.migrated += 1),
                Written::Skipped => count(|progress| progress.skipped += 1),
                Written::Differs(field) => self.differs(kind, target, output, field),
                Written::Contested(field) => {
                    let place = (output.namespace.as_deref(), output.name.as_str());
                    self.contested(&kind.resource.kind, &mapping.name, (target, place), field);
                }
                Written::Later => {}
            }
        }
        Ok(Ok(()))
    }
}

/// One pass over the objects of one wave.
struct Pass<'a> {
    wave: i32,
    /// Whether it is the first one over this wave.
    first: bool,
    lookup: &'a Lookup,
    /// Objects whose owners are not there yet.
    later: &'a AtomicU64,
    /// Objects that were dealt with.
    written: &'a AtomicU64,
}

impl Mover {
    async fn write_one(
        &self,
        target: &Kind,
        source: &DynamicObject,
        output: &Output,
        pass: &Pass<'_>,
    ) -> Attempt<Written> {
        let owners = Owners {
            kinds: self.owner_kinds(),
            successors: self,
            lookup: pass.lookup,
        };
        let (from, to) = (source.metadata.namespace.as_deref(), output.namespace.as_deref());
        let references = if output.extra { &[][..] } else { &output.owners };
        let policy = self.migration.spec.references.missing_owner;
        let references = match owners.rewritten(references, (from, to), policy).await {
            Outcome::Ready { references, .. } => references,
            Outcome::WaitFor(_) => return Ok(Ok(Written::Later)),
            Outcome::Held(faults) => return held_by(&faults),
        };
        let wanted = self.wanted(target, source, output, &references);
        let live = match self.create(target, &wanted).await? {
            Err(problem) => return Ok(Err(problem)),
            Ok(Some(created)) => created,
            Ok(None) => match self.place(target, output).await? {
                Err(problem) => return Ok(Err(problem)),
                // It went in between: the next try makes it.
                Ok(Place::Free) => return Err(Error::Changed("a target vanished while it was looked at")),
                Ok(Place::Equal(live)) => {
                    self.note(&self.uids_of(source, output), target, &live.metadata);
                    return Ok(Ok(Written::Skipped));
                }
                Ok(Place::Differs(field)) => return Ok(Ok(Written::Differs(field))),
                Ok(Place::Contested(field)) => return Ok(Ok(Written::Contested(field))),
                Ok(Place::Ours(live))
                    if self.is_up_to_date(source, &live, output) && has_owners(&live, &references) =>
                {
                    *live
                }
                Ok(Place::Ours(live)) => match self.update(target, &live, &wanted, (source, output)).await? {
                    Err(problem) => return Ok(Err(problem)),
                    Ok(updated) => updated,
                },
            },
        };
        if !output.extra {
            self.note(&self.uids_of(source, output), target, &live.metadata);
        }
        let has_none = live.data.get("status").is_none_or(serde_json::Value::is_null);
        if target.has_status
            && let Some(status) = self.status_of(output)
            && !(status.is_null() && has_none)
            && let Err(problem) = self.write_status(target, &live, source, &status).await?
        {
            return Ok(Err(problem));
        }
        Ok(Ok(Written::Migrated))
    }
}
