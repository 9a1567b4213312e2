//! Carries out the filter of tools: holds requests and lists until they are complete, and answers what may not pass.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, Response, StatusCode,
    header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, ETAG, IF_RANGE, RANGE},
    request::Parts,
    response,
    uri::PathAndQuery,
};
use http_body_util::{BodyExt, Full};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    answer::{Refusal, json},
    body::{AnswerBody, BackendBody, BodyError, RequestBody},
    handle::Shared,
    old_streams, session,
    settings::{MAX_BUFFER, MAX_HELD},
    source::Source,
    tools::{
        Allowed, AnswerFilter, EventFilter, MAX_LIST, Scan, Verdict, WITHHELD, WITHHELD_CODE, error,
        filtered, judge,
    },
};

/// What says how the bytes of a body are, and is wrong for others.
const OF_THE_BYTES: [HeaderName; 6] = [
    CONTENT_LENGTH,
    ETAG,
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("content-md5"),
];

/// How much may be held for all requests together.
#[derive(Clone, Debug)]
pub(crate) struct Held(Arc<Semaphore>);

impl Default for Held {
    fn default() -> Self {
        Self::new(MAX_HELD)
    }
}

/// One message's share of it.
#[derive(Debug)]
pub(crate) struct Share {
    of: Held,
    size: usize,
    permits: Option<OwnedSemaphorePermit>,
}

impl Held {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes)))
    }

    pub(crate) fn share(&self) -> Share {
        Share {
            of: self.clone(),
            size: MAX_BUFFER, // so much every connection may hold
            permits: None,
        }
    }
}

impl Share {
    /// Nobody waits for the others: those that wait would hold what they have.
    pub(crate) fn grow(&mut self, size: usize) -> Result<(), BodyError> {
        let Some(more) = size.checked_sub(self.size).filter(|more| *more > 0) else {
            return Ok(());
        };
        let more = u32::try_from(more).map_err(|_| BodyError::Busy)?;
        let more = self.of.0.clone().try_acquire_many_owned(more);
        let more = more.map_err(|_| BodyError::Busy)?;
        match &mut self.permits {
            Some(permits) => permits.merge(more),
            none => *none = Some(more),
        }
        self.size = size;
        Ok(())
    }
}

/// A request that may be sent on.
pub(crate) struct Asked {
    allowed: Allowed,
    lists: bool,
    id: Option<String>,
}

/// Reads a request whole, and decides about it. The other result is the answer to one that may not be sent on.
pub(crate) async fn look(
    shared: &Shared,
    allowed: &Allowed,
    parts: &mut Parts,
    body: &mut RequestBody,
) -> Result<Result<Asked, Response<Full<Bytes>>>, Refusal> {
    let limit = shared.settings.max_body_bytes;
    let read = body.read(&shared.held).await.map_err(|error| match error {
        BodyError::TooLarge => Refusal::TooLarge { limit },
        BodyError::Busy => Refusal::Busy,
        BodyError::Slow => Refusal::Slow,
        _ => Refusal::BrokenBody,
    })?;
    // What cannot be read cannot be filtered: the answer must be complete, and not compressed.
    for header in [ACCEPT_ENCODING, RANGE, IF_RANGE] {
        parts.headers.remove(header);
    }
    Ok(match judge(allowed, &parts.headers, &read) {
        Verdict::Pass { lists, id } => Ok(Asked {
            allowed: allowed.clone(),
            lists,
            id,
        }),
        Verdict::Refuse(status, body) => Err(refused(shared, parts, status, body)),
    })
}

/// Clients of the old transport wait for an answer on their stream. If it is at another replica, they get a status that they take
/// for an error.
fn refused(
    shared: &Shared,
    parts: &Parts,
    status: StatusCode,
    body: Option<String>,
) -> Response<Full<Bytes>> {
    let path = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let (pod, path) = match session::pod_in_query(path) {
        Some((pod, path)) => (Some(pod), path),
        None => (None, path.to_owned()),
    };
    let (status, body) = match (status, body) {
        (StatusCode::OK, Some(body))
            if shared.old_streams.tell(&old_streams::key(pod, "/", &path), &body) =>
        {
            (StatusCode::ACCEPTED, None)
        }
        (StatusCode::OK, body) if pod.is_some() => (StatusCode::BAD_REQUEST, body),
        other => other,
    };
    let mut answer = json(status, body.unwrap_or_default());
    if answer.status() == StatusCode::ACCEPTED {
        answer.headers_mut().clear(); // without a body
    }
    answer
}

impl Asked {
    /// Whether the answer must be read whole, unless it is a stream of events.
    fn lists(&self) -> bool {
        self.lists
    }

    /// The id of a request for a list, as JSON.
    fn id(&self) -> Option<String> {
        self.id.clone()
    }

    /// The answer in place of one that cannot be filtered.
    fn withheld(&self) -> Response<Full<Bytes>> {
        let id = self.id.as_deref().unwrap_or("null");
        json(StatusCode::BAD_GATEWAY, error(id, WITHHELD_CODE, WITHHELD))
    }

    /// A list without what clients may not see. `None` if it cannot be filtered.
    async fn list(
        &self,
        held: &Held,
        mut parts: response::Parts,
        body: &mut Source,
    ) -> Result<Option<Response<Full<Bytes>>>, BodyError> {
        let mut share = held.share();
        let mut read = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(piece) = frame?.into_data() else { continue };
            let size = read.len() + piece.len();
            if size > MAX_LIST || share.grow(size).is_err() {
                return Ok(None);
            }
            read.extend_from_slice(&piece);
        }
        let text = std::str::from_utf8(&read).ok();
        let shown = match text.map(|text| filtered(&self.allowed, text)) {
            Some(Ok(None)) => None,
            Some(Ok(Some(shown))) => {
                for header in OF_THE_BYTES {
                    parts.headers.remove(header);
                }
                Some(shown)
            }
            // Not JSON, and no result: the server's word about the request, or `Accepted` of the old transport.
            _ if read.is_empty() || (parts.status != StatusCode::OK && is_silent(&read)) => None,
            _ => return Ok(None),
        };
        let body = shown.map_or_else(|| Bytes::from(read), Bytes::from);
        Ok(Some(Response::from_parts(parts, Full::new(body))))
    }
}

/// The answer without the tools that clients may not see.
pub(crate) async fn answer(
    shared: &Shared,
    asked: &Asked,
    mut parts: response::Parts,
    mut body: BackendBody,
) -> Result<Response<AnswerBody>, Refusal> {
    let withheld = || {
        shared.counters.withheld.fetch_add(1, Relaxed);
        tracing::warn!("an answer is not passed on, because a list of tools in it cannot be filtered");
        Ok(asked.withheld().map(AnswerBody::Own))
    };
    if !is_readable(&parts.headers) {
        body.complete = true; // it is not the client that leaves
        return withheld();
    }
    if !body.is_event_stream && asked.lists() {
        return match asked.list(&shared.held, parts, &mut body.body).await {
            Ok(Some(list)) => {
                body.finish();
                Ok(list.map(AnswerBody::Own))
            }
            Ok(None) => {
                body.complete = true;
                withheld()
            }
            Err(_) => {
                body.complete = true;
                Err(Refusal::Lost)
            }
        };
    }
    body.filter = Some(Box::new(if body.is_event_stream {
        parts.headers.remove(CONTENT_LENGTH); // lists become shorter
        AnswerFilter::Events(EventFilter::new(
            asked.allowed.clone(),
            asked.id(),
            shared.held.clone(),
        ))
    } else {
        AnswerFilter::Guard(Scan::default())
    }));
    Ok(Response::from_parts(parts, AnswerBody::Backend(Box::new(body))))
}

/// Whether the word does not occur, as far as can be seen.
fn is_silent(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body).to_ascii_lowercase();
    !text.contains("tools") && !text.contains('\u{fffd}') && !text.contains('\0')
}

/// Whether an answer's bytes are what they look like.
fn is_readable(headers: &HeaderMap) -> bool {
    let encodings = headers.get_all(CONTENT_ENCODING);
    encodings
        .iter()
        .all(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
}
