//! The `mcp-proxy` command: the proxy alone, in front of servers given by their URLs.

mod process;

use std::{net::SocketAddr, time::Duration};

use clap::Parser;
use mcp_proxy::{Backend, Backends, Origins, Proxy, Settings, Tools};

/// A streaming proxy for MCP servers
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The URL of a server, with port and without a path; may be given more than once
    #[arg(long = "backend", value_name = "URL", required = true)]
    backends: Vec<String>,
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDR")]
    listen: SocketAddr,
    /// An origin that may send requests, or *; may be given more than once [default: pages of this machine]
    #[arg(long = "allowed-origin", value_name = "ORIGIN")]
    allowed_origins: Vec<String>,
    /// Largest request body
    #[arg(long, default_value_t = 16 * 1024 * 1024, value_name = "BYTES")]
    max_body_bytes: u64,
    /// Put before the path in the `endpoint` event of the old SSE transport
    #[arg(long, default_value = "", value_name = "PATH")]
    endpoint_prefix: String,
    /// Keep the X-Forwarded-* headers of requests
    #[arg(long)]
    trust_proxy_headers: bool,
    /// The servers keep no sessions
    #[arg(long)]
    stateless: bool,
    /// A tool that clients see and may call; may be given more than once [default: all]
    #[arg(long = "tool", value_name = "NAME")]
    tools: Vec<String>,
    /// Put before every path that is sent to a server
    #[arg(long, default_value = "", value_name = "PATH")]
    target_path: String,
    /// How many seconds calls may go on after SIGTERM
    #[arg(long, default_value_t = 25, value_name = "SECONDS")]
    grace: u64,
    /// Threads that serve [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

fn main() -> anyhow::Result<()> {
    process::start_log();
    let args = Args::parse();
    let mut runtime = match args.threads {
        Some(1) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if let Some(threads) = args.threads.filter(|threads| *threads > 1) {
        runtime.worker_threads(threads.into());
    }
    runtime.enable_all().build()?.block_on(run(args))
}

async fn run(args: Args) -> anyhow::Result<()> {
    let backends = Backends::default();
    let urls = args.backends.iter().map(|url| Backend::from_url(url));
    backends.set(urls.collect::<Result<Vec<_>, _>>()?);
    let settings = Settings {
        listen: args.listen,
        allowed_origins: Origins::new(&args.allowed_origins)?,
        max_body_bytes: args.max_body_bytes,
        endpoint_prefix: args.endpoint_prefix,
        trust_proxy_headers: args.trust_proxy_headers,
        stateless: args.stateless,
        target_path: args.target_path,
        tools: Tools::new(args.tools),
        grace: Duration::from_secs(args.grace),
    };
    let proxy = Proxy::bind(settings, backends).await?;
    let stop = process::stop_signal()?;
    tracing::info!(address = %proxy.local_addr(), "serving");
    proxy.run(stop).await;
    Ok(())
}
