//! `cargo xtask demo mcp`: an MCP server behind its proxy on a real control plane, an image bump under load, and the race of two
//! runners with and without the freeze.
//!
//! The nodes are kwok's; pods are bound by the scheduler and run as processes on loopback addresses of their own. Everything ends with
//! this process.
#![allow(clippy::disallowed_methods, reason = "a demo sets up its world")]

#[path = "../../tests/kit/mod.rs"]
mod kit;

mod load;
mod pods;
mod race;
mod server;
mod service;
mod share;
mod stage;

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use self::load::{NAMESPACE, SERVER, Served};
use self::stage::Stage;

/// A demo that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Parser)]
#[command(
    name = "cargo xtask demo mcp",
    about = "Shows the MCP operator on a real control plane"
)]
struct Args {
    /// How many clients make calls while the image is changed
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    clients: u16,
    /// Keep the control plane, the operator and an MCP server up until Ctrl-C, and print how to reach them
    #[arg(long)]
    keep: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Subcommand)]
enum Part {
    /// The MCP server that backend pods run
    #[command(hide = true)]
    Serve {
        #[arg(long)]
        listen: SocketAddr,
        /// What it says about itself
        #[arg(long)]
        name: String,
        #[arg(long)]
        version: String,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start the async runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(async {
        if let Some(Part::Serve {
            listen,
            name,
            version,
        }) = args.part
        {
            server::serve(listen, name, version).await?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut terminated = signal(SignalKind::terminate())?;
        tokio::select! {
            told = tell_and_keep(args.clients.into(), args.keep) => {
                told?;
                Ok(ExitCode::SUCCESS)
            }
            _ = tokio::signal::ctrl_c() => Ok(ExitCode::from(130)),
            _ = terminated.recv() => Ok(ExitCode::from(143)),
        }
    });
    runtime.shutdown_background();
    ended.unwrap_or_else(|error: anyhow::Error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

async fn tell_and_keep(clients: usize, keep: bool) -> anyhow::Result<()> {
    let told = tokio::time::timeout(PATIENCE, tell(clients, keep)).await;
    let (stage, served) = told.context("the demo took longer than 10 minutes")??;
    if let Some(served) = served {
        say(&how_to_reach(&stage, &served)?);
        std::future::pending::<()>().await;
    }
    Ok(())
}

fn how_to_reach(stage: &Stage, served: &Served) -> anyhow::Result<String> {
    let kubeconfig = stage.control_plane.admin().kubeconfig()?;
    let log = stage.operator_log();
    let url = &served.url;
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"me","version":"1"}}}"#;
    Ok(format!(
        "\nThe control plane, the operator and MCPServer {SERVER} stay up until Ctrl-C. In another terminal, with your own kubectl:\n\n    \
         export KUBECONFIG={}\n    \
         kubectl --namespace {NAMESPACE} get mcpservers,deployments,statefulsets,pods\n    \
         kubectl --namespace {NAMESPACE} patch mcpserver {SERVER} --type merge -p '{{\"spec\":{{\"image\":\"example.com/tools:3\"}}}}'\n    \
         curl -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' \\\n      \
         -d '{call}' {url}\n    \
         tail -f {}\n\n",
        kubeconfig.display(),
        log.display(),
    ))
}

/// The server of the story goes on serving if it is to be kept.
async fn tell(clients: usize, keep: bool) -> anyhow::Result<(Stage, Option<Served>)> {
    let started = Instant::now();
    let stage = Stage::start().await?;
    done(&format!(
        "A real control plane is up (Kubernetes {}, etcd, controller-manager, scheduler, kwok with 2 nodes), after {:.1} s",
        stage.version,
        started.elapsed().as_secs_f64()
    ));
    let (bumped, served) = load::tell(&stage, clients).await?;
    let served = keep.then_some(served);
    let live = race::without_the_freeze(&stage).await?;
    let frozen = race::with_the_freeze(&stage).await?;
    say(&format!(
        "\nSummary\n\
         {bumped}\
         {:<52}{live}\n\
         {:<52}{frozen}\n\
         {:<52}{:.0} s\n",
        "    revisions of the backend, without the freeze",
        "    revisions of the backend, with the freeze",
        "    the whole demo took",
        started.elapsed().as_secs_f64()
    ));
    Ok((stage, served))
}

/// Prints. A closed pipe is fine.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn done(what: &str) {
    say(&format!("✔ {what}\n"));
}
