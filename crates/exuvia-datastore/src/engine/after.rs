//! The steps after the commit, and those of the way back.

use exuvia_api::{CleanupSource, DatastorePhase, FlagSide};
use exuvia_write::{Name, redacted};

use super::Engine;
use super::steps::BETWEEN_PROBES;
use crate::Error;
use crate::freeze::{FlagGoal, Form, restore_flag};
use crate::owners::Dependents;
use crate::protocol::{Seen, Waits, cleanup};
use crate::{references, source, waits};

impl Engine {
    pub(super) async fn thaw(&mut self) -> Result<(), Error> {
        if self.migration.spec.freeze.admission {
            self.work()?
                .freeze
                .set(Form::Converged, self.observed.locks.shield)
                .await?;
        }
        self.restore_flags(FlagGoal::Thaw, |side| side == FlagSide::Target)
            .await?;
        self.flags_restored = true;
        self.work()?.freeze.stop_counting().await?;
        Ok(())
    }

    async fn restore_flags(&self, goal: FlagGoal, which: impl Fn(FlagSide) -> bool) -> Result<(), Error> {
        let saved = self.migration.status.clone().unwrap_or_default().saved.flags;
        for saved in &saved {
            let flag = usize::try_from(saved.index)
                .ok()
                .and_then(|index| self.migration.spec.freeze.flags.get(index));
            if let Some(flag) = flag.filter(|flag| which(flag.side)) {
                restore_flag(&self.client, &self.writer, flag, saved, goal).await?;
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
            if found.failed > 0 || !found.is_complete() {
                let first = found.left.first().map(|left| left.why.clone());
                let unseen = found.unseen.first().map(|unseen| {
                    redacted!(
                        "cannot look for dependents among {}: {}",
                        Name(&unseen.what),
                        unseen.why.clone()
                    )
                });
                return Err(Error::Unfinished {
                    objects: found.failed.max(1),
                    first: first
                        .or(unseen)
                        .unwrap_or_else(|| "dependents still name the source".into()),
                });
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

    pub(super) async fn undo_targets(&mut self) -> Result<(), Error> {
        let taken = self.work()?.mover.take_back(None).await?;
        if !taken.left.is_empty() {
            self.message = taken.left.first().map(|first| {
                redacted!(
                    "{} was changed by somebody else, and is left as it is",
                    Name(first)
                )
            });
        }
        self.seen.own_targets = Some(self.work()?.mover.own_targets().await?);
        Ok(())
    }

    pub(super) async fn undo_route(&mut self) -> Result<(), Error> {
        let saved = self.migration.status.clone().unwrap_or_default().saved;
        if let Some(route) = &self.work()?.route {
            route.restore(&saved.api_service).await?;
        }
        Ok(())
    }

    pub(super) async fn undo_flags(&mut self) -> Result<(), Error> {
        self.restore_flags(FlagGoal::Undo, |_| true).await?;
        self.flags_restored = true;
        Ok(())
    }

    pub(super) async fn end_undo(&mut self) -> Result<(), Error> {
        let undo = self.observed.record.undo;
        self.record_undone().await?;
        if undo.is_some_and(|undo| undo.then() != DatastorePhase::Failed) {
            self.pause();
        }
        self.seen = Seen::default();
        self.work = None;
        self.counting_since = None;
        self.flags_set_at = None;
        self.locks_probed.clear();
        Ok(())
    }

    pub(super) async fn clean_up(&mut self) -> Result<(), Error> {
        let what = cleanup(&self.observed);
        let work = self.work()?;
        match what {
            CleanupSource::KeepFrozen => work.freeze.retire().await?,
            CleanupSource::Thaw => {
                self.restore_flags(FlagGoal::Thaw, |side| side == FlagSide::Source)
                    .await?;
                self.work()?.freeze.remove().await?;
            }
            CleanupSource::DeleteCrds => {
                if !self.source_is_locked().await? {
                    return Ok(());
                }
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
                self.work()?.freeze.remove().await?;
            }
        }
        self.seen.cleaned = Some(true);
        Ok(())
    }

    /// Whether nobody can make or change a source any more: what is looked at and deleted must be the same objects.
    async fn source_is_locked(&mut self) -> Result<bool, Error> {
        let work = self.work()?;
        if !self.migration.spec.freeze.admission || work.mover.kinds.sources().is_empty() {
            return Ok(true);
        }
        work.freeze.set(Form::Converged, false).await?;
        let probed = work.freeze.probe(Form::Converged, false).await?;
        if probed.all_asked_deny() {
            return Ok(true);
        }
        tokio::time::sleep(BETWEEN_PROBES).await;
        Ok(false)
    }
}
