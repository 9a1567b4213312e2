//! The runner at its gate: builds the intent once, lets the gate decide, and does what follows.

use std::time::{Duration, Instant};

use exuvia_rollout::{
    Action, CompatGate, FoundStamps, Generation, Intent, Names, ObjectRef, Ours, Outcome, StampOn, Stamps,
    StrictGate, Token, hash_value,
};
use exuvia_runtime::{Health, Metrics};
use exuvia_write::{Apply, ErrorClass, Redacted, Writer};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Service;
use kube::api::DynamicObject;
use kube::{Api, Client};
use serde_json::json;

use super::backend::{PARALLEL, headless_service, stateful_set};
use super::changes::{Expected, Left, Pause};
use super::report::Reporter;
use super::{BACKEND_CHECK, Error, GateKind, RunSettings, changes, next, ready};
use crate::api::MCPServer;
use crate::run_config::{FoundConfig, RunConfig};
use crate::{naming, ports, scale};

/// How long after a failure the gate is asked again, once the runner serves.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// One runner and its target.
pub(crate) struct Runner {
    client: Client,
    writer: Writer,
    names: Names,
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
        token: Option<Token>,
        metrics: &Metrics,
    ) -> Self {
        let names = settings.names.clone();
        let env = |name: &str| (settings.env)(name);
        let file = found.json[&*names.generation_field].as_i64();
        let generation = Generation::choose(env(&names.generation_env).as_deref(), file);
        generation.log(&names.generation_env);
        let ours = Ours {
            token,
            config_hash: Some(hash_in_force(found, settings.image.as_deref())),
            config: found.whole,
            generation,
        };
        let config = found.config.clone();
        let image = settings.image.clone().unwrap_or_else(|| config.image.clone());
        Self {
            image,
            gate: settings.gate,
            fence: settings.fence.clone(),
            reporter: Reporter::new(client.clone(), writer.clone(), settings.pod.clone(), metrics),
            client,
            writer,
            names,
            config,
            ours,
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Applies the backend through the gate, waits until it is ready, and does so again whenever it is deleted or edited. Ends only
    /// with an error.
    pub(crate) async fn keep(&self, health: &Health, metrics: &Metrics) -> Result<(), Error> {
        tokio::select! {
            ended = self.decide_again_and_again(health, metrics) => ended,
            never = self.reporter.repeat() => match never {},
        }
    }

    async fn decide_again_and_again(&self, health: &Health, metrics: &Metrics) -> Result<(), Error> {
        let mut is_first = true;
        let mut pause = Pause::default();
        loop {
            match Box::pin(self.once(health, metrics, is_first)).await {
                Ok(left) => {
                    is_first = false;
                    self.until_changed(&left, metrics).await;
                    tracing::info!(
                        backend = naming::backend(&self.config.name),
                        "the backend was deleted or edited: asking the gate again"
                    );
                }
                // A runner that serves goes on serving; one that is new to it says why it cannot.
                Err(error @ Error::Refused(..)) => return Err(error),
                Err(error) if is_first => return Err(error),
                Err(error) => {
                    let error = Redacted::from_error(&error);
                    tracing::warn!(%error, "the backend could not be applied again");
                    tokio::time::sleep(ASK_AGAIN).await;
                }
            }
            tokio::time::sleep(pause.next(Instant::now())).await;
        }
    }

    /// Decides once, does what follows, and returns how it left the backend.
    async fn once(&self, health: &Health, metrics: &Metrics, is_first: bool) -> Result<Left, Error> {
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
        let outcome = match self.gate {
            GateKind::Strict => {
                let gate = self.strict(target.clone(), self.names.clone());
                gate.hand_over(scale::hand_over)
                    .admit(&intent, &self.ours)
                    .await?
            }
            GateKind::Compat => {
                self.compat(target.clone())
                    .admit(&intent, self.ours.generation)
                    .await?
            }
        };
        outcome.log();
        // That an edit was about nothing of ours is not worth a write.
        let told = server
            .as_ref()
            .filter(|_| is_first || outcome.decision.action != Action::Nothing);
        self.reporter.report(told, owner.as_deref(), &outcome).await;
        if !next(&target, &outcome)? {
            return Ok(outrun(health, &outcome));
        }
        let service = match self.gate {
            GateKind::Strict => {
                let (intent, outcome) = self.gate_service(owner.as_deref()).await?;
                let expected = self.expected(&intent, &outcome);
                Some((outcome, expected))
            }
            GateKind::Compat => {
                self.apply_service(owner.as_deref()).await?;
                None
            }
        };
        if let Some((service, _)) = &service
            && !next(&self.service(), service)?
        {
            return Ok(outrun(health, &outcome));
        }
        let left = match service {
            // Without a token nobody can tell which of two runners is newer: they would take back each other's edits for ever.
            Some((_, service)) if self.ours.token.is_some() => Left {
                set: self.expected(&intent, &outcome),
                service,
            },
            _ => Left::alone(outcome.object.as_ref()),
        };
        tokio::select! {
            ready = self.wait_until_ready() => {
                ready?;
                tracing::info!(backend = naming::backend(&self.config.name), "the backend is ready: serving");
                health.passed(BACKEND_CHECK, "ready");
            }
            // What somebody else made of it may never become ready.
            () = self.until_changed(&left, metrics) => {}
        }
        Ok(left)
    }

    async fn until_changed(&self, left: &Left, metrics: &Metrics) {
        let name = naming::backend(&self.config.name);
        changes::until_changed(&self.client, &self.config.namespace, &name, left, metrics).await;
    }

    fn strict(&self, target: ObjectRef, names: Names) -> StrictGate {
        let (namespace, name) = (self.config.namespace.clone(), self.config.name.clone());
        StrictGate::new(
            self.client.clone(),
            self.writer.clone(),
            names,
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
        .hand_over(scale::hand_over)
    }

    fn target(&self) -> ObjectRef {
        ObjectRef::typed::<StatefulSet>(self.config.namespace.clone(), naming::backend(&self.config.name))
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

    fn service(&self) -> ObjectRef {
        ObjectRef::typed::<Service>(self.config.namespace.clone(), naming::backend(&self.config.name))
    }

    /// The headless Service, through a gate of its own, so that no runner takes back what a newer one applied. Only after the
    /// backend's gate admitted us.
    async fn gate_service(&self, owner: Option<&str>) -> Result<(Intent, Outcome), Error> {
        let intent = Intent::new(&headless_service(&self.config, owner))?;
        // Its stamps are on the object, whatever the StatefulSet's are on.
        let names = Names {
            stamp_on: StampOn::Object,
            ..self.names.clone()
        };
        let gate = self.strict(self.service(), names);
        let outcome = match gate.admit(&intent, &self.ours).await {
            Err(error) if is_invalid(&error) && self.make_room(&intent).await? => {
                gate.admit(&intent, &self.ours).await?
            }
            admitted => admitted?,
        };
        if outcome.decision.action != Action::Nothing {
            tracing::info!(
                service = self.config.name,
                "headless Service: {}",
                outcome.log_line()
            );
        }
        Ok((intent, outcome))
    }

    /// Takes away what somebody made of the Service's ports, if ours do not fit next to it and no newer runner applied the Service since.
    /// Whether anything was done about it.
    async fn make_room(&self, intent: &Intent) -> Result<bool, Error> {
        let service = self.service();
        let Some(live) = self.read(&service).await? else {
            return Ok(false);
        };
        let value = serde_json::to_value(&live).unwrap_or_default();
        let stamps = FoundStamps::of_object(&value, &self.names);
        let is_ahead = match (stamps.token.found(), &self.ours.token) {
            (Some(theirs), Some(ours)) => theirs.uid != ours.uid || theirs.epoch > ours.epoch,
            (theirs, _) => theirs.is_some(),
        };
        if is_ahead {
            return Ok(false);
        }
        let api = service.api(&self.client);
        let cleared = ports::make_room(&self.writer, &api, &live, intent.body()).await?;
        Ok(cleared.is_some())
    }

    /// The object as the gate left it. A creation is two writes, and what it returns may have an edit in it that came between.
    fn expected(&self, intent: &Intent, outcome: &Outcome) -> Expected {
        if let (Action::Create, Some(object)) = (outcome.decision.action, &outcome.object) {
            let value = serde_json::to_value(object).unwrap_or_default();
            let drift = intent.drift(&value, self.writer.field_manager(), &self.names);
            if !drift.edits.is_empty() {
                return Expected::Otherwise;
            }
        }
        Expected::exactly(outcome.object.as_ref())
    }

    /// The headless Service next to a compat gate, if it is not as it should be: nothing is locked there.
    async fn apply_service(&self, owner: Option<&str>) -> Result<(), Error> {
        let service = self.service();
        let intent = Intent::new(&headless_service(&self.config, owner))?;
        let names = Names::default();
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

/// The hash of the run config as it is carried out. An image that is given by hand makes it another one than that of the pods, so that at
/// the same epoch the Deployment decides against it (row 12).
fn hash_in_force(found: &FoundConfig, image: Option<&str>) -> String {
    match image.filter(|image| *image != found.config.image) {
        Some(image) => hash_value(&json!([found.hash, image])),
        None => found.hash.clone(),
    }
}

fn is_invalid(error: &exuvia_rollout::Error) -> bool {
    matches!(error, exuvia_rollout::Error::Write(error) if error.class() == ErrorClass::Invalid)
}

/// Somebody else is at work. What clients have with us goes on.
fn outrun(health: &Health, outcome: &Outcome) -> Left {
    tracing::info!("the backend is left to another runner: serving");
    health.passed(BACKEND_CHECK, "left to another runner");
    Left::alone(outcome.object.as_ref())
}
