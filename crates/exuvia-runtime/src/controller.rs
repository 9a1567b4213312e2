//! What a controller is: what it watches, what it reconciles, and what it is told.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::sync::{Notify, watch};

use crate::Queue;

/// A controller of one custom resource. The crate's first page has a complete one.
pub trait Controller: Send + Sync + 'static {
    /// What a reconcile can fail with. It is logged: let it name the object, and hold nothing of its content.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Its name in logs and metrics.
    fn name(&self) -> &'static str;

    /// Its own CRD, such as `widgets.example.dev`: without it the controller waits.
    fn crd(&self) -> &'static str;

    /// Watches for ever, queues the keys of what changed, and says `synced.done()` when everything was seen once.
    ///
    /// Runs on followers too, so that they are warm. It is dropped when the CRD goes, and called again when it is back.
    fn watch(&self, queue: Queue, synced: Synced) -> impl Future<Output = ()> + Send;

    /// Forgets everything watched: the CRD went.
    fn forget(&self);

    /// Forgets what only a leader knows or shows, such as gauges, and queues everything again: the claim was lost, and
    /// another process goes on from here.
    fn step_down(&self, _queue: &Queue) {}

    /// Makes one object as it should be.
    ///
    /// Called after the first sync, only while the claim holds, and never twice at once for one key. When the claim or the
    /// CRD goes the future is dropped, so it must be able to end at any `await`.
    fn reconcile(&self, key: &str, signal: Signal) -> impl Future<Output = Result<Next, Self::Error>> + Send;
}

/// When to look at an object again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// When something changes.
    Await,
    /// After this time, or when something changes.
    After(Duration),
    /// With back-off as after an error, each time a little later: nothing failed, but the object is stalled.
    Retry,
}

/// Lets a controller's watch say that it has seen everything once.
#[derive(Debug)]
pub struct Synced(pub(crate) watch::Sender<bool>);

impl Synced {
    /// Everything was seen once. To say it again changes nothing.
    pub fn done(&self) {
        self.0.send_replace(true);
    }
}

/// What a running reconcile can learn.
#[derive(Debug, Clone)]
pub struct Signal {
    pub(crate) changed: Arc<Notify>,
    pub(crate) stopping: watch::Receiver<bool>,
}

impl Signal {
    /// Waits until the key is queued again. What happened since the last call, or since the reconcile began, counts as
    /// one change. The key is reconciled once more in any case.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Waits until the process wants to end.
    pub async fn stopping(&self) {
        let mut stopping = self.stopping.clone();
        if stopping.wait_for(|stopping| *stopping).await.is_err() {
            // The sender is gone, so nothing can ask us to stop; what drops the reconcile does not wait for it either.
            std::future::pending::<()>().await;
        }
    }

    /// Whether the process wants to end.
    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }
}
