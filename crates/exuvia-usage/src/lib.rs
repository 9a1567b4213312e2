//! What a program says of a wrong command line: one sentence on standard error with the cause and the fix, and exit code 2.
//!
//! ```no_run
//! # #[cfg(feature = "clap")] {
//! #[derive(clap::Parser)]
//! struct Args {
//!     /// How many objects are written at a time
//!     #[arg(long)]
//!     concurrent: u16,
//! }
//!
//! let args: Result<Args, std::process::ExitCode> = exuvia_usage::parse();
//! // invalid --concurrent "many": invalid digit found in string
//! # }
//! ```

mod nearest;
#[cfg(feature = "clap")]
mod refusal;

use std::io::Write;

pub use self::nearest::nearest;
#[cfg(feature = "clap")]
pub use self::refusal::{parse, parse_knowing, sentence};

/// The exit code of a command that was not understood, or could not begin.
pub const WRONG_USAGE: u8 = 2;

/// Says why a program ends, as one line, without passwords.
pub fn say_error(text: &str) {
    // Not `eprintln!`, which panics if nobody reads it any more.
    let _ = writeln!(std::io::stderr(), "error: {}", without_passwords(&one_line(text)));
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Names to choose from.
///
/// ```
/// let names = ["a".to_owned(), "b".to_owned(), "c".to_owned()];
/// assert_eq!(exuvia_usage::or(&names), "a, b or c");
/// ```
pub fn or(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// The text with `…@` for every user and password before a host: `https://me:secret@host` becomes `https://…@host`.
pub fn without_passwords(text: &str) -> String {
    const MARK: &str = "://";
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(MARK) {
        let (before, url) = rest.split_at(at + MARK.len());
        shown.push_str(before);
        let end = url.find(|c: char| c.is_whitespace() || "/?#\"'".contains(c));
        let authority = &url[..end.unwrap_or(url.len())];
        // A password may hold an @, or what ends an authority; then the last @ before a space is meant.
        let word = &url[..url.find(char::is_whitespace).unwrap_or(url.len())];
        let user = authority.rfind('@').or_else(|| {
            let at = word.rfind('@')?;
            word[..at].contains(':').then_some(at)
        });
        rest = match user {
            Some(user) => {
                shown.push('…');
                &url[user..]
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
    fn passwords_in_urls_are_not_shown() {
        for (text, shown) in [
            ("at https://me:CANARY@host:1/x now", "at https://…@host:1/x now"),
            ("'https://CANARY@host'", "'https://…@host'"),
            ("http://me:CAN/ARY@host", "http://…@host"),
            ("http://me:CAN@ARY@host", "http://…@host"),
            ("https://host/a@b and c@d", "https://host/a@b and c@d"),
            ("https://a:1, ftp://u:CANARY@b", "https://a:1, ftp://…@b"),
        ] {
            assert_eq!(without_passwords(text), shown);
        }
    }
    #[test]
    fn an_error_is_one_line() {
        assert_eq!(one_line("a:\n  b\n\nc"), "a: b c");
    }
}
