//! One request, from its head to its answer's head.

use std::{
    net::IpAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use http::{
    HeaderMap, HeaderValue, Method, Request, Response, Uri,
    header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, ORIGIN},
    request::Parts,
    response,
    uri::PathAndQuery,
};
use hyper::body::{Body, Incoming};
use tokio::sync::watch;

use crate::{
    Backend, Backends, Counters, Settings,
    answer::Refusal,
    backends::Known,
    body::{AnswerBody, BackendBody, BodyError, RequestBody},
    counters::InWork,
    endpoint::EndpointRewrite,
    filtering::{self, Held},
    headers::{self, FORWARDED_PREFIX, METHOD, SESSION_ID},
    old_streams::{self, OldStreams},
    pool::Sender,
    seen::Seen,
    session,
    source::Source,
};

/// What all requests of a proxy share.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) backends: Backends,
    pub(crate) counters: Arc<Counters>,
    pub(crate) held: Held,
    pub(crate) old_streams: OldStreams,
    pub(crate) end: watch::Receiver<bool>,
}

/// A request body of at most so many bytes is sent at once with its head.
const MAX_WITH_HEAD: u64 = 4 * 1024;

/// Who may get a request.
enum Target {
    Any,
    Pod(Arc<Known>),
}

/// A backend's answer, and the connection that it came over.
struct Answered {
    response: Response<Source>,
    backend: Arc<Known>,
    connection: Option<Sender>,
}

pub(crate) async fn handle(
    shared: &Shared,
    client: IpAddr,
    request: Request<Incoming>,
) -> Response<AnswerBody> {
    shared.counters.requests.fetch_add(1, Relaxed);
    let mut gone = Gone(Some(&shared.counters));
    let seen: Arc<Seen> = Arc::default();
    let answer = match forward(shared, client, request, &seen).await {
        Ok(answer) => {
            seen.forget();
            answer
        }
        Err(refusal) => {
            if let Some(counter) = shared.counters.of(refusal) {
                counter.fetch_add(1, Relaxed);
            }
            let id = if refusal.is_about_the_message() {
                Box::pin(seen.id()).await // boxed, because every other request would need room for it, too
            } else {
                None
            };
            refusal.answer(id.as_deref()).map(AnswerBody::Own)
        }
    };
    gone.0 = None;
    answer
}

/// Counts clients that leave before the answer's head: then the future is dropped, and with it the connection to the backend.
struct Gone<'a>(Option<&'a Counters>);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        if let Some(counters) = self.0 {
            counters.client_gone.fetch_add(1, Relaxed);
        }
    }
}

async fn forward(
    shared: &Shared,
    client: IpAddr,
    request: Request<Incoming>,
    seen: &Arc<Seen>,
) -> Result<Response<AnswerBody>, Refusal> {
    let settings = &shared.settings;
    let limit = settings.max_body_bytes;
    let (mut parts, body) = request.into_parts();
    let mut body = RequestBody::new(body, limit, seen.clone());
    admit(settings, &parts, &body)?;
    let is_get = parts.method == Method::GET;
    let is_listen = parts
        .headers
        .get(METHOD)
        .is_some_and(|method| method == "subscriptions/listen");
    let in_work = InWork::new(&shared.counters, is_get || is_listen);

    let asked = match settings.tools.names() {
        None => None,
        Some(allowed) => match filtering::look(shared, allowed, &mut parts, &mut body).await? {
            Ok(asked) => Some(asked),
            Err(answer) => {
                shared.counters.refused_tool.fetch_add(1, Relaxed);
                return Ok(answer.map(AnswerBody::Own));
            }
        },
    };
    let target = target(shared, &mut parts, &mut body).await?;
    let stream = is_get.then(|| Stream {
        prefix: endpoint_prefix(settings, &parts.headers),
        path: parts.uri.path().to_owned(),
    });
    headers::for_backend(&mut parts.headers, client, settings.trust_proxy_headers);
    set_path(&mut parts, &settings.target_path);

    // A body that goes with the head, if any: the answer's head then comes after all of it.
    let is_stream =
        (is_get || is_listen) && body.size_hint().upper().is_some_and(|size| size <= MAX_WITH_HEAD);
    let answered = send(shared, target, Request::from_parts(parts, body), is_stream).await;
    let answered = answered.map_err(|refusal| {
        if seen.is_too_large() {
            Refusal::TooLarge { limit }
        } else {
            refusal
        }
    })?;
    shared.counters.answered.fetch_add(1, Relaxed);
    let (parts, body) = answer(shared, answered, in_work, stream);
    match asked {
        None => Ok(Response::from_parts(parts, AnswerBody::Backend(Box::new(body)))),
        Some(asked) => filtering::answer(shared, &asked, parts, body).await,
    }
}

/// What can be refused by the head alone.
fn admit(settings: &Settings, parts: &Parts, body: &RequestBody) -> Result<(), Refusal> {
    if ![Method::GET, Method::POST, Method::DELETE, Method::OPTIONS].contains(&parts.method) {
        return Err(Refusal::Method);
    }
    // Every one of them: a second header must not hide behind an allowed first.
    for origin in parts.headers.get_all(ORIGIN) {
        if !origin
            .to_str()
            .is_ok_and(|origin| settings.allowed_origins.allow(origin))
        {
            return Err(Refusal::Origin);
        }
    }
    let limit = settings.max_body_bytes;
    if body.size_hint().lower() > limit {
        return Err(Refusal::TooLarge { limit });
    }
    Ok(())
}

/// Finds the pod of a request, and takes away what was added to the client's session id or query.
async fn target(shared: &Shared, parts: &mut Parts, body: &mut RequestBody) -> Result<Target, Refusal> {
    if shared.settings.stateless {
        return Ok(Target::Any);
    }
    let pod = |id: &str| {
        shared
            .backends
            .by_id(id)
            .map(Target::Pod)
            .ok_or(Refusal::SessionGone)
    };
    let path_and_query = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    if let Some((id, rest)) = session::pod_in_query(path_and_query) {
        let target = pod(id)?;
        parts.uri = rest.parse().map_err(|_| Refusal::SessionGone)?;
        return Ok(target);
    }
    let Some(handed_out) = parts.headers.get(SESSION_ID) else {
        return Ok(Target::Any);
    };
    // A client whose session is gone may send its old id along. Only a POST can be an `initialize`.
    if parts.method == Method::POST && is_initialize(body, shared.settings.max_body_bytes).await? {
        parts.headers.remove(SESSION_ID);
        return Ok(Target::Any);
    }
    let (id, own) = handed_out
        .to_str()
        .ok()
        .and_then(session::taken_apart)
        .ok_or(Refusal::SessionGone)?;
    let target = pod(id)?;
    let own = HeaderValue::try_from(own).map_err(|_| Refusal::SessionGone)?;
    parts.headers.insert(SESSION_ID, own);
    Ok(target)
}

async fn is_initialize(body: &mut RequestBody, limit: u64) -> Result<bool, Refusal> {
    match body.method().await {
        Ok(method) => Ok(method.as_deref() == Some("initialize")),
        Err(BodyError::TooLarge) => Err(Refusal::TooLarge { limit }),
        Err(_) => Err(Refusal::BrokenBody),
    }
}

fn endpoint_prefix(settings: &Settings, headers: &HeaderMap) -> String {
    let forwarded = headers
        .get(FORWARDED_PREFIX)
        .and_then(|prefix| prefix.to_str().ok());
    match forwarded {
        Some(prefix)
            if settings.endpoint_prefix.is_empty()
                && settings.trust_proxy_headers
                && prefix.starts_with('/')
                && !prefix.starts_with("//") =>
        {
            prefix.to_owned()
        }
        _ => settings.endpoint_prefix.clone(),
    }
}

/// Origin form, since the request goes to its server itself.
fn set_path(parts: &mut Parts, target_path: &str) {
    let own = parts.uri.path_and_query();
    let path = if target_path.is_empty() {
        own.cloned()
    } else {
        let own = own.map_or("/", PathAndQuery::as_str);
        format!("{}{own}", target_path.trim_end_matches('/')).parse().ok()
    };
    let mut uri = http::uri::Parts::default();
    uri.path_and_query = Some(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    parts.uri = Uri::from_parts(uri).unwrap_or_default();
}

/// Sends the request once. It is sent again only if it is certain that no byte of it has been sent.
async fn send(
    shared: &Shared,
    target: Target,
    mut request: Request<RequestBody>,
    is_stream: bool,
) -> Result<Answered, Refusal> {
    let (candidates, unreachable) = match target {
        Target::Any => (shared.backends.in_turn(), Refusal::Unreachable),
        // It does not come back, and nothing was sent: the client may say it again in a new session.
        Target::Pod(pod) if pod.backend.ending => (vec![pod], Refusal::SessionGone),
        Target::Pod(pod) => (vec![pod], Refusal::Unreachable),
    };
    if candidates.is_empty() {
        return Err(Refusal::NoBackend);
    }
    let counters = &shared.counters;
    for backend in candidates {
        request.headers_mut().insert(HOST, backend.host.clone());
        loop {
            let pooled = if is_stream { None } else { backend.pool.take() };
            let is_new = pooled.is_none();
            let link = match pooled {
                Some(connection) => {
                    counters.connections_reused.fetch_add(1, Relaxed);
                    connection.into()
                }
                None => match backend
                    .pool
                    .connect(&backend.backend.host, backend.backend.port, is_stream)
                    .await
                {
                    Ok(connection) => {
                        counters.connections_opened.fetch_add(1, Relaxed);
                        connection
                    }
                    Err(error) => {
                        tracing::warn!(backend = backend.backend.authority, %error, "cannot connect");
                        break;
                    }
                },
            };
            match link.send(request).await {
                Ok((response, connection)) => {
                    return Ok(Answered {
                        response,
                        backend,
                        connection,
                    });
                }
                // The request comes back whole if the connection ended before anything was written: nobody has seen it.
                // Any other error may have come after the backend began to work.
                Err(mut error) => {
                    let Some(unsent) = error.take_message() else {
                        tracing::warn!(backend = backend.backend.authority, error = %error.into_error(), "no answer");
                        return Err(Refusal::Lost);
                    };
                    counters.sent_again.fetch_add(1, Relaxed);
                    request = unsent;
                }
            }
            if is_new {
                break; // closed at once: the next backend may do better
            }
        }
    }
    Err(unreachable)
}

/// What is needed to rewrite the `endpoint` event of a GET.
struct Stream {
    prefix: String,
    path: String,
}

/// A backend's answer as the client gets it. `stream` is given for a GET, whose events may begin with an `endpoint`.
fn answer(
    shared: &Shared,
    answered: Answered,
    in_work: InWork,
    stream: Option<Stream>,
) -> (response::Parts, BackendBody) {
    let Answered {
        response,
        backend,
        connection,
    } = answered;
    let (mut parts, body) = response.into_parts();
    headers::drop_hop_by_hop(&mut parts.headers);
    let stateless = shared.settings.stateless;
    if !stateless {
        hand_out_sessions(&mut parts.headers, &backend.backend.id);
    }
    let is_event_stream = parts.headers.get(CONTENT_TYPE).is_some_and(|kind| {
        kind.as_bytes()
            .to_ascii_lowercase()
            .starts_with(b"text/event-stream")
    });
    let mut told = None;
    let rewrite = stream.filter(|_| is_event_stream).map(|stream| {
        parts.headers.remove(CONTENT_LENGTH); // the event becomes longer
        let target_path = shared.settings.target_path.trim_end_matches('/').to_owned();
        let backend = backend.clone();
        let known = shared.settings.tools.names().map(|_| shared.old_streams.open());
        let known = known.map(|(open, known)| {
            told = Some(Box::new(open));
            known
        });
        EndpointRewrite::new(move |url| {
            let Backend { authority, id, .. } = &backend.backend;
            let pod = (!stateless).then_some(id.as_str());
            if let Some(known) = &known {
                let url = session::endpoint(url, authority, &target_path, "", None);
                known(old_streams::key(pod, &stream.path, &url));
            }
            session::endpoint(url, authority, &target_path, &stream.prefix, pod)
        })
    });
    let body = BackendBody {
        body,
        connection: connection.map(|connection| (backend.pool.clone(), connection)),
        rewrite,
        filter: None,
        told,
        is_event_stream,
        end: shared.end.clone(),
        ended: None,
        in_work,
        complete: false,
    };
    (parts, body)
}

fn hand_out_sessions(headers: &mut HeaderMap, pod: &str) {
    let given: Vec<HeaderValue> = headers
        .get_all(SESSION_ID)
        .iter()
        .filter_map(|id| HeaderValue::try_from(session::handed_out(pod, id.to_str().ok()?)).ok())
        .collect();
    if given.is_empty() {
        return;
    }
    headers.remove(SESSION_ID);
    for id in given {
        headers.append(SESSION_ID, id);
    }
}
