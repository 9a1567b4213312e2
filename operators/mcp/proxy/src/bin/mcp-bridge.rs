//! The `mcp-bridge` command: a server that speaks stdio, served as Streamable HTTP.

mod process;

use std::{ffi::OsString, net::SocketAddr, time::Duration};

use clap::Parser;
use mcp_proxy::{
    Origins,
    bridge::{Bridge, BridgeSettings},
};

/// Serves a program that speaks MCP on stdin and stdout as Streamable HTTP, one process per session
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDR")]
    listen: SocketAddr,
    /// The path that is served
    #[arg(long, default_value = "/mcp")]
    path: String,
    /// An origin that may send requests, or *; may be given more than once [default: pages of this machine]
    #[arg(long = "allowed-origin", value_name = "ORIGIN")]
    allowed_origins: Vec<String>,
    /// Largest message
    #[arg(long, default_value_t = 16 * 1024 * 1024, value_name = "BYTES")]
    max_message_bytes: usize,
    /// So many processes run at most at one time
    #[arg(long, default_value_t = 64, value_name = "N")]
    max_children: usize,
    /// A session that nobody uses for so many seconds is ended
    #[arg(long, default_value_t = 1800, value_name = "SECONDS")]
    idle: u64,
    /// How many seconds calls may go on after SIGTERM
    #[arg(long, default_value_t = 25, value_name = "SECONDS")]
    grace: u64,
    /// The program and its arguments, after --
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    process::start_log();
    let args = Args::parse();
    let bridge = Bridge::bind(BridgeSettings {
        listen: args.listen,
        path: args.path,
        allowed_origins: Origins::new(&args.allowed_origins)?,
        max_message_bytes: args.max_message_bytes,
        max_children: args.max_children,
        idle: Duration::from_secs(args.idle),
        grace: Duration::from_secs(args.grace),
        ..BridgeSettings::new(args.command)
    })
    .await?;
    let stop = process::stop_signal()?;
    tracing::info!(address = %bridge.local_addr(), "serving");
    bridge.run(stop).await;
    Ok(())
}
