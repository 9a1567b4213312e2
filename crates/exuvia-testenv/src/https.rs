//! An HTTPS/1.1 server on loopback with its own runtime, whose handler may cut or reset its connection.

use std::{
    future::Future,
    io,
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::task::AtomicWaker;
use hyper::{
    Request, Response,
    body::{Body, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rustls::{ServerConfig, crypto::ring};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    runtime::Runtime,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::{Error, certs::Authority};

/// Two workers, so that one callback that blocks does not hold up the other connections.
const WORKERS: usize = 2;

/// Returned by a handler in place of an answer: the connection is closed without one.
#[derive(Debug, thiserror::Error)]
#[error("the connection is cut on purpose")]
pub(crate) struct Cut;

/// A running server. It does not depend on the runtime that it was started from, and ends when dropped.
pub(crate) struct Listener {
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Listener {
    /// Serves `handler` on a free loopback port with a certificate of `authority`.
    pub(crate) async fn start<H, F, B>(
        authority: &Authority,
        name: &'static str,
        handler: H,
    ) -> Result<Self, Error>
    where
        H: Fn(Request<Incoming>, Arc<Link>) -> F + Clone + Send + 'static,
        F: Future<Output = Result<Response<B>, Cut>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
    {
        let acceptor = acceptor(authority)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name(name)
            .enable_all()
            .build()
            .map_err(Error::Listen)?;
        // From here on `Listener` owns the runtime: dropping a bare one inside another runtime panics.
        let mut listener = Self {
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            runtime: Some(runtime),
        };
        let socket = std::net::TcpListener::bind(listener.address).map_err(Error::Listen)?;
        socket.set_nonblocking(true).map_err(Error::Listen)?;
        listener.address = socket.local_addr().map_err(Error::Listen)?;
        let (listening, ready) = tokio::sync::oneshot::channel();
        listener.spawn(async move {
            match TcpListener::from_std(socket) {
                Ok(socket) => {
                    let _ = listening.send(Ok(()));
                    accept(socket, acceptor, handler).await;
                }
                Err(error) => {
                    let _ = listening.send(Err(error));
                }
            }
        });
        let stopped = |_| io::Error::other("the server's runtime has stopped");
        ready.await.map_err(stopped).flatten().map_err(Error::Listen)?;
        Ok(listener)
    }

    /// Where the server listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(task);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background(); // waiting, as a plain drop does, is forbidden in async code
        }
    }
}

fn acceptor(authority: &Authority) -> Result<TlsAcceptor, Error> {
    let (certs, key) = authority.server()?.rustls_parts()?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(certs, key))
        .map_err(Error::certificate)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn accept<H, F, B>(socket: TcpListener, acceptor: TlsAcceptor, handler: H)
where
    H: Fn(Request<Incoming>, Arc<Link>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Response<B>, Cut>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    loop {
        match socket.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(connection(stream, acceptor.clone(), handler.clone()));
            }
            Err(error) => {
                // Out of file descriptors, most likely: some come back when other connections end.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

async fn connection<H, F, B>(stream: TcpStream, acceptor: TlsAcceptor, handler: H)
where
    H: Fn(Request<Incoming>, Arc<Link>) -> F + Send + 'static,
    F: Future<Output = Result<Response<B>, Cut>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let _ = stream.set_nodelay(true);
    let stream = match acceptor.accept(stream).await {
        Ok(stream) => stream,
        Err(error) => return tracing::debug!(%error, "TLS handshake failed"),
    };
    let link = Arc::new(Link::default());
    let io = TokioIo::new(Linked {
        stream,
        link: Arc::clone(&link),
    });
    let service = service_fn(move |request| handler(request, Arc::clone(&link)));
    if let Err(error) = hyper::server::conn::http1::Builder::new()
        .serve_connection(io, service)
        .await
    {
        tracing::debug!(%error, "connection ended early");
    }
}

/// What a handler and its answer's body can know and decide about their connection.
#[derive(Default)]
pub(crate) struct Link {
    reset: AtomicBool,
    flushes: AtomicU64,
    waiting: AtomicWaker,
}

impl Link {
    /// Makes the connection end with a TCP RST instead of a FIN.
    pub(crate) fn reset_on_close(&self) {
        self.reset.store(true, Ordering::Release);
    }

    /// How often everything written so far has reached the kernel.
    pub(crate) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Acquire)
    }

    /// Ready once there was a flush after the `seen`-th.
    pub(crate) fn poll_flushed_since(&self, seen: u64, cx: &Context<'_>) -> Poll<()> {
        self.waiting.register(cx.waker());
        if self.flushes() > seen {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    fn flushed(&self) {
        self.flushes.fetch_add(1, Ordering::AcqRel);
        self.waiting.wake();
    }
}

/// A TLS stream that keeps its [`Link`] up to date, and obeys it when it ends.
struct Linked {
    stream: TlsStream<TcpStream>,
    link: Arc<Link>,
}

impl Drop for Linked {
    fn drop(&mut self) {
        if self.link.reset.load(Ordering::Acquire) {
            let socket = socket2::SockRef::from(self.stream.get_ref().0);
            if let Err(error) = socket.set_linger(Some(Duration::ZERO)) {
                tracing::warn!(%error, "cannot reset a connection, closing it instead");
            }
        }
    }
}

impl AsyncRead for Linked {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Linked {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if let Poll::Ready(Ok(())) = flushed {
            self.link.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
