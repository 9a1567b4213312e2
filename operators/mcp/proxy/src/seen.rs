//! The first bytes of a request's body, kept until its answer begins: an error of our own names the request that it answers.

use std::{
    mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::{sync::Notify, time::timeout};

use crate::{
    body::drain,
    peek::{self, MAX_PEEKED, PeekedId},
    settings::ID_TIME,
};

/// What is known of a request's body by those who do not read it.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    too_large: AtomicBool,
    state: Mutex<State>,
    given_back: Notify,
}

#[derive(Debug, Default)]
struct State {
    pieces: Vec<Bytes>,
    size: usize,
    rest: Rest,
    /// Nobody will ask any more.
    is_over: bool,
}

/// Where the rest of the body is.
#[derive(Debug, Default)]
enum Rest {
    /// It has been read, or somebody else drains it.
    #[default]
    Gone,
    /// It is being sent.
    InUse,
    /// Nobody sends it any more.
    Back(Incoming),
}

impl Seen {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A body will be read, and given back.
    pub(crate) fn begin(&self) {
        self.state().rest = Rest::InUse;
    }

    /// Keeps a piece, if it is one of the first. It is not copied.
    pub(crate) fn keep(&self, piece: &Bytes) {
        let mut state = self.state();
        if !state.is_over && state.size < MAX_PEEKED {
            state.size += piece.len();
            state.pieces.push(piece.clone());
        }
    }

    /// Gives the rest back: if nobody asks for it, it is drained.
    pub(crate) fn give_back(&self, rest: Option<Incoming>) {
        let mut state = self.state();
        match rest {
            Some(rest) if state.is_over => drain(rest),
            Some(rest) => state.rest = Rest::Back(rest),
            None => state.rest = Rest::Gone,
        }
        self.given_back.notify_one();
    }

    pub(crate) fn set_too_large(&self) {
        self.too_large.store(true, Relaxed);
    }

    /// Whether the limit was exceeded.
    pub(crate) fn is_too_large(&self) -> bool {
        self.too_large.load(Relaxed)
    }

    /// Lets everything go: the answer has begun.
    pub(crate) fn forget(&self) {
        let mut state = self.state();
        state.is_over = true;
        state.pieces = Vec::new();
        if let Rest::Back(rest) = mem::take(&mut state.rest) {
            drain(rest);
        }
    }

    /// The id of the request, as JSON. What has not come yet is waited for, for a moment.
    pub(crate) async fn id(&self) -> Option<String> {
        let mut rest = None;
        let id = timeout(ID_TIME, self.find_id(&mut rest)).await;
        if let Some(rest) = rest {
            drain(rest);
        }
        self.forget();
        id.ok().flatten()
    }

    async fn find_id(&self, rest: &mut Option<Incoming>) -> Option<String> {
        let mut read = mem::take(&mut self.state().pieces).concat();
        loop {
            match peek::id(&read) {
                PeekedId::Id(id) => return Some(id),
                PeekedId::NoId => return None,
                PeekedId::More => {}
            }
            if rest.is_none() {
                *rest = self.rest().await;
            }
            let frame = rest.as_mut()?.frame().await?.ok()?;
            if let Some(piece) = frame.data_ref() {
                read.extend_from_slice(piece);
            }
        }
    }

    /// The rest of the body, once it is not in use.
    async fn rest(&self) -> Option<Incoming> {
        loop {
            {
                let mut state = self.state();
                match mem::take(&mut state.rest) {
                    Rest::Back(rest) => return Some(rest),
                    Rest::Gone => return None,
                    Rest::InUse => state.rest = Rest::InUse,
                }
            }
            self.given_back.notified().await;
        }
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        self.forget();
    }
}
