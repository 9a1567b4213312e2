//! What may take long, and what may not. These tests wait, side by side.

use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::harness::{Running, Server, events, get, post, soon, text};

/// Longer than any time-out of the proxy.
const LONG: Duration = Duration::from_secs(33);

#[tokio::test]
async fn a_stream_may_be_silent_for_longer_than_any_time_out() {
    let server = Server::start(|_| async {
        let late = stream::once(async {
            tokio::time::sleep(LONG).await;
            Bytes::from_static(b"data: late\n\n")
        });
        events(late.boxed())
    })
    .await;
    let proxy = Running::before(&server).await;
    let mut answer = get(proxy.address, "/mcp", &[]).await;
    assert_eq!(answer.read_until("\n\n").await, "data: late\n\n");
}

#[tokio::test]
async fn a_call_may_take_longer_than_any_time_out() {
    let server = Server::start(|_| async {
        tokio::time::sleep(LONG).await;
        text("late")
    })
    .await;
    let proxy = Running::before(&server).await;
    assert_eq!(post(proxy.address, "/mcp", &[], "{}").await.body().await, "late");
}

#[tokio::test]
async fn half_a_head_is_not_waited_for() {
    let server = Server::start(|_| async { text("") }).await;
    let proxy = Running::before(&server).await;
    let mut stream = TcpStream::connect(proxy.address).await.unwrap();
    stream
        .write_all(b"POST /mcp HTTP/1.1\r\nHost: a\r\n")
        .await
        .unwrap();
    let mut read = Vec::new();
    let _ = soon("the connection closes", stream.read_to_end(&mut read)).await;
    assert_eq!(proxy.counters.snapshot().requests, 0);
}
