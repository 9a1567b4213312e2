//! What the commands `mcp-proxy`, `mcp-bridge`, `mcp-operator` and `mcp-runner` share: a mistake is one sentence on standard error, and
//! values with which nothing could work are refused before anything is done.

mod program;
mod refusal;
pub mod values;

use std::io::Write;
use std::process::ExitCode;

pub use self::program::{MissingProgram, check_program};
pub use self::refusal::{WRONG_USAGE, parse};

/// Says why the program ends.
pub fn say_error(text: &str) {
    // Not `eprintln!`, which panics if nobody reads it any more.
    let _ = writeln!(std::io::stderr(), "error: {}", without_passwords(&one_line(text)));
}

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

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The text with `…@` for every user and password before a host: what is not understood is quoted, and a URL may hold a password.
fn without_passwords(text: &str) -> String {
    const MARK: &str = "://";
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(MARK) {
        let (before, url) = rest.split_at(at + MARK.len());
        shown.push_str(before);
        let word = &url[..url.find(char::is_whitespace).unwrap_or(url.len())];
        rest = match word.rfind('@') {
            Some(at) => {
                shown.push('…');
                &url[at..]
            }
            None => url,
        };
    }
    shown.push_str(rest);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_a_url_is_not_shown() {
        for (text, shown) in [
            ("no url at all", "no url at all"),
            ("http://me:s3cret@host: expected", "http://…@host: expected"),
            (
                "http://me:s3/c@ret@host and http://b",
                "http://…@host and http://b",
            ),
        ] {
            assert_eq!(without_passwords(text), shown);
        }
    }

    #[test]
    fn an_error_is_one_line() {
        assert_eq!(one_line("a:\n  b\n\nc"), "a: b c");
    }
}
