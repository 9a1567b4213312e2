//! What the pods of the demo run: runners, and backends with the demo's own MCP server.

use std::path::PathBuf;
use std::time::Duration;

use exuvia_testenv::kubelet::{Containers, Duty, PodProgram, Probe, Sandbox};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::kit::MCP_PORT;
use crate::kit::runner_pods::{RunnerPods, is_proxy};

/// The tag of an image that does not come up.
const BAD: &str = "bad";

pub(crate) struct Pods {
    runners: RunnerPods,
    this: PathBuf,
}

impl Pods {
    pub(crate) fn new(runner: PathBuf, this: PathBuf, kubeconfig: PathBuf) -> Self {
        let runners = RunnerPods {
            runner,
            kubeconfig,
            grace: Duration::from_secs(10),
        };
        Self { runners, this }
    }
}

impl Containers for Pods {
    fn duty(&self, _pod: &Pod) -> Duty {
        Duty::Run
    }

    fn program(&self, sandbox: &Sandbox<'_>) -> PodProgram {
        if is_proxy(sandbox.pod) {
            return self.runners.program(sandbox);
        }
        let mut containers = sandbox.pod.spec.iter().flat_map(|spec| &spec.containers);
        let image = containers.find_map(|container| container.image.as_deref());
        let version = image
            .and_then(|image| image.rsplit(':').next())
            .unwrap_or_default();
        let address = format!("{}:{MCP_PORT}", sandbox.address);
        let serve = [
            "serve".to_owned(),
            format!("--listen={address}"),
            format!("--name={}", sandbox.pod.name_any()),
            format!("--version={version}"),
        ];
        let (program, args) = if version == BAD {
            // It runs, and never listens.
            ("/bin/sleep".into(), vec!["86400".to_owned()])
        } else {
            (self.this.clone(), serve.into())
        };
        PodProgram {
            name: "mcp-server",
            program,
            args,
            env: sandbox.env.clone(),
            probe: Probe::Tcp(address),
            grace: Duration::from_secs(10),
        }
    }
}
