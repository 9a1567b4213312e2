//! The last question before bytes leave: clients whose connections ask a write's gate once more, at the socket.
//!
//! Between the gate and the socket lie a queue, the credentials, the pool and maybe a new connection: milliseconds, or
//! hours if the process is stopped there and continued. By then the claim behind the gate may be another's.

use std::{
    error::Error as StdError,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Extensions, Request};
use hyper::{
    body::{Body as HttpBody, Frame, SizeHint},
    rt::{Read, ReadBufCursor, Write},
};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{
        Builder,
        connect::{CaptureConnection, Connected, Connection, HttpConnector, capture_connection},
    },
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt},
};
use tower::{BoxError, ServiceBuilder, ServiceExt};

use crate::{
    Target, Verb,
    writer::{Attempt, Gate},
};

/// The gate as one attempt asks it: first in person, then through the connection that carries it.
pub(crate) struct Permit {
    gate: Arc<Gate>,
    verb: Verb,
    target: Target,
    dry_run: bool,
    number: u32,
    /// Why the connection sent nothing.
    refused: OnceLock<String>,
    sent: AtomicBool,
}

impl Permit {
    pub(crate) fn new(gate: Arc<Gate>, verb: Verb, target: Target, dry_run: bool, number: u32) -> Self {
        Self {
            gate,
            verb,
            target,
            dry_run,
            number,
            refused: OnceLock::new(),
            sent: AtomicBool::new(false),
        }
    }

    pub(crate) fn ask(&self) -> Result<(), String> {
        (self.gate)(&Attempt {
            verb: self.verb,
            target: &self.target,
            dry_run: self.dry_run,
            number: self.number,
        })
    }

    /// Why nothing was sent. `None`: something was, or it was not for the gate's sake.
    pub(crate) fn refusal(&self) -> Option<&String> {
        self.refused.get().filter(|_| !self.sent.load(Ordering::Acquire))
    }

    /// Asks on behalf of the connection.
    fn pass(&self) -> io::Result<()> {
        self.ask().map_err(|why| {
            let error = io::Error::new(io::ErrorKind::PermissionDenied, why.clone());
            let _ = self.refused.set(why); // the first reason is as good as the next
            error
        })
    }
}

/// A client of which each request that carries a [`Permit`] asks it right before each write to the socket.
///
/// It is what kube makes of a config, but for the spans of its trace. A way through a proxy only kube knows: there the gate
/// is asked in person alone.
pub(crate) fn client(config: Config) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() {
        return Client::try_from(config);
    }
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    let sockets = http.map_response(Socket::new);
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(sockets)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .map_request(Carried::request)
        .service(Builder::new(TokioExecutor::new()).build(connector));
    Ok(Client::new(service, config.default_namespace))
}

/// A request's body. It is asked for when its connection is known and nothing of the request has been sent yet: hyper
/// gathers head and body before it writes.
struct Carried {
    body: Body,
    permit: Option<(Arc<Permit>, CaptureConnection)>,
}

impl Carried {
    fn request(mut request: Request<Body>) -> Request<Self> {
        let permit = request.extensions_mut().remove::<Arc<Permit>>();
        let permit = permit.map(|permit| (permit, capture_connection(&mut request)));
        request.map(|body| Self { body, permit })
    }
}

impl HttpBody for Carried {
    type Data = Bytes;
    type Error = Box<dyn StdError + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some((permit, connection)) = self.permit.take() {
            permit.pass()?;
            let mut extras = Extensions::new();
            if let Some(connected) = &*connection.connection_metadata() {
                connected.get_extras(&mut extras);
            }
            if let Some(guard) = extras.get::<Guard>() {
                guard.set(&permit);
            }
        }
        Pin::new(&mut self.body).poll_frame(context).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Whose request a connection carries, for as long as somebody waits for its answer.
#[derive(Clone, Default)]
struct Guard(Arc<Mutex<Weak<Permit>>>);

impl Guard {
    fn set(&self, permit: &Arc<Permit>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(permit);
    }

    fn permit(&self) -> Option<Arc<Permit>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }
}

/// A connection below TLS: what it passes on is in the kernel's hands, which delivers it whether we are stopped or not.
struct Socket<S> {
    stream: S,
    guard: Guard,
}

impl<S> Socket<S> {
    fn new(stream: S) -> Self {
        let guard = Guard::default();
        Self { stream, guard }
    }
}

impl<S: Write + Unpin> Socket<S> {
    fn guarded(
        &mut self,
        write: impl FnOnce(Pin<&mut S>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let Some(permit) = self.guard.permit() else {
            return write(Pin::new(&mut self.stream));
        };
        permit.pass()?;
        let written = write(Pin::new(&mut self.stream));
        if matches!(written, Poll::Ready(Ok(_))) {
            permit.sent.store(true, Ordering::Release);
        }
        written
    }
}

impl<S: Write + Unpin> Write for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.guarded(|stream| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.guarded(|stream| stream.poll_write_vectored(context, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<S: Read + Unpin> Read for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: Connection> Connection for Socket<S> {
    fn connected(&self) -> Connected {
        self.stream.connected().extra(self.guard.clone())
    }
}
