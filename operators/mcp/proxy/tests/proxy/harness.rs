//! What the tests stand on: servers that do as a test says, a running proxy, and a plain client.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use mcp_proxy::{Backend, Backends, Counters, Proxy, Settings};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{oneshot, watch},
    task::{JoinHandle, JoinSet},
};

/// A net for what must happen, far above what it takes on a busy machine.
pub(crate) const NET: Duration = Duration::from_secs(120);

pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Waits, and fails the test if it takes for ever.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(NET, future)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within {NET:?}"))
}

/// Waits until it is true.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    soon(what, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

pub(crate) fn whole(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()).boxed_unsync());
    *answer.status_mut() = status;
    answer
}

pub(crate) fn text(body: impl Into<Bytes>) -> Answer {
    whole(StatusCode::OK, body)
}

pub(crate) fn events(pieces: BoxStream<'static, Bytes>) -> Answer {
    let body = StreamBody::new(pieces.map(|piece| Ok(Frame::data(piece))));
    let mut answer = Response::new(body.boxed_unsync());
    answer
        .headers_mut()
        .insert("content-type", "text/event-stream".parse().unwrap());
    answer
}

/// A server on a free port of the loopback address. Dropped, it is gone with all of its connections.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start<F, R>(answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Answer> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            let mut listening = stopped.clone();
            let mut connections = JoinSet::new();
            loop {
                let stream = tokio::select! {
                    accepted = listener.accept() => accepted.unwrap().0,
                    _ = listening.wait_for(|stop| *stop) => break,
                };
                let answer = answer.clone();
                let mut stopped = stopped.clone();
                connections.spawn(async move {
                    let service = service_fn(|request| {
                        let answered = answer(request);
                        async { Ok::<_, Infallible>(answered.await) }
                    });
                    let connection = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service);
                    let mut connection = std::pin::pin!(connection);
                    let stop = async {
                        let _ = stopped.wait_for(|stop| *stop).await;
                    };
                    tokio::select! {
                        _ = &mut connection => return,
                        () = stop => connection.as_mut().graceful_shutdown(),
                    }
                    let _ = connection.await;
                });
            }
            drop(listener);
            while connections.join_next().await.is_some() {}
        });
        Self { address, stop, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops as a good server does: nobody is accepted, and what is in work ends.
    pub(crate) async fn stop(mut self) {
        self.stop.send_replace(true);
        soon("the server stops", &mut self.task).await.unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A running proxy.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) backends: Backends,
    pub(crate) counters: Arc<Counters>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Running {
    pub(crate) async fn start(settings: Settings, backends: impl IntoIterator<Item = Backend>) -> Self {
        let settings = Settings {
            listen: "127.0.0.1:0".parse().unwrap(),
            ..settings
        };
        let known = Backends::default();
        known.set(backends);
        let proxy = Proxy::bind(settings, known.clone()).await.unwrap();
        let (stop, stopped) = oneshot::channel();
        Self {
            address: proxy.local_addr(),
            backends: known,
            counters: proxy.counters(),
            stop: Some(stop),
            task: tokio::spawn(proxy.run(async {
                let _ = stopped.await;
            })),
        }
    }

    pub(crate) async fn before(server: &Server) -> Self {
        Self::start(Settings::default(), [Backend::from_url(&server.url()).unwrap()]).await
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    pub(crate) async fn ended(&mut self) {
        soon("the proxy ends", &mut self.task).await.unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A pod by a number, at an address.
pub(crate) fn pod(number: usize, address: SocketAddr) -> Backend {
    Backend::new(&format!("pod0000{number}-0000"), &address.to_string())
        .unwrap()
        .ready(true)
}

/// One request over a connection of its own. The connection closes when what is returned is dropped.
pub(crate) struct Client {
    pub(crate) response: Response<Incoming>,
    connection: JoinHandle<()>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Client {
    pub(crate) async fn send(
        address: SocketAddr,
        request: Request<Full<Bytes>>,
    ) -> Result<Self, hyper::Error> {
        let stream = TcpStream::connect(address).await.expect("connected");
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(async move {
            let _ = connection.await;
        });
        let response = sender.send_request(request).await?;
        Ok(Self { response, connection })
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// The next piece of the body.
    pub(crate) async fn piece(&mut self) -> Option<Bytes> {
        let frame = soon("a piece of the body", self.response.body_mut().frame()).await?;
        frame.ok()?.into_data().ok()
    }

    /// Reads until the text has come.
    pub(crate) async fn read_until(&mut self, end: &str) -> String {
        let mut read = String::new();
        while !read.contains(end) {
            let piece = self
                .piece()
                .await
                .unwrap_or_else(|| panic!("{end:?} has not come, only {read:?}"));
            read.push_str(std::str::from_utf8(&piece).unwrap());
        }
        read
    }

    pub(crate) async fn body(&mut self) -> Bytes {
        let collected = soon("the body's end", self.response.body_mut().collect()).await;
        collected.expect("a complete body").to_bytes()
    }

    pub(crate) async fn json(&mut self) -> serde_json::Value {
        let body = self.body().await;
        serde_json::from_slice(&body).unwrap_or_else(|_| panic!("not JSON: {body:?}"))
    }
}

/// A request with these headers; `host` is set.
pub(crate) fn request(
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Request<Full<Bytes>> {
    let mut builder = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "mcp.example");
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Full::new(body.into())).unwrap()
}

pub(crate) async fn post(address: SocketAddr, path: &str, headers: &[(&str, &str)], body: &str) -> Client {
    let sent = Client::send(address, request(Method::POST, path, headers, body.to_owned()));
    soon("an answer", sent).await.unwrap()
}

pub(crate) async fn get(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Client {
    let sent = Client::send(address, request(Method::GET, path, headers, ""));
    soon("an answer", sent).await.unwrap()
}

/// Sends these bytes, and reads until the other side closes.
pub(crate) async fn raw(address: SocketAddr, bytes: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut read = Vec::new();
    let _ = soon("the connection closes", stream.read_to_end(&mut read)).await;
    String::from_utf8_lossy(&read).into_owned()
}
