//! A migration needs rights of its own: it waits for them, names them, and `exuvia rbac -f` prints them.

use exuvia_api::{DatastorePhase, datastore_reason as reason};
use exuvia_testenv::ControlPlane;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::harness::*;

const NAMESPACE: &str = "exuvia-system";

/// Applies what the command prints.
async fn bind(control_plane: &ControlPlane, manifests: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), manifests).unwrap();
    let kubeconfig = control_plane.admin().kubeconfig().unwrap();
    let path = file.path().to_str().unwrap();
    let applied = kubectl(kubeconfig, &["apply", "--server-side", "-f", path]).await;
    assert!(applied.status.success(), "{}", text(&applied.stderr));
}

fn manifest(stage: &Stage, spec: &Value) -> String {
    json!({
        "apiVersion": "exuvia.dev/v1beta1", "kind": "DatastoreMigration",
        "metadata": {"name": stage.name}, "spec": spec,
    })
    .to_string()
}

/// The migration as the command that the status names reads it.
async fn as_kubectl_prints(control_plane: &ControlPlane, name: &str) -> String {
    let kubeconfig = control_plane.admin().kubeconfig().unwrap();
    let got = kubectl(kubeconfig, &["get", "datastoremigration", name, "-o", "yaml"]).await;
    assert!(got.status.success(), "{}", text(&got.stderr));
    text(&got.stdout)
}

/// An operator with no rights but its own moves nothing until somebody binds what the command prints for the migration; and
/// those rights are enough.
#[tokio::test]
async fn late_rights_are_waited_for_by_name_and_what_the_command_prints_is_enough() {
    let control_plane = control_plane().await;
    let client: Client = control_plane.client().unwrap();
    let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).unwrap();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let account = control_plane.service_account(NAMESPACE, "exuvia").await.unwrap();
    let own = exuvia(
        &control_plane,
        &["rbac", "--crds", "storagemigrations.exuvia.dev"],
        None,
    )
    .await;
    assert!(own.0, "{}", own.2);
    bind(&control_plane, &own.1).await;
    let lease = format!("--lease-namespace={NAMESPACE}");
    let operator = Operator::start(
        &control_plane,
        &account,
        "limited",
        &["--lease-name=exuvia", &lease],
    );
    operator.ready().await;

    let stage = Stage::at(client, "granted", 4).await;
    let mut spec = stage.spec();
    spec["cutover"] = json!({"waitFor": [
        {"group": "apps", "version": "v1", "kind": "Deployment", "namespace": "granted", "optional": true},
    ]});
    stage.migrate(spec.clone()).await;
    let status = stage
        .status_when("blocked", |status| is_stalled_for(status, reason::FORBIDDEN))
        .await;
    assert_eq!(status.phase, Some(DatastorePhase::Pending));
    // One line for each rule, and one command for all of them.
    let how = "kubectl get datastoremigration granted -o yaml | exuvia rbac -f - | kubectl apply --server-side -f -";
    assert!(status.blockers[0].message.ends_with(how), "{status:?}");
    assert!(status.message.contains(how), "{status:?}");
    let expected = "the right to get, list, watch, create, update, patch, delete widgets.new.granted.dev is missing, which is needed \
                    to try, create and verify the copies";
    let mut blockers = status.blockers.iter();
    assert!(
        blockers.any(|blocker| blocker.message.starts_with(expected)),
        "{status:?}"
    );
    assert!(status.blockers.len() < 16, "{status:?}");

    let printed = exuvia(
        &control_plane,
        &["rbac", "-f", "-"],
        Some(as_kubectl_prints(&control_plane, "granted").await),
    )
    .await;
    assert!(printed.0, "{}", printed.2);
    for part in [
        "name: exuvia-granted",
        "namespace: exuvia-system",
        "# Try, create and verify the copies",
        "new.granted.dev",
        "deployments",
    ] {
        assert!(printed.1.contains(part), "{part} is not in: {}", printed.1);
    }
    assert!(
        !printed.1.contains("storagemigrations"),
        "nothing else: {}",
        printed.1
    );
    bind(&control_plane, &printed.1).await;
    let status = stage.in_phase(DatastorePhase::Complete).await;
    assert!(status.blockers.is_empty(), "{status:?}");
    assert_eq!(stage.names(&stage.new).await.len(), 4);
}

#[tokio::test]
async fn a_manifest_without_a_migration_or_with_an_unknown_kind_is_one_sentence() {
    let control_plane = &shared().await.control_plane;
    let config_map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}});
    let refused = exuvia(control_plane, &["rbac", "-f", "-"], Some(config_map.to_string())).await;
    assert!(
        !refused.0 && refused.2.contains("expected a manifest of a DatastoreMigration"),
        "{}",
        refused.2
    );
    let client = control_plane.client().unwrap();
    let stage = Stage::without_target(client, "unknown", 0).await;
    let input = Some(manifest(&stage, &stage.spec()));
    let refused = exuvia(control_plane, &["rbac", "-f", "-"], input).await;
    assert!(
        !refused.0 && refused.2.contains("no CRD for kind Widget"),
        "{}",
        refused.2
    );
}
