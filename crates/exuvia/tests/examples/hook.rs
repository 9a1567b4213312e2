//! The Helm hook: rendered by the real helm, and its command run with exactly the rights of its Job. No pod can run here.

use std::os::unix::fs::symlink;
use std::path::Path;

use exuvia_testenv::{Access, ControlPlane, Helm, until};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams, TypeMeta};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::binary::{exuvia, flipped, migrate, printed};
use crate::rendered::{documents, strings, workspace};

const NAMESPACE: &str = "hooked";
const RELEASE: &str = "widgets";

/// The objects of the chart's hook, in the order in which helm makes them.
async fn hook() -> Vec<Value> {
    let chart = workspace().join("examples/helm-pre-upgrade-hook");
    let helm = Helm::offline().unwrap();
    helm.lint(&chart, &["--strict"]).await.unwrap();
    let text = helm.template(&chart, RELEASE, NAMESPACE, &[]).await.unwrap();
    let weight = |object: &Value| {
        let weight = object["metadata"]["annotations"]["helm.sh/hook-weight"].as_str();
        weight.map_or(0, |weight| weight.parse::<i32>().unwrap())
    };
    let mut objects = documents(&text);
    objects.retain(|object| object["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade");
    objects.sort_by_key(weight);
    objects
}

async fn create(control_plane: &ControlPlane, object: &Value) {
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let types: TypeMeta = object.types.clone().unwrap();
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types).unwrap());
    let client = control_plane.client().unwrap();
    let api: Api<DynamicObject> = if types.kind.starts_with("ClusterRole") {
        Api::all_with(client, &resource)
    } else {
        Api::namespaced_with(client, NAMESPACE, &resource)
    };
    api.create(&PostParams::default(), &object).await.unwrap();
}

/// A `ConfigMap` as the kubelet mounts it: each key is a link through `..data`.
fn mount(data: &Value, directory: &Path) {
    std::fs::create_dir(directory.join("..2026")).unwrap();
    symlink("..2026", directory.join("..data")).unwrap();
    for (key, text) in data.as_object().unwrap() {
        std::fs::write(directory.join("..2026").join(key), text.as_str().unwrap()).unwrap();
        symlink(format!("..data/{key}"), directory.join(key)).unwrap();
    }
}

#[tokio::test]
async fn an_upgrade_that_drops_a_version_is_refused_until_nothing_holds_it() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "hook.example.com", 5).await;
    let namespace = serde_json::from_value::<Namespace>(json!({"metadata": {"name": NAMESPACE}})).unwrap();
    Api::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();

    let hook = hook().await;
    for object in &hook {
        create(control_plane, object).await; // the Job, too: the server finds nothing wrong with it
    }
    let of_kind = |kind: &str| hook.iter().find(|object| object["kind"] == kind).unwrap();
    let pod = &of_kind("Job")["spec"]["template"]["spec"];
    assert_eq!(of_kind("Job")["spec"]["backoffLimit"], 0, "one answer is enough");
    let container = &pod["containers"][0];
    let account = pod["serviceAccountName"].as_str().unwrap();
    let account: Access = control_plane.service_account(NAMESPACE, account).await.unwrap();
    let mounted = tempfile::tempdir().unwrap();
    mount(&of_kind("ConfigMap")["data"], mounted.path());
    let path = container["volumeMounts"][0]["mountPath"].as_str().unwrap();
    let here = mounted.path().to_str().unwrap();
    let args = strings(&container["args"]);
    let args: Vec<&str> = args
        .iter()
        .map(|arg| if arg == path { here } else { arg })
        .collect();
    let ask = async || {
        let output = exuvia(account.kubeconfig().unwrap(), &args).await;
        (output.status.code().unwrap(), printed(&output))
    };

    until("the role counts, and the version is held", async || {
        ask().await.0 == 1
    })
    .await;
    let (_, said) = ask().await;
    assert!(said.contains("v1alpha1") && said.contains("bytes"), "{said}");
    let migrated = migrate(control_plane, &["--patrol", &widgets.crd_name()]).await;
    assert!(migrated.status.success(), "{}", printed(&migrated));
    let (code, said) = ask().await;
    assert_eq!(code, 0, "{said}");

    // Every rule is needed: without it, the upgrade is refused.
    let roles: Api<ClusterRole> = Api::all(client);
    let role = of_kind("ClusterRole");
    let name = role["metadata"]["name"].as_str().unwrap();
    let needed = role["rules"].as_array().unwrap();
    assert_eq!(needed.len(), 4);
    for left_out in 0..needed.len() {
        let mut fewer = needed.clone();
        fewer.remove(left_out);
        let change = Patch::Merge(json!({"rules": fewer}));
        roles.patch(name, &PatchParams::default(), &change).await.unwrap();
        until("a missing right is a refusal", async || ask().await.0 > 1).await;
    }
}
