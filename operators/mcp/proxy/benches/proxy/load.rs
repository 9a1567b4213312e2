//! The load: calls as fast as they are answered, first events, and many idle streams.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http1::SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","arguments":{"a":2,"b":3},"_meta":{"progressToken":1}}}"#;

pub(crate) struct Rate {
    pub(crate) per_second: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

pub(crate) fn quantile(sorted: &[Duration], share: f64) -> Duration {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let at = ((sorted.len() - 1) as f64 * share).round() as usize;
    sorted[at]
}

type Sender = SendRequest<Full<Bytes>>;

async fn connect(address: SocketAddr) -> Sender {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}

fn request(method: Method, body: &'static str) -> Request<Full<Bytes>> {
    Request::builder()
        .method(method)
        .uri("/mcp")
        .header("host", "mcp.example")
        .header("accept", "application/json, text/event-stream")
        .header("content-type", "application/json")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "tools/call")
        .header("user-agent", "bench/1.0")
        .body(Full::from(body))
        .unwrap()
}

/// Calls over so many connections, one after the other on each.
pub(crate) async fn rate(address: SocketAddr, connections: usize, time: Duration) -> Rate {
    let started = Instant::now();
    let callers: Vec<_> = (0..connections)
        .map(|_| {
            tokio::spawn(async move {
                let mut sender = connect(address).await;
                let mut took = Vec::new();
                while started.elapsed() < time {
                    let begun = Instant::now();
                    sender.ready().await.unwrap();
                    let answer = sender.send_request(request(Method::POST, CALL)).await.unwrap();
                    assert!(answer.status().is_success());
                    answer.into_body().collect().await.unwrap();
                    took.push(begun.elapsed());
                }
                took
            })
        })
        .collect();
    let mut took = Vec::new();
    for caller in callers {
        took.extend(caller.await.unwrap());
    }
    let seconds = started.elapsed().as_secs_f64();
    took.sort_unstable();
    Rate {
        per_second: took.len() as f64 / seconds,
        p50: quantile(&took, 0.5),
        p99: quantile(&took, 0.99),
    }
}

/// From the connection to the first event, one stream after the other.
pub(crate) async fn first_events(address: SocketAddr, count: usize) -> Vec<Duration> {
    let mut took = Vec::new();
    for _ in 0..count {
        let begun = Instant::now();
        let _stream = stream(address).await;
        took.push(begun.elapsed());
    }
    took
}

async fn stream(address: SocketAddr) -> (Sender, Response<Incoming>) {
    let mut sender = connect(address).await;
    let mut answer = sender.send_request(request(Method::GET, "")).await.unwrap();
    answer.body_mut().frame().await.unwrap().unwrap();
    (sender, answer)
}

/// So many streams that have had their first event.
pub(crate) async fn open_streams(address: SocketAddr, count: usize) -> Vec<(Sender, Response<Incoming>)> {
    let mut open = Vec::new();
    for _ in 0..count {
        open.push(stream(address).await);
    }
    open
}
