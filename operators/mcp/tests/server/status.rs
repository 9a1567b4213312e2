//! Status: two writers that never disturb each other, and a handshake that is real.

use std::sync::Arc;

use exuvia_testenv::proxy::{Fault, Match, Rule};
use exuvia_testenv::until;
use exuvia_write::{Writer, conditions};
use http::Method;
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use mcp_operator::api::MCPServer;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::harness::{MCP_PORT, World, is_true, spec};
use crate::kubelet::{Kubelet, address};
use crate::lone::Lone;
use crate::program::{Operator, ask};

/// Operator and runner write at once, each from a read that is as old as the round before.
#[tokio::test]
async fn two_writers_of_one_status_lose_nothing_and_scalars_never_conflict() {
    let world = World::new("status").await;
    world.create_server("a", spec("example.com/mcp:1")).await;
    let api: Api<MCPServer> = world.api();
    // A runner's write that met a 409 would come back as an error.
    let operator = Writer::named("mcp-operator");
    let runner = Writer::named("mcp-runner").once();
    let mut stale = api.get("a").await.unwrap();
    for round in 0..200 {
        let of_operator = operator.patch_status(&api, &stale, |server| {
            let ready = conditions::new(
                server,
                "Ready",
                round % 2 == 0,
                "Round",
                exuvia_write::Redacted::ours(round.to_string()),
            );
            let status = server.status.get_or_insert_default();
            status.message = Some(round.to_string());
            conditions::set(&mut status.conditions, ready);
        });
        let of_runner = runner.patch_status(&api, &stale, |server| {
            let status = server.status.get_or_insert_default();
            let runtime = status.runtime.get_or_insert_default();
            runtime.ours = Some(format!("uid/{round}"));
            runtime.generation = Some(round);
        });
        let (of_operator, of_runner) = tokio::join!(of_operator, of_runner);
        of_operator.unwrap();
        of_runner.unwrap();
        let now = api.get("a").await.unwrap();
        let status = now.status.clone().unwrap();
        assert_eq!(status.message, Some(round.to_string()));
        assert_eq!(status.conditions[0].message, round.to_string());
        assert_eq!(status.runtime.as_ref().unwrap().generation, Some(round));
        // Every other round starts from what was read before this one.
        if round % 2 == 0 {
            stale = now;
        }
    }
}

/// When the runner decided, as the status says.
fn decided_at(server: &MCPServer) -> Option<String> {
    server.status.as_ref()?.runtime.as_ref()?.at.clone()
}

#[tokio::test]
async fn a_second_decision_gets_into_the_status_even_if_that_cannot_be_written_at_first() {
    let world = World::new("second-decision").await;
    let _kubelet = Kubelet::fake(&world);
    let (proxy, through) = world.proxied().await;
    let mut lone = Lone::new();
    let server = world.create_server("a", spec("example.com/mcp:1")).await;
    let token = format!("{}/1", server.uid().unwrap());
    lone.config(&world, "example.com/mcp:1", 1);
    let runner = lone.start_with(&through, &[("MCP_FENCE", &token)], &[]);
    runner.ready().await;
    runner.logs("the backend is ready: serving").await;
    let first = world
        .server_when("a", "the first decision is reported", |server| {
            decided_at(server).is_some()
        })
        .await;
    let before = world.backend_when("a", "is there", |_| true).await;

    let reports = Match::method(Method::PATCH)
        .resource("mcpservers")
        .subresource("status");
    let refused = proxy.inject(Rule::on(reports).always().then(Fault::refuse(403)));
    let sets: Api<StatefulSet> = world.api();
    sets.delete("a-backend", &DeleteParams::background())
        .await
        .unwrap();
    world
        .backend_when("a", "it is made again", |set| set.uid() != before.uid())
        .await;
    runner
        .logs("the gate's decision could not be reported; trying again")
        .await;
    assert_eq!(decided_at(&world.server("a").await), decided_at(&first));
    refused.remove();
    world
        .server_when("a", "the second decision is reported", |server| {
            decided_at(server) > decided_at(&first)
        })
        .await;
}

/// A small MCP server: it answers `initialize` and lists one tool.
async fn serve_mcp(listener: TcpListener) {
    loop {
        let Ok((mut stream, _)) = listener.accept().await else {
            return;
        };
        tokio::spawn(async move {
            let mut text = Vec::new();
            let mut buffer = [0; 4096];
            loop {
                let Ok(read) = stream.read(&mut buffer).await else {
                    return;
                };
                if read == 0 {
                    return;
                }
                text.extend_from_slice(&buffer[..read]);
                let request = String::from_utf8_lossy(&text).into_owned();
                let Some((head, body)) = request.split_once("\r\n\r\n") else {
                    continue;
                };
                let length = head.lines().find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.eq_ignore_ascii_case("content-length")
                        .then(|| value.trim().parse::<usize>().ok())?
                });
                if body.len() < length.unwrap_or(0) && !head.to_lowercase().contains("chunked") {
                    continue;
                }
                let result = if request.contains("tools/list") {
                    json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})
                } else {
                    json!({"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "tiny", "version": "7"}})
                };
                let answer = json!({"jsonrpc": "2.0", "id": 1, "result": result}).to_string();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nMcp-Session-Id: s1\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{answer}",
                    answer.len()
                );
                let _ = stream.write_all(answer.as_bytes()).await;
                return;
            }
        });
    }
}

#[tokio::test]
async fn a_server_is_ready_after_a_real_handshake_through_the_proxy() {
    let world = World::new("verified").await;
    let kubelet = Kubelet::running(&world, None);
    let _operator = Operator::start(&world, &["--resync=1s"]);
    world.create_server("a", spec("example.com/mcp:1")).await;
    let backend = until("a backend pod", async || world.pods("a", "backend").await.pop()).await;
    let listener = TcpListener::bind(format!("{}:{MCP_PORT}", address(&backend)))
        .await
        .unwrap();
    let serving = tokio::spawn(serve_mcp(listener));
    let ready = world
        .server_when("a", "it is ready", |server| is_true(server, "Ready"))
        .await;
    let status = ready.status.unwrap();
    let info = status.server_info.unwrap();
    assert_eq!(
        (info.name.as_deref(), info.version.as_deref()),
        (Some("tiny"), Some("7"))
    );
    assert_eq!(info.protocol_version.as_deref(), Some("2025-06-18"));
    assert_eq!(status.url.as_deref(), Some("http://a.verified.svc:18473/mcp"));
    assert_eq!(status.ready_replicas, Some(1));
    let runtime = status.runtime.unwrap();
    let pod = world.pods("a", "proxy").await.pop().unwrap();
    assert_eq!(
        (runtime.pod, runtime.gate.as_deref()),
        (Some(pod.name_any()), Some("admitted"))
    );

    // A client, through the proxy.
    let runner: Arc<_> = kubelet.runner(&pod).await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).to_string();
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
         Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = ask(&runner.proxy, &request).await.unwrap();
    assert!(answer.contains("\"echo\""), "{answer}");
    let metrics = crate::program::get(&runner.admin, "/metrics").await.unwrap();
    assert!(
        metrics.contains("exuvia_rollout_decisions_total{decision=\"create\"} 1"),
        "{metrics}"
    );
    assert!(metrics.contains("mcp_proxy_requests_total"), "{metrics}");
    serving.abort();
}
