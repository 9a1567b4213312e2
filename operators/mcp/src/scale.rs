//! Replicas that nobody sets any more: they stay as they are.
//!
//! A field that an apply leaves out is removed if the applier was its only owner, and `replicas` then falls back to 1
//! (PITFALLS A44). So before that apply the live value is handed over to a second field manager, which keeps it.

use exuvia_rollout::HandOver;
use exuvia_write::{Apply, Error, Writer};
use kube::api::DynamicObject;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

/// The second field manager.
fn keeper(manager: &str) -> String {
    format!("{manager}-scale")
}

/// Keeps the live number of replicas, if the intent does not say one and `writer` had applied one before. The object as it is after that,
/// if anything was written.
pub(crate) async fn keep(
    writer: &Writer,
    api: &Api<DynamicObject>,
    live: &DynamicObject,
    intent: &Value,
) -> Result<Option<DynamicObject>, Error> {
    let Some(HandOver { manager, body }) = hand_over(live, intent, writer.field_manager()) else {
        return Ok(None);
    };
    let uid = live.uid().unwrap_or_default();
    let how = Apply::default()
        .force()
        .only_at(uid, live.resource_version().unwrap_or_default());
    writer.acting_as(manager).apply(api, &body, &how).await.map(Some)
}

/// The same for a gate, which carries it out under its own lock.
pub(crate) fn hand_over(live: &DynamicObject, intent: &Value, manager: &str) -> Option<HandOver> {
    let replicas = to_hand_over(live, intent, manager)?;
    Some(HandOver {
        manager: keeper(manager),
        body: json!({
            "apiVersion": intent["apiVersion"],
            "kind": intent["kind"],
            "metadata": {"name": live.name_any(), "namespace": live.namespace()},
            "spec": {"replicas": replicas},
        }),
    })
}

/// The live number, if our next apply would take it away.
fn to_hand_over(live: &DynamicObject, intent: &Value, manager: &str) -> Option<i64> {
    if !intent["spec"]["replicas"].is_null() {
        return None;
    }
    let live_replicas = live.data["spec"]["replicas"].as_i64()?;
    let owns = |name: &str| {
        live.managed_fields().iter().any(|entry| {
            let fields = entry.fields_v1.as_ref();
            entry.manager.as_deref() == Some(name)
                && entry.operation.as_deref() == Some("Apply")
                && fields.is_some_and(|fields| fields.0["f:spec"]["f:replicas"].is_object())
        })
    };
    (owns(manager) && !owns(&keeper(manager))).then_some(live_replicas)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn live(owners: &[&str]) -> DynamicObject {
        let entries: Vec<Value> = owners
            .iter()
            .map(|owner| {
                json!({"manager": owner, "operation": "Apply", "apiVersion": "apps/v1", "fieldsType": "FieldsV1",
                       "fieldsV1": {"f:spec": {"f:replicas": {}}}})
            })
            .collect();
        serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": {"name": "a", "managedFields": entries},
            "spec": {"replicas": 3},
        }))
        .unwrap()
    }

    #[test]
    fn replicas_are_handed_over_once_and_only_when_they_would_be_lost() {
        let silent = json!({"spec": {}});
        assert_eq!(to_hand_over(&live(&["me"]), &silent, "me"), Some(3));
        assert_eq!(
            to_hand_over(&live(&["me"]), &json!({"spec": {"replicas": 2}}), "me"),
            None
        );
        assert_eq!(to_hand_over(&live(&["other"]), &silent, "me"), None);
        assert_eq!(to_hand_over(&live(&["me", "me-scale"]), &silent, "me"), None);
    }
}
