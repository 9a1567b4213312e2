//! What happens while a step runs: its progress is shown, its objects are counted, and it ends when it has become void.

use std::convert::Infallible;
use std::sync::Mutex;

use exuvia_api::StorageMigration;
use exuvia_runtime::Signal;
use exuvia_runtime::publish::{Extent, Running};
use exuvia_sweep::{Control, Progress, Tally};
use tokio::sync::watch;

use super::metrics::ObjectCounter;
use super::world::SeenMigration;
use super::{StorageController, lock, status};
use crate::RewriteTally;
use crate::engine::Activity;
use crate::protocol::{Pass, StepKind};

/// What a running step is about, and what cancels it.
pub(super) struct Cause<'a> {
    pub(super) seen: &'a SeenMigration,
    pub(super) pass: Option<&'a Pass>,
    pub(super) control: &'a Control,
    pub(super) signal: &'a Signal,
}

impl StorageController {
    /// Does a step with its progress shown; it is cancelled when it has become void. `migration` is as it was last written
    /// afterwards.
    pub(super) async fn accompany<T>(
        &self,
        cause: &Cause<'_>,
        migration: &mut StorageMigration,
        running: &RunningStep<'_>,
        doing: impl Future<Output = T>,
    ) -> T {
        let watching = async {
            self.cancel_when_void(cause).await;
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            // First: nothing must begin that has become void meanwhile.
            biased;
            never = watching => match never {},
            done = self.publisher.accompany(migration, running, doing) => done,
        }
    }

    /// Cancels when the operator stops, or when the migration or its CRD is no longer what the pass is about.
    pub(super) async fn cancel_when_void(&self, cause: &Cause<'_>) {
        let was_seen = self.world().crd(&cause.seen.resource).is_some();
        loop {
            tokio::select! {
                () = cause.signal.stopping() => break,
                () = cause.signal.changed() => {}
            }
            if !self.still_wants(cause.seen, cause.pass, was_seen) {
                break;
            }
        }
        cause.control.cancel();
    }

    /// `was_seen`: the watch had shown the CRD when the step began.
    fn still_wants(&self, seen: &SeenMigration, pass: Option<&Pass>, was_seen: bool) -> bool {
        let world = self.world();
        let active = world.decide(&seen.resource, &self.settings.operator).active;
        let same_spec =
            active.is_some_and(|active| active.uid == seen.uid && active.generation == seen.generation);
        let same_crd = match (pass, world.crd(&seen.resource)) {
            (Some(pass), Some(crd)) => pass.uid == crd.uid && pass.generation == crd.generation,
            // A CRD that the watch has not shown yet is there nevertheless: the engine has read it.
            (Some(pass), None) => pass.is_built_in() || !was_seen,
            (None, _) => true,
        };
        same_spec && same_crd
    }
}

/// A running step. The objects of a rewrite sweep are counted as they are done.
pub(super) struct RunningStep<'a> {
    pub(super) resource: &'a str,
    pub(super) step: Option<StepKind>,
    pub(super) control: &'a Control,
    pub(super) activity: &'a watch::Receiver<Option<Activity>>,
    pub(super) objects: &'a ObjectCounter,
    pub(super) counted: Mutex<Tally>,
}

impl Running<StorageMigration> for RunningStep<'_> {
    fn extent(&self) -> Option<Extent> {
        let progress = progress_of(self.activity)?;
        Some(Extent {
            remaining: progress.total.unwrap_or_default().saturating_sub(progress.done()),
            rate: progress.rate,
        })
    }

    fn show(&self, migration: &mut StorageMigration) -> bool {
        let progress = progress_of(self.activity);
        if let Some(progress) = &progress {
            migration.status.get_or_insert_default().progress = Some(status::running(progress));
        }
        progress.is_some()
    }

    fn measure(&self) {
        let is_rewrite = |step: Option<StepKind>| step == Some(StepKind::Rewrite);
        let doing = self.activity.borrow().as_ref().map(|activity| activity.step);
        if let Some(progress) =
            progress_of(self.activity).filter(|_| is_rewrite(self.step) && is_rewrite(doing))
        {
            let before = std::mem::replace(&mut *lock(&self.counted), progress.tally);
            self.objects.add(self.resource, before, progress.tally);
        }
    }

    fn is_cancelled(&self) -> bool {
        self.control.is_cancelled()
    }
}

fn progress_of(activity: &watch::Receiver<Option<Activity>>) -> Option<Progress> {
    let activity = activity.borrow();
    let progress = activity.as_ref()?.progress.as_ref()?;
    let now = progress.borrow().clone();
    Some(now)
}

/// What came of the last sweep of this process, if it has come to its end.
pub(super) fn swept(activity: &watch::Receiver<Option<Activity>>) -> Option<RewriteTally> {
    let progress = progress_of(activity)?;
    (progress.total == Some(progress.done())).then(|| progress.tally.into())
}
