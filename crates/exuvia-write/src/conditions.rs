//! Conditions: one entry per type, a transition time that moves only with the status.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use kube::Resource;
use serde_json::{Map, Value};

use crate::Redacted;

/// A condition about `object` as it is now: `observedGeneration` is the object's generation.
///
/// ```
/// use exuvia_write::conditions;
/// use k8s_openapi::api::core::v1::ConfigMap;
///
/// let mut object = ConfigMap::default();
/// object.metadata.generation = Some(3);
/// let ready = conditions::new(&object, "Ready", true, "AllWell", "every replica is up");
/// assert_eq!((ready.status.as_str(), ready.observed_generation), ("True", Some(3)));
/// ```
pub fn new(
    object: &impl Resource,
    type_: &str,
    status: impl Into<Truth>,
    reason: &str,
    message: impl Into<Redacted>,
) -> Condition {
    Condition {
        type_: type_.to_owned(),
        status: status.into().as_str().to_owned(),
        reason: reason.to_owned(),
        message: message.into().into_string(),
        observed_generation: object.meta().generation,
        last_transition_time: Time(Timestamp::now()),
    }
}

/// The three states that a condition can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    /// It is so.
    True,
    /// It is not so.
    False,
    /// It cannot be told.
    Unknown,
}

impl Truth {
    /// As it stands in a condition's `status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Truth {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

/// Puts a condition in its place in the list, by type; all others stay. Returns whether anything changed.
///
/// The transition time moves only if the status does.
///
/// ```
/// use exuvia_write::conditions;
/// use k8s_openapi::api::core::v1::ConfigMap;
///
/// let object = ConfigMap::default();
/// let mut list = vec![conditions::new(&object, "Synced", true, "Done", "")];
/// let ready = conditions::new(&object, "Ready", false, "Waiting", "");
/// assert!(conditions::set(&mut list, ready.clone()));
/// assert!(!conditions::set(&mut list, ready), "the same again changes nothing");
/// assert_eq!(list.len(), 2);
/// ```
pub fn set(conditions: &mut Vec<Condition>, mut condition: Condition) -> bool {
    if let Some(old) = conditions.iter_mut().find(|old| old.type_ == condition.type_) {
        if old.status == condition.status {
            condition.last_transition_time = old.last_transition_time.clone();
        }
        let changed = *old != condition;
        *old = condition;
        changed
    } else {
        conditions.push(condition);
        true
    }
}

/// [`set`] for an object without a Rust type: `status.conditions` of its JSON. Members of a condition that
/// `Condition` does not know stay.
///
/// ```
/// use exuvia_write::conditions;
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use serde_json::json;
///
/// let mut data = json!({"status": {"conditions": [{"type": "Synced", "status": "True", "mine": 1}]}});
/// let ready = conditions::new(&ConfigMap::default(), "Ready", true, "AllWell", "");
/// assert!(conditions::set_in(&mut data, &ready));
/// assert_eq!(data["status"]["conditions"][0]["mine"], 1);
/// assert_eq!(data["status"]["conditions"][1]["type"], "Ready");
/// ```
pub fn set_in(data: &mut Value, condition: &Condition) -> bool {
    let Ok(Value::Object(mut wanted)) = serde_json::to_value(condition) else {
        return false;
    };
    let Some(list) = object(data)
        .and_then(|data| object(data.entry("status").or_insert(Value::Null)))
        .and_then(|status| {
            status
                .entry("conditions")
                .or_insert_with(|| Value::Array(vec![]))
                .as_array_mut()
        })
    else {
        return false;
    };
    if let Some(old) = list
        .iter_mut()
        .find(|old| old["type"] == condition.type_.as_str())
        .and_then(Value::as_object_mut)
    {
        if old
            .get("status")
            .is_some_and(|status| *status == condition.status.as_str())
            && old.contains_key("lastTransitionTime")
        {
            wanted.remove("lastTransitionTime");
        }
        let changed = wanted.iter().any(|(key, value)| old.get(key) != Some(value));
        old.extend(wanted);
        changed
    } else {
        list.push(Value::Object(wanted));
        true
    }
}

/// The members of a JSON object, which is made where there is nothing yet.
fn object(value: &mut Value) -> Option<&mut Map<String, Value>> {
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut()
}

/// Takes the condition of that type out of the list. Returns whether there was one.
///
/// ```
/// use exuvia_write::conditions;
/// use k8s_openapi::api::core::v1::ConfigMap;
///
/// let mut list = vec![conditions::new(&ConfigMap::default(), "Ready", true, "AllWell", "")];
/// assert!(conditions::remove(&mut list, "Ready"));
/// assert!(!conditions::remove(&mut list, "Ready"));
/// ```
pub fn remove(conditions: &mut Vec<Condition>, type_: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|condition| condition.type_ != type_);
    conditions.len() != before
}

/// Gives each condition of `after` whose status is as it was in `before` its old transition time back.
///
/// So that a controller which builds its status from scratch neither moves the times nor writes on every reconcile.
pub(crate) fn keep_transition_times(before: &Value, after: &mut Value) {
    let Some(old) = before.pointer("/status/conditions").and_then(Value::as_array) else {
        return;
    };
    let Some(new) = after
        .pointer_mut("/status/conditions")
        .and_then(Value::as_array_mut)
    else {
        return;
    };
    for condition in new.iter_mut().filter(|condition| condition["type"].is_string()) {
        let twin = old
            .iter()
            .find(|twin| twin["type"] == condition["type"] && twin["status"] == condition["status"])
            .and_then(|twin| twin.get("lastTransitionTime"));
        if let (Some(time), Some(place)) = (twin, condition.get_mut("lastTransitionTime")) {
            place.clone_from(time);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    fn at(status: bool, reason: &str, second: i64) -> Condition {
        let mut condition = new(&ConfigMap::default(), "Ready", status, reason, "");
        condition.last_transition_time = Time(Timestamp::from_second(second).unwrap());
        condition
    }

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let mut list = vec![at(true, "A", 10)];
        assert!(set(&mut list, at(true, "B", 20)));
        assert_eq!(list[0], at(true, "B", 10));
        assert!(set(&mut list, at(false, "B", 30)));
        assert_eq!(list[0], at(false, "B", 30));
        assert!(!set(&mut list, at(false, "B", 40)));
    }

    #[test]
    fn an_observed_generation_that_moves_is_a_change() {
        let mut list = vec![at(true, "A", 10)];
        let mut newer = at(true, "A", 10);
        newer.observed_generation = Some(2);
        assert!(set(&mut list, newer));
    }

    #[test]
    fn conditions_of_untyped_objects_follow_the_same_rules() {
        let mut data = json!({"spec": {}});
        assert!(set_in(&mut data, &at(true, "A", 10)));
        assert!(!set_in(&mut data, &at(true, "A", 20)));
        assert!(set_in(&mut data, &at(true, "B", 20)));
        assert_eq!(
            data["status"]["conditions"][0]["lastTransitionTime"],
            "1970-01-01T00:00:10Z"
        );
        assert!(set_in(&mut data, &at(false, "B", 30)));
        assert_eq!(
            data["status"]["conditions"][0]["lastTransitionTime"],
            "1970-01-01T00:00:30Z"
        );
    }

    #[test]
    fn a_status_that_is_not_an_object_is_left_alone() {
        for odd in [
            json!({"status": {"conditions": "none"}}),
            json!({"status": []}),
            json!("text"),
        ] {
            let mut data = odd.clone();
            assert!(!set_in(&mut data, &at(true, "A", 1)));
            assert_eq!(data, odd);
        }
        let mut nothing = Value::Null;
        assert!(set_in(&mut nothing, &at(true, "A", 1)));
    }

    #[test]
    fn a_status_built_from_scratch_keeps_its_times() {
        let before = json!({"status": {"conditions": [
            {"type": "A", "status": "True", "lastTransitionTime": "t1"},
            {"type": "B", "status": "True", "lastTransitionTime": "t1"}]}});
        let mut after = json!({"status": {"conditions": [
            {"type": "B", "status": "False", "lastTransitionTime": "t2"},
            {"type": "A", "status": "True", "lastTransitionTime": "t2"},
            {"type": "C", "status": "True", "lastTransitionTime": "t2"}]}});
        keep_transition_times(&before, &mut after);
        let times: Vec<&Value> = after["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|condition| &condition["lastTransitionTime"])
            .collect();
        assert_eq!(times, ["t2", "t1", "t2"]);
    }
}
