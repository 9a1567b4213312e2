//! The controller: carries out every `DatastoreMigration` of a cluster with the engine, and says how each one stands.

mod awaited;
mod driver;
mod metrics;
mod migrate;
mod running;
mod status;
mod teller;
mod words;
mod world;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use exuvia_api::DatastoreMigration;
use exuvia_runtime::publish::Publisher;
use exuvia_runtime::rights::Rule;
use exuvia_runtime::{
    Controller, Events, Metrics, Next, Queue, Seen, Signal, Synced, follow, follow_metadata,
};
use exuvia_write::{Redacted, Writer};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, Client, Config, ResourceExt};

use self::awaited::Awaiting;
use self::metrics::Meters;
use self::migrate::Work;
use self::status::Migrations;
use self::world::World;
use crate::Error;
use crate::lock::lock;

/// How many names a page of the watches' lists holds: what a CRD's metadata weighs is mostly managedFields.
const PAGE: u32 = 50;

/// What the controller is told.
#[derive(Clone, Debug)]
pub struct DatastoreSettings {
    /// API servers to ask directly, in addition to those that the cluster lists.
    pub api_servers: Vec<http::Uri>,
    /// What stands in the way is watched. It is also looked at this often, for what cannot be watched, such as rights.
    pub look_again: Duration,
    /// This operator's name among others in the cluster: the namespace and name of its Lease. Migrations that bear another one's
    /// name are left alone. Empty: this is the only one.
    pub operator: String,
}

impl Default for DatastoreSettings {
    fn default() -> Self {
        Self {
            api_servers: Vec::new(),
            look_again: Duration::from_secs(10),
            operator: String::new(),
        }
    }
}

/// Carries out what `DatastoreMigration`s ask for.
///
/// What must survive a crash is in their status. An engine is kept while it waits; one that is forgotten costs time, no data.
pub struct DatastoreController {
    config: Config,
    client: Client,
    watching: Client,
    writer: Writer,
    metrics: Metrics,
    meters: Meters,
    publisher: Publisher<Migrations>,
    settings: DatastoreSettings,
    world: Mutex<World>,
    /// Engines that wait, by the migration's name.
    works: Mutex<HashMap<String, Work>>,
    /// Migrations that were left to another operator, by name, with that operator: it is told once.
    left: Mutex<HashMap<String, String>>,
    awaiting: Awaiting,
}

impl fmt::Debug for DatastoreController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatastoreController").finish_non_exhaustive()
    }
}

/// What made a reconcile fail. It shows no values: error texts of servers may quote them (PITFALLS B27).
#[derive(Debug)]
pub struct ReconcileError(Error);

impl fmt::Display for ReconcileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Redacted::from_error(&self.0).fmt(f)
    }
}

impl std::error::Error for ReconcileError {}

impl DatastoreController {
    /// A controller. `config` is what the clients were made from: API servers are asked one by one with it. `watching` is for
    /// watches, which may be silent for longer than an answer should take. `writer` should have the gate of a leader
    /// election.
    pub fn new(
        config: Config,
        client: Client,
        watching: Client,
        writer: Writer,
        events: Events,
        metrics: Metrics,
        settings: DatastoreSettings,
    ) -> Self {
        Self {
            meters: Meters::register(&metrics),
            publisher: Publisher::new(Api::all(client.clone()), writer.clone(), events, &metrics),
            config,
            client,
            watching,
            writer,
            metrics,
            settings,
            world: Mutex::default(),
            works: Mutex::default(),
            left: Mutex::default(),
            awaiting: Awaiting::default(),
        }
    }

    /// What the controller needs before any migration is bound. [`rights::of_migration`](crate::rights::of_migration) has what
    /// one migration needs.
    pub fn rights() -> Vec<Rule> {
        crate::rights::of_controller()
    }

    fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    fn migrations(&self) -> Api<DatastoreMigration> {
        Api::all(self.client.clone())
    }

    /// A migration is gone: without this its gauges would be shown for ever.
    fn forget_migration(&self, name: &str) {
        self.world().hold(name, false);
        self.awaiting.set(name, &BTreeSet::new());
        lock(&self.works).remove(name);
        lock(&self.left).remove(name);
        self.publisher.gauges().forget(name);
        self.meters.forget(name);
    }

    /// Forgets what this process did as the leader.
    fn forget_work(&self) {
        lock(&self.works).clear();
        lock(&self.left).clear();
        self.awaiting.clear();
        self.publisher.gauges().forget_all();
        self.meters.forget_all();
    }

    async fn watch_migrations(&self, queue: &Queue, on_sync: impl Fn() + Send + Sync) {
        follow(
            Api::<DatastoreMigration>::all(self.watching.clone()),
            ListParams::default().limit(PAGE),
            &self.metrics,
            "datastoremigrations",
            |seen| {
                let woken = match seen {
                    Seen::Applied(migration) => {
                        let other = self.other_driver(&migration).is_some();
                        self.world().see(&migration, other)
                    }
                    Seen::Deleted(migration) => self.world().lose(&migration.name),
                    Seen::Synced => {
                        on_sync();
                        Vec::new()
                    }
                };
                wake(queue, woken);
            },
        )
        .await;
    }

    /// A CRD that comes or changes may be what a migration waits for.
    async fn watch_crds(&self, queue: &Queue) {
        follow_metadata(
            Api::<CustomResourceDefinition>::all(self.watching.clone()),
            ListParams::default().limit(PAGE),
            &self.metrics,
            "customresourcedefinitions",
            |seen| {
                let woken = match seen {
                    Seen::Applied(crd) => self.world().see_crd(&crd.name_any()),
                    Seen::Deleted(crd) => self.world().see_crd(&crd.name),
                    Seen::Synced => Vec::new(),
                };
                wake(queue, woken);
            },
        )
        .await;
    }

    /// Locks whose migration was removed while no operator ran.
    async fn wake_abandoned(&self, queue: &Queue) {
        match self.abandoned().await {
            Ok(abandoned) => wake(queue, abandoned.into_iter().map(|left| left.migration).collect()),
            Err(error) => {
                let error = Redacted::from_error(&error);
                tracing::debug!(%error, "whether a migration has left locks is not known");
            }
        }
    }

    /// Whether our own CRD is being deleted, or is gone: the server says so before the watch does.
    async fn is_leaving(&self) -> bool {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        match crds.get_metadata_opt(self.crd()).await {
            Ok(found) => found.is_none_or(|crd| crd.metadata.deletion_timestamp.is_some()),
            Err(_) => false,
        }
    }
}

fn wake(queue: &Queue, names: Vec<String>) {
    for name in names {
        queue.add(name);
    }
}

impl Controller for DatastoreController {
    type Error = ReconcileError;

    fn name(&self) -> &'static str {
        "datastoremigration"
    }

    fn crd(&self) -> &'static str {
        "datastoremigrations.exuvia.dev"
    }

    async fn watch(&self, queue: Queue, synced: Synced) {
        tokio::join!(
            self.watch_migrations(&queue, || synced.done()),
            self.watch_crds(&queue),
            self.awaiting.follow(&self.watching, &self.metrics, &queue),
            self.wake_abandoned(&queue),
        );
    }

    fn forget(&self) {
        *self.world() = World::default();
        self.forget_work();
    }

    fn step_down(&self, queue: &Queue) {
        self.forget_work();
        wake(queue, self.world().names());
    }

    async fn reconcile(&self, name: &str, signal: Signal) -> Result<Next, ReconcileError> {
        match self.migrate(name, &signal).await {
            Ok(next) => Ok(next),
            Err(error) if signal.is_stopping() => {
                let error = Redacted::from_error(&error);
                tracing::debug!(migration = name, %error, "stopped in the middle of a step");
                Ok(Next::Await)
            }
            // It takes the migrations with it: this is expected, and soon over.
            Err(_) if self.is_leaving().await => Ok(Next::Retry),
            Err(error) => Err(ReconcileError(error)),
        }
    }
}
