//! The crash matrix: a small migration, disturbed at every single write that an undisturbed one makes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use exuvia_api::{OPT_IN_LABEL, StorageMigration};
use exuvia_testenv::proxy::{Fault, Match, Proxy, Recorded, Rule};
use exuvia_testenv::{Access, ControlPlane, Widgets};
use http::Method;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;

use self::outcome::{Outcome, kind};
use crate::harness::*;

mod outcome;
mod troubled;

/// Three pages of four.
const OBJECTS: usize = 12;
/// Control planes at work at once: a run waits about as long as it works, and two cores shall have something to do.
const LANES: usize = 3;
/// Only what never comes takes longer.
const PATIENCE: Duration = Duration::from_secs(90);

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mishap {
    /// The process is killed, and the write never reaches the server.
    KilledBefore,
    /// The process is killed once the write is committed.
    KilledAfter,
    /// The write is committed, but the process gets a 504 or a reset for an answer.
    AnswerLost,
}

const MISHAPS: [Mishap; 3] = [Mishap::KilledBefore, Mishap::KilledAfter, Mishap::AnswerLost];

/// What goes wrong, and at which write, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    mishap: Mishap,
    nth: usize,
}

const KILLED_WITH_THE_LEASE: Point = Point {
    mishap: Mishap::KilledAfter,
    nth: 1,
};

/// All runs, shared by the lanes.
#[derive(Default)]
struct Matrix {
    reference: OnceLock<Outcome>,
    begun: AtomicUsize,
    struck: Mutex<BTreeSet<Point>>,
    faults: Mutex<Vec<String>>,
}

/// A control plane behind a fault proxy, for one run after the other.
struct Lane {
    control_plane: ControlPlane,
    client: Client,
    proxy: Proxy,
    access: Access,
}

#[test]
fn a_crash_or_a_lost_answer_at_any_write_ends_as_an_undisturbed_run() {
    let began = Instant::now();
    let matrix = Matrix::default();
    std::thread::scope(|scope| {
        for number in 0..LANES {
            let matrix = &matrix;
            // A thread each, because killing and stopping a process blocks.
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.unwrap().block_on(matrix.work(number));
            });
        }
    });
    let faults = matrix.faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let writes = &matrix.reference.get().unwrap().writes;
    let struck = matrix.struck.into_inner().unwrap();
    for mishap in MISHAPS {
        let points = struck.iter().filter(|point| point.mishap == mishap).count();
        println!("{points} crash points, {mishap:?}, for {} writes", writes.len());
        assert_eq!(points, writes.len());
    }
    println!(
        "{} runs in {:?}: {writes:#?}",
        struck.len() + LANES,
        began.elapsed()
    );
}

impl Matrix {
    /// Takes one point after the other until there are no more.
    async fn work(&self, number: usize) {
        let lane = Lane::start().await;
        let widgets = lane.prepare(&format!("undisturbed-{number}")).await;
        let undisturbed = lane.run(&widgets, None).await;
        let reference = self.reference.get_or_init(|| {
            undisturbed.check();
            undisturbed.clone()
        });
        // What a run writes does not depend on the lane or the moment; otherwise counting writes would be no way to
        // reach every one of them.
        assert_eq!(undisturbed.writes, reference.writes);
        assert_eq!(undisturbed.differences(reference), [] as [&str; 0]);
        let (ready, runs) = mpsc::channel(1);
        // The server makes whoever creates objects wait for two seconds after it took the CRD: time for other runs.
        tokio::join!(
            self.prepare(&lane, reference, ready.clone()),
            self.prepare(&lane, reference, ready),
            self.carry_out(&lane, reference, runs),
        );
    }

    async fn prepare(&self, lane: &Lane, reference: &Outcome, ready: mpsc::Sender<(Point, Widgets)>) {
        loop {
            let begun = self.begun.fetch_add(1, Ordering::Relaxed);
            let point = Point {
                mishap: MISHAPS[begun % MISHAPS.len()],
                nth: begun / MISHAPS.len() + 1,
            };
            if point.nth > reference.writes.len() {
                return;
            }
            let name = format!("{:?}-{}", point.mishap, point.nth).to_lowercase();
            ready.send((point, lane.prepare(&name).await)).await.unwrap();
        }
    }

    async fn carry_out(&self, lane: &Lane, reference: &Outcome, mut runs: mpsc::Receiver<(Point, Widgets)>) {
        while let Some((point, widgets)) = runs.recv().await {
            let outcome = lane.run(&widgets, Some(point)).await;
            self.judge(point, &outcome, reference);
        }
    }

    fn judge(&self, point: Point, outcome: &Outcome, reference: &Outcome) {
        let mut faults = outcome.differences(reference);
        let meant = &reference.writes[point.nth - 1];
        if outcome.struck.as_ref() == Some(meant) {
            self.struck.lock().unwrap().insert(point);
        } else {
            faults.push(format!("struck {:?}", outcome.struck));
        }
        let faults = faults
            .into_iter()
            .map(|fault| format!("{point:?}, {meant}: {fault}"));
        self.faults.lock().unwrap().extend(faults);
    }
}

impl Lane {
    async fn start() -> Self {
        let control_plane = control_plane().await;
        let proxy = control_plane.proxy().await.unwrap();
        Self {
            client: control_plane.client().unwrap(),
            access: through(control_plane.admin(), &proxy.url()),
            proxy,
            control_plane,
        }
    }

    /// A migration from its first write to its end, disturbed or not.
    async fn run(&self, widgets: &Widgets, point: Option<Point>) -> Outcome {
        self.proxy.clear();
        self.proxy.forget();
        let (say, mut hear) = mpsc::unbounded_channel();
        if let Some(point) = point {
            self.proxy.inject(point.rule(say));
        }
        let start = |life: &str| self.operator(life, widgets, point);
        let mut operator = start("first");
        let mut struck = None;
        if let Some(point) = point {
            let write: Recorded = in_time("the write to be struck", hear.recv()).await.unwrap();
            let committed = write.upstream.is_some_and(|code| code < 300);
            assert_eq!(
                committed,
                point.mishap != Mishap::KilledBefore,
                "{point:?}: {write:?}"
            );
            struck = Some(kind(&write));
            if point.mishap != Mishap::AnswerLost {
                operator.process.kill().unwrap();
                self.free_lease(widgets, point).await;
                operator = start("second");
            }
        }
        let is_end = |write: &Recorded| write.upstream == Some(200) && kind(write).ends_with("Migrated");
        in_time("the end", self.proxy.wait_for(is_end)).await;
        // One that was killed at the very end has nothing left to do, and must have found that out.
        until("a reconcile ended well", async || {
            let (_, metrics) = operator.get("/metrics").await;
            let ended =
                r#"controller_runtime_reconcile_total{controller="storagemigration",result="success"}"#;
            metrics
                .lines()
                .any(|line| line.starts_with(ended) && !line.ends_with(" 0"))
                .then_some(())
        })
        .await;
        operator.process.stop(PATIENCE).unwrap();
        let writes = self
            .proxy
            .writes()
            .into_iter()
            .filter(|write| counted().holds(write));
        let outcome = Outcome::of(self, widgets, struck, writes.collect()).await;
        let migrations: Api<StorageMigration> = Api::all(self.client.clone());
        migrations
            .delete(&widgets.crd_name(), &DeleteParams::default())
            .await
            .unwrap();
        outcome
    }

    fn operator(&self, life: &str, widgets: &Widgets, point: Option<Point>) -> Operator {
        // So long that nobody gets through by waiting for it to run out, but for one: see `free_lease`.
        let lease = if point == Some(KILLED_WITH_THE_LEASE) {
            "1s"
        } else {
            "10m"
        };
        let args = [
            // CRDs of runs before and after this one lie about.
            format!("--crds={}", widgets.crd_name()),
            format!("--lease-name={}", widgets.group()),
            format!("--lease-duration={lease}"),
            // No EndpointSlice names the server here. Asked itself, as in production, it makes the pass wait and settle.
            format!("--apiserver={}", self.control_plane.apiserver().url()),
            "--settle=50ms".to_owned(),
            "--page-size=4".to_owned(),
            "--max-concurrency=4".to_owned(),
        ];
        let name = format!("{}-{life}", widgets.group());
        Operator::start(
            &self.control_plane,
            &self.access,
            &name,
            &args.each_ref().map(String::as_str),
        )
    }

    /// Does what time does otherwise: the dead one's Lease runs out. Where it was killed with nothing but the Lease, time
    /// shall do it; where it was killed before, there is none.
    async fn free_lease(&self, widgets: &Widgets, point: Point) {
        if point.nth > 1 {
            let leases: Api<Lease> = Api::default_namespaced(self.client.clone());
            let nobody = Patch::Merge(json!({"spec": {"holderIdentity": null}}));
            leases
                .patch(widgets.group(), &PatchParams::default(), &nobody)
                .await
                .unwrap();
        }
    }

    /// Objects at the old version, each with a content of its own, of a CRD that has opted in and is flipped.
    async fn prepare(&self, name: &str) -> Widgets {
        let widgets = Widgets::in_group(format!("{name}.example.com"));
        let mut crd = widgets.crd("v1alpha1");
        crd["metadata"]["labels"] = json!({OPT_IN_LABEL: "true"});
        widgets.install_crd(&self.client, crd).await.unwrap();
        let api = widgets.api(&self.client, "v1alpha1");
        for index in 0..OBJECTS {
            let mut widget = widgets.widget("v1alpha1", &format!("widget-{index:04}"));
            widget.data["spec"]["size"] = json!(index);
            widget.metadata.labels = Some([("index".to_owned(), index.to_string())].into());
            api.create(&PostParams::default(), &widget).await.unwrap();
        }
        widgets.flip_storage(&self.client, "v1").await.unwrap();
        widgets
    }
}

impl Point {
    /// Strikes the write, and says so when it has got as far as it may.
    fn rule(self, say: mpsc::UnboundedSender<Recorded>) -> Rule {
        let rule = Rule::on(counted()).nth(self.nth as u64);
        let tell = move |write: &Recorded| say.send(write.clone()).unwrap();
        match self.mishap {
            Mishap::KilledBefore => rule.then(Fault::StallRequest).on_request(tell),
            Mishap::KilledAfter => rule.then(Fault::StallAnswer).on_commit(tell),
            Mishap::AnswerLost if self.nth.is_multiple_of(2) => rule.then(Fault::ResetAnswer).on_commit(tell),
            Mishap::AnswerLost => rule.then(Fault::replace(504)).on_commit(tell),
        }
    }
}

/// Every write but the renewals of the Lease, whose number depends on time: it is made with a POST, which counts, and
/// renewed with a PATCH. Dry-runs count: they change nothing, but one can die of them as of any other.
fn counted() -> Match {
    Match::writes().except(Match::method(Method::PATCH).resource("leases"))
}

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(PATIENCE, future).await;
    waited.unwrap_or_else(|_| panic!("never came: {what}"))
}
