//! What the runner tells about its decisions: an event, a counter, and its part of the server's status.

use std::borrow::Cow;
use std::convert::Infallible;
use std::time::Duration;

use exuvia_rollout::{Action, Outcome};
use exuvia_runtime::{EventKind, Events, Metrics};
use exuvia_write::{Redacted, Writer};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client, ResourceExt};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tokio::sync::{Mutex, Notify};

use crate::api::{MCPServer, RuntimeStatus};
use crate::controller::reference;

type Labels = [(&'static str, Cow<'static, str>); 1];

/// The pause before a decision that could not be written into the status is written again; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Tells about decisions. Whatever goes wrong is logged: to serve is more important.
pub(crate) struct Reporter {
    client: Client,
    writer: Writer,
    events: Events,
    pod: String,
    decisions: Family<Labels, Counter>,
    /// The last decision, if it is not in the status. Held while one is written, so that an older one never comes last.
    untold: Mutex<Option<Told>>,
    has_untold: Notify,
}

/// A decision on its way into the status.
#[derive(Clone)]
struct Told {
    namespace: String,
    name: String,
    owner: Option<String>,
    runtime: RuntimeStatus,
    /// Whether the gate wrote something. What was found as it should be is not worth a write.
    is_write: bool,
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
            untold: Mutex::default(),
            has_untold: Notify::new(),
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
        let told = Told {
            namespace: server.namespace().unwrap_or_default(),
            name: server.name_any(),
            owner: server.uid(),
            runtime: runtime(&self.pod, outcome),
            is_write: is_write(outcome.decision.action),
        };
        let mut untold = self.untold.lock().await;
        *untold = None; // this one is newer
        if let Err(error) = self.write(&told).await {
            tracing::warn!(error, "the gate's decision could not be reported; trying again");
            *untold = Some(told);
            self.has_untold.notify_one();
        }
    }

    /// Writes the last decision again and again, while it could not be written. Otherwise the status would be that of the decision
    /// before, until the next one, which may never come.
    pub(crate) async fn repeat(&self) -> Infallible {
        loop {
            self.has_untold.notified().await;
            let mut pause = FIRST_PAUSE;
            loop {
                tokio::time::sleep(pause).await;
                let mut untold = self.untold.lock().await;
                let Some(told) = untold.clone() else { break };
                match self.write(&told).await {
                    Ok(()) => {
                        *untold = None;
                        tracing::info!("the gate's decision is reported");
                        break;
                    }
                    Err(error) => tracing::debug!(error, "the gate's decision could not be reported"),
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    async fn write(&self, told: &Told) -> Result<(), String> {
        let api: Api<MCPServer> = Api::namespaced(self.client.clone(), &told.namespace);
        // Read now: the gate may have waited for minutes, and another runner may have written meanwhile.
        let found = api.get_opt(&told.name).await;
        let found = found.map_err(|error| exuvia_write::brief(&error))?;
        // Gone, or another one of its name: nobody is left to tell.
        let Some(mut server) = found.filter(|server| server.uid() == told.owner) else {
            return Ok(());
        };
        let status = server.status.get_or_insert_default();
        if !is_news(status.runtime.as_ref(), told) {
            return Ok(());
        }
        // Every field is sent: of two runners that write at once, the status is one's or the other's, and never a bit of each.
        status.runtime = Some(every_field());
        let change = |server: &mut MCPServer| {
            server.status.get_or_insert_default().runtime = Some(told.runtime.clone());
        };
        let written = self.writer.patch_status(&api, &server, change).await;
        let said = |error| Redacted::from_error(&error).into_string();
        written.map(|_| ()).map_err(said)
    }
}

/// Something in each field that no decision has, so that a change to any decision is a change of every field.
fn every_field() -> RuntimeStatus {
    let nothing = || Some(String::new());
    RuntimeStatus {
        pod: nothing(),
        generation: Some(i64::MIN),
        gate: nothing(),
        ours: nothing(),
        theirs: nothing(),
        at: nothing(),
    }
}

fn is_write(action: Action) -> bool {
    matches!(action, Action::Create | Action::Apply | Action::ApplyUnstamped)
}

/// Whether a decision is to be written: it says something else than the status, or something was done at another time. A restart of a
/// runner, which finds all as it should be, writes nothing.
fn is_news(before: Option<&RuntimeStatus>, told: &Told) -> bool {
    let Some(before) = before else { return true };
    let timeless = |runtime: &RuntimeStatus| RuntimeStatus {
        at: None,
        ..runtime.clone()
    };
    told.is_write || timeless(before) != timeless(&told.runtime)
}

/// The runner's part of the status.
fn runtime(pod: &str, outcome: &Outcome) -> RuntimeStatus {
    // After an apply the stamp on the backend is ours, and a restart, which finds nothing to do, says the same.
    let (gate, theirs) = match outcome.decision.action {
        Action::Create | Action::Apply | Action::Nothing => ("admitted", &outcome.ours),
        action => (action.as_str(), &outcome.theirs),
    };
    RuntimeStatus {
        pod: Some(pod.to_owned()),
        generation: Some(outcome.generation.value),
        gate: Some(gate.to_owned()),
        ours: outcome.ours.clone(),
        theirs: theirs.clone(),
        at: Some(Timestamp::now().to_string()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use exuvia_rollout::{Decision, Generation};
    use serde_json::json;

    use super::*;

    fn told(action: Action, theirs: Option<&str>) -> Told {
        let outcome = Outcome {
            decision: Decision::new(1, action),
            ours: Some("u/2".to_owned()),
            theirs: theirs.map(str::to_owned),
            generation: Generation::choose(None, Some(1)),
            object: None,
            rounds: 1,
        };
        Told {
            namespace: "ns".to_owned(),
            name: "a".to_owned(),
            owner: Some("u".to_owned()),
            runtime: runtime("p", &outcome),
            is_write: is_write(action),
        }
    }

    #[test]
    fn a_second_apply_is_news_and_a_restart_that_finds_nothing_to_do_is_not() {
        let created = told(Action::Create, None);
        assert!(is_news(None, &created));
        let before = Some(&created.runtime);
        for (action, theirs, expected) in [
            (Action::Nothing, Some("u/2"), false),
            (Action::Apply, Some("u/2"), true),
            (Action::Create, None, true),
            (Action::SkipStale, Some("u/3"), true),
        ] {
            assert_eq!(is_news(before, &told(action, theirs)), expected, "{action:?}");
        }
        let skipped = told(Action::SkipStale, Some("u/3"));
        assert!(!is_news(
            Some(&skipped.runtime),
            &told(Action::SkipStale, Some("u/3"))
        ));
        let mut of_another = created.runtime.clone();
        of_another.pod = Some("q".to_owned());
        assert!(is_news(Some(&of_another), &told(Action::Nothing, Some("u/2"))));
    }

    #[test]
    fn every_field_is_sent_also_one_that_goes() {
        let mut refused = told(Action::RefuseUnversioned, None).runtime;
        refused.ours = None;
        let sent = exuvia_write::diff(&json!(every_field()), &json!(refused))
            .unwrap()
            .unwrap();
        let fields: Vec<_> = sent.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields, ["at", "gate", "generation", "ours", "pod", "theirs"]);
        assert!(sent["ours"].is_null() && sent["theirs"].is_null(), "{sent}");
    }
}
