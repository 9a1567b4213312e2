//! What a kubelet does, as far as these tests need it: pods become ready, and the runner's pods really run it.
//!
//! Pods are not scheduled, so that the server deletes them at once. A pod whose image contains `bad` never becomes ready.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exuvia_testenv::{Process, until};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::harness::{ADMIN_PORT, PROXY_PORT, World};
use crate::program::Runner;
use crate::stdio;

/// Serves one namespace until it is dropped.
pub(crate) struct Kubelet {
    inner: Arc<Inner>,
    task: JoinHandle<()>,
}

struct Inner {
    client: Client,
    namespace: String,
    directory: PathBuf,
    kubeconfig: PathBuf,
    runs_proxies: bool,
    /// Runners by the uid of their pod.
    runners: Mutex<HashMap<String, Arc<Runner>>>,
    /// Bridges of backend pods by the uid of their pod.
    bridges: Mutex<HashMap<String, Option<Arc<Process>>>>,
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Kubelet {
    /// Makes every pod ready at once, and runs nothing.
    pub(crate) fn fake(world: &World) -> Self {
        Self::start(world, false, None)
    }

    /// Runs the runner in the proxy's pods, which are ready when it says so.
    pub(crate) fn running(world: &World, kubeconfig: Option<PathBuf>) -> Self {
        Self::start(world, true, kubeconfig)
    }

    fn start(world: &World, runs_proxies: bool, kubeconfig: Option<PathBuf>) -> Self {
        let inner = Arc::new(Inner {
            client: world.client.clone(),
            namespace: world.namespace.clone(),
            directory: world.control_plane.directory().to_owned(),
            kubeconfig: kubeconfig.unwrap_or_else(|| world.control_plane.admin().kubeconfig().unwrap()),
            runs_proxies,
            runners: Mutex::default(),
            bridges: Mutex::default(),
        });
        let work: BoxFuture<'static, ()> = Box::pin(Arc::clone(&inner).work());
        let task = tokio::spawn(work);
        Self { inner, task }
    }

    /// The runner of a pod, once it runs.
    pub(crate) async fn runner(&self, pod: &Pod) -> Arc<Runner> {
        let uid = pod.uid().unwrap();
        until("the pod's runner is started", async || {
            self.inner.runners.lock().unwrap().get(&uid).cloned()
        })
        .await
    }

    /// The container restarts: the same environment, and mounts as they are now.
    pub(crate) async fn restart_container(&self, pod: &Pod) -> Arc<Runner> {
        let uid = pod.uid().unwrap();
        let old = self.inner.runners.lock().unwrap().remove(&uid);
        if let Some(old) = old {
            let _ = old.process.kill();
        }
        let runner = self.inner.start_runner(pod).await;
        self.inner
            .runners
            .lock()
            .unwrap()
            .insert(uid, Arc::clone(&runner));
        runner
    }
}

impl Inner {
    async fn work(self: Arc<Self>) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        loop {
            if let Ok(pods) = api.list(&ListParams::default()).await {
                let alive: Vec<String> = pods.items.iter().filter_map(ResourceExt::uid).collect();
                self.runners.lock().unwrap().retain(|uid, _| alive.contains(uid));
                self.bridges.lock().unwrap().retain(|uid, _| alive.contains(uid));
                for pod in pods.items {
                    self.tend(&api, &pod).await;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn tend(&self, api: &Api<Pod>, pod: &Pod) {
        let is_proxy = pod
            .labels()
            .get("mcp.exuvia.dev/part")
            .is_some_and(|part| part == "proxy");
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let is_ready = if self.runs_proxies && is_proxy {
            let uid = pod.uid().unwrap();
            let known = self.runners.lock().unwrap().get(&uid).cloned();
            // A container that ended is started again.
            let known = known.filter(|runner| runner.process.exit_code().is_none());
            let runner = if let Some(runner) = known {
                runner
            } else {
                let runner = self.start_runner(pod).await;
                self.runners.lock().unwrap().insert(uid, Arc::clone(&runner));
                runner
            };
            runner.is_ready().await
        } else if self.runs_proxies && self.bridge(pod).is_some() {
            stdio::is_listening(pod).await
        } else {
            !container
                .image
                .as_ref()
                .is_some_and(|image| image.contains("bad"))
        };
        let shown = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        let was_ready = shown
            .into_iter()
            .flatten()
            .any(|fact| fact.type_ == "Ready" && fact.status == "True");
        let has_address = pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some());
        if is_ready == was_ready && has_address {
            return;
        }
        let ready = if is_ready { "True" } else { "False" };
        let status = json!({"status": {
            "phase": if is_ready { "Running" } else { "Pending" },
            "podIP": address(pod),
            "podIPs": [{"ip": address(pod)}],
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        }});
        let _ = api
            .patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status))
            .await;
    }

    /// The bridge of a pod that has one, started if it does not run yet.
    fn bridge(&self, pod: &Pod) -> Option<Arc<Process>> {
        let mut bridges = self.bridges.lock().unwrap();
        let bridge = bridges.entry(pod.uid().unwrap());
        bridge
            .or_insert_with(|| stdio::start_bridge(pod, &self.directory))
            .clone()
    }

    async fn start_runner(&self, pod: &Pod) -> Arc<Runner> {
        static NUMBER: AtomicU16 = AtomicU16::new(0);
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let directory = self.directory.join(format!("pod-{}", pod.uid().unwrap()));
        std::fs::create_dir_all(&directory).unwrap();
        self.mount(pod, &directory).await;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let log = self
            .directory
            .join(format!("runner-{}-{number}.log", pod.name_any()));
        let mut args = container.args.clone().unwrap_or_default();
        args.push(format!("--config={}", directory.join("runconfig.json").display()));
        let address = address(pod);
        let at = |port: u16| format!("{address}:{port}");
        let env = environment(pod, container);
        let addresses = (at(PROXY_PORT), at(ADMIN_PORT));
        Arc::new(Runner::start(&log, &self.kubeconfig, &env, &args, addresses))
    }

    /// Writes the files of all `ConfigMaps` that the pod mounts, as they are now.
    async fn mount(&self, pod: &Pod, directory: &std::path::Path) {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        for volume in pod.spec.as_ref().unwrap().volumes.iter().flatten() {
            let Some(source) = &volume.config_map else {
                continue;
            };
            let map = loop {
                if let Some(map) = api.get_opt(&source.name).await.unwrap() {
                    break map;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            };
            for (name, text) in map.data.unwrap_or_default() {
                std::fs::write(directory.join(name), text).unwrap();
            }
        }
    }
}

/// A loopback address that belongs to one pod.
pub(crate) fn address(pod: &Pod) -> String {
    let uid = pod.uid().unwrap();
    let bytes: Vec<u8> = uid.bytes().filter(u8::is_ascii_hexdigit).take(6).collect();
    let digits = String::from_utf8(bytes).unwrap();
    let number = u32::from_str_radix(&digits, 16).unwrap();
    // Below 127.128.0.0 and above 127.64.0.0, without the ends of a net.
    let [_, _, a, b] = number.to_be_bytes();
    let c = u8::try_from(64 + (number >> 16) % 63).unwrap();
    format!("127.{c}.{a}.{}", b.clamp(1, 254))
}

/// The environment of a container, with field references resolved as the kubelet does.
pub(crate) fn environment(pod: &Pod, container: &Container) -> Vec<(String, String)> {
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
        (None, "metadata.namespace") => pod.namespace().unwrap(),
        _ => panic!("no such field: {path}"),
    }
}
