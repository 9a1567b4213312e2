//! A YAML document as a tree that knows the line of every key, built from the parser's events.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use granit_parser::{Event, Parser, ScalarStyle};

/// More merged mappings (`<<`) than anybody writes by hand; without a bound a chain of them takes exponential time.
const MERGES: usize = 64;

/// One document.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) root: Rc<Node>,
    /// How many nodes it has, aliases counted once: what a walk may visit at most.
    pub(super) nodes: usize,
    pub(super) duplicates: Vec<Duplicate>,
    /// Line and column of each key that is a collection: `{{ .Values.x }}` reads as one.
    pub(super) collection_keys: Vec<(usize, usize)>,
}

/// A key that stands twice in one mapping.
#[derive(Debug)]
pub(super) struct Duplicate {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) first: usize,
}

/// Text that is not YAML.
#[derive(Debug)]
pub(super) struct Malformed {
    pub(super) line: usize,
    /// Counted from 1, in characters.
    pub(super) column: usize,
    pub(super) message: String,
}

/// A value and the lines it covers.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) last_line: usize,
    /// Counted from 1, in characters.
    pub(super) column: usize,
    /// Where it stands in the text that was parsed, in bytes.
    pub(super) bytes: Range<usize>,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    Text {
        text: String,
        /// Kubernetes takes it for a string; `true`, `1` and null (an empty text) without quotes are not strings.
        is_string: bool,
        style: ScalarStyle,
    },
    Map(HashMap<String, Entry>),
    List(Vec<Rc<Node>>),
}

#[derive(Debug)]
pub(super) struct Entry {
    /// Where the key stands.
    pub(super) line: usize,
    pub(super) key: Rc<Node>,
    pub(super) value: Rc<Node>,
}

impl Node {
    /// The entry of this key; that of a merged mapping if the mapping itself has none.
    pub(super) fn get(&self, key: &str) -> Option<&Entry> {
        let mut pending = vec![self];
        for _ in 0..MERGES {
            let node = pending.pop()?;
            match &node.content {
                Content::Map(map) => {
                    if let Some(entry) = map.get(key) {
                        return Some(entry);
                    }
                    pending.extend(map.get("<<").map(|merged| &*merged.value));
                }
                // Of several merged mappings the first wins.
                Content::List(merged) => pending.extend(merged.iter().rev().map(|node| &**node)),
                Content::Text { .. } => {}
            }
        }
        None
    }

    pub(super) fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Text { text, .. } => Some(text),
            _ => None,
        }
    }

    pub(super) fn list(&self) -> Option<&[Rc<Node>]> {
        match &self.content {
            Content::List(items) => Some(items),
            _ => None,
        }
    }
}

/// Reads the documents in `text`, whose first line has the number `first_line`. What was read before an error counts.
pub(super) fn parse(text: &str, first_line: usize) -> (Vec<Document>, Option<Malformed>) {
    let mut builder = Builder::default();
    let (mut rest, mut line) = (text, first_line);
    loop {
        let before = builder.documents.len();
        match builder.read(rest, line, text.len() - rest.len()) {
            Ok(()) => return (builder.documents, None),
            Err(failure) => {
                // kubectl also takes JSON objects one after the other, which is not YAML.
                let next = failure.offset.and_then(|at| rest.get(at..));
                let next = next.filter(|next| next.starts_with('{') && builder.documents.len() > before);
                let Some(next) = next else {
                    return (builder.documents, Some(failure.malformed));
                };
                (rest, line) = (next, failure.malformed.line);
            }
        }
    }
}

struct Failure {
    malformed: Malformed,
    /// Where in the text, if the parser knows.
    offset: Option<usize>,
}

#[derive(Default)]
struct Builder {
    documents: Vec<Document>,
    open: Vec<Open>,
    anchors: HashMap<usize, Rc<Node>>,
    duplicates: Vec<Duplicate>,
    collection_keys: Vec<(usize, usize)>,
    nodes: usize,
}

/// A collection whose end was not seen yet.
struct Open {
    at: Extent,
    anchor: usize,
    content: Content,
    /// A mapping's key that waits for its value.
    key: Option<Rc<Node>>,
}

/// From where to where something stands.
#[derive(Clone, Debug)]
struct Extent {
    line: usize,
    last_line: usize,
    column: usize,
    bytes: Range<usize>,
}

impl Builder {
    fn read(&mut self, text: &str, first_line: usize, first_byte: usize) -> Result<(), Failure> {
        let options = granit_parser::options! { emit_comments: false };
        let line = |marker: granit_parser::Marker| first_line + marker.line().saturating_sub(1);
        self.open.clear();
        for event in Parser::new_from_str_with_options(text, options) {
            let (event, span) = event.map_err(|error| Failure {
                malformed: Malformed {
                    line: line(*error.marker()),
                    column: error.marker().col() + 1,
                    message: error.info(),
                },
                offset: error.marker().byte_offset(),
            })?;
            let bytes = span.byte_range().unwrap_or_default();
            let at = Extent {
                line: line(span.start),
                last_line: line(span.end),
                column: span.start.col() + 1,
                bytes: first_byte + bytes.start..first_byte + bytes.end,
            };
            let added = self.add(event, at);
            added.map_err(|malformed| Failure {
                malformed,
                offset: None,
            })?;
        }
        Ok(())
    }

    fn add(&mut self, event: Event<'_>, at: Extent) -> Result<(), Malformed> {
        match event {
            Event::DocumentStart(..) => {
                self.anchors.clear();
                self.duplicates.clear();
                self.collection_keys.clear();
                self.nodes = 0;
            }
            Event::Scalar(text, style, anchor, tag) => {
                let tagged = tag.is_some_and(|tag| tag.is_yaml_core_schema_tag("str"));
                let is_string = tagged || style != ScalarStyle::Plain || !is_other_scalar(&text);
                // Nothing at all after a key is `~` to the parser; all spellings of null are the empty text here.
                let null = !is_string && matches!(&*text, "~" | "null" | "Null" | "NULL");
                let text = if null { String::new() } else { text.into_owned() };
                let content = Content::Text {
                    text,
                    is_string,
                    style,
                };
                self.complete(anchor, at, content);
            }
            Event::MappingStart(_, anchor, _) => self.start(at, anchor, Content::Map(HashMap::new())),
            Event::SequenceStart(_, anchor, _) => self.start(at, anchor, Content::List(Vec::new())),
            Event::MappingEnd | Event::SequenceEnd => {
                if let Some(open) = self.open.pop() {
                    let whole = Extent {
                        last_line: at.last_line,
                        bytes: open.at.bytes.start..at.bytes.end,
                        ..open.at
                    };
                    self.complete(open.anchor, whole, open.content);
                }
            }
            Event::Alias(id) => {
                // The anchor of a collection counts from its end on, so that no tree contains itself.
                let Some(node) = self.anchors.get(&id).cloned() else {
                    return Err(Malformed {
                        line: at.line,
                        column: at.column,
                        message: "an alias stands inside the very node that it names".to_owned(),
                    });
                };
                self.place(node);
            }
            _ => {}
        }
        Ok(())
    }

    fn start(&mut self, at: Extent, anchor: usize, content: Content) {
        self.open.push(Open {
            at,
            anchor,
            content,
            key: None,
        });
    }

    fn complete(&mut self, anchor: usize, at: Extent, content: Content) {
        self.nodes += 1;
        let node = Rc::new(Node {
            line: at.line,
            last_line: at.last_line,
            column: at.column,
            bytes: at.bytes,
            content,
        });
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        self.place(node);
    }

    fn place(&mut self, node: Rc<Node>) {
        let Some(open) = self.open.last_mut() else {
            self.documents.push(Document {
                root: node,
                nodes: self.nodes,
                duplicates: std::mem::take(&mut self.duplicates),
                collection_keys: std::mem::take(&mut self.collection_keys),
            });
            return;
        };
        match &mut open.content {
            Content::List(items) => items.push(node),
            Content::Map(map) => match open.key.take() {
                None => open.key = Some(node),
                Some(key) => {
                    if let Some(text) = key.text().map(str::to_owned) {
                        let (line, column) = (key.line, key.column);
                        let entry = Entry {
                            line,
                            key,
                            value: node,
                        };
                        if let Some(before) = map.insert(text.clone(), entry) {
                            self.duplicates.push(Duplicate {
                                key: text,
                                line,
                                column,
                                first: before.line,
                            });
                        }
                    } else {
                        self.collection_keys.push((key.line, key.column));
                    }
                }
            },
            Content::Text { .. } => {} // never opened
        }
    }
}

/// Whether a scalar without quotes is a null, a boolean or a number, as the YAML library of Kubernetes reads it (1.1).
fn is_other_scalar(plain: &str) -> bool {
    let word = matches!(
        plain.to_ascii_lowercase().as_str(),
        "" | "~" | "null" | "true" | "false" | "yes" | "no" | "on" | "off" | "y" | "n" | ".inf" | ".nan"
    );
    let number = plain.trim_start_matches(['+', '-']);
    let digit_first = number
        .trim_start_matches('.')
        .starts_with(|c: char| c.is_ascii_digit());
    let radix = ["0x", "0o", "0b"].iter().any(|prefix| {
        number.strip_prefix(prefix).is_some_and(|digits| {
            !digits.is_empty() && digits.chars().all(|c| c.is_ascii_hexdigit() || c == '_')
        })
    });
    word || radix || (digit_first && number.replace('_', "").parse::<f64>().is_ok())
}

#[cfg(test)]
mod tests;
