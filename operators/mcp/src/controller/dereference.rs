//! Step 1, reads: everything that the other steps decide upon, read once.

use std::collections::BTreeMap;

use exuvia_rollout::FROZEN_LABEL;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};

use super::Error;
use super::child::ChildKind;
use crate::api::{MCPServer, MCPToolConfig, PART_PROXY};
use crate::naming;

/// All that there is.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) server: MCPServer,
    /// An older server that has a Service of the name that one of ours has.
    pub(crate) neighbour: Option<String>,
    /// The tool config that the server refers to, if it is there.
    pub(crate) tool_config: Option<MCPToolConfig>,
    /// Children that are there.
    pub(crate) children: BTreeMap<ChildKind, DynamicObject>,
    /// The same as the child, typed.
    pub(crate) deployment: Option<Deployment>,
    /// The backend that the runner made.
    pub(crate) backend: Option<StatefulSet>,
    /// Its headless Service.
    pub(crate) headless: Option<Service>,
    /// Run configs of this server, old ones included.
    pub(crate) configs: Vec<ConfigMap>,
    /// `ReplicaSets` of the proxy's Deployment, old ones included.
    pub(crate) replica_sets: Vec<ReplicaSet>,
    /// Pods of the proxy.
    pub(crate) proxies: Vec<Pod>,
}

/// Reads everything about this server.
pub(crate) async fn dereference(client: &Client, server: MCPServer) -> Result<Found, Error> {
    let name = server.name_any();
    let namespace = server.namespace().unwrap_or_default();
    let namespace = namespace.as_str();
    let failed = |what: &'static str| {
        let object = format!("{namespace}/{name}");
        move |source| Error::Read {
            what,
            object,
            source: Box::new(source),
        }
    };

    let servers: Api<MCPServer> = Api::namespaced(client.clone(), namespace);
    let mut neighbour = None;
    for other in naming::neighbours(&name) {
        let other = servers.get_opt(&other).await.map_err(failed("neighbours"))?;
        let older = other.filter(|other| is_older(other, &server));
        neighbour = neighbour.or(older.map(|other| other.name_any()));
    }
    let tool_config = match &server.spec.tool_config_ref {
        Some(reference) => Api::<MCPToolConfig>::namespaced(client.clone(), namespace)
            .get_opt(&reference.name)
            .await
            .map_err(failed("tool config"))?,
        None => None,
    };
    let mut children = BTreeMap::new();
    for kind in ChildKind::ALL {
        let child = kind.api(client, namespace).get_opt(&kind.name(&name)).await;
        if let Some(child) = child.map_err(failed(kind.resource_name()))? {
            children.insert(kind, child);
        }
    }
    let deployment = children.get(&ChildKind::Deployment).cloned();
    let deployment = deployment.map(DynamicObject::try_parse).transpose();
    let deployment = deployment.map_err(|_| Error::Shape {
        what: "deployment",
        object: format!("{namespace}/{name}"),
    })?;

    let backend = Api::<StatefulSet>::namespaced(client.clone(), namespace)
        .get_opt(&naming::backend(&name))
        .await
        .map_err(failed("backend"))?;
    let headless = Api::<Service>::namespaced(client.clone(), namespace)
        .get_opt(&naming::backend(&name))
        .await
        .map_err(failed("headless Service"))?;
    let frozen = ListParams::default().labels(&format!("{FROZEN_LABEL}={name}"));
    let configs: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let proxies = ListParams::default().labels(&naming::selector(&name, PART_PROXY));
    let replica_sets: Api<ReplicaSet> = Api::namespaced(client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    Ok(Found {
        neighbour,
        tool_config,
        children,
        deployment,
        backend,
        headless,
        configs: configs.list(&frozen).await.map_err(failed("run configs"))?.items,
        replica_sets: replica_sets
            .list(&proxies)
            .await
            .map_err(failed("replica sets"))?
            .items,
        proxies: pods.list(&proxies).await.map_err(failed("pods"))?.items,
        server,
    })
}

/// Which of two is older, the same from both sides: times have seconds only.
fn is_older(one: &MCPServer, other: &MCPServer) -> bool {
    let age = |server: &MCPServer| (server.metadata.creation_timestamp.clone(), server.uid());
    age(one) < age(other)
}
