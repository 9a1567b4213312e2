//! Answers of the bridge: one JSON message, or a stream of events.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, watch},
    time::{Instant, Interval},
};

use super::message;
use crate::counters::InWork;

/// A comment is sent after so long without an event: many gateways close what is silent for 30 or 60 s.
const SIGN_OF_LIFE: Duration = Duration::from_secs(25);

/// A message on its way to a client.
pub(crate) struct Outgoing {
    pub(crate) message: Bytes,
    /// Whether it answers the request, and ends its stream.
    pub(crate) last: bool,
    /// The code, if it is an error.
    pub(crate) error: Option<i64>,
    /// Its share of the memory that a session may hold.
    pub(crate) _share: Option<OwnedSemaphorePermit>,
}

pub(crate) enum BridgeBody {
    Whole(Full<Bytes>),
    Events(Box<Events>),
}

/// What a child says, event by event.
pub(crate) struct Events {
    first: Option<Outgoing>,
    messages: mpsc::Receiver<Outgoing>,
    /// What to say if the child ends before it has answered.
    unanswered: Option<Bytes>,
    sign_of_life: Interval,
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
    ended: bool,
    _in_work: InWork,
}

impl Events {
    pub(crate) fn new(
        first: Option<Outgoing>,
        messages: mpsc::Receiver<Outgoing>,
        unanswered: Option<Bytes>,
        mut end: watch::Receiver<bool>,
        in_work: InWork,
    ) -> Self {
        Self {
            first,
            messages,
            unanswered,
            sign_of_life: tokio::time::interval_at(Instant::now() + SIGN_OF_LIFE, SIGN_OF_LIFE),
            end: Box::pin(async move {
                let _ = end.wait_for(|end| *end).await; // without a sender, the bridge has ended
            }),
            ended: false,
            _in_work: in_work,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let next = match self.first.take() {
            Some(first) => Poll::Ready(Some(first)),
            None => self.messages.poll_recv(cx),
        };
        match next {
            Poll::Ready(Some(outgoing)) => {
                self.ended = outgoing.last;
                self.sign_of_life.reset();
                Poll::Ready(Some(message::event(&outgoing.message)))
            }
            Poll::Ready(None) => {
                self.ended = true;
                Poll::Ready(self.unanswered.take().map(|error| message::event(&error)))
            }
            Poll::Pending if self.end.as_mut().poll(cx).is_ready() => {
                self.ended = true;
                Poll::Ready(None)
            }
            Poll::Pending => {
                ready!(self.sign_of_life.poll_tick(cx));
                Poll::Ready(Some(Bytes::from_static(b":\n\n")))
            }
        }
    }
}

impl Body for BridgeBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(body) => Pin::new(body).poll_frame(cx),
            Self::Events(events) => events
                .poll(cx)
                .map(|event| event.map(|event| Ok(Frame::data(event)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Events(events) => events.ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Events(_) => SizeHint::new(),
        }
    }
}
