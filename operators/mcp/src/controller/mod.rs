//! The controller of `MCPServer`: dereference → validate → build → rehearse → apply → update status, a file for each step.

mod apply;
mod build;
mod child;
mod dereference;
mod handshake;
mod overruled;
mod refused;
mod rehearse;
mod remove;
mod restart;
mod rolled_out;
mod update_status;
mod validate;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use exuvia_rollout::FROZEN_LABEL;
use exuvia_runtime::{
    Controller, EventKind, Events, Metrics, Next, Queue, Seen, Signal, Synced, follow, follow_metadata,
};
use exuvia_write::{ErrorClass, Redacted, Writer};
use futures::future::{BoxFuture, join_all};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};

use self::apply::Applied;
use self::build::Prepared;
use self::child::ChildKind;
use self::handshake::{Handshake, shake_hands};
use self::overruled::Overruled;
use self::validate::Rejection;
use crate::api::{FINALIZER, MCPServer, SERVER_CRD, SERVER_LABEL, condition};
use crate::naming;

pub(crate) use self::build::{labels, owner_reference};

/// How often a server is looked at again although nothing was heard of it: what no watch tells, and lost events.
const RESYNC: Duration = Duration::from_secs(600);
/// How long after a name was found taken it is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(15);
/// How long after a handshake that failed the next one is tried.
const SHAKE_AGAIN: Duration = Duration::from_secs(10);

/// Reconciles `MCPServer` objects.
pub struct ServerController {
    client: Client,
    watching: Client,
    writer: Writer,
    events: Events,
    metrics: Metrics,
    settings: ServerSettings,
    /// The last warning of each sort about each server, so that it is published once.
    warned: Mutex<HashMap<(String, &'static str), String>>,
    overruled: Overruled,
}

/// Settings of the controller.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// The image of `mcp-runner`.
    pub runner_image: String,
    /// How often a server is looked at although nothing was heard of it; 10 minutes by default.
    pub resync: Duration,
    /// The only namespace that is watched; all of them by default.
    pub namespace: Option<String>,
}

impl ServerSettings {
    /// With this image, and defaults for the rest.
    pub fn new(runner_image: impl Into<String>) -> Self {
        Self {
            runner_image: runner_image.into(),
            resync: RESYNC,
            namespace: None,
        }
    }
}

/// Why a reconcile failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something could not be read.
    #[error(
        "cannot read the {what} of MCPServer {object}: {}",
        exuvia_write::brief(source)
    )]
    Read {
        /// What.
        what: &'static str,
        /// Of which server, as namespace/name.
        object: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// Something that was read does not have the form of its kind.
    #[error("the {what} of MCPServer {object} does not have the form of its kind")]
    Shape {
        /// What.
        what: &'static str,
        /// Of which server, as namespace/name.
        object: String,
    },
    /// A write failed. It is logged, and what a policy says may quote the object.
    #[error("{}", Redacted::from_error(.0))]
    Write(#[from] exuvia_write::Error),
    /// The server would refuse the backend that the runner is to apply.
    #[error("the API server refuses the backend, so nothing is rolled out: {}", Redacted::from_error(.0))]
    Refused(exuvia_write::Error),
    /// A child was built that cannot be compared.
    #[error(transparent)]
    Intent(#[from] exuvia_rollout::InvalidIntent),
}

impl ServerController {
    /// `watching` is the client of watches: their connections stay open for minutes.
    pub fn new(
        client: Client,
        watching: Client,
        writer: Writer,
        events: Events,
        metrics: Metrics,
        settings: ServerSettings,
    ) -> Self {
        Self {
            client,
            watching,
            writer,
            events,
            metrics,
            settings,
            warned: Mutex::default(),
            overruled: Overruled::default(),
        }
    }

    async fn reconcile_server(&self, server: MCPServer) -> Result<Next, Error> {
        let (client, writer) = (&self.client, &self.writer);
        if server.metadata.deletion_timestamp.is_some() {
            remove::remove(client, writer, &server).await?;
            return Ok(Next::Await);
        }
        let api: Api<MCPServer> = Api::namespaced(client.clone(), &server.namespace().unwrap_or_default());
        let server = writer.ensure_finalizer(&api, &server, FINALIZER).await?.object;

        let found = Box::pin(dereference::dereference(client, server)).await?;
        let accepted = match validate::validate(found, Timestamp::now()) {
            Ok(accepted) => accepted,
            Err((found, rejection)) => {
                let serving = update_status::Serving::new(&found);
                self.reject(&found.server, &rejection, serving).await?;
                // Nobody tells when an object goes that is not ours.
                return Ok(Next::After(match rejection.reason {
                    validate::NAME_TAKEN => LOOK_AGAIN.min(self.settings.resync),
                    _ => self.settings.resync,
                }));
            }
        };
        let problem = accepted.restart.problem.clone();
        self.warn(&accepted.found.server, "InvalidRestart", "Restart", problem)
            .await;
        let asked = accepted.found.server.clone();
        let serving = update_status::Serving::new(&accepted.found);
        let prepared = build::build(accepted, &self.settings.runner_image)?;
        if let Some(rejection) = prepared.epoch_rejection() {
            self.reject(&asked, &rejection, serving).await?;
            return Ok(Next::After(self.settings.resync));
        }
        let applied = match Box::pin(rehearse_and_apply(client, writer, prepared, &self.overruled)).await {
            // Somebody else's object of that name is not a race: it is still there when we look again.
            Err(Error::Write(error))
                if error.class() == ErrorClass::Conflict
                    && !matches!(error, exuvia_write::Error::Foreign { .. }) =>
            {
                // Somebody wrote since we looked. What to do about it follows from what is there now.
                tracing::debug!(%error, "somebody else wrote; looking again");
                return Ok(Next::Retry);
            }
            Err(error) => {
                let Some(rejection) = refused::rejection(&asked, &error) else {
                    return Err(error);
                };
                self.reject(&asked, &rejection, serving).await?;
                return Ok(Next::Retry); // nothing failed: it is asked again with growing pauses
            }
            Ok(applied) => applied,
        };
        if update_status::accepted(&asked).is_some_and(|fact| fact.status == "False") {
            tracing::info!(
                server = asked.name_any(),
                namespace = asked.namespace(),
                "accepted"
            );
        }
        if !applied.removed.is_empty() {
            tracing::info!(
                removed = applied.removed.join(","),
                "removed run configs that were not in use"
            );
        }
        self.warn(
            &applied.server,
            "ChildChanged",
            "Apply",
            overruled_in_words(&applied),
        )
        .await;
        let handshake = handshake(&applied).await;
        let verdict = update_status::verdict(&applied, &handshake);
        update_status::update_status(client, writer, &applied.server, &verdict).await?;
        Ok(Next::After(match handshake {
            Handshake::Failed(_) => SHAKE_AGAIN.min(self.settings.resync),
            _ => self.settings.resync,
        }))
    }

    /// Says that a server is not accepted, in its status, and once in an event and in the log: the status knows what was said.
    async fn reject(
        &self,
        server: &MCPServer,
        rejection: &Rejection,
        serving: update_status::Serving,
    ) -> Result<(), Error> {
        let Rejection { reason, message } = rejection;
        if update_status::is_news(server, rejection) {
            let (name, namespace) = (server.name_any(), server.namespace());
            tracing::warn!(server = name, namespace, reason, "not accepted: {message}");
            // Before the status: after a crash in between the same event is published again, which changes nothing.
            let (about, note) = (reference(server), Redacted::ours(message));
            self.events
                .publish(&about, EventKind::Warning, reason, "Accept", note)
                .await;
        }
        let verdict = update_status::rejected(server, rejection, serving);
        update_status::update_status(&self.client, &self.writer, server, &verdict).await
    }

    /// Publishes a warning of this sort, once for each text.
    async fn warn(
        &self,
        server: &MCPServer,
        reason: &'static str,
        action: &'static str,
        problem: Option<String>,
    ) {
        let key = format!("{}/{}", server.namespace().unwrap_or_default(), server.name_any());
        let key = (key, reason);
        let Some(problem) = problem else {
            self.warned
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&key);
            return;
        };
        let before = self
            .warned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key, problem.clone());
        if before.as_ref() != Some(&problem) {
            tracing::warn!(server = server.name_any(), "{problem}");
            let about = reference(server);
            self.events
                .publish(
                    &about,
                    EventKind::Warning,
                    reason,
                    action,
                    Redacted::ours(&problem),
                )
                .await;
        }
    }

    /// Follows the metadata of one kind of child, and queues the servers that it may belong to.
    fn follow_child<'a>(
        &'a self,
        resource: &ApiResource,
        name: &'static str,
        label: &str,
        queue: &'a Queue,
        synced: &'a (dyn Fn() + Sync),
    ) -> BoxFuture<'a, ()> {
        let client = self.watching.clone();
        let api: Api<DynamicObject> = match &self.settings.namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, resource),
            None => Api::all_with(client, resource),
        };
        let which = ListParams::default().labels(label);
        Box::pin(async move {
            let queue_servers = |namespace: &str, child: &str| {
                for server in naming::servers_of(child) {
                    queue.add(format!("{namespace}/{server}"));
                }
            };
            follow_metadata(api, which, &self.metrics, name, |seen| match seen {
                Seen::Applied(child) => {
                    queue_servers(&child.namespace().unwrap_or_default(), &child.name_any());
                }
                Seen::Deleted(child) => {
                    queue_servers(child.namespace.as_deref().unwrap_or_default(), &child.name);
                }
                Seen::Synced => synced(),
            })
            .await;
        })
    }
}

/// Nothing is written before the server has taken the backend as a dry run.
async fn rehearse_and_apply(
    client: &Client,
    writer: &Writer,
    prepared: Prepared,
    known: &Overruled,
) -> Result<Applied, Error> {
    rehearse::rehearse(client, writer, &prepared).await?;
    Box::pin(apply::apply(client, writer, prepared, known)).await
}

/// That admission changes children, if it does.
fn overruled_in_words(applied: &Applied) -> Option<String> {
    let children = applied.overruled.join(", ");
    (!children.is_empty()).then(|| {
        format!(
            "{children} of this server is not as the operator applied it: a mutating webhook or policy changes it, and has the last word"
        )
    })
}

/// Shakes hands if that is due: the roll-out is done, and was not verified yet.
async fn handshake(applied: &Applied) -> Handshake {
    let progress = applied.progress();
    if !progress.available.holds || !progress.rolled_out.holds {
        return Handshake::NotTried;
    }
    let status = applied.server.status.clone().unwrap_or_default();
    let token = &applied.prepared.token;
    let is_verified = status.conditions.iter().any(|fact| {
        fact.type_ == condition::VERIFIED
            && fact.status == "True"
            && fact.observed_generation == applied.server.metadata.generation
    });
    let is_this_epoch = status.epoch.and_then(|epoch| u64::try_from(epoch).ok()) == Some(token.epoch);
    if let Some(info) = status.server_info.filter(|_| is_verified && is_this_epoch) {
        return Handshake::Done(info);
    }
    let found = &applied.prepared.accepted.found;
    shake_hands(&applied.server.spec, token, &found.proxies).await
}

/// All objects of a kind, or those of one namespace.
pub(crate) fn within<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// The server as events refer to it.
pub(crate) fn reference(server: &MCPServer) -> ObjectReference {
    server.object_ref(&())
}

impl Controller for ServerController {
    type Error = Error;

    fn name(&self) -> &'static str {
        "mcpserver"
    }

    fn crd(&self) -> &'static str {
        SERVER_CRD
    }

    async fn watch(&self, queue: Queue, synced: Synced) {
        let backend = ApiResource::erase::<StatefulSet>(&());
        let config = ApiResource::erase::<ConfigMap>(&());
        let others = [
            (backend, "statefulsets.apps", SERVER_LABEL),
            (config, "configmaps", FROZEN_LABEL),
        ];
        let children = ChildKind::ALL.map(|kind| (kind.resource(), kind.resource_name(), SERVER_LABEL));
        let waited_for = AtomicUsize::new(others.len() + children.len() + 1);
        // Each watch counts once, although it may be in sync many times.
        let count_once = || {
            let is_new = std::sync::atomic::AtomicBool::new(true);
            let (waited_for, synced) = (&waited_for, &synced);
            move || {
                if is_new.swap(false, Ordering::AcqRel) && waited_for.fetch_sub(1, Ordering::AcqRel) == 1 {
                    synced.done();
                }
            }
        };
        let counters: Vec<_> = (0..others.len() + children.len()).map(|_| count_once()).collect();
        let watches = children.iter().chain(&others).zip(&counters);
        let watches: Vec<_> = watches
            .map(|((resource, name, label), counter)| {
                self.follow_child(resource, name, label, &queue, counter)
            })
            .collect();
        let servers: Api<MCPServer> = within(&self.watching, self.settings.namespace.as_deref());
        let own_counter = count_once();
        let own = follow(
            servers,
            ListParams::default(),
            &self.metrics,
            SERVER_CRD,
            |seen| match seen {
                Seen::Applied(server) => {
                    queue.add(format!(
                        "{}/{}",
                        server.namespace().unwrap_or_default(),
                        server.name_any()
                    ));
                }
                Seen::Deleted(server) => {
                    let namespace = server.namespace.unwrap_or_default();
                    for neighbour in naming::neighbours(&server.name) {
                        queue.add(format!("{namespace}/{neighbour}"));
                    }
                    let key = format!("{namespace}/{}", server.name);
                    self.warned
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .retain(|(warned, _), _| *warned != key);
                }
                Seen::Synced => own_counter(),
            },
        );
        futures::join!(own, join_all(watches));
    }

    fn forget(&self) {
        self.warned.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.overruled.clear();
    }

    async fn reconcile(&self, key: &str, _: Signal) -> Result<Next, Error> {
        let Some((namespace, name)) = key.split_once('/') else {
            return Ok(Next::Await);
        };
        let api: Api<MCPServer> = Api::namespaced(self.client.clone(), namespace);
        let server = api.get_opt(name).await.map_err(|source| Error::Read {
            what: "object",
            object: key.to_owned(),
            source: Box::new(source),
        })?;
        match server {
            Some(server) => Box::pin(self.reconcile_server(server)).await,
            None => Ok(Next::Await),
        }
    }
}
