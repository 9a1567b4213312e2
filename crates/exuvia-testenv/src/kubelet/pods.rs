//! What a kubelet knows about a pod: its address, its environment, its status. Pure, but for the probe.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Probe;

/// A loopback address that belongs to one pod, also next to other control planes on this machine: it follows from the uid.
pub fn address(pod: &Pod) -> String {
    let uid = pod.uid().unwrap_or_default();
    let digits: String = uid.chars().filter(char::is_ascii_hexdigit).take(6).collect();
    let number = u32::from_str_radix(&digits, 16).unwrap_or_default();
    let [_, high, low, last] = number.to_be_bytes();
    // Below 127.128.0.0 and above 127.64.0.0, without the ends of a net.
    format!("127.{}.{low}.{}", 64 + high % 63, last.clamp(1, 254))
}

/// The environment of a container, with field references resolved as the kubelet does.
///
/// # Panics
/// On a field that nobody has asked for so far: a test must not see an empty value instead.
pub fn environment(pod: &Pod, container: &Container) -> Vec<(String, String)> {
    let variables = container.env.iter().flatten();
    variables
        .map(|variable| {
            let reference = variable
                .value_from
                .as_ref()
                .and_then(|source| source.field_ref.as_ref());
            let value = match reference {
                Some(reference) => field(pod, &reference.field_path),
                None => variable.value.clone().unwrap_or_default(),
            };
            (variable.name.clone(), value)
        })
        .collect()
}

fn field(pod: &Pod, path: &str) -> String {
    let annotation = path
        .strip_prefix("metadata.annotations['")
        .and_then(|rest| rest.strip_suffix("']"));
    match (annotation, path) {
        (Some(key), _) => pod.annotations().get(key).cloned().unwrap_or_default(),
        (None, "metadata.name") => pod.name_any(),
        (None, "metadata.namespace") => pod.namespace().unwrap_or_default(),
        (None, "status.podIP") => address(pod),
        _ => panic!("cannot resolve the field {path}"),
    }
}

/// The container that runs.
pub(super) fn container(pod: &Pod) -> Option<&Container> {
    pod.spec.as_ref()?.containers.first()
}

/// How long a pod that is deleted goes on before its program is told to end.
pub(super) fn pre_stop_sleep(pod: &Pod) -> Duration {
    let hook = container(pod)
        .and_then(|container| container.lifecycle.as_ref())
        .and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    let sleep = hook.and_then(|hook| hook.sleep.as_ref());
    let seconds = sleep.map_or(0, |sleep| sleep.seconds);
    Duration::from_secs(seconds.try_into().unwrap_or_default())
}

pub(super) fn has_address(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some())
}

/// A status with the address and nothing else.
pub(super) fn address_status(pod: &Pod) -> Value {
    let address = address(pod);
    json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}})
}

/// The whole status of a pod that we run.
pub(super) fn status(pod: &Pod, is_ready: bool, restarts: u32) -> Value {
    let now = Timestamp::now().to_string();
    let ready = if is_ready { "True" } else { "False" };
    let condition =
        |kind: &str, status: &str| json!({"type": kind, "status": status, "lastTransitionTime": now});
    let containers: Vec<Value> = container(pod)
        .map(|container| {
            json!({
                "name": container.name, "image": container.image, "imageID": "", "ready": is_ready,
                "restartCount": restarts, "started": true, "state": {"running": {"startedAt": now}},
            })
        })
        .into_iter()
        .collect();
    let mut status = address_status(pod);
    status["status"]["phase"] = json!("Running");
    status["status"]["containerStatuses"] = json!(containers);
    status["status"]["conditions"] = json!([
        condition("PodScheduled", "True"),
        condition("Initialized", "True"),
        condition("ContainersReady", ready),
        condition("Ready", ready),
    ]);
    status
}

/// Whether the pod's status says so already.
pub(super) fn is_shown(pod: &Pod, is_ready: bool, restarts: u32) -> bool {
    let Some(status) = &pod.status else { return false };
    let was_ready = status
        .conditions
        .iter()
        .flatten()
        .any(|fact| fact.type_ == "Ready" && fact.status == "True");
    let shown = status.container_statuses.iter().flatten().next();
    let restarted = shown.map(|container| u32::try_from(container.restart_count).unwrap_or_default());
    has_address(pod) && was_ready == is_ready && restarted == Some(restarts)
}

pub(super) async fn probe(probe: &Probe) -> bool {
    match probe {
        Probe::Tcp(address) => TcpStream::connect(address).await.is_ok(),
        Probe::Http { address, path } => get(address, path)
            .await
            .is_some_and(|answer| answer.starts_with(b"HTTP/1.1 200")),
    }
}

async fn get(address: &str, path: &str) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok()?;
    Some(answer)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": uid, "annotations": {"a/b": "3"}},
            "spec": {"containers": [{"name": "c", "image": "i", "env": [
                {"name": "PLAIN", "value": "1"},
                {"name": "STAMP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['a/b']"}}},
                {"name": "NONE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['c']"}}},
            ]}]},
        }))
        .unwrap()
    }

    #[test]
    fn an_address_is_on_loopback_and_follows_from_the_uid() {
        assert_eq!(address(&pod("000000-")), "127.64.0.1");
        assert_eq!(address(&pod("ffffff-")), "127.67.255.254");
        assert_eq!(address(&pod("3e0a0b-")), "127.126.10.11");
    }

    #[test]
    fn field_references_are_resolved() {
        let pod = pod("0");
        let env = environment(&pod, container(&pod).unwrap());
        let env: Vec<_> = env
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        assert_eq!(env, [("PLAIN", "1"), ("STAMP", "3"), ("NONE", "")]);
    }

    #[test]
    fn what_is_shown_is_known() {
        let mut pod = pod("0");
        assert!(!is_shown(&pod, false, 0));
        pod.status = Some(serde_json::from_value(status(&pod, true, 2)["status"].clone()).unwrap());
        assert!(is_shown(&pod, true, 2));
        assert!(!is_shown(&pod, true, 3) && !is_shown(&pod, false, 2));
    }
}
