//! One controller's life: waits for its CRD, watches, reconciles while it leads, drains.

use std::{collections::HashMap, future::Future, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    task::{Id, JoinError, JoinHandle, JoinSet},
    time::Instant,
};

use crate::{
    Controller, Next, Queue, Signal, Synced,
    crd::{self, Crd},
    metrics::ControllerMeters,
    queue::{Fate, WorkQueue},
    runtime::Shared,
};

/// Often enough to be seen well within the minute after which a loop counts as stuck.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// A watch that ends or panics is a defect of the controller's; this keeps it from becoming a hot loop.
const WATCH_AGAIN: Duration = Duration::from_secs(2);

pub(crate) struct Supervisor<C: Controller> {
    shared: Arc<Shared>,
    controller: Arc<C>,
    queue: Arc<WorkQueue>,
    meters: ControllerMeters,
    check: String,
}

/// Why a session ended.
#[derive(Debug, PartialEq, Eq)]
enum Over {
    /// The process stops.
    Stopping,
    /// The CRD went, is another one, or is not served any more.
    CrdGone,
    /// The controller's watch ended or panicked.
    WatchEnded,
}

impl<C: Controller> Supervisor<C> {
    pub(crate) fn new(shared: Arc<Shared>, controller: C) -> Self {
        let name = controller.name();
        let meters = shared.metrics.of_controller(name);
        let most = i64::try_from(shared.settings.concurrency).unwrap_or(i64::MAX);
        meters.most.set(most);
        let queue = WorkQueue::new(shared.settings.max_backoff, shared.metrics.of_queue(name));
        let queue = Arc::new(queue);
        shared.metrics.observe_queue(&queue);
        let check = format!("controller {name}");
        shared.health.expect(&check, "waiting for its first sync");
        Self {
            shared,
            controller: Arc::new(controller),
            queue,
            meters,
            check,
        }
    }

    /// Runs until `stopping` is true and everything has ended.
    pub(crate) async fn run(self, stopping: watch::Receiver<bool>) {
        let name = self.controller.name();
        let (tell, crd) = watch::channel(Crd::Unknown);
        tokio::select! {
            () = self.live(crd, stopping) => {}
            () = crd::follow_crd(&self.shared, self.controller.crd(), &self.check, &tell) => {}
            () = self.beat() => {}
        }
        self.shared.health.rest(name);
    }

    async fn beat(&self) {
        loop {
            self.shared.health.beat(self.controller.name());
            tokio::time::sleep(HEARTBEAT).await;
        }
    }

    async fn live(&self, mut crd: watch::Receiver<Crd>, stopping: watch::Receiver<bool>) {
        let controller = self.controller.name();
        loop {
            let now = crd.borrow_and_update().clone();
            let Crd::Established(uid) = now else {
                if now == Crd::Missing {
                    let needed = self.controller.crd();
                    tracing::warn!(
                        controller,
                        crd = needed,
                        "waiting for the controller's CRD, which is not installed"
                    );
                    self.shared
                        .health
                        .passed(&self.check, &format!("waits for crd {needed}"));
                }
                tokio::select! {
                    biased;
                    () = is_true(stopping.clone()) => return,
                    _ = crd.changed() => continue,
                }
            };
            tracing::info!(controller, "controller started");
            let over = self.session(crd.clone(), &uid, stopping.clone()).await;
            if over == Over::Stopping {
                return;
            }
            tracing::info!(controller, why = ?over, "controller stopped");
            self.queue.clear();
            self.controller.forget();
            if over == Over::WatchEnded {
                tokio::select! {
                    biased;
                    () = is_true(stopping.clone()) => return,
                    () = tokio::time::sleep(WATCH_AGAIN) => {}
                }
            }
        }
    }

    /// From the CRD's coming to its going, or to the end of the process.
    async fn session(
        &self,
        mut crd: watch::Receiver<Crd>,
        uid: &str,
        stopping: watch::Receiver<bool>,
    ) -> Over {
        // What a watch of before may have left.
        self.queue.clear();
        let (say, synced) = watch::channel(false);
        let mut watching = self.watching(Synced(say));
        let mut team = Team::new(self, stopping);
        let over = tokio::select! {
            biased;
            _ = crd.wait_for(|crd| !matches!(crd, Crd::Established(same) if same == uid)) => Over::CrdGone,
            ended = &mut watching.0 => {
                let error = ended.err().map(|error| describe(&error));
                tracing::error!(
                    controller = self.controller.name(),
                    error,
                    "the controller's watch ended unexpectedly; restarting it"
                );
                Over::WatchEnded
            }
            () = team.work(synced) => Over::Stopping,
        };
        team.dismiss().await;
        watching.end().await;
        over
    }

    fn watching(&self, synced: Synced) -> Ending {
        let controller = Arc::clone(&self.controller);
        let queue = Queue(Arc::clone(&self.queue));
        Ending(tokio::spawn(async move { controller.watch(queue, synced).await }))
    }
}

/// A task that ends with its handle.
struct Ending(JoinHandle<()>);

impl Ending {
    /// Ends it, and waits until it has: what it still does must not come after what follows.
    async fn end(mut self) {
        self.0.abort();
        if !self.0.is_finished() {
            let _ = (&mut self.0).await;
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The reconciles of one session.
struct Team<'a, C: Controller> {
    supervisor: &'a Supervisor<C>,
    stopping: watch::Receiver<bool>,
    tasks: JoinSet<Result<Next, C::Error>>,
    running: HashMap<Id, Run>,
}

struct Run {
    key: String,
    began: Instant,
}

impl<'a, C: Controller> Team<'a, C> {
    fn new(supervisor: &'a Supervisor<C>, stopping: watch::Receiver<bool>) -> Self {
        Self {
            supervisor,
            stopping,
            tasks: JoinSet::new(),
            running: HashMap::new(),
        }
    }

    /// Waits for the first sync, then reconciles whenever the claim holds, until it is time to stop; then drains.
    async fn work(&mut self, synced: watch::Receiver<bool>) {
        let Supervisor { shared, check, .. } = self.supervisor;
        let stop = is_true(self.stopping.clone());
        tokio::pin!(stop);
        // A reconcile before that would take what it has not seen yet for missing.
        tokio::select! {
            biased;
            () = &mut stop => return,
            () = is_true(synced) => shared.health.passed(check, "synced"),
        }
        loop {
            tokio::select! {
                biased;
                () = &mut stop => return,
                () = shared.claim.gained() => {}
            }
            tokio::select! {
                biased;
                () = shared.claim.lost() => {}
                () = self.lead(&mut stop) => {
                    // Without the claim they could not write anyway.
                    tokio::select! {
                        () = shared.claim.lost() => {}
                        () = self.drain() => {}
                    }
                    return;
                }
            }
            self.dismiss().await;
            let Supervisor {
                controller, queue, ..
            } = self.supervisor;
            controller.step_down(&Queue(Arc::clone(queue)));
        }
    }

    /// Begins reconciles as keys come and takes their results, until `stop`.
    async fn lead(&mut self, stop: impl Future<Output = ()>) {
        let Supervisor { shared, queue, .. } = self.supervisor;
        tokio::pin!(stop);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => return,
                Some(ended) = self.tasks.join_next_with_id() => self.ended(ended),
                (key, changed) = queue.next(), if self.tasks.len() < shared.settings.concurrency.max(1) => {
                    self.begin(key, changed);
                }
            }
        }
    }

    /// Lets those that run come to their end, within the grace period.
    async fn drain(&mut self) {
        let grace = self.supervisor.shared.settings.grace;
        let all = async {
            while let Some(ended) = self.tasks.join_next_with_id().await {
                self.ended(ended);
            }
        };
        if tokio::time::timeout(grace, all).await.is_err() {
            let keys: Vec<&str> = self.running.values().map(|run| run.key.as_str()).collect();
            let controller = self.supervisor.controller.name();
            tracing::warn!(
                controller,
                ?keys,
                "cancelled: did not finish within the grace period"
            );
        }
    }

    fn begin(&mut self, key: String, changed: Arc<Notify>) {
        let controller = Arc::clone(&self.supervisor.controller);
        let signal = Signal {
            changed,
            stopping: self.stopping.clone(),
        };
        let task = self.tasks.spawn({
            let key = key.clone();
            async move { controller.reconcile(&key, signal).await }
        });
        let began = Instant::now();
        self.running.insert(task.id(), Run { key, began });
        self.supervisor.meters.active.inc();
    }

    fn ended(&mut self, ended: Result<(Id, Result<Next, C::Error>), JoinError>) {
        let Supervisor {
            controller,
            queue,
            meters,
            ..
        } = self.supervisor;
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let Some(Run { key, began }) = self.running.remove(&id) else {
            return;
        };
        meters.active.dec();
        meters.time.observe(began.elapsed().as_secs_f64());
        let (result, fate, error) = match ended {
            Ok((_, Ok(Next::Await))) => ("success", Fate::Rest, None),
            Ok((_, Ok(Next::After(delay)))) => ("requeue_after", Fate::After(delay), None),
            Ok((_, Ok(Next::Retry))) => ("requeue", Fate::BackOff, None),
            Ok((_, Err(error))) => ("error", Fate::BackOff, Some(error.to_string())),
            Err(error) => ("error", Fate::BackOff, Some(describe(&error))),
        };
        meters.ended(result);
        let again = queue.done(&key, fate);
        if let Some(error) = error {
            meters.errors.inc();
            let again = again.map(|delay| format!("in {:.1} s", delay.as_secs_f64()));
            tracing::warn!(controller = controller.name(), key, %error, again, "reconcile failed");
        }
    }

    /// Ends all reconciles now, and queues their keys again.
    async fn dismiss(&mut self) {
        self.tasks.shutdown().await;
        for (_, run) in self.running.drain() {
            self.supervisor.meters.active.dec();
            self.supervisor.queue.done(&run.key, Fate::Again);
        }
    }
}

/// When the value becomes true; never, if nobody is left who could make it so.
async fn is_true(mut value: watch::Receiver<bool>) {
    if value.wait_for(|value| *value).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// What a panic said is in the log already, from the panic hook; it may quote what it stumbled over, so not twice.
fn describe(error: &JoinError) -> String {
    if error.is_panic() {
        "it panicked"
    } else {
        "it was cancelled"
    }
    .to_owned()
}
