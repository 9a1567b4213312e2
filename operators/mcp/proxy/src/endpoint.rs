//! Rewrites the `endpoint` event at the start of an old SSE stream, and holds nothing else back (pure).

use bytes::{Bytes, BytesMut};

/// A line longer than this is not the one that we look for, and is passed on.
const MAX_HELD: usize = 8 * 1024;

/// Reads a stream of events line by line until its first event is complete.
///
/// A line is passed on as soon as it is complete. What is not yet a line is held only while it may become the event's name
/// or its URL, so that comments and other events are not delayed.
pub(crate) struct EndpointRewrite {
    rewrite: Box<dyn Fn(&str) -> String + Send + Sync>,
    held: BytesMut,
    is_endpoint: bool,
    has_data: bool,
    done: bool,
}

impl EndpointRewrite {
    pub(crate) fn new(rewrite: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        Self {
            rewrite: Box::new(rewrite),
            held: BytesMut::new(),
            is_endpoint: false,
            has_data: false,
            done: false,
        }
    }

    /// Whether everything from here on passes unchanged.
    pub(crate) fn is_done(&self) -> bool {
        self.done && self.held.is_empty()
    }

    /// What of this piece, and of what was held before it, can go on now.
    pub(crate) fn pass(&mut self, piece: Bytes) -> Bytes {
        if self.done && self.held.is_empty() {
            return piece;
        }
        self.held.extend_from_slice(&piece);
        let mut out = BytesMut::new();
        while !self.done {
            let Some(end) = self.held.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                break;
            };
            let line = self.held.split_to(end + 1);
            self.line(&line[..end], line[end], &mut out);
        }
        if self.done || self.held.len() > MAX_HELD || !self.may_matter() {
            if self.held.len() > MAX_HELD {
                self.done = true;
            }
            out.extend_from_slice(&self.held.split());
        }
        out.freeze()
    }

    /// What is held when the stream ends.
    pub(crate) fn rest(&mut self) -> Bytes {
        self.done = true;
        self.held.split().freeze()
    }

    fn line(&mut self, line: &[u8], end: u8, out: &mut BytesMut) {
        if line.is_empty() {
            // Between \r and \n there is no line. An event without data is not an event.
            self.done = self.has_data && !(end == b'\n' && out.last() == Some(&b'\r'));
            out.extend_from_slice(&[end]);
            return;
        }
        let (name, value) = field(line);
        match name {
            b"event" => self.is_endpoint = value == b"endpoint",
            b"data" => {
                self.has_data = true;
                if self.is_endpoint
                    && let Ok(url) = std::str::from_utf8(value)
                {
                    out.extend_from_slice(b"data: ");
                    out.extend_from_slice((self.rewrite)(url).as_bytes());
                    out.extend_from_slice(&[end]);
                    return;
                }
            }
            _ => {}
        }
        out.extend_from_slice(line);
        out.extend_from_slice(&[end]);
    }

    /// Whether the unfinished line may become one that we must see whole.
    fn may_matter(&self) -> bool {
        let begins = |name: &[u8]| {
            let len = self.held.len().min(name.len());
            self.held[..len] == name[..len]
        };
        !self.held.is_empty() && (begins(b"event:") || begins(b"data:"))
    }
}

fn field(line: &[u8]) -> (&[u8], &[u8]) {
    match line.iter().position(|byte| *byte == b':') {
        Some(colon) => {
            let value = &line[colon + 1..];
            (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
        }
        None => (line, b""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewrite() -> EndpointRewrite {
        EndpointRewrite::new(|url| format!("{url}&pod"))
    }

    fn passed(text: &str, size: usize) -> String {
        let mut rewrite = rewrite();
        let mut out = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            out.extend_from_slice(&rewrite.pass(Bytes::copy_from_slice(piece)));
        }
        out.extend_from_slice(&rewrite.rest());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_endpoint_is_rewritten_however_the_stream_is_cut() {
        for (text, expected) in [
            (
                "event: endpoint\ndata: /m?s=1\n\ndata: /m\n\n",
                "event: endpoint\ndata: /m?s=1&pod\n\ndata: /m\n\n",
            ),
            (
                ": hi\n\nevent:endpoint\r\ndata:/m\r\n\r\nevent: endpoint\ndata: x\n\n",
                ": hi\n\nevent:endpoint\r\ndata: /m&pod\r\n\r\nevent: endpoint\ndata: x\n\n",
            ),
            (
                "id: 1\nevent: message\ndata: {}\n\nevent: endpoint\ndata: /m\n\n",
                "id: 1\nevent: message\ndata: {}\n\nevent: endpoint\ndata: /m\n\n",
            ),
            ("data: only", "data: only"),
        ] {
            for size in [1, 2, 3, 5, 7, 1000] {
                assert_eq!(passed(text, size), expected, "in pieces of {size}");
            }
        }
    }

    #[test]
    fn comments_and_ids_are_not_held_back() {
        let mut rewrite = rewrite();
        assert_eq!(
            rewrite.pass(Bytes::from_static(b": half a comm")),
            ": half a comm"
        );
        assert_eq!(rewrite.pass(Bytes::from_static(b"ent\nid: 7")), "ent\nid: 7");
        assert_eq!(rewrite.pass(Bytes::from_static(b"\neve")), "\n");
        assert_eq!(
            rewrite.pass(Bytes::from_static(b"nt: message\ndata: {}\n\n")),
            "event: message\ndata: {}\n\n"
        );
        assert!(rewrite.is_done());
    }

    #[test]
    fn an_endless_line_is_let_go() {
        let mut rewrite = rewrite();
        let line = Bytes::from(format!("data: {}", "x".repeat(MAX_HELD)));
        assert_eq!(rewrite.pass(line.clone()), line);
        assert!(rewrite.is_done());
    }
}
