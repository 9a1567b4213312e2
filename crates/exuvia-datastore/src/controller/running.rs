//! What happens while a step runs: its progress is shown, its objects are counted, and it ends when it has become void.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use exuvia_api::{DatastoreMigration, DatastoreProgress};
use exuvia_runtime::Signal;
use exuvia_runtime::publish::{Extent, Running};
use exuvia_sweep::Control;

use super::DatastoreController;
use super::metrics::{Counted, Meters};
use super::status::{before_the_copy, with_totals_of};
use crate::copy::Findings;
use crate::lock::lock;
use crate::protocol::Step;

/// A running step.
pub(super) struct RunningStep<'a> {
    pub(super) step: Option<Step>,
    pub(super) began: Instant,
    /// The migration when the step began.
    pub(super) migration: DatastoreMigration,
    pub(super) findings: Option<Arc<Mutex<Findings>>>,
    pub(super) control: &'a Control,
    pub(super) meters: &'a Meters,
    pub(super) counted: &'a Mutex<Counted>,
}

impl RunningStep<'_> {
    fn is_copy(&self) -> bool {
        matches!(self.step, Some(Step::Copy | Step::Sync))
    }

    /// How far it is; `None`: it is not one that goes through all objects.
    fn progress(&self) -> Option<DatastoreProgress> {
        let is_copy = self.is_copy();
        let goes_through_all = is_copy || matches!(self.step, Some(Step::Try | Step::TryAgain));
        let findings = self.findings.as_ref().filter(|_| goes_through_all)?;
        let progress = lock(findings).progress.clone();
        let before = self
            .migration
            .status
            .as_ref()
            .and_then(|status| status.progress.as_ref());
        Some(if is_copy {
            with_totals_of(progress, before)
        } else {
            before_the_copy(progress)
        })
    }
}

impl Running<DatastoreMigration> for RunningStep<'_> {
    fn extent(&self) -> Option<Extent> {
        let progress = self.progress().filter(|_| self.is_copy())?;
        let done = progress.migrated + progress.skipped + progress.conflicts;
        let remaining = u64::try_from(progress.total - done).unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "objects are fewer than 2^52")]
        let rate = done as f64 / self.began.elapsed().as_secs_f64().max(1.0);
        Some(Extent { remaining, rate })
    }

    fn show(&self, migration: &mut DatastoreMigration) -> bool {
        let Some(progress) = self.progress() else {
            return false;
        };
        let status = migration.status.get_or_insert_default();
        let is_new = status.progress.as_ref() != Some(&progress);
        status.progress = Some(progress);
        is_new
    }

    fn measure(&self) {
        if self.is_copy()
            && let Some(findings) = &self.findings
        {
            let progress = lock(findings).progress.clone();
            self.meters.count(&mut lock(self.counted), &progress);
        }
        self.meters.show_frozen(&self.migration);
    }

    fn is_cancelled(&self) -> bool {
        self.control.is_cancelled()
    }
}

impl DatastoreController {
    /// Does a step with its progress shown. It is cancelled when the process stops, when somebody deletes the migration,
    /// or hands it to another operator.
    pub(super) async fn accompany<T>(
        &self,
        migration: &mut DatastoreMigration,
        running: &RunningStep<'_>,
        signal: &Signal,
        doing: impl Future<Output = T>,
    ) -> T {
        let name = running.migration.metadata.name.clone().unwrap_or_default();
        let is_wanted = running.migration.metadata.deletion_timestamp.is_none();
        let watching = async {
            loop {
                tokio::select! {
                    () = signal.stopping() => break,
                    () = signal.changed() => {}
                }
                let world = self.world();
                if is_wanted && world.is_leaving(&name) || world.is_of_another(&name) {
                    break;
                }
            }
            running.control.cancel();
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            // First: nothing must begin that has become void meanwhile.
            biased;
            never = watching => match never {},
            done = self.publisher.accompany(migration, running, doing) => done,
        }
    }
}
