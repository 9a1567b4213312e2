//! Three moves on a real control plane, each from its manifest alone: an object that cannot be moved is named first.

use exuvia_api::DatastorePhase;
use exuvia_datastore::protocol::Hold;
use exuvia_runtime::machine::Ended;
use serde_json::{Value, json};

use crate::fixtures::Move;
use crate::stage::{Stage, is_refused};

/// Runs a move to its end: every object is as expected, and the source can be read and not be written.
async fn run(stage: &Stage) {
    let migration = stage.start().await;
    let mut engine = stage.engine(&migration);
    assert_eq!(
        stage.drive(&mut engine).await,
        Ended::Done,
        "{:?}",
        engine.blockers()
    );
    is_moved(stage).await;
}

async fn is_moved(stage: &Stage) {
    assert_eq!(stage.phase().await, DatastorePhase::Complete);
    stage.assert_expected(&[]).await;
    let source = &stage.ready.objects[0];
    stage.get(source).await;
    let written = stage.patch(source, json!({"metadata": {"labels": {"late": "yes"}}}));
    assert!(is_refused(&written.await));
}

/// A migration that is held by an object goes on when that is gone.
async fn is_held_by(stage: &Stage, bad: &Value, why: &str) {
    stage.create(bad).await;
    let migration = stage.start().await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    let [blocker] = engine.blockers() else {
        panic!("{:?}", engine.blockers())
    };
    assert_eq!(bad["metadata"]["name"], blocker.name, "{blocker:?}");
    assert!(blocker.message.contains(why), "{blocker:?}");
    assert_eq!(stage.policies(&migration).await, 0, "nothing is locked");
    stage.delete(bad).await;
    assert_eq!(stage.goes_on(&mut engine, Hold::Blocked).await, Ended::Done);
    is_moved(stage).await;
}

/// Somebody has applied a converted manifest before: it is equal, and stays as it is.
#[tokio::test]
async fn traefik() {
    let stage = Stage::new(Move::read("traefik")).await;
    let first = stage.create(&stage.ready.expected[0]).await;
    run(&stage).await;
    let now = stage.get(&stage.ready.expected[0]).await;
    assert_eq!(now.metadata.resource_version, first.metadata.resource_version);
    let progress = stage.read().await.status.unwrap().progress.unwrap();
    assert_eq!((progress.total, progress.migrated, progress.skipped), (9, 8, 1));
}

/// Solvers were part of certificates once. What they said has no place in a Certificate any more.
#[tokio::test]
async fn cert_manager() {
    let stage = Stage::new(Move::read("cert-manager")).await;
    let bad = json!({
        "apiVersion": "certmanager.k8s.io/v1alpha1", "kind": "Certificate",
        "metadata": {"name": "old", "namespace": "shop"},
        "spec": {
            "secretName": "old-tls", "issuerRef": {"name": "letsencrypt", "kind": "ClusterIssuer"},
            "acme": {"config": [{"domains": ["old.example.com"]}]},
        },
    });
    is_held_by(&stage, &bad, "spec.acme").await;
}

/// A controller that never gave a listener its port has not accepted it, either.
#[tokio::test]
async fn gateway_api() {
    let stage = Stage::new(Move::read("gateway-api")).await;
    let bad = json!({
        "apiVersion": "gateway.networking.x-k8s.io/v1alpha1", "kind": "XListenerSet",
        "metadata": {"name": "new", "namespace": "shop"},
        "spec": {"parentRef": {"name": "main"}, "listeners": [{"name": "web", "protocol": "HTTP"}]},
    });
    is_held_by(&stage, &bad, "port").await;
}

/// After the commit it would be too late: nothing is undone then, and the migration would never be complete.
#[tokio::test]
async fn a_kind_to_rewrite_that_is_not_served_stops_the_move_before_it_begins() {
    let mut ready = Move::read_in("gateway-api", "gateway.networking", "gateway.unserved");
    ready.migration.metadata.name = Some("unserved".to_owned());
    ready.objects.retain(|object| object["kind"] != "TLSRoute");
    ready.expected.retain(|object| object["kind"] != "TLSRoute");
    let is_missing = |crd: &Value| crd["spec"]["names"]["kind"] == "TLSRoute";
    let missing: Vec<Value> = ready.crds.extract_if(.., |crd| is_missing(crd)).collect();
    let stage = Stage::new(ready).await;
    let migration = stage.start().await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    let kinds: Vec<&str> = engine
        .blockers()
        .iter()
        .map(|blocker| blocker.kind.as_str())
        .collect();
    assert_eq!(
        kinds,
        ["TLSRoute.gateway.unserved.k8s.io"],
        "{:?}",
        engine.blockers()
    );
    assert_eq!(stage.policies(&migration).await, 0, "nothing is locked");
    stage.install(&missing).await;
    assert_eq!(stage.goes_on(&mut engine, Hold::Blocked).await, Ended::Done);
    is_moved(&stage).await;
}
