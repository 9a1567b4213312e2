//! The crash kit on a toy: a program that makes three `ConfigMap`s and keeps their number in a fourth.
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]
#![allow(clippy::unwrap_used)] // a test may panic

use std::collections::BTreeSet;

use exuvia_testenv::ControlPlane;
use exuvia_testenv::crash::{Crash, Lane, Matrix, Point, Run, RunEnd, Scenario, Task};
use exuvia_testenv::oracle::{History, Snapshot};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

const JOBS: usize = 3;

/// How the program comes to the number of jobs.
#[derive(Clone, Copy, PartialEq)]
enum Counting {
    /// It writes how many there are.
    Absolute,
    /// The planted bug: it adds one for each that it made. A crash between the two loses one.
    Relative,
}

fn config_map(name: String) -> ConfigMap {
    let metadata = kube::api::ObjectMeta {
        name: Some(name),
        ..Default::default()
    };
    ConfigMap {
        metadata,
        ..ConfigMap::default()
    }
}

async fn total(api: &Api<ConfigMap>, run: &str) -> kube::Result<usize> {
    let data = api.get(&format!("{run}-total")).await?.data;
    let total = data.as_ref().and_then(|data| data.get("total"));
    Ok(total.map_or(0, |total| total.parse().unwrap()))
}

/// The program under test. It can be run again at any time.
async fn make_jobs(client: Client, run: String, counting: Counting) -> kube::Result<()> {
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    for job in 1..=JOBS {
        let name = format!("{run}-job-{job}");
        let is_new = match api.create(&PostParams::default(), &config_map(name)).await {
            Ok(_) => true,
            Err(kube::Error::Api(status)) if status.code == 409 => false,
            Err(error) => return Err(error),
        };
        let new_total = match counting {
            Counting::Absolute => job,
            Counting::Relative if !is_new => continue,
            Counting::Relative => total(&api, &run).await? + 1,
        };
        let patch = Patch::Merge(json!({"data": {"total": new_total.to_string()}}));
        api.patch(&format!("{run}-total"), &PatchParams::default(), &patch)
            .await?;
    }
    Ok(())
}

struct Toy(Counting);

impl Toy {
    fn start(&self, lane: &Lane, run: &Run) -> Task {
        Task::spawn(make_jobs(lane.proxied_client(), run.name.clone(), self.0))
    }
}

impl Scenario for Toy {
    type World = Run;
    type Program = Task;

    async fn set_up(&self, lane: &Lane, run: &Run) -> Run {
        let api: Api<ConfigMap> = Api::default_namespaced(lane.client.clone());
        let total = config_map(format!("{}-total", run.name));
        api.create(&PostParams::default(), &total).await.unwrap();
        run.clone()
    }

    async fn start(&self, lane: &Lane, _world: &Run, run: &Run) -> Task {
        Toy::start(self, lane, run)
    }

    /// Its user runs it again until it says that all went well.
    async fn finish(&self, lane: &Lane, _world: &Run, run: &Run, program: &mut Task) {
        while program.result().await.is_err() {
            *program = Toy::start(self, lane, run);
        }
    }

    async fn check(&self, lane: &Lane, world: &Run, ended: &RunEnd) {
        let keys = format!("/registry/configmaps/default/{}-", world.name);
        let history = ended.history(lane, &[&keys]).await;
        history.assert_always("a job is made after the one before it", |now| {
            in_order(now, &keys)
        });
        assert_eq!(history.end().keys().count(), JOBS + 1);
    }

    async fn leaves(&self, lane: &Lane, world: &Run) -> Value {
        let api: Api<ConfigMap> = Api::default_namespaced(lane.client.clone());
        json!({"total": total(&api, &world.name).await.unwrap()})
    }
}

fn in_order(now: &Snapshot, keys: &str) -> Result<(), String> {
    let exists = |job: usize| now.get(&format!("{keys}job-{job}")).is_some();
    let orphan = (2..=JOBS).find(|job| exists(*job) && !exists(job - 1));
    orphan.map_or(Ok(()), |job| Err(format!("job {job} is there alone")))
}

#[test]
fn a_program_that_can_go_on_after_each_write_ends_well_at_every_point() {
    let report = Matrix::new(Toy(Counting::Absolute)).run();
    report.assert_all_ended_well();
    assert_eq!(
        report.writes,
        ["POST configmaps", "PATCH configmaps"].repeat(JOBS)
    );
    assert_eq!(report.struck.len(), 2 * JOBS * Crash::ALL.len());
    assert_eq!(report.runs, report.struck.len() + 1);
}

/// Each failure, and nothing else, is named with what to set to run it alone.
#[test]
fn a_planted_bug_is_found_at_every_point_where_it_bites() {
    let report = Matrix::new(Toy(Counting::Relative)).run();
    let found: BTreeSet<Point> = report
        .failures
        .iter()
        .filter_map(|failure| failure.point)
        .collect();
    // Once the job is there and before it is counted.
    let bites = |job: usize| {
        let (made, counted) = (2 * job - 1, 2 * job);
        [
            (made, Crash::KilledAfter),
            (made, Crash::AnswerLost),
            (counted, Crash::KilledBefore),
        ]
    };
    let meant = (1..=JOBS).flat_map(bites);
    let meant = meant.map(|(write, crash)| Point { write, crash });
    assert_eq!(found, meant.collect(), "{report}");
    let text = report.to_string();
    let line = "killed-before:2 (PATCH configmaps): /total is 2, and 3 after a clean run\n  run it alone: \
                EXUVIA_CRASH=killed-before:2";
    assert!(text.contains(line), "{text}");
}

#[tokio::test]
async fn the_oracle_sees_what_was_there_for_an_instant_only() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let since = control_plane.etcd().revision().await.unwrap();
    let api: Api<ConfigMap> = Api::default_namespaced(control_plane.client().unwrap());
    for name in ["toy-job-2", "toy-job-1"] {
        let made = api
            .create(&PostParams::default(), &config_map(name.to_owned()))
            .await;
        made.unwrap();
    }
    api.delete("toy-job-2", &DeleteParams::default()).await.unwrap();

    let keys = "/registry/configmaps/default/toy-";
    let history = History::read(control_plane.etcd(), &[keys], since).await.unwrap();
    let there: Vec<usize> = history.snapshots.iter().map(|now| now.keys().count()).collect();
    assert_eq!(there, [0, 1, 2, 1]);
    let wrong: Vec<_> = history
        .snapshots
        .iter()
        .filter(|now| in_order(now, keys).is_err())
        .collect();
    assert_eq!(wrong, [&history.snapshots[1]]);
    let check = || history.assert_always("a job is made after the one before it", |now| in_order(now, keys));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    let revision = wrong[0].revision;
    let line = format!("revision {revision}: job 2 is there alone");
    assert!(message.contains(&line), "{message}");
}
