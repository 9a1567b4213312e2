//! Sessions spread over pods and stay on theirs.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use mcp_proxy::Settings;
use serde_json::json;

use crate::harness::{Client, Running, Server, events, get, pod, post, request, soon, text, whole};

pub(crate) const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
pub(crate) const PING: &str = r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#;

/// A pod that hands out sessions and answers with its number to those that it knows. It also serves the old transport at `/sse`.
pub(crate) async fn session_pod(number: usize) -> Server {
    let sessions: Arc<Mutex<HashSet<String>>> = Arc::default();
    let last = Arc::new(AtomicUsize::new(0));
    Server::start(move |request| {
        let (sessions, last) = (sessions.clone(), last.clone());
        async move {
            let (parts, body) = request.into_parts();
            let known = |id: &str| sessions.lock().unwrap().contains(id);
            let new = || {
                let id = format!("s.{}", last.fetch_add(1, SeqCst));
                sessions.lock().unwrap().insert(id.clone());
                id
            };
            let header = parts
                .headers
                .get("mcp-session-id")
                .map(|id| id.to_str().unwrap().to_owned());
            let body = body.collect().await.unwrap().to_bytes();
            if parts.uri.path() == "/sse" {
                let first = Bytes::from(format!("event: endpoint\ndata: /message?sessionId={}\n\n", new()));
                return events(stream::once(async { first }).chain(stream::pending()).boxed());
            }
            if parts.uri.path() == "/message" {
                let query = parts.uri.query().unwrap();
                let id = query.strip_prefix("sessionId=").unwrap_or("");
                return if known(id) {
                    text(number.to_string())
                } else {
                    whole(StatusCode::NOT_FOUND, "unknown")
                };
            }
            if body == INITIALIZE {
                assert_eq!(header, None, "an initialize carries no session");
                let mut answer = text(number.to_string());
                answer
                    .headers_mut()
                    .insert("mcp-session-id", new().parse().unwrap());
                return answer;
            }
            match header {
                None => text(number.to_string()),
                Some(id) if known(&id) => {
                    if parts.method == Method::DELETE {
                        sessions.lock().unwrap().remove(&id);
                    }
                    text(number.to_string())
                }
                Some(_) => whole(StatusCode::NOT_FOUND, "unknown here"),
            }
        }
    })
    .await
}

pub(crate) async fn initialize(proxy: &Running, headers: &[(&str, &str)]) -> (String, String) {
    let mut answer = post(proxy.address, "/mcp", headers, INITIALIZE).await;
    assert_eq!(answer.status(), StatusCode::OK);
    let id = answer.header("mcp-session-id").expect("a session").to_owned();
    (id, String::from_utf8(answer.body().await.to_vec()).unwrap())
}

#[tokio::test]
async fn sessions_spread_over_three_pods_and_stay_and_a_dead_pod_hurts_only_its_own() {
    let pods = [session_pod(0).await, session_pod(1).await, session_pod(2).await];
    let all = |pods: &[Server]| {
        pods.iter()
            .enumerate()
            .map(|(n, server)| pod(n, server.address))
            .collect::<Vec<_>>()
    };
    let proxy = Running::start(Settings::default(), all(&pods)).await;

    let mut sessions = Vec::new();
    for _ in 0..30 {
        sessions.push(initialize(&proxy, &[]).await);
    }
    let mut spread = BTreeMap::new();
    for (id, served_by) in &sessions {
        *spread.entry(served_by.clone()).or_insert(0) += 1;
        assert!(
            id.starts_with(&format!("pod0000{served_by}.s.")),
            "{id} by {served_by}"
        );
    }
    assert_eq!(spread.values().copied().collect::<Vec<_>>(), [10, 10, 10]);

    let check = async |expect: &dyn Fn(&str) -> bool| {
        for (id, served_by) in &sessions {
            for method in [Method::POST, Method::GET] {
                let session = [("mcp-session-id", id.as_str())];
                let body = if method == Method::POST { PING } else { "" };
                let sent = Client::send(proxy.address, request(method, "/mcp", &session, body));
                let mut answer = soon("an answer", sent).await.unwrap();
                if expect(served_by) {
                    assert_eq!(answer.body().await, served_by.as_bytes(), "{id} stays");
                } else {
                    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
                    let body = answer.json().await;
                    assert_eq!(body["error"]["code"], -32001, "{body}");
                    assert_eq!(body["jsonrpc"], "2.0");
                }
            }
        }
    };
    check(&|_| true).await;

    // One is replaced: its sessions are told to begin again, the others notice nothing.
    let replacement = session_pod(3).await;
    let mut now = all(&pods);
    now.remove(1);
    now.push(pod(3, replacement.address));
    proxy.backends.set(now);
    check(&|served_by| served_by != "1").await;

    // A client that sends its dead session along with an initialize gets a new one.
    let dead = sessions.iter().find(|(_, served_by)| served_by == "1").unwrap();
    let (id, served_by) = initialize(&proxy, &[("mcp-session-id", &dead.0)]).await;
    assert_ne!(served_by, "1");
    let mut again = post(proxy.address, "/mcp", &[("mcp-session-id", &id)], PING).await;
    assert_eq!(again.body().await, served_by);
}

#[tokio::test]
async fn a_pod_that_is_not_ready_keeps_its_sessions_and_gets_no_new_ones() {
    let pods = [session_pod(0).await, session_pod(1).await];
    let both = |ready: bool| [pod(0, pods[0].address).ready(ready), pod(1, pods[1].address)];
    let proxy = Running::start(Settings::default(), both(true)).await;
    let mut sessions = BTreeMap::new();
    for _ in 0..2 {
        let (id, served_by) = initialize(&proxy, &[]).await;
        sessions.insert(served_by, id);
    }
    proxy.backends.set(both(false));
    let mut old = post(proxy.address, "/mcp", &[("mcp-session-id", &sessions["0"])], PING).await;
    assert_eq!(old.body().await, "0");
    for _ in 0..10 {
        assert_eq!(initialize(&proxy, &[]).await.1, "1");
        assert_eq!(post(proxy.address, "/mcp", &[], PING).await.body().await, "1");
    }
}

#[tokio::test]
async fn requests_without_a_session_spread_freely() {
    let pods = [session_pod(0).await, session_pod(1).await, session_pod(2).await];
    let backends: Vec<_> = pods
        .iter()
        .enumerate()
        .map(|(n, server)| pod(n, server.address))
        .collect();
    let proxy = Running::start(Settings::default(), backends).await;
    let mut spread = BTreeMap::new();
    for _ in 0..30 {
        let headers = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "ping")];
        let served_by = post(proxy.address, "/mcp", &headers, PING).await.body().await;
        *spread.entry(served_by).or_insert(0) += 1;
    }
    assert_eq!(spread.values().copied().collect::<Vec<_>>(), [10, 10, 10]);
}

#[tokio::test]
async fn an_id_that_is_not_ours_and_one_that_the_server_forgot_are_told_apart() {
    let server = session_pod(0).await;
    let proxy = Running::start(Settings::default(), [pod(0, server.address)]).await;
    for foreign in ["", "abc", "s.1", "pod00009.s.1"] {
        let mut answer = post(proxy.address, "/mcp", &[("mcp-session-id", foreign)], PING).await;
        assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{foreign}");
        assert_eq!(answer.json().await["error"]["code"], -32001);
    }
    let (id, _) = initialize(&proxy, &[]).await;
    let session = [("mcp-session-id", id.as_str())];
    let deleted = Client::send(proxy.address, request(Method::DELETE, "/mcp", &session, ""))
        .await
        .unwrap();
    assert_eq!(deleted.status(), StatusCode::OK);
    let mut forgotten = post(proxy.address, "/mcp", &session, PING).await;
    assert_eq!(forgotten.status(), StatusCode::NOT_FOUND);
    assert_eq!(forgotten.body().await, "unknown here", "the server's own words");
}

#[tokio::test]
async fn the_messages_of_the_old_transport_reach_the_pod_of_their_stream() {
    let pods = [session_pod(0).await, session_pod(1).await, session_pod(2).await];
    let backends: Vec<_> = pods
        .iter()
        .enumerate()
        .map(|(n, server)| pod(n, server.address))
        .collect();
    let settings = Settings {
        endpoint_prefix: "/team".to_owned(),
        ..Settings::default()
    };
    let proxy = Running::start(settings, backends.clone()).await;
    let mut streams = Vec::new();
    for _ in 0..6 {
        let mut stream = get(proxy.address, "/sse", &[]).await;
        let event = stream.read_until("\n\n").await;
        let url = event
            .strip_prefix("event: endpoint\ndata: /team")
            .unwrap_or_else(|| panic!("{event}"));
        streams.push((url.trim_end().to_owned(), stream));
    }
    let mut seen = HashSet::new();
    for (url, _stream) in &streams {
        let (_, number) = url
            .split_once("&mcp-pod=pod0000")
            .unwrap_or_else(|| panic!("{url}"));
        for _ in 0..3 {
            assert_eq!(
                post(proxy.address, url, &[], PING).await.body().await,
                number.as_bytes()
            );
        }
        seen.insert(number.to_owned());
    }
    assert_eq!(seen.len(), 3, "streams spread, too");

    proxy.backends.set(backends.into_iter().skip(1));
    for (url, _stream) in &streams {
        let expected = if url.ends_with("pod00000") {
            StatusCode::NOT_FOUND
        } else {
            StatusCode::OK
        };
        assert_eq!(post(proxy.address, url, &[], PING).await.status(), expected);
    }
}

#[tokio::test]
async fn a_forwarded_prefix_stands_in_the_endpoint_only_if_it_is_trusted() {
    let server = session_pod(0).await;
    for (trust, expected) in [(true, "/ingress/message?"), (false, "/message?")] {
        let settings = Settings {
            trust_proxy_headers: trust,
            ..Settings::default()
        };
        let proxy = Running::start(settings, [pod(0, server.address)]).await;
        let mut stream = get(proxy.address, "/sse", &[("x-forwarded-prefix", "/ingress")]).await;
        let event = stream.read_until("\n\n").await;
        assert!(event.contains(&format!("data: {expected}")), "{event}");
    }
}

#[tokio::test]
async fn without_sessions_every_id_passes_unchanged() {
    let server = Server::start(|request| async move {
        let id = request.headers().get("mcp-session-id").cloned();
        let mut answer = text(json!(id.as_ref().map(|id| id.to_str().unwrap())).to_string());
        answer
            .headers_mut()
            .insert("mcp-session-id", "plain".parse().unwrap());
        answer
    })
    .await;
    let settings = Settings {
        stateless: true,
        ..Settings::default()
    };
    let proxy = Running::start(settings, [pod(0, server.address)]).await;
    let mut answer = post(proxy.address, "/mcp", &[("mcp-session-id", "anything")], PING).await;
    assert_eq!(answer.header("mcp-session-id"), Some("plain"));
    assert_eq!(answer.json().await, json!("anything"));
}

#[tokio::test]
async fn an_initialize_is_recognised_in_pieces_and_a_hidden_one_is_not_waited_for() {
    let server = session_pod(0).await;
    let proxy = Running::start(Settings::default(), [pod(0, server.address)]).await;
    let chunks = INITIALIZE
        .bytes()
        .map(|byte| format!("1\r\n{}\r\n", byte as char));
    let chunks = chunks.collect::<Vec<_>>().concat();
    let head = "POST /mcp HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nMcp-Session-Id: pod00009.x\r\n\r\n";
    let answer = crate::harness::raw(proxy.address, &format!("{head}{chunks}0\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("mcp-session-id: pod00000.s.0"), "{answer}");

    let late = format!(r#"{{"params":"{}","method":"initialize"}}"#, "x".repeat(100_000));
    let answer = post(proxy.address, "/mcp", &[("mcp-session-id", "pod00009.x")], &late).await;
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
}
