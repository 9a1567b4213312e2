//! The `mcp-operator` command: parses its arguments, then makes one call.

use std::process::ExitCode;

use mcp_operator::cli::operator_main;

fn main() -> ExitCode {
    mcp_proxy::cli::parse().map_or_else(|code| code, |args| operator_main(&args))
}
