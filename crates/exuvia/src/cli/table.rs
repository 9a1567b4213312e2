//! Tables that stay readable on a narrow screen: sentences go below their row, and nothing is cut off.

use std::io::IsTerminal;

use exuvia_storage::counted;
use rustix::termios::tcgetwinsize;

/// Below this a column is not made narrower, unless its widest cell is.
const NARROWEST: usize = 8;

/// A sentence that is longer than this is not lined up with others.
const LONG_SENTENCE: usize = 60;

/// How far lines below a row are indented.
const INDENT: usize = 2;

/// A space at which no line is broken.
const UNBROKEN: char = '\u{a0}';

/// How a column behaves when the screen is too narrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    /// Becomes a line above its rows; equal cells follow each other.
    Group(&'static str),
    /// Stays in the row.
    Fact(&'static str),
    /// Goes below the row, with this label if it has one.
    Prose(&'static str, &'static str),
}

/// A piece of a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Words.
    Text(String),
    /// Something to copy: broken lines end as a shell understands it.
    Command(String),
}

/// A row: one cell per column, and lines that are below it at any width.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    pub(super) cells: Vec<Vec<Part>>,
    /// Lines, each with how deep it is set in below the row.
    pub(super) below: Vec<(usize, String)>,
}

/// Rows under heads.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Row>,
}

impl Part {
    fn as_str(&self) -> &str {
        match self {
            Self::Text(text) | Self::Command(text) => text,
        }
    }
}

impl From<String> for Part {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl Row {
    /// A row of plain cells.
    pub(super) fn of<T: Into<String>>(cells: impl IntoIterator<Item = T>) -> Self {
        Self {
            cells: cells
                .into_iter()
                .map(|cell| vec![Part::Text(cell.into())])
                .collect(),
            below: Vec::new(),
        }
    }

    fn line(&self, column: usize) -> String {
        let parts: Vec<String> = self.cells[column]
            .iter()
            .map(|part| plain(part.as_str()))
            .collect();
        parts.join(" ")
    }
}

impl Column {
    fn head(self) -> &'static str {
        match self {
            Self::Group(head) | Self::Fact(head) | Self::Prose(head, _) => head,
        }
    }
}

impl Table {
    /// The text, for a screen of this width; `None`: one line per row, however long.
    pub(super) fn render(&self, screen: Option<usize>) -> String {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        let natural = self.widths(&all);
        let Some(screen) = screen.filter(|screen| total(&natural) > *screen) else {
            let widths = match screen {
                Some(_) => natural,
                None => self.without_the_longest(&natural),
            };
            return self.lay_out(&all, &widths, &[], None, screen);
        };
        let is = |column: &usize, prose: bool| prose == matches!(self.columns[*column], Column::Prose(..));
        let prose: Vec<usize> = all.iter().copied().filter(|column| is(column, true)).collect();
        let mut facts: Vec<usize> = all.into_iter().filter(|column| is(column, false)).collect();
        let mut widths = self.widths(&facts);
        let group = facts
            .iter()
            .position(|column| matches!(self.columns[*column], Column::Group(_)))
            .filter(|_| total(&widths) > screen)
            .map(|at| facts.remove(at));
        if group.is_some() {
            widths = self.widths(&facts);
        }
        shrink(&mut widths, screen);
        self.lay_out(&facts, &widths, &prose, group, Some(screen))
    }

    fn widths(&self, columns: &[usize]) -> Vec<usize> {
        let width = |column: &usize| {
            let cells = self.rows.iter().map(|row| row.line(*column).chars().count());
            cells
                .chain([self.columns[*column].head().len()])
                .max()
                .unwrap_or_default()
        };
        columns.iter().map(width).collect()
    }

    /// One sentence that is very long does not push the next column of all other rows out of sight.
    fn without_the_longest(&self, natural: &[usize]) -> Vec<usize> {
        let width = |(column, natural): (usize, &usize)| match self.columns[column] {
            Column::Prose(..) => {
                let cells = self.rows.iter().map(|row| row.line(column).chars().count());
                let usual = cells.filter(|width| *width <= LONG_SENTENCE).max();
                usual
                    .unwrap_or(0)
                    .max(self.columns[column].head().len())
                    .min(*natural)
            }
            _ => *natural,
        };
        natural.iter().enumerate().map(width).collect()
    }

    fn lay_out(
        &self,
        facts: &[usize],
        widths: &[usize],
        prose: &[usize],
        group: Option<usize>,
        screen: Option<usize>,
    ) -> String {
        let heads: Vec<String> = facts
            .iter()
            .map(|column| self.columns[*column].head().to_owned())
            .collect();
        let mut text = side_by_side(&heads, widths, false);
        let mut last_group = None;
        for row in &self.rows {
            if let Some(group) = group {
                let now = row.line(group);
                if last_group.as_ref() != Some(&now) {
                    let head = self.columns[group].head().to_lowercase();
                    text.push_str(&format!("{head} {now}\n"));
                    last_group = Some(now);
                }
            }
            let cells: Vec<String> = facts.iter().map(|column| row.line(*column)).collect();
            // Below a heading, a row of nothing but dashes says nothing.
            if group.is_none() || cells.iter().any(|cell| cell != "-") {
                let breaks = screen.is_some();
                text.push_str(&side_by_side(&cells, widths, breaks));
            }
            for column in prose {
                if let Column::Prose(_, label) = self.columns[*column] {
                    text.push_str(&below(label, &row.cells[*column], screen));
                }
            }
            for (depth, line) in &row.below {
                text.push_str(&wrap(&plain(line), INDENT * depth, screen));
            }
        }
        text
    }
}

/// What a screen of this width shows of a paragraph; later lines are set in.
pub(super) fn paragraph(text: &str, screen: Option<usize>) -> String {
    wrap(&plain(text), 0, screen)
}

/// How wide standard output is: as wide as the terminal, else as `COLUMNS` says; `None`: without limit.
pub(super) fn screen_width() -> Option<usize> {
    let stdout = std::io::stdout();
    let of_terminal = stdout
        .is_terminal()
        .then(|| tcgetwinsize(&stdout).ok().map(|size| usize::from(size.ws_col)))
        .flatten();
    let said = || std::env::var("COLUMNS").ok()?.parse().ok();
    of_terminal
        .filter(|columns| *columns > 0)
        .or_else(said)
        .filter(|columns| *columns > 0)
}

/// A whole screen, drawn over the last one. What does not fit is left out, with what to do about it.
pub(super) fn over_the_last(text: &str, is_first: bool, if_too_long: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    let left;
    if let Some(height) = screen_height().filter(|height| *height > 1 && lines.len() >= *height) {
        let hidden = lines.len() - (height - 2);
        lines.truncate(height - 2);
        left = format!("... {}: {if_too_long}", counted(hidden as u64, "more line"));
        lines.push(&left);
    }
    let clear = if is_first { "\u{1b}[2J" } else { "" };
    // Cleared before it is written: at the end of a line as wide as the screen, that would take its last letter.
    let lines: Vec<String> = lines.iter().map(|line| format!("\u{1b}[2K{line}\n")).collect();
    format!("{clear}\u{1b}[H{}\u{1b}[J", lines.concat())
}

/// How many lines the terminal has, if standard output is one.
fn screen_height() -> Option<usize> {
    let stdout = std::io::stdout();
    let size = tcgetwinsize(&stdout).ok().filter(|_| stdout.is_terminal())?;
    Some(usize::from(size.ws_row)).filter(|rows| *rows > 0)
}

/// Names and reasons are written by others: no line break and no escape code of theirs reaches the screen.
fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

fn total(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1)
}

/// Makes the widest column narrower until all fit, or until none can be made narrower.
fn shrink(widths: &mut [usize], screen: usize) {
    while total(widths) > screen {
        let Some(widest) = widths.iter_mut().max().filter(|widest| **widest > NARROWEST) else {
            return;
        };
        *widest -= 1;
    }
}

/// Cells beside each other; one that is too long goes on below itself. The first is a name, which is not broken but gets a
/// line of its own.
fn side_by_side(cells: &[String], widths: &[usize], breaks: bool) -> String {
    let mut columns: Vec<Vec<String>> = cells
        .iter()
        .zip(widths)
        .map(|(cell, width)| {
            if breaks {
                pieces(cell, *width)
            } else {
                vec![cell.clone()]
            }
        })
        .collect();
    let mut text = String::new();
    if let (Some(name), Some(first)) = (cells.first(), columns.first_mut())
        && first.len() > 1
    {
        text = format!("{name}\n");
        first.clear();
    }
    let height = columns.iter().map(Vec::len).max().unwrap_or_default();
    for line in 0..height {
        let padded: Vec<String> = columns
            .iter()
            .zip(widths)
            .map(|(column, width)| {
                let cell = column.get(line).map(String::as_str).unwrap_or_default();
                format!("{cell:<width$}")
            })
            .collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A cell in pieces of at most this many characters, broken after `,`, `.`, `/`, `:`, `-` or a space where there is one.
fn pieces(cell: &str, width: usize) -> Vec<String> {
    let mut left: Vec<char> = cell.chars().collect();
    let mut pieces = Vec::new();
    while left.len() > width.max(1) {
        let fits = &left[..width.max(1)];
        let at = fits
            .iter()
            .rposition(|c| ",./:- ".contains(*c))
            .map_or(fits.len(), |at| at + 1);
        let rest = left.split_off(at);
        pieces.push(left.iter().collect::<String>().trim_end().to_owned());
        left = rest;
    }
    pieces.push(left.iter().collect());
    pieces
}

/// A cell that was moved below its row. An empty one has no line.
fn below(label: &str, parts: &[Part], screen: Option<usize>) -> String {
    let said = |part: &&Part| !matches!(part.as_str(), "" | "-");
    let mut text = String::new();
    for (number, part) in parts.iter().filter(said).enumerate() {
        let label = match label {
            "" => String::new(),
            _ if number > 0 => String::new(),
            label => format!("{label}: "),
        };
        let indent = if number == 0 { INDENT } else { 2 * INDENT };
        text.push_str(&match part {
            Part::Text(words) => wrap(&format!("{label}{}", plain(words)), indent, screen),
            Part::Command(command) => {
                let units = format!("{label}{}", flags_with_values(&plain(command)));
                wrap_with(&units, indent, screen, " \\").replace(UNBROKEN, " ")
            }
        });
    }
    text
}

/// A flag and its value stay on one line.
fn flags_with_values(command: &str) -> String {
    let mut text = String::new();
    let mut is_after_flag = false;
    for word in command.split(' ') {
        let is_flag = word.starts_with("--");
        if !text.is_empty() {
            text.push(if is_after_flag && !is_flag { UNBROKEN } else { ' ' });
        }
        text.push_str(word);
        is_after_flag = is_flag;
    }
    text
}

fn wrap(text: &str, indent: usize, screen: Option<usize>) -> String {
    wrap_with(text, indent, screen, "")
}

/// Lines of whole words; a word that is longer than the screen is left whole, so that it can be copied.
fn wrap_with(text: &str, indent: usize, screen: Option<usize>, at_break: &str) -> String {
    let room = screen.map_or(usize::MAX, |screen| screen.saturating_sub(at_break.len()));
    let mut lines = Vec::new();
    let mut line = " ".repeat(indent);
    let mut is_empty = true;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let length = line.chars().count() + usize::from(!is_empty) + word.chars().count();
        if !is_empty && length > room {
            lines.push(format!("{line}{at_break}"));
            line = " ".repeat(indent + INDENT);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    lines.push(line);
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests;
