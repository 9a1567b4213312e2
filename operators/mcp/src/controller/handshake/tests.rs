//! Handshakes with servers of each era, each behind the real proxy.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use mcp_proxy::{Backend, Backends, Proxy, Settings};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

fn answer(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()).boxed_unsync());
    *answer.status_mut() = status;
    answer
}

/// A server behind a proxy; returns the proxy's URL.
async fn behind_a_proxy<F, R>(serve: F) -> String
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Answer> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backends = Backends::default();
    backends.set([Backend::from_url(&format!("http://{}", listener.local_addr().unwrap())).unwrap()]);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let serve = serve.clone();
            let service = service_fn(move |request| {
                let answered = serve(request);
                async { Ok::<_, Infallible>(answered.await) }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    let settings = Settings {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        ..Settings::default()
    };
    let proxy = Proxy::bind(settings, backends).await.unwrap();
    let url = format!("http://{}", proxy.local_addr());
    tokio::spawn(proxy.run(std::future::pending()));
    url
}

async fn message_of(request: Request<Incoming>) -> Value {
    let body = request.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&body).unwrap()
}

fn error(code: i32) -> String {
    json!({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "m"}}).to_string()
}

#[tokio::test]
async fn a_server_of_the_version_without_sessions_only_is_verified() {
    // It does not know `initialize`, and looks at every header and member that this version demands.
    let url = behind_a_proxy(|request| async move {
        let headers = request.headers().clone();
        let message = message_of(request).await;
        if message["method"] != "server/discover" {
            return answer(StatusCode::NOT_FOUND, error(-32601));
        }
        let meta = &message["params"]["_meta"];
        let version = &meta["io.modelcontextprotocol/protocolVersion"];
        let agrees = headers["mcp-method"] == "server/discover"
            && version
                .as_str()
                .is_some_and(|version| headers["mcp-protocol-version"] == version)
            && meta["io.modelcontextprotocol/clientInfo"]["name"].is_string()
            && meta["io.modelcontextprotocol/clientCapabilities"].is_object();
        if !agrees {
            return answer(StatusCode::BAD_REQUEST, error(-32020));
        }
        let result = json!({
            "resultType": "complete",
            "supportedVersions": ["2027-01-01", "2026-07-28"],
            "capabilities": {},
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "n", "version": "1"}},
        });
        let body = json!({"jsonrpc": "2.0", "id": 1, "result": result}).to_string();
        answer(StatusCode::OK, body)
    })
    .await;
    let info = shake(&url, "/mcp", Transport::StreamableHttp).await.unwrap();
    assert_eq!(info.name.as_deref(), Some("n"));
    assert_eq!(info.version.as_deref(), Some("1"));
    assert_eq!(info.protocol_version.as_deref(), Some("2026-07-28"));
}

#[tokio::test]
async fn a_server_with_sessions_is_asked_once_and_its_session_ended() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = seen.clone();
    let url = behind_a_proxy(move |request| {
        let noted = noted.clone();
        async move {
            let method = request.method().clone();
            noted.lock().unwrap().push(method.to_string());
            if method == Method::DELETE {
                return answer(StatusCode::NO_CONTENT, "");
            }
            let info =
                json!({"protocolVersion": "2025-06-18", "serverInfo": {"name": "n"}, "capabilities": {}});
            let message = json!({"jsonrpc": "2.0", "id": 1, "result": info});
            let mut answer = answer(StatusCode::OK, format!("event: message\ndata: {message}\n\n"));
            let headers = answer.headers_mut();
            headers.insert(header::CONTENT_TYPE, "text/event-stream".parse().unwrap());
            headers.insert(SESSION, "s".parse().unwrap());
            answer
        }
    })
    .await;
    let info = shake(&url, "/mcp", Transport::StreamableHttp).await.unwrap();
    assert_eq!(info.protocol_version.as_deref(), Some("2025-06-18"));
    assert_eq!(*seen.lock().unwrap(), ["POST", "DELETE"]);
}

#[tokio::test]
async fn a_server_of_the_old_transport_is_verified_by_its_stream() {
    let stream: Arc<Mutex<Option<mpsc::UnboundedSender<Bytes>>>> = Arc::default();
    let url = behind_a_proxy(move |request| {
        let stream = stream.clone();
        async move {
            if request.uri() == "/sse" {
                let (sender, mut events) = mpsc::unbounded_channel();
                let first = "event: endpoint\r\ndata: /message?s=1\r\n\r\n";
                sender.send(Bytes::from(first)).unwrap();
                *stream.lock().unwrap() = Some(sender);
                let events = futures::stream::poll_fn(move |cx| events.poll_recv(cx));
                let events = futures::StreamExt::map(events, |event| Ok(Frame::data(event)));
                let mut answer = Response::new(StreamBody::new(events).boxed_unsync());
                let kind = "text/event-stream".parse().unwrap();
                answer.headers_mut().insert(header::CONTENT_TYPE, kind);
                return answer;
            }
            assert_eq!(request.uri(), "/message?s=1");
            let message = message_of(request).await;
            let info =
                json!({"protocolVersion": "2024-11-05", "serverInfo": {"name": "old"}, "capabilities": {}});
            let message = json!({"jsonrpc": "2.0", "id": message["id"], "result": info});
            let event = format!("event: message\r\ndata: {message}\r\n\r\n");
            let stream = stream.lock().unwrap().clone().unwrap();
            stream.send(Bytes::from(event)).unwrap();
            answer(StatusCode::ACCEPTED, "Accepted")
        }
    })
    .await;
    let info = shake(&url, "/sse", Transport::Sse).await.unwrap();
    assert_eq!(info.name.as_deref(), Some("old"));
    assert_eq!(info.protocol_version.as_deref(), Some("2024-11-05"));
}

#[tokio::test]
async fn a_server_that_knows_no_way_is_not_verified_and_its_words_are_not_repeated() {
    for body in [
        "<html>s3cret</html>".to_owned(),
        error(-32601),
        "{}".to_owned(),
        "data: {}\n\n".to_owned(),
    ] {
        let url = behind_a_proxy(move |_| {
            let body = body.clone();
            async { answer(StatusCode::OK, body) }
        })
        .await;
        let failed = shake(&url, "/mcp", Transport::StreamableHttp).await.unwrap_err();
        let Failure::Refused(why) = failed else {
            panic!("{failed:?}");
        };
        assert!(
            why.contains("`initialize`") && why.contains("`server/discover`"),
            "{why}"
        );
        assert!(!why.contains("s3cret"), "{why}");
    }
    let closed = shake("http://127.0.0.1:1", "/mcp", Transport::StreamableHttp).await;
    assert!(matches!(closed, Err(Failure::Silent(_))), "{closed:?}");
}
