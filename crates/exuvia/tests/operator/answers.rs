//! A status that one can act on: it speaks of the CRD as it is, of the pass as it went, and says what holds a version now.

use exuvia_api::{Phase, StorageMigrationStatus};
use exuvia_testenv::ControlPlane;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client};
use serde_json::json;

use crate::harness::*;
use crate::progress::kubectl;

/// A separate operator, which may be killed or paused.
fn own_operator(control_plane: &ControlPlane, name: &str) -> Operator {
    let user = control_plane.user(name, &["system:masters"]).unwrap();
    // No test here wants the lead to be lost.
    Operator::start(control_plane, &user, name, &["--lease-duration=5s"])
}

async fn generation_of(client: &Client, crd: &str) -> i64 {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.get(crd).await.unwrap().metadata.generation.unwrap()
}

#[tokio::test]
async fn one_that_was_killed_while_it_verified_tells_of_the_whole_in_the_end() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "cutoff.example.com", 30, false).await;
    let operator = own_operator(&control_plane, "cutoff");
    by_hand(
        &client,
        "cutoff",
        spec_of(&widgets, json!({"qps": 4, "verify": "Full"})),
    )
    .await;
    let half_way = |status: &StorageMigrationStatus| {
        let progress = status.progress.clone().unwrap_or_default();
        status.phase == Some(Phase::Verifying)
            && progress.rate.is_some()
            && (1..30).contains(&progress.done)
            && progress.rewritten == 0
    };
    status_when(&client, "cutoff", "half way through the verification", half_way).await;
    operator.process.kill().unwrap();
    operator.process.restart().unwrap();
    let status = in_phase(&client, "cutoff", Phase::Migrated).await;
    let progress = status.progress.unwrap();
    assert_eq!(
        (progress.total, progress.done, progress.failed),
        (30, 30, 0),
        "{progress:?}"
    );
    assert_eq!(
        (progress.rate, progress.eta),
        (None, None),
        "nothing runs any more"
    );
}

#[tokio::test]
async fn a_pass_that_failed_says_what_holds_the_version_now() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let widgets = flipped(&client, "failedpass.example.com", 3, false).await;
    let rule = json!([{"rule": "self.size > oldSelf.size"}]);
    refuse_writes(&client, &widgets, "spec", rule, "widget-0000").await;
    by_hand(&client, "failedpass", spec_of(&widgets, json!({}))).await;
    let status = stalled_for(&client, "failedpass", "Failures").await;
    let [blocker] = status.blockers.as_slice() else {
        panic!("one thing holds it: {status:?}");
    };
    assert_eq!(
        (blocker.version.as_str(), blocker.holds.as_str()),
        ("v1alpha1", "Bytes"),
        "{blocker:?}"
    );
    let why = "this migration is stalled (Failures): 3 objects could not be migrated";
    assert!(blocker.message.contains(why), "{blocker:?}");
    assert_eq!(status.migrated_generation, None);

    change_spec(&client, "failedpass", json!({"suspend": true})).await;
    let status = in_phase(&client, "failedpass", Phase::Suspended).await;
    assert!(
        status.blockers[0].message.contains("set spec.suspend to false"),
        "{status:?}"
    );
    // Somebody who asks at a command line is told how it goes on.
    let kubeconfig = shared.control_plane.admin().kubeconfig().unwrap();
    let crd = widgets.crd_name();
    let asked = crate::progress::run(
        env!("CARGO_BIN_EXE_exuvia").into(),
        kubeconfig,
        &["storage", "droppable", &crd, "v1alpha1", "--no-references"],
    )
    .await;
    let said = String::from_utf8(asked.stdout).unwrap();
    assert_eq!(asked.status.code(), Some(1), "{said}");
    assert!(
        said.contains("to go on, run `kubectl patch storagemigration failedpass"),
        "{said}"
    );
}

/// The wait that `docs/operator.md` shows.
#[tokio::test]
async fn to_wait_for_the_generation_of_the_crd_is_safe_right_after_a_flip() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let kubeconfig = control_plane.admin().kubeconfig().unwrap();
    let widgets = flipped(&client, "safewait.example.com", 4, true).await;
    let operator = own_operator(&control_plane, "safewait");
    let (crd, resource) = (
        widgets.crd_name(),
        format!("storagemigration/{}", widgets.crd_name()),
    );
    let wait = async |what: String, timeout: &str| {
        let args = ["wait", &what, &resource, timeout];
        kubectl(kubeconfig.clone(), &args).await.status.success()
    };
    let at = |generation: i64| format!("--for=jsonpath={{.status.migratedGeneration}}={generation}");
    assert!(wait("--for=create".to_owned(), "--timeout=60s").await);
    let before = generation_of(&client, &crd).await;
    assert!(wait(at(before), "--timeout=60s").await);

    // The operator is not fast enough to see a flip: here it does not see it at all.
    operator.process.pause().unwrap();
    widgets.flip_storage(&client, "v1alpha1").await.unwrap();
    let now = generation_of(&client, &crd).await;
    assert_ne!(now, before);
    let condition = "--for=condition=Migrated".to_owned();
    assert!(
        wait(condition.clone(), "--timeout=1s").await,
        "which speaks of what was before"
    );
    assert!(!wait(at(now), "--timeout=1s").await);

    operator.process.resume().unwrap();
    assert!(wait(at(now), "--timeout=60s").await);
    assert_eq!(
        stored_at(&control_plane, &widgets).await,
        [("v1alpha1".to_owned(), 4)].into()
    );
    assert!(wait(condition, "--timeout=1s").await);
    let status = in_phase(&client, &crd, Phase::Migrated).await;
    let (.., message) = crate::harness::condition(&status, "Migrated");
    let said = format!("every object is stored at v1alpha1 (generation {now} of the CRD)");
    assert!(message.starts_with(&said), "{message}");
}
