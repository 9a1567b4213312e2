//! The crash matrix of a storage migration: disturbed at every single write that an undisturbed one makes.

use std::time::Instant;

use exuvia_api::{OPT_IN_LABEL, StorageMigration};
use exuvia_testenv::crash::{Crash, Lane, Matrix, Point, Program, Run, RunEnd, Scenario};
use exuvia_testenv::proxy::{Match, Recorded};
use exuvia_testenv::{ControlPlane, Widgets, until};
use http::Method;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use self::outcome::{asked_twice, check_clean, end, kind};
use crate::harness::*;

mod outcome;
mod troubled;

/// Three pages of four.
const OBJECTS: usize = 12;

const KILLED_WITH_THE_LEASE: Point = Point {
    crash: Crash::KilledAfter,
    write: 1,
};

impl Program for Operator {
    async fn kill(&mut self) {
        self.process.kill().unwrap();
    }

    async fn stop(&mut self) {
        Program::stop(&mut self.process).await;
    }
}

/// A small migration that goes straight to its end.
struct Migration;

#[test]
fn a_crash_or_a_lost_answer_at_any_write_ends_as_an_undisturbed_run() {
    let began = Instant::now();
    let report = Matrix::new(Migration).lanes(3).run();
    println!("{report}, in {:?}: {:#?}", began.elapsed(), report.writes);
    report.assert_all_ended_well();
    if std::env::var_os("EXUVIA_CRASH").is_none() {
        assert_eq!(report.struck.len(), Crash::ALL.len() * report.writes.len());
    }
}

impl Scenario for Migration {
    type World = Widgets;
    type Program = Operator;

    async fn control_plane(&self) -> ControlPlane {
        control_plane().await
    }

    fn counted(&self) -> Match {
        counted()
    }

    fn describe(&self, write: &Recorded) -> String {
        kind(write)
    }

    async fn set_up(&self, lane: &Lane, run: &Run) -> Widgets {
        old_widgets(lane, &run.name).await
    }

    async fn start(&self, lane: &Lane, widgets: &Widgets, run: &Run) -> Operator {
        start_operator(lane, widgets, run).await
    }

    async fn meanwhile(&self, lane: &Lane, _widgets: &Widgets) {
        let is_end = |write: &Recorded| write.upstream == Some(200) && kind(write).ends_with("Migrated");
        lane.proxy.wait_for(is_end).await;
    }

    /// One that was killed at the very end has nothing left to do, and must have found that out.
    async fn finish(&self, lane: &Lane, widgets: &Widgets, _run: &Run, operator: &mut Operator) {
        let what = "it has looked whether versions may be dropped";
        status_when(&lane.client, &widgets.crd_name(), what, |status| {
            status.looked_at.is_some()
        })
        .await;
        until("a reconcile ended well", async || {
            let (_, metrics) = operator.get("/metrics").await;
            // One that has ended is looked at again after an hour.
            let ended = ["success", "requeue_after"].map(|result| {
                format!(
                    r#"controller_runtime_reconcile_total{{controller="storagemigration",result="{result}"}}"#
                )
            });
            metrics.lines().any(|line| {
                let has_ended = ended.iter().any(|ended| line.starts_with(ended.as_str()));
                has_ended && !line.ends_with(" 0")
            })
        })
        .await;
    }

    async fn check(&self, lane: &Lane, widgets: &Widgets, ended: &RunEnd) {
        assert_eq!(asked_twice(&ended.writes), [] as [&str; 0]);
        // So that "as an undisturbed run" says something.
        if ended.run.point.is_none() {
            check_clean(&end(lane, widgets).await);
        }
    }

    async fn leaves(&self, lane: &Lane, widgets: &Widgets) -> Value {
        end(lane, widgets).await
    }

    async fn tear_down(&self, lane: &Lane, widgets: &Widgets) {
        delete_migration(lane, widgets).await;
    }
}

/// Starts the operator for these widgets only; those of other runs lie about.
async fn start_operator(lane: &Lane, widgets: &Widgets, run: &Run) -> Operator {
    if run.life > 1 {
        free_lease(lane, widgets, run).await;
    }
    // So long that it never expires during a run, except in one: see `free_lease`.
    let lease = if run.point == Some(KILLED_WITH_THE_LEASE) {
        "1s"
    } else {
        "10m"
    };
    let args = [
        format!("--crds={}", widgets.crd_name()),
        format!("--lease-name={}", widgets.group()),
        format!("--lease-duration={lease}"),
        // No EndpointSlice names the server here. Asked itself, as in production, it makes the pass wait and settle.
        format!("--apiserver={}", lane.control_plane.apiserver().url()),
        "--settle=50ms".to_owned(),
        "--page-size=4".to_owned(),
        "--max-concurrency=4".to_owned(),
    ];
    let name = format!("{}-{}", widgets.group(), run.life);
    let args = args.each_ref().map(String::as_str);
    Operator::start(&lane.control_plane, &lane.access, &name, &args)
}

/// Frees the Lease of the operator that was killed, so that nobody waits until it expires. If it was killed with nothing but
/// the Lease, it must expire; if it was killed before, the Lease does not exist yet.
async fn free_lease(lane: &Lane, widgets: &Widgets, run: &Run) {
    if run.point.is_some_and(|point| point.write > 1) {
        let leases: Api<Lease> = Api::default_namespaced(lane.client.clone());
        let nobody = Patch::Merge(json!({"spec": {"holderIdentity": null}}));
        leases
            .patch(widgets.group(), &PatchParams::default(), &nobody)
            .await
            .unwrap();
    }
}

/// Objects at the old version, each with different content, of a CRD that has opted in and is flipped.
async fn old_widgets(lane: &Lane, name: &str) -> Widgets {
    let widgets = Widgets::in_group(format!("{name}.example.com"));
    let mut crd = widgets.crd("v1alpha1");
    crd["metadata"]["labels"] = json!({OPT_IN_LABEL: "true"});
    widgets.install_crd(&lane.client, crd).await.unwrap();
    let api = widgets.api(&lane.client, "v1alpha1");
    for index in 0..OBJECTS {
        let mut widget = widgets.widget("v1alpha1", &format!("widget-{index:04}"));
        widget.data["spec"]["size"] = json!(index);
        widget.metadata.labels = Some([("index".to_owned(), index.to_string())].into());
        api.create(&PostParams::default(), &widget).await.unwrap();
    }
    widgets.flip_storage(&lane.client, "v1").await.unwrap();
    widgets
}

async fn delete_migration(lane: &Lane, widgets: &Widgets) {
    let migrations: Api<StorageMigration> = Api::all(lane.client.clone());
    let deleted = migrations
        .delete(&widgets.crd_name(), &DeleteParams::default())
        .await;
    deleted.unwrap();
}

/// Every write except the renewals of the Lease, whose number depends on time: it is made with a POST, which counts, and
/// renewed with a PATCH. Dry-runs count: they change nothing, but the process can die at them as at any other.
fn counted() -> Match {
    Match::writes().except(Match::method(Method::PATCH).resource("leases"))
}
