//! The sweeps of a pass: rewrite, verify, patrol.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use exuvia_api::FrozenBy;
use exuvia_sweep::Failures;
use tokio::sync::OnceCell;

use super::{Engine, Subject};
use crate::Error;
use crate::definition::Definition;
use crate::error::unless_cancelled;
use crate::failures::presentable;
use crate::options::Verify;
use crate::ownership::{Experience, Owners};
use crate::probe::Prober;
use crate::protocol::{Crd, Hold, Pass, StepKind, SweepEnd, Verification};
use crate::report::Verified;
use crate::rewrite::{self, Rewriter};
use crate::survey::{self, Survey};
use crate::verify::{Found, Trust, sample_share};

impl Engine {
    pub(super) async fn rewrite(&mut self) -> Result<(), Error> {
        let pass = self.pass.clone().unwrap_or_default();
        // Who owned what before this sweep no longer holds, however it ends.
        self.survey = None;
        self.report.owners = Owners::default();
        let prober = self
            .definition
            .clone()
            .map(|definition| Prober::new(self.client.clone(), self.rewriter(), definition));
        let is_clean = self.lists_nothing_old();
        let rewriter = &Rewriter {
            writer: self.rewriter(),
            api: self.api(),
            definition: self.definition.clone(),
            managed_fields: self.options.managed_fields,
            status_fallback: self.options.status_fallback,
            // A built-in resource has no flip: nothing tells which configuration wrote what.
            r0: pass.r0.filter(|_| self.definition.is_some()),
            is_clean,
            since: pass.r0_at,
            prober,
            experience: Experience::default(),
            found: rewrite::Found::default(),
        };
        let put_back = &OnceCell::new();
        let sweep = self.sweep();
        self.busy(StepKind::Rewrite, Some(sweep.progress()));
        let done = sweep
            .run(async |object| {
                let verdict = rewriter.rewrite(&object.metadata).await;
                // storedVersions says that there is nothing like this: somebody trimmed it too early. Now,
                // and not after the sweep, which a crash may cut off.
                if is_clean && rewriter.found.stored_otherwise.load(Ordering::Relaxed) > 0 {
                    let _ = put_back.get_or_try_init(|| self.put_back(&pass)).await;
                }
                verdict
            })
            .await;
        let found = &rewriter.found;
        let moved = found.stored_otherwise.load(Ordering::Relaxed);
        let mut listed_again = false;
        if is_clean && moved > 0 {
            listed_again = *put_back.get_or_try_init(|| self.put_back(&pass)).await?;
            self.report.stored_otherwise += moved;
        }
        self.report.lost_owners += found.lost_owners.load(Ordering::Relaxed);
        if let Some(example) = found.lost_example.get() {
            self.report
                .lost_owners_example
                .get_or_insert_with(|| example.clone());
        }
        self.report.owned += found.owned.load(Ordering::Relaxed);
        if let Some(example) = found.owned_example.get() {
            self.report.owned_example.get_or_insert_with(|| example.clone());
        }
        self.report.unmoved = found.unmoved.load(Ordering::Relaxed);
        self.report.unmoved_example = found.unmoved_example.get().cloned();
        self.report.left = Some(found.left());
        if let Err(cut_off) = &done {
            self.report.rewrite = cut_off.report().tally.into(); // what was done until then is done
        }
        let Some(done) = unless_cancelled(&self.name, done)? else {
            return Ok(());
        };
        let unfinished = done.tally.failed + done.tally.conflict;
        self.report.rewrite = done.tally.into();
        self.note_failures(done.failures).await;
        self.report.peak_concurrency = done.peak_concurrency;
        if !listed_again {
            // Otherwise there are old versions after all, whose managedFields entries this sweep has left alone.
            self.remember(|pass| pass.rewrite = Some(SweepEnd { unfinished }));
        }
        Ok(())
    }

    pub(super) async fn verify(&mut self, full: bool) -> Result<(), Error> {
        let pass = self.pass.clone().unwrap_or_default();
        self.forget_audit();
        let trust = match (full, pass.r0, pass.verified_up_to) {
            (true, _, Some(verified)) => Trust::UpTo(verified),
            (false, Some(r0), _) => Trust::Above {
                r0,
                sample: sample_share(self.report.rewrite.done()),
            },
            _ => Trust::Nothing,
        };
        let verifier = &self.verifier(trust);
        let survey = &Mutex::new(Survey::default());
        let sweep = self.sweep();
        self.busy(StepKind::Verify, Some(sweep.progress()));
        // Where nothing is listed that could be trimmed, a suspicious move says that something was trimmed too early.
        let is_clean = self.lists_nothing_old();
        let put_back = &OnceCell::new();
        let done = sweep
            .run(async |object| {
                // The same look at all metadata tells who still owns fields at an old version.
                survey::add(survey, &object.metadata);
                let verdict = verifier.verify(&object.metadata).await;
                if is_clean && verifier.found.is_suspicious() {
                    let _ = put_back.get_or_try_init(|| self.put_back(&pass)).await;
                }
                verdict
            })
            .await;
        let found = &verifier.found;
        if is_clean && found.is_suspicious() {
            put_back.get_or_try_init(|| self.put_back(&pass)).await?;
        }
        let mut verification = Verification {
            full,
            unexplained: Found::count(&found.unexplained) > 0,
            came_back: Found::count(&found.came_back) > 0,
            ..Verification::default()
        };
        self.count(found);
        let done = match unless_cancelled(&self.name, done) {
            Ok(Some(done)) => done,
            // What moved is rewritten by now, and the next sweep would take it for proven: it is remembered anyway.
            cut_off => {
                self.take_note(&verification).await?;
                return cut_off.map(drop);
            }
        };
        verification.complete = true;
        verification.unfinished = done.tally.failed + done.tally.conflict;
        verification.smallest_list = done.smallest_list;
        self.report.verify = done.tally.into();
        if !done.tally.is_clean() {
            self.note_failures(done.failures).await;
        }
        self.note_survey(survey);
        self.take_note(&verification).await?;
        if self.pass.as_ref().is_some_and(|pass| pass.verify.is_some()) {
            self.report.verified = Some(if full { Verified::Full } else { Verified::Proof });
            let why = self.settling.why_not_accounted().map(str::to_owned);
            self.report.why_full = why.filter(|_| full && self.options.verify == Verify::Auto);
            self.report.verified_by = found.proofs(self.settling.asked());
        }
        Ok(())
    }

    /// Whether `storedVersions` lists the storage version alone. A built-in resource has no such list.
    fn lists_nothing_old(&self) -> bool {
        let definition = self.definition.as_ref();
        definition.is_some_and(|definition| definition.crd.old_versions().is_empty())
    }

    /// Remembers what a verify sweep came to. The CRD is read again: if it was changed, that explains why objects moved.
    async fn take_note(&mut self, verification: &Verification) -> Result<(), Error> {
        if let Subject::BuiltIn(_) = self.subject {
            self.remember(|pass| pass.note_verification(verification));
            return Ok(());
        }
        let Some(crd) = self.reread().await? else {
            return Ok(());
        };
        if verification.unexplained || verification.came_back {
            self.unsettled_at = Some(Instant::now());
        }
        self.remember(|pass| pass.verified(&crd, verification));
        Ok(())
    }

    fn count(&mut self, found: &Found) {
        self.report.mutated = Found::count(&found.mutated);
        self.report.explained = Found::count(&found.explained);
        self.report.unexplained = Found::count(&found.unexplained);
        self.report.came_back = Found::count(&found.came_back);
    }

    /// The CRD as it is now, to see whether it is still the one that a sweep was about.
    async fn reread(&self) -> Result<Option<Crd>, Error> {
        let crd = self.find_crd(&self.name).await?;
        Ok(crd.map(|crd| Definition::read(&crd).crd))
    }

    /// Patches what was written since the verify sweep. If something moves without an explanation, a server may have written
    /// behind our back, and the version is put back. Returns why it is due again, if it is, but not at once.
    pub(super) async fn patrol(&mut self) -> Result<Option<Hold>, Error> {
        if let Some(hold) = self.unless_hidden().await {
            return Ok(Some(hold));
        }
        let pass = self.pass.clone().unwrap_or_default();
        // Where every server is accounted for, the verify sweep proved everything up to there, and an object that is written
        // again gets a higher version. Elsewhere a server that was behind may itself have answered that sweep.
        let accounted = !pass.verified_in_full && self.api_servers().are_all(&self.client).await?;
        let seen_up_to = pass.r1.filter(|_| accounted);
        let trust = seen_up_to.map_or(Trust::Nothing, Trust::UpTo);
        let verifier = &self.verifier(trust);
        let survey = &Mutex::new(Survey::default());
        let sweep = self.sweep();
        self.busy(StepKind::Patrol, Some(sweep.progress()));
        let put_back = &OnceCell::new();
        let swept = sweep
            .run(async |object| {
                survey::add(survey, &object.metadata);
                let verdict = verifier.verify(&object.metadata).await;
                if verifier.found.is_suspicious() {
                    // Now, and not after the sweep: what moved is rewritten, and a patrol after a crash would find nothing.
                    let _ = put_back.get_or_try_init(|| self.put_back(&pass)).await;
                }
                verdict
            })
            .await;
        self.count(&verifier.found);
        // However the sweep ended.
        if verifier.found.is_suspicious() {
            put_back.get_or_try_init(|| self.put_back(&pass)).await?;
            if let Some(crd) = self.reread().await? {
                self.report.put_back = true;
                self.unsettled_at = Some(Instant::now());
                self.pass = Some(Pass {
                    patrol_owed: true,
                    unexplained: pass.unexplained.saturating_add(1),
                    came_back: Found::count(&verifier.found.came_back) > 0,
                    spec: pass.spec.clone(),
                    ..Pass::begin(&crd, Some(&pass))
                });
                self.trimmed_at = None;
            }
            return Ok(None);
        }
        let Some(done) = unless_cancelled(&self.name, swept)? else {
            return Ok(None);
        };
        self.note_survey(survey);
        let unfinished = done.tally.failed + done.tally.conflict;
        self.note_failures(done.failures).await;
        if unfinished > 0 {
            return Ok(Some(Hold::Failures(unfinished)));
        }
        if let Some(hold) = self.unless_hidden().await {
            return Ok(Some(hold));
        }
        if self.note_patrol(done.smallest_list).await? {
            self.remember(|pass| pass.patrolled = true);
        }
        Ok(None)
    }

    async fn note_failures(&mut self, failures: Failures) {
        // Before the messages lose what may be quoted from an object: the name of a migration may be in one.
        let mut messages = failures.first.iter().map(|failure| &failure.message);
        self.report.frozen_by = messages.find_map(|message| FrozenBy::named_in(message));
        self.report.failures = presentable(
            &self.client,
            &self.resource(),
            self.definition.as_deref(),
            failures,
        )
        .await;
    }

    pub(super) fn note_survey(&mut self, survey: &Mutex<Survey>) {
        let survey = std::mem::take(&mut *survey.lock().unwrap_or_else(PoisonError::into_inner));
        self.report.owners = survey.owners.clone();
        self.survey = Some(survey);
    }
}
