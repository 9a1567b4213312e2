//! The `mcp-bridge` command: a server that speaks stdio, served as Streamable HTTP.

mod process;

use std::{ffi::OsString, net::SocketAddr, process::ExitCode, time::Duration};

use clap::Parser;
use mcp_proxy::{
    Origins,
    bridge::{Bridge, BridgeSettings},
    cli::{self, values},
};

/// Serves a program that speaks MCP on stdin and stdout as Streamable HTTP, one process per session
#[derive(Parser)]
#[command(name = "mcp-bridge", version)]
struct Args {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDR", value_parser = values::address)]
    listen: SocketAddr,
    /// The path that is served
    #[arg(long, default_value = "/mcp", value_parser = values::path)]
    path: String,
    /// An origin that may send requests, or *; may be given more than once [default: pages of this machine]
    #[arg(long = "allowed-origin", value_name = "ORIGIN", value_parser = values::origin)]
    allowed_origins: Vec<String>,
    /// Largest message
    #[arg(long, default_value_t = 16 * 1024 * 1024, value_name = "BYTES", value_parser = values::whole::<u32>(1..=u32::MAX.into()))]
    max_message_bytes: u32,
    /// So many processes run at most at one time
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = values::whole::<u16>(1..=65535))]
    max_children: u16,
    /// A session that nobody uses for so many seconds is ended
    #[arg(long, default_value_t = 1800, value_name = "SECONDS", value_parser = values::whole::<u32>(1..=u32::MAX.into()))]
    idle: u32,
    /// How many seconds calls may go on after SIGTERM
    #[arg(long, default_value_t = 25, value_name = "SECONDS", value_parser = values::whole::<u32>(0..=u32::MAX.into()), allow_hyphen_values = true)]
    grace: u32,
    /// The program and its arguments, after --
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

fn main() -> ExitCode {
    let args = match cli::parse::<Args>() {
        Ok(args) => args,
        Err(code) => return code,
    };
    process::start_log();
    process::ended(&run(args))
}

#[tokio::main]
async fn run(args: Args) -> anyhow::Result<()> {
    if let Some(program) = args.command.first() {
        cli::check_program(program)?;
    }
    let bridge = Bridge::bind(BridgeSettings {
        listen: args.listen,
        path: args.path,
        allowed_origins: Origins::new(&args.allowed_origins)?,
        max_message_bytes: usize::try_from(args.max_message_bytes)?,
        max_children: args.max_children.into(),
        idle: Duration::from_secs(args.idle.into()),
        grace: Duration::from_secs(args.grace.into()),
        ..BridgeSettings::new(args.command)
    })
    .await?;
    let stop = process::stop_signal()?;
    tracing::info!(address = %bridge.local_addr(), "serving");
    bridge.run(stop).await;
    Ok(())
}
