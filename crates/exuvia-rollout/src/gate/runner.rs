//! The gates: observe, decide, carry out. The only IO of the gate is here.

use std::time::Duration;

use exuvia_write::{Apply, Effect, ErrorClass, Writer};
use kube::Client;
use kube::api::DynamicObject;
use serde_json::Value;

use crate::{Fence, FoundStamps, Generation, Intent, Names, Stamp, Stamps, Token};

use super::strict::{self, Config, Observed, Owner, Present, Target, Template};
use super::{Action, Decision, Error, HandOvers, ObjectRef, Outcome, compat, handover};

/// How often it is decided at most when somebody else is faster each time.
pub(super) const MAX_ROUNDS: u32 = 5;
/// 5 min: longer than the grace period of most pods, which a foreground deletion waits for.
const DELETION_PATIENCE: Duration = Duration::from_secs(300);
/// How often it is looked whether a target that is being deleted is gone.
const POLL: Duration = Duration::from_secs(1);

/// What a helper pod knows of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ours {
    /// Its token, from the environment ([`Token::from_env`]).
    pub token: Option<Token>,
    /// The hash of the run config that it read.
    pub config_hash: Option<String>,
    /// Whether that is the run config that the pod was made for ([`read_settled`](crate::read_settled)).
    pub config: Config,
    /// The owner's generation ([`Generation::choose`]).
    pub generation: Generation,
}

/// The strict gate of one target.
///
/// ```no_run
/// # async fn example(client: kube::Client, intent: exuvia_rollout::Intent, ours: exuvia_rollout::Ours)
/// #     -> Result<(), exuvia_rollout::Error> {
/// use exuvia_rollout::{Names, Next, ObjectRef, StrictGate};
/// use exuvia_write::Writer;
/// use k8s_openapi::api::{apps::v1::{Deployment, StatefulSet}, core::v1::ConfigMap};
///
/// let gate = StrictGate::new(
///     client,
///     Writer::named("mcp-runner"),
///     Names::default(),
///     ObjectRef::typed::<StatefulSet>("shop", "till-backend"),
///     ObjectRef::typed::<ConfigMap>("shop", "till"), // the owner
/// )
/// .deployment(ObjectRef::typed::<Deployment>("shop", "till"));
/// let outcome = gate.admit(&intent, &ours).await?;
/// outcome.log();
/// match outcome.next() {
///     Next::Serve { is_current } => println!("serve; wait for the target: {is_current}"),
///     Next::NotReady { exit } => std::process::exit(exit.into()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct StrictGate {
    client: Client,
    writer: Writer,
    names: Names,
    target: ObjectRef,
    owner: ObjectRef,
    deployment: Option<ObjectRef>,
    fence: Option<String>,
    hand_overs: Option<HandOvers>,
    deletion_patience: Duration,
}

impl StrictGate {
    /// A gate in front of `target`, whose life hangs on `owner`. The writer's field manager is the one that owns the target.
    pub fn new(client: Client, writer: Writer, names: Names, target: ObjectRef, owner: ObjectRef) -> Self {
        Self {
            client,
            writer,
            names,
            target,
            owner,
            deployment: None,
            fence: None,
            hand_overs: None,
            deletion_patience: DELETION_PATIENCE,
        }
    }

    /// The Deployment that the helper pods are of: it decides row 12. Without it, row 12 skips.
    #[must_use]
    pub fn deployment(mut self, deployment: ObjectRef) -> Self {
        self.deployment = Some(deployment);
        self
    }

    /// The fence's name: its refusal is then a conflict, upon which it is decided again.
    #[must_use]
    pub fn fence(mut self, name: impl Into<String>) -> Self {
        self.fence = Some(name.into());
        self
    }

    /// What is handed over to another field manager before an apply, once it is decided that there will be one, and under the
    /// same lock. A refused or skipped pod hands over nothing.
    #[must_use]
    pub fn hand_over(mut self, hand_overs: HandOvers) -> Self {
        self.hand_overs = Some(hand_overs);
        self
    }

    /// How long a target that is being deleted is waited for: 5 min, unless said otherwise.
    #[must_use]
    pub fn deletion_patience(mut self, patience: Duration) -> Self {
        self.deletion_patience = patience;
        self
    }

    /// Observes, decides and carries out, at most five times while others are faster.
    ///
    /// What is refused or skipped is an [`Outcome`], too. An error says that nothing could be decided or written.
    pub async fn admit(&self, intent: &Intent, ours: &Ours) -> Result<Outcome, Error> {
        if self.names.fence_annotation.is_none() {
            return Err(Error::NoToken);
        }
        fits(intent, &self.target)?;
        let mut waited = Duration::ZERO;
        let mut healed = false;
        let mut rounds = 0;
        loop {
            rounds += 1;
            let (observed, live) = self.observe(intent, ours).await?;
            let decision = strict::decide(&observed);
            let outcome = |object| Outcome {
                decision,
                ours: ours.token.as_ref().map(ToString::to_string),
                theirs: theirs(&observed.target),
                generation: ours.generation,
                object,
                rounds,
            };
            let written = match decision.action {
                Action::Create | Action::Apply | Action::ApplyUnstamped => {
                    // What the healing gives back may already be somebody else's: look again.
                    if !healed && self.heal(live.as_ref()).await? {
                        healed = true;
                        rounds -= 1;
                        continue;
                    }
                    self.write(intent, ours, decision, live.as_ref()).await
                }
                Action::WaitGone => {
                    if waited >= self.deletion_patience {
                        return Err(Error::StillDeleting {
                            target: self.target.to_string(),
                        });
                    }
                    if waited.is_zero() {
                        outcome(None).log();
                    }
                    tokio::time::sleep(POLL).await;
                    waited += POLL;
                    rounds -= 1; // nobody was faster
                    continue;
                }
                _ => return Ok(outcome(live)),
            };
            let error = match written {
                Ok(object) => return Ok(outcome(Some(object))),
                Err(error) => error,
            };
            if !self.is_outrun(&error) {
                return Err(Error::Write(Box::new(error)));
            }
            if rounds >= MAX_ROUNDS {
                return Err(Error::Contended {
                    target: self.target.to_string(),
                    rounds,
                    source: Box::new(error),
                });
            }
            tracing::debug!(rounds, "somebody else wrote {}: decide again", self.target);
            let delay = self.writer.retry_policy().after(rounds, ErrorClass::Conflict);
            tokio::time::sleep(delay.unwrap_or_default()).await;
        }
    }

    /// Reads owner and target, and the Deployment if the decision depends on it.
    async fn observe(
        &self,
        intent: &Intent,
        ours: &Ours,
    ) -> Result<(Observed, Option<DynamicObject>), Error> {
        let owner = self.read(&self.owner).await?;
        let live = self.read(&self.target).await?;
        let target = match &live {
            None => Target::Absent,
            Some(live) => Target::Present(self.present(intent, live)),
        };
        let owner = match owner {
            None => Owner::Gone,
            Some(owner) if owner.metadata.deletion_timestamp.is_some() => Owner::Deleting,
            Some(owner) => Owner::Live(owner.metadata.uid.unwrap_or_default()),
        };
        let mut observed = Observed {
            ours: ours.token.clone(),
            config: ours.config,
            owner,
            target,
            template: Template::Unread,
        };
        if observed.needs_template() {
            observed.template = self.template(ours).await?;
        }
        Ok((observed, live))
    }

    fn present(&self, intent: &Intent, live: &DynamicObject) -> Present {
        let value = value(live);
        let stamps = FoundStamps::read(&value, &self.names);
        let drift = intent.drift(&value, self.writer.field_manager(), &self.names);
        let references = live.metadata.owner_references.as_deref().unwrap_or_default();
        let controller = references.iter().find(|owner| owner.controller == Some(true));
        Present {
            token: stamps.token,
            is_deleting: live.metadata.deletion_timestamp.is_some(),
            controller: controller.map(|owner| owner.uid.clone()),
            same_intent: !drift.other_intent,
            is_edited: !drift.edits.is_empty(),
        }
    }

    async fn template(&self, ours: &Ours) -> Result<Template, Error> {
        let Some(deployment) = &self.deployment else {
            return Ok(Template::Absent);
        };
        let Some(deployment) = self.read(deployment).await? else {
            return Ok(Template::Absent);
        };
        let stamps = FoundStamps::of_template(&value(&deployment), &self.names);
        let is_ours = stamps.token.found() == ours.token.as_ref() && stamps.config_hash == ours.config_hash;
        Ok(if is_ours { Template::Ours } else { Template::Other })
    }

    async fn read(&self, object: &ObjectRef) -> Result<Option<DynamicObject>, Error> {
        read(&self.client, &self.writer, object).await
    }

    async fn write(
        &self,
        intent: &Intent,
        ours: &Ours,
        decision: Decision,
        live: Option<&DynamicObject>,
    ) -> Result<DynamicObject, exuvia_write::Error> {
        let body = if decision.action == Action::ApplyUnstamped {
            intent.body().clone()
        } else {
            let stamps = Stamps {
                token: ours.token.clone(),
                generation: Some(ours.generation.value).filter(|number| *number > 0),
                config_hash: ours.config_hash.clone(),
                intent_hash: Some(intent.hash().to_owned()),
                template_hash: None,
            };
            intent.stamped(&stamps, &self.names)
        };
        let api = self.target.api(&self.client);
        let Some(live) = live else {
            return self.writer.create_applied(&api, &intent.object(&body)).await;
        };
        let handed_over = handover::carry_out(self.hand_overs, &self.writer, &api, live, intent).await?;
        let metadata = handed_over.as_ref().unwrap_or(live).metadata.clone();
        let (uid, version) = (metadata.uid.unwrap_or_default(), metadata.resource_version);
        let how = Apply::default().force().only_at(uid, version.unwrap_or_default());
        self.writer.apply(&api, &body, &how).await
    }

    /// A crash after the creation, or a client of old, left our fields to an `Update` entry: an apply would not remove what it
    /// leaves out (PITFALLS A42). Whether anything was done about it.
    async fn heal(&self, live: Option<&DynamicObject>) -> Result<bool, Error> {
        let Some(live) = live else {
            return Ok(false);
        };
        match self
            .writer
            .own_as_applied(&self.target.api(&self.client), live)
            .await
        {
            Ok(written) => Ok(written.effect != Effect::Unsent),
            Err(error) if self.is_outrun(&error) => Ok(true),
            Err(error) => Err(Error::Write(Box::new(error))),
        }
    }

    /// Whether somebody else was faster, so that it is to be decided again.
    fn is_outrun(&self, error: &exuvia_write::Error) -> bool {
        match error.class() {
            // Also what says that the name is taken, and what was deleted meanwhile.
            ErrorClass::Conflict | ErrorClass::Gone => true,
            ErrorClass::Denied => self
                .fence
                .as_ref()
                .is_some_and(|name| Fence::is_denial(name, error)),
            _ => false,
        }
    }
}

/// The compat gate of one target: read, compare, apply with force, without a lock.
#[derive(Clone)]
pub struct CompatGate {
    client: Client,
    writer: Writer,
    names: Names,
    target: ObjectRef,
    hand_overs: Option<HandOvers>,
}

impl CompatGate {
    /// A gate in front of `target`. The writer's field manager is the one that owns the target.
    pub fn new(client: Client, writer: Writer, names: Names, target: ObjectRef) -> Self {
        Self {
            client,
            writer,
            names,
            target,
            hand_overs: None,
        }
    }

    /// What is handed over to another field manager before an apply, once it is decided that there will be one.
    #[must_use]
    pub fn hand_over(mut self, hand_overs: HandOvers) -> Self {
        self.hand_overs = Some(hand_overs);
        self
    }

    /// Observes, decides and carries out, once.
    pub async fn admit(&self, intent: &Intent, generation: Generation) -> Result<Outcome, Error> {
        fits(intent, &self.target)?;
        let live = read(&self.client, &self.writer, &self.target).await?;
        let stamp = live
            .as_ref()
            .map(|live| FoundStamps::of_template(&value(live), &self.names).generation);
        let theirs = match &stamp {
            Some(Stamp::Found(theirs)) => Some(theirs.to_string()),
            _ => None,
        };
        let target = stamp.map_or(compat::Target::Absent, compat::Target::Present);
        let decision = compat::decide(generation.value, &target);
        let object = match decision.action {
            Action::Apply | Action::ApplyUnstamped => {
                let stamps = Stamps {
                    generation: Some(generation.value).filter(|_| decision.action == Action::Apply),
                    ..Stamps::default()
                };
                let mut body = intent.body().clone();
                stamps.put_on_template(&mut body, &self.names);
                let api = self.target.api(&self.client);
                if let Some(live) = &live {
                    let handed_over =
                        handover::carry_out(self.hand_overs, &self.writer, &api, live, intent).await;
                    handed_over.map_err(Box::new)?;
                }
                let applied = self.writer.apply(&api, &body, &Apply::default().force()).await;
                Some(applied.map_err(Box::new)?)
            }
            _ => live,
        };
        Ok(Outcome {
            decision,
            ours: Some(generation.value.to_string()),
            theirs,
            generation,
            object,
            rounds: 1,
        })
    }
}

async fn read(client: &Client, writer: &Writer, object: &ObjectRef) -> Result<Option<DynamicObject>, Error> {
    match writer.get(&object.api(client), &object.metadata()).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.class() == ErrorClass::Gone => Ok(None),
        Err(error) => Err(Error::Unread {
            what: object.to_string(),
            source: Box::new(error),
        }),
    }
}

fn theirs(target: &Target) -> Option<String> {
    match target {
        Target::Present(Present {
            token: Stamp::Found(token),
            ..
        }) => Some(token.to_string()),
        _ => None,
    }
}

fn fits(intent: &Intent, target: &ObjectRef) -> Result<(), Error> {
    let namespace = intent
        .namespace()
        .is_none_or(|own| target.namespace.as_deref() == Some(own));
    if intent.name() == target.name && namespace && intent.kind() == target.resource.kind {
        return Ok(());
    }
    Err(Error::Mismatch {
        intent: format!("{} {}", intent.kind(), intent.name()),
        gate: target.to_string(),
    })
}

fn value(object: &DynamicObject) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}
