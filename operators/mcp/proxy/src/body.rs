//! Bodies on their way: a request's with its limit, an answer's with the connection that it came over.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use crate::{
    counters::InWork,
    endpoint::EndpointRewrite,
    filtering::{Held, Share},
    old_streams::Told,
    peek::{self, Peeked},
    pool::{Pool, Sender},
    seen::Seen,
    settings::{HELD_BODY_TIME, HELD_PIECE_TIME},
    source::Source,
    tools::AnswerFilter,
};

/// Why a body did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the request body is larger than the limit")]
    TooLarge,
    #[error("too much is held for other requests")]
    Busy,
    #[error("the request body is too slow in coming")]
    Slow,
    #[error("a list of tools in the answer cannot be filtered")]
    Withheld,
    #[error("the server is shutting down")]
    ShuttingDown,
    #[error(transparent)]
    Broken(#[from] hyper::Error),
    #[error(transparent)]
    Cut(#[from] std::io::Error),
}

/// What of a refused body is still read, so that the client reads the answer before a reset.
const MAX_DRAINED: u64 = 64 * 1024 * 1024;
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// A client's body, as it comes, up to the limit.
#[derive(Debug)]
pub(crate) struct RequestBody {
    peeked: VecDeque<Bytes>,
    rest: Option<Incoming>,
    left: u64,
    seen: Arc<Seen>,
    /// Set if the whole body has been read.
    whole: Option<Share>,
}

impl RequestBody {
    /// Others learn from `seen` what they must know of it.
    pub(crate) fn new(rest: Incoming, limit: u64, seen: Arc<Seen>) -> Self {
        seen.begin();
        Self {
            peeked: VecDeque::new(),
            rest: Some(rest),
            left: limit,
            seen,
            whole: None,
        }
    }

    /// Reads the whole body. It is sent on like one that was not read.
    pub(crate) async fn read(&mut self, held: &Held) -> Result<Bytes, BodyError> {
        let mut read = Vec::new();
        let mut share = held.share();
        let end = Instant::now() + HELD_BODY_TIME;
        while let Some(rest) = &mut self.rest {
            let until = end.min(Instant::now() + HELD_PIECE_TIME);
            let frame = timeout_at(until, rest.frame()).await;
            let Some(frame) = frame.map_err(|_| BodyError::Slow)? else {
                break;
            };
            let Ok(piece) = frame?.into_data() else { continue };
            self.count(&piece)?;
            share.grow(read.len() + piece.len())?;
            read.extend_from_slice(&piece);
        }
        let read = Bytes::from(read);
        self.rest = None;
        self.whole = Some(share);
        if !read.is_empty() {
            self.peeked.push_back(read.clone());
        }
        Ok(read)
    }

    /// The method of the JSON-RPC message. What was read for it is sent on like the rest.
    pub(crate) async fn method(&mut self) -> Result<Option<String>, BodyError> {
        if self.whole.is_some() {
            let read = self
                .peeked
                .front()
                .map_or(Peeked::NoMethod, |whole| peek::method(whole));
            return Ok(match read {
                Peeked::Method(method) => Some(method),
                Peeked::NoMethod | Peeked::More => None,
            });
        }
        let mut read = Vec::new();
        loop {
            let Some(rest) = &mut self.rest else {
                return Err(BodyError::TooLarge);
            };
            match rest.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    let Ok(piece) = frame?.into_data() else { continue };
                    self.count(&piece)?;
                    read.extend_from_slice(&piece);
                    self.peeked.push_back(piece);
                }
            }
            match peek::method(&read) {
                Peeked::Method(method) => return Ok(Some(method)),
                Peeked::NoMethod => return Ok(None),
                Peeked::More => {}
            }
        }
    }

    fn count(&mut self, piece: &Bytes) -> Result<(), BodyError> {
        self.seen.keep(piece);
        if let Some(left) = self.left.checked_sub(piece.remaining() as u64) {
            self.left = left;
            return Ok(());
        }
        self.seen.set_too_large();
        self.seen.give_back(self.rest.take());
        Err(BodyError::TooLarge)
    }
}

impl Drop for RequestBody {
    /// Also if a backend answers before it has read all, or does not read at all.
    fn drop(&mut self) {
        if !self.seen.is_too_large() {
            self.seen.give_back(self.rest.take());
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if let Some(piece) = this.peeked.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let Some(rest) = &mut this.rest else {
            return Poll::Ready(this.whole.is_none().then_some(Err(BodyError::TooLarge)));
        };
        let frame = match ready!(Pin::new(rest).poll_frame(cx)) {
            None => return Poll::Ready(None),
            Some(frame) => frame?,
        };
        if let Some(piece) = frame.data_ref() {
            this.count(piece)?;
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        let is_read = |rest: &Incoming| rest.is_end_stream();
        self.peeked.is_empty() && self.rest.as_ref().map_or(self.whole.is_some(), is_read)
    }

    fn size_hint(&self) -> SizeHint {
        let peeked: u64 = self.peeked.iter().map(|piece| piece.len() as u64).sum();
        let rest = match &self.rest {
            Some(rest) => rest.size_hint(),
            None if self.whole.is_some() => SizeHint::with_exact(0),
            None => SizeHint::new(),
        };
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + peeked);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + peeked);
        }
        hint
    }
}

/// Reads on what nobody wants, for a while: a socket that is closed with unread bytes is reset, and the reset may
/// overtake the answer.
pub(crate) fn drain(mut body: Incoming) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    if body.is_end_stream() {
        return;
    }
    runtime.spawn(async move {
        let read = async {
            let mut drained = 0;
            while let Some(Ok(frame)) = body.frame().await {
                drained += frame.data_ref().map_or(0, |piece| piece.len() as u64);
                if drained > MAX_DRAINED {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(DRAIN_TIME, read).await;
    });
}

/// An answer: our own, or a backend's.
pub(crate) enum AnswerBody {
    Own(Full<Bytes>),
    Backend(Box<BackendBody>),
}

/// A backend's answer as it comes, and what ends with it.
pub(crate) struct BackendBody {
    pub(crate) body: Source,
    /// The connection, given back to the pool after the last byte. Dropped before that, it is closed.
    pub(crate) connection: Option<(Arc<Pool>, Sender)>,
    pub(crate) rewrite: Option<EndpointRewrite>,
    pub(crate) filter: Option<Box<AnswerFilter>>,
    /// What the proxy itself has to say on it.
    pub(crate) told: Option<Box<Told>>,
    pub(crate) is_event_stream: bool,
    pub(crate) end: watch::Receiver<bool>,
    pub(crate) ended: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    pub(crate) in_work: InWork,
    pub(crate) complete: bool,
}

impl BackendBody {
    pub(crate) fn finish(&mut self) {
        self.complete = true;
        if let Some((pool, sender)) = self.connection.take() {
            pool.put(sender);
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            if let (Some(told), Some(filter)) = (&mut self.told, &self.filter)
                && filter.is_between_events()
                && let Poll::Ready(answer) = told.poll(cx)
            {
                return Poll::Ready(Some(Ok(Frame::data(answer))));
            }
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
                return self.poll_ended(cx);
            };
            let Some(frame) = frame else {
                self.finish();
                let rest = self.rest()?;
                return Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest))));
            };
            let frame = frame?;
            if self.body.is_end_stream() && self.passes_as_it_is() {
                self.finish(); // the last piece: nobody may ask again
            }
            if self.rewrite.is_none() && self.filter.is_none() {
                return Poll::Ready(Some(Ok(frame)));
            }
            let Ok(mut piece) = frame.into_data() else {
                continue;
            };
            if let Some(rewrite) = &mut self.rewrite {
                piece = rewrite.pass(piece);
                if rewrite.is_done() {
                    self.rewrite = None;
                }
            }
            if let Some(filter) = &mut self.filter {
                let passed = filter.pass(piece);
                piece = passed.map_err(|_| self.withheld())?;
            }
            if !piece.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
        }
    }

    /// Whether the client gets as many bytes as the backend sends.
    fn passes_as_it_is(&self) -> bool {
        let is_changed = self
            .filter
            .as_ref()
            .is_some_and(|filter| !filter.changes_nothing());
        self.rewrite.is_none() && !is_changed
    }

    /// What was held when the backend's answer ended.
    fn rest(&mut self) -> Result<Bytes, BodyError> {
        let rest = self.rewrite.take().map(|mut rewrite| rewrite.rest());
        let rest = rest.unwrap_or_default();
        let Some(mut filter) = self.filter.take() else {
            return Ok(rest);
        };
        let passed = filter
            .pass(rest)
            .and_then(|passed| Ok([passed, filter.rest()?].concat()));
        passed.map(Bytes::from).map_err(|_| self.withheld())
    }

    fn withheld(&mut self) -> BodyError {
        self.complete = true; // the client has not gone
        self.in_work.counters().withheld.fetch_add(1, Relaxed);
        tracing::warn!("an answer is cut, because a list of tools in it cannot be filtered");
        BodyError::Withheld
    }

    /// At a shutdown a stream of events ends as if it were complete, so that its client comes again. Anything else is cut, or
    /// half an answer would look whole.
    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let end = &self.end;
        let ended = self.ended.get_or_insert_with(|| {
            let mut end = end.clone();
            Box::pin(async move {
                let _ = end.wait_for(|end| *end).await; // without a sender, the proxy has ended
            })
        });
        ready!(ended.as_mut().poll(cx));
        self.complete = true;
        Poll::Ready(if self.is_event_stream {
            None
        } else {
            Some(Err(BodyError::ShuttingDown))
        })
    }
}

impl Drop for BackendBody {
    fn drop(&mut self) {
        if self.body.is_end_stream() {
            self.finish(); // an answer without a body is never asked for a piece
        } else if !self.complete {
            self.in_work.counters().client_gone.fetch_add(1, Relaxed);
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Own(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
            Self::Backend(body) => body.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(body) => body.is_end_stream(),
            Self::Backend(body) => body.passes_as_it_is() && body.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(body) => body.size_hint(),
            // The endpoint's event becomes longer, and a list of tools shorter.
            Self::Backend(body) if !body.passes_as_it_is() => SizeHint::new(),
            Self::Backend(body) => body.body.size_hint(),
        }
    }
}
