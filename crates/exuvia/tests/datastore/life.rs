//! The controller's life: its CRD comes and goes, the process ends, migrations stay what they are.

use exuvia_api::{DATASTORE_LABEL, DatastoreMigration, DatastorePhase, OPERATOR_ANNOTATION};
use exuvia_testenv::ControlPlane;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, CustomResourceExt, ResourceExt};
use serde_json::json;

use crate::harness::*;

const OWN_CRD: &str = "datastoremigrations.exuvia.dev";

#[tokio::test]
async fn its_crd_may_go_and_come_back_and_nothing_of_the_users_goes_with_it() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let access = control_plane.user("exuvia", &["system:masters"]).unwrap();
    let operator = Operator::start(&control_plane, &access, "own-crd", &[]);
    operator.ready().await;
    let stage = Stage::at(client.clone(), "leaving", 3).await;
    let mut spec = stage.spec();
    spec["cleanup"] = json!({"source": "DeleteCRDs"});
    stage.migrate(spec).await;
    stage.in_phase(DatastorePhase::Complete).await;

    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.delete(OWN_CRD, &DeleteParams::default()).await.unwrap();
    until("our CRD is gone", async || {
        crds.get_opt(OWN_CRD).await.unwrap().is_none()
    })
    .await;
    until("the operator waits for it", async || {
        let (code, answer) = operator.get("/readyz?verbose").await;
        code == 200 && answer.contains(&format!("waits for crd {OWN_CRD}"))
    })
    .await;
    assert_eq!(
        stage.names(&stage.old).await.len(),
        3,
        "the source is still there"
    );
    assert_eq!(stage.names(&stage.new).await.len(), 3);

    install(&client, &DatastoreMigration::crd()).await;
    let again = Stage::at(client, "back", 2).await;
    again.migrate(again.spec()).await;
    again.in_phase(DatastorePhase::Complete).await;
    let unexpected: Vec<String> = operator
        .complaints()
        .into_iter()
        .filter(|line| !line.contains("waiting for the controller's CRD"))
        // A server that has just been told of a CRD does not answer for a moment.
        .filter(|line| !line.contains("watch failed; retrying"))
        .collect();
    assert!(unexpected.is_empty(), "{unexpected:#?}");
}

/// Somebody takes the finalizer off and deletes the migration under its freeze: while an operator runs, and while none does.
#[tokio::test]
async fn the_freeze_of_a_migration_that_was_removed_by_force_ends() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let access = control_plane.user("exuvia", &["system:masters"]).unwrap();
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let ours = ListParams::default().labels(DATASTORE_LABEL);
    for is_running in [true, false] {
        let name = if is_running { "forced" } else { "forcedlater" };
        let operator = Operator::start(&control_plane, &access, name, &["--lease-name=forced"]);
        operator.ready().await;
        let stage = Stage::at(client.clone(), name, 2).await;
        let mut spec = stage.spec();
        spec["cutover"] = json!({"hold": true});
        stage.migrate(spec).await;
        stage
            .status_when("it holds", |status| status.step == "Verified")
            .await;
        assert!(!policies.list(&ours).await.unwrap().items.is_empty());
        if !is_running {
            operator.process.kill().unwrap();
        }
        let migrations: Api<DatastoreMigration> = Api::all(client.clone());
        let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        migrations
            .patch(name, &PatchParams::default(), &none)
            .await
            .unwrap();
        migrations.delete(name, &DeleteParams::default()).await.unwrap();
        let successor = (!is_running)
            .then(|| Operator::start(&control_plane, &access, "successor", &["--lease-name=forced"]));
        until("the policies are gone", async || {
            policies.list(&ours).await.unwrap().items.is_empty()
        })
        .await;
        let operator = successor.as_ref().unwrap_or(&operator);
        until("the operator has said so", async || {
            operator
                .log()
                .contains("the migration was removed under its freeze")
        })
        .await;
    }
}

#[tokio::test]
async fn an_operator_that_is_told_to_stop_ends_quietly_and_its_successor_goes_on() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let access = control_plane.user("exuvia", &["system:masters"]).unwrap();
    let operator = Operator::start(&control_plane, &access, "first", &["--lease-name=life"]);
    operator.ready().await;
    let stage = Stage::at(client, "stopped", 5).await;
    let mut spec = stage.spec();
    // Long enough for a busy machine to tell the operator to stop meanwhile.
    spec["freeze"]["drain"] = json!("20s");
    stage.migrate(spec).await;
    stage
        .status_when("it drains", |status| status.step == "Draining")
        .await;
    operator.terminate();
    let code = until("the operator ends", async || operator.process.exit_code()).await;
    assert_eq!(code, 0, "{}", operator.log());
    assert_eq!(operator.complaints(), Vec::<String>::new());
    let phase = stage.in_phase(DatastorePhase::Migrating).await;
    assert!(phase.frozen_at.is_some(), "the freeze stays: {phase:?}");

    // One with a Lease of its own does not touch it, and says whose it is.
    let rival = Operator::start(&control_plane, &access, "rival", &[]);
    left_alone(&rival, "stopped").await;
    assert_eq!(stage.in_phase(DatastorePhase::Migrating).await, phase);
    let successor = Operator::start(&control_plane, &access, "second", &["--lease-name=life"]);
    stage.in_phase(DatastorePhase::Complete).await;
    assert_eq!(stage.names(&stage.new).await.len(), 5);
    let events = stage.event_reasons().await;
    assert_eq!(
        events,
        ["Complete", "Converged", "Frozen", "OtherOperator", "Started"],
        "each once"
    );
    handed_over(&control_plane, &[rival, successor]).await;
}

/// The operator has said that another one carries the migration out.
async fn left_alone(operator: &Operator, migration: &str) {
    until("the operator says that it is another one's", async || {
        let log = operator.log();
        let is_said = |line: &str| line.contains("left alone: another operator") && line.contains(migration);
        log.lines().any(is_said).then_some(()).ok_or(log.clone())
    })
    .await;
}

/// A migration of an operator that is gone for good is carried on by one of these when its name is taken off.
async fn handed_over(control_plane: &ControlPlane, operators: &[Operator]) {
    let stage = Stage::at(control_plane.client().unwrap(), "handed", 2).await;
    let migration = serde_json::from_value(json!({
        "apiVersion": "exuvia.dev/v1beta1", "kind": "DatastoreMigration",
        "metadata": {"name": "handed", "annotations": {OPERATOR_ANNOTATION: "nowhere/exuvia"}}, "spec": stage.spec(),
    }))
    .unwrap();
    let (migrations, params) = (stage.migrations(), PostParams::default());
    migrations.create(&params, &migration).await.unwrap();
    for operator in operators {
        left_alone(operator, "handed").await;
    }
    assert_eq!(migrations.get("handed").await.unwrap().status, None);
    let args = ["annotate", "datastoremigration", "handed", "exuvia.dev/operator-"];
    let handed = kubectl(control_plane.admin().kubeconfig().unwrap(), &args).await;
    assert!(handed.status.success(), "{}", text(&handed.stderr));
    stage.in_phase(DatastorePhase::Complete).await;
    assert_eq!(stage.names(&stage.new).await.len(), 2);
    let taken = migrations.get("handed").await.unwrap();
    let by = &taken.annotations()[OPERATOR_ANNOTATION];
    assert!(["default/life", "default/rival"].contains(&by.as_str()), "{by}");
}

#[tokio::test]
async fn switched_off_it_touches_nothing() {
    let control_plane = &shared().await.control_plane;
    let access = control_plane.user("off", &["system:masters"]).unwrap();
    let off = [
        "--enable-datastore-migration=false",
        "--enable-storage-migration=false",
    ];
    let operator = Operator::start(control_plane, &access, "off", &off);
    operator.ready().await;
    assert!(
        operator.log().contains("datastore_migration=false"),
        "{}",
        operator.log()
    );
    let (_, answer) = operator.get("/readyz?verbose").await;
    assert!(!answer.contains("datastoremigration"), "{answer}");
}
