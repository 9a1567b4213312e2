//! The pods of the backend: which are ready to serve, and which is stuck. Pure, but for the watch.

use std::collections::BTreeMap;

use exuvia_runtime::{Metrics, Seen, follow};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use mcp_proxy::{Backend, Backends};

use super::backend::PARALLEL;
use crate::api::PART_BACKEND;
use crate::naming;

/// The label by which a `StatefulSet` tells the revisions of its pods apart.
const REVISION: &str = "controller-revision-hash";

/// Keeps the proxy's backends as the pods are, for ever.
pub(crate) async fn follow_pods(
    client: Client,
    namespace: &str,
    server: &str,
    port: u16,
    metrics: &Metrics,
    backends: &Backends,
) {
    let api: Api<Pod> = Api::namespaced(client, namespace);
    let which = ListParams::default().labels(&naming::selector(server, PART_BACKEND));
    let mut known: BTreeMap<String, Backend> = BTreeMap::new();
    let mut is_synced = false;
    follow(api, which, metrics, "pods", |seen| {
        match seen {
            Seen::Applied(pod) => {
                let name = pod.name_any();
                match backend(&pod, port) {
                    Some(backend) => known.insert(name, backend),
                    None => known.remove(&name),
                };
            }
            Seen::Deleted(pod) => {
                known.remove(&pod.name);
            }
            Seen::Synced => is_synced = true,
        }
        // During the first list some are not seen yet: sessions of those would be taken for lost.
        if is_synced {
            backends.set(known.values().cloned());
        }
    })
    .await;
}

/// A pod that has an address. One that is not ready, or about to go, keeps its sessions and gets no new ones.
fn backend(pod: &Pod, port: u16) -> Option<Backend> {
    let address = pod.status.as_ref()?.pod_ip.clone().filter(|ip| !ip.is_empty())?;
    let host = if address.contains(':') {
        format!("[{address}]")
    } else {
        address
    };
    let backend = Backend::new(&pod.uid()?, &format!("http://{host}:{port}")).ok()?;
    let is_ending = pod.metadata.deletion_timestamp.is_some();
    Some(backend.ready(is_ready(pod) && !is_ending).ending(is_ending))
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|fact| fact.type_ == "Ready" && fact.status == "True")
}

/// Whether the `StatefulSet` waits for ever for this pod: it replaces pods one by one, and this one has the old revision and does
/// not become ready (PITFALLS A45).
pub(crate) fn is_stuck(set: &StatefulSet, pod: &Pod) -> bool {
    let update = set
        .status
        .as_ref()
        .and_then(|status| status.update_revision.as_ref());
    let is_old = match (update, pod.labels().get(REVISION)) {
        (Some(update), Some(own)) => update != own,
        _ => false,
    };
    may_be_stuck(set) && is_old && !is_ready(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// Whether a pod of this `StatefulSet` can be stuck at all: it replaces pods in order, and has seen its last change.
pub(crate) fn may_be_stuck(set: &StatefulSet) -> bool {
    let policy = set.spec.pod_management_policy.as_deref();
    let seen = set.status.as_ref().and_then(|status| status.observed_generation) >= set.metadata.generation;
    policy != Some(PARALLEL) && seen
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(revision: &str, ready: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "0a1b2c3d-0000", "labels": {REVISION: revision}},
            "status": {"podIP": "10.0.0.7", "conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    fn set(policy: &str) -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": {"generation": 2},
            "spec": {"podManagementPolicy": policy, "selector": {}, "serviceName": "", "template": {}},
            "status": {"observedGeneration": 2, "replicas": 1, "updateRevision": "new"},
        }))
        .unwrap()
    }

    #[test]
    fn only_an_old_pod_that_is_not_ready_is_stuck_and_only_in_an_ordered_set() {
        assert!(is_stuck(&set("OrderedReady"), &pod("old", "False")));
        assert!(!is_stuck(&set("OrderedReady"), &pod("old", "True")));
        assert!(!is_stuck(&set("OrderedReady"), &pod("new", "False")));
        assert!(!is_stuck(&set("Parallel"), &pod("old", "False")));
        let mut unseen = set("OrderedReady");
        unseen.metadata.generation = Some(3);
        assert!(!is_stuck(&unseen, &pod("old", "False")));
    }

    #[test]
    fn a_pod_with_an_address_is_a_backend() {
        assert!(backend(&pod("r", "True"), 8080).is_some());
        let mut ending = pod("r", "True");
        ending.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let expected = backend(&pod("r", "False"), 8080).map(|backend| backend.ending(true));
        assert_eq!(
            backend(&ending, 8080),
            expected,
            "no new sessions, and no way back"
        );
        let mut without = pod("r", "True");
        without.status = None;
        assert_eq!(backend(&without, 8080), None);
    }
}
