//! The `mcp-runner` command: parses its arguments, then makes one call.

use std::process::ExitCode;

use mcp_operator::cli::runner_main;

fn main() -> ExitCode {
    mcp_proxy::cli::parse().map_or_else(|code| code, runner_main)
}
