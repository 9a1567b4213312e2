//! The steps themselves: each does its part and remembers what came of it.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use exuvia_sweep::{ResourceVersion, Verdict};
use exuvia_write::{ErrorClass, Writer};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use tokio::sync::OnceCell;

use super::{Activity, Engine};
use crate::Error;
use crate::definition::Definition;
use crate::error::unless_cancelled;
use crate::failures::presentable;
use crate::forbidden::MissingRule;
use crate::preflight::{self, Obstacle};
use crate::protocol::{self, Blocked, Crd, Pass, Preflight, SweepEnd};
use crate::redact::redact;
use crate::report::Verified;
use crate::rewrite::Rewriter;
use crate::survey::{self, Survey};

impl Engine {
    pub(super) fn begin(&mut self) {
        let Some(definition) = &self.definition else {
            return;
        };
        let crd = &definition.crd;
        // The same CRD that was trimmed has an old version again: the patrol put it back, maybe before a crash.
        let is_same = |pass: &Pass| (&pass.uid, pass.generation) == (&crd.uid, crd.generation);
        if self
            .pass
            .as_ref()
            .is_some_and(|pass| pass.trimmed && is_same(pass))
        {
            self.unsettled_at = Some(Instant::now());
        }
        self.report.stored_before.clone_from(&crd.stored);
        self.pass = Some(Pass {
            // A server that was caught may still be behind, and be none of those that were asked.
            times_behind: self.unsettled_at.is_some().into(),
            ..Pass::begin(crd, self.pass.as_ref())
        });
        (self.r0_at, self.trimmed_at) = (None, None);
    }

    pub(super) async fn preflight(&mut self) -> Result<(), Error> {
        let definition = self.definition();
        (self.watcher)(Activity::Preflight);
        let obstacle = match definition.endpoint() {
            None => Some(Obstacle::NothingServed),
            Some(endpoint) => match Survey::of(self.sweep(&definition.resource(endpoint))).await {
                Err(error) if error.is_cancelled() => return Ok(()),
                Err(error) if MissingRule::named_in(&error.to_string()).is_some() => {
                    Some(Obstacle::forbidden(&error.to_string()))
                }
                Err(error) => Some(Obstacle::NoList {
                    message: redact(&error.to_string()),
                }),
                Ok(survey) => {
                    self.report.owners = survey.owners.clone();
                    self.surveyed = true;
                    let has_old_owners = !definition.old_among(survey.owners.versions()).is_empty();
                    let mut pass = self.pass.clone().unwrap_or_default();
                    let wanted = pass.surveyed(&definition.crd, has_old_owners);
                    self.pass = Some(pass);
                    if !wanted {
                        return Ok(()); // the rules say so as soon as nothing is wanted
                    }
                    let obstacle = self.obstacle(&definition, &survey).await?;
                    if self.control.is_cancelled() {
                        return Ok(()); // it may not have looked to the end
                    }
                    obstacle
                }
            },
        };
        let found = match &obstacle {
            None => Preflight::Passed,
            Some(Obstacle::Pruning(_)) => Preflight::Blocked(Blocked::Pruning),
            Some(Obstacle::Forbidden { .. }) => Preflight::Blocked(Blocked::Forbidden),
            Some(_) => Preflight::Blocked(Blocked::Preflight),
        };
        self.report.obstacle = obstacle;
        self.remember(|pass| pass.preflight = Some(found.clone()));
        Ok(())
    }

    async fn obstacle(
        &mut self,
        definition: &Definition,
        survey: &Survey,
    ) -> Result<Option<Obstacle>, Error> {
        self.report.losses = None;
        if let Some(silent) = preflight::answers(&self.client, &self.writer, definition, survey).await {
            return Ok(Some(silent));
        }
        let old = definition.crd.old_versions();
        let keep = |stored: &mut Vec<String>| stored.retain(|version| !old.contains(version));
        match self.write_stored_versions(&self.writer.dry_run(), keep).await {
            Err(Error::Write(error)) if error.class() == ErrorClass::Denied => {
                return Ok(Some(Obstacle::forbidden(&error.to_string())));
            }
            tried => tried?,
        };
        let accepted = self.options.accept_pruning;
        let looked = preflight::losses(&self.client, definition, survey, &self.control, accepted).await;
        match looked {
            Err(obstacle) => Ok(Some(obstacle)),
            Ok(losses) => {
                self.report.losses.clone_from(&losses);
                let held = losses.filter(|losses| losses.holds() && !accepted);
                Ok(held.map(Obstacle::Pruning))
            }
        }
    }

    pub(super) async fn take_r0(&mut self) -> Result<(), Error> {
        let count = self
            .sweep(&self.resource())
            .count()
            .await
            .map_err(|source| Error::unlisted(&self.name, source))?;
        self.r0_at = Some(Instant::now());
        self.remember(|pass| {
            pass.r0 = count.resource_version;
            pass.r0_at = Some(Timestamp::now());
        });
        Ok(())
    }

    pub(super) async fn rewrite(&mut self) -> Result<(), Error> {
        let Some(r0) = self.pass.as_ref().and_then(|pass| pass.r0) else {
            return Ok(());
        };
        let rewriter = Rewriter {
            writer: self.writer.clone(),
            api: self.api(),
            definition: Some(self.definition()),
            managed_fields: self.options.managed_fields,
            status_fallback: self.options.status_fallback,
            r0: Some(r0),
        };
        let sweep = self.sweep(&self.resource());
        (self.watcher)(Activity::Rewriting(sweep.progress()));
        let rewriter = &rewriter;
        let done = sweep
            .run(async |object| rewriter.rewrite(&object.metadata).await)
            .await;
        let Some(done) = unless_cancelled(&self.name, done)? else {
            return Ok(());
        };
        let unfinished = done.tally.failed + done.tally.conflict;
        self.report.rewrite = done.tally;
        self.report.failures = presentable(&self.client, &self.resource(), done.failures).await;
        self.report.peak_concurrency = done.peak_concurrency;
        self.remember(|pass| pass.rewrite = Some(SweepEnd { unfinished }));
        Ok(())
    }

    pub(super) async fn verify(&mut self, full: bool) -> Result<(), Error> {
        let pass = self.pass.clone().unwrap_or_default();
        let verifier = &self.verifier(pass.r0.filter(|_| !full));
        let survey = &Mutex::new(Survey::default());
        let sweep = self.sweep(&self.resource());
        (self.watcher)(Activity::Verifying(sweep.progress()));
        let done = sweep
            .run(async |object| {
                // The same look at all metadata tells who still owns fields at an old version.
                survey::add(survey, &object.metadata);
                verifier.verify(&object.metadata).await
            })
            .await;
        let moved = verifier.found.moved.load(Ordering::Relaxed) > 0;
        let done = match unless_cancelled(&self.name, done) {
            Ok(Some(done)) => done,
            // What moved is rewritten by now, and the next sweep would take it for proven: it is remembered all the same.
            cut_off => {
                if moved && let Some(crd) = self.reread().await? {
                    self.remember(|pass| {
                        *pass = protocol::verified(pass, &crd, SweepEnd::default(), true);
                    });
                    self.unsettled_at = Some(Instant::now());
                }
                return cut_off.map(drop);
            }
        };
        self.report.verify = done.tally;
        if !done.tally.is_clean() {
            self.report.failures = presentable(&self.client, &self.resource(), done.failures).await;
        }
        self.report.mutated = verifier.found.mutated.load(Ordering::Relaxed);
        self.note_owners(survey);
        let Some(crd) = self.reread().await? else {
            return Ok(());
        };
        let end = SweepEnd {
            unfinished: done.tally.failed + done.tally.conflict,
        };
        let mut pass = protocol::verified(&pass, &crd, end, moved);
        if moved {
            self.unsettled_at = Some(Instant::now());
        } else {
            pass.r1 = done.smallest_list;
            pass.verified_in_full = full;
            self.report.verified = Some(if full { Verified::Full } else { Verified::Proof });
        }
        self.pass = Some(pass);
        Ok(())
    }

    /// The CRD as it is now, to see whether it is still the one that a sweep was about.
    async fn reread(&self) -> Result<Option<Crd>, Error> {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let crd = crds.get_opt(&self.name).await?;
        Ok(crd.map(|crd| Definition::read(&crd).crd))
    }

    /// Removes exactly the old versions, under the lock. On a 409 the next observation decides anew; nothing else is done
    /// twice (PITFALLS B4, B7).
    pub(super) async fn trim(&mut self, old: &[String]) -> Result<(), Error> {
        (self.watcher)(Activity::Trimming);
        let keep = |stored: &mut Vec<String>| stored.retain(|version| !old.contains(version));
        if self.write_stored_versions(&self.writer, keep).await? {
            self.trimmed_at = Some(Instant::now());
            self.report.stored_after.retain(|version| !old.contains(version));
            self.remember(|pass| {
                pass.trimmed = true;
                pass.trimmed_at = Some(Timestamp::now());
            });
        }
        Ok(())
    }

    /// Patches what the verify sweep did not see. Whatever moves was written by a server behind our back. Returns how many
    /// objects could not be looked at, if any: the patrol is due again then, but not at once.
    pub(super) async fn patrol(&mut self) -> Result<Option<u64>, Error> {
        let pass = self.pass.clone().unwrap_or_default();
        let verifier = &self.verifier(None);
        let seen_up_to = pass.r1.filter(|_| !pass.verified_in_full);
        let survey = &Mutex::new(Survey::default());
        let sweep = self.sweep(&self.resource());
        (self.watcher)(Activity::Patrolling(sweep.progress()));
        let put_back = &OnceCell::new();
        let swept = sweep
            .run(async |object| {
                survey::add(survey, &object.metadata);
                let version = ResourceVersion::of(&object.metadata);
                if version.is_some() && version <= seen_up_to {
                    return Verdict::skipped();
                }
                let verdict = verifier.verify(&object.metadata).await;
                if verifier.found.moved.load(Ordering::Relaxed) > 0 {
                    // Now, and not after the sweep: what moved is rewritten, and a patrol after a crash would find nothing.
                    let _ = put_back.get_or_try_init(|| self.put_back(&pass)).await;
                }
                verdict
            })
            .await;
        // However the sweep ended.
        if verifier.found.moved.load(Ordering::Relaxed) > 0 {
            if *put_back.get_or_try_init(|| self.put_back(&pass)).await? {
                self.pass = None;
                self.unsettled_at = Some(Instant::now());
            }
            return Ok(None);
        }
        let Some(done) = unless_cancelled(&self.name, swept)? else {
            return Ok(None);
        };
        self.note_owners(survey);
        let unfinished = done.tally.failed + done.tally.conflict;
        self.report.failures = presentable(&self.client, &self.resource(), done.failures).await;
        if unfinished > 0 {
            return Ok(Some(unfinished));
        }
        self.remember(|pass| pass.patrolled = true);
        Ok(None)
    }

    /// Adds what was trimmed to `storedVersions` again, whoever else changes the CRD meanwhile; `false`: it is gone, or was
    /// flipped, which explains by itself that objects moved.
    async fn put_back(&self, pass: &Pass) -> Result<bool, Error> {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let found = crds.get_opt(&self.name).await?;
        let is_same = |crd: &CustomResourceDefinition| {
            (crd.metadata.uid.as_ref(), crd.metadata.generation) == (Some(&pass.uid), Some(pass.generation))
        };
        let Some(crd) = found.filter(is_same) else {
            return Ok(false);
        };
        let put_back = |crd: &mut CustomResourceDefinition| {
            let known: Vec<&String> = crd.spec.versions.iter().map(|version| &version.name).collect();
            let stored = crd
                .status
                .get_or_insert_default()
                .stored_versions
                .get_or_insert_default();
            for version in pass
                .stored_before
                .iter()
                .filter(|version| known.contains(version))
            {
                if !stored.contains(version) {
                    stored.push(version.clone());
                }
            }
        };
        self.writer.patch_status(&crds, &crd, put_back).await?;
        Ok(true)
    }

    fn note_owners(&mut self, survey: &Mutex<Survey>) {
        let survey = survey.lock().unwrap_or_else(PoisonError::into_inner);
        self.report.owners = survey.owners.clone();
        self.surveyed = true;
    }

    /// Writes `storedVersions` if the CRD is still the one that was observed; `false`: it is not, observe again.
    async fn write_stored_versions(
        &self,
        writer: &Writer,
        change: impl Fn(&mut Vec<String>),
    ) -> Result<bool, Error> {
        let definition = self.definition();
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let Some(crd) = crds.get_opt(&self.name).await? else {
            return Ok(false);
        };
        let now = Definition::read(&crd);
        // Labels and annotations, too: whoever asked us to stop by one of them shall not find the CRD trimmed.
        let is_same = now.crd == definition.crd
            && now.labels == definition.labels
            && now.annotations == definition.annotations;
        if !is_same {
            return Ok(false);
        }
        let written = writer
            .once()
            .patch_status_locked(&crds, &crd, |crd| {
                let stored = crd
                    .status
                    .get_or_insert_default()
                    .stored_versions
                    .get_or_insert_default();
                change(stored);
            })
            .await;
        match written {
            Ok(_) => Ok(true),
            Err(error) if error.class() == ErrorClass::Conflict => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
