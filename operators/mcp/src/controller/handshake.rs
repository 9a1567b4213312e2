//! A real handshake: `initialize` through a proxy, as any client would send it.

use std::time::Duration;

use bytes::Bytes;
use exuvia_rollout::Token;
use exuvia_rollout::names::FENCE_ANNOTATION;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::{MCPServerSpec, ServerInfo};

/// The version that is offered. The server answers with the one that it speaks.
const PROTOCOL: &str = "2025-11-25";
/// For connecting, the answer, and its first event together.
const PATIENCE: Duration = Duration::from_secs(10);
/// An answer to `initialize` has a few hundred bytes, and instructions.
const MAX_ANSWER: usize = 1024 * 1024;
/// What a server says about itself is shown in the status: no more than this of each.
const MAX_SHOWN: usize = 128;
const SESSION: &str = "mcp-session-id";

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Handshake {
    /// It answered.
    Done(ServerInfo),
    /// It is not time yet.
    NotTried,
    /// It did not, or with something else. The text is ours: what a server says is not repeated.
    Failed(String),
}

/// Shakes hands with a proxy of this roll-out.
pub(crate) async fn shake_hands(spec: &MCPServerSpec, token: &Token, proxies: &[Pod]) -> Handshake {
    let Some(address) = proxies.iter().find_map(|pod| address(pod, token)) else {
        return Handshake::Failed("no proxy of this roll-out has an address yet".to_owned());
    };
    let host = if address.contains(':') {
        format!("[{address}]")
    } else {
        address
    };
    let url = format!("http://{host}:{}{}", spec.proxy_port, spec.path);
    match tokio::time::timeout(PATIENCE, initialize(&url)).await {
        Ok(Ok(info)) => Handshake::Done(info),
        Ok(Err(why)) => Handshake::Failed(why),
        Err(_) => Handshake::Failed(format!(
            "no answer to `initialize` within {} s",
            PATIENCE.as_secs()
        )),
    }
}

/// The address of a ready pod that has this stamp.
fn address(pod: &Pod, token: &Token) -> Option<String> {
    let status = pod.status.as_ref()?;
    let is_ready = status
        .conditions
        .iter()
        .flatten()
        .any(|fact| fact.type_ == "Ready" && fact.status == "True");
    let is_new = pod.annotations().get(FENCE_ANNOTATION) == Some(&token.to_string());
    let is_alive = pod.metadata.deletion_timestamp.is_none();
    status
        .pod_ip
        .clone()
        .filter(|ip| is_ready && is_new && is_alive && !ip.is_empty())
}

async fn initialize(url: &str) -> Result<ServerInfo, String> {
    let client: HttpClient<HttpConnector, Full<Bytes>> =
        HttpClient::builder(TokioExecutor::new()).build_http();
    let body = json!({
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": PROTOCOL,
            "capabilities": {},
            "clientInfo": {"name": "mcp-operator", "version": env!("CARGO_PKG_VERSION")},
        },
    });
    let request = Request::builder()
        .method(Method::POST)
        .uri(url)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json, text/event-stream")
        .body(Full::from(body.to_string()))
        .map_err(|error| format!("invalid URL {url}: {error}"))?;
    let mut answer = client
        .request(request)
        .await
        .map_err(|error| format!("cannot reach the proxy: {error}"))?;
    if answer.status() != StatusCode::OK {
        return Err(format!(
            "`initialize` was answered with HTTP status {}",
            answer.status().as_u16()
        ));
    }
    let session = answer.headers().get(SESSION).cloned();
    let info = first_message(answer.body_mut()).await;
    drop(answer);
    if let Some(session) = session {
        // The server may forget the session; one that does not know DELETE forgets it by itself.
        let request = Request::builder()
            .method(Method::DELETE)
            .uri(url)
            .header(SESSION, session);
        if let Ok(request) = request.body(Full::default()) {
            let _ = client.request(request).await;
        }
    }
    info
}

/// The first JSON-RPC answer of a body, plain or as an event.
async fn first_message(body: &mut hyper::body::Incoming) -> Result<ServerInfo, String> {
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| "the answer to `initialize` was cut off".to_owned())?;
        text.extend_from_slice(&frame.into_data().unwrap_or_default());
        if let Some(info) = server_info(&text) {
            return Ok(info);
        }
        if text.len() > MAX_ANSWER {
            break;
        }
    }
    Err("the answer to `initialize` is not a result of the MCP protocol".to_owned())
}

/// What a complete answer says; `None` if it is not complete, or something else.
fn server_info(text: &[u8]) -> Option<ServerInfo> {
    let text = std::str::from_utf8(text).ok()?;
    let message = |json: &str| serde_json::from_str::<Value>(json).ok();
    let events = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let mut messages = std::iter::once(text).chain(events).filter_map(message);
    let result = messages.find_map(|message| message.get("result").cloned())?;
    let shown = |value: &Value| value.as_str().map(|text| text.chars().take(MAX_SHOWN).collect());
    Some(ServerInfo {
        name: shown(&result["serverInfo"]["name"]),
        version: shown(&result["serverInfo"]["version"]),
        protocol_version: Some(shown(&result["protocolVersion"])?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_as_json_and_as_an_event() {
        let json = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","serverInfo":{"name":"n","version":"1"}}}"#;
        let event = format!("event: message\ndata: {json}\n\n");
        for text in [json, event.as_str()] {
            let info = server_info(text.as_bytes()).expect("an answer");
            assert_eq!(info.name.as_deref(), Some("n"));
            assert_eq!(info.protocol_version.as_deref(), Some("2025-06-18"));
        }
        for text in ["", "{}", &json[..40], r#"{"result":{}}"#, "data: {}\n\n"] {
            assert_eq!(server_info(text.as_bytes()), None, "{text}");
        }
    }
}
