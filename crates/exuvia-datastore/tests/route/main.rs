//! Who answers for a group, on two real API servers with an extension API server behind them: one control plane for all.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]

mod backend;
mod clones;
mod contested;
mod faults;
mod switching;

use std::sync::Arc;

use exuvia_datastore::route::{Alias, Observed, Route};
use exuvia_runtime::servers::ApiServers;
use exuvia_testenv::aggregated::Aggregated;
use exuvia_testenv::proxy::{Fault, Match, Proxy, Rule};
use exuvia_testenv::{ApiServer, ControlPlane, Widgets, soon, until};
use exuvia_write::Writer;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject};
use tokio::sync::{Notify, OnceCell};

static SECOND: OnceCell<ApiServer> = OnceCell::const_new();

/// Two API servers on one etcd, on hosts of different names.
pub(crate) async fn servers() -> (&'static ControlPlane, &'static ApiServer) {
    let control_plane = ControlPlane::shared().await;
    let second =
        SECOND.get_or_init(async || control_plane.another_apiserver_on_host("host-b").await.unwrap());
    (control_plane, second.await)
}

/// Both of them, each to be asked itself.
pub(crate) async fn both() -> ApiServers {
    let (control_plane, second) = servers().await;
    both_of(control_plane, second)
}

fn both_of(control_plane: &ControlPlane, second: &ApiServer) -> ApiServers {
    let given = [control_plane.apiserver().url(), second.url()].map(|url| url.parse().unwrap());
    ApiServers::new(&control_plane.admin().config().unwrap(), &given, &[])
}

/// A group `<name>.shown.example.com` whose CRD is hidden at v1 by a server that shows `<name>.stored.example.com` instead.
pub(crate) struct World {
    pub(crate) clients: [Client; 2],
    pub(crate) stored: Widgets,
    pub(crate) shown: Widgets,
    pub(crate) backend: Aggregated,
    pub(crate) route: Route,
}

impl World {
    /// With three widgets behind the backend, and `widget-0000` in the hidden CRD, too.
    pub(crate) async fn new(name: &str) -> Self {
        let (control_plane, second) = servers().await;
        Self::on(control_plane, second, name).await
    }

    /// The same on servers that are not shared.
    pub(crate) async fn on(control_plane: &ControlPlane, second: &ApiServer, name: &str) -> Self {
        let clients = [control_plane.client().unwrap(), second.client().unwrap()];
        let stored = Widgets::in_group(format!("{name}.stored.example.com"));
        let shown = Widgets::in_group(format!("{name}.shown.example.com"));
        for (widgets, count) in [(&stored, 3), (&shown, 1)] {
            widgets.install(&clients[0], "v1").await.unwrap();
            widgets.create(&clients[0], "v1", count).await.unwrap();
        }
        let group_version = (shown.group(), "v1");
        let backend = Aggregated::start(control_plane, group_version, (stored.group(), "v1"), &["widgets"]);
        let backend = backend.await.unwrap();
        backend.install(&clients[0]).await.unwrap();
        let route = Route::new(
            clients[0].clone(),
            Writer::named("exuvia-datastore"),
            both_of(control_plane, second),
            &backend.api_service_name(),
        );
        let world = Self {
            clients,
            stored,
            shown,
            backend,
            route: route.unwrap(),
        };
        world.until_backend_answers().await;
        world
    }

    pub(crate) async fn until_backend_answers(&self) {
        for client in &self.clients {
            until("the backend answers", async || {
                self.backend.answers(client).await.unwrap()
            })
            .await;
        }
    }

    /// The same route by a client that goes through a proxy.
    pub(crate) async fn route_through(&self, proxy: &Proxy) -> Route {
        Route::new(
            proxy.client().unwrap(),
            Writer::named("exuvia-datastore"),
            both().await,
            &self.backend.api_service_name(),
        )
        .unwrap()
    }

    pub(crate) fn kinds(&self) -> Vec<ApiResource> {
        vec![self.shown.resource("v1")]
    }

    pub(crate) async fn aliases(&self) -> Vec<Alias> {
        let mut aliases = Vec::new();
        let kinds = self.kinds();
        let reading = self.route.alias_uids(&kinds, |alias| aliases.push(alias));
        reading.await.unwrap();
        aliases
    }

    /// The `APIService` itself.
    pub(crate) async fn api_service(&self) -> Option<DynamicObject> {
        self.api_services()
            .get_opt(self.route.api_service())
            .await
            .unwrap()
    }

    pub(crate) fn api_services(&self) -> Api<DynamicObject> {
        api_services(&self.clients[0])
    }
}

pub(crate) fn api_services(client: &Client) -> Api<DynamicObject> {
    let resource = ApiResource {
        group: "apiregistration.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "apiregistration.k8s.io/v1".to_owned(),
        kind: "APIService".to_owned(),
        plural: "apiservices".to_owned(),
    };
    Api::all_with(client.clone(), &resource)
}

/// Whether CRDs answer by an `APIService` that the API server keeps itself.
pub(crate) fn is_automanaged(observed: &Observed) -> bool {
    matches!(
        observed,
        Observed::Local {
            automanaged: true,
            ..
        }
    )
}

/// Does some work until its n-th write is on its way or done, and leaves it there for good, as a process that is killed.
/// Whether it came so far.
pub(crate) async fn killed_at(proxy: &Proxy, write: u64, fault: Fault, work: impl Future) -> bool {
    proxy.clear();
    let struck = Arc::new(Notify::new());
    let (on_request, on_commit) = (struck.clone(), struck.clone());
    let rule = Rule::on(Match::writes()).nth(write);
    let rule = match &fault {
        Fault::StallAnswer => rule.on_commit(move |_| on_commit.notify_one()),
        _ => rule.on_request(move |_| on_request.notify_one()),
    };
    proxy.inject(rule.then(fault));
    let came = tokio::select! {
        () = soon(struck.notified()) => true,
        _ = soon(work) => false,
    };
    proxy.clear();
    came
}
