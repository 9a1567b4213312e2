//! The `mcp-runner` command: parses its arguments, then makes one call.

use std::process::ExitCode;

use clap::Parser;
use mcp_operator::cli::{RunnerArgs, runner_main};

fn main() -> ExitCode {
    runner_main(RunnerArgs::parse())
}
