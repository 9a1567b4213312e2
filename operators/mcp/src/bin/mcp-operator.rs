//! The `mcp-operator` command: parses its arguments, then makes one call.

use std::process::ExitCode;

use clap::Parser;
use mcp_operator::cli::{OperatorArgs, operator_main};

fn main() -> ExitCode {
    operator_main(&OperatorArgs::parse())
}
