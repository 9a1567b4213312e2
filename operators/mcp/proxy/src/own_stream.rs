//! A stream of events read from the backend's socket itself.
//!
//! A connection of hyper's has buffers of 16 KiB and room for 32 requests, about 20 KiB of memory, for as long as it is open. An idle
//! stream needs none of them. So hyper sends the request and reads the head of the answer, and then the socket is taken from it.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use http::{
    HeaderMap, StatusCode,
    header::{CONTENT_TYPE, TRANSFER_ENCODING},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use crate::{
    chunked::{Chunked, Piece},
    settings::MAX_BUFFER,
};

/// What is read first. After a read that was not enough, more.
const FIRST_READ: usize = 8 * 1024;

/// A connection that may stop after the head of an answer, so that nothing behind it is read by anyone else.
#[derive(Debug)]
pub(crate) struct HeadFirst {
    stream: TcpStream,
    /// The head that is looked for, and where the end of it is said.
    head: Option<(HeadEnd, Arc<Stop>)>,
    /// What was read behind the head.
    behind: Bytes,
}

/// What is known of a connection that is inside of hyper's.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    has_stopped: AtomicBool,
    goes_on: AtomicBool,
}

impl Stop {
    /// Whether the head was read, and nothing else.
    pub(crate) fn has_stopped(&self) -> bool {
        self.has_stopped.load(Relaxed)
    }

    /// From the next poll on, everything is read.
    pub(crate) fn go_on(&self) {
        self.goes_on.store(true, Relaxed);
    }
}

/// Finds the end of an answer's head, past those of interim answers.
#[derive(Debug, Default)]
struct HeadEnd {
    /// The first line up to the first digit of the status.
    start: Vec<u8>,
    line_has_begun: bool,
}

const STATUS_AT: usize = "HTTP/1.1 ".len();

impl HeadEnd {
    /// Whether this byte is the last one of the head.
    fn byte(&mut self, byte: u8) -> bool {
        match byte {
            b'\r' => {}
            b'\n' if self.line_has_begun => self.line_has_begun = false,
            b'\n' if self.start.is_empty() => {} // blank lines before the head
            b'\n' => {
                let is_interim = self.start.get(STATUS_AT) == Some(&b'1');
                self.start.clear();
                return !is_interim;
            }
            _ => {
                self.line_has_begun = true;
                if self.start.len() <= STATUS_AT {
                    self.start.push(byte);
                }
            }
        }
        false
    }
}

impl HeadFirst {
    /// With a `stop`, only the head of the first answer is read.
    pub(crate) fn new(stream: TcpStream, stop: Option<Arc<Stop>>) -> Self {
        Self {
            stream,
            head: stop.map(|stop| (HeadEnd::default(), stop)),
            behind: Bytes::new(),
        }
    }
}

impl AsyncRead for HeadFirst {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some((_, stop)) = &this.head
            && stop.has_stopped()
        {
            if !stop.goes_on.load(Relaxed) {
                return Poll::Pending; // to go on takes another poll
            }
            this.head = None;
        }
        if !this.behind.is_empty() {
            let size = this.behind.len().min(buf.remaining());
            buf.put_slice(&this.behind[..size]);
            this.behind.advance(size);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        if let Some((end, stop)) = &mut this.head
            && let Some(last) = buf.filled()[before..].iter().position(|byte| end.byte(*byte))
        {
            let size = before + last + 1;
            this.behind = Bytes::copy_from_slice(&buf.filled()[size..]);
            buf.set_filled(size);
            stop.has_stopped.store(true, Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for HeadFirst {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// Whether an answer with this head is a stream that can be read here: events, in chunks and nothing else.
pub(crate) fn can_be_own(status: StatusCode, headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_chunked = codings
        .next()
        .is_some_and(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"));
    let is_events = headers.get(CONTENT_TYPE).is_some_and(|kind| {
        let kind = kind.as_bytes().to_ascii_lowercase();
        kind.starts_with(b"text/event-stream")
    });
    status == StatusCode::OK && is_chunked && codings.next().is_none() && is_events
}

/// The body of such an answer. It holds no buffer while it waits.
#[derive(Debug)]
pub(crate) struct OwnStream {
    stream: TcpStream,
    chunked: Chunked,
    read: Bytes,
    next_read: usize,
}

impl OwnStream {
    /// `read` is what hyper has read of the body already: nothing, if it stopped as it should.
    pub(crate) fn new(from: HeadFirst, read: Bytes) -> Self {
        let read = if read.is_empty() {
            from.behind
        } else {
            [read, from.behind].concat().into()
        };
        Self {
            stream: from.stream,
            chunked: Chunked::default(),
            read,
            next_read: FIRST_READ,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.chunked.is_done()
    }

    /// The next piece of the body; `None` at its end.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            match self.chunked.next(&mut self.read) {
                Ok(Piece::Data(data)) => return Poll::Ready(Some(Ok(data))),
                Ok(Piece::End) => return Poll::Ready(None),
                Ok(Piece::More) => {}
                Err(_) => return Poll::Ready(Some(Err(io::ErrorKind::InvalidData.into()))),
            }
            self.read = Bytes::new(); // nothing is kept alive while the backend is silent
            ready!(self.stream.poll_read_ready(cx))?;
            let mut read = BytesMut::with_capacity(self.next_read);
            match self.stream.try_read_buf(&mut read) {
                Ok(0) => return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into()))),
                Ok(size) => {
                    self.next_read = if size == self.next_read {
                        MAX_BUFFER
                    } else {
                        FIRST_READ
                    };
                    self.read = read.freeze();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_head_is_found_past_interim_answers() {
        for (text, rest) in [
            ("HTTP/1.1 200 OK\r\nA: b\r\n\r\nbody\r\n\r\n", "body\r\n\r\n"),
            (
                "\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 x\r\nLink: y\r\n\r\nHTTP/1.1 200 OK\r\n\r\nbody",
                "body",
            ),
            ("HTTP/1.1 200 OK\nA: b\n\n\nx", "\nx"),
        ] {
            let mut end = HeadEnd::default();
            let last = text.bytes().position(|byte| end.byte(byte));
            assert_eq!(last.map(|last| &text[last + 1..]), Some(rest), "{text:?}");
        }
        let mut end = HeadEnd::default();
        assert_eq!(
            "HTTP/1.1 200 OK\r\nA: b\r\n"
                .bytes()
                .position(|byte| end.byte(byte)),
            None
        );
    }

    #[test]
    fn only_events_in_chunks_are_read_here() {
        let head = |lines: &[(&'static str, &'static str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in lines {
                map.append(*name, http::HeaderValue::from_static(value));
            }
            map
        };
        let chunked = ("transfer-encoding", "Chunked");
        let events = ("content-type", "text/event-stream; charset=utf-8");
        assert!(can_be_own(StatusCode::OK, &head(&[chunked, events])));
        assert!(!can_be_own(StatusCode::NOT_FOUND, &head(&[chunked, events])));
        for lines in [
            &[events][..],
            &[chunked],
            &[events, ("transfer-encoding", "gzip, chunked")],
            &[events, chunked, chunked],
        ] {
            assert!(!can_be_own(StatusCode::OK, &head(lines)), "{lines:?}");
        }
    }
}
