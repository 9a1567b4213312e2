//! The `exuvia` command: parses its arguments, then makes one call.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    exuvia::cli::run(exuvia::cli::Cli::parse())
}
