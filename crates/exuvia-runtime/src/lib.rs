//! What every controller needs around its reconcile: lease, write gate, queue, watches, health, metrics, events, logs.
//!
//! kube gives a client and a watcher; between them and a controller that one can leave alone in a cluster lies what this
//! crate has. A complete operator:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use exuvia_runtime::{
//!     Claim, Controller, Health, LeaseSettings, LogFormat, Metrics, Next, Queue, Runtime, RuntimeSettings, Seen, Signal,
//!     Synced, bind, elect, follow, serve, start_logging,
//! };
//! use exuvia_write::Writer;
//! use kube::{
//!     Api, Config, ResourceExt,
//!     api::ListParams,
//!     api::{ApiResource, DynamicObject, GroupVersionKind},
//! };
//! use tokio::sync::watch;
//!
//! /// Marks every widget.
//! struct Marker {
//!     api: Api<DynamicObject>,
//!     writer: Writer,
//!     metrics: Metrics,
//! }
//!
//! impl Controller for Marker {
//!     type Error = exuvia_write::Error;
//!
//!     fn name(&self) -> &'static str {
//!         "marker"
//!     }
//!
//!     fn crd(&self) -> &'static str {
//!         "widgets.example.dev"
//!     }
//!
//!     async fn watch(&self, queue: Queue, synced: Synced) {
//!         let all = ListParams::default();
//!         follow(self.api.clone(), all, &self.metrics, "widgets.example.dev", |seen| match seen {
//!             Seen::Applied(widget) => queue.add(widget.name_any()),
//!             Seen::Synced => synced.done(),
//!             Seen::Deleted(_) => {}
//!         })
//!         .await;
//!     }
//!
//!     fn forget(&self) {} // this one remembers nothing
//!
//!     async fn reconcile(&self, key: &str, _: Signal) -> Result<Next, Self::Error> {
//!         let Ok(widget) = self.api.get(key).await else {
//!             return Ok(Next::Retry);
//!         };
//!         let mark = |widget: &mut DynamicObject| {
//!             widget.annotations_mut().insert("example.dev/marked".to_owned(), "yes".to_owned());
//!         };
//!         self.writer.patch(&self.api, &widget, mark).await?;
//!         Ok(Next::Await)
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let log_level = start_logging(LogFormat::Text, "info")?;
//!     let (health, metrics, claim) = (Health::new(), Metrics::new(env!("CARGO_PKG_VERSION")), Claim::none());
//!     metrics.observe_claim("widget-operator", &claim);
//!     let elector = Writer::named("widget-operator").observe(metrics.observe_writes());
//!     let writer = elector.clone().gate(claim.gate()); // no write without the claim
//!     let client = writer.connect(Config::infer().await?)?;
//!
//!     // Two steps of leaving: first the runtime drains, then the lease is given back and the server ends.
//!     let (leave, left) = watch::channel(false);
//!     let gone = |mut left: watch::Receiver<bool>| async move { drop(left.wait_for(|left| *left).await) };
//!     let listener = bind("[::]:8080").await?;
//!     let server = tokio::spawn(serve(listener, health.clone(), metrics.clone(), log_level, gone(left.clone())));
//!     let lease = LeaseSettings {
//!         namespace: "shop".to_owned(),
//!         name: "widget-operator".to_owned(),
//!         identity: format!("widget-operator_{}", std::process::id()),
//!         duration: Duration::from_secs(15),
//!     };
//!     let election = tokio::spawn(elect(client.clone(), elector, lease, claim.clone(), gone(left)));
//!
//!     let settings = RuntimeSettings {
//!         concurrency: 4,
//!         max_backoff: Duration::from_secs(300),
//!         grace: Duration::from_secs(25),
//!     };
//!     let mut runtime = Runtime::new(client.clone(), claim, health, &metrics, settings);
//!     let widgets = ApiResource::from_gvk(&GroupVersionKind::gvk("example.dev", "v1", "Widget"));
//!     runtime.add(Marker {
//!         api: Api::all_with(client, &widgets),
//!         writer,
//!         metrics: metrics.clone(),
//!     }); // a second controller is one more of these
//!     runtime.run(async { drop(tokio::signal::ctrl_c().await) }).await;
//!
//!     leave.send(true)?;
//!     election.await?;
//!     server.await?;
//!     Ok(())
//! }
//! ```
//!
//! | piece | what it sees to |
//! |---|---|
//! | [`Claim`], [`elect`] | one leader by its own monotonic clock; [`Claim::gate`] lets nothing be written without the claim |
//! | [`Runtime`], [`Controller`] | starts with the CRD, stops with it; reconciles each key once at a time, backs off, drains; a panic is an error |
//! | [`follow`] | a watch that never ends, and that one bad object does not break |
//! | [`Health`], [`serve()`] | `/livez`, `/readyz`, `/metrics`, `/log-level` |
//! | [`Metrics`] | what controllers, queues, writes, watches and the process do, under names that dashboards know |
//! | [`Events`] | each event once, and never too long for the server |
//! | [`rights`] | the rights of an operator, stated by its controllers with reasons; roles and bindings made from them |
//! | [`machine`] | work in steps that survive a crash: what is next, tell, do it |
//! | [`publish`] | status, conditions, events, progress and gauges of one custom resource |
//! | [`start_logging`] | text or JSON, at a level that can be changed while the process runs |
//! | [`servers`] | asks every API server the same question, each by its own client |
//!
//! All but [`machine`], [`servers`] and [`ServerClock`] is the feature `controller`, which is on by default. An engine that a program embeds
//! turns it off, and gets no HTTP server, Prometheus client or log subscriber.

#[cfg(feature = "controller")]
mod book;
#[cfg(feature = "controller")]
mod claim;
mod clock;
#[cfg(feature = "controller")]
mod controller;
#[cfg(feature = "controller")]
mod crd;
#[cfg(feature = "controller")]
mod elect;
#[cfg(feature = "controller")]
mod error;
#[cfg(feature = "controller")]
mod events;
#[cfg(feature = "controller")]
mod health;
#[cfg(feature = "controller")]
mod lease;
#[cfg(feature = "controller")]
mod logs;
pub mod machine;
#[cfg(feature = "controller")]
mod metrics;
#[cfg(feature = "controller")]
pub mod publish;
#[cfg(feature = "controller")]
mod queue;
#[cfg(feature = "controller")]
pub mod rights;
#[cfg(feature = "controller")]
mod runtime;
#[cfg(feature = "controller")]
mod serve;
pub mod servers;
#[cfg(feature = "controller")]
mod supervise;
#[cfg(feature = "controller")]
mod watch;

pub use clock::ServerClock;
#[cfg(feature = "controller")]
pub use {
    claim::Claim,
    controller::{Controller, Next, Signal, Synced},
    elect::{elect, elect_with_health},
    error::Error,
    events::{EventKind, Events},
    exuvia_sweep::Identity,
    health::Health,
    lease::LeaseSettings,
    logs::{LogFormat, LogLevel, start_logging},
    metrics::{MetricDescription, Metrics},
    queue::Queue,
    runtime::{Runtime, RuntimeSettings},
    serve::{bind, serve},
    watch::{Seen, follow, follow_metadata},
};
