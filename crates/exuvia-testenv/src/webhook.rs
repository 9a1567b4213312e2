//! An admission and conversion webhook server whose behaviour a test changes while it runs.
//!
//! ```no_run
//! use exuvia_testenv::webhook::{Admission, Break, Conversion, Endpoint, WebhookServer};
//! use exuvia_testenv::{Error, certs::Authority};
//!
//! # async fn example(authority: Authority) -> Result<(), Error> {
//! let hooks = WebhookServer::start(&authority).await?;
//! let client_config = hooks.client_config(Endpoint::Validate); // for a ValidatingWebhookConfiguration
//! hooks.on_validate(Admission::deny("not today"));
//! hooks.on_convert(Conversion::by(|mut object, to| {
//!     object["apiVersion"] = to.into();
//!     object["spec"]["size"] = 3.into();
//!     object
//! }));
//! hooks.break_down(Endpoint::Convert, Break::CutConnection);
//! hooks.repair(Endpoint::Convert);
//! # Ok(())
//! # }
//! ```

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::watch;

pub use self::review::{Admission, Conversion, Convert, Decide};
use crate::{
    Error,
    certs::Authority,
    https::{Cut, Listener},
};

mod review;

/// How many requests of an endpoint are kept: enough to look at, not enough to weigh on a mass rewrite.
const KEPT: usize = 100;

/// What the server answers on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/validate`, for validating admission.
    Validate,
    /// `/mutate`, for mutating admission.
    Mutate,
    /// `/convert`, for conversion between versions of a custom resource.
    Convert,
}

impl Endpoint {
    const ALL: [Self; 3] = [Self::Validate, Self::Mutate, Self::Convert];

    /// The path in the server's URL.
    pub fn path(self) -> &'static str {
        match self {
            Self::Validate => "/validate",
            Self::Mutate => "/mutate",
            Self::Convert => "/convert",
        }
    }
}

/// A way to be out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// Answers 500.
    Http500,
    /// Closes the connection without an answer.
    CutConnection,
}

/// A running webhook server. It has its own runtime, and ends when dropped.
pub struct WebhookServer {
    listener: Listener,
    ca_pem: String,
    state: Arc<WebhookState>,
}

impl std::fmt::Debug for WebhookServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebhookServer")
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}

impl WebhookServer {
    /// Starts a server that allows everything and converts by changing the apiVersion.
    pub async fn start(authority: &Authority) -> Result<Self, Error> {
        let state = Arc::new(WebhookState::default());
        let serving = Arc::clone(&state);
        let handler = move |request, _| answer(Arc::clone(&serving), request);
        let listener = Listener::start(authority, "webhooks", handler).await?;
        Ok(Self {
            listener,
            ca_pem: authority.ca_pem().to_owned(),
            state,
        })
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// The URL of an endpoint.
    pub fn url(&self, endpoint: Endpoint) -> String {
        format!("https://{}{}", self.address(), endpoint.path())
    }

    /// The authority's certificate in the form of a `caBundle`.
    pub fn ca_bundle_base64(&self) -> String {
        STANDARD.encode(&self.ca_pem)
    }

    /// The `clientConfig` of a webhook configuration that calls this endpoint.
    pub fn client_config(&self, endpoint: Endpoint) -> Value {
        json!({"url": self.url(endpoint), "caBundle": self.ca_bundle_base64()})
    }

    /// The `spec.conversion` of a `CustomResourceDefinition` that is converted here.
    pub fn conversion(&self) -> Value {
        json!({
            "strategy": "Webhook",
            "webhook": {
                "clientConfig": self.client_config(Endpoint::Convert),
                "conversionReviewVersions": ["v1"],
            },
        })
    }

    /// A `ValidatingWebhookConfiguration` that asks here about updates of a group's objects, in namespaces that a selector
    /// chooses. It chooses all of them, but the API server must look at the namespace to know: where that is missing, it
    /// answers 404 about the *namespace* (PITFALLS A33).
    pub fn validating_in_selected_namespaces(&self, group: &str) -> Value {
        json!({
            "metadata": {"name": group},
            "webhooks": [{
                "name": format!("selected.{group}"),
                "clientConfig": self.client_config(Endpoint::Validate),
                "namespaceSelector": {
                    // An empty selector would not be looked at.
                    "matchExpressions": [{"key": "example.com/left-alone", "operator": "DoesNotExist"}],
                },
                "rules": [{"apiGroups": [group], "apiVersions": ["*"], "resources": ["*"], "operations": ["UPDATE"]}],
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }],
        })
    }

    /// What `/validate` answers from now on.
    pub fn on_validate(&self, admission: Admission) {
        self.state.lock().validate = admission;
    }

    /// What `/mutate` answers from now on.
    pub fn on_mutate(&self, admission: Admission) {
        self.state.lock().mutate = admission;
    }

    /// What `/convert` answers from now on.
    pub fn on_convert(&self, conversion: Conversion) {
        self.state.lock().convert = conversion;
    }

    /// Makes an endpoint wait so long before it does whatever else it does; zero ends that.
    pub fn delay(&self, endpoint: Endpoint, delay: Duration) {
        self.state.lock().endpoint(endpoint).delay = delay;
    }

    /// Puts an endpoint out of order.
    pub fn break_down(&self, endpoint: Endpoint, how: Break) {
        self.state.lock().endpoint(endpoint).broken = Some(how);
    }

    /// Puts an endpoint in order again.
    pub fn repair(&self, endpoint: Endpoint) {
        self.state.lock().endpoint(endpoint).broken = None;
    }

    /// How often an endpoint was called, those calls included that are still waiting or met it out of order.
    pub fn calls(&self, endpoint: Endpoint) -> usize {
        self.state.lock().endpoint(endpoint).calls
    }

    /// The last 100 calls of an endpoint, oldest first: the `request` of each review.
    pub fn requests(&self, endpoint: Endpoint) -> Vec<Value> {
        let kept = self.state.lock().endpoint(endpoint).requests.clone(); // parsed without holding up callers
        kept.iter()
            .filter_map(|body| serde_json::from_slice::<Value>(body).ok())
            .map(|mut review| review["request"].take())
            .collect()
    }

    /// Waits until an endpoint was called so often.
    pub async fn wait_for_calls(&self, endpoint: Endpoint, at_least: usize) {
        let mut changes = self.state.changed.subscribe();
        // It fails only when the state is gone, and we hold on to that.
        let _ = changes.wait_for(|()| self.calls(endpoint) >= at_least).await;
    }
}

#[derive(Default)]
struct WebhookState {
    behaviour: Mutex<Behaviour>,
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct Behaviour {
    validate: Admission,
    mutate: Admission,
    convert: Conversion,
    endpoints: [EndpointState; 3],
}

#[derive(Default)]
struct EndpointState {
    delay: Duration,
    broken: Option<Break>,
    calls: usize,
    requests: VecDeque<Bytes>,
}

/// What one call is answered with.
enum Reply {
    Admission(Admission),
    Conversion(Conversion),
    Broken(Break),
}

impl WebhookState {
    fn lock(&self) -> MutexGuard<'_, Behaviour> {
        self.behaviour.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn called(&self, endpoint: Endpoint, body: Bytes) -> Duration {
        let mut behaviour = self.lock();
        let state = behaviour.endpoint(endpoint);
        state.calls += 1;
        if state.requests.len() == KEPT {
            state.requests.pop_front();
        }
        state.requests.push_back(body);
        let delay = state.delay;
        drop(behaviour);
        self.changed.send_replace(());
        delay
    }

    fn reply(&self, endpoint: Endpoint) -> Reply {
        let mut behaviour = self.lock();
        match (behaviour.endpoint(endpoint).broken, endpoint) {
            (Some(how), _) => Reply::Broken(how),
            (None, Endpoint::Validate) => Reply::Admission(behaviour.validate.clone()),
            (None, Endpoint::Mutate) => Reply::Admission(behaviour.mutate.clone()),
            (None, Endpoint::Convert) => Reply::Conversion(behaviour.convert.clone()),
        }
    }
}

impl Behaviour {
    fn endpoint(&mut self, endpoint: Endpoint) -> &mut EndpointState {
        &mut self.endpoints[endpoint as usize]
    }
}

async fn answer(state: Arc<WebhookState>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Cut> {
    let Some(endpoint) = Endpoint::ALL
        .into_iter()
        .find(|endpoint| endpoint.path() == request.uri().path())
    else {
        let message = "unknown webhook: use /validate, /mutate or /convert";
        return Ok(text(StatusCode::NOT_FOUND, message.to_owned()));
    };
    let body = request.into_body().collect().await.map_err(|_| Cut)?.to_bytes();
    let delay = state.called(endpoint, body.clone());
    tokio::time::sleep(delay).await;
    // Closures of the test may block; the runtime moves the other calls to another thread meanwhile.
    let review = tokio::task::block_in_place(|| match state.reply(endpoint) {
        Reply::Broken(Break::CutConnection) => Err(Cut),
        Reply::Broken(Break::Http500) => Ok(Err("the webhook is out of order".to_owned())),
        Reply::Admission(admission) => Ok(admission.review(&body)),
        Reply::Conversion(conversion) => Ok(conversion.review(&body)),
    })?;
    let review = match review {
        Ok(review) => review,
        Err(message) => return Ok(text(StatusCode::INTERNAL_SERVER_ERROR, message)),
    };
    let mut response = Response::new(Full::new(review.to_string().into()));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

fn text(status: StatusCode, message: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(message.into()));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use futures::{StreamExt, TryStreamExt};
    use kube::client::Body;

    use super::*;
    use crate::access::{Access, Credential};

    async fn server() -> (WebhookServer, kube::Client) {
        let authority = Authority::new().unwrap();
        let server = WebhookServer::start(&authority).await.unwrap();
        let access = Access {
            user: "apiserver".to_owned(),
            url: format!("https://{}", server.address()),
            ca_pem: authority.ca_pem().to_owned(),
            credential: Credential::None,
            directory: std::path::PathBuf::new(),
        };
        (server, access.client().unwrap())
    }

    async fn post(client: &kube::Client, path: &str, body: String) -> Result<Value, kube::Error> {
        client
            .request(Request::post(path).body(body.into_bytes()).unwrap())
            .await
    }

    #[tokio::test]
    async fn thousands_of_calls_are_counted_and_the_last_are_kept() {
        let (server, client) = server().await;
        futures::stream::iter(0..3000)
            .map(|n| {
                post(
                    &client,
                    "/validate",
                    json!({"request": {"uid": n.to_string()}}).to_string(),
                )
            })
            .buffer_unordered(32)
            .try_for_each(async |review| {
                assert_eq!(review["response"]["allowed"], true);
                Ok(())
            })
            .await
            .unwrap();
        assert_eq!(server.calls(Endpoint::Validate), 3000);
        assert_eq!(server.calls(Endpoint::Mutate), 0);
        let kept = server.requests(Endpoint::Validate);
        assert_eq!(kept.len(), KEPT);
        assert!(kept.iter().all(|request| request["uid"].is_string()));
    }

    #[tokio::test]
    async fn a_call_that_is_waiting_counts_already() {
        let (server, client) = server().await;
        server.delay(Endpoint::Mutate, Duration::from_secs(3600));
        let body = json!({"request": {"uid": "u"}}).to_string();
        let waiting = tokio::spawn(async move { post(&client, "/mutate", body).await });
        server.wait_for_calls(Endpoint::Mutate, 1).await;
        assert!(!waiting.is_finished());
        drop(server);
        assert!(waiting.await.unwrap().is_err());
    }

    #[tokio::test]
    async fn another_path_is_refused_with_a_sentence() {
        let (_server, client) = server().await;
        let request = Request::post("/elsewhere").body(Body::empty()).unwrap();
        let response = client.send(request).await.unwrap();
        assert_eq!(response.status(), 404);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(String::from_utf8_lossy(&body).contains("use /validate, /mutate or /convert"));
    }
}
