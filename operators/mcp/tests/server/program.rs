//! The real binaries as processes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use exuvia_testenv::{Process, until};

use crate::harness::World;

pub(crate) const RUNNER: &str = env!("CARGO_BIN_EXE_mcp-runner");

/// The operator, watching one namespace.
pub(crate) struct Operator {
    pub(crate) process: Process,
}

impl Operator {
    /// As the administrator.
    pub(crate) fn start(world: &World, args: &[&str]) -> Self {
        let kubeconfig = world.control_plane.admin().kubeconfig().unwrap();
        Self::start_with(world, &kubeconfig, args)
    }

    pub(crate) fn start_with(world: &World, kubeconfig: &Path, args: &[&str]) -> Self {
        let log = world
            .control_plane
            .directory()
            .join(format!("operator-{}.log", world.namespace));
        let mut all = vec![
            env!("CARGO_BIN_EXE_mcp-operator").to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--watch-namespace={}", world.namespace),
            "--runner-image=example.com/mcp-runner:1".to_owned(),
            "--leader-elect=false".to_owned(),
            "--listen=127.0.0.1:0".to_owned(),
            "--max-backoff=1s".to_owned(),
            "--pod-name=operator".to_owned(),
            "--log-level=info,mcp_operator=debug".to_owned(),
        ];
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        let process = Process::run("mcp-operator", "/usr/bin/env", all, log).unwrap();
        Self { process }
    }

    pub(crate) fn stop(&self) {
        self.process.stop(Duration::from_secs(60)).unwrap();
    }
}

/// A runner as a container would start it: its arguments, its environment, and nothing else of ours.
pub(crate) struct Runner {
    pub(crate) process: Arc<Process>,
    pub(crate) admin: String,
    pub(crate) proxy: String,
}

impl Runner {
    /// `args` are those of the container; the addresses are the pod's.
    pub(crate) fn start(
        log: &Path,
        kubeconfig: &Path,
        env: &[(String, String)],
        args: &[String],
        (proxy, admin): (String, String),
    ) -> Self {
        let mut all = vec!["-i".to_owned()]; // nothing of our own environment
        all.extend(env.iter().map(|(name, value)| format!("{name}={value}")));
        all.push(RUNNER.to_owned());
        all.extend(args.iter().cloned());
        all.extend([
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--listen={proxy}"),
            format!("--admin-listen={admin}"),
            "--mount-patience=0s".to_owned(),
            "--grace=1s".to_owned(),
            "--log-level=info,mcp_operator=debug,exuvia_rollout=debug".to_owned(),
        ]);
        let process = Process::run("mcp-runner", "/usr/bin/env", all, log).unwrap();
        Self {
            process: Arc::new(process),
            admin,
            proxy,
        }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.process.log_path()).unwrap_or_default()
    }

    pub(crate) async fn logs(&self, text: &str) {
        until(&format!("the runner logs {text:?}"), async || {
            let log = self.log();
            if log.contains(text) { Ok(()) } else { Err(log) }
        })
        .await;
    }

    /// Whether it says that it is ready.
    pub(crate) async fn is_ready(&self) -> bool {
        get(&self.admin, "/readyz")
            .await
            .is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
    }

    pub(crate) async fn ready(&self) {
        until("the runner is ready", async || {
            if self.is_ready().await {
                Ok(())
            } else {
                Err(self.log())
            }
        })
        .await;
    }

    /// The exit code, once there is one.
    pub(crate) async fn exit_code(&self) -> i32 {
        until("the runner ends", async || {
            self.process.exit_code().ok_or_else(|| self.log())
        })
        .await
    }
}

/// The whole answer to a GET; `None` without one.
pub(crate) async fn get(address: &str, path: &str) -> Option<String> {
    ask(
        address,
        &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"),
    )
    .await
}

/// The whole answer to a request.
pub(crate) async fn ask(address: &str, request: &str) -> Option<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.ok()?;
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok()?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}
