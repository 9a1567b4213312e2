//! A server that is being deleted: the runner goes before the backend, then the finalizer.

use exuvia_write::{Delete, Writer};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Service;
use kube::api::PropagationPolicy;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Error;
use super::child::controller_of;
use crate::api::{FINALIZER, MCPServer};
use crate::naming;

/// The finalizer of a deletion that leaves children alone.
const ORPHAN: &str = "orphan";

/// Takes away what the finalizer stands for, then the finalizer. The garbage collector removes the other children.
///
/// A runner that is still alive cannot make the backend again: its owner is being deleted, which its gate refuses.
pub(super) async fn remove(client: &Client, writer: &Writer, server: &MCPServer) -> Result<(), Error> {
    if !server
        .finalizers()
        .iter()
        .any(|finalizer| finalizer == FINALIZER.as_str())
    {
        return Ok(());
    }
    // `kubectl delete --cascade=orphan`: people who ask for it want to keep them.
    if !server.finalizers().iter().any(|finalizer| finalizer == ORPHAN) {
        let name = server.name_any();
        let backend = naming::backend(&name);
        delete::<Deployment>(client, writer, server, &name).await?;
        delete::<StatefulSet>(client, writer, server, &backend).await?;
        delete::<Service>(client, writer, server, &backend).await?;
    }
    let api: Api<MCPServer> = Api::namespaced(client.clone(), &server.namespace().unwrap_or_default());
    writer.remove_finalizer(&api, server, FINALIZER).await?;
    Ok(())
}

async fn delete<K>(client: &Client, writer: &Writer, server: &MCPServer, name: &str) -> Result<(), Error>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    K: Clone + Serialize + DeserializeOwned + std::fmt::Debug + Send + Sync,
{
    let namespace = server.namespace().unwrap_or_default();
    let api: Api<K> = Api::namespaced(client.clone(), &namespace);
    let found = api.get_opt(name).await.map_err(|source| Error::Read {
        what: "child",
        object: format!("{namespace}/{name}"),
        source: Box::new(source),
    })?;
    let ours = found.filter(|child| controller_of(child) == server.uid().as_deref());
    if let Some(child) = ours.filter(|child| child.meta().deletion_timestamp.is_none()) {
        let how = Delete::default().propagation(PropagationPolicy::Background);
        writer.delete(&api, &child, &how).await?;
    }
    Ok(())
}
