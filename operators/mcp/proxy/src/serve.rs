//! Accepts connections and serves them until told to stop: what the proxy and the bridge have in common.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use hyper::{
    body::{Body, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

use crate::{
    pool::tune,
    settings::{HEAD_TIMEOUT, LAST_WORDS, MAX_BUFFER},
};

/// When accepting fails, there are too many open files or the like: a connection that ends makes room.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// What answers requests.
pub(crate) trait Handler: Clone + Send + Sync + 'static {
    type Body: Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Send + 'static;

    /// Dropped when the client has gone.
    fn handle(
        self,
        client: IpAddr,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;

    /// Ends when no call is in work any more. Streams do not count.
    fn calls_ended(&self) -> impl Future<Output = ()> + Send;

    /// A connection has come, or gone.
    fn connected(&self, _come: bool) {}
}

pub(crate) async fn bind(listen: SocketAddr) -> io::Result<TcpListener> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot listen on {listen}: {error}"));
    TcpListener::bind(listen).await.map_err(named)
}

/// Serves until `stop`. Then nobody is accepted, calls may end within the grace, and then `end` tells streams to end.
pub(crate) async fn serve<H: Handler>(
    listener: TcpListener,
    handler: H,
    end: watch::Sender<bool>,
    grace: Duration,
    stop: impl Future<Output = ()>,
) {
    let (stopping, _) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, client)) => {
                    let served = connection(stream, client.ip(), handler.clone(), stopping.subscribe());
                    connections.spawn(served);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    stopping.send_replace(true);
    let all_gone = async |connections: &mut JoinSet<()>| while connections.join_next().await.is_some() {};
    let calls_ended = tokio::time::timeout(grace, async {
        tokio::select! {
            () = handler.calls_ended() => {}
            () = all_gone(&mut connections) => {}
        }
    });
    if calls_ended.await.is_err() {
        tracing::warn!(grace = ?grace, "calls have not ended within the grace");
    }
    end.send_replace(true);
    if tokio::time::timeout(LAST_WORDS, all_gone(&mut connections))
        .await
        .is_err()
    {
        connections.shutdown().await;
    }
}

async fn connection<H: Handler>(
    stream: TcpStream,
    client: IpAddr,
    handler: H,
    mut stopping: watch::Receiver<bool>,
) {
    struct Connected<H: Handler>(H);
    impl<H: Handler> Drop for Connected<H> {
        fn drop(&mut self) {
            self.0.connected(false);
        }
    }

    tune(&stream);
    handler.connected(true);
    let connected = Connected(handler);
    let service = service_fn(|request| {
        let handler = connected.0.clone();
        // Boxed, because the connection has room for it as long as it lives: 3 KiB for each idle stream.
        let answer = Box::pin(handler.handle(client, request));
        async move { Ok::<_, std::convert::Infallible>(answer.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let served = tokio::select! {
        served = &mut connection => served,
        () = async { let _ = stopping.wait_for(|stopping| *stopping).await; } => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "connection of a client ended");
    }
}
