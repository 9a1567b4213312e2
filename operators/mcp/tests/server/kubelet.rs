//! The pods of these tests: the scheduler binds them, kwok makes backends ready, and the runner's pods really run it.
//!
//! A backend whose image contains `bad` never becomes ready.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use exuvia_testenv::kubelet::{Containers, Duty, PodProgram, Running, Sandbox};
use k8s_openapi::api::core::v1::Pod;

pub(crate) use exuvia_testenv::kubelet::{address, environment};

use crate::harness::World;
use crate::kit::runner_pods::{RunnerPods, is_proxy};
use crate::kit::{ADMIN_PORT, PROXY_PORT};
use crate::program::{RUNNER, Runner};

/// Serves one namespace until it is dropped.
pub(crate) struct Kubelet(exuvia_testenv::Kubelet);

/// Makes the pods of runners ready at once, and runs nothing.
struct Nothing;

impl Containers for Nothing {
    fn duty(&self, pod: &Pod) -> Duty {
        if is_proxy(pod) { Duty::Ready } else { Duty::Address }
    }

    fn program(&self, _sandbox: &Sandbox<'_>) -> PodProgram {
        unreachable!("nothing runs")
    }
}

impl Kubelet {
    /// Makes every pod ready at once, and runs nothing.
    pub(crate) fn fake(world: &World) -> Self {
        Self::start(world, Nothing)
    }

    /// Runs the runner in the proxy's pods, which are ready when it says so.
    pub(crate) fn running(world: &World, kubeconfig: Option<PathBuf>) -> Self {
        let admin = || world.control_plane.admin().kubeconfig().unwrap();
        Self::start(
            world,
            RunnerPods {
                runner: RUNNER.into(),
                kubeconfig: kubeconfig.unwrap_or_else(admin),
                grace: Duration::from_secs(1),
            },
        )
    }

    fn start(world: &World, containers: impl Containers) -> Self {
        let directory = world.control_plane.directory();
        let namespace = &world.namespace;
        Self(exuvia_testenv::Kubelet::start(
            world.client.clone(),
            namespace,
            directory,
            containers,
        ))
    }

    /// The runner of a pod, once it runs.
    pub(crate) async fn runner(&self, pod: &Pod) -> Arc<Runner> {
        runner(self.0.running(pod).await)
    }

    /// The container restarts: the same environment, and mounts as they are now.
    pub(crate) async fn restart_container(&self, pod: &Pod) -> Arc<Runner> {
        runner(self.0.restart_container(pod).await.unwrap())
    }
}

fn runner(running: Running) -> Arc<Runner> {
    Arc::new(Runner {
        admin: format!("{}:{ADMIN_PORT}", running.address),
        proxy: format!("{}:{PROXY_PORT}", running.address),
        process: running.process,
    })
}
