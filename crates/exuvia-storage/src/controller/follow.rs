//! Beside a running sweep: metrics and progress, and the end of it when there is no more reason for it.

use std::time::Duration;

use exuvia_api::StorageMigration;
use exuvia_runtime::Signal;
use exuvia_sweep::{Control, Progress, Tally};
use tokio::sync::watch;

use super::world::SeenMigration;
use super::{StorageController, status};
use crate::engine::Activity;
use crate::protocol::Pass;

/// Metrics of a running sweep move this often.
const MEASURE_EVERY: Duration = Duration::from_secs(1);
/// So many of those make a write of the status: people look at it, and each write costs the API server something.
const PUBLISH_EVERY: u32 = 5;

impl StorageController {
    /// Metrics every second, the status every few: never returns.
    pub(super) async fn follow_sweep(
        &self,
        seen: &SeenMigration,
        migration: &StorageMigration,
        activity: watch::Receiver<Option<Activity>>,
        rewriting: bool,
    ) {
        let counted = CountedSweep {
            controller: self,
            resource: &seen.resource,
            activity: &activity,
            rewriting,
            before: Tally::default().into(),
        };
        let mut migration = migration.clone();
        loop {
            for _ in 0..PUBLISH_EVERY {
                tokio::time::sleep(MEASURE_EVERY).await;
                counted.measure();
            }
            let Some(progress) = progress_of(&activity) else {
                continue;
            };
            let written = self
                .writer
                .patch_status(&self.migrations(), &migration, |migration| {
                    migration.status.get_or_insert_default().progress = Some(status::running(&progress));
                })
                .await;
            // A progress that cannot be told now is told in a few seconds, or never: no harm.
            if let Ok(written) = written {
                migration = written.object;
            }
        }
    }

    /// Cancels when the operator stops, or when the migration or its CRD is no longer what the pass is about.
    pub(super) async fn cancel_when_void(
        &self,
        seen: &SeenMigration,
        pass: Option<&Pass>,
        control: &Control,
        signal: &Signal,
    ) {
        loop {
            tokio::select! {
                () = signal.stopping() => break,
                () = signal.changed() => {}
            }
            if !self.still_wants(seen, pass) {
                break;
            }
        }
        control.cancel();
    }

    fn still_wants(&self, seen: &SeenMigration, pass: Option<&Pass>) -> bool {
        let world = self.world();
        let active = world.decide(&seen.resource).active;
        let same_spec =
            active.is_some_and(|active| active.uid == seen.uid && active.generation == seen.generation);
        let same_crd = match (pass, world.crd(&seen.resource)) {
            (Some(pass), Some(crd)) => pass.uid == crd.uid && pass.generation == crd.generation,
            (Some(_), None) => false,
            (None, _) => true,
        };
        same_spec && same_crd
    }
}

/// Counts the objects of a sweep as they are done, those since the last look included when it ends or is dropped.
struct CountedSweep<'a> {
    controller: &'a StorageController,
    resource: &'a str,
    activity: &'a watch::Receiver<Option<Activity>>,
    rewriting: bool,
    before: std::cell::Cell<Tally>,
}

impl CountedSweep<'_> {
    fn measure(&self) {
        let Some(progress) = progress_of(self.activity) else {
            return;
        };
        self.controller.own_metrics.progress(self.resource, &progress);
        if self.rewriting && is_rewriting(self.activity) {
            let before = self.before.replace(progress.tally);
            self.controller
                .own_metrics
                .objects(self.resource, before, progress.tally);
        }
    }
}

impl Drop for CountedSweep<'_> {
    fn drop(&mut self) {
        self.measure();
    }
}

fn progress_of(activity: &watch::Receiver<Option<Activity>>) -> Option<Progress> {
    match &*activity.borrow() {
        Some(
            Activity::Rewriting(progress) | Activity::Verifying(progress) | Activity::Patrolling(progress),
        ) => Some(progress.borrow().clone()),
        _ => None,
    }
}

fn is_rewriting(activity: &watch::Receiver<Option<Activity>>) -> bool {
    matches!(&*activity.borrow(), Some(Activity::Rewriting(_)))
}
