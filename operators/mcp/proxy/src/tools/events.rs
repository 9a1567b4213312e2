//! Filters lists of tools in a stream of events, and holds no more than the data of one event (pure).

use super::{Allowed, MAX_LIST, Scan, Unreadable, Withheld, error, filtered};
use crate::filtering::{Held, Share};

/// An event in which no list has begun within so many bytes is passed on as it comes; a list that begins later is cut off.
const MAX_UNDECIDED: usize = 64 * 1024;

/// In such steps the share of an event grows.
const STEP: usize = 64 * 1024;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Reads a stream of events. Only the data of an event is held, until the event ends: no client could use it before. Comments and
/// other fields pass at once.
pub(crate) struct EventFilter {
    allowed: Allowed,
    /// The id of the request for the list, as JSON: a list that cannot be passed on is answered with an error.
    id: Option<String>,
    state: State,
    line: Line,
    after_return: bool,
    /// A field of this event has been passed on.
    has_begun: bool,
    /// So many bytes of a mark at the start of the stream were seen; `None` after the first other byte.
    mark: Option<usize>,
    held: Vec<u8>,
    /// What all streams together may hold, and what this event has of it.
    room: Held,
    share: Option<Share>,
    scan: Scan,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing of this event must be held so far.
    Open,
    /// From its first line of data.
    Holding,
    /// The rest of the event passes, as it is not a list.
    Passing,
    /// The rest of the event is dropped, as an error was sent in its place.
    Dropping,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    /// So many letters of `data` were seen, and nothing else.
    Name(usize),
    Data,
    Other,
}

impl EventFilter {
    pub(crate) fn new(allowed: Allowed, id: Option<String>, room: Held) -> Self {
        Self {
            allowed,
            id,
            state: State::Open,
            line: Line::Name(0),
            after_return: false,
            has_begun: false,
            mark: Some(0),
            held: Vec::new(),
            room,
            share: None,
            scan: Scan::default(),
        }
    }

    /// Writes what of this piece, and of what was held before it, can go on now.
    pub(crate) fn pass(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Withheld> {
        for byte in piece {
            self.byte(*byte, out)?;
        }
        Ok(())
    }

    /// Whether the next byte begins an event.
    pub(crate) fn is_between_events(&self) -> bool {
        self.state == State::Open && self.line == Line::Name(0) && !self.has_begun
    }

    /// What is held when the stream ends: an event without its end is read by some clients.
    pub(crate) fn rest(&mut self, out: &mut Vec<u8>) -> Result<(), Withheld> {
        if self.state == State::Holding {
            return self.event(out);
        }
        out.append(&mut self.held);
        Ok(())
    }

    fn byte(&mut self, byte: u8, out: &mut Vec<u8>) -> Result<(), Withheld> {
        if let Some(seen) = self.mark {
            if BYTE_ORDER_MARK.get(seen) == Some(&byte) {
                self.mark = Some(seen + 1);
                out.push(byte);
                return Ok(());
            }
            self.mark = None;
        }
        let ends_return = std::mem::take(&mut self.after_return) && byte == b'\n';
        if ends_return {
            self.put(byte, out);
        } else if matches!(byte, b'\n' | b'\r') {
            self.after_return = byte == b'\r';
            self.line_ends(byte, out)?;
        } else {
            self.line_goes_on(byte, out);
        }
        self.check_size(out)
    }

    fn line_goes_on(&mut self, byte: u8, out: &mut Vec<u8>) {
        self.line = match self.line {
            Line::Name(4) if byte == b':' => Line::Data,
            Line::Name(seen) if b"data".get(seen) == Some(&byte) => Line::Name(seen + 1),
            Line::Name(_) => Line::Other,
            Line::Data => {
                self.scan.feed(&[byte]);
                Line::Data
            }
            Line::Other => Line::Other,
        };
        if self.line == Line::Data && self.state == State::Open {
            self.state = State::Holding;
        }
        self.put(byte, out);
    }

    fn line_ends(&mut self, byte: u8, out: &mut Vec<u8>) -> Result<(), Withheld> {
        let line = std::mem::replace(&mut self.line, Line::Name(0));
        if line == Line::Name(4) && self.state == State::Open {
            self.state = State::Holding; // data that is empty
        }
        self.put(byte, out);
        self.has_begun = line != Line::Name(0);
        if self.has_begun {
            return Ok(());
        }
        let state = std::mem::replace(&mut self.state, State::Open);
        if state == State::Holding {
            self.event(out)?;
        }
        self.scan = Scan::default();
        Ok(())
    }

    /// Keeps a byte, or passes it on.
    fn put(&mut self, byte: u8, out: &mut Vec<u8>) {
        match (self.state, self.line) {
            (State::Dropping, _) => {}
            (State::Holding, _) | (State::Open, Line::Name(1..)) => self.held.push(byte),
            _ => {
                out.append(&mut self.held);
                out.push(byte);
            }
        }
    }

    fn check_size(&mut self, out: &mut Vec<u8>) -> Result<(), Withheld> {
        match (self.state, self.scan.has_list()) {
            (State::Holding, false) if self.held.len() > MAX_UNDECIDED => {
                self.state = State::Passing;
                out.append(&mut self.held);
                Ok(())
            }
            (State::Holding, true) if self.held.len() > MAX_LIST || !self.has_room() => {
                self.state = State::Dropping;
                self.held = Vec::new();
                self.share = None;
                self.withheld(out)
            }
            (State::Passing, true) => Err(Withheld),
            _ => Ok(()),
        }
    }

    /// Whether what is held is within this event's share, which grows with it.
    fn has_room(&mut self) -> bool {
        if !self.held.len().is_multiple_of(STEP) {
            return true;
        }
        let share = self.share.get_or_insert_with(|| self.room.share());
        share.grow(self.held.len() + STEP).is_ok()
    }

    fn withheld(&self, out: &mut Vec<u8>) -> Result<(), Withheld> {
        let id = self.id.as_ref().ok_or(Withheld)?;
        let error = error(id, super::WITHHELD_CODE, super::WITHHELD);
        out.extend_from_slice(format!("data: {error}\n\n").as_bytes());
        Ok(())
    }

    /// The event that is held is complete.
    fn event(&mut self, out: &mut Vec<u8>) -> Result<(), Withheld> {
        let held = std::mem::take(&mut self.held);
        let _share = self.share.take();
        if !self.scan.has_list() {
            out.extend_from_slice(&held);
            return Ok(());
        }
        let Ok(text) = std::str::from_utf8(&held) else {
            return self.withheld(out);
        };
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let data: Vec<&str> = text.lines().filter_map(data_of).collect();
        match filtered(&self.allowed, &data.join("\n")) {
            Ok(None) => out.extend_from_slice(&held),
            Ok(Some(list)) => {
                let others = text
                    .lines()
                    .filter(|line| data_of(line).is_none() && !line.is_empty());
                let lines = others.map(str::to_owned);
                let lines = lines.chain(list.lines().map(|line| format!("data: {line}")));
                for line in lines {
                    out.extend_from_slice(line.as_bytes());
                    out.push(b'\n');
                }
                out.push(b'\n');
            }
            Err(Unreadable) => return self.withheld(out),
        }
        Ok(())
    }
}

/// The value of a line of data.
fn data_of(line: &str) -> Option<&str> {
    let value = line.strip_prefix("data")?;
    if value.is_empty() {
        return Some(value);
    }
    let value = value.strip_prefix(':')?;
    Some(value.strip_prefix(' ').unwrap_or(value))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn filter(id: Option<&str>) -> EventFilter {
        let allowed = std::sync::Arc::new(["a".to_owned()].into());
        EventFilter::new(allowed, id.map(str::to_owned), Held::default())
    }

    fn passed(text: &str, size: usize) -> Result<String, Withheld> {
        let mut filter = filter(None);
        let mut out = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            filter.pass(piece, &mut out)?;
        }
        filter.rest(&mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    const LIST: &str = r#"{"id":1,"result":{"tools":[{"name":"a"},{"name":"h"}]}}"#;
    const SHOWN: &str = r#"{"id":1,"result":{"tools":[{"name":"a"}]}}"#;

    #[test]
    fn lists_are_filtered_however_the_stream_is_cut_and_written() {
        let (first, second) = LIST.split_at(8);
        for (text, expected) in [
            (format!("data: {LIST}\n\n"), format!("data: {SHOWN}\n\n")),
            (
                format!(": hi\n\nid: 1\nevent: message\r\ndata:{LIST}\r\nretry: 5\r\n\r\ndata: {{}}\n\n"),
                format!(": hi\n\nid: 1\nevent: message\r\nretry: 5\ndata: {SHOWN}\n\n\ndata: {{}}\n\n"),
            ),
            (
                format!("data: {first}\ndata: {second}\n\n"),
                format!("data: {SHOWN}\n\n"),
            ),
            (
                format!("data\rdata:{LIST}\r\r: x\n"),
                format!("data: \ndata: {SHOWN}\n\n: x\n"),
            ),
            (
                format!("\u{feff}data: {LIST}\n\n"),
                format!("\u{feff}data: {SHOWN}\n\n"),
            ),
            (format!("data: {LIST}"), format!("data: {SHOWN}\n\n")),
            (
                format!("dat\ndatum: x\ndata: {LIST}\n\n"),
                format!("dat\ndatum: x\ndata: {SHOWN}\n\n"),
            ),
        ] {
            for size in [1, 2, 7, 1000] {
                let seen = passed(&text, size).unwrap();
                assert_eq!(
                    seen.replace("data: \n", ""),
                    expected.replace("data: \n", ""),
                    "{text:?} in pieces of {size}"
                );
            }
        }
    }

    #[test]
    fn what_has_no_list_passes_byte_for_byte() {
        for text in [
            ": c\r\n\r\nevent: endpoint\r\ndata: /m\r\n\r\n",
            "data: {\"method\":\"notifications/tools/list_changed\"}\n\nid: 7\n\n",
            "data\ndata:x\ndat: y\nd\n\nda",
            "\r\rdata: {\"result\":{\"tools\":[{\"name\":\"a\"}]}}\r\r",
        ] {
            for size in [1, 2, 1000] {
                assert_eq!(passed(text, size).unwrap(), text, "in pieces of {size}");
            }
        }
    }

    #[test]
    fn only_data_is_held_and_only_until_its_event_ends() {
        let mut filter = filter(None);
        let mut next = |piece: &str| {
            let mut out = Vec::new();
            filter.pass(piece.as_bytes(), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(next(": half a comm"), ": half a comm");
        assert_eq!(next("ent\nid: 7"), "ent\nid: 7");
        assert_eq!(next("\nda"), "\n");
        assert_eq!(next("ta: {}"), "");
        assert_eq!(next("\r\n\r"), "data: {}\r\n\r");
        assert_eq!(next("\n"), "\n");
    }

    #[test]
    fn it_is_known_where_an_event_begins() {
        let mut filter = filter(None);
        let mut out = Vec::new();
        assert!(filter.is_between_events());
        for (piece, expected) in [
            ("i", false),
            ("d: 1\n", false),
            ("\n", true),
            ("data: x\r\n", false),
            ("\r", true),
            ("\n", true),
        ] {
            filter.pass(piece.as_bytes(), &mut out).unwrap();
            assert_eq!(filter.is_between_events(), expected, "{piece:?}");
        }
    }

    #[test]
    fn a_large_event_passes_as_it_comes_and_a_list_that_begins_late_is_cut() {
        let large = format!(
            "data: {{\"result\":{{\"content\":\"{}\"",
            "x".repeat(MAX_UNDECIDED)
        );
        let mut filter = filter(None);
        let mut out = Vec::new();
        filter.pass(large.as_bytes(), &mut out).unwrap();
        assert_eq!(out.len(), large.len());
        assert_eq!(filter.pass(b",\"tools\":[", &mut out), Err(Withheld));
    }

    #[test]
    fn lists_of_many_streams_are_held_only_as_far_as_there_is_room() {
        let room = Held::new(1 << 20);
        let begun = format!("data: {{\"result\":{{\"tools\":[\"{}", "x".repeat(300 << 10));
        let stream = || {
            let allowed = std::sync::Arc::new(["a".to_owned()].into());
            let mut filter = EventFilter::new(allowed, Some("7".to_owned()), room.clone());
            let mut out = Vec::new();
            filter.pass(begun.as_bytes(), &mut out).unwrap();
            (filter, String::from_utf8(out).unwrap())
        };
        let mut filters: Vec<_> = (0..5).map(|_| stream()).collect();
        let answered = filters.iter().filter(|(_, out)| out.contains("-32603")).count();
        assert_eq!(answered, 1, "four fit into the room");
        // One that is complete gives back what it held.
        let mut out = Vec::new();
        filters[0].0.pass(b"\"]}}\n\n", &mut out).unwrap();
        assert_eq!(stream().1, "");
        drop(filters);
        assert_eq!(stream().1, "");
    }

    #[test]
    fn a_list_that_cannot_be_passed_on_becomes_an_error_or_the_end() {
        let broken = "data: {\"result\":{\"tools\":[}\n\n";
        assert_eq!(passed(broken, 100), Err(Withheld));
        let large = format!("data: {{\"result\":{{\"tools\":[\"{}", "x".repeat(MAX_LIST));
        assert_eq!(passed(&large, 100_000), Err(Withheld));

        let mut filter = filter(Some("7"));
        let mut out = Vec::new();
        filter.pass(broken.as_bytes(), &mut out).unwrap();
        filter.pass(large.as_bytes(), &mut out).unwrap();
        filter.pass(b"\"]}}\n\ndata: after\n\n", &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("\"id\":7,\"error\"").count(), 2, "{text}");
        assert!(text.ends_with("\n\ndata: after\n\n"), "{text}");
        assert!(text.len() < 1000, "{text}");
    }
}
