//! What the proxy counts, as plain numbers that anyone can publish.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::Notify;

use crate::answer::Refusal;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// What the proxy counts. Cheap to raise; read with [`Counters::snapshot`].
        #[derive(Debug, Default)]
        pub struct Counters {
            $(pub(crate) $name: AtomicU64,)*
            pub(crate) no_call: Notify,
        }

        /// The counters at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Snapshot {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl Counters {
            /// The counters now.
            pub fn snapshot(&self) -> Snapshot {
                Snapshot { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Requests whose head was read.
    requests,
    /// Requests that a backend answered, with any status.
    answered,
    /// Refused for their method, 405.
    refused_method,
    /// Refused for their origin, 403.
    refused_origin,
    /// Refused for their size, 413.
    refused_size,
    /// Requests that call a tool which clients may not call, or that cannot be read for certain; answered by the proxy.
    refused_tool,
    /// Answers that were not passed on, because a list of tools in them could not be filtered.
    withheld,
    /// Refused because the pod of their session is gone or the session id is not one of ours, 404.
    session_gone,
    /// No backend was ready or could be connected to, 503.
    unavailable,
    /// The backend closed the connection before it answered, 502.
    lost,
    /// Clients that left before the answer was complete.
    client_gone,
    /// Connections opened to backends.
    connections_opened,
    /// Requests sent over a connection that was open already.
    connections_reused,
    /// Requests sent again, because it was certain that no byte of them had been sent.
    sent_again,
    /// A gauge: connections of clients.
    clients,
    /// A gauge: calls in work.
    calls,
    /// A gauge: streams that are open without a call (GET, and `subscriptions/listen`).
    streams,
}

/// Counts one request as in work, for as long as it lives.
#[derive(Debug)]
pub(crate) struct InWork {
    counters: std::sync::Arc<Counters>,
    stream: bool,
}

impl InWork {
    pub(crate) fn new(counters: &std::sync::Arc<Counters>, stream: bool) -> Self {
        let counters = counters.clone();
        counters.gauge(stream).fetch_add(1, Relaxed);
        Self { counters, stream }
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl Drop for InWork {
    fn drop(&mut self) {
        if self.counters.gauge(self.stream).fetch_sub(1, Relaxed) == 1 && !self.stream {
            self.counters.no_call.notify_waiters();
        }
    }
}

impl Counters {
    fn gauge(&self, stream: bool) -> &AtomicU64 {
        if stream { &self.streams } else { &self.calls }
    }

    /// Returns when no call is in work.
    pub(crate) async fn all_calls_ended(&self) {
        loop {
            let mut changed = std::pin::pin!(self.no_call.notified());
            changed.as_mut().enable();
            if self.calls.load(Relaxed) == 0 {
                return;
            }
            changed.await;
        }
    }
}

impl Counters {
    /// What a refusal counts as.
    pub(crate) fn of(&self, refusal: Refusal) -> Option<&AtomicU64> {
        match refusal {
            Refusal::Method => Some(&self.refused_method),
            Refusal::Origin => Some(&self.refused_origin),
            Refusal::TooLarge { .. } => Some(&self.refused_size),
            Refusal::BrokenBody | Refusal::Slow => None,
            Refusal::Busy => Some(&self.unavailable),
            Refusal::SessionGone => Some(&self.session_gone),
            Refusal::NoBackend | Refusal::Unreachable => Some(&self.unavailable),
            Refusal::Lost => Some(&self.lost),
        }
    }
}
