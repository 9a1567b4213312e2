//! Streams: nothing is held back, nothing goes on without its client, nothing is sent twice.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Method, StatusCode};
use mcp_proxy::{Backend, Settings};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
};

use crate::harness::{Client, Running, Server, events, get, post, request, soon, text, until};

#[tokio::test]
async fn the_head_of_a_silent_stream_comes_at_once() {
    let server = Server::start(|_| async { events(stream::pending().boxed()) }).await;
    let proxy = Running::before(&server).await;
    for method in [Method::GET, Method::POST] {
        let sent = Client::send(proxy.address, request(method, "/mcp", &[], ""));
        let answer = soon("the head", sent).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    }
}

#[tokio::test]
async fn every_piece_comes_before_the_next_one_is_made() {
    let (next, pieces) = mpsc::unbounded_channel::<Bytes>();
    let pieces = Arc::new(tokio::sync::Mutex::new(Some(pieces)));
    let server = Server::start(move |_| {
        let pieces = pieces.clone();
        async move {
            let pieces = pieces.lock().await.take().unwrap();
            events(
                stream::unfold(pieces, |mut pieces| async {
                    Some((pieces.recv().await?, pieces))
                })
                .boxed(),
            )
        }
    })
    .await;
    let proxy = Running::before(&server).await;
    let mut answer = get(proxy.address, "/mcp", &[]).await;
    for n in 0..50 {
        // Half events, comments and single bytes: each arrives although nothing follows it.
        let piece = ["data: {\"n\":", "1}\n\n", ": ping\n", "i", "d: 7\n", "\n"][n % 6];
        next.send(Bytes::from(piece)).unwrap();
        assert_eq!(answer.piece().await.unwrap(), piece);
    }
    drop(next);
    assert_eq!(answer.piece().await, None);
}

/// Counts requests in work. A request ends when the server drops it.
fn counting() -> (Arc<AtomicUsize>, impl Fn() -> Guard + Clone + Send + Sync) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    (count, move || {
        counted.fetch_add(1, SeqCst);
        Guard(counted.clone())
    })
}

struct Guard(Arc<AtomicUsize>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_the_first_byte_ends_the_call_at_the_backend() {
    let (in_work, begin) = counting();
    let server = Server::start(move |_| {
        let guard = begin();
        async move {
            std::future::pending::<()>().await;
            drop(guard);
            text("")
        }
    })
    .await;
    let proxy = Running::before(&server).await;
    for session in [None, Some("a session that does not exist")] {
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        let head = "POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}";
        stream.write_all(head.as_bytes()).await.unwrap();
        until("the call has begun", || in_work.load(SeqCst) == 1).await;
        match session {
            None => drop(stream),                        // both directions
            Some(_) => stream.shutdown().await.unwrap(), // only its own: HTTP has no half-open clients
        }
        until("the call has ended", || in_work.load(SeqCst) == 0).await;
    }
    until("it was counted", || proxy.counters.snapshot().client_gone == 2).await;
    assert_eq!(proxy.counters.snapshot().calls, 0);
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_ends_it_at_the_backend() {
    let (in_work, begin) = counting();
    let server = Server::start(move |_| {
        let guard = begin();
        async move {
            let first = stream::once(async { Bytes::from_static(b"data: 1\n\n") });
            let silent = stream::once(async move {
                std::future::pending::<()>().await;
                drop(guard);
                Bytes::new()
            });
            events(first.chain(silent).boxed())
        }
    })
    .await;
    let proxy = Running::before(&server).await;
    for method in [Method::GET, Method::POST] {
        let sent = Client::send(proxy.address, request(method, "/mcp", &[], ""));
        let mut answer = soon("an answer", sent).await.unwrap();
        assert_eq!(answer.read_until("\n\n").await, "data: 1\n\n");
        assert_eq!(in_work.load(SeqCst), 1);
        drop(answer);
        until("the stream has ended", || in_work.load(SeqCst) == 0).await;
    }
    until("nothing is in work", || proxy.counters.snapshot().streams == 0).await;
}

/// A server that does with each connection what a test says.
async fn by_hand() -> (Backend, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backend = Backend::from_url(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    (backend, listener)
}

/// Reads one request with a body of two bytes.
async fn read_request(stream: &mut BufReader<TcpStream>) -> bool {
    let mut line = String::new();
    loop {
        line.clear();
        if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
            return false;
        }
        if line == "\r\n" {
            return stream.read_exact(&mut [0; 2]).await.is_ok();
        }
    }
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[tokio::test]
async fn a_post_that_was_sent_is_never_sent_again() {
    let (backend, listener) = by_hand().await;
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = seen.clone();
    // The first request of a connection is answered. The second is read, and then the connection closes.
    let server = tokio::spawn(async move {
        loop {
            let mut stream = BufReader::new(listener.accept().await.unwrap().0);
            let counted = counted.clone();
            tokio::spawn(async move {
                if read_request(&mut stream).await {
                    counted.fetch_add(1, SeqCst);
                    stream.write_all(OK).await.unwrap();
                    if read_request(&mut stream).await {
                        counted.fetch_add(1, SeqCst);
                    }
                }
            });
        }
    });
    let proxy = Running::start(Settings::default(), [backend]).await;
    // On a machine that is busy, a connection may be closed before it is used again: then the next one is a first one, too.
    let mut sent = 1;
    let mut second = post(proxy.address, "/mcp", &[], "{}").await;
    while second.status() == StatusCode::OK {
        assert_eq!(second.body().await, "ok");
        second = post(proxy.address, "/mcp", &[], "{}").await;
        sent += 1;
    }
    assert_eq!(second.status(), StatusCode::BAD_GATEWAY);
    let message = second.json().await["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(message.contains("may have been carried out"), "{message}");
    assert_eq!(seen.load(SeqCst), sent, "each was seen once");
    assert_eq!(proxy.counters.snapshot().lost, 1);
    server.abort();
}

#[tokio::test]
async fn a_connection_that_the_backend_closed_costs_no_request() {
    let (backend, listener) = by_hand().await;
    let closed = Arc::new(Semaphore::new(0));
    let noticed = closed.clone();
    // Every connection serves one request and closes, without having said so.
    let server = tokio::spawn(async move {
        loop {
            let mut stream = BufReader::new(listener.accept().await.unwrap().0);
            assert!(read_request(&mut stream).await);
            stream.write_all(OK).await.unwrap();
            stream.shutdown().await.unwrap();
            let left = stream.read(&mut [0; 1]).await.unwrap_or(0);
            assert_eq!(left, 0, "nothing is sent over a connection that is closed");
            noticed.add_permits(1);
        }
    });
    let proxy = Running::start(Settings::default(), [backend]).await;
    for _ in 0..20 {
        let mut answer = post(proxy.address, "/mcp", &[], "{}").await;
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.body().await, "ok");
        soon("the proxy closes its side", closed.acquire())
            .await
            .unwrap()
            .forget();
    }
    assert_eq!(proxy.counters.snapshot().lost, 0);
    server.abort();
}

#[tokio::test]
async fn connections_are_used_again_and_then_closed() {
    let (backend, listener) = by_hand().await;
    let accepted = Arc::new(AtomicUsize::new(0));
    let counted = accepted.clone();
    let (closed, mut has_closed) = mpsc::unbounded_channel();
    let server = tokio::spawn(async move {
        loop {
            let mut stream = BufReader::new(listener.accept().await.unwrap().0);
            counted.fetch_add(1, SeqCst);
            let closed = closed.clone();
            tokio::spawn(async move {
                while read_request(&mut stream).await {
                    stream.write_all(OK).await.unwrap();
                }
                closed.send(()).unwrap();
            });
        }
    });
    let proxy = Running::start(Settings::default(), [backend]).await;
    for _ in 0..10 {
        assert_eq!(post(proxy.address, "/mcp", &[], "{}").await.body().await, "ok");
    }
    let opened = accepted.load(SeqCst);
    assert!(opened < 10, "{opened} connections for 10 requests");
    // Long before the five seconds after which Node and uvicorn would close them.
    for _ in 0..opened {
        soon("an idle connection is closed", has_closed.recv())
            .await
            .unwrap();
    }
    server.abort();
}
