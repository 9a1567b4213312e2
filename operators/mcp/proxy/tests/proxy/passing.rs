//! What passes unchanged, and what is refused.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use http::{Method, StatusCode};
use http_body_util::BodyExt;
use mcp_proxy::{Backend, Origins, Settings};

use crate::harness::{Client, Running, Server, get, post, raw, request, soon, text, whole};

/// Answers with the request's line and headers, one per line, in the order in which they came.
async fn mirror() -> Server {
    Server::start(|request| async move {
        let mut seen = format!("{} {}\n", request.method(), request.uri());
        for (name, value) in request.headers() {
            seen.push_str(&format!("{name}: {}\n", value.to_str().unwrap()));
        }
        let body = request.into_body().collect().await.unwrap().to_bytes();
        seen.push_str(&format!("body {}\n", String::from_utf8_lossy(&body)));
        text(seen)
    })
    .await
}

#[tokio::test]
async fn every_method_path_and_query_arrives_as_it_was_sent() {
    let server = mirror().await;
    let proxy = Running::before(&server).await;
    for method in ["POST", "GET", "DELETE", "OPTIONS"] {
        for path in [
            "/",
            "/mcp",
            "/message?sessionId=1",
            "/a%2Fb/../c//d;e?x=%20&&y=a+b&z",
            "/?",
            "/mcp?mcp-pods=1",
        ] {
            let answer = raw(
                proxy.address,
                &format!(
                    "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"
                ),
            )
            .await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            assert!(
                answer.contains(&format!("\r\n{method} {path}\n")),
                "{method} {path}: {answer}"
            );
            assert!(answer.contains("\nbody hi\n"), "{answer}");
        }
    }
}

#[tokio::test]
async fn other_methods_are_answered_with_those_that_are_allowed() {
    let server = mirror().await;
    let proxy = Running::before(&server).await;
    for method in [Method::PUT, Method::PATCH, Method::TRACE] {
        let mut answer = Client::send(proxy.address, request(method, "/mcp", &[], ""))
            .await
            .unwrap();
        assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(answer.header("allow"), Some("GET, POST, DELETE, OPTIONS"));
        assert_eq!(answer.json().await["jsonrpc"], "2.0");
    }
    assert_eq!(proxy.counters.snapshot().refused_method, 3);
    assert_eq!(proxy.counters.snapshot().answered, 0);
}

#[tokio::test]
async fn headers_pass_with_their_duplicates_and_those_of_a_connection_do_not() {
    let server = mirror().await;
    let proxy = Running::before(&server).await;
    let mut answer = post(
        proxy.address,
        "/mcp",
        &[
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", "tools/call"),
            ("mcp-name", "=?base64?w7w=?="),
            ("mcp-param-region", "eu"),
            ("last-event-id", "7"),
            ("authorization", "Bearer t"),
            ("accept-encoding", "gzip, br"),
            ("x-two", "1"),
            ("x-two", "2"),
            ("connection", "x-hop, keep-alive"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("proxy-authorization", "secret"),
            ("upgrade", "h2c"),
        ],
        "{}",
    )
    .await;
    let seen = String::from_utf8(answer.body().await.to_vec()).unwrap();
    for line in [
        "mcp-protocol-version: 2026-07-28",
        "mcp-method: tools/call",
        "mcp-name: =?base64?w7w=?=",
        "mcp-param-region: eu",
        "last-event-id: 7",
        "authorization: Bearer t",
        "accept-encoding: gzip, br",
        "x-two: 1\nx-two: 2",
        "content-length: 2",
    ] {
        assert!(seen.contains(&format!("\n{line}\n")), "{line} in {seen}");
    }
    for name in [
        "x-hop",
        "keep-alive",
        "te:",
        "proxy-authorization",
        "upgrade",
        "connection",
    ] {
        assert!(!seen.contains(&format!("\n{name}")), "{name} in {seen}");
    }
}

#[tokio::test]
async fn an_answers_headers_pass_likewise_and_its_status_and_body_are_unchanged() {
    let server = Server::start(|request| async move {
        let status: u16 = request.uri().path()[1..].parse().unwrap();
        let mut answer = whole(
            StatusCode::from_u16(status).unwrap(),
            format!("judged: {status}\0\u{7f}"),
        );
        let headers = answer.headers_mut();
        headers.append("set-cookie", "a=1".parse().unwrap());
        headers.append("set-cookie", "b=2".parse().unwrap());
        headers.append(
            "www-authenticate",
            "Bearer resource_metadata=\"x\"".parse().unwrap(),
        );
        headers.append("content-encoding", "x-odd".parse().unwrap());
        headers.append("connection", "x-hop".parse().unwrap());
        headers.append("x-hop", "1".parse().unwrap());
        headers.append("keep-alive", "timeout=5".parse().unwrap());
        answer
    })
    .await;
    let proxy = Running::before(&server).await;
    for status in [200, 202, 400, 401, 403, 404, 405, 413, 429, 500, 503] {
        let mut answer = post(
            proxy.address,
            &format!("/{status}"),
            &[("accept-encoding", "gzip")],
            "{}",
        )
        .await;
        assert_eq!(answer.status().as_u16(), status);
        let cookies: Vec<_> = answer.headers().get_all("set-cookie").iter().collect();
        assert_eq!(cookies, ["a=1", "b=2"]);
        assert_eq!(
            answer.header("www-authenticate"),
            Some("Bearer resource_metadata=\"x\"")
        );
        assert_eq!(answer.header("content-encoding"), Some("x-odd"));
        assert_eq!(answer.header("x-hop"), None);
        assert_eq!(answer.header("keep-alive"), None);
        assert_eq!(answer.body().await, format!("judged: {status}\0\u{7f}"));
    }
}

#[tokio::test]
async fn the_backend_sees_its_own_authority_and_who_asked_for_what() {
    let server = mirror().await;
    let proxy = Running::before(&server).await;
    let sent = [
        ("x-forwarded-for", "1.1.1.1"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "evil"),
    ];
    let seen = post(proxy.address, "/mcp", &sent, "{}").await.body().await;
    let seen = String::from_utf8(seen.to_vec()).unwrap();
    assert!(seen.contains(&format!("\nhost: {}\n", server.address)), "{seen}");
    assert!(seen.contains("\nx-forwarded-for: 127.0.0.1\n"), "{seen}");
    assert!(seen.contains("\nx-forwarded-host: mcp.example\n"), "{seen}");
    assert!(seen.contains("\nx-forwarded-proto: http\n"), "{seen}");

    let settings = Settings {
        trust_proxy_headers: true,
        ..Settings::default()
    };
    let trusting = Running::start(settings, [Backend::from_url(&server.url()).unwrap()]).await;
    let sent = [
        ("x-forwarded-for", "1.1.1.1"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "real"),
    ];
    let seen = post(trusting.address, "/mcp", &sent, "{}").await.body().await;
    let seen = String::from_utf8(seen.to_vec()).unwrap();
    assert!(seen.contains("\nx-forwarded-for: 1.1.1.1, 127.0.0.1\n"), "{seen}");
    assert!(seen.contains("\nx-forwarded-host: real\n"), "{seen}");
    assert!(seen.contains("\nx-forwarded-proto: https\n"), "{seen}");
}

#[tokio::test]
async fn an_origin_is_passed_on_and_a_foreign_one_refused() {
    let server = mirror().await;
    let proxy = Running::before(&server).await;
    let mut local = post(
        proxy.address,
        "/mcp",
        &[("origin", "http://localhost:6274")],
        "{}",
    )
    .await;
    assert_eq!(local.status(), StatusCode::OK);
    let seen = local.body().await;
    assert!(String::from_utf8_lossy(&seen).contains("\norigin: http://localhost:6274\n"));
    for foreign in ["http://evil.example", "null", "http://mcp.example"] {
        let mut refused = post(proxy.address, "/mcp", &[("origin", foreign)], "{}").await;
        assert_eq!(refused.status(), StatusCode::FORBIDDEN, "{foreign}");
        assert_eq!(refused.json().await["error"]["message"], "origin not allowed");
    }
    let hidden = [("origin", "http://localhost"), ("origin", "http://evil.example")];
    assert_eq!(
        get(proxy.address, "/mcp", &hidden).await.status(),
        StatusCode::FORBIDDEN
    );

    let settings = Settings {
        allowed_origins: Origins::new(["https://app.example"]).unwrap(),
        ..Settings::default()
    };
    let listed = Running::start(settings, [Backend::from_url(&server.url()).unwrap()]).await;
    let app = [("origin", "https://app.example")];
    assert_eq!(
        post(listed.address, "/mcp", &app, "{}").await.status(),
        StatusCode::OK
    );
    let local = [("origin", "http://localhost")];
    assert_eq!(
        post(listed.address, "/mcp", &local, "{}").await.status(),
        StatusCode::FORBIDDEN
    );
}

#[tokio::test]
async fn a_body_up_to_the_limit_passes_and_a_larger_one_is_refused_with_and_without_a_length() {
    let complete = Arc::new(AtomicUsize::new(0));
    let seen = complete.clone();
    let server = Server::start(move |request| {
        let seen = seen.clone();
        async move {
            let Ok(body) = request.into_body().collect().await else {
                return text("cut");
            };
            seen.fetch_add(1, SeqCst);
            text(body.to_bytes().len().to_string())
        }
    })
    .await;
    let settings = Settings {
        max_body_bytes: 1 << 20,
        ..Settings::default()
    };
    let proxy = Running::start(settings, [Backend::from_url(&server.url()).unwrap()]).await;
    let body = "x".repeat(1 << 20);
    assert_eq!(
        post(proxy.address, "/mcp", &[], &body).await.body().await,
        (1 << 20).to_string()
    );

    let mut larger = post(proxy.address, "/mcp", &[], &format!("{body}y")).await;
    assert_eq!(larger.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(larger.json().await["error"]["code"], -32600);

    let chunk = format!("{:x}\r\n{body}\r\n", 1 << 20);
    let head = "POST /mcp HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n";
    let whole = raw(proxy.address, &format!("{head}\r\n{chunk}0\r\n\r\n")).await;
    assert!(whole.starts_with("HTTP/1.1 200"), "{whole}");
    for session in ["", "Mcp-Session-Id: abcdefgh.1\r\n"] {
        let refused = raw(
            proxy.address,
            &format!("{head}{session}\r\n{chunk}{chunk}{chunk}0\r\n\r\n"),
        )
        .await;
        // With a session id the message is looked at first: a pod that is gone is said before the size is known.
        let expected = if session.is_empty() {
            "HTTP/1.1 413"
        } else {
            "HTTP/1.1 404"
        };
        assert!(refused.starts_with(expected), "{refused}");
    }
    assert_eq!(complete.load(SeqCst), 2);
    assert_eq!(proxy.counters.snapshot().refused_size, 2);
}

#[tokio::test]
async fn a_large_body_streams_both_ways() {
    let server = Server::start(|request| async move {
        let mut answer = text("");
        *answer.body_mut() = request
            .into_body()
            .map_err(|error| panic!("{error}"))
            .boxed_unsync();
        answer
    })
    .await;
    let proxy = Running::before(&server).await;
    let body = (0..1_000_000)
        .map(|n| format!("{n:08x}"))
        .collect::<Vec<_>>()
        .concat();
    let mut answer = post(proxy.address, "/mcp", &[], &body).await;
    assert!(answer.body().await == body, "the bytes differ");
}

#[tokio::test]
async fn a_backend_that_is_away_is_said_without_its_address() {
    let server = mirror().await;
    let address = server.address;
    let proxy = Running::before(&server).await;
    server.stop().await;
    let mut answer = post(proxy.address, "/mcp", &[("authorization", "Bearer secret")], "{}").await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.header("retry-after"), Some("1"));
    let body = answer.json().await;
    assert_eq!(body["error"]["code"], -32000);
    assert!(!body.to_string().contains(&address.port().to_string()), "{body}");
    assert!(!body.to_string().contains("secret"), "{body}");

    proxy.backends.set([]);
    assert_eq!(
        post(proxy.address, "/mcp", &[], "{}").await.status(),
        StatusCode::SERVICE_UNAVAILABLE
    );
}

#[tokio::test]
async fn a_request_that_could_not_be_connected_goes_to_another_backend() {
    let (gone, here) = (mirror().await, mirror().await);
    let address = gone.address;
    gone.stop().await;
    let backends =
        [address, here.address].map(|address| Backend::from_url(&format!("http://{address}")).unwrap());
    let proxy = Running::start(Settings::default(), backends).await;
    for _ in 0..20 {
        assert_eq!(
            post(proxy.address, "/mcp", &[], "{}").await.status(),
            StatusCode::OK
        );
    }
}

#[tokio::test]
async fn a_target_path_stands_before_every_path() {
    let server = mirror().await;
    let settings = Settings {
        target_path: "/base/".to_owned(),
        ..Settings::default()
    };
    let proxy = Running::start(settings, [Backend::from_url(&server.url()).unwrap()]).await;
    let seen = post(proxy.address, "/mcp?a=1", &[], "{}").await.body().await;
    assert!(seen.starts_with(b"POST /base/mcp?a=1\n"), "{seen:?}");
}

#[tokio::test]
async fn a_request_with_expect_gets_its_body_through() {
    let server = mirror().await;
    let proxy = Running::before(&server).await;
    let answer = soon(
        "an answer",
        raw(
            proxy.address,
            "POST /mcp HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
        ),
    )
    .await;
    assert!(answer.contains("body hi"), "{answer}");
}
