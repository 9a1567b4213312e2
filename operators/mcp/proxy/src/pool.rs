//! Connections to one backend: those that wait for a request, and new ones.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::Poll,
    time::{Duration, Instant},
};

use http::{Request, Response};
use hyper::client::conn::{
    TrySendError,
    http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use crate::{
    body::RequestBody,
    own_stream::{HeadFirst, OwnStream, Stop, can_be_own},
    settings::{
        CONNECT_TIMEOUT, KEEP_ALIVE_AFTER, KEEP_ALIVE_EVERY, KEEP_ALIVE_PROBES, MAX_BUFFER, POOL_IDLE,
        POOL_SWEEP,
    },
    source::Source,
};

/// How long others are preferred after a backend could not be connected to: long enough that not every call waits for a pod
/// that has just vanished, short enough that a pod which is back gets its share.
const SHUNNED_FOR: Duration = Duration::from_secs(2);

pub(crate) type Sender = SendRequest<RequestBody>;
type Connection = http1::Connection<TokioIo<HeadFirst>, RequestBody>;

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

    /// A new connection. One for a stream is driven by [`Link::send`] until the head of the answer is there.
    pub(crate) async fn connect(&self, host: &str, port: u16, for_stream: bool) -> io::Result<Link> {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, connected(host, port, for_stream)).await;
        let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        self.state().shunned_until = connected.is_err().then(|| Instant::now() + SHUNNED_FOR);
        connected
    }
}

async fn connected(host: &str, port: u16, for_stream: bool) -> io::Result<Link> {
    let stream = TcpStream::connect((host, port)).await?;
    tune(&stream);
    let stop: Option<Arc<Stop>> = for_stream.then(Arc::default);
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_BUFFER)
        .handshake(TokioIo::new(HeadFirst::new(stream, stop.clone())))
        .await
        .map_err(io::Error::other)?;
    let undriven = if let Some(stop) = stop {
        Some(Box::new((connection, stop)))
    } else {
        drive(connection);
        None
    };
    Ok(Link { sender, undriven })
}

fn drive(connection: Connection) {
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection to a backend ended");
        }
    });
}

/// A connection that a request can be sent over.
pub(crate) struct Link {
    sender: Sender,
    undriven: Option<Box<(Connection, Arc<Stop>)>>,
}

impl From<Sender> for Link {
    fn from(sender: Sender) -> Self {
        Self {
            sender,
            undriven: None,
        }
    }
}

/// An answer, and the connection that can be given back after it.
pub(crate) type Sent = (Response<Source>, Option<Sender>);

impl Link {
    pub(crate) async fn send(
        self,
        request: Request<RequestBody>,
    ) -> Result<Sent, TrySendError<Request<RequestBody>>> {
        let Self { mut sender, undriven } = self;
        let Some(undriven) = undriven else {
            let answer = sender.try_send_request(request).await?;
            return Ok((answer.map(Source::Shared), Some(sender)));
        };
        let (connection, stop) = *undriven;
        // Boxed, because every other request would need room for it, too.
        Box::pin(first_head(sender, connection, &stop, request)).await
    }
}

/// Sends a request over a connection that nobody drives, and takes the socket from it if the answer is a stream.
async fn first_head(
    mut sender: Sender,
    connection: Connection,
    stop: &Stop,
    request: Request<RequestBody>,
) -> Result<Sent, TrySendError<Request<RequestBody>>> {
    let mut connection = Some(connection);
    let answer = {
        let mut answer = pin!(sender.try_send_request(request));
        poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            if let Some(driven) = &mut connection
                && Pin::new(driven).poll(cx).is_ready()
            {
                connection = None; // dropped, it tells the request that there will be no answer
            }
            answer.as_mut().poll(cx)
        })
        .await?
    };
    let Some(connection) = connection else {
        return Ok((answer.map(Source::Shared), Some(sender)));
    };
    if stop.has_stopped() && can_be_own(answer.status(), answer.headers()) {
        let http1::Parts { io, read_buf, .. } = connection.into_parts();
        let own = OwnStream::new(io.into_inner(), read_buf);
        return Ok((answer.map(|_| Source::Own(Box::new(own))), None));
    }
    stop.go_on();
    drive(connection);
    Ok((answer.map(Source::Shared), Some(sender)))
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
