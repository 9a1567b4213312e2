//! Tables for people, JSON and YAML for machines.

use std::io::Write;

use clap::ValueEnum;
use serde::Serialize;

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
        say(&match self {
            Self::Table => for_people(),
            Self::Json => serde_json::to_string_pretty(value)? + "\n",
            Self::Yaml => serde_saphyr::to_string(value)?,
        })
    }
}

/// Writes to standard output. A reader that has gone away (`| head -1`) has seen enough: no error, and no panic.
pub(super) fn say(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// Writes a line to standard error. Who does not listen there any more misses it; `eprintln!` would panic.
pub(crate) fn remark(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// `1 object`, `2 objects`.
pub(super) fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Columns as wide as their widest cell, two spaces between.
pub(super) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].len()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        padded.join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(head.to_vec());
    for row in rows {
        text.push_str(&line(row.iter().map(String::as_str).collect()));
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_line_up() {
        let rows = [
            vec!["a".to_owned(), "b".to_owned()],
            vec!["longer".to_owned(), String::new()],
        ];
        assert_eq!(
            super::table(&["NAME", "X"], &rows),
            "NAME    X\na       b\nlonger\n"
        );
    }
}
