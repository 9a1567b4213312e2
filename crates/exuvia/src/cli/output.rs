//! Tables for people, JSON and YAML for machines.

use std::io::Write;

use clap::ValueEnum;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::table::{Column, Row, Table, screen_width};

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table, or sentences.
    #[default]
    Table,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

impl Format {
    /// Prints `value`, or what `for_people` makes of it.
    pub(super) fn print(
        self,
        value: &impl Serialize,
        for_people: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        say(&self.text(value, for_people)?)
    }

    /// What [`print`](Self::print) prints.
    pub(super) fn text(
        self,
        value: &impl Serialize,
        for_people: impl FnOnce() -> String,
    ) -> anyhow::Result<String> {
        Ok(match self {
            Self::Table => for_people(),
            Self::Json => serde_json::to_string_pretty(value)? + "\n",
            Self::Yaml => serde_saphyr::to_string(value)?,
        })
    }
}

/// Writes to standard output. A reader that has gone away (`| head -1`) has seen enough: no error, and no panic.
pub(super) fn say(text: &str) -> anyhow::Result<()> {
    say_while_read(text).map(drop)
}

/// As [`say`]; `false`: the reader has gone away.
pub(super) fn say_while_read(text: &str) -> anyhow::Result<bool> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        written => Ok(written.map(|()| true)?),
    }
}

/// A time by the second: what is below it tells nobody anything.
pub(super) fn seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// Writes a line to standard error. Who does not listen there any more misses it; `eprintln!` would panic.
pub(crate) fn remark(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// `1 object`, `2 objects`.
pub(super) fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Columns as wide as their widest cell, two spaces between, if the screen has room for them.
pub(super) fn table(head: &[&'static str], rows: &[Vec<String>]) -> String {
    let table = Table {
        columns: head.iter().map(|head| Column::Fact(head)).collect(),
        rows: rows.iter().cloned().map(Row::of).collect(),
    };
    table.render(screen_width())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let table = Table {
            columns: vec![Column::Fact("NAME"), Column::Fact("X")],
            rows: vec![Row::of(["a", "b"]), Row::of(["longer", ""])],
        };
        assert_eq!(table.render(None), "NAME    X\na       b\nlonger\n");
    }

    #[test]
    fn a_time_is_told_by_the_second() {
        let time: Timestamp = "2026-11-16T14:39:09.123456789Z".parse().expect("a time");
        assert_eq!(seconds(time).to_string(), "2026-11-16T14:39:09Z");
    }
}
