//! Where a backend's answer is read from: a connection of hyper's, or the socket itself.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::{body::BodyError, own_stream::OwnStream};

/// Where a backend's answer is read from.
pub(crate) enum Source {
    /// A connection that serves other requests, too.
    Shared(Incoming),
    /// A socket that is there for this stream only.
    Own(Box<OwnStream>),
}

impl Body for Source {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Shared(body) => Pin::new(body).poll_frame(cx).map_err(BodyError::from),
            Self::Own(stream) => {
                let piece = ready!(stream.poll(cx));
                Poll::Ready(piece.map(|piece| Ok(Frame::data(piece?))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Shared(body) => body.is_end_stream(),
            Self::Own(stream) => stream.is_done(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Shared(body) => body.size_hint(),
            Self::Own(_) => SizeHint::new(),
        }
    }
}
