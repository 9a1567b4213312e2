//! The server behind all contestants: small answers to calls, and streams that fall silent after their first event.

use std::{convert::Infallible, net::SocketAddr};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Method, Request, Response, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

const ANSWER: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"The sum of 2 and 3 is 5, as it has always been."}],"isError":false}}"#;

pub(crate) async fn start() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let stream = listener.accept().await.unwrap().0;
            stream.set_nodelay(true).unwrap();
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)));
        }
    });
    address
}

async fn answer(
    request: Request<Incoming>,
) -> Result<Response<UnsyncBoxBody<Bytes, Infallible>>, Infallible> {
    let is_get = request.method() == Method::GET;
    let _ = request.into_body().collect().await;
    let (kind, body) = if is_get {
        let first = stream::once(async { Ok(Frame::data(Bytes::from_static(b"data: {}\n\n"))) });
        (
            "text/event-stream",
            StreamBody::new(first.chain(stream::pending())).boxed_unsync(),
        )
    } else {
        ("application/json", Full::from(ANSWER).boxed_unsync())
    };
    let answer = Response::builder().header(CONTENT_TYPE, kind).body(body);
    Ok(answer.expect("a valid answer"))
}
