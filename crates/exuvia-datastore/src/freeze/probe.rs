//! Whether each API server denies: writes that must be refused, sent as dry-runs to every server itself.
//!
//! A policy bites about a second after it was made, at each server for itself (PITFALLS A15, D10), and a server that stood
//! still lets writes pass until it has caught up (D11). So only a refusal counts, with our policy's name and words in it.
//!
//! First the canaries, one per part: they are refused wherever the server has the policy. Then, while frozen, one write
//! per source kind: an empty patch of one of its objects, or the creation of a stub. The server checks a new object
//! against the schema *before* it asks policies (seen on 1.37.1), and mutating webhooks may refuse dry-runs, so such a
//! write may be refused by somebody else: that proves nothing, and the canary stands. One that passes proves that the freeze leaks.

use std::collections::BTreeMap;

use exuvia_api::{LabelOperator, LabelSelector};
use exuvia_runtime::servers::Asked;
use exuvia_write::{Name, Redacted, RetryPolicy, redacted};
use futures::{FutureExt, StreamExt};
use kube::api::{ApiResource, DynamicObject, ListParams, ObjectMeta};
use kube::core::Status;
use kube::{Api, Client};

use super::Freeze;
use super::drain::Found;
use super::error::Error;
use super::policy::{Form, FrozenKind, PROBE_MANAGER, Part};

/// So many questions at once: each goes to every server.
const AT_ONCE: usize = 8;

/// What the API servers said to the probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probed {
    /// By server, what it does not deny, or why that is not known. Empty: it denies everything that it must.
    pub servers: BTreeMap<String, Vec<Redacted>>,
    /// Why these may not be all the API servers; `None`: they are all.
    pub why_not_all: Option<String>,
    pub(super) found: BTreeMap<String, Found>,
}

impl Probed {
    /// Whether every server that was asked denies everything. There may be others: see [`why_not_all`](Self::why_not_all).
    pub fn all_asked_deny(&self) -> bool {
        !self.servers.is_empty() && self.servers.values().all(Vec::is_empty)
    }

    /// The servers that do not deny yet, with the reasons.
    pub fn not_yet(&self) -> impl Iterator<Item = (&str, &[Redacted])> {
        self.servers
            .iter()
            .filter(|(_, why)| !why.is_empty())
            .map(|(server, why)| (server.as_str(), why.as_slice()))
    }
}

/// What one write came to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Denies,
    LetsPass,
    /// Somebody else refused it, or something is missing.
    Unclear(Redacted),
}

/// The answer of a server, or that our own writer refused to send.
type Sent = Result<Said, Box<exuvia_write::Error>>;

impl Freeze {
    /// Asks every API server whether it denies what this form must deny. It remembers since when each does.
    /// The shield has a [probe](Self::probe_shield) of its own.
    pub async fn probe(&self, form: Form) -> Result<Probed, Error> {
        if form == Form::Frozen {
            self.check_locks().await?;
        }
        let mut probed = self.canaries(&self.scope.parts(form, false), form).await?;
        // In the Converged form an empty patch may pass, and what counts is that the target is free.
        if form == Form::Frozen && probed.all_asked_deny() {
            self.probe_kinds(&mut probed).await?;
        }
        if form == Form::Frozen {
            self.remember_denying(&probed);
        }
        Ok(probed)
    }

    /// Asks every API server whether it has the shield.
    pub async fn probe_shield(&self) -> Result<Probed, Error> {
        self.canaries(&[Part::Shield], Form::Frozen).await
    }

    /// Whether each server has these parts in this form.
    pub(super) async fn canaries(&self, parts: &[Part], form: Form) -> Result<Probed, Error> {
        // Boxed, so that the compiler sees that the whole can be sent to another thread.
        let asking: Vec<_> = parts
            .iter()
            .map(|part| self.ask_canary(*part, form).boxed())
            .collect();
        let asked: Vec<_> = futures::stream::iter(asking).buffered(AT_ONCE).collect().await;
        let mut probed = Probed::default();
        for (part, asked) in asked {
            let asked = asked.map_err(Error::read("the list of API servers"))?;
            let missing = |said: &Said| match said {
                Said::Denies => None,
                Said::LetsPass => Some(redacted!(
                    "does not enforce the {} policy yet",
                    Name(part.as_str())
                )),
                Said::Unclear(why) => Some(redacted!(
                    "does not show that it enforces the {} policy: {}",
                    Name(part.as_str()),
                    why
                )),
            };
            probed.add(asked, missing)?;
        }
        Ok(probed)
    }

    async fn ask_canary(&self, part: Part, form: Form) -> (Part, Result<Asked<Sent>, kube::Error>) {
        let asked = self
            .servers
            .ask_at_least_one(&self.client, |server| self.canary(server, part, form))
            .await;
        (part, asked)
    }

    async fn canary(&self, server: Client, part: Part, form: Form) -> Result<Sent, kube::Error> {
        let migrations: Api<exuvia_api::DatastoreMigration> = Api::all(server);
        let writer = self.writer.acting_as(part.probe_manager()).dry_run().once();
        let metadata = ObjectMeta {
            name: Some(self.scope.migration.clone()),
            ..ObjectMeta::default()
        };
        let sent = writer.rewrite(&migrations, &metadata).await;
        self.said(sent.map(drop), part, form)
    }

    async fn probe_kinds(&self, probed: &mut Probed) -> Result<(), Error> {
        let kinds = self.scope.source.iter();
        let asking: Vec<_> = kinds.map(|kind| self.ask_about(kind).boxed()).collect();
        let asked: Vec<_> = futures::stream::iter(asking).buffered(AT_ONCE).collect().await;
        for asked in asked {
            let (kind, asked) = asked?;
            let lets_pass = |said: &Said| {
                let resource = exuvia_write::resource_name(&kind.plural, &kind.group);
                matches!(said, Said::LetsPass)
                    .then(|| redacted!("still lets writes to {} pass", Name(&resource)))
            };
            probed.add(asked, lets_pass)?;
        }
        Ok(())
    }

    async fn ask_about<'a>(&self, kind: &'a FrozenKind) -> Result<(&'a FrozenKind, Asked<Sent>), Error> {
        let metadata = self.some_object(kind).await?;
        let asked = self
            .servers
            .ask_at_least_one(&self.client, |server| {
                self.write_to(server, kind, metadata.as_ref())
            })
            .await;
        Ok((kind, asked.map_err(Error::read("the list of API servers"))?))
    }

    /// An object of that kind that the freeze covers.
    async fn some_object(&self, kind: &FrozenKind) -> Result<Option<ObjectMeta>, Error> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource(kind));
        let params = ListParams::default().limit(1).labels(&as_query(&kind.selector));
        let list = RetryPolicy::default().read(|| api.list_metadata(&params)).await;
        let what = || exuvia_write::resource_name(&kind.plural, &kind.group);
        let list = list.map_err(|error| Error::read(what())(error))?;
        Ok(list.items.into_iter().next().map(|object| object.metadata))
    }

    async fn write_to(
        &self,
        server: Client,
        kind: &FrozenKind,
        metadata: Option<&ObjectMeta>,
    ) -> Result<Sent, kube::Error> {
        let resource = resource(kind);
        let api: Api<DynamicObject> = Api::all_with(server, &resource);
        let writer = self.writer.acting_as(PROBE_MANAGER).dry_run().once();
        let sent = if let Some(metadata) = metadata {
            writer.rewrite(&api, metadata).await.map(drop)
        } else {
            let mut stub = DynamicObject::new(&self.scope.name(Part::Source), &resource);
            stub.metadata.namespace = kind.namespaced.then(|| "default".to_owned());
            stub.metadata.labels = Some(labels_for(&kind.selector)).filter(|labels| !labels.is_empty());
            writer.create(&api, &stub).await.map(drop)
        };
        self.said(sent, Part::Source, Form::Frozen)
    }

    /// What a write that must be refused came to. An error of the transport is not an answer.
    fn said(
        &self,
        sent: Result<(), exuvia_write::Error>,
        part: Part,
        form: Form,
    ) -> Result<Sent, kube::Error> {
        let policy = self.scope.name(part);
        let message = self.scope.message(part, form);
        match sent {
            Ok(()) => Ok(Ok(Said::LetsPass)),
            Err(exuvia_write::Error::Server { source, .. }) => match *source {
                kube::Error::Api(status) => Ok(Ok(verdict(&status, &policy, &message))),
                silent => Err(silent),
            },
            // It was carried out, as far as a dry-run is.
            Err(exuvia_write::Error::Answer { .. }) => Ok(Ok(Said::LetsPass)),
            Err(ours) => Ok(Err(Box::new(ours))),
        }
    }
}

impl Probed {
    fn add(&mut self, asked: Asked<Sent>, trouble: impl Fn(&Said) -> Option<Redacted>) -> Result<(), Error> {
        for answer in asked.answers {
            let server = answer.server;
            let troubles = self.servers.entry(server.clone()).or_default();
            let (found, new) = match answer.said {
                Ok(Ok(said)) => match (trouble(&said), said) {
                    (None, _) => (Found::Denies, None),
                    (new, Said::Unclear(_)) => (Found::Unclear, new),
                    (new, _) => (Found::LetsPass, new),
                },
                Ok(Err(ours)) => return Err((*ours).into()),
                Err(no_answer) => (Found::Silent, Some(Redacted::ours(no_answer.to_string()))),
            };
            troubles.extend(
                new.filter(|new| !troubles.contains(new))
                    .into_iter()
                    .collect::<Vec<_>>(),
            );
            let worst = self.found.entry(server).or_insert(found);
            *worst = found.max(*worst);
        }
        self.why_not_all = self.why_not_all.take().or(asked.why_not_all);
        Ok(())
    }
}

/// A refusal is ours only with our policy's name and the words of this very form.
fn verdict(status: &Status, policy: &str, message: &str) -> Said {
    let ours =
        format!("ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {message}");
    if status.code == 403 && status.reason == "Forbidden" && status.message.contains(&ours) {
        Said::Denies
    } else {
        Said::Unclear(Redacted::from_server(&status.message))
    }
}

pub(super) fn resource(kind: &FrozenKind) -> ApiResource {
    ApiResource {
        group: kind.group.clone(),
        version: kind.version.clone(),
        api_version: format!("{}/{}", kind.group, kind.version),
        kind: kind.kind.clone(),
        plural: kind.plural.clone(),
    }
}

/// The selector as a list takes it.
fn as_query(selector: &LabelSelector) -> String {
    let equal = selector
        .match_labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"));
    let further = selector.match_expressions.iter().map(|requirement| {
        let (key, values) = (&requirement.key, requirement.values.join(","));
        match requirement.operator {
            LabelOperator::In => format!("{key} in ({values})"),
            LabelOperator::NotIn => format!("{key} notin ({values})"),
            LabelOperator::Exists => key.clone(),
            LabelOperator::DoesNotExist => format!("!{key}"),
        }
    });
    equal.chain(further).collect::<Vec<_>>().join(",")
}

/// Labels that the selector chooses, where it can be met.
fn labels_for(selector: &LabelSelector) -> BTreeMap<String, String> {
    let mut labels = selector.match_labels.clone();
    for requirement in &selector.match_expressions {
        let value = match requirement.operator {
            LabelOperator::In => requirement.values.first().cloned(),
            LabelOperator::Exists => Some(String::new()),
            LabelOperator::NotIn | LabelOperator::DoesNotExist => None,
        };
        if let Some(value) = value {
            labels.entry(requirement.key.clone()).or_insert(value);
        }
    }
    labels
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const MESSAGE: &str = "this kind is being moved by DatastoreMigration m: writes are refused";

    fn refusal(code: u16, reason: &str, message: &str) -> Said {
        let status = Status::failure(message, reason).with_code(code);
        verdict(&status, "exuvia-m-source", MESSAGE)
    }

    #[test]
    fn only_our_own_refusal_in_this_form_counts() {
        let denied = |policy: &str, message: &str| {
            format!(
                "widgets.old.example.com \"w\" is forbidden: ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {message}"
            )
        };
        let ours = denied("exuvia-m-source", MESSAGE);
        assert_eq!(refusal(403, "Forbidden", &ours), Said::Denies);
        for (code, reason, message) in [
            (422, "Invalid", ours.clone()),
            (403, "Forbidden", denied("exuvia-m-target", MESSAGE)),
            (403, "Forbidden", denied("exuvia-m-source", "this kind was moved")),
            (
                403,
                "Forbidden",
                "User \"exuvia\" cannot patch resource \"widgets\"".to_owned(),
            ),
            (422, "Invalid", "spec: Required value".to_owned()),
        ] {
            let said = refusal(code, reason, &message);
            assert!(matches!(said, Said::Unclear(_)), "{message}: {said:?}");
        }
    }

    #[test]
    fn a_stub_is_chosen_by_the_selector() {
        let selector: LabelSelector = serde_json::from_value(serde_json::json!({
            "matchLabels": {"app": "till"},
            "matchExpressions": [
                {"key": "tier", "operator": "In", "values": ["gold", "silver"]},
                {"key": "kept", "operator": "Exists"},
                {"key": "old", "operator": "DoesNotExist"},
                {"key": "zone", "operator": "NotIn", "values": ["b"]},
            ],
        }))
        .unwrap();
        let labels = labels_for(&selector);
        let labels: Vec<(&str, &str)> = labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(labels, [("app", "till"), ("kept", ""), ("tier", "gold")]);
        assert_eq!(
            as_query(&selector),
            "app=till,tier in (gold,silver),kept,!old,zone notin (b)"
        );
    }
}
