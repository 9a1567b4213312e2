//! The charts, and the plain manifests, on a real control plane.

use std::process::Command;

use exuvia_testenv::assets::{Assets, Binary};
use exuvia_testenv::{Access, ControlPlane, until};
use http::Request;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::flowcontrol::v1::FlowSchema;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube::client::Body;
use serde_json::json;

use crate::rendered::{charts, documents, workspace};
use crate::{NAMESPACE, installed, migrations};

const OWN_CRD: &str = "storagemigrations.exuvia.dev";

#[tokio::test]
async fn a_restricted_namespace_admits_the_pods() {
    let control_plane = installed().await;
    let client = control_plane.client().unwrap();
    let restricted = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .patch(NAMESPACE, &PatchParams::default(), &Patch::Merge(restricted))
        .await
        .unwrap();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let deployment = deployments.get("exuvia").await.unwrap();
    let spec = deployment.spec.template.spec.unwrap();
    let mut pod: Pod = serde_json::from_value(json!({"metadata": {"name": "tried"}, "spec": spec})).unwrap();
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    // A pod that asks for more is refused: the namespace does enforce its level.
    let mut root = pod.clone();
    let context = root.spec.as_mut().unwrap().security_context.as_mut().unwrap();
    context.run_as_non_root = Some(false);
    until("a pod that may run as root is refused", async || {
        matches!(pods.create(&dry_run, &root).await, Err(kube::Error::Api(status)) if status.message.contains("restricted"))
    })
    .await;
    pods.create(&dry_run, &pod).await.unwrap();
    let container = &mut pod.spec.as_mut().unwrap().containers[0];
    let context = container.security_context.as_ref().unwrap();
    assert_eq!(context.read_only_root_filesystem, Some(true));
}

/// Which flow schema the API server used for a request.
async fn flow_schema(user: &Access, path: &str) -> String {
    let client = user.client().unwrap();
    let request = Request::get(path).body(Body::empty()).unwrap();
    let answer = client.send(request).await.unwrap();
    let header = answer.headers().get("x-kubernetes-pf-flowschema-uid");
    header
        .map(|uid| uid.to_str().unwrap().to_owned())
        .unwrap_or_default()
}

#[tokio::test]
async fn the_operators_requests_have_their_own_priority_level_and_its_lease_does_not_wait_there() {
    let control_plane = installed().await;
    let client = control_plane.client().unwrap();
    let operator = control_plane.service_account(NAMESPACE, "exuvia").await.unwrap();
    let other = control_plane.service_account(NAMESPACE, "default").await.unwrap();
    let schemas: Api<FlowSchema> = Api::all(client);
    let uid = async |name: &str| schemas.get(name).await.unwrap().metadata.uid.unwrap();
    let (own, leases) = (uid("exuvia").await, uid("exuvia-leader-election").await);
    let list = "/apis/exuvia.dev/v1beta1/storagemigrations";
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/exuvia");
    until("the flow schema is in force", async || {
        flow_schema(&operator, list).await == own
    })
    .await;
    until("the Lease's, too", async || {
        flow_schema(&operator, &lease).await == leases
    })
    .await;
    let elsewhere = lease.replace(NAMESPACE, "default");
    assert_eq!(flow_schema(&operator, &elsewhere).await, own);
    assert_ne!(flow_schema(&other, list).await, own);
    // Its level exists: otherwise the API server would call the schema dangling.
    for name in ["exuvia", "exuvia-leader-election"] {
        until("its level is found", async || {
            let schema = schemas.get(name).await.unwrap();
            let conditions = schema
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            conditions.iter().any(|condition| {
                condition.type_ == "Dangling" && condition.status.as_deref() == Some("False")
            })
        })
        .await;
    }
}

#[tokio::test]
async fn the_operators_account_may_read_migrations_but_not_secrets() {
    let control_plane = installed().await;
    let operator = control_plane.service_account(NAMESPACE, "exuvia").await.unwrap();
    let client = operator.client().unwrap();
    let own = migrations(client.clone());
    until("its role is known", async || {
        own.list(&kube::api::ListParams::default()).await.is_ok()
    })
    .await;
    let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::all(client);
    let refused = secrets.list(&kube::api::ListParams::default()).await.unwrap_err();
    assert!(
        matches!(&refused, kube::Error::Api(status) if status.code == 403),
        "{refused}"
    );
}

#[tokio::test]
async fn uninstalling_keeps_the_crd_and_all_migrations_and_a_new_install_adopts_them() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let client = control_plane.client().unwrap();
    let helm = control_plane.helm().unwrap();
    let chart = charts().join("exuvia-crds");
    helm.install(&chart, "crds", NAMESPACE, &["--create-namespace"])
        .await
        .unwrap();
    let migrations = migrations(client.clone());
    let secrets = serde_json::from_value(json!({
        "apiVersion": "exuvia.dev/v1beta1", "kind": "StorageMigration",
        "metadata": {"name": "secrets"}, "spec": {"resource": "secrets"},
    }))
    .unwrap();
    until("the CRD is served", async || {
        migrations.create(&PostParams::default(), &secrets).await.is_ok()
    })
    .await;
    helm.uninstall("crds", NAMESPACE, &[]).await.unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(client);
    assert!(
        crds.get(OWN_CRD)
            .await
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_none()
    );
    migrations.get("secrets").await.unwrap();
    helm.install(&chart, "crds", NAMESPACE, &[]).await.unwrap();
    // With another release name the CRD belongs to another release, unless --take-ownership is given.
    helm.install(&chart, "others", "default", &[]).await.unwrap_err();
    helm.install(&chart, "mine", "default", &["--take-ownership"])
        .await
        .unwrap();
    migrations.get("secrets").await.unwrap();
}

#[tokio::test]
async fn the_plain_manifests_can_be_applied_as_they_are() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let kubeconfig = control_plane.admin().kubeconfig().unwrap();
    let client = control_plane.client().unwrap();
    let apply = async |file: &str| {
        let path = workspace().join("deploy").join(file);
        let kubeconfig = kubeconfig.clone();
        let output = tokio::task::spawn_blocking(move || {
            let kubectl = Assets::from_env().unwrap().find(Binary::Kubectl).unwrap();
            Command::new(kubectl)
                .args(["apply", "--server-side", "--filename"])
                .arg(path)
                .env("KUBECONFIG", kubeconfig)
                .output()
                .unwrap()
        })
        .await
        .unwrap();
        assert!(output.status.success(), "{}", crate::text(&output.stderr));
        crate::text(&output.stderr)
    };
    apply("crds.yaml").await;
    // The namespace enforces restricted pods: a warning would mean that the Deployment's pods are not.
    assert_eq!(apply("exuvia.yaml").await, "");
    let deployments: Api<Deployment> = Api::namespaced(client, NAMESPACE);
    deployments.get("exuvia").await.unwrap();
    let text = std::fs::read_to_string(workspace().join("deploy/exuvia.yaml")).unwrap();
    assert!(!text.to_lowercase().contains("helm"), "nothing of helm is left");
    assert!(documents(&text).len() > 10);
}
