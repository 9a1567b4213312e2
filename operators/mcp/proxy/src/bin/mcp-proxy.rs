//! The `mcp-proxy` command: the proxy alone, in front of servers given by their URLs.

mod process;

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use anyhow::Context;
use clap::Parser;
use mcp_proxy::{
    Backend, Backends, Origins, Proxy, Settings, Tools,
    cli::{self, values},
};

/// A streaming proxy for MCP servers
#[derive(Parser)]
#[command(name = "mcp-proxy", version)]
struct Args {
    /// The URL of a server, with port and without a path; may be given more than once
    #[arg(long = "backend", value_name = "URL", required = true, value_parser = values::backend)]
    backends: Vec<Backend>,
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDR", value_parser = values::address)]
    listen: SocketAddr,
    /// An origin that may send requests, or *; may be given more than once [default: pages of this machine]
    #[arg(long = "allowed-origin", value_name = "ORIGIN", value_parser = values::origin)]
    allowed_origins: Vec<String>,
    /// Largest request body
    #[arg(long, default_value_t = 16 * 1024 * 1024, value_name = "BYTES", value_parser = values::whole::<u64>(1..=u64::MAX), allow_hyphen_values = true)]
    max_body_bytes: u64,
    /// Put before the path in the `endpoint` event of the old SSE transport
    #[arg(long, default_value = "", value_name = "PATH", value_parser = values::prefix)]
    endpoint_prefix: String,
    /// Keep the X-Forwarded-* headers of requests
    #[arg(long)]
    trust_proxy_headers: bool,
    /// The servers keep no sessions
    #[arg(long)]
    stateless: bool,
    /// A tool that clients see and may call; may be given more than once [default: all]
    #[arg(long = "tool", value_name = "NAME", value_parser = values::tool)]
    tools: Vec<String>,
    /// Put before every path that is sent to a server
    #[arg(long, default_value = "", value_name = "PATH", value_parser = values::prefix)]
    target_path: String,
    /// How many seconds calls may go on after SIGTERM
    #[arg(long, default_value_t = 25, value_name = "SECONDS", value_parser = values::whole::<u32>(0..=u32::MAX.into()), allow_hyphen_values = true)]
    grace: u32,
    /// Threads that serve [default: one per core]
    #[arg(long, value_name = "N", value_parser = values::whole::<u16>(1..=65535))]
    threads: Option<u16>,
}

fn main() -> ExitCode {
    let args = match cli::parse::<Args>() {
        Ok(args) => args,
        Err(code) => return code,
    };
    process::start_log();
    process::ended(&start(args))
}

fn start(args: Args) -> anyhow::Result<()> {
    let mut runtime = match args.threads {
        Some(1) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if let Some(threads) = args.threads.filter(|threads| *threads > 1) {
        runtime.worker_threads(threads.into());
    }
    let runtime = runtime.enable_all().build();
    runtime
        .context("cannot start the async runtime")?
        .block_on(run(args))
}

async fn run(args: Args) -> anyhow::Result<()> {
    let backends = Backends::default();
    backends.set(args.backends);
    let settings = Settings {
        listen: args.listen,
        allowed_origins: Origins::new(&args.allowed_origins)?,
        max_body_bytes: args.max_body_bytes,
        endpoint_prefix: args.endpoint_prefix,
        trust_proxy_headers: args.trust_proxy_headers,
        stateless: args.stateless,
        target_path: args.target_path,
        tools: Tools::new(args.tools),
        grace: Duration::from_secs(args.grace.into()),
    };
    let proxy = Proxy::bind(settings, backends).await?;
    let stop = process::stop_signal()?;
    tracing::info!(address = %proxy.local_addr(), "serving");
    proxy.run(stop).await;
    Ok(())
}
