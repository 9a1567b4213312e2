//! Takes one request from the client to the server and its answer back, or lets a fault strike.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, header, request::Parts};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};

use super::{
    fault::Fault,
    record::{Entry, Log, Recorded},
    rule::{Callback, Rules, Verdict},
};
use crate::{
    Error,
    access::Credential,
    certs::Pair,
    https::{Cut, Link},
};

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Upstream = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Headers about a connection instead of a message: each side has its own.
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// The way to the server, and what is known of the requests that took it.
pub(crate) struct Gateway {
    address: SocketAddr,
    identified: Upstream,
    anonymous: Upstream,
    /// What a request without a token is given, if the proxy has one.
    token: Option<HeaderValue>,
    pub(crate) log: Arc<Log>,
    pub(crate) rules: Arc<Rules>,
}

impl Gateway {
    pub(crate) fn new(address: SocketAddr, ca_pem: &str, credential: &Credential) -> Result<Self, Error> {
        let (identity, token) = match credential {
            Credential::None => (None, None),
            Credential::Certificate(pair) => (Some(pair), None),
            Credential::Token(token) => (None, Some(format!("Bearer {token}"))),
        };
        Ok(Self {
            address,
            identified: upstream(ca_pem, identity)?,
            anonymous: upstream(ca_pem, None)?,
            token: token
                .map(HeaderValue::try_from)
                .transpose()
                .map_err(|e| Error::Client(e.into()))?,
            log: Arc::new(Log::new()),
            rules: Arc::default(),
        })
    }

    /// Answers one request of the client.
    pub(crate) async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
        link: Arc<Link>,
    ) -> Result<Response<Passed>, Cut> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(|_| Cut)?.to_bytes();
        let mut entry = self.log.add(recorded(&head, body.clone()));
        let Verdict {
            fault,
            on_request,
            on_commit,
        } = self.rules.judge(entry.request());
        call(&on_request, entry.request());

        let mut delay = Duration::ZERO;
        match &fault {
            Some(Fault::DropRequest) => return Err(Cut),
            Some(Fault::ResetRequest) => {
                link.reset_on_close();
                return Err(Cut);
            }
            Some(Fault::StallRequest) => return futures::future::pending().await,
            Some(Fault::Refuse(answer)) => {
                entry.answered(answer.code());
                let answer = answer.to_response(entry.request());
                return Ok(answer.map(|body| Passed::new(Either::Right(body), entry)));
            }
            Some(Fault::Delay(duration)) => delay = *duration,
            _ => {}
        }

        let gateway = Arc::clone(&self);
        let forward = async move {
            tokio::time::sleep(delay).await;
            let answer = gateway.forward(head, body).await?;
            entry.answered_by_upstream(answer.status().as_u16());
            call(&on_commit, entry.request());
            Ok((answer, entry))
        };
        let (mut answer, mut entry) = match fault {
            // A separate task goes on when the client gives up. Without a fault, giving up must reach the
            // server, or no watch would ever end.
            Some(_) => tokio::spawn(forward).await.map_err(|_| Cut)??,
            None => forward.await?,
        };

        let mut truncate_at = None;
        match fault {
            Some(Fault::DropAnswer) => return Err(Cut),
            Some(Fault::ResetAnswer) => {
                link.reset_on_close();
                return Err(Cut);
            }
            Some(Fault::StallAnswer) => {
                let _in_flight = (answer, entry);
                return futures::future::pending().await;
            }
            Some(Fault::Replace(replacement)) => {
                entry.answered(replacement.code());
                let replacement = replacement.to_response(entry.request());
                return Ok(replacement.map(|body| Passed::new(Either::Right(body), entry)));
            }
            Some(Fault::Truncate(bytes)) => truncate_at = Some(bytes),
            _ => {}
        }
        strip(answer.headers_mut());
        entry.answered(answer.status().as_u16());
        Ok(answer.map(|body| {
            let mut passed = Passed::new(Either::Left(body), entry);
            passed.truncation = truncate_at.map(|left| Truncation {
                left,
                cutting: None,
                link,
            });
            passed
        }))
    }

    async fn forward(&self, mut head: Parts, body: Bytes) -> Result<Response<Incoming>, Cut> {
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let uri = Uri::builder()
            .scheme("https")
            .authority(self.address.to_string())
            .path_and_query(path);
        let mut request = Request::new(Full::new(body));
        *request.uri_mut() = uri.build().map_err(|_| Cut)?;
        *request.method_mut() = head.method;
        strip(&mut head.headers);
        head.headers.remove(header::HOST);
        // The API server prefers a client certificate over a token, so a token must come without one.
        if let Some(token) = &self.token {
            head.headers
                .entry(header::AUTHORIZATION)
                .or_insert_with(|| token.clone());
        }
        let bears_token = head.headers.contains_key(header::AUTHORIZATION);
        let upstream = if bears_token {
            &self.anonymous
        } else {
            &self.identified
        };
        *request.headers_mut() = head.headers;
        upstream.request(request).await.map_err(|error| {
            tracing::debug!(%error, "the API server gave no answer");
            Cut // what a client without a proxy between would see as well
        })
    }
}

fn upstream(ca_pem: &str, identity: Option<&Pair>) -> Result<Upstream, Error> {
    let tls = crate::http::tls(ca_pem, identity)?;
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_only()
        .enable_http1()
        .wrap_connector(http);
    Ok(Client::builder(TokioExecutor::new()).build(connector))
}

fn recorded(head: &Parts, body: Bytes) -> Recorded {
    let mut headers = head.headers.clone();
    if let Some(credentials) = headers.get_mut(header::AUTHORIZATION) {
        credentials.set_sensitive(true);
    }
    Recorded {
        id: 0,
        method: head.method.clone(),
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        headers,
        bytes_in: body.len() as u64,
        body,
        upstream: None,
        answer: None,
        bytes_out: 0,
        finished: false,
    }
}

/// Callbacks may block; the runtime moves the other connections to another thread meanwhile.
fn call(callbacks: &[Callback], request: &Recorded) {
    if !callbacks.is_empty() {
        tokio::task::block_in_place(|| callbacks.iter().for_each(|callback| callback(request)));
    }
}

fn strip(headers: &mut HeaderMap) {
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// An answer's body on its way to the client, frame by frame.
pub(crate) struct Passed {
    source: Either<Incoming, Full<Bytes>>,
    entry: Entry,
    truncation: Option<Truncation>,
}

struct Truncation {
    left: usize,
    /// Set when the last byte was handed over, to the number of flushes until then.
    cutting: Option<u64>,
    link: Arc<Link>,
}

impl Passed {
    fn new(source: Either<Incoming, Full<Bytes>>, entry: Entry) -> Self {
        Self {
            source,
            entry,
            truncation: None,
        }
    }

    fn cutting(&self) -> Option<(&Link, u64)> {
        let truncation = self.truncation.as_ref()?;
        Some((&truncation.link, truncation.cutting?))
    }
}

impl Truncation {
    /// Takes from `data` what may still pass.
    fn take(&mut self, mut data: Bytes) -> Bytes {
        if data.len() > self.left {
            data.truncate(self.left);
            self.cutting = Some(self.link.flushes());
        }
        self.left -= data.len();
        data
    }
}

impl Body for Passed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some((link, flushes)) = self.cutting() {
            // An error at once would make hyper discard what it has buffered and not yet sent.
            ready!(link.poll_flushed_since(flushes, cx));
            return Poll::Ready(Some(Err(Cut.into())));
        }
        let mut frame = ready!(Pin::new(&mut self.source).poll_frame(cx));
        if let Some(Ok(data)) = &mut frame
            && let Some(data) = data.data_mut()
        {
            if let Some(truncation) = &mut self.truncation {
                *data = truncation.take(std::mem::take(data));
            }
            let bytes = data.len();
            self.entry.passed(bytes);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.cutting().is_none() && self.source.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.source.size_hint()
    }
}
