//! Takes the chunks of an HTTP/1.1 body apart, however it is cut (pure).

use bytes::{Buf, Bytes};

/// A line with the size of a chunk, or a trailer: all of them after the last chunk together.
const MAX_LINES: usize = 16 * 1024;

/// Where in the body the next byte stands.
#[derive(Debug)]
pub(crate) struct Chunked {
    state: State,
    /// Bytes of the line, or of all trailers, so far.
    line: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In the digits of a size; whether there was one.
    Size(u64, bool),
    /// Behind them, up to the end of the line.
    Extension(u64),
    /// Before the line feed of that line.
    SizeEnd(u64),
    Data(u64),
    /// Behind the data, before its line end.
    DataReturn,
    DataEnd,
    /// After the last chunk; whether the line has begun.
    Trailer(bool),
    TrailerEnd(bool),
    Done,
}

/// What the bytes so far say.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Data(Bytes),
    More,
    End,
}

/// Not a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Invalid;

impl Default for Chunked {
    fn default() -> Self {
        Self {
            state: State::Size(0, false),
            line: 0,
        }
    }
}

impl Chunked {
    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// The next piece of data in these bytes, which are taken away.
    pub(crate) fn next(&mut self, bytes: &mut Bytes) -> Result<Piece, Invalid> {
        loop {
            match self.state {
                State::Done => return Ok(Piece::End),
                _ if bytes.is_empty() => return Ok(Piece::More),
                State::Data(left) => {
                    let size = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
                    let data = bytes.split_to(size);
                    self.state = match left - size as u64 {
                        0 => State::DataReturn,
                        left => State::Data(left),
                    };
                    return Ok(Piece::Data(data));
                }
                _ => self.byte(bytes.get_u8())?,
            }
        }
    }

    fn byte(&mut self, byte: u8) -> Result<(), Invalid> {
        self.line += 1;
        if self.line > MAX_LINES {
            return Err(Invalid);
        }
        self.state = match (self.state, byte) {
            (State::Size(size, true), b'\r') => State::SizeEnd(size),
            (State::Size(size, true), b';' | b' ' | b'\t') => State::Extension(size),
            (State::Size(size, _), digit) => {
                let digit = char::from(digit).to_digit(16).ok_or(Invalid)?;
                let size = size.checked_mul(16).ok_or(Invalid)?;
                State::Size(size + u64::from(digit), true)
            }
            (State::Extension(size), b'\r') => State::SizeEnd(size),
            (State::Extension(_), b'\n') => return Err(Invalid),
            (State::Extension(size), _) => State::Extension(size),
            (State::SizeEnd(0), b'\n') => State::Trailer(false),
            (State::SizeEnd(size), b'\n') => State::Data(size),
            (State::DataReturn, b'\r') => State::DataEnd,
            (State::DataEnd, b'\n') => State::Size(0, false),
            (State::Trailer(has_begun), b'\r') => State::TrailerEnd(has_begun),
            (State::Trailer(_), b'\n') => return Err(Invalid),
            (State::Trailer(_), _) => State::Trailer(true),
            (State::TrailerEnd(true), b'\n') => State::Trailer(false),
            (State::TrailerEnd(false), b'\n') => State::Done,
            _ => return Err(Invalid),
        };
        if matches!(self.state, State::Data(_)) {
            self.line = 0;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(text: &str, size: usize) -> Result<(String, bool), Invalid> {
        let mut chunked = Chunked::default();
        let mut read = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            let mut piece = Bytes::copy_from_slice(piece);
            loop {
                match chunked.next(&mut piece)? {
                    Piece::Data(data) => read.extend_from_slice(&data),
                    Piece::More => break,
                    Piece::End => {
                        assert!(chunked.is_done());
                        return Ok((String::from_utf8(read).unwrap(), true));
                    }
                }
            }
        }
        Ok((String::from_utf8(read).unwrap(), false))
    }

    #[test]
    fn data_comes_out_however_the_body_is_cut() {
        for (text, expected, ends) in [
            ("5\r\nhello\r\n0\r\n\r\n", "hello", true),
            ("A;x=\"y\"\r\n0123456789\r\n01\r\n!\r\n", "0123456789!", false),
            (
                "3 \r\na\r\n\r\n0\r\nTrailer: x\r\nOther: y\r\n\r\nrest",
                "a\r\n",
                true,
            ),
            ("5\r\nhel", "hel", false),
            ("", "", false),
        ] {
            for size in [1, 2, 3, 1000] {
                let read = read(text, size).unwrap();
                assert_eq!(read, (expected.to_owned(), ends), "{text:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn what_is_not_a_chunk_is_an_error() {
        let long = format!("1;{}", "x".repeat(MAX_LINES));
        for text in [
            "x",
            "\r\n",
            ";\r\n",
            "-1\r\n",
            "1\na",
            "1\r\nab\r\n",
            "1\r\na\n",
            "1;x\n",
            "0\r\nx\n",
            "10000000000000000\r\n",
            &long,
        ] {
            assert_eq!(read(text, 1000), Err(Invalid), "{text:.40?}");
        }
    }
}
