//! The steps of the mode `SyncThenFreeze`: targets are kept in step while writers go on, and catch up under the freeze.

use exuvia_api::{DatastoreMigrationSpec, datastore_condition as condition};
use exuvia_write::conditions;

use super::Engine;
use super::routing::read_aliases;
use crate::Error;
use crate::copy::{Follower, Kept};
use crate::protocol::{Copied, Route, Stage, Synced, Verified};

impl Engine {
    /// The follower is of use on the way to the commit only, and for the spec that it works by. Without one nothing is known
    /// to be in step; and a freeze does not begin while much is left.
    pub(super) fn look_at_follower(&mut self, stage: Stage) {
        let spec = followed_spec(&self.migration.spec);
        self.follower = self
            .follower
            .take()
            .filter(|(followed, _)| stage == Stage::Moving && self.observed.wants.sync && *followed == spec)
            .filter(|(_, follower)| {
                let work = self.work.as_ref();
                work.is_some_and(|work| follower.follows(&work.mover))
            });
        if self.seen.synced != Synced::Yes {
            return;
        }
        let is_frozen = self.observed.record.frozen_for.is_some();
        let keeps_up = |follower: &Follower| is_frozen || !follower.is_far_behind();
        if !self
            .follower
            .as_ref()
            .is_some_and(|(_, follower)| keeps_up(follower))
        {
            self.seen.synced = Synced::No;
            self.seen.aliases &= !self.observed.wants.second;
        }
    }

    /// While a human is waited for before the freeze, every look copies what has changed since the last one. So a conflict shows
    /// while nobody is refused, and the freeze that follows is short. What fails is the step's matter, which is then taken.
    pub(super) async fn keep_in_step_while_held(&mut self, stage: Stage) {
        let (wants, record) = (&self.observed.wants, &self.observed.record);
        let is_held = stage == Stage::Moving && wants.sync && wants.hold && record.frozen_for.is_none();
        if is_held && !wants.suspend && self.seen.synced == Synced::Yes && self.sync().await.is_err() {
            self.seen.synced = Synced::No;
        }
    }

    pub(super) async fn sync(&mut self) -> Result<(), Error> {
        let spec = followed_spec(&self.migration.spec);
        // While it is worked with it is not kept: if this is dropped in between, nothing is known.
        let mut follower = match self.follower.take() {
            Some((_, follower)) => follower,
            None => Box::pin(self.begin_to_follow()).await?,
        };
        let kept = self.work()?.mover.keep_in_step(&mut follower).await;
        self.message = follower.waits_for().or_else(|| follower.lag());
        self.follower = Some((spec, follower));
        let kept = kept?;
        self.found = self.work()?.mover.findings();
        self.blockers.clone_from(&self.found.blockers);
        self.seen.synced = match kept {
            Kept::InStep => Synced::Yes,
            Kept::Behind => Synced::No,
            Kept::Conflicts => Synced::Conflicts,
            Kept::Refused => Synced::Refused,
            Kept::Wrong(why) => {
                self.message = Some(why);
                Synced::Failed
            }
            Kept::Lost => {
                self.read_everything_again();
                Synced::No
            }
        };
        Ok(())
    }

    /// What the other API server calls objects is written to their copies, so it is read first.
    async fn begin_to_follow(&mut self) -> Result<Follower, Error> {
        if self.observed.wants.second && self.observed.locks.route == Route::Backend {
            self.look_for_unshown().await?;
            read_aliases(self.work()?).await?;
        }
        self.work()?.mover.follow().await
    }

    pub(super) async fn catch_up(&mut self) -> Result<(), Error> {
        let Some((spec, mut follower)) = self.follower.take() else {
            self.read_everything_again();
            return Ok(());
        };
        let kept = self.work()?.mover.catch_up(&mut follower).await;
        self.follower = Some((spec, follower));
        let kept = kept?;
        self.found = self.work()?.mover.findings();
        self.blockers.clone_from(&self.found.blockers);
        match kept {
            Kept::InStep => {
                (self.seen.copied, self.seen.verified) = (Copied::Yes, Verified::Yes);
                let progress = self.found.progress.clone();
                // One write: writers are waiting.
                self.record(|status, migration| {
                    for (stage, message) in [
                        (condition::COPIED, "every object has its target"),
                        (
                            condition::VERIFIED,
                            "every source and every target was read again",
                        ),
                    ] {
                        let condition = conditions::new(migration, stage, true, stage, message);
                        conditions::set(&mut status.conditions, condition);
                    }
                    status.progress = Some(progress.clone());
                })
                .await?;
            }
            Kept::Behind => {}
            Kept::Conflicts => self.seen.copied = Copied::Conflicts,
            Kept::Refused => self.seen.copied = Copied::Refused,
            Kept::Wrong(why) => {
                self.message = Some(why);
                self.seen.verified = Verified::Failed;
            }
            Kept::Lost => self.read_everything_again(),
        }
        Ok(())
    }
}

impl Engine {
    /// Kinds, sources and targets: nothing that was seen of them counts any more.
    pub(super) fn read_everything_again(&mut self) {
        self.follower = None;
        self.seen.synced = Synced::No;
        // What the other API server calls new objects is read with it.
        self.seen.aliases &= !self.observed.wants.second;
        (self.seen.copied, self.seen.verified) = (Copied::No, Verified::No);
        if let Some(work) = &mut self.work {
            work.generation = None;
        }
    }

    /// Whether the CRDs are still those that everything was read by; otherwise everything is read again.
    pub(super) async fn kinds_are_current(&mut self) -> Result<bool, Error> {
        let is_current = self.work()?.mover.kinds.are_current(&self.client).await?;
        if !is_current {
            self.read_everything_again();
        }
        Ok(is_current)
    }
}

/// The parts of a spec that decide what becomes of objects. The others may change on the way.
fn followed_spec(spec: &DatastoreMigrationSpec) -> DatastoreMigrationSpec {
    DatastoreMigrationSpec {
        mappings: spec.mappings.clone(),
        references: spec.references.clone(),
        conflicts: spec.conflicts.clone(),
        ..DatastoreMigrationSpec::default()
    }
}
