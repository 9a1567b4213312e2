//! Tables for people, JSON and YAML for machines.

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
    /// Prints `value`, or whatever `for_people` prints.
    pub(super) fn print(self, value: &impl Serialize, for_people: impl FnOnce()) -> anyhow::Result<()> {
        match self {
            Self::Table => for_people(),
            Self::Json => println!("{}", serde_json::to_string_pretty(value)?),
            Self::Yaml => print!("{}", serde_saphyr::to_string(value)?),
        }
        Ok(())
    }
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
