//! Asks etcd for ranges of keys through the JSON gateway on its client port, at the first endpoint that answers.

use std::borrow::Cow;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::{Request, StatusCode, Uri};
use http_body_util::BodyExt;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde_json::json;

use super::error::{EndpointError, Fault};
use super::fault::{self, Asked};
use super::{AuditOptions, Error, tls};

/// The largest answer that is taken: twice what 16 objects can come to, so that it is met by surprise only.
pub(super) const LARGEST_ANSWER: usize = 64 << 20;

/// etcd, and where it can be asked.
#[derive(Debug)]
pub(super) struct Etcd {
    client: Client<HttpsConnector<HttpConnector>, String>,
    endpoints: Vec<String>,
    /// The endpoint that answered last.
    current: usize,
    cluster: Option<String>,
    with_certificate: bool,
    timeout: Duration,
    /// The body of the last answer; kept, so that its memory is used again.
    body: Vec<u8>,
}

/// A range of keys, and how much of it to send.
#[derive(Debug)]
pub(super) struct Range<'a> {
    pub(super) start: &'a [u8],
    pub(super) end: &'a [u8],
    pub(super) limit: u32,
    /// 0: the latest.
    pub(super) revision: i64,
    pub(super) keys_only: bool,
}

/// What lies in a range.
#[derive(Debug, Deserialize)]
pub(super) struct Answer<'a> {
    header: Header<'a>,
    #[serde(borrow, default)]
    pub(super) kvs: Vec<KeyValue<'a>>,
    #[serde(default)]
    pub(super) more: bool,
    /// How many keys there are in the range, sent or not.
    #[serde(borrow, default)]
    count: Cow<'a, str>,
}

// The gateway writes 64-bit numbers as strings.
#[derive(Debug, Deserialize)]
struct Header<'a> {
    #[serde(borrow)]
    revision: Cow<'a, str>,
    #[serde(borrow, default)]
    cluster_id: Cow<'a, str>,
}

/// A key and its value, both base64.
#[derive(Debug, Deserialize)]
pub(super) struct KeyValue<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(borrow, default)]
    value: Cow<'a, str>,
}

/// Why etcd did not answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// The revision is gone: start again.
    Compacted,
    /// More than [`LARGEST_ANSWER`]: ask for less.
    TooLarge,
    /// Nothing to be done.
    Fatal(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Fatal(error)
    }
}

impl Answer<'_> {
    pub(super) fn revision(&self) -> i64 {
        self.header.revision.parse().unwrap_or_default()
    }

    pub(super) fn count(&self) -> u64 {
        self.count.parse().unwrap_or_default()
    }
}

impl KeyValue<'_> {
    pub(super) fn key(&self) -> Result<Vec<u8>, Fault> {
        BASE64
            .decode(&*self.key)
            .map_err(|_| Fault::Odd("a key that is not base64".to_owned()))
    }

    /// Puts the value into `buffer`.
    pub(super) fn read_value(&self, buffer: &mut Vec<u8>) -> Result<(), Fault> {
        buffer.clear();
        let read = BASE64.decode_vec(&*self.value, buffer);
        read.map_err(|_| Fault::Odd("a value that is not base64".to_owned()))
    }
}

impl Etcd {
    pub(super) fn new(options: &AuditOptions) -> Result<Self, Error> {
        let endpoints: Vec<String> = options
            .endpoints
            .iter()
            .map(|endpoint| checked(endpoint))
            .collect::<Result<_, _>>()?;
        if endpoints.is_empty() {
            return Err(Error::NoEndpoint);
        }
        let over_tls = endpoints.iter().find(|endpoint| is_tls(endpoint));
        if let (Some(endpoint), None) = (over_tls, &options.cacert) {
            let endpoint = endpoint.clone();
            return Err(Error::NoAuthority { endpoint });
        }
        let config = tls::config(tls::Files {
            authority: options.cacert.as_deref(),
            certificate: options.cert.as_deref(),
            key: options.key.as_deref(),
        })?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(options.timeout));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            endpoints,
            current: 0,
            cluster: None,
            with_certificate: options.cert.is_some(),
            timeout: options.timeout,
            body: Vec::new(),
        })
    }

    /// The endpoint that answered last.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoints[self.current]
    }

    /// An error about the endpoint that answered last.
    pub(super) fn error(&self, fault: Fault) -> Error {
        let endpoint = self.endpoint().to_owned();
        Error::NoAnswer(vec![EndpointError { endpoint, fault }])
    }

    /// Reads a range, at the endpoint that answered last or else at the next that does.
    pub(super) async fn range(&mut self, range: &Range<'_>) -> Result<Answer<'_>, Failure> {
        let request = json!({
            "key": BASE64.encode(range.start),
            "range_end": BASE64.encode(range.end),
            "limit": range.limit.to_string(),
            "revision": range.revision.to_string(),
            "keys_only": range.keys_only,
        })
        .to_string();
        let mut errors = Vec::new();
        for _ in 0..self.endpoints.len() {
            match self.ask(&request).await {
                Ok(()) => return self.answer(),
                Err(Refusal::Compacted) => return Err(Failure::Compacted),
                Err(Refusal::TooLarge) => return Err(Failure::TooLarge),
                Err(Refusal::Fault(fault)) => {
                    tracing::debug!(endpoint = self.endpoint(), %fault, "no answer from etcd");
                    let endpoint = self.endpoint().to_owned();
                    errors.push(EndpointError { endpoint, fault });
                    self.current = (self.current + 1) % self.endpoints.len();
                }
            }
        }
        Err(Error::NoAnswer(errors).into())
    }

    fn answer(&mut self) -> Result<Answer<'_>, Failure> {
        let answer = parse(&self.body).map_err(|fault| self.error(fault))?;
        let cluster = &*answer.header.cluster_id;
        // A revision of one cluster means nothing in another.
        if self.cluster.as_deref().is_some_and(|known| known != cluster) {
            return Err(self.error(Fault::OtherCluster).into());
        }
        self.cluster.get_or_insert_with(|| cluster.to_owned());
        Ok(answer)
    }

    /// Sends a request to the current endpoint and keeps the body, if it is an answer.
    async fn ask(&mut self, request: &str) -> Result<(), Refusal> {
        let seconds = self.timeout.as_secs();
        let sent = tokio::time::timeout(self.timeout, self.send(request)).await;
        sent.unwrap_or(Err(Fault::TimedOut(seconds).into()))
    }

    async fn send(&mut self, request: &str) -> Result<(), Refusal> {
        let asked = Asked {
            over_tls: is_tls(self.endpoint()),
            with_certificate: self.with_certificate,
            before: self.cluster.is_some(),
            connecting: false,
        };
        let request = Request::post(format!("{}/v3/kv/range", self.endpoint()))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(request.to_owned())
            .expect("the endpoint was checked");
        let answer = self.client.request(request).await;
        let answer = answer.map_err(|error| {
            let connecting = error.is_connect();
            fault::of_transport(&error, Asked { connecting, ..asked })
        })?;
        let (head, mut body) = answer.into_parts();
        self.body.clear();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| fault::of_transport(&error, asked))?;
            let Some(bytes) = frame.data_ref() else { continue };
            if self.body.len() + bytes.len() > LARGEST_ANSWER {
                return Err(Refusal::TooLarge);
            }
            self.body.extend_from_slice(bytes);
        }
        if head.status == StatusCode::OK {
            return Ok(());
        }
        Err(fault::of_status(head.status.as_u16(), &self.body).map_or(Refusal::Compacted, Refusal::Fault))
    }

    /// How many bytes the last answer had.
    pub(super) fn answered_bytes(&self) -> usize {
        self.body.len()
    }
}

enum Refusal {
    Compacted,
    TooLarge,
    Fault(Fault),
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// What serde says about a bad answer may quote it; the place is enough.
fn parse(body: &[u8]) -> Result<Answer<'_>, Fault> {
    serde_json::from_slice(body)
        .map_err(|error| Fault::Odd(format!("byte {} of {}", error.column(), body.len())))
}

fn is_tls(endpoint: &str) -> bool {
    endpoint.starts_with("https://")
}

fn checked(endpoint: &str) -> Result<String, Error> {
    let bad = |why| Error::BadEndpoint {
        // A password may stand before the last @.
        endpoint: endpoint.rsplit('@').next().unwrap_or_default().to_owned(),
        why,
    };
    let trimmed = endpoint.trim().trim_end_matches('/');
    let uri: Uri = trimmed.parse().map_err(|_| bad("is not a URL"))?;
    let authority = uri.authority().ok_or_else(|| bad("has no address"))?;
    match uri.scheme_str() {
        Some("http" | "https") => {}
        _ => return Err(bad("does not begin with http:// or https://")),
    }
    if authority.as_str().contains('@') {
        return Err(bad("holds a user name, which would be of no use"));
    }
    if uri.path().len() > 1 || uri.query().is_some() {
        return Err(bad("holds more than an address"));
    }
    Ok(trimmed.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_urls_of_a_host_and_no_more() {
        for good in [
            "http://127.0.0.1:2379",
            "https://etcd.example.com/",
            " https://[::1]:2379 ",
        ] {
            assert!(checked(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "127.0.0.1:2379",
            "127.0.0.1",
            "unix:///run/etcd",
            "https://a/v3",
            "http://a?b",
            "http://a b",
        ] {
            assert!(matches!(checked(bad), Err(Error::BadEndpoint { .. })), "{bad}");
        }
        let error = checked("https://root:secret@etcd:2379").expect_err("no users");
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn answers_are_read_with_numbers_as_text_and_what_is_empty_left_out() {
        let body = br#"{"header":{"cluster_id":"14841639068965178418","revision":"42"},"kvs":[{"key":"YQ=="}],"more":true}"#;
        let answer = parse(body).expect("an answer");
        assert_eq!((answer.revision(), answer.count(), answer.more), (42, 0, true));
        assert_eq!(answer.kvs[0].key(), Ok(b"a".to_vec()));
        let fault = parse(br#"{"header":{"revision":"1"},"kvs":["secret"]}"#).expect_err("no answer");
        assert!(!fault.to_string().contains("secret"), "{fault}");
    }
}
