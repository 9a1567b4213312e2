//! A kubelet for programs: pods that are bound to a fake node really run, as processes of this machine on loopback addresses of
//! their own.
//!
//! Nodes and most pods are kwok's. Pods that [`Builder::leave_pods`](crate::Builder::leave_pods) takes from it are run here: their
//! `ConfigMaps` are written to files when the container starts, their environment is resolved, they are ready when their program
//! says so, and a pod that is deleted is told to end before it goes, after the sleep of its `preStop` hook.

mod pods;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use tokio::task::JoinHandle;

use crate::{Error, Process, until};

pub use self::pods::{address, environment};

/// How often it looks at its pods.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// A probe on loopback that takes longer has no answer.
const PROBE_PATIENCE: Duration = Duration::from_secs(5);

/// What the kubelet does with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// kwok makes it ready and removes it. It only gets an address.
    Address,
    /// It is ready as soon as it is bound, and nothing runs: for pods that kwok leaves alone.
    Ready,
    /// Its program runs.
    Run,
}

/// The program of a pod.
#[derive(Clone, Debug)]
pub struct PodProgram {
    /// What it is called in logs.
    pub name: &'static str,
    /// Where it is.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its whole environment.
    pub env: Vec<(String, String)>,
    /// When the pod is ready.
    pub probe: Probe,
    /// How long it may take to end once it is told to.
    pub grace: Duration,
}

/// When a pod is ready.
#[derive(Clone, Debug)]
pub enum Probe {
    /// Somebody accepts connections at this address.
    Tcp(String),
    /// A GET at this address is answered with 200.
    Http {
        /// Host and port.
        address: String,
        /// The path.
        path: &'static str,
    },
}

/// What a container sees.
#[derive(Debug)]
pub struct Sandbox<'a> {
    /// Its pod.
    pub pod: &'a Pod,
    /// The pod's address.
    pub address: &'a str,
    /// A directory with the files of all `ConfigMaps` that it mounts, as they were when it started.
    pub files: &'a Path,
    /// Its environment, with field references resolved.
    pub env: Vec<(String, String)>,
    /// Its arguments.
    pub args: Vec<String>,
}

/// Which pods run, and how.
pub trait Containers: Send + Sync + 'static {
    /// What to do with a pod.
    fn duty(&self, pod: &Pod) -> Duty;

    /// The program of a pod that runs. Asked again whenever the container starts.
    fn program(&self, sandbox: &Sandbox<'_>) -> PodProgram;
}

/// A container that was started.
#[derive(Clone, Debug)]
pub struct Running {
    /// Its process.
    pub process: Arc<Process>,
    /// When it was started.
    pub started: SystemTime,
    /// The pod's address.
    pub address: String,
    probe: Probe,
    grace: Duration,
}

impl Running {
    /// Everything that it has written.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.process.log_path()).unwrap_or_default()
    }

    /// Whether its probe says that it is ready.
    pub async fn is_ready(&self) -> bool {
        let probed = tokio::time::timeout(PROBE_PATIENCE, pods::probe(&self.probe)).await;
        probed.unwrap_or(false) && self.process.exit_code().is_none()
    }
}

/// Serves one namespace until it is dropped; all that it has started ends then.
pub struct Kubelet {
    inner: Arc<Inner>,
    task: JoinHandle<()>,
}

struct Inner {
    client: Client,
    namespace: String,
    directory: PathBuf,
    containers: Box<dyn Containers>,
    wards: Mutex<HashMap<String, Arc<Ward>>>,
}

/// A pod in its care.
#[derive(Default)]
struct Ward {
    container: tokio::sync::Mutex<Option<Running>>,
    starts: AtomicU32,
    is_ending: AtomicBool,
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
        self.inner.wards().clear();
    }
}

impl Kubelet {
    /// Starts. `directory` is for logs and mounted files.
    pub fn start(
        client: Client,
        namespace: impl Into<String>,
        directory: impl Into<PathBuf>,
        containers: impl Containers,
    ) -> Self {
        let inner = Arc::new(Inner {
            client,
            namespace: namespace.into(),
            directory: directory.into(),
            containers: Box::new(containers),
            wards: Mutex::default(),
        });
        let task = tokio::spawn(Box::pin(Arc::clone(&inner).work()));
        Self { inner, task }
    }

    /// The container of a pod, once it runs.
    pub async fn running(&self, pod: &Pod) -> Running {
        let uid = pod.uid().unwrap_or_default();
        until(&format!("the container of {} runs", pod.name_any()), async || {
            let ward = self.inner.wards().get(&uid).cloned()?;
            ward.container.lock().await.clone()
        })
        .await
    }

    /// The container restarts: the same environment, and mounts as they are now.
    pub async fn restart_container(&self, pod: &Pod) -> Result<Running, Error> {
        let ward = self.inner.ward(&pod.uid().unwrap_or_default());
        let mut container = ward.container.lock().await;
        if let Some(old) = container.take() {
            old.process.kill()?;
        }
        loop {
            if let Some(new) = self.inner.start_container(&ward, pod).await? {
                *container = Some(new.clone());
                return Ok(new);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

impl Inner {
    async fn work(self: Arc<Self>) {
        loop {
            if let Ok(pods) = self.pods().list(&ListParams::default()).await {
                let alive: Vec<String> = pods.items.iter().filter_map(ResourceExt::uid).collect();
                self.wards().retain(|uid, _| alive.contains(uid));
                join_all(pods.items.iter().map(|pod| self.tend(pod))).await;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn wards(&self) -> MutexGuard<'_, HashMap<String, Arc<Ward>>> {
        self.wards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ward(&self, uid: &str) -> Arc<Ward> {
        Arc::clone(self.wards().entry(uid.to_owned()).or_default())
    }

    /// One look at a pod. What fails is tried again with the next one.
    async fn tend(self: &Arc<Self>, pod: &Pod) {
        let is_bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        if !is_bound {
            return;
        }
        let is_deleting = pod.metadata.deletion_timestamp.is_some();
        match self.containers.duty(pod) {
            Duty::Address => {
                if !is_deleting && !pods::has_address(pod) {
                    self.publish(pod, &pods::address_status(pod)).await;
                }
            }
            Duty::Ready if is_deleting => self.remove(pod).await,
            Duty::Ready => self.show(pod, true, 0).await,
            Duty::Run if is_deleting => self.end(pod),
            Duty::Run => {
                let ward = self.ward(&pod.uid().unwrap_or_default());
                let container = self.ensure(&ward, pod).await;
                let is_ready = match &container {
                    Some(container) => container.is_ready().await,
                    None => false,
                };
                let starts = ward.starts.load(Ordering::Relaxed);
                self.show(pod, is_ready, starts.saturating_sub(1)).await;
            }
        }
    }

    /// The container, started if it is not there or has ended.
    async fn ensure(&self, ward: &Ward, pod: &Pod) -> Option<Running> {
        let mut container = ward.container.lock().await;
        if container
            .as_ref()
            .is_none_or(|container| container.process.exit_code().is_some())
        {
            *container = self.start_container(ward, pod).await.ok().flatten();
        }
        container.clone()
    }

    /// `None` while a `ConfigMap` that the pod mounts does not exist.
    async fn start_container(&self, ward: &Ward, pod: &Pod) -> Result<Option<Running>, Error> {
        let files = self
            .directory
            .join(format!("pod-{}", pod.uid().unwrap_or_default()));
        if !self.mount(pod, &files).await? {
            return Ok(None);
        }
        let address = address(pod);
        let program = self.containers.program(&Sandbox {
            pod,
            address: &address,
            files: &files,
            env: pods::container(pod)
                .map(|container| environment(pod, container))
                .unwrap_or_default(),
            args: pods::container(pod)
                .and_then(|container| container.args.clone())
                .unwrap_or_default(),
        });
        let number = ward.starts.fetch_add(1, Ordering::Relaxed);
        let log = format!("{}-{}-{number}.log", self.namespace, pod.name_any());
        let mut args = vec!["-i".to_owned()]; // nothing of our own environment
        args.extend(program.env.iter().map(|(name, value)| format!("{name}={value}")));
        args.push(program.program.display().to_string());
        args.extend(program.args);
        let started = SystemTime::now();
        let process = Process::run(program.name, "/usr/bin/env", args, self.directory.join(log))?;
        Ok(Some(Running {
            process: Arc::new(process),
            started,
            address,
            probe: program.probe,
            grace: program.grace,
        }))
    }

    /// Writes the files of all `ConfigMaps` that the pod mounts, as they are now. Whether all exist.
    async fn mount(&self, pod: &Pod, files: &Path) -> Result<bool, Error> {
        std::fs::create_dir_all(files).map_err(Error::file("create", files))?;
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        for source in volumes.filter_map(|volume| volume.config_map.as_ref()) {
            let Some(map) = api.get_opt(&source.name).await? else {
                return Ok(false);
            };
            for (name, text) in map.data.unwrap_or_default() {
                let path = files.join(name);
                std::fs::write(&path, text).map_err(Error::file("write", &path))?;
            }
        }
        Ok(true)
    }

    /// Shows whether the pod is ready, if that is not shown already.
    async fn show(&self, pod: &Pod, is_ready: bool, restarts: u32) {
        if pods::is_shown(pod, is_ready, restarts) {
            return;
        }
        self.publish(pod, &pods::status(pod, is_ready, restarts)).await;
    }

    async fn publish(&self, pod: &Pod, status: &serde_json::Value) {
        let patch = Patch::Merge(status);
        // One that is gone by now needs none.
        let _ = self
            .pods()
            .patch_status(&pod.name_any(), &PatchParams::default(), &patch)
            .await;
    }

    /// Tells the program to end, waits for it, and removes the pod.
    fn end(self: &Arc<Self>, pod: &Pod) {
        let ward = self.ward(&pod.uid().unwrap_or_default());
        if ward.is_ending.swap(true, Ordering::AcqRel) {
            return;
        }
        let (this, pod) = (Arc::clone(self), pod.clone());
        tokio::spawn(async move {
            // A hook that sleeps: the program goes on serving until everybody knows that the pod is going.
            tokio::time::sleep(pods::pre_stop_sleep(&pod)).await;
            if let Some(container) = ward.container.lock().await.take() {
                let _ = tokio::task::spawn_blocking(move || container.process.stop(container.grace)).await;
            }
            this.remove(&pod).await;
        });
    }

    async fn remove(&self, pod: &Pod) {
        let by_uid = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: pod.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        loop {
            match self.pods().delete(&pod.name_any(), &by_uid).await {
                // Gone, or another pod has the name by now.
                Ok(_) | Err(kube::Error::Api(_)) => return,
                Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }
}
