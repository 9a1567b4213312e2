//! A real handshake through a proxy, as any client would begin: `initialize`, `server/discover`, or the old SSE transport.

use std::time::Duration;

use bytes::Bytes;
use exuvia_rollout::Token;
use exuvia_rollout::names::FENCE_ANNOTATION;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::{MCPServerSpec, ServerInfo, Transport};

/// The version that `initialize` offers. The server answers with the one that it speaks.
const PROTOCOL: &str = "2025-11-25";
/// The version that `server/discover` is asked in: the first without `initialize`.
const SESSIONLESS: &str = "2026-07-28";
/// For connecting, the answer, and its first event together.
const PATIENCE: Duration = Duration::from_secs(10);
/// An answer has a few hundred bytes, and instructions.
const MAX_ANSWER: usize = 1024 * 1024;
/// What a server says about itself is shown in the status: no more than this of each.
const MAX_SHOWN: usize = 128;
const SESSION: &str = "mcp-session-id";
/// What clients and servers say about themselves in the era without `initialize` has this before its name.
const META: &str = "io.modelcontextprotocol/";

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
    let base = format!("http://{host}:{}", spec.proxy_port);
    match shake(&base, &spec.path, spec.transport).await {
        Ok(info) => Handshake::Done(info),
        Err(Failure::Silent(why) | Failure::Refused(why)) => Handshake::Failed(why),
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

/// Why a way to begin came to nothing.
#[derive(Debug)]
enum Failure {
    /// Nobody answered.
    Silent(String),
    /// The answer was another one: the server may know another way.
    Refused(String),
}

type Http = HttpClient<HttpConnector, Full<Bytes>>;

/// Begins as the server's transport wants it. Over Streamable HTTP the first way is `initialize`, as most servers know it; one that
/// only speaks the version without sessions does not.
async fn shake(base: &str, path: &str, transport: Transport) -> Result<ServerInfo, Failure> {
    let client: Http = HttpClient::builder(TokioExecutor::new()).build_http();
    let url = format!("{base}{path}");
    if transport == Transport::Sse {
        return in_time("initialize", initialize_by_stream(&client, base, path)).await;
    }
    let refused = match in_time("initialize", initialize(&client, &url)).await {
        Err(Failure::Refused(why)) => why,
        other => return other,
    };
    let discovered = in_time("server/discover", discover(&client, &url)).await;
    discovered.map_err(|failure| match failure {
        Failure::Silent(why) | Failure::Refused(why) => Failure::Refused(format!("{refused}; {why}")),
    })
}

async fn in_time(
    method: &str,
    way: impl Future<Output = Result<ServerInfo, Failure>>,
) -> Result<ServerInfo, Failure> {
    let late = |_| {
        let seconds = PATIENCE.as_secs();
        Failure::Silent(format!("no answer to `{method}` within {seconds} s"))
    };
    tokio::time::timeout(PATIENCE, way).await.map_err(late)?
}

fn client_info() -> Value {
    json!({"name": "mcp-operator", "version": env!("CARGO_PKG_VERSION")})
}

fn initialize_message() -> Value {
    let params = json!({"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client_info()});
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
}

async fn initialize(client: &Http, url: &str) -> Result<ServerInfo, Failure> {
    let mut answer = post(client, url, &initialize_message(), &[]).await?;
    let session = answer.headers().get(SESSION).cloned();
    let info = server_info("initialize", &mut answer).await;
    drop(answer);
    if let Some(session) = session {
        // The server may forget the session; one that does not know DELETE forgets it by itself.
        let request = Request::delete(url).header(SESSION, session);
        if let Ok(request) = request.body(Full::default()) {
            let _ = client.request(request).await;
        }
    }
    info
}

async fn discover(client: &Http, url: &str) -> Result<ServerInfo, Failure> {
    let meta = json!({
        format!("{META}protocolVersion"): SESSIONLESS,
        format!("{META}clientInfo"): client_info(),
        format!("{META}clientCapabilities"): {},
    });
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}});
    let headers = [
        ("mcp-protocol-version", SESSIONLESS),
        ("mcp-method", "server/discover"),
    ];
    let mut answer = post(client, url, &message, &headers).await?;
    server_info("server/discover", &mut answer).await
}

/// The old transport: the stream's first event says where messages are sent to, and the answer comes on the stream.
async fn initialize_by_stream(client: &Http, base: &str, path: &str) -> Result<ServerInfo, Failure> {
    let request = Request::get(format!("{base}{path}")).header(header::ACCEPT, "text/event-stream");
    let mut stream = send(client, "the stream", request.body(Full::default())).await?;
    let cannot_tell = || Failure::Refused("the stream does not say where messages are sent to".to_owned());
    let endpoint = read_until(&mut stream, endpoint).await?.ok_or_else(cannot_tell)?;
    // The proxy makes URLs of the server's own relative; others are not followed.
    if !endpoint.starts_with('/') || endpoint.starts_with("//") {
        return Err(cannot_tell());
    }
    post(client, &format!("{base}{endpoint}"), &initialize_message(), &[]).await?;
    server_info("initialize", &mut stream).await
}

async fn post(
    client: &Http,
    url: &str,
    message: &Value,
    headers: &[(&str, &str)],
) -> Result<Response<Incoming>, Failure> {
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(url)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json, text/event-stream");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let method = message["method"].as_str().unwrap_or_default();
    let request = request.body(Full::from(message.to_string()));
    send(client, &format!("`{method}`"), request).await
}

async fn send(
    client: &Http,
    what: &str,
    request: Result<Request<Full<Bytes>>, http::Error>,
) -> Result<Response<Incoming>, Failure> {
    let request = request.map_err(|error| Failure::Silent(format!("invalid URL: {error}")))?;
    let unreached = |error| Failure::Silent(format!("cannot reach the proxy: {error}"));
    let answer = client.request(request).await.map_err(unreached)?;
    match answer.status() {
        StatusCode::OK | StatusCode::ACCEPTED => Ok(answer),
        other => {
            let status = other.as_u16();
            let why = format!("{what} was answered with HTTP status {status}");
            Err(Failure::Refused(why))
        }
    }
}

/// Reads a body until something is found in what has come of it.
async fn read_until<T>(
    answer: &mut Response<Incoming>,
    find: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, Failure> {
    let mut read = Vec::new();
    while let Some(frame) = answer.body_mut().frame().await {
        let cut = |_| Failure::Refused("the answer was cut off".to_owned());
        read.extend_from_slice(&frame.map_err(cut)?.into_data().unwrap_or_default());
        if let Some(found) = std::str::from_utf8(&read).ok().and_then(&find) {
            return Ok(Some(found));
        }
        if read.len() > MAX_ANSWER {
            break;
        }
    }
    Ok(None)
}

/// What the answer to a request says about the server.
async fn server_info(method: &str, answer: &mut Response<Incoming>) -> Result<ServerInfo, Failure> {
    let info = read_until(answer, |text| Some(info(&message(text)?))).await?;
    let other = || {
        Failure::Refused(format!(
            "the answer to `{method}` is not a result of the MCP protocol"
        ))
    };
    info.flatten().ok_or_else(other)
}

/// The URL in the first event of a stream of the old transport.
fn endpoint(text: &str) -> Option<String> {
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let mut lines = lines.map(str::trim_end);
    lines.find(|line| matches!(*line, "event: endpoint" | "event:endpoint"))?;
    let url = lines.find_map(|line| line.strip_prefix("data:"))?;
    Some(url.trim().to_owned())
}

/// The first complete answer, plain or as an event; requests and notifications may come before it.
fn message(text: &str) -> Option<Value> {
    let parse = |json: &str| serde_json::from_str::<Value>(json).ok();
    let events = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let mut messages = std::iter::once(text).chain(events).filter_map(parse);
    messages.find(|message| message.get("result").is_some() || message.get("error").is_some())
}

/// What a result says; `None` if it is an error, or something else.
fn info(message: &Value) -> Option<ServerInfo> {
    let shown = |value: &Value| value.as_str().map(|text| text.chars().take(MAX_SHOWN).collect());
    let result = message.get("result")?;
    let version = match result.get("supportedVersions").and_then(Value::as_array) {
        Some(versions) => versions
            .iter()
            .find(|version| **version == SESSIONLESS)
            .or(versions.first()),
        None => result.get("protocolVersion"),
    };
    let in_meta = &result["_meta"][format!("{META}serverInfo")];
    let server = result.get("serverInfo").unwrap_or(in_meta);
    Some(ServerInfo {
        name: shown(&server["name"]),
        version: shown(&server["version"]),
        protocol_version: Some(shown(version?)?),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
