//! Takes a stream apart into its documents, so that one bad document does not hide the others.

/// A piece of a stream between two `---` lines.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    pub(super) text: &'a str,
    /// Where it begins in the stream, in bytes.
    pub(super) start: usize,
    /// The number of its first line in the stream.
    pub(super) line: usize,
    /// The file it was rendered from, where Helm says so (`# Source: …`).
    pub(super) source: Option<&'a str>,
}

/// The stream as text, if it is UTF-8 or begins with the mark of UTF-16, as a redirect in `PowerShell` writes it.
pub(super) fn decode(bytes: Vec<u8>) -> Result<String, Vec<u8>> {
    let utf16 = |of: fn([u8; 2]) -> u16, bytes: &[u8]| {
        let (pairs, rest) = bytes.as_chunks::<2>();
        let units = pairs.iter().map(|pair| of(*pair));
        let text: Option<String> = char::decode_utf16(units).map(Result::ok).collect();
        text.filter(|_| rest.is_empty())
    };
    let decoded = match bytes.as_slice() {
        [0xff, 0xfe, rest @ ..] => utf16(u16::from_le_bytes, rest),
        [0xfe, 0xff, rest @ ..] => utf16(u16::from_be_bytes, rest),
        _ => return String::from_utf8(bytes).map_err(std::string::FromUtf8Error::into_bytes),
    };
    decoded.ok_or(bytes)
}

/// Cuts at `---` lines: YAML lets no such line stand inside a document, not even in a block of text. Empty pieces are
/// left out.
pub(super) fn pieces(text: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut cuts = vec![(0, 1)];
    let mut offset = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if offset > 0 && is_marker(line) {
            cuts.push((offset, index + 1));
        }
        offset += line.len();
    }
    let ends: Vec<usize> = cuts
        .iter()
        .skip(1)
        .map(|(start, _)| *start)
        .chain([text.len()])
        .collect();
    cuts.into_iter()
        .zip(ends)
        .map(|((start, line), end)| {
            let text = text[start..end].trim_start_matches(BOM);
            let start = end - text.len();
            let source = text
                .lines()
                .take(5)
                .find_map(|line| line.strip_prefix("# Source: "));
            Piece {
                text,
                start,
                line,
                source: source.map(str::trim_end),
            }
        })
        .filter(|piece| !piece.text.lines().all(is_void))
}

/// Files that were joined carry their marks into the middle of the stream.
const BOM: char = '\u{feff}';

fn is_marker(line: &str) -> bool {
    line.trim_start_matches(BOM)
        .strip_prefix("---")
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

/// A line that makes no document by itself: a marker, a comment, a directive, nothing.
fn is_void(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line == "---" || line == "..." || line.starts_with(['#', '%'])
}

/// Whether text that does not parse seems to hold a CRD: a line such as `kind: CustomResourceDefinition`, also in JSON.
pub(super) fn mentions_crd(text: &str) -> bool {
    text.match_indices("CustomResourceDefinition").any(|(at, word)| {
        let after = &text[at + word.len()..];
        let after = after.strip_prefix("List").unwrap_or(after);
        let before = text[..at].trim_end_matches(['"', '\'', ' ', '\t']);
        let key = before
            .strip_suffix(':')
            .map(|key| key.trim_end_matches(['"', '\'', ' ', '\t']));
        key.is_some_and(|key| key.ends_with("kind")) && !after.starts_with(char::is_alphanumeric)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        pieces(text).map(|piece| piece.line).collect()
    }

    #[test]
    fn a_stream_is_cut_at_its_markers_only() {
        assert_eq!(lines("a: 1\n---\nb: 2\n--- # more\nc: 3\n"), [1, 2, 4]);
        assert_eq!(lines("---\r\na: 1\r\n---\r\nb: 2\r\n"), [1, 3]);
        assert_eq!(lines("a: |\n  ---\n  text\nb: ----\n"), [1]);
        assert_eq!(lines("# only a comment\n---\n---\n\n%YAML 1.2\n---\na: 1\n"), [6]);
        assert_eq!(lines("\u{feff}a: 1\n\u{feff}---\nb: 2\n"), [1, 2]);
        assert_eq!(lines(""), [0; 0]);
    }

    #[test]
    fn helm_says_where_a_document_came_from() {
        let text = "---\n# Source: chart/crds/a.yaml\r\na: 1\n---\nb: 2\n";
        let sources: Vec<_> = pieces(text).map(|piece| piece.source).collect();
        assert_eq!(sources, [Some("chart/crds/a.yaml"), None]);
    }

    #[test]
    fn a_kind_is_a_mention_and_other_uses_of_the_word_are_not() {
        for (text, expected) in [
            ("kind: CustomResourceDefinition\n{{ end }}", true),
            ("{\"kind\" : \"CustomResourceDefinition\"", true),
            ("kind: 'CustomResourceDefinition'", true),
            ("kind: CustomResourceDefinitionList", true),
            ("kind: CustomResourceDefinitionSpec", false),
            ("# a CustomResourceDefinition", false),
            ("resource: CustomResourceDefinition", false),
        ] {
            assert_eq!(mentions_crd(text), expected, "{text}");
        }
    }

    #[test]
    fn utf_16_is_read_and_other_bytes_are_handed_back() {
        let mut bytes = vec![0xff, 0xfe];
        bytes.extend("kind: ä".encode_utf16().flat_map(u16::to_le_bytes));
        assert_eq!(decode(bytes).as_deref(), Ok("kind: ä"));
        assert_eq!(decode(vec![0xfe, 0xff, 0, b'a']).as_deref(), Ok("a"));
        assert_eq!(decode(vec![0xff, 0xfe, 1]), Err(vec![0xff, 0xfe, 1]));
        assert_eq!(decode(vec![b'a', 0x80]), Err(vec![b'a', 0x80]));
    }
}
