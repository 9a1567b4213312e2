//! The HTTP server over real connections, and the log whose level it changes.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod open_metrics;

use std::{net::SocketAddr, sync::OnceLock};

use exuvia_runtime::{Claim, Error, Health, LogFormat, LogLevel, Metrics, bind, serve, start_logging};
use open_metrics::assert_open_metrics;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// One log for the process, as there can be only one.
fn log_level() -> LogLevel {
    static LEVEL: OnceLock<LogLevel> = OnceLock::new();
    LEVEL
        .get_or_init(|| start_logging(LogFormat::Json, "info").unwrap())
        .clone()
}

async fn served() -> (SocketAddr, Metrics) {
    let listener = bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let metrics = Metrics::new("1.2.3");
    let (health, level) = (Health::new(), log_level());
    tokio::spawn(serve(
        listener,
        health,
        metrics.clone(),
        level,
        std::future::pending(),
    ));
    (address, metrics)
}

/// Code, head and body of the answer.
async fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, head.to_ascii_lowercase(), body.to_owned())
}

#[tokio::test]
async fn metrics_are_valid_open_metrics_with_the_names_that_people_know() {
    let (address, metrics) = served().await;
    metrics.observe_claim("one", &Claim::always());
    metrics.observe_claim("two", &Claim::none());
    let (code, head, body) = ask(address, "GET", "/metrics", "").await;
    assert_eq!(code, 200);
    assert!(
        head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"),
        "{head}"
    );
    let types = assert_open_metrics(&body);
    for (family, kind) in [
        ("exuvia_build", "info"),
        ("leader_election_master_status", "gauge"),
        ("process_cpu_seconds", "counter"),
        ("process_resident_memory_bytes", "gauge"),
        ("process_open_fds", "gauge"),
        ("process_max_fds", "gauge"),
        ("process_start_time_seconds", "gauge"),
    ] {
        assert_eq!(types.get(family).map(String::as_str), Some(kind), "{family}");
    }
    assert!(body.contains("exuvia_build_info{version=\"1.2.3\"} 1\n"));
    assert!(body.contains("leader_election_master_status{name=\"one\"} 1\n"));
    assert!(body.contains("leader_election_master_status{name=\"two\"} 0\n"));
}

#[tokio::test]
async fn the_process_is_as_large_and_as_old_as_it_is() {
    let metrics = Metrics::new("test").encode();
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().parse().unwrap()
    };
    let resident = value("process_resident_memory_bytes ");
    assert!(resident > 1e6 && resident < 1e10, "{resident}");
    assert!(value("process_virtual_memory_bytes ") >= resident);
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let started = value("process_start_time_seconds ");
    assert!(started <= now + 2.0 && started > now - 3600.0, "{started} {now}");
    assert!(value("process_open_fds ") >= 3.0 && value("process_max_fds ") > value("process_open_fds "));
}

#[tokio::test]
async fn the_log_level_changes_while_the_process_runs() {
    let (address, _) = served().await;
    let shows = || tracing::enabled!(target: "exuvia_somewhere", tracing::Level::DEBUG);
    let others = || tracing::enabled!(target: "somebody_else", tracing::Level::INFO);
    assert!(!shows() && !others());
    assert_eq!(ask(address, "GET", "/log-level", "").await.2, "info\n");
    assert_eq!(ask(address, "PUT", "/log-level", "debug").await.0, 200);
    assert!(shows() && !others());
    let (code, _, why) = ask(address, "PUT", "/log-level", "loud").await;
    assert_eq!(code, 400);
    assert!(
        why.contains("invalid log level \"loud\": expected error, warn, info"),
        "{why}"
    );
    assert!(shows());
    assert_eq!(
        ask(address, "PUT", "/log-level", "warn,somebody_else=info")
            .await
            .0,
        200
    );
    assert!(!shows() && others());
    assert_eq!(ask(address, "PUT", "/log-level", "info").await.0, 200);
    assert!(!shows() && !others());
    assert!(matches!(
        start_logging(LogFormat::Text, "info"),
        Err(Error::LoggingStarted)
    ));
}

#[tokio::test]
async fn clients_that_say_nothing_do_not_keep_others_out() {
    let (address, _) = served().await;
    let mut silent = Vec::new();
    for _ in 0..80 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /live").await.unwrap();
        silent.push(stream);
    }
    let patience = exuvia_testenv::DEADLINE;
    let answer = tokio::time::timeout(patience, ask(address, "GET", "/livez", ""));
    assert_eq!(answer.await.unwrap().0, 200);
}

#[tokio::test]
async fn an_address_that_is_taken_or_none_is_named_with_a_way_out() {
    let holder = bind("127.0.0.1:0").await.unwrap();
    let taken = holder.local_addr().unwrap().to_string();
    for address in [taken.as_str(), "nonsense", "127.0.0.1"] {
        let error = bind(address).await.unwrap_err().to_string();
        assert!(
            error.contains(&format!("cannot listen on {address}: ")),
            "{error}"
        );
        assert!(error.contains("host:port"), "{error}");
    }
    assert!(bind("[::]:0").await.is_ok());
}
