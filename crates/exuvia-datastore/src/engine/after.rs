//! The steps after the commit, and those of the way back.

use std::time::{Duration, Instant};

use exuvia_api::{CleanupSource, FlagSide, datastore_condition as condition};
use exuvia_write::{Name, conditions, redacted};

use super::Engine;
use super::observe::{is_gone, uid_of};
use crate::Error;
use crate::copy::TakenBack;
use crate::freeze::{FlagGoal, Form, RetiredFlag, leave_flag, restore_flag, thaw_flag};
use crate::owners::Dependents;
use crate::protocol::{Seen, Waits, cleanup};
use crate::{references, source, waits};

/// For how long our copies are tried to be deleted while the source is frozen, if nobody refuses it for good.
pub(super) const UNDO_PATIENCE: Duration = Duration::from_secs(60);

impl Engine {
    pub(super) async fn thaw(&mut self) -> Result<(), Error> {
        if self.migration.spec.freeze.admission {
            self.work()?
                .freeze
                .set(Form::Committed, self.observed.locks.shield)
                .await?;
            self.work()?.freeze.stop_counting().await?;
        }
        self.restore_flags(FlagGoal::Thaw, |side| side == FlagSide::Target)
            .await
    }

    pub(super) async fn release_source(&mut self) -> Result<(), Error> {
        let shield = self.observed.locks.shield;
        Ok(self.work()?.freeze.set(Form::Converged, shield).await?)
    }

    async fn restore_flags(&self, goal: FlagGoal, which: impl Fn(FlagSide) -> bool) -> Result<(), Error> {
        let writer = self.flag_writer();
        let saved = self.migration.status.clone().unwrap_or_default().saved.flags;
        for saved in &saved {
            let flag = usize::try_from(saved.index)
                .ok()
                .and_then(|index| self.migration.spec.freeze.flags.get(index));
            if let Some(flag) = flag.filter(|flag| which(flag.side)) {
                let restored = if saved.comes_with_copy() {
                    // An undo deletes the copy.
                    if goal == FlagGoal::Undo {
                        continue;
                    }
                    thaw_flag(&self.client, &writer, flag).await
                } else {
                    restore_flag(&self.client, &writer, flag, saved, goal).await
                };
                match restored {
                    // An object that is gone holds nobody.
                    Err(error) if is_gone(&error) => {}
                    restored => drop(restored?),
                }
            }
        }
        Ok(())
    }

    pub(super) async fn rewrite_references(&mut self) -> Result<(), Error> {
        self.rewrite_dependents().await?;
        let work = self.work()?;
        references::rewrite(&self.client, &work.mover, &self.migration).await?;
        self.seen.references = true;
        Ok(())
    }

    async fn rewrite_dependents(&self) -> Result<(), Error> {
        let work = self.work()?;
        if self.migration.spec.references.dependents == exuvia_api::Dependents::Scan {
            let dependents = Dependents {
                client: &self.client,
                kinds: work.mover.owner_kinds(),
                successors: &work.mover,
            };
            let found = dependents.rewrite(&work.mover.writer, &|_| {}).await?;
            let unseen = found.unseen.first().map(|unseen| {
                redacted!(
                    "dependents are not known among {}: {}",
                    Name(&unseen.what),
                    unseen.why.clone()
                )
            });
            // Former uids vanish with the APIService, so the shield stays until everything was looked at. Otherwise the owners
            // still exist: what an API that is down may hold is looked for again before anything is deleted.
            let must_see_all = self.observed.wants.route;
            if found.failed > 0 || (must_see_all && !found.is_complete()) {
                let first = found.left.first().map(|left| left.why.clone());
                return Err(Error::Unfinished {
                    objects: found.failed.max(1),
                    first: first
                        .or(unseen)
                        .unwrap_or_else(|| "dependents still name the source".into()),
                    ambiguous: false,
                });
            }
            if let Some(unseen) = unseen {
                tracing::warn!(migration = %self.name, "{unseen}");
            }
        }
        Ok(())
    }

    pub(super) async fn look_at_waits(&mut self) -> Result<(), Error> {
        let work = self.work()?;
        let waits = waits::look(&self.client, &work.mover.mappings, &self.migration).await?;
        self.seen.waits = if waits.is_none() {
            Waits::Met
        } else {
            Waits::NotMet
        };
        self.message = waits;
        Ok(())
    }

    /// Deletes our copies. What somebody refuses to let us delete, or does not let go within [`UNDO_PATIENCE`], is put on record
    /// as left: writers of the source are not kept waiting for it.
    pub(super) async fn undo_targets(&mut self) -> Result<(), Error> {
        let since = *self.undeletable_since.get_or_insert_with(Instant::now);
        let is_over = since.elapsed() >= UNDO_PATIENCE;
        let mover = &self.work()?.mover;
        let taken = match mover.take_back(None).await {
            Err(Error::Unfinished {
                first,
                ambiguous: false,
                ..
            }) if is_over => TakenBack::failed(&first),
            taken => taken?,
        };
        let still_there = mover.own_targets().await?;
        if still_there > taken.refused && !is_over {
            return Err(Error::Changed("some targets are still being deleted"));
        }
        self.message = taken.first_changed().map(|first| {
            redacted!(
                "{} was changed by somebody else, and is left as it is",
                Name(&first)
            )
        });
        if !taken.refusals.is_empty() {
            self.blockers = taken.refusals;
        }
        let work = self.work()?;
        // The old backend would have answered that none is left.
        if let Some(route) = &work.route
            && self.observed.wants.route
            && !self.observed.wants.second
            && self.routed_by.as_deref() != Some(uid_of(&route.observe().await?))
        {
            self.routed_by = None;
            self.seen.routed_everywhere = false;
            return Ok(());
        }
        let left = i64::try_from(still_there).unwrap_or(i64::MAX);
        let was_left = self.observed.record.copies_left;
        self.record(|status, _| {
            conditions::remove(&mut status.conditions, condition::ROUTED);
            status.saved.copies_left = left;
            // Nothing is locked any more.
            status.frozen_at = status.frozen_at.take().filter(|_| !was_left);
        })
        .await?;
        self.seen.tried_copies_left = was_left;
        self.undeletable_since = None;
        Ok(())
    }

    pub(super) async fn undo_flags(&mut self) -> Result<(), Error> {
        self.restore_flags(FlagGoal::Undo, |_| true).await
    }

    pub(super) async fn end_undo(&mut self) -> Result<(), Error> {
        self.record_undone().await?;
        self.seen = Seen::default();
        self.work = None;
        self.counting_since = None;
        self.flags_set_at = None;
        self.locks_probed.clear();
        self.probed_at = None;
        self.routed_by = None;
        Ok(())
    }

    pub(super) async fn clean_up(&mut self) -> Result<(), Error> {
        match cleanup(&self.observed) {
            CleanupSource::KeepFrozen => self.keep_frozen().await?,
            CleanupSource::Thaw => {
                self.restore_flags(FlagGoal::Thaw, |side| side == FlagSide::Source)
                    .await?;
                self.remove_locks().await?;
            }
            CleanupSource::DeleteCrds => {
                // PITFALLS D22: those that were made since the commit would be collected with the source.
                self.rewrite_dependents().await?;
                let converged_at = self.migration.status.clone().unwrap_or_default().converged_at;
                let mover = &self.work()?.mover;
                let blockers = source::delete(&self.client, mover, converged_at.as_ref()).await?;
                if !blockers.is_empty() {
                    self.blockers = blockers;
                    self.seen.cleaned = Some(false);
                    return Ok(());
                }
                // PITFALLS D35: the freeze is removed after the CRDs.
                self.remove_locks().await?;
            }
        }
        self.seen.cleaned = Some(true);
        Ok(())
    }

    /// The source stays frozen, and says what its flags were: this migration will not be there to be asked.
    async fn keep_frozen(&self) -> Result<(), Error> {
        let saved = self.migration.status.clone().unwrap_or_default().saved.flags;
        let mut kept = Vec::new();
        for saved in saved {
            let flag = usize::try_from(saved.index)
                .ok()
                .and_then(|index| self.migration.spec.freeze.flags.get(index));
            if let Some(flag) = flag.filter(|flag| flag.side == FlagSide::Source) {
                let flag = flag.clone();
                kept.push(RetiredFlag { flag, saved });
            }
        }
        if self.migration.spec.freeze.admission {
            return Ok(self.work()?.freeze.retire(&kept).await?);
        }
        for flag in &kept {
            match leave_flag(&self.client, &self.flag_writer(), flag, &self.name).await {
                // An object that is gone holds nobody.
                Err(error) if is_gone(&error) => {}
                left => left?,
            }
        }
        Ok(())
    }

    /// Where the spec wants no policies, nobody may have the right to look at any.
    /// The garbage collector is let go after everybody else.
    pub(super) async fn remove_locks_but_shield(&self) -> Result<(), Error> {
        if self.migration.spec.freeze.admission {
            self.work()?.freeze.remove_but_shield().await?;
        }
        Ok(())
    }

    pub(super) async fn remove_locks(&self) -> Result<(), Error> {
        let freeze = &self.work()?.freeze;
        if self.migration.spec.freeze.admission {
            freeze.remove().await?;
        } else if self.observed.locks.shield {
            freeze.set_shield(false).await?;
        }
        Ok(())
    }
}
