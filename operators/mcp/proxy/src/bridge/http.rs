//! The bridge's HTTP: which request belongs to which session, and what its answer looks like.

use std::{
    io::Read,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode,
    header::{ACCEPT, ALLOW, ORIGIN},
};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use serde_json::Value;
use tokio::sync::mpsc;

use super::{
    Shared,
    answers::{
        Answer, HEADER_MISMATCH, INVALID_REQUEST, METHOD_NOT_FOUND, MISSING_CAPABILITY, NO_ANSWER,
        PARSE_ERROR, UNSUPPORTED_VERSION, error, events, json, no_answer, not_started, session_not_found,
        status, too_large,
    },
    child::StartError,
    message::{self, Envelope, FIRST_SESSIONLESS, Kind},
    session::{NotTaken, Session},
    sessionless,
    stream::{Events, Outgoing},
};
use crate::{
    body::drain,
    counters::InWork,
    headers::{METHOD, NAME, PROTOCOL_VERSION, SESSION_ID},
};

/// An answer that comes within this time is sent as plain JSON, with a status that fits. After it, a stream of events begins,
/// because clients do not wait for a head for ever.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) async fn handle(shared: &Arc<Shared>, request: Request<Incoming>) -> Answer {
    let (parts, body) = request.into_parts();
    let settings = &shared.settings;
    let refused = if parts.uri.path().trim_end_matches('/') != settings.path.trim_end_matches('/') {
        Some(error(StatusCode::NOT_FOUND, None, INVALID_REQUEST, "not found"))
    } else if !allowed(shared, &parts.headers) {
        shared.counters.refused_origin.fetch_add(1, Relaxed);
        Some(error(
            StatusCode::FORBIDDEN,
            None,
            NO_ANSWER,
            "origin not allowed",
        ))
    } else if body.size_hint().lower() > settings.max_message_bytes as u64 {
        Some(too_large(shared))
    } else {
        None
    };
    if let Some(refused) = refused {
        drain(body);
        return refused;
    }
    let session = session_id(&parts.headers);
    match (parts.method, session) {
        (Method::POST, _) => match read(shared, body).await {
            Ok(message) => post(shared, &parts.headers, message).await,
            Err(answer) => answer,
        },
        (Method::GET, Some(id)) => get(shared, &id),
        (Method::DELETE, Some(id)) if shared.end_session(&id) => status(StatusCode::NO_CONTENT),
        (Method::DELETE, Some(_)) => session_not_found(shared, None),
        (Method::GET | Method::DELETE, None) if !is_sessionless(&parts.headers, None) => error(
            StatusCode::BAD_REQUEST,
            None,
            INVALID_REQUEST,
            "an Mcp-Session-Id header is needed",
        ),
        _ => {
            let mut answer = error(
                StatusCode::METHOD_NOT_ALLOWED,
                None,
                INVALID_REQUEST,
                "method not allowed",
            );
            answer
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, POST, DELETE"));
            answer
        }
    }
}

fn allowed(shared: &Shared, headers: &HeaderMap) -> bool {
    let origins = &shared.settings.allowed_origins;
    headers
        .get_all(ORIGIN)
        .iter()
        .all(|origin| origin.to_str().is_ok_and(|origin| origins.allow(origin)))
}

fn session_id(headers: &HeaderMap) -> Option<String> {
    headers.get(SESSION_ID)?.to_str().ok().map(str::to_owned)
}

async fn read(shared: &Shared, mut body: Incoming) -> Result<Bytes, Answer> {
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| {
            error(
                StatusCode::BAD_REQUEST,
                None,
                INVALID_REQUEST,
                "the request body ended early",
            )
        })?;
        if let Some(piece) = frame.data_ref() {
            if whole.len() + piece.len() > shared.settings.max_message_bytes {
                drain(body);
                return Err(too_large(shared));
            }
            whole.extend_from_slice(piece);
        }
    }
    Ok(whole.into())
}

async fn post(shared: &Arc<Shared>, headers: &HeaderMap, body: Bytes) -> Answer {
    let bad = |code, text: &str| error(StatusCode::BAD_REQUEST, None, code, text);
    let envelope: Envelope = match serde_json::from_slice(&body) {
        Ok(envelope) if body.trim_ascii_start().starts_with(b"{") => envelope,
        Ok(_) => {
            return bad(
                INVALID_REQUEST,
                "expected one JSON-RPC message: batches are not supported",
            );
        }
        Err(_) => return bad(PARSE_ERROR, "not a JSON-RPC message"),
    };
    let in_work = InWork::new(&shared.counters, envelope.is("subscriptions/listen"));
    let line = message::line(&body);
    drop(body);
    if envelope.kind() == Kind::Request && envelope.is("initialize") {
        return initialize(shared, headers, &envelope, line, in_work).await;
    }
    if let Some(id) = session_id(headers) {
        let session = shared.sessions().get(&id).cloned();
        let Some(session) = session else {
            return session_not_found(shared, envelope.asked_id());
        };
        return match session.say(&envelope, line).await {
            Ok(Some(messages)) => answer(shared, headers, &envelope, messages, in_work, false).await,
            Ok(None) => status(StatusCode::ACCEPTED),
            Err(NotTaken::SameId) => error(
                StatusCode::BAD_REQUEST,
                envelope.id.as_ref(),
                INVALID_REQUEST,
                "a request with this id is in work",
            ),
            Err(NotTaken::Ended) => {
                shared.end_session(&id);
                session_not_found(shared, envelope.asked_id())
            }
        };
    }
    if !is_sessionless(headers, envelope.version()) {
        let text = "an Mcp-Session-Id header is needed: initialize a session first";
        return error(
            StatusCode::BAD_REQUEST,
            envelope.asked_id(),
            INVALID_REQUEST,
            text,
        );
    }
    if envelope.kind() != Kind::Request {
        return status(StatusCode::ACCEPTED); // nothing is in work that it could concern
    }
    if let Some(mismatch) = mismatch(headers, &envelope) {
        return error(
            StatusCode::BAD_REQUEST,
            envelope.id.as_ref(),
            HEADER_MISMATCH,
            &mismatch,
        );
    }
    match sessionless::call(&shared.children, &envelope, line) {
        Ok(messages) => answer(shared, headers, &envelope, messages, in_work, true).await,
        Err(failed) => not_started(&envelope, &failed),
    }
}

/// A session exists from here on, unless the child refuses it or the client leaves.
async fn initialize(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
    envelope: &Envelope,
    line: Vec<u8>,
    in_work: InWork,
) -> Answer {
    struct Unanswered<'a>(&'a Shared, Option<String>);
    impl Drop for Unanswered<'_> {
        fn drop(&mut self) {
            if let Some(id) = &self.1 {
                self.0.end_session(id);
            }
        }
    }

    let started = new_id()
        .map_err(StartError::from)
        .and_then(|id| Ok((id, Session::start(&shared.children)?)));
    let (id, session) = match started {
        Ok(started) => started,
        Err(failed) => return not_started(envelope, &failed),
    };
    shared.sessions().insert(id.clone(), session.clone());
    let mut unanswered = Unanswered(shared, Some(id.clone()));
    let mut answered = match session.say(envelope, line).await {
        Ok(Some(messages)) => answer(shared, headers, envelope, messages, in_work, false).await,
        _ => no_answer(envelope),
    };
    let refused = answered.status() != StatusCode::OK || answered.extensions().get::<Refused>().is_some();
    if let (false, Ok(value)) = (refused, HeaderValue::try_from(&id)) {
        answered.headers_mut().insert(SESSION_ID, value);
        unanswered.1 = None;
        tracing::info!(sessions = shared.sessions().len(), "session started");
    }
    answered
}

/// The child answered with an error.
#[derive(Clone, Copy)]
struct Refused;

/// 128 bits that nobody can guess.
fn new_id() -> std::io::Result<String> {
    let mut bytes = [0_u8; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

fn get(shared: &Shared, id: &str) -> Answer {
    let session = shared.sessions().get(id).cloned();
    match session.and_then(|session| session.listen()) {
        Some(messages) => {
            let in_work = InWork::new(&shared.counters, true);
            events(Events::new(None, messages, None, shared.end.clone(), in_work))
        }
        None => session_not_found(shared, None),
    }
}

/// Whether a request is of the era without sessions.
fn is_sessionless(headers: &HeaderMap, version_in_body: Option<&str>) -> bool {
    let version = headers
        .get(PROTOCOL_VERSION)
        .and_then(|version| version.to_str().ok());
    headers.contains_key(METHOD)
        || version_in_body.is_some()
        || version.is_some_and(|version| version >= FIRST_SESSIONLESS)
}

/// Headers that contradict the message: what stands before us has decided by them.
fn mismatch(headers: &HeaderMap, envelope: &Envelope) -> Option<String> {
    let header = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let differs = |name: &HeaderName, expected: Option<&str>| match (header(name), expected) {
        (Some(given), Some(expected)) => given != expected && !given.starts_with("=?base64?"),
        _ => false,
    };
    let named = envelope
        .param("name")
        .or_else(|| envelope.param("uri"))
        .and_then(Value::as_str);
    [
        (METHOD, envelope.method.as_deref()),
        (PROTOCOL_VERSION, envelope.version()),
        (NAME, named),
    ]
    .into_iter()
    .find(|(name, expected)| differs(name, *expected))
    .map(|(name, _)| format!("the header {name} contradicts the message"))
}

/// Waits for a while for the child's first word, and makes JSON of an answer and a stream of anything else.
async fn answer(
    shared: &Shared,
    headers: &HeaderMap,
    envelope: &Envelope,
    mut messages: mpsc::Receiver<Outgoing>,
    in_work: InWork,
    sessionless: bool,
) -> Answer {
    let accepts_events = headers.get(ACCEPT).is_none_or(|accept| {
        accept
            .to_str()
            .is_ok_and(|accept| accept.contains("text/event-stream") || accept.contains("*/*"))
    });
    let first = loop {
        let first = tokio::time::timeout(PATIENCE, messages.recv()).await;
        let is_over = matches!(&first, Ok(None)) || matches!(&first, Ok(Some(outgoing)) if outgoing.last);
        if accepts_events || is_over {
            break first;
        }
    };
    let first = match first {
        Ok(None) => return no_answer(envelope),
        Ok(Some(outgoing)) if outgoing.last => {
            let code = match outgoing.error {
                Some(METHOD_NOT_FOUND) if sessionless => StatusCode::NOT_FOUND,
                Some(HEADER_MISMATCH | MISSING_CAPABILITY | UNSUPPORTED_VERSION) if sessionless => {
                    StatusCode::BAD_REQUEST
                }
                _ => StatusCode::OK,
            };
            let mut answer = json(code, outgoing.message);
            if outgoing.error.is_some() {
                answer.extensions_mut().insert(Refused);
            }
            return answer;
        }
        Ok(first) => first,
        Err(_) => None,
    };
    let unanswered = message::error(
        envelope.id.as_ref(),
        NO_ANSWER,
        "the MCP server ended before it answered",
    );
    events(Events::new(
        first,
        messages,
        Some(unanswered),
        shared.end.clone(),
        in_work,
    ))
}
