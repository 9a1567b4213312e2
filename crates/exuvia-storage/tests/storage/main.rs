//! Storage migration on a real API server. What was stored is read from etcd, with no code of the thing under test.
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]
#![allow(clippy::unwrap_used)] // a test may panic

mod concealed;
mod edges;
mod gate;
mod healthy;
mod hidden;
mod life;
mod not_a_list;
mod obstacles;
mod ownership;
mod proof;
mod scenarios;
mod stale;
mod uncounted;

use std::collections::BTreeSet;
use std::time::Duration;

use exuvia_runtime::machine::Machine;
use exuvia_storage::protocol::NextStep;
use exuvia_storage::{Engine, MigrationReport, Options};
use exuvia_testenv::oracle::{held_at, stored_versions};
use exuvia_testenv::proxy::Proxy;
use exuvia_testenv::{ControlPlane, Widgets};
use exuvia_write::Writer;
use kube::{Client, Config};

/// A settle time that tests can wait for.
const SETTLE: Duration = Duration::from_millis(300);

/// One CRD on the shared control plane.
struct Bench {
    control_plane: &'static ControlPlane,
    client: Client,
    widgets: Widgets,
}

impl Bench {
    /// `count` widgets stored at v1alpha1, then the storage version flipped to v1.
    async fn flipped(group: &str, count: usize) -> Self {
        let bench = Self::installed(group).await;
        bench
            .widgets
            .create(&bench.client, "v1alpha1", count)
            .await
            .unwrap();
        bench.widgets.flip_storage(&bench.client, "v1").await.unwrap();
        bench
    }

    /// The CRD with v1alpha1 as storage version, and no object.
    async fn installed(group: &str) -> Self {
        let control_plane = ControlPlane::shared().await;
        let client = control_plane.client().unwrap();
        let widgets = Widgets::in_group(format!("{group}.example.com"));
        widgets.install(&client, "v1alpha1").await.unwrap();
        Self {
            control_plane,
            client,
            widgets,
        }
    }

    fn options(&self) -> Options {
        let server = self.control_plane.apiserver().url().parse().unwrap();
        Options {
            settle: SETTLE,
            api_servers: vec![server],
            ..Options::default()
        }
    }

    fn engine(&self, options: Options) -> Engine {
        self.engine_over(&self.control_plane.admin().config().unwrap(), options)
    }

    fn engine_over(&self, config: &Config, options: Options) -> Engine {
        let writer = Writer::named("exuvia-test");
        let client = writer.connect(config.clone()).unwrap();
        Engine::new(config, client, writer, self.widgets.crd_name(), options)
    }

    /// An engine whose every request goes through the proxy.
    fn engine_through(&self, proxy: &Proxy, options: Options) -> Engine {
        let access = self.control_plane.admin().clone().at(proxy.url());
        self.engine_over(&access.config().unwrap(), options)
    }

    async fn migrate(&self) -> MigrationReport {
        self.engine(self.options()).run().await.unwrap()
    }

    async fn stored_versions(&self) -> Vec<String> {
        self.widgets.stored_versions(&self.client).await.unwrap()
    }

    /// How many objects etcd holds at this version.
    async fn stored_at(&self, version: &str) -> usize {
        let counts = self.widgets.stored_at(self.control_plane).await.unwrap();
        counts.get(version).copied().unwrap_or_default()
    }

    /// Name and uid of every object, from etcd's bytes.
    async fn identities(&self) -> BTreeSet<(String, String)> {
        let stored = self
            .control_plane
            .stored(self.widgets.group(), "widgets")
            .all()
            .await
            .unwrap();
        stored
            .iter()
            .map(|stored| {
                let uid = stored.json().unwrap()["metadata"]["uid"]
                    .as_str()
                    .unwrap()
                    .to_owned();
                (stored.key.clone(), uid)
            })
            .collect()
    }

    /// The oracle: at the etcd revision at which the CRD lost a version, no object was stored at it.
    async fn assert_trimmed_rightly(&self, dropped: &str) {
        let now = stored_versions(self.control_plane, &self.widgets).await;
        let now = now.unwrap().unwrap();
        assert!(!now.listed.iter().any(|listed| listed == dropped), "{now:?}");
        let held = held_at(self.control_plane, &self.widgets, dropped, now.revision).await;
        let left = held.unwrap();
        assert!(
            left.is_empty(),
            "stored at {dropped} at the trim's revision: {left:?}"
        );
    }
}

/// Does the next step, or waits for it.
async fn step(engine: &mut Engine) {
    match engine.next().await.unwrap() {
        NextStep::Do(step) => assert_eq!(engine.carry_out(step).await.unwrap(), None),
        NextStep::Wait(time) => tokio::time::sleep(time).await,
        other => panic!("it does not go on: {other:?}"),
    }
}
