//! Step 5: what people see. What it is follows from the children (pure); it is written only where it changed.

use exuvia_rollout::{FoundStamps, Names, Token};
use exuvia_write::{Redacted, Writer, conditions};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use kube::{Api, Client, ResourceExt};

use super::Error;
use super::apply::Applied;
use super::handshake::Handshake;
use super::validate::Rejection;
use crate::api::{MCPServer, MCPServerStatus, Phase, ServerInfo, condition};
use crate::workload;

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
    fn new(about: &'static str, holds: bool, reason: &'static str, message: impl Into<String>) -> Self {
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
        let found = &self.prepared.accepted.found;
        progress(
            self.deployment.as_ref(),
            found.backend.as_ref(),
            &self.prepared.token,
        )
    }
}

fn progress(deployment: Option<&Deployment>, backend: Option<&StatefulSet>, token: &Token) -> Progress {
    let proxy_status = deployment.and_then(|deployment| deployment.status.as_ref());
    let ready_proxies = proxy_status.and_then(|status| status.ready_replicas).unwrap_or(0);
    let ready_backends = backend
        .and_then(|backend| backend.status.as_ref()?.ready_replicas)
        .unwrap_or(0);
    let available = match (ready_proxies, ready_backends) {
        (0, _) => Fact::new(condition::AVAILABLE, false, "NoProxy", "no proxy is ready"),
        (_, 0) => Fact::new(
            condition::AVAILABLE,
            false,
            "NoBackend",
            "no backend pod is ready",
        ),
        _ => Fact::new(condition::AVAILABLE, true, "Serving", "clients are served"),
    };
    let not_yet = |reason, message: String| Fact::new(condition::ROLLED_OUT, false, reason, message);
    let stamped = backend.and_then(|backend| {
        let value = serde_json::to_value(backend).ok()?;
        let stamps = FoundStamps::of_object(&value, &Names::default());
        stamps.token.found().cloned()
    });
    let rolled_out = if !deployment.is_some_and(workload::is_deployment_rolled_out) {
        not_yet("ProxyRollingOut", "not every proxy is new and ready".to_owned())
    } else if let Some(ahead) = stamped.as_ref().filter(|stamped| is_ahead(stamped, token)) {
        not_yet(
            "BackendAhead",
            format!(
                "the backend has the stamp {ahead}, which the operator did not issue: runners of {token} leave it alone; \
                 delete the StatefulSet, and a runner makes it again"
            ),
        )
    } else if stamped.as_ref() != Some(token) {
        not_yet(
            "BackendNotApplied",
            format!("the backend does not have the stamp {token}"),
        )
    } else if !backend.is_some_and(workload::is_stateful_set_ready) {
        not_yet(
            "BackendRollingOut",
            "not every backend pod is new and ready".to_owned(),
        )
    } else {
        Fact::new(
            condition::ROLLED_OUT,
            true,
            "Done",
            "proxy and backend are as the spec says",
        )
    };
    Progress {
        available,
        rolled_out,
        ready_replicas: ready_proxies,
    }
}

/// Whether the stamp says a later roll-out than the last one.
fn is_ahead(stamped: &Token, last: &Token) -> bool {
    stamped.uid == last.uid && stamped.epoch > last.epoch
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
pub(crate) fn rejected(server: &MCPServer, rejection: &Rejection) -> Verdict {
    let before = server.status.clone().unwrap_or_default();
    Verdict {
        phase: Phase::Failed,
        message: rejection.message.clone(),
        url: before.url,
        ready_replicas: before.ready_replicas,
        epoch: before.epoch,
        server_info: before.server_info,
        conditions: vec![Fact::new(
            condition::ACCEPTED,
            false,
            rejection.reason,
            rejection.message.clone(),
        )],
    }
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
