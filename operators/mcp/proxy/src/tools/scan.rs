//! Finds out whether JSON on its way contains a list of tools, without holding it (pure).

/// So many containers are known by their kind; deeper ones are counted only, and nothing that deep is looked for.
const MAX_KNOWN: usize = 8;
/// Longer keys are not those that are looked for. Each letter may be written as an escape of six.
const MAX_KEY: usize = 6 * 6;

/// Watches for the member `tools` in the `result` of a message, or of a message of a batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scan {
    /// Whether each open container is an object.
    open: [bool; MAX_KNOWN],
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// The next string is a key.
    key_next: bool,
    key: Vec<u8>,
    /// The last key of the message is `result`.
    in_result: bool,
    has_list: bool,
}

impl Scan {
    /// Whether there was one.
    pub(crate) fn has_list(&self) -> bool {
        self.has_list
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.byte(*byte);
        }
    }

    fn byte(&mut self, byte: u8) {
        if self.in_string {
            let ends = !self.escaped && byte == b'"';
            self.escaped = !self.escaped && byte == b'\\';
            if ends {
                self.in_string = false;
                if std::mem::take(&mut self.key_next) {
                    self.key_ends();
                }
            } else if self.key_next && self.key.len() <= MAX_KEY {
                self.key.push(byte);
            }
            return;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                self.key.clear();
            }
            b'{' | b'[' => {
                let is_object = byte == b'{';
                if let Some(open) = self.open.get_mut(self.depth) {
                    *open = is_object;
                }
                self.depth += 1;
                self.key_next = is_object;
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.key_next = false;
            }
            b',' => self.key_next = self.depth > 0 && self.open.get(self.depth - 1) == Some(&true),
            _ => {}
        }
    }

    fn key_ends(&mut self) {
        let known = self.open.get(..self.depth).unwrap_or_default();
        let message = known.iter().position(|is_object| *is_object);
        match message.map(|at| known.len() - at) {
            Some(1) => self.in_result = self.key_is("result"),
            Some(2) => self.has_list |= self.in_result && self.key_is("tools"),
            _ => {}
        }
    }

    fn key_is(&self, name: &str) -> bool {
        if !self.key.contains(&b'\\') {
            return self.key == name.as_bytes();
        }
        let quoted = [b"\"", self.key.as_slice(), b"\""].concat();
        serde_json::from_slice::<String>(&quoted).is_ok_and(|key| key == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_list(text: &str, size: usize) -> bool {
        let mut scan = Scan::default();
        text.as_bytes().chunks(size).for_each(|piece| scan.feed(piece));
        scan.has_list()
    }

    #[test]
    fn a_list_is_found_in_a_result_and_nowhere_else() {
        for (text, expected) in [
            (r#"{"result":{"tools":[]}}"#, true),
            (
                r#"{"a":[{"b":1},"x,{"],"result" : { "n":"\"", "tools" :[]}}"#,
                true,
            ),
            (r#"[{"id":1},{"id":2,"result":{"tools":[]}}]"#, true),
            (r#"{"res\u0075lt":{"\u0074\u006f\u006f\u006c\u0073":[]}}"#, true),
            (r#"{"id":1}{"result":{"tools":[]}}"#, true),
            (
                r#"{"result":{"content":[{"tools":[]}],"structuredContent":{"tools":[]}}}"#,
                false,
            ),
            (r#"{"result":{"capabilities":{"tools":{}}}}"#, false),
            (r#"{"result":{"x":"tools"},"params":{"tools":[]}}"#, false),
            (r#"{"method":"notifications/tools/list_changed"}"#, false),
            ("{{{{{{{{{{{{\"result\":{\"tools\":[]}}", false),
            ("not JSON, but \"tools\"", false),
            ("]]}}\"", false),
        ] {
            for size in [1, 3, 1000] {
                assert_eq!(has_list(text, size), expected, "{text} in pieces of {size}");
            }
        }
    }
}
