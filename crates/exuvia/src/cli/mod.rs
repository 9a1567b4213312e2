//! Carries out what the command line asks for.

mod args;
mod audit;
mod bars;
mod cluster;
mod demo;
mod droppable;
mod lint;
mod migrate;
mod operator;
mod output;
mod plan;
mod rbac;
mod references;
mod summary;
mod table;
mod values;
mod verdicts;

use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use exuvia_storage::redact_uncut;

pub use args::*;
pub use operator::{LogFormatArg, OperatorArgs};
pub use output::Format;
pub(crate) use output::remark;
pub use plan::{PlanArgs, PlanFormat};

/// Runs one command. Errors go to standard error as one sentence; the exit code is then not zero.
pub fn run(cli: Cli) -> ExitCode {
    // The operator has logging of its own.
    if !matches!(cli.command, Command::Operator(_)) {
        log_to_stderr(cli.verbose);
    }
    let result = match cli.command {
        Command::Operator(args) => operator::run(&args),
        Command::Version => {
            output::say(concat!("exuvia ", env!("CARGO_PKG_VERSION"), "\n")).map(|()| ExitCode::SUCCESS)
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "exuvia", &mut script);
            output::say(&String::from_utf8_lossy(&script)).map(|()| ExitCode::SUCCESS)
        }
        Command::Demo(args) => demo::run(args),
        Command::Plan(args) => block_on(plan::run(&args)),
        Command::Rbac(args) => block_on(rbac::run(&args)).map(|()| ExitCode::SUCCESS),
        Command::Storage(StorageCommand::Migrate(args)) => block_on(migrate::run(&args)),
        Command::Storage(StorageCommand::Status(args)) => {
            block_on(plan::status(&args)).map(|()| ExitCode::SUCCESS)
        }
        Command::Storage(StorageCommand::Users(args)) => {
            block_on(droppable::users(&args)).map(|()| ExitCode::SUCCESS)
        }
        Command::Storage(StorageCommand::Lint(args)) => lint::run(&args),
        Command::Storage(StorageCommand::Audit(args)) => block_on(audit::run(&args)),
        Command::Storage(StorageCommand::Droppable(args)) => {
            // An exit code of its own: "no" must not be mistaken for "cannot tell".
            return block_on(droppable::run(&args)).unwrap_or_else(|error| failed(&error, 2));
        }
    };
    result.unwrap_or_else(|error| failed(&error, 1))
}

/// Objects' bodies are never logged, however often `-v` is given.
fn log_to_stderr(verbose: u8) {
    let filter = match verbose {
        0 => return,
        1 => "exuvia_storage=debug",
        _ => "exuvia_storage=debug,exuvia_sweep=debug,exuvia_write=debug,exuvia=debug",
    };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .log_internal_errors(false) // it would tell standard error that standard error is closed, and panic
        .with_writer(std::io::stderr);
    let _ = subscriber.try_init(); // somebody else's logging stays
}

fn failed(error: &anyhow::Error, code: u8) -> ExitCode {
    remark(&format!("error: {}", sentence(error)));
    ExitCode::from(code)
}

/// Causes joined once each: errors of several layers repeat what is below them, and kube's print whole structures. What
/// the server quotes of an object is left out: a terminal is often a log.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let kube = cause.downcast_ref::<kube::Error>();
        let own = match kube {
            Some(kube::Error::Api(status)) => cluster::answer(status),
            _ => cause.to_string(),
        };
        if !text.contains(&own) {
            text = if text.is_empty() {
                own
            } else {
                format!("{text}: {own}")
            };
        }
        if matches!(kube, Some(kube::Error::Api(_))) {
            break;
        }
    }
    redact_uncut(&text)
}

fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Runtime::new()
        .context("cannot start the async runtime")?
        .block_on(work)
}
