//! Backends that are exchanged under load, and the proxy's own end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::StatusCode;
use mcp_proxy::{Backend, Settings};
use tokio::{net::TcpStream, sync::Semaphore};

use crate::{
    harness::{Client, NET, Running, Server, events, get, pod, post, request, soon, text, until},
    sessions::{INITIALIZE, PING, session_pod},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_calls_do_not_fail_while_all_backends_are_exchanged() {
    let mut servers = Vec::new();
    let mut pods: Vec<Backend> = Vec::new();
    for n in 0..3 {
        let server = session_pod(n).await;
        pods.push(pod(n, server.address));
        servers.push(server);
    }
    let proxy = Arc::new(Running::start(Settings::default(), pods.clone()).await);
    let done = Arc::new(AtomicBool::new(false));
    let calls: Arc<[AtomicUsize; 8]> = Arc::default();
    let load: Vec<_> = (0..calls.len())
        .map(|n| {
            let (proxy, done, calls) = (proxy.clone(), done.clone(), calls.clone());
            tokio::spawn(async move {
                while !done.load(SeqCst) {
                    let body = if n % 2 == 0 { PING } else { INITIALIZE };
                    let answer = post(proxy.address, "/mcp", &[], body).await;
                    assert_eq!(answer.status(), StatusCode::OK);
                    calls[n].fetch_add(1, SeqCst);
                }
            })
        })
        .collect();
    // Every caller has ended the call that it had begun before, and some more.
    let goes_on = async || {
        let before: Vec<usize> = calls.iter().map(|calls| calls.load(SeqCst)).collect();
        until("the load goes on", || {
            calls
                .iter()
                .zip(&before)
                .all(|(now, before)| now.load(SeqCst) > before + 5)
        })
        .await;
    };
    // One after another, as a StatefulSet does: a new pod, the old one not ready any more. A pod that ends keeps serving until
    // that is known and its calls have ended.
    for n in 0..6 {
        goes_on().await;
        let server = session_pod(n + 3).await;
        pods.push(pod(n + 3, server.address));
        pods[0] = pods[0].clone().ready(false);
        proxy.backends.set(pods.clone());
        goes_on().await;
        pods.remove(0);
        let old = std::mem::replace(&mut servers[n % 3], server);
        old.stop().await;
        proxy.backends.set(pods.clone());
    }
    goes_on().await;
    done.store(true, SeqCst);
    for task in load {
        soon("the load ends", task).await.unwrap();
    }
    let counters = proxy.counters.snapshot();
    assert_eq!((counters.lost, counters.unavailable), (0, 0), "{counters:?}");
}

#[tokio::test]
async fn at_the_end_calls_are_let_through_and_then_streams_end_cleanly() {
    let go_on = Arc::new(Semaphore::new(0));
    let waited = go_on.clone();
    let server = Server::start(move |request| {
        let waited = waited.clone();
        async move {
            if request.method() == http::Method::GET {
                let first = stream::once(async { Bytes::from_static(b"data: 1\n\n") });
                return events(first.chain(stream::pending()).boxed());
            }
            waited.acquire().await.unwrap().forget();
            text("done")
        }
    })
    .await;
    let settings = Settings {
        grace: NET,
        ..Settings::default()
    };
    let mut proxy = Running::start(settings, [pod(0, server.address)]).await;
    let mut stream = get(proxy.address, "/mcp", &[]).await;
    assert_eq!(stream.read_until("\n\n").await, "data: 1\n\n");
    let call = tokio::spawn(Client::send(
        proxy.address,
        request(http::Method::POST, "/mcp", &[], "{}"),
    ));
    until("the call is in work", || proxy.counters.snapshot().calls == 1).await;

    proxy.stop();
    let address = proxy.address;
    soon("nobody is accepted", async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert_eq!(proxy.counters.snapshot().streams, 1, "streams wait for the calls");
    go_on.add_permits(1);
    let mut answer = soon("the call ends", call).await.unwrap().unwrap();
    assert_eq!(answer.body().await, "done");
    assert_eq!(stream.body().await, "", "the stream ends as a complete one");
    proxy.ended().await;
}

#[tokio::test]
async fn a_call_that_does_not_end_within_the_grace_is_cut() {
    let server = Server::start(|_| async {
        std::future::pending::<()>().await;
        text("never")
    })
    .await;
    let settings = Settings {
        grace: Duration::from_millis(50),
        ..Settings::default()
    };
    let mut proxy = Running::start(settings, [pod(0, server.address)]).await;
    let call = tokio::spawn(Client::send(
        proxy.address,
        request(http::Method::POST, "/mcp", &[], "{}"),
    ));
    until("the call is in work", || proxy.counters.snapshot().calls == 1).await;
    proxy.stop();
    proxy.ended().await;
    assert!(soon("the call ends", call).await.unwrap().is_err());
}
