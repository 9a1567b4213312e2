//! What roll-outs of Deployment and `StatefulSet` have in common: how a pod goes, and whether all are new. Pure.

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use serde_json::{Value, json};

/// 2 s: those who send calls to a pod hear of its deletion within milliseconds on a calm cluster.
const PRE_STOP_SECONDS: i64 = 2;

/// The hook by which a container goes on serving after its pod is deleted, until Services and proxies have heard of it. A sleep by the
/// kubelet: an image may have no program for it.
pub(crate) fn goes_on_for_a_moment() -> Value {
    json!({"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}})
}

/// Whether every pod of the `StatefulSet` is new and ready: the controller has seen the last change, and all replicas are
/// updated and ready.
pub fn is_stateful_set_ready(set: &StatefulSet) -> bool {
    let wanted = set.spec.replicas.unwrap_or(1);
    let Some(status) = &set.status else { return false };
    let seen = status.observed_generation.unwrap_or(0) >= set.metadata.generation.unwrap_or(0);
    let updated = status.updated_replicas.unwrap_or(0);
    seen && status.replicas == wanted && updated == wanted && status.ready_replicas.unwrap_or(0) == wanted
}

/// How far the `StatefulSet` is, in words.
pub(crate) fn describe(set: &StatefulSet) -> String {
    let status = set.status.clone().unwrap_or_default();
    let (wanted, generation) = (
        set.spec.replicas.unwrap_or(1),
        set.metadata.generation.unwrap_or(0),
    );
    if status.observed_generation.unwrap_or(0) < generation {
        return format!(
            "the controller of StatefulSets has not seen generation {generation} of the backend yet"
        );
    }
    format!(
        "not every backend pod is new and ready: {wanted} wanted, {} there, {} new, {} ready",
        status.replicas,
        status.updated_replicas.unwrap_or(0),
        status.ready_replicas.unwrap_or(0)
    )
}

/// Whether every pod of the Deployment is new and ready.
pub fn is_deployment_rolled_out(deployment: &Deployment) -> bool {
    let wanted = deployment.spec.replicas.unwrap_or(1);
    let Some(status) = &deployment.status else {
        return false;
    };
    let seen = status.observed_generation.unwrap_or(0) >= deployment.metadata.generation.unwrap_or(0);
    let all = |count: Option<i32>| count.unwrap_or(0) == wanted;
    seen && all(status.replicas) && all(status.updated_replicas) && all(status.ready_replicas)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(generation: i64, observed: i64, replicas: [i32; 4]) -> StatefulSet {
        let [wanted, there, updated, ready] = replicas;
        serde_json::from_value(json!({
            "metadata": {"generation": generation},
            "spec": {"replicas": wanted, "selector": {}, "serviceName": "", "template": {}},
            "status": {"observedGeneration": observed, "replicas": there, "updatedReplicas": updated, "readyReplicas": ready},
        }))
        .unwrap()
    }

    #[test]
    fn ready_means_seen_updated_and_ready() {
        assert!(is_stateful_set_ready(&set(2, 2, [3, 3, 3, 3])));
        assert!(is_stateful_set_ready(&set(2, 2, [0, 0, 0, 0])));
        for not_ready in [
            set(3, 2, [3, 3, 3, 3]),
            set(2, 2, [3, 3, 2, 3]),
            set(2, 2, [3, 3, 3, 2]),
            set(2, 2, [3, 4, 3, 3]),
        ] {
            assert!(!is_stateful_set_ready(&not_ready), "{not_ready:?}");
        }
        assert!(!is_stateful_set_ready(&StatefulSet::default()));
    }
}
