//! The text of a converted document: as little as possible is changed, and what comes out is read again before it counts.

use std::ops::Range;

use exuvia_lint::{Input, Located, Segment, streams};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::{Map, Value};

/// A document's new text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rewritten {
    pub(super) text: String,
    pub(super) loses_comments: bool,
}

/// A place in the text, and what comes there.
type Edit = (Range<usize>, String);

/// The text of a document that becomes these objects. `start` is where `before` begins in its file.
pub(super) fn rewrite(
    before: &str,
    start: usize,
    located: &Located,
    value: &Value,
    becomes: &[Value],
) -> Result<Rewritten, String> {
    if let [only] = becomes {
        let mut edits = Vec::new();
        if edit(located, &mut Vec::new(), value, only, &mut edits)
            && let Some(text) = applied(before, start, edits)
            && read_again(&text).as_deref() == Some(becomes)
        {
            return Ok(Rewritten {
                text,
                loses_comments: false,
            });
        }
    }
    let (head, body) = before.split_at(head_of(before));
    let text = format!("{head}{}", emitted(body, located, becomes)?);
    let text = if before.contains("\r\n") {
        text.replace("\r\n", "\n").replace('\n', "\r\n")
    } else {
        text
    };
    if read_again(&text).as_deref() != Some(becomes) {
        return Err("it cannot be written as YAML that reads the same: convert it by hand".to_owned());
    }
    Ok(Rewritten {
        loses_comments: has_comments(body),
        text,
    })
}

/// What a text holds, as Kubernetes reads it.
fn read_again(text: &str) -> Option<Vec<Value>> {
    let bytes = text.as_bytes().to_vec();
    let read = streams(&[Input::Bytes {
        name: String::new(),
        bytes,
    }]);
    let stream = read.ok()?.pop()?;
    let is_fine = stream.pieces.iter().all(|piece| piece.malformed.is_none());
    let documents = stream.pieces.iter().flat_map(|piece| &piece.documents);
    documents
        .map(|document| document.value().ok())
        .collect::<Option<Vec<Value>>>()
        .filter(|_| is_fine)
}

/// The edits that make one value the other, where scalars and names of fields are all that differs.
fn edit(located: &Located, path: &mut Vec<Segment>, old: &Value, new: &Value, edits: &mut Vec<Edit>) -> bool {
    match (old, new) {
        (old, new) if old == new => true,
        (Value::Object(old), Value::Object(new)) => edit_mapping(located, path, old, new, edits),
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            old.iter().zip(new).enumerate().all(|(index, (old, new))| {
                path.push(Segment::Index(index));
                let done = edit(located, path, old, new, edits);
                path.pop();
                done
            })
        }
        (Value::Object(_) | Value::Array(_), _) | (_, Value::Object(_) | Value::Array(_)) => false,
        (_, new) => {
            let scalar = located.scalar(path);
            let edit = scalar.and_then(|scalar| Some((scalar.bytes, written(new, scalar.is_plain)?)));
            edits.extend(edit.clone());
            edit.is_some()
        }
    }
}

fn edit_mapping(
    located: &Located,
    path: &mut Vec<Segment>,
    old: &Map<String, Value>,
    new: &Map<String, Value>,
    edits: &mut Vec<Edit>,
) -> bool {
    let mut gone: Vec<&String> = old.keys().filter(|key| !new.contains_key(*key)).collect();
    let come: Vec<&String> = new.keys().filter(|key| !old.contains_key(*key)).collect();
    if gone.len() != come.len() {
        return false;
    }
    let mut pairs: Vec<(&String, &String)> = old
        .keys()
        .filter(|key| new.contains_key(*key))
        .map(|key| (key, key))
        .collect();
    // A key that went and one that came with the same value are one that was renamed; so are the last of both, which may have
    // another value as well.
    for key in come {
        let same = gone.iter().position(|before| old[*before] == new[key]);
        let Some(at) = same.or_else(|| (gone.len() == 1).then_some(0)) else {
            return false;
        };
        let before = gone.remove(at);
        path.push(Segment::Key(before.clone()));
        let place = located.key(path);
        path.pop();
        let name = Value::String(key.clone());
        let edit = place.and_then(|place| Some((place.bytes, written(&name, place.is_plain)?)));
        let Some(edit) = edit else {
            return false;
        };
        edits.push(edit);
        pairs.push((before, key));
    }
    pairs.into_iter().all(|(before, after)| {
        path.push(Segment::Key(before.clone()));
        let done = edit(located, path, &old[before], &new[after], edits);
        path.pop();
        done
    })
}

/// A scalar, in quotes if the one before was.
fn written(value: &Value, is_plain: bool) -> Option<String> {
    if !is_plain {
        return serde_json::to_string(value).ok(); // JSON is YAML
    }
    let text = serde_saphyr::to_string(value).ok()?;
    let text = text.trim_end();
    (!text.contains('\n') && !text.is_empty()).then(|| text.to_owned())
}

fn applied(before: &str, start: usize, mut edits: Vec<Edit>) -> Option<String> {
    edits.sort_by_key(|(bytes, _)| bytes.start);
    let mut text = before.to_owned();
    for (bytes, new) in edits.into_iter().rev() {
        let place = bytes.start.checked_sub(start)?..bytes.end.checked_sub(start)?;
        text.get(place.clone())?;
        text.replace_range(place, &new);
    }
    Some(text)
}

/// How long the beginning is that holds no document yet: the mark, comments, empty lines.
fn head_of(text: &str) -> usize {
    let is_void = |line: &&str| {
        let line = line.trim();
        line.is_empty() || line == "---" || line.starts_with(['#', '%'])
    };
    text.split_inclusive('\n').take_while(is_void).map(str::len).sum()
}

fn has_comments(text: &str) -> bool {
    text.lines()
        .any(|line| line.trim_start().starts_with('#') || line.contains(" #"))
}

/// The objects as text of the same kind, JSON or YAML.
fn emitted(body: &str, located: &Located, becomes: &[Value]) -> Result<String, String> {
    let is_json = body.trim_start().starts_with('{');
    let mut documents = Vec::new();
    for object in becomes {
        let ordered = Ordered {
            value: object,
            located,
            path: Vec::new(),
        };
        documents.push(if is_json {
            serde_json::to_string_pretty(&ordered).map_err(|error| error.to_string())? + "\n"
        } else {
            serde_saphyr::to_string(&ordered).map_err(|error| error.to_string())?
        });
    }
    Ok(documents.join("---\n"))
}

/// A value whose keys come in the order of the document that it was made from; new ones follow.
struct Ordered<'a> {
    value: &'a Value,
    located: &'a Located,
    path: Vec<Segment>,
}

impl Ordered<'_> {
    fn below<'b>(&'b self, segment: Segment, value: &'b Value) -> Ordered<'b> {
        let mut path = self.path.clone();
        path.push(segment);
        Ordered {
            value,
            located: self.located,
            path,
        }
    }
}

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.value {
            Value::Object(fields) => {
                let order = self.located.keys(&self.path);
                let mut keys: Vec<&String> = fields.keys().collect();
                let place = |key: &&String| {
                    order
                        .iter()
                        .position(|before| before == *key)
                        .unwrap_or(usize::MAX)
                };
                keys.sort_by_key(place);
                let mut map = serializer.serialize_map(Some(keys.len()))?;
                for key in keys {
                    map.serialize_entry(key, &self.below(Segment::Key(key.clone()), &fields[key]))?;
                }
                map.end()
            }
            Value::Array(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for (index, item) in items.iter().enumerate() {
                    list.serialize_element(&self.below(Segment::Index(index), item))?;
                }
                list.end()
            }
            scalar => scalar.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rewritten(text: &str, change: impl Fn(&mut Value)) -> Rewritten {
        let stream = streams(&[Input::Bytes {
            name: "a.yaml".into(),
            bytes: text.as_bytes().to_vec(),
        }]);
        let piece = &stream.expect("it is read")[0].pieces[0];
        let located = &piece.documents[0];
        let value = located.value().expect("a value");
        let mut becomes = value.clone();
        change(&mut becomes);
        rewrite(
            &text[piece.bytes.clone()],
            piece.bytes.start,
            located,
            &value,
            &[becomes],
        )
        .expect("it is written")
    }

    #[test]
    fn names_and_scalars_change_in_their_place_and_comments_stay() {
        let text = "---\n# top\napiVersion: old.dev/v1 # why\nkind: 'Widget'\nmetadata:\n  labels: {old.dev/a: \"x\"}\nspec:\n  size: 3 # big\n";
        let found = rewritten(text, |value| {
            value["apiVersion"] = json!("new.dev/v2");
            value["kind"] = json!("Gadget");
            value["metadata"]["labels"] = json!({"new.dev/a": "x"});
            value["spec"] = json!({"width": -4});
        });
        let expected = "---\n# top\napiVersion: new.dev/v2 # why\nkind: \"Gadget\"\nmetadata:\n  labels: {new.dev/a: \"x\"}\nspec:\n  width: -4 # big\n";
        assert_eq!(found.text, expected);
        assert!(!found.loses_comments);
    }

    #[test]
    fn more_is_written_again_in_the_order_of_the_source_and_says_so() {
        let text = "# top\nkind: Widget\napiVersion: old.dev/v1\nspec:\n  z: 'yes' # why\n  a: [1, 2]\n";
        let found = rewritten(text, |value| {
            value["apiVersion"] = json!("new.dev/v1");
            value["spec"]["b"] = json!({"c": "on", "d": "0x10", "e": "multi\nline\n"});
        });
        assert!(found.loses_comments);
        let order: Vec<usize> = [
            "# top",
            "kind: Widget",
            "apiVersion: new.dev/v1",
            "z: ",
            "a:",
            "b:",
        ]
        .iter()
        .map(|part| {
            found
                .text
                .find(part)
                .unwrap_or_else(|| panic!("{part} in {}", found.text))
        })
        .collect();
        assert!(order.is_sorted(), "{}", found.text);
    }

    #[test]
    fn json_stays_json_and_line_ends_stay_what_they_are() {
        let json = rewritten("{\"apiVersion\": \"old.dev/v1\", \"spec\": {}}\n", |value| {
            value["spec"] = json!({"a": 1});
        });
        assert!(json.text.starts_with("{\n"), "{}", json.text);
        let windows = rewritten("apiVersion: old.dev/v1\r\nspec: {}\r\n", |value| {
            value["spec"] = json!({"a": 1});
        });
        assert!(
            windows.text.contains("\r\n") && !windows.text.replace("\r\n", "").contains('\n'),
            "{:?}",
            windows.text
        );
    }

    #[test]
    fn an_alias_is_not_edited_where_it_was_defined() {
        let text = "a: &x 1\nb: *x\n";
        let found = rewritten(text, |value| value["b"] = json!(2));
        assert_eq!(read_again(&found.text), Some(vec![json!({"a": 1, "b": 2})]));
    }
}
