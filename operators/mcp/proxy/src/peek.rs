//! Finds method and id of a JSON-RPC message in the first bytes of it, without waiting for the rest (pure).

use serde_json::Value;

/// A message whose method does not stand within so many bytes is not an `initialize`; and one whose id does not is answered without.
pub(crate) const MAX_PEEKED: usize = 64 * 1024;

/// A longer id is not repeated.
const MAX_ID: usize = 128;

/// What the bytes so far say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Peeked {
    /// The value of the top-level key `method`.
    Method(String),
    /// The message has none, or it is not one JSON object.
    NoMethod,
    /// The next bytes must say.
    More,
}

/// What the bytes so far say about the id of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PeekedId {
    /// As it was written, in JSON.
    Id(String),
    /// Nobody waits for an answer by id: a notification, an answer, a batch, not JSON, or an id that is not one.
    NoId,
    /// The next bytes must say.
    More,
}

/// Looks for the top-level key `method`.
pub(crate) fn method(bytes: &[u8]) -> Peeked {
    let mut method = None;
    let walked = Scan::new(bytes).members(|key, value| {
        method = (key == b"method").then_some(value);
        method.is_none()
    });
    match (method, walked) {
        (Some([b'"', text @ .., b'"']), _) => Peeked::Method(String::from_utf8_lossy(text).into_owned()),
        (None, Walked::Cut) if bytes.len() < MAX_PEEKED => Peeked::More,
        _ => Peeked::NoMethod,
    }
}

/// Looks for the id of a request: of a message that has a method as well. An answer of the client has an id, too, and that one is the
/// server's.
pub(crate) fn id(bytes: &[u8]) -> PeekedId {
    let (mut id, mut has_method) = (None, false);
    let walked = Scan::new(bytes).members(|key, value| {
        match key {
            b"id" => id = Some(value),
            b"method" => has_method = true,
            _ => {}
        }
        id.is_none() || !has_method
    });
    match (id, walked) {
        (Some(id), _) if has_method => valid_id(id).map_or(PeekedId::NoId, PeekedId::Id),
        (_, Walked::Cut) if bytes.len() < MAX_PEEKED => PeekedId::More,
        _ => PeekedId::NoId,
    }
}

/// A string or a number, as it was written.
fn valid_id(raw: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(raw)
        .ok()
        .filter(|text| text.len() <= MAX_ID)?;
    let value: Value = serde_json::from_str(text).ok()?;
    (value.is_string() || value.is_number()).then(|| text.to_owned())
}

/// How far the bytes reached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Walked {
    ToTheEnd,
    Cut,
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes: &bytes[..bytes.len().min(MAX_PEEKED)],
            at: 0,
        }
    }

    /// Walks over the members at the top, each with its value in JSON, while `goes_on` says so.
    fn members(mut self, goes_on: impl FnMut(&'a [u8], &'a [u8]) -> bool) -> Walked {
        self.walk(goes_on).map_or(Walked::Cut, |()| Walked::ToTheEnd)
    }

    /// `None`: the bytes ended.
    fn walk(&mut self, mut goes_on: impl FnMut(&'a [u8], &'a [u8]) -> bool) -> Option<()> {
        if self.next()? != b'{' {
            return Some(());
        }
        loop {
            match self.next()? {
                b',' => {}
                b'"' => {
                    let key = self.string()?;
                    if self.next()? != b':' {
                        return Some(());
                    }
                    let first = self.next()?;
                    let start = self.at - 1;
                    self.value(first)?;
                    let value = self.bytes[start..self.at].trim_ascii_end();
                    if !goes_on(key, value) {
                        return Some(());
                    }
                }
                _ => return Some(()), // the end of the object, or not JSON
            }
        }
    }

    /// The next byte that is not white space.
    fn next(&mut self) -> Option<u8> {
        loop {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            if !byte.is_ascii_whitespace() {
                return Some(byte);
            }
        }
    }

    /// After its first quote, to behind its last. Escapes are left as they are.
    fn string(&mut self) -> Option<&'a [u8]> {
        let start = self.at;
        loop {
            match *self.bytes.get(self.at)? {
                b'\\' => self.at += 2,
                b'"' => {
                    self.at += 1;
                    return Some(&self.bytes[start..self.at - 1]);
                }
                _ => self.at += 1,
            }
        }
    }

    /// Skips a value that begins with `first`.
    fn value(&mut self, first: u8) -> Option<()> {
        let mut depth = 0_usize;
        let mut byte = first;
        loop {
            match byte {
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth = depth.saturating_sub(1),
                b'"' => {
                    self.string()?;
                }
                _ => {
                    // A number, true, false, null: up to what ends it. Inside of others it does not matter.
                    while !matches!(*self.bytes.get(self.at)?, b',' | b'}' | b']' | b'"' | b'{' | b'[') {
                        self.at += 1;
                    }
                }
            }
            if depth == 0 {
                return Some(());
            }
            byte = self.next()?;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn found(text: &str) -> Peeked {
        method(text.as_bytes())
    }

    #[test]
    fn the_method_is_found_in_any_place_and_only_at_the_top() {
        let initialize = Peeked::Method("initialize".to_owned());
        for text in [
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#,
            r#" { "method" : "initialize" "#,
            r#"{"params":{"method":"tools/call","a":[1,{"b":"}\"{"}]},"id":-1.5e3,"x":null,"method":"initialize"}"#,
            r#"{"id":"a\\","method":"initialize"}"#,
        ] {
            assert_eq!(found(text), initialize, "{text}");
        }
        for text in [
            r#"{"id":1,"result":{"method":"initialize"}}"#,
            r#"[{"method":"initialize"}]"#,
            "null",
            r#"{"method":7}"#,
            "{}",
        ] {
            assert_eq!(found(text), Peeked::NoMethod, "{text}");
        }
    }

    #[test]
    fn every_cut_of_a_message_asks_for_more_until_the_method_is_there() {
        let text = r#"{"params":{"a":[1,"\"]}",true]},"id":12,"method":"initialize","z":1}"#;
        let complete = text.find(r#","z""#).unwrap();
        for cut in 0..complete {
            assert_eq!(found(&text[..cut]), Peeked::More, "{}", &text[..cut]);
        }
        for cut in complete..=text.len() {
            assert_eq!(found(&text[..cut]), Peeked::Method("initialize".to_owned()));
        }
    }

    #[test]
    fn a_message_that_hides_its_method_is_not_waited_for() {
        let text = format!(r#"{{"params":"{}"#, "x".repeat(MAX_PEEKED));
        assert_eq!(found(&text), Peeked::NoMethod);
    }

    #[test]
    fn the_id_of_a_request_is_found_before_and_behind_everything_else() {
        for (text, expected) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, "1"),
            (
                r#"{"method":"ping","params":{"id":7,"a":["}"]},"jsonrpc":"2.0","id": -12 }"#,
                "-12",
            ),
            (r#"{"id":"a\"b","method":"ping","params":{"#, r#""a\"b""#),
            (
                r#"{"id":12345678901234567890123,"method":"ping","#,
                "12345678901234567890123",
            ),
        ] {
            assert_eq!(id(text.as_bytes()), PeekedId::Id(expected.to_owned()), "{text}");
        }
        let long = format!(r#"{{"id":"{}","method":"ping"}}"#, "x".repeat(MAX_ID));
        for text in [
            r#"{"method":"notifications/initialized"}"#,
            r#"{"id":5,"result":{"method":"ping"}}"#,
            r#"[{"id":1,"method":"ping"}]"#,
            r#"{"id":null,"method":"ping"}"#,
            r#"{"id":{"a":1},"method":"ping"}"#,
            r#"{"id":tru,"method":"ping"}"#,
            "not JSON",
            long.as_str(),
        ] {
            assert_eq!(id(text.as_bytes()), PeekedId::NoId, "{text}");
        }
        for text in [
            "",
            "{",
            r#"{"id":1"#,
            r#"{"id":1,"meth"#,
            r#"{"method":"ping","id":1"#,
        ] {
            assert_eq!(id(text.as_bytes()), PeekedId::More, "{text}");
        }
    }
}
