//! The runtime: carries controllers from the start of the process to its end.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use kube::Client;
use tokio::{sync::watch, task::JoinSet};

use crate::{Claim, Controller, Health, Metrics, supervise::Supervisor};

/// How the runtime works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeSettings {
    /// Reconciles at once, for each controller.
    pub concurrency: usize,
    /// The longest pause between two tries of a key that fails. The first one is half a second.
    pub max_backoff: Duration,
    /// How long running reconciles may take to end when the process stops.
    pub grace: Duration,
}

/// What all controllers share.
pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) claim: Claim,
    pub(crate) health: Health,
    pub(crate) metrics: Metrics,
    pub(crate) settings: RuntimeSettings,
}

/// Carries controllers.
///
/// Each one waits until its CRD is there, watches, and reconciles while the claim holds. It stops when the CRD goes and
/// starts again when it is back; other CRDs do not matter to it. What one controller does, or fails to do, does not
/// concern the others.
pub struct Runtime {
    shared: Arc<Shared>,
    controllers: Vec<Start>,
}

type Start = Box<dyn FnOnce(watch::Receiver<bool>) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

impl Runtime {
    /// A runtime without controllers.
    pub fn new(
        client: Client,
        claim: Claim,
        health: Health,
        metrics: &Metrics,
        settings: RuntimeSettings,
    ) -> Self {
        let shared = Shared {
            client,
            claim,
            health,
            metrics: metrics.clone(),
            settings,
        };
        Self {
            shared: Arc::new(shared),
            controllers: Vec::new(),
        }
    }

    /// One controller more. The process is not ready until it has seen everything once, or that its CRD is missing.
    pub fn add<C: Controller>(&mut self, controller: C) {
        let supervisor = Supervisor::new(Arc::clone(&self.shared), controller);
        self.controllers
            .push(Box::new(move |stopping| Box::pin(supervisor.run(stopping))));
    }

    /// Runs until `stop`. Then no reconcile is begun any more, those that run are told, and have `grace` to end.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) {
        let (stopping, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for start in self.controllers {
            tasks.spawn(start(stopped.clone()));
        }
        self.shared.health.running();
        stop.await;
        tracing::info!("stopping");
        self.shared.health.draining();
        stopping.send_replace(true);
        // Each keeps to the grace period by itself.
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a controller's main loop failed");
            }
        }
        tracing::info!("stopped");
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("controllers", &self.controllers.len())
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}
