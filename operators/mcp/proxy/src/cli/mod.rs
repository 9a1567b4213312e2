//! What the commands `mcp-proxy`, `mcp-bridge`, `mcp-operator` and `mcp-runner` share: a mistake is one sentence on standard error, and
//! values with which nothing could work are refused before anything is done.

mod program;
pub mod values;

use std::process::ExitCode;

pub use exuvia_usage::{WRONG_USAGE, parse, say_error};

pub use self::program::{MissingProgram, check_program};

/// A mistake in the command line that is found only when it is carried out, such as a file that is not there.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongUsage(pub String);

/// Says why the program ends, with all causes, and returns the exit code for it.
pub fn fail(error: &anyhow::Error) -> ExitCode {
    say_error(&format!("{error:#}"));
    if error.is::<WrongUsage>() {
        ExitCode::from(WRONG_USAGE)
    } else {
        ExitCode::FAILURE
    }
}
