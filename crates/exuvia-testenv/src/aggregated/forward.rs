//! Answers one request: discovery itself, everything else by asking the API server for the objects that are really there.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::stream;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use serde_json::{Value, json};

use super::{GroupVersion, discovery, translate};
use crate::Error;
use crate::http::HttpClient;
use crate::https::Cut;

/// In every answer, so that a test can tell whose it is.
pub(super) const MARK: HeaderName = HeaderName::from_static("x-exuvia-testenv-aggregated");

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// What the server is, and what it was asked.
pub(super) struct State {
    /// The way to the API server, as administrator.
    pub(super) upstream: HttpClient,
    pub(super) url: String,
    pub(super) shown: GroupVersion,
    pub(super) stored: GroupVersion,
    pub(super) plurals: Vec<String>,
    pub(super) requests: Mutex<Vec<(Method, String)>>,
}

impl State {
    pub(super) fn requests(&self) -> MutexGuard<'_, Vec<(Method, String)>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers, with the mark. What goes wrong on the way to the API server is a 500 with a sentence.
pub(super) async fn answer(state: Arc<State>, request: Request<Incoming>) -> Result<Answer, Cut> {
    let mut answer = match route(&state, request).await {
        Ok(answer) => answer,
        Err(error) => failure(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    };
    answer.headers_mut().insert(MARK, HeaderValue::from_static("yes"));
    Ok(answer)
}

async fn route(state: &Arc<State>, request: Request<Incoming>) -> Result<Answer, Error> {
    let path = request.uri().path().trim_end_matches('/').to_owned();
    let shown = &state.shown;
    let of_group = format!("/apis/{}", shown.group);
    let of_version = format!("/apis/{}", shown.api_version());
    let accept = (request.headers().get(header::ACCEPT)).and_then(|accept| accept.to_str().ok());
    match path.as_str() {
        "/healthz" | "/livez" | "/readyz" => Ok(json_answer(StatusCode::OK, &json!("ok"))),
        "/apis" if accept.is_some_and(|accept| accept.contains("g=apidiscovery.k8s.io;v=v2;")) => {
            let document = discovery::aggregated(&resources(state).await?, shown);
            let mut answer = json_answer(StatusCode::OK, &document);
            let kind = HeaderValue::from_static(discovery::AGGREGATED);
            answer.headers_mut().insert(header::CONTENT_TYPE, kind);
            Ok(answer)
        }
        "/apis" => Ok(json_answer(StatusCode::OK, &discovery::groups(shown))),
        path if path == of_group => Ok(json_answer(StatusCode::OK, &discovery::group(shown))),
        path if path == of_version => Ok(json_answer(StatusCode::OK, &resources(state).await?)),
        path => match path.strip_prefix(&format!("{of_version}/")) {
            Some(rest)
                if state
                    .plurals
                    .iter()
                    .any(|known| Some(known.as_str()) == plural(rest)) =>
            {
                (state.requests()).push((request.method().clone(), path.to_owned()));
                forward(state, rest.to_owned(), request).await
            }
            _ => Ok(failure(
                StatusCode::NOT_FOUND,
                "the server could not find the requested resource",
            )),
        },
    }
}

/// The plural in what follows the version: `widgets/a`, `namespaces/n/widgets/a/status`.
fn plural(rest: &str) -> Option<&str> {
    let mut segments = rest.split('/');
    match segments.next() {
        Some("namespaces") => segments.nth(1),
        plural => plural,
    }
}

async fn resources(state: &State) -> Result<Value, Error> {
    let uri = format!("{}/apis/{}", state.url, state.stored.api_version());
    let answer = state.upstream.get(&uri).await?;
    let of_crds = serde_json::from_slice(answer.body()).map_err(|error| Error::Client(error.into()))?;
    Ok(discovery::resources(&of_crds, &state.shown, &state.plurals))
}

async fn forward(state: &Arc<State>, rest: String, request: Request<Incoming>) -> Result<Answer, Error> {
    let failed = |error: BoxError| Error::Client(error);
    let query = request.uri().query().unwrap_or_default().to_owned();
    let uri = format!("{}/apis/{}/{rest}?{query}", state.url, state.stored.api_version());
    let (head, body) = request.into_parts();
    let body = body
        .collect()
        .await
        .map_err(|error| failed(error.into()))?
        .to_bytes();
    let mut forwarded = Request::builder()
        .method(head.method)
        .uri(uri)
        .header(header::ACCEPT, json_of(head.headers.get(header::ACCEPT)));
    if let Some(kind) = head.headers.get(header::CONTENT_TYPE) {
        forwarded = forwarded.header(header::CONTENT_TYPE, kind);
    }
    let body = if body.is_empty() {
        body
    } else {
        translate::body(&body, &state.shown, &state.stored).into()
    };
    let forwarded = forwarded.body(body).map_err(|error| failed(error.into()))?;
    let (head, body) = state.upstream.open(forwarded).await?.into_parts();
    let is_watch = query
        .split('&')
        .any(|pair| matches!(pair, "watch=true" | "watch=1"));
    let body = if is_watch && head.status.is_success() {
        events(Arc::clone(state), body)
    } else {
        let body = body.collect().await.map_err(|error| failed(error.into()))?;
        whole(translate::body(&body.to_bytes(), &state.stored, &state.shown))
    };
    let mut answer = Response::new(body);
    *answer.status_mut() = head.status;
    for name in [header::CONTENT_TYPE, header::RETRY_AFTER, header::WARNING] {
        if let Some(value) = head.headers.get(&name) {
            answer.headers_mut().insert(name, value.clone());
        }
    }
    Ok(answer)
}

/// The kinds of JSON that the client takes: anything else could not be translated.
fn json_of(accept: Option<&HeaderValue>) -> String {
    let accept = accept.and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let json: Vec<&str> = accept
        .split(',')
        .map(str::trim)
        .filter(|kind| kind.starts_with("application/json"))
        .collect();
    if json.is_empty() {
        "application/json".to_owned()
    } else {
        json.join(",")
    }
}

/// A watch: one event on each line.
fn events(state: Arc<State>, body: Incoming) -> UnsyncBoxBody<Bytes, BoxError> {
    let lines = stream::try_unfold((body, Vec::new()), move |(mut body, mut read)| {
        let state = Arc::clone(&state);
        async move {
            loop {
                if let Some(end) = read.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = read.drain(..=end).collect();
                    let mut line = translate::body(&line[..end], &state.stored, &state.shown);
                    line.push(b'\n');
                    return Ok(Some((Frame::data(Bytes::from(line)), (body, read))));
                }
                match body.frame().await {
                    Some(Ok(frame)) => read.extend(frame.into_data().unwrap_or_default()),
                    Some(Err(error)) => return Err(BoxError::from(error)),
                    None => return Ok(None),
                }
            }
        }
    });
    BodyExt::boxed_unsync(StreamBody::new(lines))
}

fn whole(body: Vec<u8>) -> UnsyncBoxBody<Bytes, BoxError> {
    Full::new(Bytes::from(body))
        .map_err(|never| match never {})
        .boxed_unsync()
}

fn json_answer(status: StatusCode, value: &Value) -> Answer {
    let mut answer = Response::new(whole(value.to_string().into_bytes()));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

fn failure(status: StatusCode, message: &str) -> Answer {
    let reason = if status == StatusCode::NOT_FOUND {
        "NotFound"
    } else {
        "InternalError"
    };
    let body = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "code": status.as_u16(), "reason": reason, "message": message,
    });
    json_answer(status, &body)
}
