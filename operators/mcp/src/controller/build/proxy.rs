//! The Deployment of the runner: its pod template carries the stamps, and nothing that people ask for replaces them.

use std::collections::BTreeMap;

use exuvia_rollout::names::{
    CONFIG_HASH_ANNOTATION, CONFIG_HASH_ENV, FENCE_ANNOTATION, FENCE_ENV, GENERATION_ANNOTATION,
    GENERATION_ENV, RESTARTED_AT_ANNOTATION,
};
use exuvia_rollout::{FoundStamps, FrozenConfig, Names, Stamps, Token, hash_value, issue};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Map, Value, json};

use super::{labels, metadata};
use crate::api::{PART_LABEL, PART_PROXY, ProxyDeploymentOverrides, SERVER_LABEL};
use crate::controller::validate::{ADMIN_PORT, Accepted};
use crate::workload::is_deployment_rolled_out;
use crate::{naming, run_config};

/// How long a proxy lets calls end. Streams are ended after that.
const GRACE_SECONDS: i64 = 60;

/// Old `ReplicaSets` that are kept: each keeps its run config.
const HISTORY: i32 = 3;

/// Every proxy may be away.
const ALL: &str = "100%";

/// The Deployment, the token that its pods hold, and the hash by which the token was issued.
pub(super) fn deployment(
    accepted: &Accepted,
    runner_image: &str,
    config: &FrozenConfig,
    known: &[FoundStamps],
) -> (Value, Token, String) {
    let server = &accepted.found.server;
    let overrides = server.spec.resource_overrides.clone().unwrap_or_default();
    let overrides = overrides.proxy_deployment.unwrap_or_default();
    let mut intent = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(accepted, &accepted.name, PART_PROXY),
        "spec": {
            "selector": {"matchLabels": {SERVER_LABEL: accepted.name, PART_LABEL: PART_PROXY}},
            "revisionHistoryLimit": HISTORY,
            // An old proxy goes when a new one is ready, so that no call finds none.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": max_unavailable(accepted)}},
            "template": template(accepted, &overrides, runner_image, &config.name()),
        },
    });
    if let Some(replicas) = server.spec.replicas {
        intent["spec"]["replicas"] = json!(replicas);
    }
    merge(&mut intent["metadata"]["labels"], &overrides.labels);
    merge(&mut intent["metadata"]["annotations"], &overrides.annotations);

    let names = Names::default();
    let mut stamps = Stamps {
        generation: server.metadata.generation,
        config_hash: Some(config.hash().to_owned()),
        ..Stamps::default()
    };
    stamps.put_on_template(&mut intent, &names);
    // The epoch follows from everything that a pod is made of, but from the stamps that follow from it.
    let template_hash = hash_value(&without_epoch(&intent["spec"]["template"]));
    let token = issue(&accepted.uid, &template_hash, known);
    stamps.token = Some(token.clone());
    stamps.template_hash = Some(template_hash.clone());
    stamps.put_on_template(&mut intent, &names);
    stamps.put_on_object(&mut intent, &names);
    (intent, token, template_hash)
}

/// None, but for an immediate restart: then all old proxies go at once, and until that is done it stays so. To delete the pods instead
/// would restart them twice: the old `ReplicaSet` is faster than the roll-out.
fn max_unavailable(accepted: &Accepted) -> Value {
    let is_asked_for = accepted
        .restart
        .pending
        .as_ref()
        .is_some_and(|pending| pending.immediate);
    let is_under_way = accepted.found.deployment.as_ref().is_some_and(|deployment| {
        let strategy = deployment.spec.strategy.as_ref();
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let at_once = IntOrString::String(ALL.to_owned());
        rolling.is_some_and(|rolling| rolling.max_unavailable == Some(at_once))
            && !is_deployment_rolled_out(deployment)
    });
    if is_asked_for || is_under_way {
        json!(ALL)
    } else {
        json!(0)
    }
}

/// The template as it is hashed: what anybody wrote under the names of stamps that are issued later does not count.
fn without_epoch(template: &Value) -> Value {
    let mut template = template.clone();
    if let Some(annotations) = template
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.remove(FENCE_ANNOTATION);
        annotations.remove(exuvia_rollout::names::TEMPLATE_HASH_ANNOTATION);
    }
    template
}

fn template(
    accepted: &Accepted,
    overrides: &ProxyDeploymentOverrides,
    runner_image: &str,
    config_name: &str,
) -> Value {
    let spec = &accepted.found.server.spec;
    let pods = overrides
        .pod_template_metadata_overrides
        .clone()
        .unwrap_or_default();
    let mut annotations = Value::Object(Map::new());
    merge(&mut annotations, &pods.annotations);
    if let Some(at) = &accepted.restart.stamped {
        annotations[RESTARTED_AT_ANNOTATION] = json!(at);
    }
    let mut pod_labels = labels(&accepted.name, PART_PROXY);
    merge(&mut pod_labels, &pods.labels);
    json!({
        "metadata": {"labels": pod_labels, "annotations": annotations},
        "spec": {
            "serviceAccountName": naming::runner(&accepted.name),
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": "runner",
                "image": runner_image,
                "args": [
                    "run",
                    format!("--listen=[::]:{}", spec.proxy_port),
                    format!("--admin-listen=[::]:{ADMIN_PORT}"),
                ],
                "env": env(overrides),
                "ports": [
                    {"name": "http", "containerPort": spec.proxy_port, "protocol": "TCP"},
                    {"name": "admin", "containerPort": ADMIN_PORT, "protocol": "TCP"},
                ],
                "readinessProbe": probe("/readyz", 2),
                "livenessProbe": probe("/livez", 10),
                "lifecycle": crate::workload::goes_on_for_a_moment(),
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [{"name": "runconfig", "mountPath": run_config::MOUNT, "readOnly": true}],
            }],
            "volumes": [{"name": "runconfig", "configMap": {"name": config_name}}],
        },
    })
}

fn probe(path: &str, period: i32) -> Value {
    json!({
        "httpGet": {"path": path, "port": "admin", "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
    })
}

/// Our variables, then those that people ask for. One of ours cannot be replaced.
fn env(overrides: &ProxyDeploymentOverrides) -> Vec<Value> {
    let annotation = |key: &str| format!("metadata.annotations['{key}']");
    let mut ours: Vec<Value> = [
        (GENERATION_ENV, annotation(GENERATION_ANNOTATION)),
        (FENCE_ENV, annotation(FENCE_ANNOTATION)),
        (CONFIG_HASH_ENV, annotation(CONFIG_HASH_ANNOTATION)),
        ("POD_NAME", "metadata.name".to_owned()),
        ("POD_NAMESPACE", "metadata.namespace".to_owned()),
    ]
    .into_iter()
    // With apiVersion: the server fills it in, and an intent without it would differ from what is stored (PITFALLS A19).
    .map(|(name, path)| json!({"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}))
    .collect();
    let is_ours = |name: &str| ours.iter().any(|variable| variable["name"] == name);
    let theirs: BTreeMap<&str, &_> = overrides
        .env
        .iter()
        .map(|variable| (variable.name.as_str(), variable))
        .collect();
    let theirs: Vec<Value> = theirs
        .into_iter()
        .filter(|(name, _)| !is_ours(name))
        .filter_map(|(_, variable)| serde_json::to_value(variable).ok())
        .collect();
    ours.extend(theirs);
    ours
}

/// What is there stays.
fn merge(into: &mut Value, more: &BTreeMap<String, String>) {
    if more.is_empty() {
        return;
    }
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    for (key, value) in more {
        if into.get(key).is_none() {
            into[key] = json!(value);
        }
    }
}
