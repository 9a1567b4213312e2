//! A program that says in one sentence what is wrong with its command line. It needs no cluster.
//!
//!     cargo run -p exuvia-usage --example one_sentence -- --concurent 4

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

/// Copies objects
#[derive(Debug, Parser)]
#[command(name = "copy")]
pub(crate) struct Args {
    /// How many objects are written at a time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) concurrent: u16,
}

/// What `exuvia_usage::parse` does in one call.
fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match read(&words) {
        Ok(args) => {
            println!("{} at a time", args.concurrent);
            ExitCode::SUCCESS
        }
        Err(sentence) => {
            exuvia_usage::say_error(&sentence);
            ExitCode::from(exuvia_usage::WRONG_USAGE)
        }
    }
}

/// What these words ask for, or what is wrong with them.
pub(crate) fn read(words: &[String]) -> Result<Args, String> {
    let all = std::iter::once("copy".to_owned()).chain(words.iter().cloned());
    Args::try_parse_from(all).map_err(|error| {
        let sentence = exuvia_usage::sentence(Args::command(), &error, words, |_| None);
        sentence.unwrap_or_else(|| error.exit()) // help
    })
}
