//! A roll-out as it is without the freeze: the run config is one `ConfigMap` that follows the server, the image is an argument of the
//! pod, and nothing in the pod's environment says which generation it is of.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use mcp_operator::api::{PART_LABEL, PART_PROXY, SERVER_LABEL};
use serde_json::{Value, json};

use super::{MCP_PORT, PROXY_PORT};

/// The `ConfigMap` that all pods mount.
const CONFIG: &str = "a-live";

/// Rolls generation `generation` of server `a` out: first the run config, then the Deployment.
///
/// The pods of `keeps_old` are never old enough to replace those before them, so that two generations stay alive.
pub(crate) async fn roll_out(
    client: &Client,
    namespace: &str,
    image: &str,
    generation: i64,
    keeps_old: bool,
) -> Result<(), kube::Error> {
    let as_operator = PatchParams::apply("live-operator").force();
    let configs: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let config = config(namespace, image, generation);
    configs
        .patch(CONFIG, &as_operator, &Patch::Apply(&config))
        .await?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let deployment = deployment(image, keeps_old);
    deployments
        .patch("a", &as_operator, &Patch::Apply(&deployment))
        .await?;
    Ok(())
}

fn config(namespace: &str, image: &str, generation: i64) -> Value {
    let config = json!({
        "name": "a", "namespace": namespace, "generation": generation, "image": image, "path": "/mcp",
        "mcpPort": MCP_PORT, "proxyPort": PROXY_PORT,
    });
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG},
        "data": {"runconfig.json": config.to_string()},
    })
}

fn deployment(image: &str, keeps_old: bool) -> Value {
    let labels = json!({SERVER_LABEL: "a", PART_LABEL: PART_PROXY});
    let name = json!({"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "minReadySeconds": if keeps_old { 3600 } else { 0 },
            "progressDeadlineSeconds": 7200, // it must be longer
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": labels, "annotations": {"image": image}},
                "spec": {
                    "containers": [{
                        "name": "runner", "image": "example.com/mcp-runner:1",
                        "args": ["run", "--gate=compat", format!("--image={image}")],
                        "env": [{"name": "POD_NAME", "valueFrom": name}],
                        "volumeMounts": [{"name": "runconfig", "mountPath": "/etc/runconfig"}],
                    }],
                    "volumes": [{"name": "runconfig", "configMap": {"name": CONFIG}}],
                },
            },
        },
    })
}
