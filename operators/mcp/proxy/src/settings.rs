//! What a proxy is told at its start, and the times that it keeps.

use std::{net::SocketAddr, time::Duration};

use crate::{Origins, Tools};

/// A connection to a backend must be made within this time.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A request's head must be complete within this time; a connection without a request is closed after it, too.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Connections to backends are closed after so long without a request. Node and uvicorn close after 5 s (A48): one that
/// is closed while a request is on its way costs a 502, because a POST must not be sent twice. With the sweep's interval
/// added, no connection is used that has been idle for 4 s.
pub(crate) const POOL_IDLE: Duration = Duration::from_secs(3);

/// How often idle connections are looked through.
pub(crate) const POOL_SWEEP: Duration = Duration::from_millis(500);

/// A peer that does not answer probes for about a minute is gone: without it, the stream of a client that lost its network
/// would stay for ever.
pub(crate) const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(30);
pub(crate) const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(10);
pub(crate) const KEEP_ALIVE_PROBES: u32 = 3;

/// Per connection and direction. It bounds a request's head, and what a slow reader makes us hold.
pub(crate) const MAX_BUFFER: usize = 64 * 1024;

/// With a filter of tools, requests and lists of tools are held until they are complete: all of them together so much at most, not
/// counting the first [`MAX_BUFFER`] of each.
pub(crate) const MAX_HELD: usize = 64 * 1024 * 1024;

/// A body that is held must be complete within this time, and no piece of it may be longer in coming: what is held for one client
/// is missing for others.
pub(crate) const HELD_BODY_TIME: Duration = Duration::from_secs(60);
pub(crate) const HELD_PIECE_TIME: Duration = Duration::from_secs(10);

/// So long the id of a refused request is waited for, if it has not come yet: it is in the body.
pub(crate) const ID_TIME: Duration = Duration::from_secs(2);

/// Streams that were told to end have this long to say so to their clients.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(2);

/// What a [`Proxy`](crate::Proxy) is told at its start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to listen. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Which `Origin`s may send requests. By default those of this machine (`http://localhost:*` and the like).
    pub allowed_origins: Origins,
    /// A larger request body is refused (413).
    pub max_body_bytes: u64,
    /// Put before the path in the `endpoint` event of the old SSE transport, for an ingress that strips a prefix from
    /// paths. Empty: nothing is put there, or what `X-Forwarded-Prefix` says if proxies' headers are trusted.
    pub endpoint_prefix: String,
    /// Whether `X-Forwarded-*` and `Forwarded` of a request are kept. If not, they are replaced.
    pub trust_proxy_headers: bool,
    /// The server keeps no sessions: every request may go to any pod, and session ids pass unchanged.
    pub stateless: bool,
    /// Put before every path that is sent to a backend. Empty by default, so that paths are untouched.
    pub target_path: String,
    /// Which tools clients see and may call. By default all of them, and then no message is looked at.
    pub tools: Tools,
    /// How long calls may go on after the signal to stop.
    pub grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([0, 0, 0, 0], 8080)),
            allowed_origins: Origins::default(),
            max_body_bytes: 16 * 1024 * 1024,
            endpoint_prefix: String::new(),
            trust_proxy_headers: false,
            stateless: false,
            target_path: String::new(),
            tools: Tools::default(),
            grace: Duration::from_secs(25),
        }
    }
}
