//! How the pods of a runner run: the real `mcp-runner`, with what its container is given, on the pod's own address.

use std::path::PathBuf;
use std::time::Duration;

use exuvia_testenv::kubelet::{Containers, Duty, PodProgram, Probe, Sandbox};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use mcp_operator::api::{PART_LABEL, PART_PROXY};

use super::{ADMIN_PORT, PROXY_PORT};

/// Runs the pods of runners, and leaves all others to kwok.
pub(crate) struct RunnerPods {
    /// The program.
    pub(crate) runner: PathBuf,
    /// Who runners are.
    pub(crate) kubeconfig: PathBuf,
    /// How long calls may take to end.
    pub(crate) grace: Duration,
}

impl Containers for RunnerPods {
    fn duty(&self, pod: &Pod) -> Duty {
        if is_proxy(pod) { Duty::Run } else { Duty::Address }
    }

    fn program(&self, sandbox: &Sandbox<'_>) -> PodProgram {
        let at = |port: u16| format!("{}:{port}", sandbox.address);
        let mut args = sandbox.args.clone();
        args.extend([
            format!("--config={}", sandbox.files.join("runconfig.json").display()),
            format!("--kubeconfig={}", self.kubeconfig.display()),
            format!("--listen={}", at(PROXY_PORT)),
            format!("--admin-listen={}", at(ADMIN_PORT)),
            "--mount-patience=0s".to_owned(),
            format!("--grace={}s", self.grace.as_secs()),
            "--log-level=info,mcp_operator=debug,exuvia_rollout=debug".to_owned(),
        ]);
        PodProgram {
            name: "mcp-runner",
            program: self.runner.clone(),
            args,
            env: sandbox.env.clone(),
            probe: Probe::Http {
                address: at(ADMIN_PORT),
                path: "/readyz",
            },
            grace: self.grace + Duration::from_secs(60),
        }
    }
}

/// Whether it is a pod of a runner, and not of a backend.
pub(crate) fn is_proxy(pod: &Pod) -> bool {
    pod.labels()
        .get(PART_LABEL)
        .is_some_and(|part| part == PART_PROXY)
}
