//! Manifests of many kinds, full of what servers rewrite: quantities, empty values, defaults, keys, atomic lists.

use serde_json::{Value, json};

/// The pod spec that the workloads share.
fn pod_spec() -> Value {
    json!({
        "serviceAccountName": "default",
        "terminationGracePeriodSeconds": 0,
        "hostNetwork": false,
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "a", "operator": "Exists"}, {"key": "b", "value": "c"}],
        "imagePullSecrets": [{"name": "pull-a"}, {"name": "pull-b"}],
        "securityContext": {"runAsNonRoot": true, "runAsUser": 1000},
        "initContainers": [
            {"name": "first", "image": "init:1"},
            {"name": "second", "image": "init:2", "command": ["sh", "-c", "true"]},
        ],
        "containers": [{
            "name": "main", "image": "main:1",
            "args": ["--one", "--two=2"],
            "env": [
                {"name": "EMPTY", "value": ""},
                {"name": "PLAIN", "value": "text"},
                {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            ],
            "ports": [
                {"containerPort": 53, "name": "dns"},
                {"containerPort": 53, "protocol": "UDP", "name": "dns-udp"},
                {"containerPort": 8080},
            ],
            "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
            "volumeMounts": [
                {"name": "run", "mountPath": "/etc/run", "readOnly": true},
                {"name": "tmp", "mountPath": "/tmp"},
            ],
            "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8080}, "initialDelaySeconds": 0},
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
        }],
        "volumes": [
            {"name": "run", "configMap": {"name": "run-config"}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "all", "projected": {"sources": [{"secret": {"name": "s"}}, {"configMap": {"name": "m"}}]}},
        ],
    })
}

/// A pod spec for kinds that are there for what is around it.
fn small_template(restart_policy: &str) -> Value {
    let spec = json!({
        "restartPolicy": restart_policy,
        "containers": [{
            "name": "main", "image": "main:1",
            "env": [{"name": "A", "value": ""}, {"name": "B", "value": "b"}],
            "resources": {"limits": {"memory": "1024Mi"}},
        }],
    });
    json!({"metadata": {"labels": {"app": "x"}}, "spec": spec})
}

fn template() -> Value {
    json!({"metadata": {"labels": {"app": "x"}, "annotations": {"note": "1000m"}}, "spec": pod_spec()})
}

fn object(api_version: &str, kind: &str, rest: Value) -> Value {
    let mut object = rest;
    object["apiVersion"] = json!(api_version);
    object["kind"] = json!(kind);
    object["metadata"] =
        json!({"name": "x", "labels": {"app": "x", "empty": ""}, "annotations": {"note": "one"}});
    object
}

/// All kinds.
#[allow(clippy::too_many_lines, reason = "a list of manifests")]
pub(crate) fn corpus() -> Vec<Value> {
    let selector = json!({"matchLabels": {"app": "x"}});
    let run_to_end = small_template("Never");
    vec![
        object(
            "v1",
            "ConfigMap",
            json!({"data": {"a": "1", "empty": ""}, "binaryData": {"b": "aGk="}}),
        ),
        object(
            "v1",
            "Secret",
            json!({"type": "Opaque", "data": {"a": "aGk=", "empty": ""}}),
        ),
        object(
            "v1",
            "ServiceAccount",
            json!({
                "automountServiceAccountToken": false, "imagePullSecrets": [{"name": "p"}],
                "secrets": [{"name": "one"}, {"name": "two"}],
            }),
        ),
        object(
            "v1",
            "Service",
            json!({"spec": {
                "clusterIP": "None", "selector": {"app": "x"}, "publishNotReadyAddresses": true,
                "ports": [
                    {"name": "dns", "port": 53},
                    {"name": "dns-udp", "port": 53, "protocol": "UDP"},
                    {"name": "web", "port": 80, "targetPort": "http"},
                ],
            }}),
        ),
        object(
            "v1",
            "PersistentVolumeClaim",
            json!({"spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1024Mi"}},
            }}),
        ),
        object(
            "apps/v1",
            "Deployment",
            json!({"spec": {
                "replicas": 0, "selector": selector, "template": template(), "revisionHistoryLimit": 3,
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            }}),
        ),
        object(
            "apps/v1",
            "StatefulSet",
            json!({"spec": {
                "serviceName": "x", "selector": selector, "template": template(), "podManagementPolicy": "Parallel",
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
                    "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
                }}],
            }}),
        ),
        object(
            "apps/v1",
            "DaemonSet",
            json!({"spec": {"selector": selector, "template": small_template("Always")}}),
        ),
        object(
            "batch/v1",
            "Job",
            json!({"spec": {
                "backoffLimit": 0, "suspend": true, "completions": 2, "template": run_to_end,
            }}),
        ),
        object(
            "batch/v1",
            "CronJob",
            json!({"spec": {
                "schedule": "*/5 * * * *", "suspend": false, "successfulJobsHistoryLimit": 0,
                "jobTemplate": {"spec": {"template": run_to_end}},
            }}),
        ),
        object(
            "rbac.authorization.k8s.io/v1",
            "Role",
            json!({"rules": [
                {"apiGroups": [""], "resources": ["pods", "services"], "verbs": ["get", "list"]},
                {"apiGroups": ["apps"], "resources": ["statefulsets"], "resourceNames": ["x"], "verbs": ["get"]},
            ]}),
        ),
        object(
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            json!({
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "x"},
                "subjects": [{"kind": "ServiceAccount", "name": "a"}, {"kind": "ServiceAccount", "name": "b", "namespace": "other"}],
            }),
        ),
        object(
            "networking.k8s.io/v1",
            "NetworkPolicy",
            json!({"spec": {
                "podSelector": {"matchLabels": {"app": "x"}}, "policyTypes": ["Ingress"],
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "proxy"}}}], "ports": [{"port": 8080}, {"port": 53, "protocol": "UDP"}]}],
            }}),
        ),
        object(
            "networking.k8s.io/v1",
            "Ingress",
            json!({"spec": {
                "ingressClassName": "any",
                "rules": [{"host": "x.example.com", "http": {"paths": [
                    {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "x", "port": {"number": 80}}}},
                    {"path": "/b", "pathType": "Exact", "backend": {"service": {"name": "y", "port": {"name": "web"}}}},
                ]}}],
            }}),
        ),
        object(
            "policy/v1",
            "PodDisruptionBudget",
            json!({"spec": {"maxUnavailable": 1, "selector": selector}}),
        ),
        object(
            "autoscaling/v2",
            "HorizontalPodAutoscaler",
            json!({"spec": {
                "minReplicas": 1, "maxReplicas": 5,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"},
                "metrics": [
                    {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}},
                    {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1024Mi"}}},
                ],
            }}),
        ),
    ]
}
