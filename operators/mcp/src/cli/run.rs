//! `mcp-runner`: its commands and flags.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use exuvia_rollout::{DEFAULT_FENCE, Names};
use exuvia_runtime::{LogFormat, LogLevel};
use mcp_proxy::bridge::{Bridge, BridgeSettings};
use mcp_proxy::cli::values::{address, backend, origin, path};
use mcp_proxy::cli::{check_program, fail, say_error};
use mcp_proxy::{Backend, Origins};

use super::values::{duration, image, object_name};
use super::{CommonArgs, block_on, start_log, stop_signal};
use crate::runner::{self, GateKind, RunSettings};

/// The runner of one MCP server.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "mcp-runner",
    version,
    about = "Applies the backend of one MCP server, and is its proxy"
)]
pub struct RunnerArgs {
    /// What to do
    #[command(subcommand)]
    pub command: RunnerCommand,
}

/// What the runner can do.
#[derive(Clone, Debug, Subcommand)]
pub enum RunnerCommand {
    /// Apply the backend through the gate, then serve clients
    Run(Box<RunArgs>),
    /// Give a program that speaks MCP on stdin and stdout an HTTP endpoint
    Bridge(BridgeArgs),
    /// Copy this program to a path, for pods that run the bridge
    Install {
        /// The path of the copy
        path: PathBuf,
    },
}

/// Flags of `mcp-runner run`.
#[derive(Clone, Debug, Args)]
#[command(args_override_self = true)]
pub struct RunArgs {
    /// The image of the MCP server, instead of the run config's
    #[arg(long, value_parser = image)]
    pub image: Option<String>,
    /// Run configs; the first that exists is read [default: the list of --names]
    #[arg(long = "config", value_name = "FILE")]
    pub configs: Vec<PathBuf>,
    /// Which gate decides whether the backend is applied
    #[arg(long, value_enum, default_value_t)]
    pub gate: GateKind,
    /// What annotations, variables and files are called: default or toolhive
    #[arg(long, default_value = "default", value_parser = dialect)]
    pub names: Dialect,
    /// The fence around backends, as `exuvia rollout fence` names it: its refusal is a conflict, and the gate decides again
    #[arg(long, default_value = DEFAULT_FENCE, value_name = "NAME", value_parser = object_name)]
    pub fence: String,
    /// Backends by URL: nothing is applied, and no pods are watched (repeatable)
    #[arg(long = "backend", value_name = "URL", value_parser = backend)]
    pub backends: Vec<Backend>,
    /// Where clients connect to [default: all addresses, and the port of the run config]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    pub listen: Option<SocketAddr>,
    /// The address and port of /livez, /readyz and /metrics
    #[arg(long, default_value = "[::]:8081", value_name = "ADDRESS:PORT")]
    pub admin_listen: String,
    /// How long a run config that is not the pod's own is waited for
    #[arg(long, default_value = "60s", value_parser = duration, allow_hyphen_values = true)]
    pub mount_patience: Duration,
    /// How long calls may go on after the signal to stop
    #[arg(long, default_value = "45s", value_parser = duration, allow_hyphen_values = true)]
    pub grace: Duration,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: CommonArgs,
}

/// Names by their dialect.
#[derive(Clone, Debug)]
pub struct Dialect(pub Names);

fn dialect(text: &str) -> Result<Dialect, String> {
    Names::named(text)
        .map(Dialect)
        .ok_or_else(|| "expected default or toolhive".to_owned())
}

/// Flags of `mcp-runner bridge`.
#[derive(Clone, Debug, Args)]
pub struct BridgeArgs {
    /// Where to listen
    #[arg(long, default_value = "0.0.0.0:8080", value_name = "ADDRESS:PORT", value_parser = address)]
    pub listen: SocketAddr,
    /// The path of the endpoint
    #[arg(long, default_value = "/mcp", value_parser = path)]
    pub path: String,
    /// An origin that may send requests, or *; may be given more than once [default: pages of this machine]
    #[arg(long = "allowed-origin", value_name = "ORIGIN", value_parser = origin)]
    pub allowed_origins: Vec<String>,
    /// The log level
    #[arg(long, env = "MCP_LOG_LEVEL", default_value = "info")]
    pub log_level: String,
    /// The program and its arguments, after --; one is started for each session
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

/// What `main` of `mcp-runner` calls.
pub fn runner_main(args: RunnerArgs) -> ExitCode {
    match args.command {
        RunnerCommand::Run(args) => match start_log(args.common.log_format, &args.common.log_level) {
            Ok(log_level) => match run(*args, log_level) {
                Ok(Ok(())) => ExitCode::SUCCESS,
                Ok(Err(error)) => {
                    // The server quotes the value that it refuses, and the run config may hold secrets.
                    say_error(&exuvia_write::redact_uncut(&error.to_string()));
                    error.exit_code().into()
                }
                Err(error) => fail(&error),
            },
            Err(code) => code,
        },
        RunnerCommand::Bridge(args) => match start_log(LogFormat::default(), &args.log_level) {
            Ok(_) => bridge(args).map_or_else(|error| fail(&error), |()| ExitCode::SUCCESS),
            Err(code) => code,
        },
        RunnerCommand::Install { path } => {
            install(&path).map_or_else(|error| fail(&error), |()| ExitCode::SUCCESS)
        }
    }
}

/// The inner error has an exit code of its own.
fn run(args: RunArgs, log_level: LogLevel) -> anyhow::Result<Result<(), runner::Error>> {
    let names = args.names.0;
    let config_paths = if args.configs.is_empty() {
        names
            .config_paths
            .iter()
            .map(|path| PathBuf::from(&**path))
            .collect()
    } else {
        args.configs
    };
    let settings = RunSettings {
        names,
        gate: args.gate,
        fence: args.fence,
        config_paths,
        mount_patience: args.mount_patience,
        image: args.image,
        listen: args.listen,
        admin_listen: args.admin_listen,
        backends: args.backends,
        grace: args.grace,
        pod: args.common.pod(),
        env: |name| std::env::var(name).ok(),
    };
    let common = args.common;
    block_on(async move {
        let stop = stop_signal()?;
        // With backends by URL there need not be a cluster.
        let config = match common.config().await {
            Err(error) if settings.backends.is_empty() => return Err(error),
            config => config.ok(),
        };
        Ok(Box::pin(runner::run(settings, config, log_level, stop)).await)
    })
}

fn bridge(args: BridgeArgs) -> anyhow::Result<()> {
    if let Some(program) = args.command.first() {
        check_program(program.as_ref())?;
    }
    block_on(async move {
        let stop = stop_signal()?;
        let settings = BridgeSettings {
            listen: args.listen,
            path: args.path,
            allowed_origins: Origins::new(&args.allowed_origins)?,
            ..BridgeSettings::new(args.command)
        };
        let bridge = Bridge::bind(settings).await?;
        tracing::info!(address = %bridge.local_addr(), "serving");
        bridge.run(stop).await;
        Ok(())
    })
}

fn install(path: &std::path::Path) -> anyhow::Result<()> {
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    std::fs::copy(&own, path).with_context(|| format!("cannot copy to {}", path.display()))?;
    Ok(())
}
