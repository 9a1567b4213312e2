//! The runner at its gate: builds the intent once, lets the gate decide, and does what follows.

use std::time::Duration;

use exuvia_rollout::{CompatGate, Generation, Intent, ObjectRef, Ours, StampOn, Stamps, StrictGate, Token};
use exuvia_runtime::{Health, Metrics};
use exuvia_write::{Apply, Writer};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Service;
use kube::api::DynamicObject;
use kube::{Api, Client};
use serde_json::Value;

use super::backend::{PARALLEL, headless_service, stateful_set};
use super::report::Reporter;
use super::{BACKEND_CHECK, Error, GateKind, RunSettings, next, ready};
use crate::api::MCPServer;
use crate::run_config::{FoundConfig, RunConfig};
use crate::{naming, scale};

/// How long after a failure the gate is asked again, once the runner serves.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// One runner and its target.
pub(crate) struct Runner {
    client: Client,
    writer: Writer,
    names: exuvia_rollout::Names,
    gate: GateKind,
    fence: String,
    config: RunConfig,
    image: String,
    ours: Ours,
    reporter: Reporter,
}

impl Runner {
    pub(crate) fn new(
        client: Client,
        writer: Writer,
        settings: &RunSettings,
        found: &FoundConfig,
        metrics: &Metrics,
    ) -> Result<Self, Error> {
        let names = settings.names.clone();
        let env = |name: &str| (settings.env)(name);
        let file = found.json[&*names.generation_field].as_i64();
        let generation = Generation::choose(env(&names.generation_env).as_deref(), file);
        generation.log(&names.generation_env);
        let token = match &names.fence_env {
            Some(variable) => Token::from_env(env(variable).as_deref()).map_err(|source| Error::Token {
                variable: variable.to_string(),
                source,
            })?,
            None => None,
        };
        let ours = Ours {
            token,
            config_hash: Some(found.hash.clone()),
            config: found.whole,
            generation,
        };
        let config = found.config.clone();
        Ok(Self {
            image: settings.image.clone().unwrap_or_else(|| config.image.clone()),
            gate: settings.gate,
            fence: settings.fence.clone(),
            reporter: Reporter::new(client.clone(), writer.clone(), settings.pod.clone(), metrics),
            client,
            writer,
            names,
            config,
            ours,
        })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Applies the backend through the gate, waits until it is ready, and does so again whenever it is deleted. Ends only with
    /// an error.
    pub(crate) async fn keep(&self, health: &Health, metrics: &Metrics) -> Result<(), Error> {
        let mut is_first = true;
        loop {
            match self.once(health).await {
                Ok(()) => {}
                // A runner that serves goes on serving; one that is new to it says why it cannot.
                Err(error @ Error::Refused(..)) => return Err(error),
                Err(error) if is_first => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "the backend could not be applied again");
                    tokio::time::sleep(ASK_AGAIN).await;
                    continue;
                }
            }
            is_first = false;
            let name = naming::backend(&self.config.name);
            ready::deleted(&self.client, &self.config.namespace, &name, metrics).await;
            tracing::info!(backend = name, "the backend was deleted: asking the gate again");
        }
    }

    /// Decides once, and does what follows.
    async fn once(&self, health: &Health) -> Result<(), Error> {
        let server = self.server().await?;
        let owner = match &self.ours.token {
            Some(token) => Some(token.uid.clone()),
            None => server.as_ref().and_then(|server| server.metadata.uid.clone()),
        };
        let target = self.target();
        let live = self.read(&target).await?;
        let policy = live
            .as_ref()
            .and_then(|live| live.data["spec"]["podManagementPolicy"].as_str());
        let intent = stateful_set(
            &self.config,
            &self.image,
            owner.as_deref(),
            policy.unwrap_or(PARALLEL),
        );
        let intent = Intent::new(&intent)?;
        if let Some(live) = &live {
            self.keep_scale(&target, live, &intent).await?;
        }
        let outcome = match self.gate {
            GateKind::Strict => self.strict(target).admit(&intent, &self.ours).await?,
            GateKind::Compat => self.compat(target).admit(&intent, self.ours.generation).await?,
        };
        outcome.log();
        self.reporter.report(server.as_ref(), &outcome).await;
        if !next(&outcome)? {
            // Somebody newer is at work. What clients have with us goes on.
            health.passed(BACKEND_CHECK, "applied by a newer runner");
            return Ok(());
        }
        self.apply_service(owner.as_deref()).await?;
        self.wait_until_ready().await?;
        health.passed(BACKEND_CHECK, "ready");
        Ok(())
    }

    fn strict(&self, target: ObjectRef) -> StrictGate {
        let (namespace, name) = (self.config.namespace.clone(), self.config.name.clone());
        StrictGate::new(
            self.client.clone(),
            self.writer.clone(),
            self.names.clone(),
            target,
            ObjectRef::typed::<MCPServer>(namespace.clone(), name.clone()),
        )
        .deployment(ObjectRef::typed::<Deployment>(namespace, name))
        .fence(&self.fence)
    }

    fn compat(&self, target: ObjectRef) -> CompatGate {
        CompatGate::new(
            self.client.clone(),
            self.writer.clone(),
            self.names.clone(),
            target,
        )
    }

    fn target(&self) -> ObjectRef {
        ObjectRef::typed::<StatefulSet>(self.config.namespace.clone(), naming::backend(&self.config.name))
    }

    /// Before an apply that leaves `replicas` out. Nothing is written by a runner that the gate will skip, nor by one whose intent was
    /// applied already: what was made by POST is ours with every default, `replicas` among them.
    async fn keep_scale(
        &self,
        target: &ObjectRef,
        live: &DynamicObject,
        intent: &Intent,
    ) -> Result<(), Error> {
        let value = serde_json::to_value(live).unwrap_or_default();
        let drift = intent.drift(&value, self.writer.field_manager(), &self.names);
        if !drift.is_none() && self.is_newest(&value) {
            scale::keep(&self.writer, &target.api(&self.client), live, intent.body()).await?;
        }
        Ok(())
    }

    /// Whether no newer runner has stamped the live object.
    fn is_newest(&self, live: &Value) -> bool {
        let stamps = exuvia_rollout::FoundStamps::read(live, &self.names);
        match (&self.ours.token, stamps.token.found()) {
            (Some(ours), Some(theirs)) if ours.uid == theirs.uid => ours.epoch >= theirs.epoch,
            (Some(_), _) => true,
            (None, _) => {
                let theirs = exuvia_rollout::FoundStamps::of_template(live, &self.names);
                theirs
                    .generation
                    .found()
                    .is_none_or(|theirs| *theirs <= self.ours.generation.value)
            }
        }
    }

    async fn server(&self) -> Result<Option<MCPServer>, Error> {
        let api: Api<MCPServer> = Api::namespaced(self.client.clone(), &self.config.namespace);
        match api.get_opt(&self.config.name).await {
            Ok(server) => Ok(server),
            // Without our CRD, as next to another operator: nobody is there to report to.
            Err(error) if self.names.stamp_on == StampOn::PodTemplate => {
                tracing::debug!(error = %exuvia_write::brief(&error), "no MCPServer");
                Ok(None)
            }
            Err(source) => Err(Error::Read {
                what: format!("MCPServer {}/{}", self.config.namespace, self.config.name),
                source: Box::new(source),
            }),
        }
    }

    async fn read(&self, object: &ObjectRef) -> Result<Option<DynamicObject>, Error> {
        let found = object.api(&self.client).get_opt(&object.name).await;
        found.map_err(|source| Error::Read {
            what: object.to_string(),
            source: Box::new(source),
        })
    }

    /// The headless Service, if it is not as it should be. Only after the gate admitted us.
    async fn apply_service(&self, owner: Option<&str>) -> Result<(), Error> {
        let service =
            ObjectRef::typed::<Service>(self.config.namespace.clone(), naming::backend(&self.config.name));
        let intent = Intent::new(&headless_service(&self.config, owner))?;
        // Its own stamps are on the object, whatever the StatefulSet's are on.
        let names = exuvia_rollout::Names::default();
        if let Some(live) = self.read(&service).await? {
            let live = serde_json::to_value(live).unwrap_or_default();
            let drift = intent.drift(&live, self.writer.field_manager(), &names);
            if !drift.other_intent && drift.edits.is_empty() {
                return Ok(());
            }
        }
        let stamps = Stamps {
            intent_hash: Some(intent.hash().to_owned()),
            ..Stamps::default()
        };
        let body = intent.stamped(&stamps, &names);
        let api: Api<DynamicObject> = service.api(&self.client);
        self.writer.apply(&api, &body, &Apply::default().force()).await?;
        Ok(())
    }

    async fn wait_until_ready(&self) -> Result<(), Error> {
        let name = naming::backend(&self.config.name);
        ready::wait(
            &self.client,
            &self.writer,
            &self.config.namespace,
            &self.config.name,
            &name,
        )
        .await
    }
}
