//! The bridge's answers: events, JSON, and what is said when a child does not answer.

use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER},
};
use http_body_util::Full;
use serde_json::Value;

use super::{
    Shared,
    child::StartError,
    message::{self, Envelope},
    stream::{BridgeBody, Events},
};

// Codes of JSON-RPC and MCP.
pub(super) const INVALID_REQUEST: i64 = -32600;
pub(super) const PARSE_ERROR: i64 = -32700;
pub(super) const METHOD_NOT_FOUND: i64 = -32601;
pub(super) const NO_ANSWER: i64 = -32000;
pub(super) const NO_SESSION: i64 = -32001;
pub(super) const HEADER_MISMATCH: i64 = -32020;
pub(super) const MISSING_CAPABILITY: i64 = -32021;
pub(super) const UNSUPPORTED_VERSION: i64 = -32022;

pub(super) type Answer = Response<BridgeBody>;

pub(super) fn events(events: Events) -> Answer {
    let mut answer = Response::new(BridgeBody::Events(Box::new(events)));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    answer
}

pub(super) fn json(status: StatusCode, body: Bytes) -> Answer {
    let mut answer = Response::new(BridgeBody::Whole(Full::new(body)));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

pub(super) fn error(status: StatusCode, id: Option<&Value>, code: i64, text: &str) -> Answer {
    json(status, message::error(id, code, text))
}

pub(super) fn status(status: StatusCode) -> Answer {
    let mut answer = Response::new(BridgeBody::Whole(Full::default()));
    *answer.status_mut() = status;
    answer
}

/// `id` is that of the request, if it is one.
pub(super) fn session_not_found(shared: &Shared, id: Option<&Value>) -> Answer {
    shared.counters.session_gone.fetch_add(1, Relaxed);
    error(
        StatusCode::NOT_FOUND,
        id,
        NO_SESSION,
        "session not found: initialize a new one",
    )
}

pub(super) fn no_answer(envelope: &Envelope) -> Answer {
    let text = "the MCP server ended before it answered";
    error(StatusCode::BAD_GATEWAY, envelope.id.as_ref(), NO_ANSWER, text)
}

pub(super) fn not_started(envelope: &Envelope, failed: &StartError) -> Answer {
    tracing::warn!(error = %failed, "cannot start a child");
    let (code, text) = match failed {
        StartError::Full => (
            StatusCode::SERVICE_UNAVAILABLE,
            "too many sessions: try again later",
        ),
        StartError::Io(_) => (StatusCode::BAD_GATEWAY, "the MCP server cannot be started"),
    };
    let mut answer = error(code, envelope.id.as_ref(), NO_ANSWER, text);
    if code == StatusCode::SERVICE_UNAVAILABLE {
        answer
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    answer
}

pub(super) fn too_large(shared: &Shared) -> Answer {
    shared.counters.refused_size.fetch_add(1, Relaxed);
    let text = format!(
        "request body too large: at most {} bytes are accepted",
        shared.settings.max_message_bytes
    );
    let mut answer = error(StatusCode::PAYLOAD_TOO_LARGE, None, INVALID_REQUEST, &text);
    answer
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}
