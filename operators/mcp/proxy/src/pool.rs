//! Connections to one backend: those that wait for a request, and new ones.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use crate::{
    body::RequestBody,
    settings::{
        CONNECT_TIMEOUT, KEEP_ALIVE_AFTER, KEEP_ALIVE_EVERY, KEEP_ALIVE_PROBES, MAX_BUFFER, POOL_IDLE,
        POOL_SWEEP,
    },
};

/// How long others are preferred after a backend could not be connected to: long enough that not every call waits for a pod
/// that has just vanished, short enough that a pod which is back gets its share.
const SHUNNED_FOR: Duration = Duration::from_secs(2);

pub(crate) type Sender = SendRequest<RequestBody>;

/// The connections to one backend that wait for a request.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    state: Mutex<State>,
    swept: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<(Instant, Sender)>,
    shunned_until: Option<Instant>,
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection that was used last: it is the least likely to be closed by the other side.
    pub(crate) fn take(&self) -> Option<Sender> {
        let mut state = self.state();
        while let Some((since, sender)) = state.idle.pop() {
            if since.elapsed() >= POOL_IDLE {
                state.idle.clear(); // the others have waited longer
                return None;
            }
            // One that is not ready still sends its last request: the answer came before its end.
            if sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    /// Takes a connection back after a complete answer.
    pub(crate) fn put(self: &Arc<Self>, sender: Sender) {
        if sender.is_closed() {
            return;
        }
        self.state().idle.push((Instant::now(), sender));
        if !self.swept.swap(true, Relaxed) {
            tokio::spawn(sweep(self.clone()));
        }
    }

    pub(crate) fn close_idle(&self) {
        self.state().idle.clear();
    }

    /// Whether it could not be connected to a moment ago.
    pub(crate) fn is_shunned(&self) -> bool {
        self.state()
            .shunned_until
            .is_some_and(|until| Instant::now() < until)
    }

    /// A new connection.
    pub(crate) async fn connect(&self, host: &str, port: u16) -> io::Result<Sender> {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, connected(host, port)).await;
        let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        self.state().shunned_until = connected.is_err().then(|| Instant::now() + SHUNNED_FOR);
        connected
    }
}

async fn connected(host: &str, port: u16) -> io::Result<Sender> {
    let stream = TcpStream::connect((host, port)).await?;
    tune(&stream);
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_BUFFER)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection to a backend ended");
        }
    });
    Ok(sender)
}

/// Small pieces at once, and a peer that vanished is noticed.
pub(crate) fn tune(stream: &TcpStream) {
    let keep_alive = TcpKeepalive::new()
        .with_time(KEEP_ALIVE_AFTER)
        .with_interval(KEEP_ALIVE_EVERY)
        .with_retries(KEEP_ALIVE_PROBES);
    let set = stream
        .set_nodelay(true)
        .and_then(|()| SockRef::from(stream).set_tcp_keepalive(&keep_alive));
    if let Err(error) = set {
        tracing::debug!(%error, "cannot set a socket's options"); // it may be closed already
    }
}

/// Closes connections that have waited too long, until there are none.
async fn sweep(pool: Arc<Pool>) {
    loop {
        tokio::time::sleep(POOL_SWEEP).await;
        let mut state = pool.state();
        state
            .idle
            .retain(|(since, sender)| since.elapsed() < POOL_IDLE && !sender.is_closed());
        if state.idle.is_empty() {
            pool.swept.store(false, Relaxed); // under the lock: `put` sees it after its push, or we see the push
            return;
        }
    }
}
