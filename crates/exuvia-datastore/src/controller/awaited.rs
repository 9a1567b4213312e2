//! Watches what migrations that are held wait for, so that they go on when it comes and not when somebody looks again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use exuvia_runtime::{Metrics, Queue, Seen, follow_metadata};
use kube::api::DynamicObject;
use kube::{Api, Client, ResourceExt};
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};

use crate::engine::Awaited;

/// What each migration that is held waits for.
type Held = BTreeMap<String, BTreeSet<Awaited>>;

/// Between two looks because of objects that count by name.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// Where any object of a kind counts: a busy kind must not keep the migration looking.
const BETWEEN_LOOKS_AT_ANY: Duration = Duration::from_secs(10);

/// What is waited for, as the reconciles say it.
#[derive(Debug, Default)]
pub(super) struct Awaiting(watch::Sender<Held>);

impl Awaiting {
    /// This is what the migration waits for now; nothing: it does not wait.
    pub(super) fn set(&self, migration: &str, awaited: &BTreeSet<Awaited>) {
        self.0.send_if_modified(|held| {
            if awaited.is_empty() {
                held.remove(migration).is_some()
            } else {
                let before = held.insert(migration.to_owned(), awaited.clone());
                before.as_ref() != Some(awaited)
            }
        });
    }

    /// Nobody waits for anything.
    pub(super) fn clear(&self) {
        self.0.send_replace(Held::new());
    }

    /// Watches all of it, for ever. A watch goes on for as long as its migration waits for the same.
    pub(super) async fn follow(&self, client: &Client, metrics: &Metrics, queue: &Queue) {
        let mut changes = self.0.subscribe();
        let mut tasks = JoinSet::new(); // dropped, it ends them all
        let mut running: BTreeMap<(String, Awaited), AbortHandle> = BTreeMap::new();
        loop {
            let held = changes.borrow_and_update().clone();
            let wanted: BTreeSet<(String, Awaited)> = held
                .into_iter()
                .flat_map(|(name, all)| all.into_iter().map(move |awaited| (name.clone(), awaited)))
                .collect();
            running.retain(|key, task| {
                let stays = wanted.contains(key);
                if !stays {
                    task.abort();
                }
                stays
            });
            for (name, awaited) in wanted {
                let key = (name.clone(), awaited.clone());
                running.entry(key).or_insert_with(|| {
                    tasks.spawn(wake_at_changes(
                        client.clone(),
                        metrics.clone(),
                        queue.clone(),
                        name,
                        awaited,
                    ))
                });
            }
            while tasks.try_join_next().is_some() {}
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Wakes the migration at each change, and once when the watch has begun: what changed between the look and then is not seen.
async fn wake_at_changes(
    client: Client,
    metrics: Metrics,
    queue: Queue,
    migration: String,
    awaited: Awaited,
) {
    let resource = awaited.resource();
    let api: Api<DynamicObject> = match awaited.namespace() {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    };
    let pause = if awaited.is_by_name() {
        BETWEEN_LOOKS
    } else {
        BETWEEN_LOOKS_AT_ANY
    };
    let changed = Arc::new(Notify::new());
    let waking = async {
        loop {
            changed.notified().await;
            queue.add(migration.as_str());
            tokio::time::sleep(pause).await;
        }
    };
    let mut is_listed = false;
    let watching = follow_metadata(api, awaited.which(), &metrics, "awaited", |seen| {
        let counts = match seen {
            Seen::Applied(object) => {
                is_listed && awaited.counts(&object.namespace().unwrap_or_default(), &object.name_any())
            }
            Seen::Deleted(object) => {
                awaited.counts(object.namespace.as_deref().unwrap_or_default(), &object.name)
            }
            Seen::Synced => {
                is_listed = true;
                true
            }
        };
        if counts {
            changed.notify_one();
        }
    });
    tokio::join!(watching, waking);
}
