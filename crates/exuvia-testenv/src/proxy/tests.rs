//! The proxy's mechanics, shown on a small server that the tests control.

use std::{
    convert::Infallible,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use bytes::Bytes;
use futures::stream::BoxStream;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Either, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use kube::client::Body;

use super::*;
use crate::soon;

type Chunks = BoxStream<'static, Result<Frame<Bytes>, Infallible>>;
type Answered = Response<Either<Full<Bytes>, StreamBody<Chunks>>>;

/// A server that answers with `answer`, and a proxy before it.
struct Pair {
    proxy: Proxy,
    reached: Arc<AtomicUsize>,
    upstream: Listener,
}

async fn before(answer: impl Fn(Request<Incoming>) -> Answered + Clone + Send + Sync + 'static) -> Pair {
    let authority = Authority::new().unwrap();
    let reached = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&reached);
    let handler = move |request, _| {
        counting.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(answer(request)))
    };
    let upstream = Listener::start(&authority, "upstream", handler).await.unwrap();
    let proxy = Proxy::start(&authority, upstream.address(), Credential::None)
        .await
        .unwrap();
    Pair {
        proxy,
        reached,
        upstream,
    }
}

fn text(body: impl Into<Bytes>) -> Answered {
    Response::new(Either::Left(Full::new(body.into())))
}

/// A server that says ok.
async fn before_ok() -> Pair {
    before(|_| text("ok")).await
}

async fn send(client: &kube::Client, method: Method, path: &str) -> Result<(u16, Bytes), kube::Error> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .body(Body::from(b"{}".to_vec()))
        .unwrap();
    let (head, body) = client.send(request).await?.into_parts();
    Ok((head.status.as_u16(), body.collect().await?.to_bytes()))
}

fn was_reset(error: &kube::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        if kind == Some(std::io::ErrorKind::ConnectionReset) {
            return true;
        }
        cause = error.source();
    }
    false
}

#[tokio::test]
async fn a_request_passes_unchanged_and_is_recorded() {
    let seen = Arc::new(Mutex::new(None));
    let seeing = Arc::clone(&seen);
    let pair = before(move |request| {
        let headers = request.headers();
        let content_type = headers[http::header::CONTENT_TYPE].to_str().unwrap().to_owned();
        *seeing.lock().unwrap() = Some((request.method().clone(), request.uri().to_string(), content_type));
        text("ok")
    })
    .await;
    let request = Request::patch("/api/v1/namespaces/n/pods/p?fieldManager=m")
        .header("content-type", "application/merge-patch+json")
        .header("authorization", "Bearer secret")
        .body(Body::from(br#"{"a": 1}"#.to_vec()))
        .unwrap();
    let response = pair.proxy.client().unwrap().send(request).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");

    let uri = "/api/v1/namespaces/n/pods/p?fieldManager=m".to_owned();
    let expected = (Method::PATCH, uri, "application/merge-patch+json".to_owned());
    assert_eq!(seen.lock().unwrap().take(), Some(expected));
    let recorded = soon(pair.proxy.wait_for(|r| r.finished)).await;
    assert_eq!(
        (recorded.method.as_str(), recorded.query.as_str()),
        ("PATCH", "fieldManager=m")
    );
    assert_eq!(recorded.content_type(), Some("application/merge-patch+json"));
    assert_eq!(recorded.json(), serde_json::json!({"a": 1}));
    assert_eq!((recorded.upstream, recorded.answer), (Some(200), Some(200)));
    assert_eq!((recorded.bytes_in, recorded.bytes_out), (8, 2));
    assert_eq!(recorded.object().unwrap().name, "p");
    assert!(!format!("{recorded:?}").contains("secret"));
}

#[tokio::test]
async fn what_strikes_the_request_keeps_it_from_the_server() {
    let pair = before_ok().await;
    let client = pair.proxy.client().unwrap();
    for fault in [Fault::DropRequest, Fault::ResetRequest, Fault::refuse(503)] {
        pair.proxy.clear();
        pair.proxy.inject(Rule::on(Match::any()).then(fault.clone()));
        let answer = soon(send(&client, Method::POST, "/")).await;
        assert_eq!(pair.reached.load(Ordering::SeqCst), 0, "{fault:?}");
        match answer {
            Ok((code, body)) => assert!(code == 503 && body.starts_with(b"{"), "{fault:?}"),
            Err(error) => assert_eq!(
                was_reset(&error),
                matches!(fault, Fault::ResetRequest),
                "{error:?}"
            ),
        }
    }
    let answers: Vec<_> = pair
        .proxy
        .requests()
        .iter()
        .map(|r| (r.upstream, r.answer))
        .collect();
    assert_eq!(
        answers,
        [(None, None), (None, None), (None, Some(503))],
        "each was sent once, and none retried"
    );
}

#[tokio::test]
async fn what_strikes_the_answer_leaves_the_deed() {
    let pair = before_ok().await;
    let client = pair.proxy.client().unwrap();
    for (nth, fault) in [Fault::DropAnswer, Fault::ResetAnswer, Fault::replace(504)]
        .into_iter()
        .enumerate()
    {
        pair.proxy.clear();
        pair.proxy.inject(Rule::on(Match::any()).then(fault.clone()));
        let answer = soon(send(&client, Method::POST, "/")).await;
        assert_eq!(pair.reached.load(Ordering::SeqCst), nth + 1, "{fault:?}");
        match answer {
            Ok((code, _)) => assert_eq!(code, 504, "{fault:?}"),
            Err(error) => assert_eq!(
                was_reset(&error),
                matches!(fault, Fault::ResetAnswer),
                "{error:?}"
            ),
        }
    }
    let answers: Vec<_> = pair
        .proxy
        .requests()
        .iter()
        .map(|r| (r.upstream, r.answer))
        .collect();
    assert_eq!(
        answers,
        [(Some(200), None), (Some(200), None), (Some(200), Some(504))]
    );
}

#[tokio::test]
async fn a_stalled_request_is_over_when_the_client_goes_away() {
    let pair = before_ok().await;
    for (fault, reached) in [(Fault::StallRequest, 0), (Fault::StallAnswer, 1)] {
        pair.proxy.forget();
        pair.proxy.clear();
        pair.proxy.inject(Rule::on(Match::any()).then(fault));
        let client = pair.proxy.client().unwrap();
        let waiting = tokio::spawn(async move { send(&client, Method::POST, "/").await });
        let stalled = soon(pair.proxy.wait_for(|r| r.upstream.is_some() == (reached == 1))).await;
        assert_eq!((stalled.answer, stalled.finished), (None, false));
        assert_eq!(pair.reached.load(Ordering::SeqCst), reached);
        assert!(!waiting.is_finished());
        waiting.abort();
        assert_eq!(soon(pair.proxy.wait_for(|r| r.finished)).await.answer, None);
    }
}

#[tokio::test]
async fn a_delayed_request_reaches_the_server_though_the_client_gave_up() {
    let pair = before_ok().await;
    pair.proxy
        .inject(Rule::on(Match::any()).then(Fault::Delay(Duration::from_millis(500))));
    let client = pair.proxy.client().unwrap();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { send(&client, Method::POST, "/late").await }
    });
    soon(pair.proxy.wait_for(|r| r.path == "/late")).await;
    waiting.abort();
    soon(
        pair.proxy
            .wait_for(|r| r.path == "/late" && r.upstream == Some(200) && r.finished),
    )
    .await;
    let (code, _) = soon(send(&client, Method::POST, "/patient")).await.unwrap();
    assert_eq!((code, pair.reached.load(Ordering::SeqCst)), (200, 2));
}

/// How many bytes come before the body ends, and whether it ends well.
async fn read(client: &kube::Client) -> (usize, bool) {
    let request = Request::get("/").body(Body::empty()).unwrap();
    let mut body = client.send(request).await.unwrap().into_body();
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => bytes += frame.into_data().unwrap().len(),
            Err(_) => return (bytes, false),
        }
    }
    (bytes, true)
}

#[tokio::test]
async fn a_truncated_answer_ends_after_exactly_so_many_bytes() {
    const LENGTH: usize = 8 << 20; // more than the sockets between hold
    let pair = before(|_| text(vec![b'x'; LENGTH])).await;
    let client = pair.proxy.client().unwrap();
    for at in [0, 1, 1000, LENGTH - 1] {
        pair.proxy.clear();
        pair.proxy.forget();
        pair.proxy
            .inject(Rule::on(Match::any()).then(Fault::Truncate(at)));
        assert_eq!(soon(read(&client)).await, (at, false));
        let recorded = soon(pair.proxy.wait_for(|r| r.finished)).await;
        assert_eq!((recorded.answer, recorded.bytes_out), (Some(200), at as u64));
    }
    pair.proxy.clear();
    pair.proxy
        .inject(Rule::on(Match::any()).then(Fault::Truncate(LENGTH)));
    assert_eq!(soon(read(&client)).await, (LENGTH, true));
}

#[tokio::test]
async fn a_stream_passes_frame_by_frame_and_ends_with_its_client() {
    let (frames, receiver) = tokio::sync::mpsc::unbounded_channel();
    let receiver = Arc::new(Mutex::new(Some(receiver)));
    let pair = before(move |_| {
        let mut receiver = receiver.lock().unwrap().take().unwrap();
        let chunks: Chunks = Box::pin(futures::stream::poll_fn(move |cx| receiver.poll_recv(cx)));
        Response::new(Either::Right(StreamBody::new(chunks)))
    })
    .await;
    let request = Request::get("/?watch=true").body(Body::empty()).unwrap();
    let mut body = pair
        .proxy
        .client()
        .unwrap()
        .send(request)
        .await
        .unwrap()
        .into_body();
    for event in ["one", "two", "three"] {
        frames.send(Ok(Frame::data(event.into()))).unwrap();
        let frame = soon(body.frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), event);
    }
    assert!(!pair.proxy.requests()[0].finished);
    drop(body);
    assert_eq!(soon(pair.proxy.wait_for(|r| r.finished)).await.bytes_out, 11);
    soon(frames.closed()).await; // the server has learnt of it, too
}

#[tokio::test]
async fn a_callback_that_blocks_holds_up_its_own_request_only() {
    let pair = before_ok().await;
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let held = pair.proxy.inject(
        Rule::on(Match::any().path("/held"))
            .nth(1)
            .on_commit(move |recorded| {
                assert_eq!((recorded.upstream, recorded.answer), (Some(200), None));
                released.lock().unwrap().recv().unwrap();
            }),
    );
    let client = pair.proxy.client().unwrap();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { send(&client, Method::PUT, "/held").await }
    });
    soon(pair.proxy.wait_for(|r| r.path == "/held" && r.upstream.is_some())).await;
    let others = (0..50).map(|_| send(&client, Method::PUT, "/other"));
    for answer in soon(futures::future::join_all(others)).await {
        assert_eq!(answer.unwrap().0, 200);
    }
    assert_eq!(held.applied(), 1);
    assert_eq!(pair.proxy.requests()[0].answer, None);
    release.send(()).unwrap();
    assert_eq!(soon(waiting).await.unwrap().unwrap().0, 200);
}

#[tokio::test]
async fn a_callback_hears_of_a_request_before_the_server_does() {
    let pair = before_ok().await;
    let reached = Arc::clone(&pair.reached);
    let (tell, told) = mpsc::channel();
    pair.proxy
        .inject(Rule::on(Match::writes()).nth(2).on_request(move |recorded| {
            tell.send((recorded.path.clone(), reached.load(Ordering::SeqCst)))
                .unwrap();
        }));
    let client = pair.proxy.client().unwrap();
    for path in ["/first", "/second", "/third"] {
        soon(send(&client, Method::POST, path)).await.unwrap();
    }
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [("/second".to_owned(), 1)]);
}

#[tokio::test]
async fn a_server_that_is_gone_looks_gone() {
    let pair = before_ok().await;
    let client = pair.proxy.client().unwrap();
    soon(send(&client, Method::GET, "/")).await.unwrap();
    drop(pair.upstream);
    let failed = async { while send(&client, Method::GET, "/").await.is_ok() {} }; // it ends in its own time
    soon(failed).await;
    let last = pair.proxy.requests().pop().unwrap();
    assert_eq!((last.upstream, last.answer), (None, None));
}

#[test]
fn the_proxy_outlives_the_runtime_it_was_started_from() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let pair = runtime().block_on(before_ok());
    runtime().block_on(async {
        let client = pair.proxy.client().unwrap();
        assert_eq!(soon(send(&client, Method::GET, "/")).await.unwrap().0, 200);
    });
}

#[tokio::test]
async fn dropping_the_proxy_ends_what_is_in_flight() {
    let Pair {
        proxy,
        upstream: _upstream,
        ..
    } = before_ok().await;
    proxy.inject(Rule::on(Match::any()).then(Fault::StallRequest));
    let client = proxy.client().unwrap();
    let waiting = tokio::spawn(async move { send(&client, Method::GET, "/").await });
    soon(proxy.wait_for(|_| true)).await;
    drop(proxy);
    assert!(soon(waiting).await.unwrap().is_err());
}

#[tokio::test]
async fn a_client_that_trusts_others_is_not_served() {
    let pair = before_ok().await;
    let stranger = Authority::new().unwrap();
    let access = Access {
        ca_pem: stranger.ca_pem().to_owned(),
        ..pair.proxy.access()
    };
    assert!(
        soon(send(&access.client().unwrap(), Method::GET, "/"))
            .await
            .is_err()
    );
    let proxy = Proxy::start(&stranger, pair.upstream.address(), Credential::None)
        .await
        .unwrap();
    assert!(
        soon(send(&proxy.client().unwrap(), Method::GET, "/"))
            .await
            .is_err()
    );
    assert_eq!(pair.reached.load(Ordering::SeqCst), 0);
}
