//! The controller: keeps one `StorageMigration` per CRD that has opted in, and carries migrations out with the engine.

mod metrics;
mod migrate;
mod moved;
mod options;
mod running;
mod status;
mod teller;
mod updates;
mod verdict;
mod words;
mod world;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use exuvia_api::{
    MADE_BY_LABEL, MADE_BY_OPERATOR, OPERATOR_ANNOTATION, Phase, StorageMigration, StorageMigrationSpec,
    reason,
};
use exuvia_runtime::publish::{Publisher, StallCause};
use exuvia_runtime::{
    Controller, Events, Metrics, Next, Queue, Seen, Signal, Synced, follow, follow_metadata,
};
use exuvia_write::{Delete, Name, Redacted, Writer, redacted};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ListParams, ObjectMeta};
use kube::{Api, Client, Config, Resource, ResourceExt};

use self::metrics::ObjectCounter;
use self::migrate::Parked;
use self::status::{Migrations, StatusUpdate};
use self::world::{SeenMigration, World};
use crate::{Error, OptIn, Options};

/// Every reason for which a migration can be stalled, for metrics.
pub const STALL_REASONS: [&str; 10] = [
    reason::PREFLIGHT,
    reason::PRUNING,
    reason::SERVER_BEHIND,
    reason::NOT_PROVEN,
    reason::FAILURES,
    reason::FORBIDDEN,
    reason::NO_SUCH_RESOURCE,
    reason::DUPLICATE,
    reason::INVALID_SPEC,
    reason::SERVER_ERRORS,
];

/// How many names a page of the watches' lists holds: what a CRD's metadata weighs is mostly managedFields.
const PAGE: u32 = 50;

/// What the controller is told.
#[derive(Clone)]
pub struct ControllerSettings {
    /// Which CRDs are managed.
    pub opt_in: OptIn,
    /// What a `StorageMigration` that does not say otherwise is done with.
    pub defaults: Options,
    /// This operator's name among others in the cluster: the namespace and name of its Lease.
    pub operator: String,
    /// Whether ownerReferences are looked for before a version is called droppable: that takes `list` on everything.
    pub look_at_references: bool,
    /// How often it is looked again whether versions may be dropped, once a migration is done: a client may have begun to use
    /// one since.
    pub look_again: Duration,
}

/// Migrates what `StorageMigration`s ask for, and makes them for CRDs that have opted in.
///
/// Nothing is remembered outside the cluster but what can be forgotten: an engine that waits, and what the watches saw.
pub struct StorageController {
    config: Config,
    client: Client,
    watching: Client,
    writer: Writer,
    metrics: Metrics,
    objects: ObjectCounter,
    publisher: Publisher<Migrations>,
    settings: ControllerSettings,
    world: Mutex<World>,
    /// Engines that wait for a time to pass, by resource.
    parked: Mutex<HashMap<String, Parked>>,
    /// How often in a row something failed, by resource.
    failed: Mutex<HashMap<String, u32>>,
    /// The generation of the migration that was last worked on, by resource.
    looked_at: Mutex<HashMap<String, Option<i64>>>,
}

impl fmt::Debug for StorageController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageController").finish_non_exhaustive()
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

impl<E: Into<Error>> From<E> for ReconcileError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl StorageController {
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
        settings: ControllerSettings,
    ) -> Self {
        Self {
            objects: ObjectCounter::register(&metrics),
            publisher: Publisher::new(Api::all(client.clone()), writer.clone(), events, &metrics),
            config,
            client,
            watching,
            writer,
            metrics,
            settings,
            world: Mutex::default(),
            parked: Mutex::default(),
            failed: Mutex::default(),
            looked_at: Mutex::default(),
        }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    /// Forgets what this process did as the leader.
    fn forget_work(&self) {
        lock(&self.parked).clear();
        lock(&self.failed).clear();
        lock(&self.looked_at).clear();
        self.publisher.gauges().forget_all();
    }

    fn migrations(&self) -> Api<StorageMigration> {
        Api::all(self.client.clone())
    }

    /// Watches CRDs, nothing but their metadata.
    async fn watch_crds(&self, queue: &Queue, on_sync: impl Fn() + Send + Sync) {
        let crds: Api<CustomResourceDefinition> = Api::all(self.watching.clone());
        let config = ListParams::default().limit(PAGE);
        follow_metadata(
            crds,
            config,
            &self.metrics,
            "customresourcedefinitions",
            |seen| match seen {
                Seen::Applied(crd) => {
                    if self.world().see_crd(&crd.metadata, &self.settings.opt_in) {
                        queue.add(crd.name_any());
                    }
                }
                Seen::Deleted(crd) => self.lose_crd(&crd.name, queue),
                Seen::Synced => on_sync(),
            },
        )
        .await;
    }

    fn lose_crd(&self, name: &str, queue: &Queue) {
        if self.world().lose_crd(name) {
            queue.add(name);
        }
    }

    async fn watch_migrations(&self, queue: &Queue, on_sync: impl Fn() + Send + Sync) {
        let config = ListParams::default().limit(PAGE);
        follow(
            Api::<StorageMigration>::all(self.watching.clone()),
            config,
            &self.metrics,
            "storagemigrations",
            |seen| match seen {
                Seen::Applied(migration) => {
                    let concerned = self.world().see_migration(&migration);
                    for resource in concerned {
                        queue.add(resource);
                    }
                }
                Seen::Deleted(migration) => self.lose_migration(&migration.name, queue),
                Seen::Synced => on_sync(),
            },
        )
        .await;
    }

    fn lose_migration(&self, name: &str, queue: &Queue) {
        let concerned = self.world().lose_migration(name);
        if let Some(resource) = concerned {
            queue.add(resource);
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

    async fn make(&self, crd: &str, uid: String) -> Result<(), Error> {
        let mut migration = StorageMigration::new(
            crd,
            StorageMigrationSpec {
                resource: crd.to_owned(),
                ..StorageMigrationSpec::default()
            },
        );
        let owner = OwnerReference {
            api_version: CustomResourceDefinition::api_version(&()).into_owned(),
            kind: CustomResourceDefinition::kind(&()).into_owned(),
            name: crd.to_owned(),
            uid,
            ..OwnerReference::default()
        };
        // All of it: `new` gives an object the labels and annotations that are meant for its CRD.
        migration.metadata = ObjectMeta {
            name: Some(crd.to_owned()),
            labels: Some([(MADE_BY_LABEL.into(), MADE_BY_OPERATOR.into())].into()),
            annotations: Some([(OPERATOR_ANNOTATION.into(), self.settings.operator.clone())].into()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        };
        let same = |found: &StorageMigration| found.spec.resource == crd;
        self.writer
            .create_or_adopt(&self.migrations(), &migration, same)
            .await
            .map_err(Error::Publish)?;
        Ok(())
    }

    async fn remove(&self, migration: &SeenMigration) -> Result<(), Error> {
        let mut gone = StorageMigration::new(&migration.name, StorageMigrationSpec::default());
        gone.metadata.uid = Some(migration.uid.clone());
        let deleted = self
            .writer
            .delete(&self.migrations(), &gone, &Delete::default())
            .await;
        deleted.map_err(Error::Publish)?;
        tracing::info!(migration = %migration.name, "removed: its CRD does not take part any more");
        Ok(())
    }

    /// Says of a younger one that an older one works.
    async fn stand_by(&self, duplicate: &SeenMigration, older: &SeenMigration) -> Result<(), Error> {
        let api = self.migrations();
        let Some(mut migration) = api.get_opt(&duplicate.name).await? else {
            return Ok(());
        };
        let message = redacted!(
            "StorageMigration {} is older and works on {}",
            Name(&older.name),
            Name(&older.resource)
        );
        let cause = StallCause {
            reason: reason::DUPLICATE,
            message: message.clone(),
        };
        self.publisher.warn(&migration, None, &cause).await;
        let update = StatusUpdate::new(Phase::Stalled, message, Some(cause));
        let written = self.publisher.write_status(&mut migration, &update).await;
        written.map_err(Error::Publish)
    }

    async fn reconcile_resource(&self, resource: &str, signal: &Signal) -> Result<Next, Error> {
        let decision = self.world().decide(resource, &self.settings.operator);
        for migration in &decision.remove {
            self.remove(migration).await?;
        }
        if let Some(uid) = decision.make {
            self.make(resource, uid).await?;
        }
        let Some(active) = decision.active else {
            lock(&self.parked).remove(resource);
            self.publisher.gauges().forget(resource);
            return Ok(Next::Await); // what was made or removed comes back through the watch
        };
        for duplicate in &decision.duplicates {
            self.stand_by(duplicate, &active).await?;
        }
        self.migrate(&active, signal).await
    }
}

impl Controller for StorageController {
    type Error = ReconcileError;

    fn name(&self) -> &'static str {
        "storagemigration"
    }

    fn crd(&self) -> &'static str {
        "storagemigrations.exuvia.dev"
    }

    async fn watch(&self, queue: Queue, synced: Synced) {
        let seen = Mutex::new((false, false));
        let done = |part: fn(&mut (bool, bool)) -> &mut bool| {
            let mut seen = lock(&seen);
            *part(&mut seen) = true;
            if *seen == (true, true) {
                synced.done();
            }
        };
        tokio::join!(
            self.watch_crds(&queue, || done(|seen| &mut seen.0)),
            self.watch_migrations(&queue, || done(|seen| &mut seen.1)),
        );
    }

    fn forget(&self) {
        *self.world() = World::default();
        self.forget_work();
    }

    fn step_down(&self, queue: &Queue) {
        self.forget_work();
        for resource in self.world().resources() {
            queue.add(resource);
        }
    }

    async fn reconcile(&self, resource: &str, signal: Signal) -> Result<Next, ReconcileError> {
        match self.reconcile_resource(resource, &signal).await {
            Ok(next) => {
                lock(&self.failed).remove(resource);
                Ok(next)
            }
            // It takes the migrations with it and lets nobody make new ones: this is expected, and soon over.
            Err(Error::Publish(_)) if self.is_leaving().await => Ok(Next::Await),
            Err(error) => {
                let times = {
                    let mut failed = lock(&self.failed);
                    let times = failed.entry(resource.to_owned()).or_default();
                    *times += 1;
                    *times
                };
                self.tell_of(resource, &error, times).await;
                Err(error.into())
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
