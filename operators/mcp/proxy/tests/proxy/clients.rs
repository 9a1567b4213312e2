//! The official SDK's client through the proxy: both eras, and the old SSE transport.

use std::{collections::BTreeSet, net::SocketAddr};

use futures::{SinkExt, StreamExt, channel::mpsc};
use http::StatusCode;
use mcp_proxy::Settings;
use rmcp::{
    ClientLifecycleMode, ClientServiceExt, RoleClient, ServiceExt,
    model::{CallToolRequestParams, ClientJsonRpcMessage, ProtocolVersion, ServerJsonRpcMessage},
    service::RunningService,
    transport::{
        StreamableHttpClientTransport, sink_stream::SinkStreamTransport,
        streamable_http_client::StreamableHttpClientTransportConfig,
    },
};

use crate::{
    echo::{Echo, over_http},
    harness::{Running, Server, events, get, pod, post, soon, whole},
};

pub(crate) type McpClient = RunningService<RoleClient, ()>;

pub(crate) async fn connect(url: &str, sessionless: bool) -> McpClient {
    let transport =
        StreamableHttpClientTransport::from_config(StreamableHttpClientTransportConfig::with_uri(url));
    let lifecycle = if sessionless {
        ClientLifecycleMode::Discover {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        }
    } else {
        ClientLifecycleMode::Initialize
    };
    soon(
        "the client connects",
        ().serve_with_lifecycle(transport, lifecycle),
    )
    .await
    .unwrap()
}

pub(crate) async fn call(client: &McpClient, tool: &'static str) -> String {
    let called = soon("the call", client.call_tool(CallToolRequestParams::new(tool))).await;
    let result = serde_json::to_value(called.unwrap()).unwrap();
    result["content"][0]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("{result}"))
        .to_owned()
}

async fn three_pods() -> (Vec<Server>, Running) {
    let mut servers = Vec::new();
    for n in 0..3 {
        servers.push(over_http(&format!("pod {n}")).await);
    }
    let pods: Vec<_> = servers
        .iter()
        .enumerate()
        .map(|(n, server)| pod(n, server.address))
        .collect();
    let proxy = Running::start(Settings::default(), pods).await;
    (servers, proxy)
}

#[tokio::test]
async fn clients_with_sessions_list_and_call_tools_and_stay_on_their_pod() {
    let (_servers, proxy) = three_pods().await;
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let client = connect(&proxy.url("/mcp"), false).await;
        assert_eq!(client.list_all_tools().await.unwrap().len(), 3);
        let served_by = call(&client, "whoami").await;
        for _ in 0..5 {
            assert_eq!(call(&client, "whoami").await, served_by);
        }
        assert_eq!(call(&client, "steps").await, "three steps");
        seen.insert(served_by);
        client.cancel().await.unwrap();
    }
    assert!(seen.len() > 1, "{seen:?}");
}

#[tokio::test]
async fn clients_without_sessions_list_and_call_tools_on_every_pod() {
    let (_servers, proxy) = three_pods().await;
    let client = connect(&proxy.url("/mcp"), true).await;
    assert_eq!(
        client.peer_info().unwrap().protocol_version,
        ProtocolVersion::V_2026_07_28
    );
    assert_eq!(client.list_all_tools().await.unwrap().len(), 3);
    let mut seen = BTreeSet::new();
    for _ in 0..9 {
        seen.insert(call(&client, "whoami").await);
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert_eq!(call(&client, "steps").await, "three steps");
}

#[tokio::test]
async fn a_client_whose_pod_is_gone_begins_a_new_session_by_itself() {
    let (servers, proxy) = three_pods().await;
    let client = connect(&proxy.url("/mcp"), false).await;
    let served_by = call(&client, "whoami").await;
    let others = servers
        .iter()
        .enumerate()
        .filter(|(n, _)| served_by != format!("pod {n}"));
    proxy
        .backends
        .set(others.map(|(n, server)| pod(n, server.address)));
    assert_ne!(call(&client, "whoami").await, served_by);
}

#[tokio::test]
async fn a_call_does_not_fail_when_its_pod_ends_before_the_proxy_hears_that_it_is_gone() {
    let (mut servers, proxy) = three_pods().await;
    let client = connect(&proxy.url("/mcp"), false).await;
    let served_by = call(&client, "whoami").await;
    let is_its_own = |n: usize| served_by == format!("pod {n}");
    let pods = servers.iter().enumerate();
    let pods = pods.map(|(n, server)| pod(n, server.address).ready(!is_its_own(n)).ending(is_its_own(n)));
    proxy.backends.set(pods);
    assert_eq!(call(&client, "whoami").await, served_by, "it keeps its sessions");
    let at = (0..3).find(|n| is_its_own(*n)).unwrap();
    drop(servers.remove(at));
    assert_ne!(call(&client, "whoami").await, served_by);
}

/// A server of the old transport: a stream of events, and a path for messages. One session per stream.
pub(crate) async fn over_sse(name: String) -> Server {
    type Inbox = mpsc::Sender<ClientJsonRpcMessage>;
    let inboxes: std::sync::Arc<std::sync::Mutex<Vec<Inbox>>> = std::sync::Arc::default();
    Server::start(move |request| {
        let (inboxes, name) = (inboxes.clone(), name.clone());
        async move {
            let (parts, body) = request.into_parts();
            if parts.uri.path() == "/sse" {
                let (inbox, incoming) = mpsc::channel(16);
                let (outgoing, outbox) = mpsc::channel::<ServerJsonRpcMessage>(16);
                tokio::spawn(async move {
                    if let Ok(serving) = (Echo { name })
                        .serve(SinkStreamTransport::new(outgoing, incoming))
                        .await
                    {
                        let _ = serving.waiting().await;
                    }
                });
                let number = {
                    let mut inboxes = inboxes.lock().unwrap();
                    inboxes.push(inbox);
                    inboxes.len() - 1
                };
                let first = format!("event: endpoint\ndata: /messages/?session_id={number}\n\n");
                let messages = outbox.map(|message| {
                    format!(
                        "event: message\ndata: {}\n\n",
                        serde_json::to_string(&message).unwrap()
                    )
                });
                let all = futures::stream::once(async { first }).chain(messages);
                return events(all.map(bytes::Bytes::from).boxed());
            }
            let number = parts
                .uri
                .query()
                .and_then(|query| query.strip_prefix("session_id=")?.parse::<usize>().ok());
            let inbox = number.and_then(|number| inboxes.lock().unwrap().get(number).cloned());
            let Some(mut inbox) = inbox else {
                return whole(StatusCode::NOT_FOUND, "unknown session");
            };
            let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
            inbox.send(serde_json::from_slice(&body).unwrap()).await.unwrap();
            whole(StatusCode::ACCEPTED, "Accepted")
        }
    })
    .await
}

/// The SDK has dropped the old transport; its client takes any pair of a sink and a stream.
pub(crate) async fn connect_sse(address: SocketAddr) -> McpClient {
    let mut stream = get(address, "/sse", &[("accept", "text/event-stream")]).await;
    let event = stream.read_until("\n\n").await;
    let endpoint = event.trim_end().split_once("data: ").unwrap().1.to_owned();
    let (to_server, mut outgoing) = mpsc::channel::<ClientJsonRpcMessage>(16);
    let (mut incoming, from_server) = mpsc::channel::<ServerJsonRpcMessage>(16);
    tokio::spawn(async move {
        while let Some(message) = outgoing.next().await {
            let body = serde_json::to_string(&message).unwrap();
            let answer = post(address, &endpoint, &[("content-type", "application/json")], &body).await;
            assert_eq!(answer.status(), StatusCode::ACCEPTED);
        }
    });
    tokio::spawn(async move {
        let mut read = String::new();
        while let Ok(Some(Ok(frame))) = tokio::time::timeout(crate::harness::NET, next(&mut stream)).await {
            read.push_str(std::str::from_utf8(&frame).unwrap());
            while let Some((event, rest)) = read.split_once("\n\n") {
                let data = event.split_once("data: ").unwrap().1;
                incoming.send(serde_json::from_str(data).unwrap()).await.unwrap();
                read = rest.to_owned();
            }
        }
    });
    soon(
        "the client connects",
        ().serve(SinkStreamTransport::new(to_server, from_server)),
    )
    .await
    .unwrap()
}

async fn next(client: &mut crate::harness::Client) -> Option<Result<bytes::Bytes, hyper::Error>> {
    let frame = http_body_util::BodyExt::frame(client.response.body_mut()).await?;
    Some(frame.map(|frame| frame.into_data().unwrap_or_default()))
}

#[tokio::test]
async fn clients_of_the_old_transport_list_and_call_tools_with_three_pods() {
    let mut servers = Vec::new();
    for n in 0..3 {
        servers.push(over_sse(format!("pod {n}")).await);
    }
    let pods: Vec<_> = servers
        .iter()
        .enumerate()
        .map(|(n, server)| pod(n, server.address))
        .collect();
    let proxy = Running::start(Settings::default(), pods).await;
    let mut seen = BTreeSet::new();
    let mut clients = Vec::new();
    for _ in 0..3 {
        let client = connect_sse(proxy.address).await;
        assert_eq!(client.list_all_tools().await.unwrap().len(), 3);
        let served_by = call(&client, "whoami").await;
        for _ in 0..3 {
            assert_eq!(call(&client, "whoami").await, served_by);
        }
        seen.insert(served_by);
        clients.push(client);
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
}
