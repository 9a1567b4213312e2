//! `cutover.waitFor`: whether objects are as the spec wants them before the migration is complete.

use std::collections::BTreeMap;
use std::sync::Arc;

use exuvia_api::{DatastoreMigration, LabelOperator, LabelSelector, WaitFor};
use exuvia_sweep::Pages;
use exuvia_write::{Name, Redacted, redacted};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::discovery::Scope;
use kube::{Api, Client};
use serde_json::Value;

use crate::Error;
use crate::mapping::Mappings;

/// What is not yet as it should be, in a sentence; `None`: everything is.
pub(crate) async fn look(
    client: &Client,
    mappings: &Mappings,
    migration: &DatastoreMigration,
) -> Result<Option<Redacted>, Error> {
    for (index, wait) in migration.spec.cutover.wait_for.iter().enumerate() {
        if let Some(why) = look_at(client, mappings, index, wait).await? {
            return Ok(Some(why));
        }
    }
    Ok(None)
}

async fn look_at(
    client: &Client,
    mappings: &Mappings,
    index: usize,
    wait: &WaitFor,
) -> Result<Option<Redacted>, Error> {
    let kind = GroupVersionKind::gvk(&wait.group, &wait.version, &wait.kind);
    let Some((resource, namespaced)) = find(client, &kind).await? else {
        let missing = redacted!(
            "kind {} in version {} is not served",
            Name(&wait.kind),
            Name(&wait.version)
        );
        return Ok(Some(missing).filter(|_| !wait.optional));
    };
    let api: Api<DynamicObject> = match wait.namespace.as_str() {
        namespace if namespaced && !namespace.is_empty() => {
            Api::namespaced_with(client.clone(), namespace, &resource)
        }
        _ => Api::all_with(client.clone(), &resource),
    };
    let mut which = ListParams::default();
    if !wait.selector.is_empty() {
        which = which.labels(&label_selector(&wait.selector));
    }
    if !wait.name.is_empty() {
        which = which.fields(&format!("metadata.name={}", wait.name));
    }
    let (mut pages, mut found) = (Pages::of(&api).select(&which), 0);
    while let Some(page) = pages.next().await? {
        for item in &page.items {
            let object: DynamicObject = item.read().map_err(kube::Error::SerdeError)?;
            found += 1;
            if let Some(why) = why_not(mappings, index, wait, &object).await? {
                return Ok(Some(why));
            }
        }
    }
    let is_missing = found == 0 && !wait.optional;
    Ok(is_missing.then(|| redacted!("no {} was found as cutover.waitFor names it", Name(&wait.kind))))
}

/// Why an object is not as it should be.
async fn why_not(
    mappings: &Mappings,
    index: usize,
    wait: &WaitFor,
    object: &DynamicObject,
) -> Result<Option<Redacted>, Error> {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    let who = redacted!("{} {} {}", Name(&wait.kind), Name(namespace), Name(name));
    let mut value = serde_json::to_value(object).unwrap_or_default();
    // Lists of built-in kinds leave it out of their items, and a roll-out is not the same for every kind.
    value["kind"] = wait.kind.as_str().into();
    if wait.rollout
        && let Some(why) = rollout_lacks(&value)
    {
        return Ok(Some(redacted!("{}: {}", who, Name(why))));
    }
    if let Some(key) = env_lacks(&value, &wait.env) {
        return Ok(Some(redacted!(
            "{}: no container has the wanted value of {}",
            who,
            Name(key)
        )));
    }
    if let Some(condition) = mappings.wait_for(index) {
        return Ok(match condition.is_true_async(Arc::new(value)).await {
            Ok(true) => None,
            Ok(false) => Some(redacted!("{}: the condition in `when` is not true", who)),
            Err(error) => Some(redacted!("{}: {}", who, error.redacted())),
        });
    }
    Ok(None)
}

/// What a roll-out lacks, as `kubectl rollout status` sees it.
fn rollout_lacks(object: &Value) -> Option<&'static str> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let number = |value: &Value| value.as_i64().unwrap_or_default();
    if number(&status["observedGeneration"]) < number(&object["metadata"]["generation"]) {
        return Some("its controller has not seen the newest spec yet");
    }
    let daemon_set = object["kind"] == "DaemonSet";
    let (wanted, updated, ready) = if daemon_set {
        (
            number(&status["desiredNumberScheduled"]),
            number(&status["updatedNumberScheduled"]),
            number(&status["numberAvailable"]),
        )
    } else {
        (
            spec["replicas"].as_i64().unwrap_or(1),
            number(&status["updatedReplicas"]),
            number(&status["availableReplicas"]).max(if object["kind"] == "StatefulSet" {
                number(&status["readyReplicas"])
            } else {
                0
            }),
        )
    };
    if updated < wanted {
        return Some("not every pod is updated yet");
    }
    if ready < wanted {
        return Some("not every updated pod is available yet");
    }
    if !daemon_set && number(&status["replicas"]) > updated {
        return Some("old pods are still there");
    }
    None
}

/// The first variable that no container of the pod template has with this value.
fn env_lacks<'a>(object: &Value, env: &'a BTreeMap<String, String>) -> Option<&'a str> {
    let containers = &object["spec"]["template"]["spec"]["containers"];
    let has = |key: &str, wanted: &str| {
        let variables = containers.as_array().into_iter().flatten();
        let mut variables = variables.flat_map(|container| container["env"].as_array().into_iter().flatten());
        variables.any(|variable| variable["name"] == key && variable["value"] == wanted)
    };
    env.iter()
        .find(|(key, wanted)| !has(key, wanted))
        .map(|(key, _)| key.as_str())
}

/// A selector as lists take it.
pub(crate) fn label_selector(selector: &LabelSelector) -> String {
    let labels = selector
        .match_labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().map(|requirement| {
        let (key, values) = (&requirement.key, requirement.values.join(","));
        match requirement.operator {
            LabelOperator::In => format!("{key} in ({values})"),
            LabelOperator::NotIn => format!("{key} notin ({values})"),
            LabelOperator::Exists => key.clone(),
            LabelOperator::DoesNotExist => format!("!{key}"),
        }
    });
    labels.chain(expressions).collect::<Vec<_>>().join(",")
}

/// A kind as discovery has it; `None`: it is not served.
pub(crate) async fn find(
    client: &Client,
    kind: &GroupVersionKind,
) -> Result<Option<(ApiResource, bool)>, Error> {
    match kube::discovery::pinned_kind(client, kind).await {
        Ok((resource, capabilities)) => Ok(Some((resource, capabilities.scope == Scope::Namespaced))),
        Err(kube::Error::Discovery(_)) => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rollout_is_over_when_everything_is_updated_and_available() {
        let done = json!({
            "kind": "Deployment", "metadata": {"generation": 2}, "spec": {"replicas": 3},
            "status": {"observedGeneration": 2, "replicas": 3, "updatedReplicas": 3, "availableReplicas": 3},
        });
        assert_eq!(rollout_lacks(&done), None);
        for (field, value, expected) in [
            ("observedGeneration", 1, "newest spec"),
            ("updatedReplicas", 2, "updated"),
            ("availableReplicas", 2, "available"),
            ("replicas", 4, "old pods"),
        ] {
            let mut other = done.clone();
            other["status"][field] = json!(value);
            let why = rollout_lacks(&other);
            assert!(why.is_some_and(|why| why.contains(expected)), "{field}: {why:?}");
        }
    }

    #[test]
    fn a_daemon_set_counts_scheduled_pods() {
        let mut set = json!({
            "kind": "DaemonSet", "metadata": {"generation": 1},
            "status": {
                "observedGeneration": 1, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": 2,
            },
        });
        assert_eq!(rollout_lacks(&set), None);
        set["status"]["numberAvailable"] = json!(1);
        assert!(rollout_lacks(&set).is_some());
    }

    #[test]
    fn an_environment_variable_is_looked_for_in_every_container() {
        let object = json!({"spec": {"template": {"spec": {"containers": [
            {"name": "a"}, {"name": "b", "env": [{"name": "GROUP", "value": "new"}]},
        ]}}}});
        let env = |value: &str| BTreeMap::from([("GROUP".to_owned(), value.to_owned())]);
        assert_eq!(env_lacks(&object, &env("new")), None);
        assert_eq!(env_lacks(&object, &env("old")), Some("GROUP"));
    }

    #[test]
    fn a_selector_is_written_as_lists_take_it() {
        let selector: LabelSelector = serde_json::from_value(json!({
            "matchLabels": {"app": "x"},
            "matchExpressions": [
                {"key": "tier", "operator": "In", "values": ["a", "b"]}, {"key": "old", "operator": "DoesNotExist"},
            ],
        }))
        .unwrap_or_default();
        assert_eq!(label_selector(&selector), "app=x,tier in (a,b),!old");
    }
}
