//! Only the tools that are allowed: in lists, in calls, on every transport, and whatever a request is made to look like.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use mcp_proxy::{Backend, Settings, Tools};
use rmcp::model::CallToolRequestParams;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    clients::{McpClient, call, connect, connect_sse, over_sse},
    echo::over_http,
    harness::{Answer, Client, Running, Server, events, get, post, raw, request, soon, text, whole},
};

const JSON: (&str, &str) = ("content-type", "application/json");

/// A proxy that shows these tools only.
async fn showing<const N: usize>(tools: [&str; N], server: &Server) -> Running {
    let settings = Settings {
        tools: Tools::new(tools),
        ..Settings::default()
    };
    Running::start(settings, [Backend::from_url(&server.url()).unwrap()]).await
}

async fn sees_and_calls_only_what_is_allowed(client: &McpClient) {
    let tools = soon("the list", client.list_all_tools()).await.unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool.name.as_ref()).collect();
    assert_eq!(names, ["whoami", "steps"]);
    assert_eq!(call(client, "whoami").await, "it");
    let hidden = client.call_tool(CallToolRequestParams::new("wait"));
    let refused = soon("the refusal", hidden).await.unwrap_err().to_string();
    assert!(
        refused.contains("-32602") && refused.contains("unknown tool: wait"),
        "{refused}"
    );
    assert_eq!(call(client, "steps").await, "three steps");
}

#[tokio::test]
async fn clients_of_each_era_see_and_call_only_what_is_allowed() {
    let server = over_http("it").await;
    let proxy = showing(["whoami", "steps", "absent"], &server).await;
    for sessionless in [false, true] {
        let client = connect(&proxy.url("/mcp"), sessionless).await;
        sees_and_calls_only_what_is_allowed(&client).await;
    }
    assert_eq!(proxy.counters.snapshot().refused_tool, 2);
    assert_eq!(proxy.counters.snapshot().withheld, 0);
}

#[tokio::test]
async fn clients_of_the_old_transport_get_their_refusals_on_their_stream() {
    let server = over_sse("it".to_owned()).await;
    let proxy = showing(["whoami", "steps"], &server).await;
    let first = connect_sse(proxy.address).await;
    let second = connect_sse(proxy.address).await;
    for client in [&first, &second] {
        sees_and_calls_only_what_is_allowed(client).await;
    }
    drop(first);
    assert_eq!(call(&second, "whoami").await, "it");
}

/// A server that notes what reaches it, and answers with what it is told.
async fn noting(
    answer: impl Fn() -> Answer + Clone + Send + Sync + 'static,
) -> (Server, Arc<Mutex<Vec<String>>>) {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = seen.clone();
    let server = Server::start(move |request| {
        let (noted, answer) = (noted.clone(), answer.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map(http_body_util::Collected::to_bytes);
            let body = String::from_utf8_lossy(&body.unwrap_or_default()).into_owned();
            noted.lock().unwrap().push(format!("{} {body}", parts.method));
            answer()
        }
    })
    .await;
    (server, seen)
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "most of it is a table")]
async fn no_disguise_brings_a_hidden_call_to_the_server() {
    let (server, seen) = noting(|| text("{}")).await;
    let proxy = showing(["a"], &server).await;
    let hidden = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"h"}}"#;
    for (lines, body, status, code) in [
        (&[JSON][..], hidden, 200, -32602),
        (&[], hidden, 200, -32602),
        (
            &[JSON],
            r#"{"id":1,"method":"to\u006fls\/call","params":{"name":"h"}}"#,
            200,
            -32602,
        ),
        (
            &[JSON],
            r#"[{"id":1,"method":"ping"},{"id":2,"method":"tools/call","params":{"name":"h"}}]"#,
            200,
            -32600,
        ),
        (
            &[JSON],
            r#"{"id":1,"method":"ping","method":"tools/call","params":{"name":"h"}}"#,
            400,
            -32600,
        ),
        (
            &[JSON],
            r#"{"id":1,"method":"ping","Method":"tools/call","params":{"name":"h"}}"#,
            400,
            -32600,
        ),
        (&[JSON, ("mcp-method", "ping")], hidden, 400, -32020),
        (&[JSON, ("mcp-method", "tools/call")], "", 400, -32020),
        (
            &[JSON, ("mcp-name", "h")],
            r#"[{"id":1,"method":"ping"}]"#,
            400,
            -32020,
        ),
        (
            &[JSON, ("mcp-method", "tools/call"), ("mcp-name", "h")],
            r#"{"id":1,"method":"ping"}"#,
            400,
            -32020,
        ),
        (&[JSON, ("content-encoding", "gzip")], hidden, 415, -32600),
        (
            &[("content-type", "application/json; charset=utf-7")],
            hidden,
            415,
            -32600,
        ),
        (&[("content-type", "text/plain")], hidden, 415, -32600),
        (&[JSON], "not JSON, tools/call", 400, -32700),
        (&[JSON, ("mcp-session-id", "abcdefgh.1")], hidden, 200, -32602),
    ] {
        for method in [Method::POST, Method::GET, Method::DELETE, Method::OPTIONS] {
            let sent = Client::send(proxy.address, request(method, "/mcp", lines, body.to_owned()));
            let mut answer = soon("an answer", sent).await.unwrap();
            assert_eq!(answer.status(), status, "{lines:?} {body}");
            let said = answer.json().await;
            assert_eq!(
                said.get(0).unwrap_or(&said)["error"]["code"],
                code,
                "{lines:?} {body}"
            );
        }
    }
    // The same in chunks, after which comes what looks like a second request.
    let (start, end) = hidden.split_at(20);
    let chunks = format!(
        "{:x}\r\n{start}\r\n{:x}\r\n{end}\r\n0\r\n\r\n",
        start.len(),
        end.len()
    );
    for coding in ["chunked", "gzip, chunked"] {
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: {coding}\r\n\r\n"
        );
        let answer = raw(proxy.address, &format!("{head}{chunks}")).await;
        assert!(answer.contains("unknown tool: h"), "{answer}");
    }
    // A call that wants no answer gets none, and the old transport's refusal without its stream is an error.
    let silent = post(
        proxy.address,
        "/mcp",
        &[JSON],
        r#"{"method":"tools/call","params":{"name":"h"}}"#,
    )
    .await;
    assert_eq!(silent.status(), StatusCode::ACCEPTED);
    let elsewhere = post(
        proxy.address,
        "/message?sessionId=1&mcp-pod=12345678",
        &[JSON],
        hidden,
    )
    .await;
    assert_eq!(elsewhere.status(), StatusCode::BAD_REQUEST);
    assert_eq!(*seen.lock().unwrap(), Vec::<String>::new());

    let allowed = hidden.replace("\"h\"", "\"a\"");
    let lines = [JSON, ("mcp-method", "tools/call"), ("mcp-name", "a")];
    assert_eq!(
        post(proxy.address, "/mcp", &lines, &allowed).await.status(),
        StatusCode::OK
    );
    assert_eq!(*seen.lock().unwrap(), [format!("POST {allowed}")]);
}

fn list(id: u32) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"tools":[{{"name":"h"}},{{"name":"a","inputSchema":{{"x":1.0}}}}],"nextCursor":"c=="}}}}"#
    )
}

fn shown(id: u32) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": {"tools": [{"name": "a", "inputSchema": {"x": 1.0}}], "nextCursor": "c=="}})
}

fn as_events(text: String) -> Answer {
    events(stream::iter([Bytes::from(text)]).boxed())
}

const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"b=="}}"#;

#[tokio::test]
async fn lists_are_filtered_in_json_in_events_and_in_batches() {
    let (server, seen) = noting(|| {
        let mut answer = text(list(1));
        answer.headers_mut().insert("etag", "\"1\"".parse().unwrap());
        answer
    })
    .await;
    let proxy = showing(["a"], &server).await;
    let mut answer = post(proxy.address, "/mcp", &[JSON], LIST).await;
    assert_eq!(answer.header("etag"), None);
    assert_eq!(answer.json().await, shown(1));
    assert_eq!(
        *seen.lock().unwrap(),
        [format!("POST {LIST}")],
        "the cursor is untouched"
    );

    let (server, _) = noting(|| as_events(format!(": hi\n\nid: 7\ndata: {}\n\n", list(1)))).await;
    let proxy = showing(["a"], &server).await;
    // The answer to a request may come on another stream: of a GET that goes on after an event, or of another request with its id.
    let ping = r#"{"id":1,"method":"ping"}"#;
    for body in [LIST, ping, ""] {
        let method = if body.is_empty() {
            Method::GET
        } else {
            Method::POST
        };
        let sent = Client::send(proxy.address, request(method, "/mcp", &[JSON], body));
        let events = soon("an answer", sent).await.unwrap().body().await;
        let events = String::from_utf8(events.into()).unwrap();
        let data = events
            .strip_prefix(": hi\n\nid: 7\ndata: ")
            .unwrap_or_else(|| panic!("{events}"));
        assert_eq!(serde_json::from_str::<Value>(data).unwrap(), shown(1));
    }

    let (server, _) = noting(|| text(format!("[{},{}]", list(1), list(2)))).await;
    let proxy = showing(["a"], &server).await;
    let batch = r#"[{"id":1,"method":"tools/list"},{"id":2,"method":"tools/list"}]"#;
    let mut answer = post(proxy.address, "/mcp", &[JSON], batch).await;
    assert_eq!(answer.json().await, json!([shown(1), shown(2)]));
}

#[tokio::test]
async fn a_list_that_cannot_be_filtered_is_not_passed_on() {
    let large = Bytes::from(format!(
        r#"{{"id":1,"result":{{"tools":["{}"]}}}}"#,
        "x".repeat(9 << 20)
    ));
    let large_event = Bytes::from([b"data: ", &large[..], b"\n\n"].concat());
    let encoded = || {
        let mut answer = text("\u{1f}compressed");
        answer
            .headers_mut()
            .insert("content-encoding", "gzip".parse().unwrap());
        answer
    };
    let answers: [(Box<dyn Fn() -> Answer + Send + Sync>, u16); 6] = [
        (Box::new(move || text(large.clone())), 502),
        (Box::new(encoded), 502),
        (Box::new(|| text("not JSON")), 502),
        (Box::new(|| text(list(1) + &list(1))), 502),
        (Box::new(|| whole(StatusCode::NOT_FOUND, list(1) + "tools")), 502),
        (
            Box::new(move || events(stream::iter([large_event.clone()]).boxed())),
            200,
        ),
    ];
    let count = answers.len() as u64;
    for (answer, status) in answers {
        let answer = Arc::new(answer);
        let (server, _) = noting(move || answer()).await;
        let proxy = showing(["a"], &server).await;
        let mut answer = post(proxy.address, "/mcp", &[JSON], LIST).await;
        assert_eq!(answer.status(), status);
        let body = String::from_utf8(answer.body().await.into()).unwrap();
        assert!(body.contains(r#""id":1,"error":{"code":-32603"#), "{body:.200}");
        assert!(body.len() < 1000, "{body:.200}");
    }
    assert_eq!(count, 6);

    // What a server says about the request, and not about tools, is passed on.
    let (server, _) = noting(|| whole(StatusCode::NOT_FOUND, "unknown session")).await;
    let proxy = showing(["a"], &server).await;
    let mut answer = post(proxy.address, "/mcp", &[JSON], LIST).await;
    assert_eq!(
        (answer.status(), answer.body().await),
        (StatusCode::NOT_FOUND, "unknown session".into())
    );

    // A list that nobody asked for here is cut off where it begins.
    let (server, _) = noting(|| text(list(1))).await;
    let proxy = showing(["a"], &server).await;
    let sent = Client::send(
        proxy.address,
        request(Method::POST, "/mcp", &[JSON], r#"{"id":1,"method":"ping"}"#),
    );
    if let Ok(mut answer) = soon("an answer", sent).await {
        while let Some(piece) = answer.piece().await {
            assert!(!piece.windows(5).any(|word| word == b"tools"), "{piece:?}");
        }
    }
    assert_eq!(proxy.counters.snapshot().withheld, 1);
}

#[tokio::test]
async fn everything_else_streams_with_a_filter_as_without() {
    let (next, pieces) = mpsc::unbounded_channel::<Bytes>();
    let pieces = Arc::new(tokio::sync::Mutex::new(pieces));
    let server = Server::start(move |request| {
        let pieces = pieces.clone();
        async move {
            let is_events = request.headers().contains_key("x-events");
            let pieces = stream::unfold(pieces.lock_owned().await, |mut pieces| async {
                let piece = pieces.recv().await.filter(|piece| !piece.is_empty())?;
                Some((piece, pieces))
            });
            let mut answer = events(pieces.boxed());
            if !is_events {
                answer
                    .headers_mut()
                    .insert("content-type", "application/json".parse().unwrap());
            }
            answer
        }
    })
    .await;
    let proxy = showing(["a"], &server).await;
    let call = r#"{"id":1,"method":"tools/call","params":{"name":"a"}}"#;
    let mut json = post(proxy.address, "/mcp", &[JSON], call).await;
    for piece in [r#"{"result":{"con"#, r#"tent":[],"x":{"tools":[]}"#, "}}"] {
        next.send(Bytes::from(piece)).unwrap();
        assert_eq!(json.piece().await.unwrap(), piece);
    }
    next.send(Bytes::new()).unwrap();
    assert_eq!(json.piece().await, None);

    let mut stream = get(proxy.address, "/mcp", &[("x-events", "1")]).await;
    let progress = r#"{"method":"notifications/progress","params":{"progressToken":1,"progress":1}}"#;
    for message in [
        r#"{"method":"notifications/tools/list_changed"}"#,
        r#"{"method":"notifications/resources/updated","params":{"uri":"u"}}"#,
        progress,
    ] {
        let event = format!("id: 1\r\ndata: {message}\r\n\r\n");
        next.send(Bytes::from(event.clone())).unwrap();
        assert_eq!(stream.read_until("\r\n\r\n").await, event);
    }
    // An event that is not a list is not held until its end, however large it is.
    let large = format!("data: {}", "x".repeat(1 << 20));
    next.send(Bytes::from(large.clone())).unwrap();
    let mut read = 0;
    while read < large.len() {
        read += stream.piece().await.unwrap().len();
    }
    assert_eq!(proxy.counters.snapshot().withheld, 0);
}

#[tokio::test]
async fn large_requests_are_held_only_as_far_as_there_is_room() {
    let (server, seen) = noting(|| text("{}")).await;
    let settings = Settings {
        tools: Tools::new(["a"]),
        max_body_bytes: 256 << 20,
        ..Settings::default()
    };
    let proxy = Running::start(settings, [Backend::from_url(&server.url()).unwrap()]).await;
    let body = |size| format!(r#"{{"id":1,"method":"ping","x":"{}"}}"#, "x".repeat(size));
    let large = post(proxy.address, "/mcp", &[JSON], &body(65 << 20)).await;
    assert_eq!(large.status(), StatusCode::SERVICE_UNAVAILABLE);
    for _ in 0..3 {
        let smaller = post(proxy.address, "/mcp", &[JSON], &body(40 << 20)).await;
        assert_eq!(smaller.status(), StatusCode::OK, "what was held is given back");
    }
    assert_eq!(seen.lock().unwrap().len(), 3);

    // A body whose last byte does not come is given up, and so is what it held.
    let unfinished = body(20 << 20);
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        unfinished.len() + 1
    );
    let sent = format!("{head}{unfinished}");
    let slow: Vec<_> = (0..3).map(|_| raw(proxy.address, &sent)).collect();
    for answer in futures::future::join_all(slow).await {
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
    let honest = post(proxy.address, "/mcp", &[JSON], &body(40 << 20)).await;
    assert_eq!(honest.status(), StatusCode::OK);
}
