//! Errors of the proxy itself name the request that they answer: a client waits for its id, and without it for ever.

use http::StatusCode;
use mcp_proxy::Settings;
use rmcp::{ServiceError, model::CallToolRequestParams};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{
    clients::{call, connect},
    echo::over_http,
    harness::{Running, Server, pod, post, soon, text},
};

const CALL: &str = r#"{"jsonrpc":"2.0","id":"seven","method":"tools/call","params":{"name":"whoami"}}"#;
/// As other SDKs write it.
const ID_LAST: &str =
    r#"{"method":"tools/call","params":{"name":"whoami","id":1},"jsonrpc":"2.0","id":"seven"}"#;

#[tokio::test]
async fn a_call_of_the_sdks_client_fails_at_once_when_its_backend_has_just_ended() {
    let server = over_http("pod 0").await;
    let proxy = Running::start(Settings::default(), [pod(0, server.address)]).await;
    let client = connect(&proxy.url("/mcp"), false).await;
    assert_eq!(call(&client, "whoami").await, "pod 0");

    // The proxy has not heard of it yet.
    drop(server);
    let called = client.call_tool(CallToolRequestParams::new("whoami"));
    let failed = soon("the call fails", called).await.unwrap_err();
    assert!(
        matches!(&failed, ServiceError::McpError(error) if error.code.0 == -32000),
        "{failed:?}"
    );
}

/// What the proxy says if the backend reads a request, and closes the connection.
async fn lost(listener: TcpListener) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut read = [0; 4096];
        let _ = stream.read(&mut read).await;
    }
}

#[tokio::test]
async fn refusals_have_the_id_of_their_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let closing = tokio::spawn(lost(listener));
    let gone = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let settings = || Settings {
        max_body_bytes: 1000,
        ..Settings::default()
    };
    let losing = Running::start(settings(), [pod(0, address)]).await;
    let unreachable = Running::start(settings(), [pod(0, gone)]).await;
    let empty = Running::start(settings(), []).await;
    let session = ("mcp-session-id", "pod00009.s");
    let large = |message: &str| message.replacen('{', &format!("{{\"x\":\"{}\",", "y".repeat(1000)), 1);
    for message in [CALL, ID_LAST] {
        for (proxy, headers, body, status) in [
            (&losing, &[][..], message.to_owned(), StatusCode::BAD_GATEWAY),
            (
                &unreachable,
                &[][..],
                message.to_owned(),
                StatusCode::SERVICE_UNAVAILABLE,
            ),
            (
                &empty,
                &[][..],
                message.to_owned(),
                StatusCode::SERVICE_UNAVAILABLE,
            ),
            (&empty, &[session][..], message.to_owned(), StatusCode::NOT_FOUND),
            (&empty, &[][..], large(message), StatusCode::PAYLOAD_TOO_LARGE),
        ] {
            let mut answer = post(proxy.address, "/mcp", headers, &body).await;
            assert_eq!(answer.status(), status);
            let body = answer.json().await;
            assert_eq!(body["id"], "seven", "{status}: {body}");
            assert!(body["error"]["code"].is_i64(), "{body}");
        }
    }
    closing.abort();
}

#[tokio::test]
async fn what_nobody_waits_for_by_id_is_refused_without_one() {
    let proxy = Running::start(Settings::default(), []).await;
    for body in [
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        // An answer to a request of the server: the id is not the client's.
        r#"{"jsonrpc":"2.0","id":5,"result":{}}"#,
        r#"[{"jsonrpc":"2.0","id":5,"method":"ping"}]"#,
        "not JSON",
        "",
    ] {
        let mut answer = post(proxy.address, "/mcp", &[], body).await;
        assert_eq!(answer.json().await["id"], Value::Null, "{body}");
    }
    let foreign = [("origin", "http://evil.example")];
    let mut refused = post(proxy.address, "/mcp", &foreign, CALL).await;
    assert_eq!(refused.json().await["id"], Value::Null);
}

#[tokio::test]
async fn an_id_that_comes_later_than_the_refusal_is_waited_for() {
    let proxy = Running::start(Settings::default(), []).await;
    let (first, second) = ID_LAST.split_at(20);
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{first}",
        ID_LAST.len()
    );
    let mut stream = TcpStream::connect(proxy.address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    // It is refused by now: no backend is there.
    crate::harness::until("it is refused", || proxy.counters.snapshot().unavailable == 1).await;
    stream.write_all(second.as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon("the answer", stream.read_to_string(&mut answer))
        .await
        .unwrap();
    let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(body["id"], "seven", "{answer}");
}

#[tokio::test]
async fn a_body_that_was_sent_whole_is_still_known_when_its_backend_is_lost() {
    let server = Server::start(|_| async {
        std::future::pending::<()>().await;
        text("never")
    })
    .await;
    let proxy = Running::start(Settings::default(), [pod(0, server.address)]).await;
    let address = proxy.address;
    let called = tokio::spawn(async move { post(address, "/mcp", &[], ID_LAST).await.json().await });
    crate::harness::until("the call is in work", || proxy.counters.snapshot().calls == 1).await;
    drop(server);
    let body = soon("the answer", called).await.unwrap();
    assert_eq!(
        (&body["id"], &body["error"]["code"]),
        (&json!("seven"), &json!(-32000))
    );
}
