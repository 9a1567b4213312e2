//! Whether what runs is what the current spec asks for. Pure.

use exuvia_rollout::names::FIELD_MANAGER;
use exuvia_rollout::{FoundStamps, Intent, Names, Token};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Service;
use serde::Serialize;

use super::update_status::Fact;
use crate::api::condition;
use crate::workload;

/// So many differences are named.
const MAX_NAMED: usize = 3;

/// What is asked for, and what is there.
pub(crate) struct Compared<'a> {
    /// The stamp of this roll-out, of the server as it lives.
    pub(crate) token: &'a Token,
    /// The Deployment of the proxy, after our own writes.
    pub(crate) deployment: Option<&'a Deployment>,
    /// The backend that the current spec asks for.
    pub(crate) wanted: &'a Intent,
    pub(crate) backend: Option<&'a StatefulSet>,
    /// Its headless Service.
    pub(crate) wanted_service: &'a Intent,
    pub(crate) service: Option<&'a Service>,
}

/// The condition `RolledOut`: true only if nothing differs, otherwise it says the first thing that does.
pub(crate) fn rolled_out(compared: &Compared<'_>) -> Fact {
    let fact = |holds, reason, message| Fact::new(condition::ROLLED_OUT, holds, reason, message);
    match difference(compared) {
        Some((reason, message)) => fact(false, reason, message),
        None => fact(true, "Done", "proxy and backend are as the spec says".to_owned()),
    }
}

fn difference(compared: &Compared<'_>) -> Option<(&'static str, String)> {
    let token = compared.token;
    if !compared
        .deployment
        .is_some_and(workload::is_deployment_rolled_out)
    {
        return Some(("ProxyRollingOut", "not every proxy is new and ready".to_owned()));
    }
    let Some(backend) = compared.backend else {
        return Some((
            "BackendNotApplied",
            "no runner has made the backend yet".to_owned(),
        ));
    };
    if backend.metadata.deletion_timestamp.is_some() {
        return Some(("BackendNotApplied", "the backend is being deleted".to_owned()));
    }
    match stamp(backend) {
        Some(ahead) if is_ahead(&ahead, token) => {
            let message = format!(
                "the backend has the stamp {ahead}, which the operator did not issue: runners of {token} leave it alone; \
                 delete the StatefulSet, and a runner makes it again"
            );
            return Some(("BackendAhead", message));
        }
        Some(stamp) if stamp == *token => {}
        Some(other) => {
            let message = format!("the backend has the stamp {other}: expected {token}");
            return Some(("BackendNotApplied", message));
        }
        None => {
            let message = format!("the backend does not have the stamp {token}");
            return Some(("BackendNotApplied", message));
        }
    }
    // The stamp says who applied it, and not what became of it since.
    if let Some(message) = drift("the backend", compared.wanted, Some(backend)) {
        return Some(("BackendDiffers", message));
    }
    let service = "the headless Service of the backend";
    if let Some(message) = drift(service, compared.wanted_service, compared.service) {
        return Some(("BackendDiffers", message));
    }
    if !workload::is_stateful_set_ready(backend) {
        return Some(("BackendRollingOut", workload::describe(backend)));
    }
    None
}

fn stamp(backend: &StatefulSet) -> Option<Token> {
    let value = serde_json::to_value(backend).ok()?;
    let stamps = FoundStamps::of_object(&value, &Names::default());
    stamps.token.found().cloned()
}

/// Whether the stamp says a later roll-out than the last one.
pub(crate) fn is_ahead(stamped: &Token, last: &Token) -> bool {
    stamped.uid == last.uid && stamped.epoch > last.epoch
}

/// What differs from the intent, in words without values.
fn drift(what: &str, wanted: &Intent, live: Option<&impl Serialize>) -> Option<String> {
    let Some(live) = live else {
        return Some(format!("{what} is not there"));
    };
    let live = serde_json::to_value(live).unwrap_or_default();
    let drift = wanted.drift(&live, FIELD_MANAGER, &Names::default());
    if !drift.edits.is_empty() {
        let named: Vec<String> = drift
            .edits
            .iter()
            .take(MAX_NAMED)
            .map(ToString::to_string)
            .collect();
        let more = match drift.edits.len() - named.len() {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        return Some(format!(
            "{what} is not as the spec says: {}{more}",
            named.join(", ")
        ));
    }
    drift.other_intent.then(|| {
        format!("{what} was applied from something else than the spec: is the runner of another version than the operator?")
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use exuvia_rollout::Stamps;
    use serde_json::{Value, json};

    use super::*;

    /// What is there, as it should be.
    struct There {
        wanted: Intent,
        deployment: Value,
        backend: Value,
        service: Value,
    }

    fn live(intent: &Intent, token: &str, more: &Value) -> Value {
        let stamps = Stamps {
            token: token.parse().ok(),
            ..Stamps::default()
        };
        let mut live = intent.stamped(&stamps, &Names::default());
        live["metadata"]["managedFields"] = json!([{
            "manager": "mcp-runner", "operation": "Apply", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:replicas": {}, "f:type": {}}},
        }]);
        for (key, value) in more.as_object().unwrap() {
            live[key] = value.clone();
        }
        live
    }

    fn service_intent() -> Intent {
        let body = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a-backend"}, "spec": {"type": "ClusterIP"}});
        Intent::new(&body).unwrap()
    }

    fn there() -> There {
        let wanted = Intent::new(&json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "a-backend"}, "spec": {"replicas": 2},
        }))
        .unwrap();
        let counts = |count: i32| json!({"observedGeneration": 1, "replicas": count, "updatedReplicas": count, "readyReplicas": count});
        let mut backend = live(&wanted, "u/3", &json!({"status": counts(2)}));
        backend["spec"] = json!({"replicas": 2, "selector": {}, "serviceName": "", "template": {}});
        backend["metadata"]["generation"] = json!(1);
        There {
            wanted,
            deployment: json!({"metadata": {"generation": 1}, "spec": {"replicas": 1, "selector": {}, "template": {}}, "status": counts(1)}),
            backend,
            service: live(&service_intent(), "u/3", &json!({})),
        }
    }

    fn judged(there: &There) -> (bool, &'static str, String) {
        let backend = serde_json::from_value(there.backend.clone()).unwrap();
        let deployment = serde_json::from_value(there.deployment.clone()).unwrap();
        let service: Option<Service> = serde_json::from_value(there.service.clone()).unwrap();
        let fact = rolled_out(&Compared {
            token: &"u/3".parse().unwrap(),
            deployment: Some(&deployment),
            wanted: &there.wanted,
            backend: Some(&backend),
            wanted_service: &service_intent(),
            service: service.as_ref(),
        });
        (fact.holds, fact.reason, fact.message)
    }

    type Change<'a> = &'a dyn Fn(&mut There);

    /// Everything that can differ, one at a time.
    #[test]
    fn it_is_rolled_out_only_if_nothing_differs() {
        let (holds, reason, _) = judged(&there());
        assert_eq!((holds, reason), (true, "Done"));
        let fence = exuvia_rollout::names::FENCE_ANNOTATION;
        let changes: [(Change<'_>, &str, &str); 11] = [
            (
                &|there| there.deployment["status"]["updatedReplicas"] = json!(0),
                "ProxyRollingOut",
                "",
            ),
            (
                &|there| there.backend["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
                "BackendNotApplied",
                "being deleted",
            ),
            (
                &|there| there.backend["metadata"]["annotations"][fence] = json!("u/4"),
                "BackendAhead",
                "u/4",
            ),
            (
                &|there| there.backend["metadata"]["annotations"][fence] = json!("u/2"),
                "BackendNotApplied",
                "u/2",
            ),
            // An owner of the same name that was deleted.
            (
                &|there| there.backend["metadata"]["annotations"][fence] = json!("v/3"),
                "BackendNotApplied",
                "v/3",
            ),
            (
                &|there| there.backend["metadata"]["annotations"] = json!({}),
                "BackendNotApplied",
                "does not have",
            ),
            (
                &|there| there.backend["spec"]["replicas"] = json!(1),
                "BackendDiffers",
                "spec.replicas has another value",
            ),
            (
                &|there| there.backend["metadata"]["managedFields"] = json!([]),
                "BackendDiffers",
                "spec is not ours any more",
            ),
            (
                &|there| there.service = Value::Null,
                "BackendDiffers",
                "not there",
            ),
            (
                &|there| there.backend["metadata"]["generation"] = json!(2),
                "BackendRollingOut",
                "generation 2",
            ),
            (
                &|there| there.backend["status"]["readyReplicas"] = json!(1),
                "BackendRollingOut",
                "2 new, 1 ready",
            ),
        ];
        for (change, expected, words) in changes {
            let mut there = there();
            change(&mut there);
            let (holds, reason, message) = judged(&there);
            assert_eq!((holds, reason), (false, expected), "{message}");
            assert!(message.contains(words), "{message}");
        }
        let mut there = there();
        there.wanted = Intent::new(&json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "a-backend"}, "spec": {},
        }))
        .unwrap();
        assert_eq!(judged(&there).1, "BackendDiffers", "applied from another intent");
    }
}
