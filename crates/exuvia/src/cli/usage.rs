//! What is said of a command line that cannot be understood.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use super::args::Cli;
use super::{remark, without_passwords};

/// What the command line asks for, or the exit code after it was said why it cannot be understood.
pub fn parse() -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| refuse(&error))
}

fn refuse(error: &clap::Error) -> ExitCode {
    if let Some(hint) = meant(error) {
        remark(&hint);
        return ExitCode::from(2);
    }
    // clap quotes what it does not understand, and a URL may hold a password.
    let text = error.render().to_string();
    let shown = without_passwords(&text);
    if shown != text {
        remark(shown.trim_end());
        return ExitCode::from(2);
    }
    error.exit()
}

/// `exuvia migrate` is `exuvia storage migrate`.
fn meant(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let commands = Cli::command();
    let storage = commands.find_subcommand("storage")?;
    storage.find_subcommand(name)?;
    Some(format!(
        "error: there is no command {name}; did you mean `exuvia storage {name}`?"
    ))
}
