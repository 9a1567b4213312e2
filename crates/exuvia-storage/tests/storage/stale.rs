//! A server that is behind: it stores at the old version with 200 and a new resourceVersion (PITFALLS A4).

use bytes::Bytes;
use exuvia_runtime::machine::Machine;
use exuvia_storage::protocol::NextStep;
use exuvia_storage::{End, Engine, Options};
use exuvia_testenv::{ApiServer, ControlPlane, Widgets};
use exuvia_write::Writer;
use http::Request;
use kube::Client;

use crate::SETTLE;

struct TwoServers {
    control_plane: ControlPlane,
    second: ApiServer,
    client: Client,
}

impl TwoServers {
    async fn start() -> Self {
        let control_plane = ControlPlane::builder().start().await.unwrap();
        let second = control_plane.another_apiserver().await.unwrap();
        let client = control_plane.client().unwrap();
        Self {
            control_plane,
            second,
            client,
        }
    }

    /// Widgets stored at v1alpha1, known to both servers.
    async fn widgets(&self, group: &str, count: usize) -> Widgets {
        let widgets = Widgets::in_group(group);
        widgets.install(&self.client, "v1alpha1").await.unwrap();
        widgets.create(&self.client, "v1alpha1", count).await.unwrap();
        let other = widgets.api(&self.second.client().unwrap(), "v1");
        exuvia_testenv::until("the second server serves it", async || {
            other.get("widget-0000").await.is_ok()
        })
        .await;
        widgets
    }

    fn engine(&self, widgets: &Widgets, servers: &[&ApiServer]) -> Engine {
        let config = self.control_plane.admin().config().unwrap();
        let writer = Writer::named("exuvia-test");
        let client = writer.connect(config.clone()).unwrap();
        let api_servers = servers
            .iter()
            .map(|server| server.url().parse().unwrap())
            .collect();
        let options = Options {
            settle: SETTLE,
            api_servers,
            ..Options::default()
        };
        Engine::new(&config, client, writer, widgets.crd_name(), options)
    }

    async fn stored_at(&self, widgets: &Widgets, version: &str) -> usize {
        let counts = widgets.stored_at(&self.control_plane).await.unwrap();
        counts.get(version).copied().unwrap_or_default()
    }

    async fn stored_versions(&self, widgets: &Widgets) -> Vec<String> {
        widgets.stored_versions(&self.client).await.unwrap()
    }
}

fn patches(widgets: &Widgets, count: usize) -> Vec<Request<Bytes>> {
    let patch = |index: usize| {
        let path = format!(
            "/apis/{}/v1/namespaces/default/widgets/widget-{index:04}",
            widgets.group()
        );
        Request::patch(path)
            .header("content-type", "application/merge-patch+json")
            .body(Bytes::from_static(b"{}"))
            .unwrap()
    };
    (0..count).map(patch).collect()
}

#[tokio::test]
async fn a_server_that_does_not_show_the_flip_is_named_and_nothing_is_trimmed() {
    let servers = TwoServers::start().await;
    let widgets = servers.widgets("behind.example.com", 6).await;
    let mut engine = servers.engine(&widgets, &[servers.control_plane.apiserver(), &servers.second]);
    // The second server answers once, so that it is known, and then stands still over the flip.
    let stale = servers
        .second
        .pause_with_queued(patches(&widgets, 6))
        .await
        .unwrap();
    widgets.flip_storage(&servers.client, "v1").await.unwrap();
    let report = engine.run().await.unwrap();
    let End::Stalled {
        reason: "ServerBehind",
        message,
    } = &report.end
    else {
        panic!("{:?}", report.end)
    };
    let name = servers.second.url().trim_start_matches("https://");
    assert!(message.contains(name), "{message} names {name}");
    assert_eq!(servers.stored_versions(&widgets).await, ["v1alpha1", "v1"]);

    // Once it is awake and has understood, the migration goes on by itself, over whatever it wrote meanwhile.
    stale.resume().await.unwrap();
    exuvia_testenv::until("the migration completes", async || {
        let mut engine = servers.engine(&widgets, &[servers.control_plane.apiserver(), &servers.second]);
        engine.run().await.unwrap().end == End::Migrated
    })
    .await;
    assert_eq!(servers.stored_at(&widgets, "v1alpha1").await, 0);
    assert_eq!(servers.stored_versions(&widgets).await, ["v1"]);
}

/// A server that nobody named writes the old version back after the trim. The patrol finds it and puts the version back.
/// The resumed server handles queued requests and its informer's news in no fixed order: rounds, until it wrote one.
#[tokio::test]
async fn what_an_unknown_server_writes_after_the_trim_is_found_by_the_patrol() {
    let servers = TwoServers::start().await;
    for round in 0..10 {
        let widgets = servers.widgets(&format!("patrol-{round}.example.com"), 6).await;
        let stale = servers
            .second
            .pause_with_queued(patches(&widgets, 6))
            .await
            .unwrap();
        widgets.flip_storage(&servers.client, "v1").await.unwrap();
        let mut engine = servers.engine(&widgets, &[servers.control_plane.apiserver()]);
        assert_eq!(engine.run().await.unwrap().end, End::Migrated);
        assert_eq!(servers.stored_versions(&widgets).await, ["v1"]);
        assert_eq!(stale.resume().await.unwrap(), [200; 6]);
        if servers.stored_at(&widgets, "v1alpha1").await == 0 {
            continue;
        }
        // Patrol: the version is back in storedVersions, so that dropping it is refused again.
        loop {
            match engine.next().await.unwrap() {
                NextStep::Wait(time) => tokio::time::sleep(time).await,
                NextStep::Do(step) => {
                    assert_eq!(engine.carry_out(step).await.unwrap(), None);
                    if engine.pass().is_some_and(|pass| !pass.trimmed) {
                        break;
                    }
                }
                other => panic!("the patrol found nothing: {other:?}"),
            }
        }
        assert_eq!(servers.stored_versions(&widgets).await, ["v1", "v1alpha1"]);
        // And it starts over.
        assert_eq!(engine.run().await.unwrap().end, End::Migrated);
        assert_eq!(servers.stored_at(&widgets, "v1alpha1").await, 0);
        assert_eq!(servers.stored_versions(&widgets).await, ["v1"]);
        return;
    }
    panic!("in ten rounds the stale server wrote nothing at the old version");
}

/// Where no server can be asked itself, time alone counts, and every object is verified by a patch.
#[tokio::test]
async fn without_known_servers_the_verification_is_full() {
    let servers = TwoServers::start().await;
    let widgets = servers.widgets("unknown.example.com", 6).await;
    widgets.flip_storage(&servers.client, "v1").await.unwrap();
    exuvia_testenv::until("the second server has understood", async || {
        widgets
            .storage_version_hash(&servers.second.client().unwrap())
            .await
            .unwrap()
            == widgets.storage_version_hash(&servers.client).await.unwrap()
    })
    .await;
    let mut engine = servers.engine(&widgets, &[]);
    let report = engine.run().await.unwrap();
    assert_eq!(
        (report.end, report.verified),
        (End::Migrated, Some(exuvia_storage::Verified::Full))
    );
    assert_eq!(report.verify.current, 6, "every object was patched once more");
}
