//! Somebody who goes on writing, to objects at the old version or to the CRD, does not keep a migration from its end.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use exuvia_storage::protocol::StepKind;
use exuvia_storage::{Activity, End, Options};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::Bench;
use crate::obstacles::installed_with;

/// Longer than a migration of a few objects takes on a busy machine: a limit, so that one that never ends fails.
const LIMIT: Duration = exuvia_testenv::DEADLINE;

fn manager(name: &str) -> PatchParams {
    PatchParams {
        field_manager: Some(name.to_owned()),
        ..PatchParams::default()
    }
}

/// An old pod: patches `/status` of every widget in turn at v1alpha1, and tells of every round.
fn old_pod(bench: &Bench, count: usize) -> (JoinHandle<()>, Receiver<()>) {
    let api = bench.widgets.api(&bench.client, "v1alpha1");
    let (wrote, written) = channel();
    let writing = tokio::spawn(async move {
        for round in 0_u64.. {
            for index in 0..count {
                let status = Patch::Merge(json!({"status": {"ready": round}}));
                let name = format!("widget-{index:04}");
                // A conflict is the migration's doing, and the pod tries again.
                let _ = api.patch_status(&name, &manager("old-pod"), &status).await;
            }
            if wrote.send(()).is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await; // as often as such a pod does
        }
    });
    (writing, written)
}

/// PITFALLS A35: what the old pod writes lacks the default, so that the next patch moves the object, on a healthy server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_at_the_old_version_beside_a_new_default_is_not_a_server_that_is_behind() {
    let bench = installed_with("defaulted", |crd| {
        let new =
            &mut crd["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        new["mode"] = json!({"type": "string", "default": "fast"});
    })
    .await;
    bench.widgets.create(&bench.client, "v1alpha1", 4).await.unwrap();
    bench.widgets.flip_storage(&bench.client, "v1").await.unwrap();
    let (pod, written) = old_pod(&bench, 4);
    // Before each verification it writes every object: two rounds, as one may have begun before.
    let written = std::sync::Mutex::new(written);
    let let_it_write = move |activity: Activity| {
        if activity.step == StepKind::Verify {
            let written = written.lock().unwrap();
            while written.try_recv().is_ok() {}
            for _ in 0..2 {
                written.recv_timeout(LIMIT).expect("the pod goes on");
            }
        }
    };
    let mut engine = bench.engine(bench.options()).watched_by(let_it_write);
    let report = tokio::time::timeout(LIMIT, engine.run())
        .await
        .expect("it ends")
        .unwrap();
    assert_eq!(report.end, End::Migrated, "{report:?}");
    bench.assert_trimmed_rightly("v1alpha1").await;
    assert_eq!(bench.stored_versions().await, ["v1"]);
    let old = format!("{}/v1alpha1", bench.widgets.group());
    let writers: Vec<&str> = report.owners.at(&old).map(|(manager, _)| manager).collect();
    assert!(
        writers.contains(&"old-pod"),
        "who still writes there is named: {writers:?}"
    );
    assert!(!pod.is_finished(), "it went on all the time");
    pod.abort();
}

/// Annotates the CRD every 300 ms, and tells of it.
fn annotate(bench: &Bench, params: PatchParams) -> (JoinHandle<()>, Receiver<()>) {
    let crds: Api<CustomResourceDefinition> = Api::all(bench.client.clone());
    let name = bench.widgets.crd_name();
    let (tell, touches) = channel();
    let touching = tokio::spawn(async move {
        for round in 0_u64.. {
            let patch = json!({"metadata": {"annotations": {"example.com/touched": round.to_string()}}});
            crds.patch(&name, &params, &Patch::Merge(patch)).await.unwrap();
            if tell.send(()).is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(300)).await; // well within the settle time
        }
    });
    (touching, touches)
}

async fn migrates_while_annotated(group: &str, params: PatchParams) {
    let bench = Bench::flipped(group, 4).await;
    let (touching, touches) = annotate(&bench, params);
    let options = Options {
        settle: Duration::from_secs(2),
        ..bench.options()
    };
    let mut engine = bench.engine(options);
    let report = tokio::time::timeout(LIMIT, engine.run()).await;
    assert!(!touching.is_finished(), "the touching went on");
    touching.abort();
    let touches = touches.try_iter().count();
    let report = report.unwrap_or_else(|_| panic!("it never settled, with {touches} annotations"));
    let report = report.unwrap();
    assert_eq!(report.end, End::Migrated, "{report:?}");
    assert!(touches > 1, "{touches} annotations");
    bench.assert_trimmed_rightly("v1alpha1").await;
}

#[tokio::test]
async fn annotations_written_to_the_crd_do_not_keep_it_from_settling() {
    migrates_while_annotated("annotated", manager("kubectl-annotate")).await;
}

/// The same manager's entry of managedFields gets a new time with each annotation, although its part of the spec is old.
#[tokio::test]
async fn annotations_by_the_owner_of_the_spec_do_not_keep_it_from_settling() {
    // As Widgets writes: without a name, so that the server takes the client's.
    migrates_while_annotated("owned", PatchParams::default()).await;
}
