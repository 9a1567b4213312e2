//! A small controller that says what it goes through, and a runtime that carries it.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use exuvia_runtime::{
    Claim, Controller, Health, Metrics, Next, Queue, Runtime, RuntimeSettings, Seen, Signal, Synced, follow,
};
use futures::FutureExt;
use kube::{Api, Client, ResourceExt, api::ListParams};
use tokio::{
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        oneshot,
    },
    task::JoinHandle,
};

use crate::{Stage, Widget, soon};

type Reconcile = Pin<Box<dyn Future<Output = Result<Next, Bad>> + Send>>;

/// How the controller of a test reconciles.
pub(crate) type Behaviour = Arc<dyn Fn(&str, Signal) -> Reconcile + Send + Sync>;

#[derive(Debug, thiserror::Error)]
#[error("it went badly")]
pub(crate) struct Bad;

/// What a controller went through.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    Watches,
    Forgets,
    Began(String),
    Ended(String),
    /// The reconcile was dropped before its end.
    CutOff(String),
}

pub(crate) fn began(key: &str) -> Happened {
    Happened::Began(key.to_owned())
}

pub(crate) fn ended(key: &str) -> Happened {
    Happened::Ended(key.to_owned())
}

struct Keeper {
    api: Api<Widget>,
    crd: &'static str,
    metrics: Metrics,
    tell: UnboundedSender<Happened>,
    behaviour: Behaviour,
    running: Mutex<HashMap<String, usize>>,
}

impl Controller for Keeper {
    type Error = Bad;

    fn name(&self) -> &'static str {
        "keeper"
    }

    fn crd(&self) -> &'static str {
        self.crd
    }

    async fn watch(&self, queue: Queue, synced: Synced) {
        self.tell.send(Happened::Watches).ok();
        follow(
            self.api.clone(),
            ListParams::default().limit(2),
            &self.metrics,
            "widgets",
            |seen| match seen {
                Seen::Applied(widget) => queue.add(widget.name_any()),
                Seen::Deleted(widget) => queue.add(widget.name),
                Seen::Synced => synced.done(),
            },
        )
        .await;
    }

    fn forget(&self) {
        self.tell.send(Happened::Forgets).ok();
    }

    async fn reconcile(&self, key: &str, signal: Signal) -> Result<Next, Bad> {
        /// Says what became of a reconcile, whatever becomes of it.
        struct Told<'a>(&'a Keeper, &'a str, bool);
        impl Drop for Told<'_> {
            fn drop(&mut self) {
                let Self(keeper, key, ended) = *self;
                *keeper.running.lock().unwrap().get_mut(key).unwrap() -= 1;
                let happened = if ended { Happened::Ended } else { Happened::CutOff };
                keeper.tell.send(happened(key.to_owned())).ok();
            }
        }
        let at_once = {
            let mut running = self.running.lock().unwrap();
            let running = running.entry(key.to_owned()).or_default();
            *running += 1;
            *running
        };
        assert_eq!(at_once, 1, "never twice at once for one key");
        let mut told = Told(self, key, false);
        self.tell.send(began(key)).ok();
        let result = (self.behaviour)(key, signal).await;
        told.2 = true;
        result
    }
}

/// A runtime with one controller, and what is known of it.
pub(crate) struct Carried {
    pub(crate) health: Health,
    pub(crate) metrics: Metrics,
    pub(crate) happenings: UnboundedReceiver<Happened>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Carried {
    pub(crate) fn start(stage: &Stage, client: &Client, claim: &Claim, behaviour: Behaviour) -> Self {
        let (tell, happenings) = unbounded_channel();
        let (health, metrics) = (Health::new(), Metrics::new("test"));
        let settings = RuntimeSettings {
            concurrency: 2,
            max_backoff: Duration::from_secs(1),
            grace: Duration::from_secs(2),
        };
        let mut runtime = Runtime::new(client.clone(), claim.clone(), health.clone(), &metrics, settings);
        runtime.add(Keeper {
            api: stage.api(client),
            crd: stage.widgets.crd_name().leak(),
            metrics: metrics.clone(),
            tell,
            behaviour,
            running: Mutex::default(),
        });
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(runtime.run(stopped.map(drop)));
        Self {
            health,
            metrics,
            happenings,
            stop,
            task,
        }
    }

    pub(crate) async fn next(&mut self) -> Happened {
        soon(self.happenings.recv()).await.unwrap()
    }

    /// These come next, in whatever order.
    pub(crate) async fn shows(&mut self, mut expected: Vec<Happened>) {
        while !expected.is_empty() {
            let happened = self.next().await;
            let at = expected.iter().position(|expected| *expected == happened);
            expected.remove(at.unwrap_or_else(|| panic!("{happened:?} instead of {expected:?}")));
        }
    }

    pub(crate) fn begin_stop(&mut self) {
        let (other, _) = oneshot::channel();
        std::mem::replace(&mut self.stop, other).send(()).unwrap();
    }

    /// Stops it, and returns what happened until the end.
    pub(crate) async fn stop(mut self) -> Vec<Happened> {
        if !self.stop.is_closed() {
            self.begin_stop();
        }
        soon(self.task).await.unwrap();
        assert!(!self.health.is_ready(), "it drains");
        assert!(self.health.is_live());
        std::iter::from_fn(|| self.happenings.try_recv().ok()).collect()
    }

    pub(crate) fn shows_metric(&self, line: &str) -> bool {
        self.metrics.encode().lines().any(|own| own == line)
    }
}

pub(crate) fn at_ease() -> Behaviour {
    Arc::new(|_, _| async { Ok(Next::Await) }.boxed())
}
