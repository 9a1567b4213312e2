//! The operator is killed (SIGKILL) each time that a migration comes to something new: the end is that of one that lives.

use std::collections::BTreeSet;

use exuvia_api::{DATASTORE_LABEL, DatastorePhase};
use exuvia_testenv::ControlPlane;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

use crate::harness::{Operator, Stage, control_plane, until};

const LEASE: &str = "killed";

/// A new process of the operator. What the one before it held is free, so that nobody waits until the Lease expires.
async fn next_life(control_plane: &ControlPlane, life: usize) -> Operator {
    let leases: Api<Lease> = Api::default_namespaced(control_plane.client().unwrap());
    if leases.get_opt(LEASE).await.unwrap().is_some() {
        let nobody = Patch::Merge(json!({"spec": {"holderIdentity": null}}));
        leases
            .patch(LEASE, &PatchParams::default(), &nobody)
            .await
            .unwrap();
    }
    let access = control_plane.user("exuvia", &["system:masters"]).unwrap();
    let lease = format!("--lease-name={LEASE}");
    Operator::start(control_plane, &access, &format!("life-{life}"), &[&lease])
}

/// Where a migration is, as its status says it; `None`: it is gone.
async fn place(stage: &Stage) -> Option<String> {
    let migration = stage.migrations().get_opt(&stage.name).await.unwrap()?;
    let status = migration.status.unwrap_or_default();
    Some(format!("{:?} {}", status.phase, status.step))
}

/// Kills the operator whenever the migration is in a place where it never was, until it `is_over`. How often.
async fn killed_until(
    control_plane: &ControlPlane,
    stage: &Stage,
    lives: &mut usize,
    is_over: impl Fn(Option<&str>) -> bool,
) -> usize {
    let mut places: BTreeSet<Option<String>> = BTreeSet::from([place(stage).await]);
    let mut kills = 0;
    loop {
        *lives += 1;
        let operator = next_life(control_plane, *lives).await;
        let now = until("the migration goes on", async || {
            let now = place(stage).await;
            (is_over(now.as_deref()) || !places.contains(&now)).then_some(now)
        })
        .await;
        operator.process.kill().unwrap();
        if is_over(now.as_deref()) {
            return kills;
        }
        kills += 1;
        places.insert(now);
    }
}

#[tokio::test]
async fn an_operator_that_is_killed_again_and_again_moves_everything_and_leaves_nothing_behind() {
    let control_plane = control_plane().await;
    let stage = Stage::at(control_plane.client().unwrap(), "killed", 5).await;
    let mut spec = stage.spec();
    spec["mode"] = json!("SyncThenFreeze");
    spec["cleanup"] = json!({"source": "Thaw"});
    let uid = stage.migrate(spec).await.metadata.uid.unwrap();
    let mut lives = 0;
    let complete = format!("{:?}", Some(DatastorePhase::Complete));
    let kills = killed_until(&control_plane, &stage, &mut lives, |place| {
        place.is_some_and(|place| place.starts_with(&complete))
    })
    .await;
    assert!(kills > 5, "{kills}");
    assert_eq!(stage.names(&stage.new).await, stage.names(&stage.old).await);
    let progress = stage.in_phase(DatastorePhase::Complete).await.progress.unwrap();
    assert_eq!((progress.total, progress.conflicts), (5, 0));

    stage
        .migrations()
        .delete(&stage.name, &DeleteParams::default())
        .await
        .unwrap();
    killed_until(&control_plane, &stage, &mut lives, |place| place.is_none()).await;
    assert_eq!(stage.names(&stage.new).await.len(), 5);
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(stage.client.clone());
    let ours = ListParams::default().labels(&format!("{DATASTORE_LABEL}={uid}"));
    assert_eq!(policies.list(&ours).await.unwrap().items.len(), 0);
    until("the source can be written again", async || {
        let patch = Patch::Merge(json!({"spec": {"color": "blue"}}));
        stage
            .api(&stage.old)
            .patch("w0", &PatchParams::default(), &patch)
            .await
    })
    .await;
    println!("{kills} kills before the end, {lives} processes");
}
