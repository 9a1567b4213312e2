//! Finds the method of a JSON-RPC message in the first bytes of it, without waiting for the rest (pure).

/// A message whose method does not stand within so many bytes is not an `initialize`.
pub(crate) const MAX_PEEKED: usize = 64 * 1024;

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

/// Looks for the top-level key `method`.
pub(crate) fn method(bytes: &[u8]) -> Peeked {
    let mut scan = Scan { bytes, at: 0 };
    match scan.object() {
        Some(found) => found,
        None if bytes.len() >= MAX_PEEKED => Peeked::NoMethod,
        None => Peeked::More,
    }
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    /// `None`: the bytes ended.
    fn object(&mut self) -> Option<Peeked> {
        if self.next()? != b'{' {
            return Some(Peeked::NoMethod);
        }
        loop {
            match self.next()? {
                b',' => {}
                b'"' => {
                    let key = self.string()?;
                    if self.next()? != b':' {
                        return Some(Peeked::NoMethod);
                    }
                    let first = self.next()?;
                    if key == b"method" {
                        let value = (first == b'"').then(|| self.string());
                        return Some(match value {
                            Some(text) => Peeked::Method(String::from_utf8_lossy(text?).into_owned()),
                            None => Peeked::NoMethod,
                        });
                    }
                    self.value(first)?;
                }
                _ => return Some(Peeked::NoMethod), // the end of the object, or not JSON
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
}
