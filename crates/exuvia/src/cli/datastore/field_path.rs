//! Paths of fields, such as `spec.mappings[0].name`, as texts and as steps.

use exuvia_lint::Segment;
use serde_json::Value;

/// A path as people write it: `spec.mappings[0].metadata.annotations["a.b/c"]`.
pub(super) fn segments(text: &str) -> Vec<Segment> {
    let mut found = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(bracket) = rest.strip_prefix('[') {
            let mut texts = serde_json::Deserializer::from_str(bracket).into_iter::<Value>();
            let key = texts.next().and_then(Result::ok);
            found.extend(match key {
                Some(Value::String(key)) => Some(Segment::Key(key)),
                Some(other) => other
                    .as_u64()
                    .and_then(|index| usize::try_from(index).ok())
                    .map(Segment::Index),
                None => None,
            });
            let end = bracket[texts.byte_offset()..].find(']');
            let end = end.map_or(bracket.len(), |end| texts.byte_offset() + end + 1);
            rest = &bracket[end..];
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            if end > 0 {
                found.push(Segment::Key(rest[..end].to_owned()));
            }
            rest = &rest[end..];
        }
        rest = rest.strip_prefix('.').unwrap_or(rest);
    }
    found
}

/// The opposite of [`segments`].
pub(super) fn shown(path: &[Segment]) -> String {
    let mut text = String::new();
    for segment in path {
        match segment {
            Segment::Index(index) => text.push_str(&format!("[{index}]")),
            Segment::Key(key) => {
                let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-$".contains(c);
                if !key.chars().all(is_plain) {
                    text.push_str(&format!("[{key:?}]"));
                } else if text.is_empty() {
                    text.push_str(key);
                } else {
                    text.push_str(&format!(".{key}"));
                }
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_they_are_written() {
        for text in [
            "spec.mappings[0].convert[12].value",
            "spec.mappings[0].metadata.annotations[\"a.b/c\"]",
            "metadata.labels[\"it\\\"s\"].x",
            "",
        ] {
            assert_eq!(shown(&segments(text)), text);
        }
    }
}
