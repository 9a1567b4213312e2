//! Step 5: what people see. What it is follows from the children (pure); it is written only where it changed.

use exuvia_write::{Redacted, Writer, conditions};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Api, Client, ResourceExt};

use super::Error;
use super::apply::Applied;
use super::dereference::Found;
use super::handshake::Handshake;
use super::rolled_out::{Compared, rolled_out};
use super::validate::Rejection;
use crate::api::{MCPServer, MCPServerStatus, Phase, ServerInfo, condition};

/// What is true of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) phase: Phase,
    pub(crate) message: String,
    pub(crate) url: Option<String>,
    pub(crate) ready_replicas: Option<i32>,
    pub(crate) epoch: Option<i64>,
    pub(crate) server_info: Option<ServerInfo>,
    /// Type, whether it is so, reason, message; without `Ready`, which follows from them.
    pub(crate) conditions: Vec<Fact>,
}

/// One condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fact {
    pub(crate) about: &'static str,
    pub(crate) holds: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Fact {
    pub(super) fn new(
        about: &'static str,
        holds: bool,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            about,
            holds,
            reason,
            message: message.into(),
        }
    }
}

/// How far the roll-out is. Pure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) available: Fact,
    pub(crate) rolled_out: Fact,
    pub(crate) ready_replicas: i32,
}

impl Applied {
    /// How far the roll-out is.
    pub(crate) fn progress(&self) -> Progress {
        let prepared = &self.prepared;
        let found = &prepared.accepted.found;
        progress(&Compared {
            token: &prepared.token,
            deployment: self.deployment.as_ref(),
            wanted: &prepared.backend,
            backend: found.backend.as_ref(),
            wanted_service: &prepared.headless,
            service: found.headless.as_ref(),
        })
    }
}

fn progress(compared: &Compared<'_>) -> Progress {
    let Serving {
        available,
        ready_replicas,
    } = Serving::from_children(compared.deployment, compared.backend);
    Progress {
        available,
        rolled_out: rolled_out(compared),
        ready_replicas,
    }
}

/// Whether clients are served, by what is there: it is so of a server that is not accepted, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Serving {
    available: Fact,
    /// Of the proxy.
    ready_replicas: i32,
}

impl Serving {
    pub(crate) fn new(found: &Found) -> Self {
        Self::from_children(found.deployment.as_ref(), found.backend.as_ref())
    }

    fn from_children(deployment: Option<&Deployment>, backend: Option<&StatefulSet>) -> Self {
        let ready_proxies = deployment
            .and_then(|deployment| deployment.status.as_ref()?.ready_replicas)
            .unwrap_or(0);
        let ready_backends = backend
            .and_then(|backend| backend.status.as_ref()?.ready_replicas)
            .unwrap_or(0);
        let (holds, reason, message) = match (ready_proxies, ready_backends) {
            (0, _) => (false, "NoProxy", "no proxy is ready"),
            (_, 0) => (false, "NoBackend", "no backend pod is ready"),
            _ => (true, "Serving", "clients are served"),
        };
        Self {
            available: Fact::new(condition::AVAILABLE, holds, reason, message),
            ready_replicas: ready_proxies,
        }
    }
}

/// What is true of a server whose children are as they should be. Pure.
pub(crate) fn verdict(applied: &Applied, handshake: &Handshake) -> Verdict {
    let accepted = &applied.prepared.accepted;
    let spec = &applied.server.spec;
    let progress = applied.progress();
    let (verified, info) = match handshake {
        Handshake::Done(info) => {
            let fact = Fact::new(
                condition::VERIFIED,
                true,
                "Handshake",
                "the server answered a handshake",
            );
            (fact, Some(info.clone()))
        }
        Handshake::NotTried => {
            let message = "not tried before the roll-out is done";
            (Fact::new(condition::VERIFIED, false, "NotTried", message), None)
        }
        Handshake::Failed(why) => (
            Fact::new(condition::VERIFIED, false, "HandshakeFailed", why.clone()),
            None,
        ),
    };
    let facts = vec![
        Fact::new(condition::ACCEPTED, true, "Valid", "the spec can be run"),
        progress.available.clone(),
        verified.clone(),
        progress.rolled_out.clone(),
    ];
    let failing = facts.iter().find(|fact| !fact.holds);
    let phase = match failing {
        None => Phase::Running,
        Some(fact) if fact.reason == "HandshakeFailed" => Phase::Failed,
        Some(_) if progress.ready_replicas == 0 => Phase::Pending,
        Some(_) => Phase::Progressing,
    };
    Verdict {
        phase,
        message: failing.map_or("all is well".to_owned(), |fact| fact.message.clone()),
        url: Some(format!(
            "http://{}.{}.svc:{}{}",
            accepted.name, accepted.namespace, spec.proxy_port, spec.path
        )),
        ready_replicas: Some(progress.ready_replicas),
        epoch: i64::try_from(applied.prepared.token.epoch).ok(),
        server_info: info,
        conditions: facts,
    }
}

/// What is true of a server that cannot be run: what runs already is left alone.
pub(crate) fn rejected(server: &MCPServer, rejection: &Rejection, serving: Serving) -> Verdict {
    let before = server.status.clone().unwrap_or_default();
    Verdict {
        phase: Phase::Failed,
        message: rejection.message.clone(),
        url: before.url,
        ready_replicas: Some(serving.ready_replicas),
        epoch: before.epoch,
        server_info: before.server_info,
        conditions: vec![
            Fact::new(
                condition::ACCEPTED,
                false,
                rejection.reason,
                rejection.message.clone(),
            ),
            serving.available,
            // What runs is of an earlier spec, or of none.
            Fact::new(
                condition::ROLLED_OUT,
                false,
                "NotAccepted",
                "the spec is not accepted, and so it was not rolled out",
            ),
        ],
    }
}

/// What the status says about whether the server is accepted.
pub(crate) fn accepted(server: &MCPServer) -> Option<&Condition> {
    let mut conditions = server.status.iter().flat_map(|status| &status.conditions);
    conditions.find(|fact| fact.type_ == condition::ACCEPTED)
}

/// Whether the status does not say this yet. Pure.
pub(crate) fn is_news(server: &MCPServer, rejection: &Rejection) -> bool {
    let said = accepted(server).filter(|fact| fact.status == "False");
    said.is_none_or(|fact| (fact.reason.as_str(), &fact.message) != (rejection.reason, &rejection.message))
}

/// Writes what changed. `runtime` is the runner's, and is left alone.
pub(crate) async fn update_status(
    client: &Client,
    writer: &Writer,
    server: &MCPServer,
    verdict: &Verdict,
) -> Result<(), Error> {
    let api: Api<MCPServer> = Api::namespaced(client.clone(), &server.namespace().unwrap_or_default());
    writer
        .patch_status(&api, server, |server| put(server, verdict))
        .await?;
    Ok(())
}

fn put(server: &mut MCPServer, verdict: &Verdict) {
    let about = server.clone();
    let status: &mut MCPServerStatus = server.status.get_or_insert_default();
    status.phase = Some(verdict.phase);
    status.message = Some(verdict.message.clone());
    status.observed_generation = about.metadata.generation;
    status.url.clone_from(&verdict.url);
    status.ready_replicas = verdict.ready_replicas;
    status.epoch = verdict.epoch;
    status.server_info.clone_from(&verdict.server_info);
    let set = |conditions: &mut Vec<_>, fact: &Fact| {
        let fact = conditions::new(
            &about,
            fact.about,
            fact.holds,
            fact.reason,
            Redacted::ours(&fact.message),
        );
        conditions::set(conditions, fact);
    };
    for fact in &verdict.conditions {
        set(&mut status.conditions, fact);
    }
    let failing = verdict.conditions.iter().find(|fact| !fact.holds);
    let ready = match failing {
        None => Fact::new(condition::READY, true, "AllWell", "all is well"),
        Some(fact) => Fact::new(condition::READY, false, fact.reason, fact.message.clone()),
    };
    set(&mut status.conditions, &ready);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rejection_is_news_until_the_status_says_it() {
        let rejection = |message: &str| Rejection {
            reason: "NoTools",
            message: message.to_owned(),
        };
        let mut server: MCPServer = serde_json::from_value(json!({
            "apiVersion": "mcp.exuvia.dev/v1beta1", "kind": "MCPServer", "metadata": {"name": "a"}, "spec": {"image": "i"},
        }))
        .unwrap();
        assert!(is_news(&server, &rejection("none")));
        let nothing_runs = Serving::from_children(None, None);
        let verdict = rejected(&server, &rejection("none"), nothing_runs);
        put(&mut server, &verdict);
        assert!(!is_news(&server, &rejection("none")));
        server.metadata.generation = Some(2);
        assert!(
            !is_news(&server, &rejection("none")),
            "another edit is not another cause"
        );
        assert!(is_news(&server, &rejection("others")));
        let mut status = server.status.take().unwrap();
        status.conditions[0].status = "True".to_owned();
        server.status = Some(status);
        assert!(is_news(&server, &rejection("none")), "it was accepted in between");
    }
}
