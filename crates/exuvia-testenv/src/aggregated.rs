//! An extension API server: it answers for one group-version with the objects of another group, under other uids.
//!
//! Calico's API server is like that: `projectcalico.org/v3` is really the CRDs of `crd.projectcalico.org/v1`. As long as its
//! `APIService` is there, CRDs of the group that it answers for are hidden (PITFALLS A14).
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use exuvia_testenv::ControlPlane;
//! use exuvia_testenv::aggregated::Aggregated;
//!
//! let control_plane = ControlPlane::shared().await;
//! let client = control_plane.client()?;
//! // The CRD widgets.stored.example.com is there, at v1.
//! let shown = ("shown.example.com", "v3");
//! let server = Aggregated::start(control_plane, shown, ("stored.example.com", "v1"), &["widgets"]).await?;
//! server.install(&client).await?;
//! assert!(server.answers(&client).await?);
//! # Ok(()) }
//! ```

mod discovery;
mod forward;
mod translate;

use std::net::SocketAddr;
use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Request;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::client::Body;
use serde_json::{Value, json};

use self::forward::{MARK, State};
pub use self::translate::alias_uid;
use crate::access::Credential;
use crate::http::HttpClient;
use crate::https::Listener;
use crate::{ControlPlane, Error, until};

/// Where the Service is.
const NAMESPACE: &str = "default";

/// A group and a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupVersion {
    pub(crate) group: String,
    pub(crate) version: String,
}

impl GroupVersion {
    fn new((group, version): (&str, &str)) -> Self {
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
        }
    }

    pub(crate) fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }
}

/// A running extension API server. It has its own runtime, and ends when dropped: then the API server answers 503 for its
/// group-version, as long as the `APIService` is there.
pub struct Aggregated {
    listener: Listener,
    state: Arc<State>,
    ca_pem: String,
}

impl std::fmt::Debug for Aggregated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Aggregated")
            .field("api_service", &self.api_service_name())
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}

impl Aggregated {
    /// Starts a server that shows the resources `plurals` of `stored` (group, version) as those of `shown`. It reads and
    /// writes as administrator for everybody who asks, and each object has the uid [`alias_uid`] of its own.
    pub async fn start(
        control_plane: &ControlPlane,
        shown: (&str, &str),
        stored: (&str, &str),
        plurals: &[&str],
    ) -> Result<Self, Error> {
        let admin = control_plane.admin();
        let identity = match admin.credential() {
            Credential::Certificate(pair) => Some(pair),
            _ => None,
        };
        let state = Arc::new(State {
            upstream: HttpClient::new(admin.ca_pem(), identity)?,
            url: admin.url().to_owned(),
            shown: GroupVersion::new(shown),
            stored: GroupVersion::new(stored),
            plurals: plurals.iter().map(|&plural| plural.to_owned()).collect(),
            requests: std::sync::Mutex::default(),
        });
        let serving = Arc::clone(&state);
        let handler = move |request, _| forward::answer(Arc::clone(&serving), request);
        let listener = Listener::start(control_plane.authority(), "aggregated", handler).await?;
        Ok(Self {
            listener,
            state,
            ca_pem: control_plane.authority().ca_pem().to_owned(),
        })
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// The name of its `APIService`.
    pub fn api_service_name(&self) -> String {
        let GroupVersion { group, version } = &self.state.shown;
        format!("{version}.{group}")
    }

    /// Its `APIService`, with a label and an annotation as an operator would set them.
    pub fn api_service(&self) -> Value {
        let GroupVersion { group, version } = &self.state.shown;
        json!({
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {
                "name": self.api_service_name(),
                "labels": {"app.kubernetes.io/managed-by": "operator"},
                "annotations": {"example.com/installed-by": "operator"},
            },
            "spec": {
                "group": group,
                "version": version,
                "groupPriorityMinimum": 1500,
                "versionPriority": 200,
                "caBundle": STANDARD.encode(&self.ca_pem),
                "service": {"namespace": NAMESPACE, "name": self.service_name(), "port": self.address().port()},
            },
        })
    }

    fn service_name(&self) -> String {
        self.state.shown.group.replace('.', "-")
    }

    /// Makes the Service and the `APIService`, over an automanaged one if need be, and waits until it is available. Again:
    /// as an operator that puts back what is missing.
    pub async fn install(&self, client: &Client) -> Result<(), Error> {
        let parse = |error: serde_json::Error| Error::Client(error.into());
        // EndpointSlices refuse loopback addresses; the aggregator follows an external name without any.
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": self.service_name()},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }))
        .map_err(parse)?;
        let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
        let created = services.create(&PostParams::default(), &service).await;
        unless_conflict(created)?;

        let wanted: APIService = serde_json::from_value(self.api_service()).map_err(parse)?;
        let api_services: Api<APIService> = Api::all(client.clone());
        loop {
            let name = self.api_service_name();
            let written = match api_services.get_opt(&name).await? {
                // The label must go in the same write, or the server takes it back (PITFALLS D1).
                Some(found) => {
                    let mut wanted = wanted.clone();
                    wanted.metadata.resource_version = found.metadata.resource_version;
                    api_services.replace(&name, &PostParams::default(), &wanted).await
                }
                None => api_services.create(&PostParams::default(), &wanted).await,
            };
            if unless_conflict(written)?.is_some() {
                break;
            }
        }
        // "Local" is what is left of the automanaged one.
        until("the extension API server is available", async || {
            let found = api_services.get(&self.api_service_name()).await;
            let conditions = found.map(|found| found.status.and_then(|status| status.conditions));
            conditions.is_ok_and(|conditions| {
                conditions.unwrap_or_default().into_iter().any(|condition| {
                    condition.type_ == "Available"
                        && condition.status == "True"
                        && condition.reason.as_deref() == Some("Passed")
                })
            })
        })
        .await;
        Ok(())
    }

    /// Whether it is this server that answers a client's questions about its group-version.
    pub async fn answers(&self, client: &Client) -> Result<bool, Error> {
        let path = format!("/apis/{}", self.state.shown.api_version());
        let request = Request::get(path)
            .body(Body::empty())
            .map_err(|error| Error::Client(error.into()))?;
        Ok(self.is_from_here(&client.send(request).await?))
    }

    /// Whether a response came from this server, whatever it went through.
    pub fn is_from_here<B>(&self, response: &http::Response<B>) -> bool {
        response.headers().contains_key(MARK)
    }

    /// How many requests it has answered that were not about discovery or health.
    pub fn requests(&self) -> usize {
        self.state.requests().len()
    }

    /// Those requests: method and path.
    pub fn recorded(&self) -> Vec<(http::Method, String)> {
        self.state.requests().clone()
    }
}

/// The answer; `None`: somebody was faster.
fn unless_conflict<T>(written: Result<T, kube::Error>) -> Result<Option<T>, Error> {
    match written {
        Ok(written) => Ok(Some(written)),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
        Err(error) => Err(error.into()),
    }
}
