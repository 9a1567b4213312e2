//! Does one step. Each can be repeated: a crash in the middle is a restart.

use exuvia_api::{DATASTORE_FINALIZER, DatastorePhase, RETRY_ANNOTATION, datastore_condition as condition};
use exuvia_write::{Finalizer, Redacted};

use super::Engine;
use super::observe::uid_of;
use super::work::Work;
use crate::Error;
use crate::copy::Findings;
use crate::freeze::{Drain, Form};
use crate::protocol::{Checked, Copied, Denies, Seen, Step, Tried, Undo, Verified};
use crate::{check, versions};

const FINALIZER: Finalizer = Finalizer::new(DATASTORE_FINALIZER);

impl Engine {
    pub(super) async fn carry_out_step(&mut self, step: Step) -> Result<(), Error> {
        match step {
            Step::Check => self.check().await,
            Step::AddFinalizer => self.add_finalizer().await,
            Step::RemoveFinalizer => self.remove_finalizer().await,
            Step::MakeClones => self.make_clones().await,
            Step::RemoveClones => {
                self.clones_ready = false;
                Ok(self.clones().remove().await?)
            }
            Step::Try => {
                let found = self.try_objects().await?;
                self.seen.tried = self.judge(&found);
                Ok(())
            }
            Step::TryAgain => {
                let found = self.work()?.mover.try_all(None, false).await?;
                self.seen.tried_again = self.judge(&found);
                Ok(())
            }
            Step::Restart => self.restart().await,
            Step::Start => self.start().await,
            Step::Guard => self.count_writers().await,
            Step::AddVersion => Box::pin(self.add_version()).await,
            Step::Sync => self.sync().await,
            // Nothing is done before it is known that nobody else has begun at the same time.
            Step::RecordRouted | Step::MarkFreeze if self.has_rival().await? => {
                self.record_undo(Undo::Refused).await
            }
            Step::MarkFreeze => {
                let now = self.now().await;
                self.record(|status, _| status.frozen_at = Some(now.clone()))
                    .await
            }
            Step::Lock => Ok(self
                .work()?
                .freeze
                .set(Form::Frozen, self.observed.locks.shield)
                .await?),
            Step::SaveFlags => self.save_flags().await,
            Step::SetFlags => self.set_flags().await,
            Step::Probe => self.probe().await,
            Step::Drain => self.drain().await,
            Step::RecordFrozen => {
                let message = "every API server refuses writes to the source, and none is under way";
                self.record_stage(condition::FROZEN, message, |_| {}).await
            }
            Step::SaveRoute => self.save_route().await,
            Step::Shield => self.shield().await,
            Step::RemoveRoute => self.remove_route().await,
            Step::AwaitRoute => self.await_route().await,
            Step::RecordRouted => {
                let message = "the target CRDs answer for their group";
                self.record_stage(condition::ROUTED, message, |_| {}).await
            }
            Step::Copy => self.copy().await,
            Step::Verify => self.verify().await,
            Step::CatchUp => self.catch_up().await,
            Step::Commit => self.commit().await,
            Step::Thaw => self.thaw().await,
            Step::RetireVersion => Box::pin(self.retire_version()).await,
            Step::UndoVersion => Box::pin(self.undo_version()).await,
            Step::RewriteReferences => self.rewrite_references().await,
            Step::ReleaseSource => self.release_source().await,
            Step::LiftShield | Step::UndoShield => Ok(self.work()?.freeze.set_shield(false).await?),
            Step::LookAtWaits => self.look_at_waits().await,
            Step::DropStamps => {
                self.work()?.mover.drop_marks().await?;
                self.seen.stamps_dropped = true;
                Ok(())
            }
            Step::Complete => {
                let now = self.now().await;
                self.record_stage(condition::COMPLETE, "nothing is left to do", |status| {
                    status.phase = Some(DatastorePhase::Complete);
                    status.completed_at = Some(now.clone());
                })
                .await
            }
            Step::Undo(undo) => self.record_undo(undo).await,
            Step::UndoTargets => self.undo_targets().await,
            Step::UndoRoute => self.undo_route().await,
            Step::AwaitBackend => self.await_backend().await,
            Step::UndoFlags => self.undo_flags().await,
            Step::UndoLocks => self.remove_locks_but_shield().await,
            Step::AnchorDependents => Box::pin(self.anchor_dependents()).await,
            Step::EndUndo => self.end_undo().await,
            Step::CleanUp => self.clean_up().await,
        }
    }

    async fn add_finalizer(&mut self) -> Result<(), Error> {
        let written = self
            .writer
            .ensure_finalizer(&self.api, &self.migration, FINALIZER)
            .await?;
        self.migration = written.object;
        Ok(())
    }

    async fn remove_finalizer(&mut self) -> Result<(), Error> {
        self.writer
            .remove_finalizer(&self.api, &self.migration, FINALIZER)
            .await?;
        Ok(())
    }

    pub(super) fn work(&self) -> Result<&Work, Error> {
        self.work
            .as_ref()
            .ok_or(Error::Changed("the spec was not read yet"))
    }

    async fn check(&mut self) -> Result<(), Error> {
        let (mut checked, work) = check::check(
            &self.client,
            &self.writer,
            &self.servers,
            &self.control,
            &self.migration,
        )
        .await?;
        // Rights first: without them nobody knows which API servers there are.
        if let Some(work) = work.as_ref().filter(|_| checked.is_empty()) {
            checked.extend(check::too_tight(&work.freeze, &self.migration.spec.freeze).await?);
        }
        self.seen.checked = if checked.is_empty() {
            Checked::Passed
        } else {
            Checked::Blocked
        };
        self.blockers = checked;
        self.work = work.map(|work| self.timed(work));
        self.checked_generation = self.migration.metadata.generation;
        // Both would be among the blockers.
        self.invalid = None;
        self.refused.clear();
        Ok(())
    }

    async fn make_clones(&mut self) -> Result<(), Error> {
        self.work()?.clones.ensure(&self.tried_at_clones()).await?;
        self.clones_ready = true;
        Ok(())
    }

    /// Tries every object: at its target, and at a clone of it where the target does not tell.
    async fn try_objects(&mut self) -> Result<Findings, Error> {
        if self.observed.wants.second {
            Box::pin(self.look_for_unshown()).await?;
        }
        let work = self.work()?;
        let clones = Some(&work.clones).filter(|_| self.observed.wants.clones);
        work.mover.try_all(clones, self.observed.wants.route).await
    }

    fn judge(&mut self, found: &Findings) -> Tried {
        self.found = found.clone();
        self.blockers.clone_from(&found.blockers);
        if found.blocked > 0 {
            Tried::Blocked
        } else if found.progress.conflicts > 0 {
            Tried::Conflicts
        } else {
            Tried::Clean
        }
    }

    async fn restart(&mut self) -> Result<(), Error> {
        let unasked = |migration: &mut exuvia_api::DatastoreMigration| {
            if let Some(annotations) = &mut migration.metadata.annotations {
                annotations.remove(RETRY_ANNOTATION);
            }
        };
        // The phase first: what somebody asked for is not forgotten before it is done.
        self.record(|status, migration| {
            status.phase = Some(DatastorePhase::Pending);
            status.retreats = 0;
            status.not_before = None;
            status.observed_generation = migration.metadata.generation;
        })
        .await?;
        self.seen = Seen::default();
        self.work = None;
        let written = self
            .writer
            .patch_with_retry(&self.api, &self.migration, unasked)
            .await?;
        self.migration = written.object;
        Ok(())
    }

    async fn start(&mut self) -> Result<(), Error> {
        let now = self.now().await;
        self.record_stage(
            condition::VALIDATED,
            "every object can be copied, as far as a dry run tells",
            |status| {
                status.phase = Some(DatastorePhase::Migrating);
                status.started_at = Some(now.clone());
                status.not_before = None;
                status.blockers.clear();
                status.conflicts.clear();
            },
        )
        .await
    }

    /// Whether another migration of the same kinds runs. What was begun is not asked about any more: the other one saw it.
    async fn has_rival(&mut self) -> Result<bool, Error> {
        if self.observed.record.routed || self.observed.record.frozen_for.is_some() {
            return Ok(false);
        }
        let rivals = check::rivals(&self.client, &self.migration).await?;
        let has_one = !rivals.is_empty();
        if has_one {
            self.blockers = rivals;
        }
        Ok(has_one)
    }

    async fn copy(&mut self) -> Result<(), Error> {
        if self.seen.verified == Verified::SourceMoved {
            self.seen.copies = self.seen.copies.saturating_add(1);
        }
        if !self.kinds_are_current().await? {
            return Ok(());
        }
        let found = self.work()?.mover.copy_all().await?;
        self.seen.verified = Verified::No;
        self.seen.copied = match self.judge(&found) {
            Tried::Blocked => Copied::Refused,
            Tried::Conflicts => Copied::Conflicts,
            Tried::Clean | Tried::Unknown => Copied::Yes,
        };
        if self.seen.copied == Copied::Yes {
            let message = "every object has its target";
            let progress = found.progress.clone();
            self.record_stage(condition::COPIED, message, |status| {
                status.progress = Some(progress.clone());
            })
            .await?;
        }
        Ok(())
    }

    async fn verify(&mut self) -> Result<(), Error> {
        if !self.kinds_are_current().await? {
            return Ok(());
        }
        // What was written at another version since the check.
        self.refused = versions::hidden_content(&self.client, &self.work()?.mover).await?;
        if self.refuse() {
            return Ok(());
        }
        let found = self.work()?.mover.verify_all().await?;
        if found.conflicts > 0 {
            self.found = self.work()?.mover.findings();
            self.seen.copied = Copied::Conflicts;
            return Ok(());
        }
        self.seen.verified = if found.wrong_total > 0 {
            self.message = found.wrong.first().map(|first| Redacted::ours(first.clone()));
            Verified::Failed
        } else if found.moved > 0 {
            Verified::SourceMoved
        } else {
            Verified::Yes
        };
        if self.seen.verified == Verified::Yes {
            let message = "every source and every target was read again";
            self.record_stage(condition::VERIFIED, message, |_| {}).await?;
        }
        Ok(())
    }

    /// The commit. Right before it: the policies are those under which everything was copied, every API server refuses, the
    /// flags are set, the target CRDs answer, and they are those by which everything was read.
    async fn commit(&mut self) -> Result<(), Error> {
        let how = Drain::parse(&self.migration.spec.freeze.drain)
            .map_err(|error| Error::Invalid(error.to_string()))?;
        if self.migration.spec.freeze.admission {
            let still_drained = self.work()?.freeze.drained(how).await?.is_over();
            if !still_drained || self.our_locks().await? != self.locks_probed {
                self.locks_probed.clear();
                self.seen.denies = Denies::NotYet;
                return Ok(());
            }
        }
        if let Some(route) = self.route_handle().filter(|_| self.observed.wants.route) {
            let now = route.observe().await?;
            if self.routed_by.as_deref() != Some(uid_of(&now)) {
                self.routed_by = None;
                self.seen.routed_everywhere = false;
                return Ok(());
            }
        }
        let saved = self.migration.status.clone().unwrap_or_default().saved.flags;
        for (flag, saved) in self.migration.spec.freeze.flags.iter().zip(&saved) {
            if saved.comes_with_copy() {
                continue; // the target guard keeps it as it was copied
            }
            let now = self.flag_places.read(&self.client, flag).await?;
            if now.value.as_ref() != Some(&flag.frozen) {
                return Ok(()); // the next look decides what that means
            }
        }
        // Last of all: under another schema the targets may not hold what was read.
        if !self.kinds_are_current().await? {
            return Ok(());
        }
        let now = self.now().await;
        self.record_stage(
            condition::CONVERGED,
            "everything is copied and verified",
            |status| {
                status.phase = Some(DatastorePhase::Converged);
                status.converged_at = Some(now.clone());
            },
        )
        .await
    }
}
