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

/// Reads an object by the generic rules of kstatus, in their order: deletion, `observedGeneration`, the first condition in
/// the list that is true and is `Reconciling` or `Stalled`, and at last `Ready`.
///
/// Where nothing of that is there, kstatus takes the object for current. So a new object without a status is current until a
/// controller has looked at it: who waits for it must also wait for `observedGeneration`.
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
    let conditions = object["status"]["conditions"].as_array();
    let all = || conditions.into_iter().flatten();
    let mut of_work = all().filter(|condition| condition["status"] == "True");
    let of_work = of_work.find_map(|condition| match condition["type"].as_str() {
        Some("Reconciling") => Some(Kstatus::InProgress),
        Some("Stalled") => Some(Kstatus::Failed),
        _ => None,
    });
    of_work.unwrap_or_else(|| {
        let ready = all().find(|condition| condition["type"] == "Ready");
        match ready.and_then(|ready| ready["status"].as_str()) {
            Some("False" | "Unknown") => Kstatus::InProgress,
            _ => Kstatus::Current,
        }
    })
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
    fn of_reconciling_and_stalled_the_first_that_is_true_counts_and_then_ready() {
        let (stalled, working, unready) = (("Stalled", "True"), ("Reconciling", "True"), ("Ready", "False"));
        assert_eq!(kstatus(&object(&[unready, stalled, working])), Kstatus::Failed);
        assert_eq!(
            kstatus(&object(&[unready, working, stalled])),
            Kstatus::InProgress
        );
        assert_eq!(
            kstatus(&object(&[("Reconciling", "False"), stalled])),
            Kstatus::Failed
        );
        assert_eq!(kstatus(&object(&[unready])), Kstatus::InProgress);
        assert_eq!(kstatus(&object(&[("Ready", "True")])), Kstatus::Current);
    }

    #[test]
    fn a_new_object_without_a_status_is_taken_for_current() {
        assert_eq!(kstatus(&json!({"metadata": {"generation": 1}})), Kstatus::Current);
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
