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
    concurrent: u16,
}

fn main() -> ExitCode {
    let args: Args = match exuvia_usage::parse() {
        Ok(args) => args,
        Err(code) => return code, // 2: it was said what is wrong
    };
    println!("{} at a time", args.concurrent);
    ExitCode::SUCCESS
}

/// What is said of these words; `None` if nothing is wrong with them.
pub(crate) fn said_of(words: &[&str]) -> Option<String> {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let all = std::iter::once("copy".to_owned()).chain(words.iter().cloned());
    let error = Args::try_parse_from(all).err()?;
    exuvia_usage::sentence(Args::command(), &error, &words, |_| None)
}
