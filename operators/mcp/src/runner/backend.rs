//! What the runner applies: the `StatefulSet` of the MCP server and its headless Service. Pure.

use exuvia_rollout::names::RESTARTED_AT_ANNOTATION;
use serde_json::{Value, json};

use crate::api::{PART_BACKEND, PART_LABEL, SERVER_LABEL, Transport};
use crate::controller::{labels, owner_reference};
use crate::naming;
use crate::run_config::RunConfig;
use crate::workload::goes_on_for_a_moment;

/// Pods are made and replaced in any order. With the other policy, a pod that is stuck on a bad image stays for ever
/// (PITFALLS A45).
pub(crate) const PARALLEL: &str = "Parallel";

/// Where the bridge is copied to.
const BRIDGE: &str = "/mcp-bridge";

/// The `StatefulSet`. `policy` is that of the live one, which cannot be changed, or [`PARALLEL`]; `owner` is the uid of the server.
pub(crate) fn stateful_set(config: &RunConfig, image: &str, owner: Option<&str>, policy: &str) -> Value {
    let mut intent = json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(config, owner),
        "spec": {
            "serviceName": naming::backend(&config.name),
            "podManagementPolicy": policy,
            "selector": {"matchLabels": selector(config)},
            "template": template(config, image),
        },
    });
    if let Some(replicas) = config.backend_replicas {
        intent["spec"]["replicas"] = json!(replicas);
    }
    intent
}

/// The Service that gives backend pods their names.
pub(crate) fn headless_service(config: &RunConfig, owner: Option<&str>) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(config, owner),
        "spec": {
            "clusterIP": "None",
            "selector": selector(config),
            "ports": [{"name": "mcp", "port": config.mcp_port, "targetPort": "mcp", "protocol": "TCP"}],
        },
    })
}

fn selector(config: &RunConfig) -> Value {
    json!({SERVER_LABEL: config.name, PART_LABEL: PART_BACKEND})
}

fn metadata(config: &RunConfig, owner: Option<&str>) -> Value {
    let mut metadata = json!({
        "name": naming::backend(&config.name),
        "namespace": config.namespace,
        "labels": labels(&config.name, PART_BACKEND),
    });
    if let Some(uid) = owner {
        metadata["ownerReferences"] = json!([owner_reference(&config.name, uid)]);
    }
    metadata
}

fn template(config: &RunConfig, image: &str) -> Value {
    let mut container = json!({
        "name": "mcp",
        "image": image,
        "ports": [{"name": "mcp", "containerPort": config.mcp_port, "protocol": "TCP"}],
        "readinessProbe": {"tcpSocket": {"port": "mcp"}, "periodSeconds": 2, "timeoutSeconds": 5},
        "lifecycle": goes_on_for_a_moment(),
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
        },
    });
    let mut spec = json!({
        "terminationGracePeriodSeconds": 30,
        "automountServiceAccountToken": config.service_account.is_some(),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
    });
    if !config.env.is_empty() {
        container["env"] = json!(config.env);
    }
    if !config.env_from.is_empty() {
        container["envFrom"] = json!(config.env_from);
    }
    if let Some(resources) = &config.resources {
        container["resources"] = json!(resources);
    }
    if let Some(account) = &config.service_account {
        spec["serviceAccountName"] = json!(account);
    }
    if !config.image_pull_secrets.is_empty() {
        spec["imagePullSecrets"] = json!(config.image_pull_secrets);
    }
    if config.transport == Transport::Stdio {
        bridge(&mut container, &mut spec, config);
    } else if !config.args.is_empty() {
        container["args"] = json!(config.args);
    }
    spec["containers"] = json!([container]);
    let mut metadata = json!({"labels": labels(&config.name, PART_BACKEND)});
    if let Some(at) = &config.restarted_at {
        metadata["annotations"] = json!({RESTARTED_AT_ANNOTATION: at});
    }
    json!({"metadata": metadata, "spec": spec})
}

/// A server that speaks stdio is started by a bridge, which an init container copies into the pod: one child per session.
fn bridge(container: &mut Value, spec: &mut Value, config: &RunConfig) {
    let program = format!("{BRIDGE}/mcp-runner");
    let mounts = json!([{"name": "bridge", "mountPath": BRIDGE}]);
    let listen = format!("--listen=0.0.0.0:{}", config.mcp_port);
    let path = format!("--path={}", config.path);
    // The proxy has checked the origin.
    container["command"] = json!([program, "bridge", listen, path, "--allowed-origin=*", "--"]);
    if !config.args.is_empty() {
        container["args"] = json!(config.args);
    }
    container["volumeMounts"] = mounts.clone();
    spec["volumes"] = json!([{"name": "bridge", "emptyDir": {}}]);
    spec["initContainers"] = json!([{
        "name": "bridge",
        "image": config.bridge_image,
        "args": ["install", program],
        "volumeMounts": mounts,
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
    }]);
}
