//! How kstatus, and with it Flux, Argo CD and `kubectl` plugins, read the status of a custom resource.

use serde_json::Value;

/// What kstatus makes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kstatus {
    /// It is as its spec wants it.
    Current,
    /// Somebody works on it.
    InProgress,
    /// It does not get there by itself.
    Failed,
    /// It is being deleted.
    Terminating,
}

/// Reads an object by the rules of kstatus, in their order.
///
/// ```
/// use exuvia_testenv::kstatus::{Kstatus, kstatus};
/// use serde_json::json;
///
/// let stale = json!({"metadata": {"generation": 2}, "status": {"observedGeneration": 1}});
/// assert_eq!(kstatus(&stale), Kstatus::InProgress);
/// ```
pub fn kstatus(object: &Value) -> Kstatus {
    if object["metadata"].get("deletionTimestamp").is_some() {
        return Kstatus::Terminating;
    }
    let (generation, observed) = (
        &object["metadata"]["generation"],
        &object["status"]["observedGeneration"],
    );
    if !observed.is_null() && observed != generation {
        return Kstatus::InProgress;
    }
    let is = |wanted: &str, truth: &str| {
        let conditions = object["status"]["conditions"].as_array();
        conditions
            .into_iter()
            .flatten()
            .any(|condition| condition["type"] == wanted && condition["status"] == truth)
    };
    match () {
        () if is("Stalled", "True") => Kstatus::Failed,
        () if is("Reconciling", "True") => Kstatus::InProgress,
        () if is("Ready", "False") || is("Ready", "Unknown") => Kstatus::InProgress,
        () => Kstatus::Current,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(conditions: &[(&str, &str)]) -> Value {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(type_, status)| json!({"type": type_, "status": status}))
            .collect();
        json!({
            "metadata": {"generation": 3},
            "status": {"observedGeneration": 3, "conditions": conditions},
        })
    }

    #[test]
    fn a_stall_is_a_failure_whatever_else_is_said() {
        let all = [("Stalled", "True"), ("Reconciling", "True"), ("Ready", "False")];
        assert_eq!(kstatus(&object(&all)), Kstatus::Failed);
        assert_eq!(kstatus(&object(&all[1..])), Kstatus::InProgress);
        assert_eq!(kstatus(&object(&all[2..])), Kstatus::InProgress);
        assert_eq!(kstatus(&object(&[("Ready", "True")])), Kstatus::Current);
        assert_eq!(kstatus(&json!({})), Kstatus::Current);
    }

    #[test]
    fn what_is_deleted_is_terminating_and_what_is_not_observed_is_in_progress() {
        let mut one = object(&[("Stalled", "True")]);
        one["metadata"]["generation"] = json!(4);
        assert_eq!(kstatus(&one), Kstatus::InProgress);
        one["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(kstatus(&one), Kstatus::Terminating);
    }
}
