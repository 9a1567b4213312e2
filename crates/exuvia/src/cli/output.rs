//! Tables for people, JSON and YAML for machines.

use std::io::Write;

use clap::ValueEnum;
use k8s_openapi::jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
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

/// Writes to standard output. If the reader has gone away (`| head -1`), that is neither an error nor a panic.
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

/// Ends when the reader of standard output has gone away; never where it is a file.
pub(super) async fn reader_gone() {
    let (gone, is_gone) = tokio::sync::oneshot::channel();
    // A thread of the runtime would be waited for at the end.
    std::thread::spawn(move || {
        let stdout = std::io::stdout();
        let mut watched = [PollFd::new(&stdout, PollFlags::empty())]; // that it is closed is told in any case
        let polled = loop {
            match poll(&mut watched, None) {
                Err(Errno::INTR) => {}
                polled => break polled,
            }
        };
        if polled.is_ok() {
            let _ = gone.send(()); // fails if the command has ended otherwise
        }
    });
    if is_gone.await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// A time in whole seconds.
pub(super) fn seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// Writes a line to standard error. If it is closed, the line is lost; `eprintln!` would panic.
pub(crate) fn remark(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
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
