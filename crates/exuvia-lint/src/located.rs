//! Documents as JSON values that know where each of their fields stands, for those who check or convert manifests.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use granit_parser::ScalarStyle;
use serde_json::{Map, Number, Value};

use super::document;
use super::yaml::{self, Content, Node};
use super::{Error, Input, input};

/// More values than any manifest has; aliases of aliases multiply without end.
const MAX_VALUES: usize = 1_000_000;

/// A file, taken apart.
#[derive(Debug)]
pub struct Stream {
    /// The file, or `<stdin>`.
    pub file: String,
    /// What it holds; `None`: it is not text in UTF-8, and has no pieces.
    pub text: Option<String>,
    /// What is between its `---` lines, without pieces that hold nothing.
    pub pieces: Vec<StreamPiece>,
}

/// What is between two `---` lines.
#[derive(Debug)]
pub struct StreamPiece {
    /// Where it stands in the text, with the `---` above it.
    pub bytes: Range<usize>,
    /// Its first line, counted from 1.
    pub line: usize,
    /// Its documents: one, except where JSON objects follow each other.
    pub documents: Vec<Located>,
    /// If it is not valid YAML: where, and why.
    pub malformed: Option<(Place, String)>,
}

/// A document that knows where its fields stand.
#[derive(Clone, Debug)]
pub struct Located {
    root: Rc<Node>,
    /// Where the piece begins in the text of the stream.
    start: usize,
    duplicates: Rc<[DuplicateKey]>,
    template: Option<Place>,
}

/// A key that stands twice in one mapping: the last one wins, and what the first one says is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuplicateKey {
    /// The key.
    pub key: String,
    /// Where it stands again.
    pub place: Place,
    /// The line in which it stands first.
    pub first_line: usize,
}

/// One step of a path to a field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Segment {
    /// A key of a mapping.
    Key(String),
    /// An element of a list, counted from 0.
    Index(usize),
}

/// A place in a file, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

/// A text, number or the like as it stands in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalar {
    /// Where it stands in the text of the stream.
    pub bytes: Range<usize>,
    /// It stands in one line, without quotes.
    pub is_plain: bool,
}

/// A document has more values than can be handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its aliases multiply to more than {MAX_VALUES} values")]
pub struct TooLarge;

/// Reads files, directories and streams document by document.
///
/// ```
/// use exuvia_lint::{Input, Segment, streams};
///
/// let bytes = b"kind: Widget\nspec:\n  size: 3\n".to_vec();
/// let found = streams(&[Input::Bytes { name: "a.yaml".into(), bytes }])?;
/// let document = &found[0].pieces[0].documents[0];
/// assert_eq!(document.value().unwrap()["spec"]["size"], 3);
/// let place = document.place(&[Segment::Key("spec".into()), Segment::Key("size".into())]);
/// assert_eq!((place.line, place.column), (3, 9));
/// # Ok::<(), exuvia_lint::Error>(())
/// ```
pub fn streams(inputs: &[Input]) -> Result<Vec<Stream>, Error> {
    let mut found = Vec::new();
    let mut files = input::Files::default();
    for input in inputs {
        files.read(input, &mut |file, bytes| found.push(Stream::new(file, bytes)))?;
    }
    Ok(found)
}

impl Stream {
    fn new(file: &str, bytes: Vec<u8>) -> Self {
        let mut stream = Self {
            file: file.to_owned(),
            text: String::from_utf8(bytes).ok(),
            pieces: Vec::new(),
        };
        if let Some(text) = &stream.text {
            stream.pieces = document::pieces(text)
                .map(|piece| StreamPiece::new(&piece))
                .collect();
        }
        stream
    }
}

impl StreamPiece {
    fn new(piece: &document::Piece<'_>) -> Self {
        let (documents, malformed) = yaml::parse(piece.text, piece.line);
        let located = |document: yaml::Document| Located {
            root: document.root,
            start: piece.start,
            duplicates: (document.duplicates.into_iter())
                .map(|duplicate| DuplicateKey {
                    key: duplicate.key,
                    place: Place {
                        line: duplicate.line,
                        column: duplicate.column,
                    },
                    first_line: duplicate.first,
                })
                .collect(),
            template: document
                .collection_keys
                .first()
                .map(|&(line, column)| Place { line, column }),
        };
        Self {
            bytes: piece.start..piece.start + piece.text.len(),
            line: piece.line,
            documents: documents.into_iter().map(located).collect(),
            malformed: malformed.map(|malformed| {
                let (line, column) = (malformed.line, malformed.column);
                (Place { line, column }, malformed.message)
            }),
        }
    }
}

impl Located {
    /// Where it begins.
    pub fn first(&self) -> Place {
        Place::of(&self.root)
    }

    /// Keys that stand twice in one mapping.
    pub fn duplicates(&self) -> &[DuplicateKey] {
        &self.duplicates
    }

    /// The first key that is a collection. Nobody writes one in a manifest: it is a template such as `{{ .Values.x }}` without
    /// quotes, which is valid YAML and holds nothing of what it will hold.
    pub fn template(&self) -> Option<Place> {
        self.template
    }

    /// The text at a key of the document itself.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.root.get(key)?.value.text()
    }

    /// The document as JSON: merged mappings are merged, and what Kubernetes takes for a string is one.
    pub fn value(&self) -> Result<Value, TooLarge> {
        value(&self.root, &mut 0)
    }

    /// The keys of the mapping at a path in the order in which they stand there.
    pub fn keys(&self, path: &[Segment]) -> Vec<String> {
        let Some(Content::Map(map)) = self.find(path).map(|node| &node.content) else {
            return Vec::new();
        };
        let by_place: BTreeMap<usize, &String> = map
            .iter()
            .map(|(key, entry)| (entry.key.bytes.start, key))
            .collect();
        by_place.into_values().cloned().collect()
    }

    /// Where a field stands, or the innermost of those around it that is there.
    pub fn place(&self, path: &[Segment]) -> Place {
        for length in (0..=path.len()).rev() {
            if let Some(node) = self.find(&path[..length]) {
                // A mapping begins below its key; people look for the key.
                let is_text = matches!(node.content, Content::Text { .. });
                return match self.key_node(&path[..length]).filter(|_| !is_text) {
                    Some(key) => Place::of(key),
                    None => Place::of(node),
                };
            }
        }
        self.first()
    }

    /// Where a key stands, if it is there.
    pub fn key_place(&self, path: &[Segment]) -> Option<Place> {
        self.key_node(path).map(Place::of)
    }

    /// Where a character of a text stands, given by its line and column in that text. `None` where that cannot be told, as in
    /// folded or escaped text.
    pub fn place_in(&self, path: &[Segment], (line, column): (usize, usize), stream: &str) -> Option<Place> {
        let node = self.find(path)?;
        let Content::Text { text, style, .. } = &node.content else {
            return None;
        };
        let raw = stream.get(self.start + node.bytes.start..self.start + node.bytes.end)?;
        match style {
            ScalarStyle::Literal => literal(node, text, stream, self.start).map(|(first, indent)| Place {
                line: first + line - 1,
                column: indent + column,
            }),
            ScalarStyle::Folded => None,
            _ if line > 1 || raw.contains(['\n', '\\']) => None,
            ScalarStyle::Plain => Some(Place {
                line: node.line,
                column: node.column + column - 1,
            }),
            ScalarStyle::SingleQuoted if raw[1..raw.len().max(2) - 1].contains('\'') => None,
            _ => Some(Place {
                line: node.line,
                column: node.column + column,
            }),
        }
    }

    /// The text, number or the like at a path, as it stands in the file.
    pub fn scalar(&self, path: &[Segment]) -> Option<Scalar> {
        self.as_scalar(self.find(path)?)
    }

    /// The last key of a path, as it stands in the file.
    pub fn key(&self, path: &[Segment]) -> Option<Scalar> {
        self.as_scalar(self.key_node(path)?)
    }

    fn as_scalar(&self, node: &Node) -> Option<Scalar> {
        match &node.content {
            Content::Text { style, .. } => Some(Scalar {
                bytes: self.start + node.bytes.start..self.start + node.bytes.end,
                is_plain: *style == ScalarStyle::Plain && node.line == node.last_line,
            }),
            _ => None,
        }
    }

    fn key_node(&self, path: &[Segment]) -> Option<&Node> {
        let (Segment::Key(key), parents) = path.split_last()? else {
            return None;
        };
        Some(&self.find(parents)?.get(key)?.key)
    }

    fn find(&self, path: &[Segment]) -> Option<&Node> {
        path.iter().try_fold(&*self.root, |node, segment| match segment {
            Segment::Key(key) => Some(&*node.get(key)?.value),
            Segment::Index(index) => Some(&**node.list()?.get(*index)?),
        })
    }
}

/// In which line a literal block's text begins, and how far it is indented. Told by its first line that is not empty: the
/// parser counts from the text or from the `|` above it.
fn literal(node: &Node, text: &str, stream: &str, start: usize) -> Option<(usize, usize)> {
    let is_filled = |line: &str| !line.trim().is_empty();
    let indent_of = |line: &str| line.len() - line.trim_start_matches(' ').len();
    let (empty, filled) = text.lines().enumerate().find(|(_, line)| is_filled(line))?;
    let at = start + node.bytes.start;
    let begin = stream.get(..at)?.rfind('\n').map_or(0, |end| end + 1);
    let skipped = usize::from(stream.get(at..)?.starts_with('|'));
    let mut lines = stream.get(begin..)?.lines().enumerate().skip(skipped);
    let (number, line) = lines.find(|(_, line)| is_filled(line))?;
    let indent = indent_of(line).checked_sub(indent_of(filled))?;
    Some(((node.line + number).checked_sub(empty)?, indent))
}

impl Place {
    fn of(node: &Node) -> Self {
        Self {
            line: node.line,
            column: node.column,
        }
    }
}

fn value(node: &Node, values: &mut usize) -> Result<Value, TooLarge> {
    *values += 1;
    if *values > MAX_VALUES {
        return Err(TooLarge);
    }
    Ok(match &node.content {
        Content::Text {
            text,
            is_string: true,
            ..
        } => Value::String(text.clone()),
        Content::Text { text, .. } => other_scalar(text),
        Content::List(items) => {
            let items: Result<_, _> = items.iter().map(|item| value(item, values)).collect();
            Value::Array(items?)
        }
        Content::Map(entries) => {
            let mut map = Map::new();
            if let Some(merged) = entries.get("<<") {
                let merged: Vec<&Node> = match &merged.value.content {
                    // Of several merged mappings the first wins.
                    Content::List(items) => items.iter().rev().map(|item| &**item).collect(),
                    _ => vec![&merged.value],
                };
                for merged in merged {
                    if let Value::Object(merged) = value(merged, values)? {
                        map.extend(merged);
                    }
                }
            }
            for (key, entry) in entries.iter().filter(|(key, _)| *key != "<<") {
                map.insert(key.clone(), value(&entry.value, values)?);
            }
            Value::Object(map)
        }
    })
}

/// A scalar that is not a string, as the YAML library of Kubernetes reads it (1.1).
fn other_scalar(text: &str) -> Value {
    match text.to_ascii_lowercase().as_str() {
        "" => return Value::Null,
        "true" | "yes" | "on" | "y" => return Value::Bool(true),
        "false" | "no" | "off" | "n" => return Value::Bool(false),
        _ => {}
    }
    let digits = text.replace('_', "");
    let (sign, bare) = match digits.strip_prefix('-') {
        Some(bare) => ("-", bare),
        None => ("", digits.strip_prefix('+').unwrap_or(&digits)),
    };
    let radix = |prefix: &str, radix: u32| {
        let digits = bare.strip_prefix(prefix).filter(|digits| !digits.is_empty())?;
        i64::from_str_radix(&format!("{sign}{digits}"), radix).ok()
    };
    let integer = radix("0x", 16)
        .or_else(|| radix("0b", 2))
        .or_else(|| radix("0o", 8))
        .or_else(|| radix("0", 8))
        .map(Number::from)
        .or_else(|| format!("{sign}{bare}").parse::<i64>().ok().map(Number::from))
        .or_else(|| {
            bare.parse::<u64>()
                .ok()
                .filter(|_| sign.is_empty())
                .map(Number::from)
        });
    let float = || digits.parse::<f64>().ok().and_then(Number::from_f64);
    match integer.or_else(float) {
        Some(number) => Value::Number(number),
        // Not a number after all, such as .inf, which JSON does not have.
        None => Value::String(text.to_owned()),
    }
}

#[cfg(test)]
mod tests;
