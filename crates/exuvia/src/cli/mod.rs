//! Carries out what the command line asks for.

mod args;
mod demo;

use std::process::ExitCode;

use clap::CommandFactory;

pub use args::{Cli, Command, DemoArgs};

/// Runs one command. Errors go to standard error as one sentence; the exit code is then not zero.
pub fn run(cli: Cli) -> ExitCode {
    let result = match cli.command {
        Command::Version => {
            println!("exuvia {}", env!("CARGO_PKG_VERSION"));
            Ok(ExitCode::SUCCESS)
        }
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "exuvia", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
        Command::Demo(args) => demo::run(args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
