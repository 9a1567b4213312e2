//! The controller of `MCPToolConfig`: tells each server that refers to one which content it has, by an annotation.
//!
//! It is a second writer of `MCPServer`. It writes metadata only, under a lock, and never the spec: the generation stays, and
//! what its types do not know survives.

use exuvia_rollout::hash_value;
use exuvia_runtime::{Controller, Metrics, Next, Queue, Seen, Signal, Synced, follow};
use exuvia_write::Writer;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::api::{MCPServer, MCPToolConfig, SERVER_CRD, TOOL_CONFIG_CRD, TOOL_CONFIG_HASH};
use crate::controller::within;

/// Reconciles `MCPToolConfig` objects.
pub struct ToolConfigController {
    client: Client,
    watching: Client,
    writer: Writer,
    metrics: Metrics,
    namespace: Option<String>,
}

/// Why a reconcile failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something could not be read.
    #[error(
        "cannot read {what} of MCPToolConfig {object}: {}",
        exuvia_write::brief(source)
    )]
    Read {
        /// What.
        what: &'static str,
        /// Which, as namespace/name.
        object: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// A write failed.
    #[error(transparent)]
    Write(#[from] exuvia_write::Error),
}

impl ToolConfigController {
    /// `watching` is the client of watches: their connections stay open for minutes. Without a `namespace`, all are watched.
    pub fn new(
        client: Client,
        watching: Client,
        writer: Writer,
        metrics: Metrics,
        namespace: Option<String>,
    ) -> Self {
        Self {
            client,
            watching,
            writer,
            metrics,
            namespace,
        }
    }

    async fn tell_servers(&self, namespace: &str, name: &str) -> Result<(), Error> {
        let failed = |what| {
            let object = format!("{namespace}/{name}");
            move |source| Error::Read {
                what,
                object,
                source: Box::new(source),
            }
        };
        let configs: Api<MCPToolConfig> = Api::namespaced(self.client.clone(), namespace);
        let servers: Api<MCPServer> = Api::namespaced(self.client.clone(), namespace);
        let config = configs.get_opt(name).await.map_err(failed("the object"))?;
        let all = servers
            .list(&ListParams::default())
            .await
            .map_err(failed("the servers"))?;
        let hash = config.as_ref().map(|config| hash_value(&json!(config.spec)));
        let mut referring = 0;
        for server in all.items.iter().filter(|server| refers_to(server) == Some(name)) {
            referring += 1;
            if server.metadata.deletion_timestamp.is_none() {
                self.writer
                    .patch(&servers, server, |server| put(server, hash.as_deref()))
                    .await?;
            }
        }
        // One that refers to none any more keeps no hash. A config that was deleted is gone from all of them.
        for server in all.items.iter().filter(|server| refers_to(server).is_none()) {
            if server.metadata.deletion_timestamp.is_none() {
                self.writer
                    .patch(&servers, server, |server| put(server, None))
                    .await?;
            }
        }
        if let Some(config) = config {
            self.writer
                .patch_status(&configs, &config, |config| {
                    let generation = config.metadata.generation;
                    let status = config.status.get_or_insert_default();
                    status.observed_generation = generation;
                    status.hash.clone_from(&hash);
                    status.servers = Some(referring);
                })
                .await?;
        }
        Ok(())
    }
}

/// The name of the tool config that a server refers to.
fn refers_to(server: &MCPServer) -> Option<&str> {
    server
        .spec
        .tool_config_ref
        .as_ref()
        .map(|reference| reference.name.as_str())
}

fn put(server: &mut MCPServer, hash: Option<&str>) {
    if let Some(hash) = hash {
        let annotations = server.annotations_mut();
        annotations.insert(TOOL_CONFIG_HASH.to_owned(), hash.to_owned());
    } else if let Some(annotations) = &mut server.metadata.annotations {
        // A server without any annotations stays as it is: an empty map would be a change.
        annotations.remove(TOOL_CONFIG_HASH);
    }
}

impl Controller for ToolConfigController {
    type Error = Error;

    fn name(&self) -> &'static str {
        "mcptoolconfig"
    }

    fn crd(&self) -> &'static str {
        TOOL_CONFIG_CRD
    }

    async fn watch(&self, queue: Queue, synced: Synced) {
        let waited_for = AtomicUsize::new(2);
        let count = |is_new: &mut bool| {
            if std::mem::take(is_new) && waited_for.fetch_sub(1, Ordering::AcqRel) == 1 {
                synced.done();
            }
        };
        let add = |namespace: Option<String>, name: &str| {
            queue.add(format!("{}/{name}", namespace.unwrap_or_default()));
        };
        let configs: Api<MCPToolConfig> = within(&self.watching, self.namespace.as_deref());
        let mut first = true;
        let own = follow(
            configs,
            ListParams::default(),
            &self.metrics,
            TOOL_CONFIG_CRD,
            |seen| match seen {
                Seen::Applied(config) => add(config.namespace(), &config.name_any()),
                Seen::Deleted(config) => add(config.namespace, &config.name),
                Seen::Synced => count(&mut first),
            },
        );
        let servers: Api<MCPServer> = within(&self.watching, self.namespace.as_deref());
        let mut first_servers = true;
        let of_servers = follow(
            servers,
            ListParams::default(),
            &self.metrics,
            SERVER_CRD,
            |seen| match seen {
                Seen::Applied(server) => {
                    if let Some(name) = refers_to(&server) {
                        add(server.namespace(), name);
                    }
                }
                Seen::Deleted(_) => {}
                Seen::Synced => count(&mut first_servers),
            },
        );
        futures::join!(own, of_servers);
    }

    fn forget(&self) {} // it remembers nothing between two reconciles

    async fn reconcile(&self, key: &str, _: Signal) -> Result<Next, Error> {
        if let Some((namespace, name)) = key.split_once('/') {
            self.tell_servers(namespace, name).await?;
        }
        Ok(Next::Await)
    }
}
