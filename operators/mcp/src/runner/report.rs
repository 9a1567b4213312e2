//! What the runner tells about its decisions: an event, a counter, and its part of the server's status.

use std::borrow::Cow;

use exuvia_rollout::{Action, Outcome};
use exuvia_runtime::{EventKind, Events, Metrics};
use exuvia_write::{Redacted, Writer};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client, ResourceExt};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::api::{MCPServer, RuntimeStatus};
use crate::controller::reference;

type Labels = [(&'static str, Cow<'static, str>); 1];

/// Tells about decisions. Whatever goes wrong is logged: to serve is more important.
pub(crate) struct Reporter {
    client: Client,
    writer: Writer,
    events: Events,
    pod: String,
    decisions: Family<Labels, Counter>,
}

impl Reporter {
    pub(crate) fn new(client: Client, writer: Writer, pod: String, metrics: &Metrics) -> Self {
        let decisions = Family::<Labels, Counter>::default();
        metrics.register(
            "exuvia_rollout_decisions",
            "What the gate decided, by decision",
            decisions.clone(),
        );
        Self {
            events: Events::new(client.clone(), writer.clone(), pod.clone()),
            client,
            writer,
            pod,
            decisions,
        }
    }

    /// Tells about a decision of a runner of `owner`. If another server has its name by now, that one gets the event only: its status is
    /// for its own runners.
    pub(crate) async fn report(&self, server: Option<&MCPServer>, owner: Option<&str>, outcome: &Outcome) {
        let decision = outcome.decision.action.as_str();
        self.decisions
            .get_or_create(&[("decision", decision.into())])
            .inc();
        let Some(server) = server else { return };
        if let Some(event) = outcome.event() {
            let kind = match event.kind {
                "Warning" => EventKind::Warning,
                _ => EventKind::Normal,
            };
            let about = reference(server);
            self.events
                .publish(&about, kind, event.reason, "Gate", Redacted::ours(event.message))
                .await;
        }
        if owner != server.metadata.uid.as_deref() {
            return;
        }
        let api: Api<MCPServer> =
            Api::namespaced(self.client.clone(), &server.namespace().unwrap_or_default());
        let written = self
            .writer
            .patch_status(&api, server, |server| {
                let status = server.status.get_or_insert_default();
                status.runtime = Some(runtime(status.runtime.take(), &self.pod, outcome));
            })
            .await;
        if let Err(error) = written {
            tracing::warn!(%error, "the gate's decision could not be reported");
        }
    }
}

/// The runner's part of the status. The time moves only if anything else does, so that a restart of a runner writes nothing.
fn runtime(before: Option<RuntimeStatus>, pod: &str, outcome: &Outcome) -> RuntimeStatus {
    // After an apply the stamp on the backend is ours, and a restart, which finds nothing to do, says the same.
    let (gate, theirs) = match outcome.decision.action {
        Action::Create | Action::Apply | Action::Nothing => ("admitted", &outcome.ours),
        action => (action.as_str(), &outcome.theirs),
    };
    let now = RuntimeStatus {
        pod: Some(pod.to_owned()),
        generation: Some(outcome.generation.value),
        gate: Some(gate.to_owned()),
        ours: outcome.ours.clone(),
        theirs: theirs.clone(),
        at: None,
    };
    let before = before.unwrap_or_default();
    let is_same = now
        == RuntimeStatus {
            at: None,
            ..before.clone()
        };
    if is_same {
        return before;
    }
    RuntimeStatus {
        at: Some(Timestamp::now().to_string()),
        ..now
    }
}
