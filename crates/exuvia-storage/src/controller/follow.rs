//! Beside a running sweep: metrics and progress, and the end of it when there is no more reason for it.

use std::convert::Infallible;
use std::time::Duration;

use exuvia_api::StorageMigration;
use exuvia_runtime::Signal;
use exuvia_sweep::{Control, Progress, Tally};
use exuvia_write::ErrorClass;
use tokio::sync::{oneshot, watch};

use super::world::SeenMigration;
use super::{StorageController, status};
use crate::engine::Activity;
use crate::protocol::Pass;

/// Metrics of a running sweep move this often.
const MEASURE_EVERY: Duration = Duration::from_secs(1);
/// So many of those make a write of the status: people look at it, and each write costs the API server something.
const PUBLISH_EVERY: u32 = 5;

/// A running sweep, for what happens beside it.
pub(super) struct Beside<'a> {
    pub(super) seen: &'a SeenMigration,
    pub(super) pass: Option<&'a Pass>,
    pub(super) control: &'a Control,
    pub(super) activity: &'a watch::Receiver<Option<Activity>>,
    /// Whether its objects are counted as rewritten or not.
    pub(super) rewriting: bool,
    pub(super) signal: &'a Signal,
}

impl StorageController {
    /// Does something, with metrics and progress beside it; it is cancelled when there is no more reason for it.
    /// `migration` is as it was last written afterwards.
    pub(super) async fn accompany<T>(
        &self,
        beside: &Beside<'_>,
        migration: &mut StorageMigration,
        doing: impl Future<Output = T>,
    ) -> T {
        let (running, over) = oneshot::channel::<Infallible>();
        let doing = async {
            let done = doing.await;
            drop(running);
            done
        };
        // The last write of the progress is waited for: it must not come after what is told next.
        let both = async { tokio::join!(doing, self.follow_sweep(beside, migration, over)) };
        let watching = async {
            self.cancel_when_void(beside).await;
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            // First of all: nothing shall begin that has become void meanwhile.
            biased;
            never = watching => match never {},
            (done, ()) = both => done,
        }
    }

    /// Metrics every second, the status every few, until it is over.
    async fn follow_sweep(
        &self,
        beside: &Beside<'_>,
        migration: &mut StorageMigration,
        mut over: oneshot::Receiver<Infallible>,
    ) {
        let counted = CountedSweep {
            controller: self,
            resource: &beside.seen.resource,
            activity: beside.activity,
            rewriting: beside.rewriting,
            before: Tally::default().into(),
        };
        loop {
            for _ in 0..PUBLISH_EVERY {
                tokio::select! {
                    biased;
                    _ = &mut over => {
                        // Otherwise what comes next tells of the whole sweep.
                        if beside.control.is_cancelled() {
                            self.tell_progress(beside, migration).await;
                        }
                        return;
                    }
                    () = tokio::time::sleep(MEASURE_EVERY) => counted.measure(),
                }
            }
            self.tell_progress(beside, migration).await;
        }
    }

    /// Writes how far the sweep is. If that cannot be told now it is told in a few seconds, or never: no harm.
    async fn tell_progress(&self, beside: &Beside<'_>, migration: &mut StorageMigration) {
        let Some(progress) = progress_of(beside.activity) else {
            return;
        };
        let api = self.migrations();
        for _ in 0..2 {
            let written = self
                .writer
                .once()
                .patch_status_locked(&api, migration, |migration| {
                    migration.status.get_or_insert_default().progress = Some(status::running(&progress));
                })
                .await;
            match written {
                Ok(written) => {
                    *migration = written.object;
                    return;
                }
                Err(error) if error.class() == ErrorClass::Conflict => {
                    let Ok(Some(fresh)) = api.get_opt(&beside.seen.name).await else {
                        return;
                    };
                    *migration = fresh;
                }
                Err(_) => return,
            }
        }
    }

    /// Cancels when the operator stops, or when the migration or its CRD is no longer what the pass is about.
    pub(super) async fn cancel_when_void(&self, beside: &Beside<'_>) {
        loop {
            tokio::select! {
                () = beside.signal.stopping() => break,
                () = beside.signal.changed() => {}
            }
            if !self.still_wants(beside.seen, beside.pass) {
                break;
            }
        }
        beside.control.cancel();
    }

    fn still_wants(&self, seen: &SeenMigration, pass: Option<&Pass>) -> bool {
        let world = self.world();
        let active = world.decide(&seen.resource, &self.settings.operator).active;
        let same_spec =
            active.is_some_and(|active| active.uid == seen.uid && active.generation == seen.generation);
        let same_crd = match (pass, world.crd(&seen.resource)) {
            (Some(pass), Some(crd)) => pass.uid == crd.uid && pass.generation == crd.generation,
            // A built-in resource has no CRD, and a pass without a uid.
            (Some(pass), None) => pass.uid.is_empty(),
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

/// What came of the last sweep of this process, if it has come to its end.
pub(super) fn swept(activity: &watch::Receiver<Option<Activity>>) -> Option<Tally> {
    let progress = progress_of(activity)?;
    (progress.total == Some(progress.done())).then_some(progress.tally)
}

fn is_rewriting(activity: &watch::Receiver<Option<Activity>>) -> bool {
    matches!(&*activity.borrow(), Some(Activity::Rewriting(_)))
}
