//! The command lines of both programs: flags, then one call each.

mod operator;
mod run;
mod values;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use exuvia_runtime::{LogFormat, LogLevel, start_logging};
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use mcp_proxy::cli::{WRONG_USAGE, WrongUsage, say_error};
use tokio::signal::unix::{SignalKind, signal};

pub use self::operator::{OperatorArgs, operator_main};
pub use self::run::{RunnerArgs, RunnerCommand, runner_main};

/// Flags of both programs.
#[derive(Clone, Debug, Args)]
pub struct CommonArgs {
    /// The kubeconfig file [default: $KUBECONFIG, ~/.kube/config, or the pod's service account]
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context
    #[arg(long)]
    pub context: Option<String>,
    /// The pod's name, as shown in the Lease, in events and in status [default: the host's name]
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub pod_name: Option<String>,
    /// The format of log lines
    #[arg(long, env = "MCP_LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// The log level: error, warn, info, debug, trace, or directives such as `info,mcp_operator=debug`
    #[arg(long, env = "MCP_LOG_LEVEL", default_value = "info")]
    pub log_level: String,
}

impl CommonArgs {
    async fn config(&self) -> anyhow::Result<Config> {
        if self.kubeconfig.is_none() && self.context.is_none() {
            return Config::infer()
                .await
                .context("no cluster is configured: give --kubeconfig, or run inside a cluster");
        }
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..KubeConfigOptions::default()
        };
        let config = match &self.kubeconfig {
            Some(path) => {
                let wrong = |error| WrongUsage(format!("invalid --kubeconfig {:?}: {error}", path.display()));
                Config::from_custom_kubeconfig(Kubeconfig::read_from(path).map_err(wrong)?, &options).await
            }
            None => Config::from_kubeconfig(&options).await,
        };
        Ok(config.map_err(|error| WrongUsage(format!("invalid kubeconfig or --context: {error}")))?)
    }

    fn pod(&self) -> String {
        let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let name = self.pod_name.clone().filter(|name| !name.is_empty());
        name.unwrap_or_else(|| host().trim().to_owned())
    }
}

/// Starts the log. A level that is not one is a mistake in the command line.
fn start_log(format: LogFormat, level: &str) -> Result<LogLevel, ExitCode> {
    start_logging(format, level).map_err(|error| {
        say_error(&error.to_string());
        match error {
            exuvia_runtime::Error::LogLevel { .. } => ExitCode::from(WRONG_USAGE),
            _ => ExitCode::FAILURE,
        }
    })
}

/// Ends with SIGTERM or SIGINT.
fn stop_signal() -> anyhow::Result<impl Future<Output = ()> + Send> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    Ok(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(because_of = name, "asked to stop");
    })
}

/// Runs on two threads: most of the work is waiting.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the async runtime")?
        .block_on(work)
}
