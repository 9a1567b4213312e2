//! The `exuvia` command: parses its arguments, then makes one call.

use std::process::ExitCode;

fn main() -> ExitCode {
    exuvia::cli::parse().map_or_else(|refused| refused, exuvia::cli::run)
}
