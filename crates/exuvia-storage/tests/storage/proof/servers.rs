//! Which API servers there are, and what a resourceVersion proves if one of them is not known.

use std::sync::{Arc, Mutex, mpsc};

use exuvia_storage::protocol::StepKind;
use exuvia_storage::{End, Engine, MigrationReport, Options, Verified, Verify};
use exuvia_testenv::oracle::{StoredVersions, held_at, stored_versions};
use exuvia_testenv::proxy::{Match, Proxy, Rule};
use exuvia_testenv::{ApiServer, ControlPlane, Widgets};
use exuvia_write::Writer;
use http::Method;
use kube::Client;

use crate::{Bench, SETTLE};

/// More than the proof's sample of 500: most objects that a resourceVersion proves are not patched.
const MANY: usize = 1200;

/// Writes of widgets that are meant to be stored.
fn meant() -> Match {
    Match::method(Method::PATCH)
        .resource("widgets")
        .except(Match::any().query("dryRun=All"))
}

#[tokio::test]
async fn where_every_server_is_known_a_resource_version_proves_what_is_not_in_the_sample() {
    let bench = Bench::flipped("many", MANY).await;
    let leases = bench.control_plane.identity_leases().await.unwrap();
    assert_eq!(leases.len(), 1, "one server, which is asked itself");
    let proxy = bench.control_plane.proxy().await.unwrap();
    let counted = proxy.inject(Rule::on(meant()));
    let report = bench.engine_through(&proxy, bench.options()).run().await.unwrap();
    assert_eq!(
        (report.end, report.verified),
        (End::Migrated, Some(Verified::Proof))
    );
    assert_eq!(report.rewrite.rewritten, MANY as u64);
    let (patches, many) = (counted.applied(), MANY as u64);
    assert!(patches < 2 * many, "{patches} patches: nothing was skipped");
    assert!(patches > many, "{patches} patches: nothing was sampled");
    bench.assert_trimmed_rightly("v1alpha1").await;
}

/// Only these servers are named.
fn asking(servers: &[&ApiServer]) -> Options {
    Options {
        settle: SETTLE,
        api_servers: servers
            .iter()
            .map(|server| server.url().parse().unwrap())
            .collect(),
        max_concurrency: 4,
        ..Options::default()
    }
}

/// Two API servers on hosts of different names, so that there are two identity Leases.
struct TwoHosts {
    control_plane: ControlPlane,
    second: ApiServer,
    client: Client,
}

impl TwoHosts {
    async fn start() -> Self {
        let control_plane = ControlPlane::builder().start().await.unwrap();
        let second = control_plane.another_apiserver_on_host("host-b").await.unwrap();
        assert_eq!(control_plane.identity_leases().await.unwrap().len(), 2);
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

    fn engine(&self, proxy: &Proxy, widgets: &Widgets, options: Options) -> Engine {
        let access = self.control_plane.admin().clone().at(proxy.url());
        let config = access.config().unwrap();
        let writer = Writer::named("exuvia-test");
        let client = writer.connect(config.clone()).unwrap();
        Engine::new(&config, client, writer, widgets.crd_name(), options)
    }

    /// Names of the widgets that etcd holds at v1alpha1, now or as of a revision.
    async fn old(&self, widgets: &Widgets, at: Option<i64>) -> Vec<String> {
        let revision = match at {
            Some(revision) => revision,
            None => self.control_plane.etcd().revision().await.unwrap(),
        };
        held_at(&self.control_plane, widgets, "v1alpha1", revision)
            .await
            .unwrap()
    }

    /// The oracle: whatever the migration says, a version that is not listed has no object at the trim's revision.
    async fn assert_no_wrong_trim(&self, widgets: &Widgets, report: &MigrationReport) {
        let now = stored_versions(&self.control_plane, widgets).await.unwrap();
        let StoredVersions { revision, listed } = now.unwrap();
        if listed.iter().any(|listed| listed == "v1alpha1") {
            assert_ne!(report.end, End::Migrated, "{listed:?}");
            return;
        }
        let old = self.old(widgets, Some(revision)).await;
        assert!(
            old.is_empty(),
            "v1alpha1 was trimmed ({:?}, verified by {:?}), and etcd held at it: {old:?}",
            report.end,
            report.verified
        );
    }
}

/// A stale server wakes up in the middle of the rewrite and writes the old version back over an object that was rewritten:
/// its resourceVersion is above R0 (PITFALLS A4, A40). Nobody named that server, but its identity Lease is there. Which
/// comes first on the server, the queued patch or the news, is up to it: rounds, until it has written.
#[tokio::test]
async fn a_resource_version_proves_nothing_while_a_server_is_not_accounted_for() {
    let hosts = TwoHosts::start().await;
    for round in 0..10 {
        let widgets = hosts.widgets(&format!("woken-{round}.example.com"), MANY).await;
        let path = format!(
            "/apis/{}/v1/namespaces/default/widgets/widget-0000",
            widgets.group()
        );
        let queued = http::Request::patch(path)
            .header("content-type", "application/merge-patch+json")
            .body(b"{}".as_slice().into())
            .unwrap();
        let stale = hosts.second.pause_with_queued(vec![queued]).await.unwrap();
        widgets.flip_storage(&hosts.client, "v1").await.unwrap();

        // The 200th rewrite waits until the stale server has answered: by then the first object was rewritten.
        let proxy = hosts.control_plane.proxy().await.unwrap();
        let (reached, mut waits) = tokio::sync::mpsc::unbounded_channel();
        let (go, gone) = mpsc::channel::<()>();
        let gone = Arc::new(Mutex::new(gone));
        proxy.inject(Rule::on(meant()).nth(200).on_request(move |_| {
            let _ = reached.send(());
            let _ = gone.lock().unwrap().recv_timeout(exuvia_testenv::DEADLINE);
        }));
        let options = asking(&[hosts.control_plane.apiserver()]);
        let sweeps = Arc::new(Mutex::new(Vec::new()));
        let verified = Arc::clone(&sweeps);
        let mut engine = hosts
            .engine(&proxy, &widgets, options)
            .watched_by(move |activity| {
                if activity.step == StepKind::Verify {
                    verified.lock().unwrap().extend(activity.progress);
                }
            });
        let waking = async {
            waits.recv().await.unwrap();
            assert!(
                !hosts
                    .old(&widgets, None)
                    .await
                    .contains(&"widget-0000".to_owned()),
                "rewritten"
            );
            assert_eq!(stale.resume().await.unwrap(), [200]);
            let wrote = hosts
                .old(&widgets, None)
                .await
                .contains(&"widget-0000".to_owned());
            go.send(()).unwrap();
            wrote
        };
        let (report, wrote) = tokio::join!(engine.run(), waking);
        let report = report.unwrap();
        hosts.assert_no_wrong_trim(&widgets, &report).await;
        assert_eq!(
            report.verified,
            Some(Verified::Full),
            "two Leases, one server asked"
        );
        let first = sweeps.lock().unwrap()[0].borrow().clone();
        assert_eq!(
            first.tally.skipped, 0,
            "no resourceVersion was taken for a proof: {first:?}"
        );
        if wrote {
            return;
        }
    }
    panic!("in ten rounds the stale server wrote nothing at the old version");
}

#[tokio::test]
async fn servers_asked_one_by_one_and_identity_leases_must_match_in_number() {
    let hosts = TwoHosts::start().await;
    let proxy = hosts.control_plane.proxy().await.unwrap();
    let first = hosts.control_plane.apiserver();
    let migrate = async |group: &str, options: Options, paused: bool| {
        let widgets = hosts.widgets(group, 6).await;
        if paused {
            hosts.second.process().pause().unwrap();
        }
        widgets.flip_storage(&hosts.client, "v1").await.unwrap();
        let report = hosts.engine(&proxy, &widgets, options).run().await;
        hosts.second.process().resume().unwrap();
        if let Ok(report) = &report {
            hosts.assert_no_wrong_trim(&widgets, report).await;
        }
        report
    };
    let both = migrate("both.example.com", asking(&[first, &hosts.second]), false).await;
    let both = both.unwrap();
    assert_eq!((both.end, both.verified), (End::Migrated, Some(Verified::Proof)));

    let one = migrate("one.example.com", asking(&[first]), false).await.unwrap();
    assert_eq!((one.end, one.verified), (End::Migrated, Some(Verified::Full)));
    assert_eq!(one.verify.current, 6, "every object was patched once more");

    // One that stands still is known by its Lease alone.
    let still = migrate("still.example.com", asking(&[first]), true)
        .await
        .unwrap();
    assert_eq!((still.end, still.verified), (End::Migrated, Some(Verified::Full)));

    // A user who insists on proof is told why it is not possible.
    let insists = Options {
        verify: Verify::Proof,
        ..asking(&[first])
    };
    let refused = migrate("insists.example.com", insists, false).await;
    let is_migrated = |report: &MigrationReport| report.end == End::Migrated;
    assert!(!refused.as_ref().is_ok_and(is_migrated), "{refused:?}");
}

/// As when a load balancer's address is named beside a server's: as many answers as Leases, and one server that nobody asked.
#[tokio::test]
async fn one_server_under_two_addresses_is_not_two_servers() {
    let hosts = TwoHosts::start().await;
    let proxy = hosts.control_plane.proxy().await.unwrap();
    let start_time = async |client: Client| {
        let metrics = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let metrics = client.request_text(metrics).await.unwrap();
        let mut lines = metrics.lines().map(str::to_owned);
        lines
            .find(|line| line.starts_with("process_start_time_seconds"))
            .unwrap()
    };
    let first = start_time(hosts.client.clone()).await;
    assert_eq!(
        start_time(proxy.client().unwrap()).await,
        first,
        "the same server"
    );
    assert_ne!(
        start_time(hosts.second.client().unwrap()).await,
        first,
        "another one"
    );

    let widgets = hosts.widgets("balanced.example.com", 6).await;
    hosts.second.process().pause().unwrap();
    widgets.flip_storage(&hosts.client, "v1").await.unwrap();
    let mut options = asking(&[hosts.control_plane.apiserver()]);
    options.api_servers.push(proxy.url().parse().unwrap());
    let report = hosts.engine(&proxy, &widgets, options).run().await.unwrap();
    hosts.second.process().resume().unwrap();
    hosts.assert_no_wrong_trim(&widgets, &report).await;
    assert_eq!(
        (report.end, report.verified),
        (End::Migrated, Some(Verified::Full))
    );
}

/// Nobody answers there, and nobody ever will.
const DEAD: &str = "https://127.0.0.1:1";

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_named_and_holds_it_unless_it_is_ignored() {
    let bench = Bench::flipped("unreachable", 4).await;
    let with_dead = || {
        let mut options = bench.options();
        options.api_servers.push(DEAD.parse().unwrap());
        options
    };
    let report = bench.engine(with_dead()).run().await.unwrap();
    let message = super::stalled(&report, "ServerBehind");
    assert!(message.contains("127.0.0.1:1"), "{message}");
    assert!(
        message.contains("--ignore-apiserver"),
        "it names the way out: {message}"
    );
    assert_eq!(bench.stored_versions().await, ["v1alpha1", "v1"]);

    let options = Options {
        ignored_api_servers: vec![DEAD.parse().unwrap()],
        ..with_dead()
    };
    let report = bench.engine(options).run().await.unwrap();
    assert_eq!(
        (report.end, report.verified),
        (End::Migrated, Some(Verified::Full))
    );
    bench.assert_trimmed_rightly("v1alpha1").await;
}
