//! Step 4, writes: makes the children as they should be, carries out restarts, removes what is not in use.

use exuvia_rollout::garbage;
use exuvia_write::{Apply, Delete, Writer};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::DynamicObject;
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use super::Error;
use super::build::{Intended, Prepared, owner_reference};
use super::child::{ChildKind, controller_of};
use super::overruled::Overruled;
use super::restart::Pending;
use crate::api::{EPOCH, MCPServer, RESTART_MARK};
use crate::{ports, scale};

/// A server whose children are as they should be.
#[derive(Debug)]
pub(crate) struct Applied {
    pub(crate) prepared: Prepared,
    /// The server after our own writes to it.
    pub(crate) server: MCPServer,
    /// The Deployment as the server has it.
    pub(crate) deployment: Option<Deployment>,
    /// Names of run configs that were removed.
    pub(crate) removed: Vec<String>,
    /// Children that are not as they were applied, because admission changes them.
    pub(crate) overruled: Vec<&'static str>,
}

/// Applies. What is as it should be costs no request.
pub(crate) async fn apply(
    client: &Client,
    writer: &Writer,
    prepared: Prepared,
    known: &Overruled,
) -> Result<Applied, Error> {
    let namespace = prepared.accepted.namespace.clone();
    let mut deployment = None;
    let mut overruled = Vec::new();
    // First, because its name may be taken, and then nothing else may be written. By itself it rolls nothing out.
    ensure_config(client, writer, &prepared).await?;
    let mut server = note_epoch(client, writer, &prepared).await?;
    for child in &prepared.children {
        let (live, is_overruled) = apply_child(client, writer, &prepared, child, known).await?;
        if is_overruled {
            overruled.push(child.kind.resource_name());
        }
        if child.kind == ChildKind::Deployment {
            deployment = live.try_parse().ok();
        }
    }
    remove_network_policy(client, writer, &prepared).await?;
    if let Some(pending) = &prepared.restart().pending {
        server = mark(client, writer, &server, pending).await?;
    }
    let removed = remove_old_configs(client, writer, &prepared).await?;
    tracing::debug!(
        namespace,
        server = prepared.accepted.name,
        "children are as they should be"
    );
    Ok(Applied {
        prepared,
        server,
        deployment,
        removed,
        overruled,
    })
}

/// Notes the epoch before the roll-out begins, under a lock: of two leaders, one gets a 409 and looks again. So no epoch is issued twice.
async fn note_epoch(client: &Client, writer: &Writer, prepared: &Prepared) -> Result<MCPServer, Error> {
    let accepted = &prepared.accepted;
    let api: Api<MCPServer> = Api::namespaced(client.clone(), &accepted.namespace);
    let noted = writer
        .patch(&api, &accepted.found.server, |server| {
            let note = prepared.noted.clone();
            server.annotations_mut().insert(EPOCH.to_owned(), note);
        })
        .await?;
    Ok(noted.object)
}

/// The child as it is afterwards, and whether that is not what was applied.
async fn apply_child(
    client: &Client,
    writer: &Writer,
    prepared: &Prepared,
    child: &Intended,
    known: &Overruled,
) -> Result<(DynamicObject, bool), Error> {
    let found = &prepared.accepted.found;
    let api = child.kind.api(client, &prepared.accepted.namespace);
    if let Some(live) = found.children.get(&child.kind) {
        if !child.is_drifted(live, writer.field_manager()) {
            return Ok((live.clone(), false));
        }
        if known.is_known(child, live) {
            return Ok((live.clone(), true));
        }
        // A crash in the middle of a creation leaves it owned in another way.
        let mut live = writer.own_as_applied(&api, live).await?.object;
        if child.kind == ChildKind::Service
            && let Some(cleared) = ports::make_room(writer, &api, &live, child.intent.body()).await?
        {
            live = cleared;
        }
        if child.kind == ChildKind::Deployment
            && let Some(kept) = scale::keep(writer, &api, &live, child.intent.body()).await?
        {
            live = kept;
        }
        // Locked to what was looked at: another leader's work, or an object that somebody made meanwhile, is looked at first.
        let version = live.resource_version().unwrap_or_default();
        let how = Apply::default()
            .force()
            .only_at(live.uid().unwrap_or_default(), version);
        let applied = writer.apply(&api, &child.stamped(), &how).await?;
        let is_overruled = known.note(child, &applied, writer.field_manager());
        return Ok((applied, is_overruled));
    }
    let object = child.intent.object(&child.stamped());
    Ok((writer.create_applied(&api, &object).await?, false))
}

/// Makes the run config, unless it is there.
async fn ensure_config(client: &Client, writer: &Writer, prepared: &Prepared) -> Result<(), Error> {
    let accepted = &prepared.accepted;
    if accepted
        .found
        .configs
        .iter()
        .any(|found| found.name_any() == prepared.config.name() && prepared.config.is_held_by(found))
    {
        return Ok(());
    }
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &accepted.namespace);
    let owner = serde_json::from_value(owner_reference(&accepted.name, &accepted.uid)).ok();
    prepared.config.ensure(writer, &api, owner).await?;
    Ok(())
}

/// One of ours that is there although the spec switches it off.
async fn remove_network_policy(client: &Client, writer: &Writer, prepared: &Prepared) -> Result<(), Error> {
    let accepted = &prepared.accepted;
    let policy = accepted.found.children.get(&ChildKind::NetworkPolicy);
    let policy = policy.filter(|policy| controller_of(*policy) == Some(accepted.uid.as_str()));
    if let Some(policy) = policy.filter(|_| !accepted.found.server.spec.network_policy) {
        let api = ChildKind::NetworkPolicy.api(client, &accepted.namespace);
        writer.delete(&api, policy, &Delete::default()).await?;
    }
    Ok(())
}

/// Notes that the restart was carried out. A 409 comes back: the next reconcile builds the same template again, and marks.
async fn mark(
    client: &Client,
    writer: &Writer,
    server: &MCPServer,
    pending: &Pending,
) -> Result<MCPServer, Error> {
    let api: Api<MCPServer> = Api::namespaced(client.clone(), &server.namespace().unwrap_or_default());
    let marked = writer
        .patch(&api, server, |server| {
            let at = pending.at.clone();
            server.annotations_mut().insert(RESTART_MARK.to_owned(), at);
        })
        .await?;
    Ok(marked.object)
}

/// Removes the run configs that no `ReplicaSet` names.
async fn remove_old_configs(
    client: &Client,
    writer: &Writer,
    prepared: &Prepared,
) -> Result<Vec<String>, Error> {
    let accepted = &prepared.accepted;
    let found = &accepted.found;
    // The Deployment as it was read counts, too: its ReplicaSet may not be there yet.
    let deployment = found
        .deployment
        .iter()
        .filter_map(|object| serde_json::to_value(object).ok());
    let sets = found
        .replica_sets
        .iter()
        .filter_map(|object| serde_json::to_value(object).ok());
    let templates: Vec<Value> = deployment.chain(sets).collect();
    let in_use = prepared.config.name();
    let garbage = garbage(&accepted.name, &found.configs, &templates, &[&in_use]);
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &accepted.namespace);
    let mut removed = Vec::new();
    for config in &found.configs {
        let is_ours = controller_of(config) == Some(accepted.uid.as_str());
        if is_ours && garbage.contains(&config.name_any()) {
            writer.delete(&api, config, &Delete::default()).await?;
            removed.push(config.name_any());
        }
    }
    Ok(removed)
}
