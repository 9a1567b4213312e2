//! `mcp-operator`: its flags, and how its parts are put together.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use exuvia_runtime::{
    Claim, Events, Health, LeaseSettings, LogLevel, Metrics, Runtime, RuntimeSettings, bind,
    elect_with_health, serve,
};
use exuvia_write::Writer;
use mcp_proxy::cli::{fail, values::whole};
use tokio::sync::watch;

use super::{CommonArgs, block_on, start_log, stop_signal, values};
use crate::api::OPERATOR_MANAGER;
use crate::controller::{ServerController, ServerSettings};
use crate::tools::ToolConfigController;

/// A connection on which an answer takes longer is dead: the API server itself gives up after a minute.
const ANSWER_WITHIN: Duration = Duration::from_secs(65);

/// The operator for MCP servers.
#[derive(Clone, Debug, Parser)]
#[command(name = "mcp-operator", version, about = "Runs MCP servers on Kubernetes")]
pub struct OperatorArgs {
    /// The image of mcp-runner
    #[arg(long, env = "MCP_RUNNER_IMAGE", value_name = "IMAGE", value_parser = values::image)]
    pub runner_image: String,
    /// How often a server is looked at although nothing was heard of it
    #[arg(long, env = "MCP_RESYNC", default_value = "10m", value_parser = values::interval, allow_hyphen_values = true)]
    pub resync: Duration,
    /// Watch this namespace only [default: all namespaces]
    #[arg(long, env = "MCP_WATCH_NAMESPACE", value_name = "NAMESPACE", value_parser = values::namespace)]
    pub watch_namespace: Option<String>,
    /// How many servers are worked on at once
    #[arg(long, env = "MCP_CONCURRENCY", default_value_t = 4, value_parser = whole::<u16>(1..=65535), allow_hyphen_values = true)]
    pub concurrency: u16,
    /// The longest pause between two tries of a server that fails
    #[arg(long, env = "MCP_MAX_BACKOFF", default_value = "5m", value_parser = values::interval, allow_hyphen_values = true)]
    pub max_backoff: Duration,
    /// Write only while holding a Lease, so that only one replica works at a time
    #[arg(long, env = "MCP_LEADER_ELECT", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub leader_elect: bool,
    /// The Lease's name
    #[arg(long, env = "MCP_LEASE_NAME", default_value = "mcp-operator", value_parser = values::object_name)]
    pub lease_name: String,
    /// The Lease's namespace [default: the pod's namespace, or the namespace of the kubeconfig's context]
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE", value_parser = values::namespace)]
    pub lease_namespace: Option<String>,
    /// How long the Lease is valid after a renewal
    #[arg(long, env = "MCP_LEASE_DURATION", default_value = "15s", value_parser = values::interval, allow_hyphen_values = true)]
    pub lease_duration: Duration,
    /// The address and port that serve /metrics, /livez, /readyz and /log-level
    #[arg(
        long,
        env = "MCP_LISTEN",
        default_value = "[::]:8080",
        value_name = "ADDRESS:PORT"
    )]
    pub listen: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: CommonArgs,
}

/// What `main` of `mcp-operator` calls.
pub fn operator_main(args: &OperatorArgs) -> ExitCode {
    match start_log(args.common.log_format, &args.common.log_level) {
        Ok(log_level) => {
            let ran = block_on(operate(args, log_level));
            ran.map_or_else(|error| fail(&error), |()| ExitCode::SUCCESS)
        }
        Err(code) => code,
    }
}

async fn operate(args: &OperatorArgs, log_level: LogLevel) -> anyhow::Result<()> {
    let stop = stop_signal()?;
    let config = args.common.config().await?;
    let listener = bind(&args.listen).await?;
    let version = env!("CARGO_PKG_VERSION");
    let identity = args.common.pod();
    let namespace = args
        .lease_namespace
        .as_ref()
        .unwrap_or(&config.default_namespace)
        .clone();
    let (health, metrics) = (Health::new(), Metrics::new(version));
    let claim = if args.leader_elect {
        Claim::none()
    } else {
        Claim::always()
    };
    metrics.observe_claim(&args.lease_name, &claim);
    let ungated = Writer::named(OPERATOR_MANAGER)
        .user_agent(format!("mcp-operator/{version}"))
        .observe(metrics.observe_writes());
    let writer = ungated.clone().gate(claim.gate());
    let mut answering = config.clone();
    answering.read_timeout = Some(ANSWER_WITHIN);
    let client = writer.connect(answering)?;
    let watching = writer.connect(config.clone())?;
    // Separate connections: a renewal must not wait for a dead connection that others use.
    let leasing = ungated.connect(config)?;

    let mut runtime = Runtime::new(
        watching.clone(),
        claim.clone(),
        health.clone(),
        &metrics,
        RuntimeSettings {
            concurrency: args.concurrency.into(),
            max_backoff: args.max_backoff,
            grace: Duration::from_secs(25),
        },
    );
    runtime.add(ServerController::new(
        client.clone(),
        watching.clone(),
        writer.clone(),
        Events::new(client.clone(), writer.clone(), identity.clone()),
        metrics.clone(),
        ServerSettings {
            resync: args.resync,
            namespace: args.watch_namespace.clone(),
            ..ServerSettings::new(&args.runner_image)
        },
    ));
    runtime.add(ToolConfigController::new(
        client,
        watching,
        writer,
        metrics.clone(),
        args.watch_namespace.clone(),
    ));
    tracing::info!(version, identity, listen = %listener.local_addr()?, "operator starts");

    // First the work ends, then the Lease is released, then the HTTP server stops.
    let (work_ended, mut may_release) = watch::channel(false);
    let (_released, mut may_close) = watch::channel(());
    tokio::spawn(serve(listener, health.clone(), metrics, log_level, async move {
        let _ = may_close.changed().await; // fails when the sender is dropped, and that is the signal
    }));
    let settings = LeaseSettings {
        namespace,
        name: args.lease_name.clone(),
        identity,
        duration: args.lease_duration,
    };
    let electing = args.leader_elect.then(|| {
        tokio::spawn(elect_with_health(
            leasing,
            ungated,
            settings,
            claim,
            health,
            async move {
                let _ = may_release.wait_for(|ended| *ended).await;
            },
        ))
    });
    runtime.run(stop).await;
    work_ended.send_replace(true);
    if let Some(electing) = electing {
        electing.await?;
    }
    tracing::info!("operator has stopped");
    Ok(())
}
