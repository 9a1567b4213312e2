//! The intent: a partial object to apply, checked, with its hash.

use kube::api::DynamicObject;
use serde::Serialize;
use serde_json::Value;

use crate::{FoundStamps, Names, Stamps, hash_value};

use super::compare::{Drift, compare};

/// What is to be applied to one object. Built once: what is applied, hashed and compared is one value (PITFALLS B26).
///
/// ```
/// use exuvia_rollout::Intent;
/// use serde_json::json;
///
/// let intent = Intent::new(&json!({
///     "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "prices"}, "data": {"apple": "3"},
/// }))?;
/// assert_eq!((intent.kind(), intent.name()), ("ConfigMap", "prices"));
/// assert!(Intent::new(&json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"},
///     "spec": {"clusterIP": ""}})).is_err());
/// # Ok::<(), exuvia_rollout::InvalidIntent>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Intent {
    body: Value,
    hash: String,
    kind: String,
    name: String,
    namespace: Option<String>,
}

/// Why an intent cannot be compared with what the server makes of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidIntent {
    /// It cannot be serialised.
    #[error("invalid intent: it cannot be serialised: {0}")]
    Unserialisable(String),
    /// It lacks what every object has.
    #[error("invalid intent: expected apiVersion, kind and metadata.name")]
    NoType,
    /// The server gives a Service another `clusterIP` than an empty one.
    #[error(
        "invalid intent: clusterIP \"\" is given an address by the server; leave it out, or use \"None\""
    )]
    EmptyClusterIp,
    /// The server shows `data` instead.
    #[error("invalid intent: stringData is never shown by the server; use data")]
    StringData,
    /// Two elements of a list have one key: the server refuses them, or takes them for one.
    #[error("invalid intent: two elements of {path} have the same {key}")]
    DuplicateKey {
        /// The list, such as `spec.template.spec.containers[0].env`.
        path: String,
        /// The members that make the key.
        key: String,
    },
    /// A `null` deletes nothing in an apply, and stays a difference for ever.
    #[error("invalid intent: {path} is null; leave it out")]
    Null {
        /// Where.
        path: String,
    },
}

impl Intent {
    /// Checks and hashes. `managedFields`, `resourceVersion`, `uid`, `generation`, `creationTimestamp` and `status` are left out: they are the server's.
    pub fn new(object: &impl Serialize) -> Result<Self, InvalidIntent> {
        let mut body =
            serde_json::to_value(object).map_err(|error| InvalidIntent::Unserialisable(error.to_string()))?;
        let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let (Some(version), Some(kind), Some(name)) =
            (text("/apiVersion"), text("/kind"), text("/metadata/name"))
        else {
            return Err(InvalidIntent::NoType);
        };
        let namespace = text("/metadata/namespace");
        if let Some(members) = body.as_object_mut() {
            members.remove("status");
        }
        if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
            for member in [
                "managedFields",
                "resourceVersion",
                "uid",
                "generation",
                "creationTimestamp",
            ] {
                metadata.remove(member);
            }
        }
        if version == "v1" && kind == "Service" && body.pointer("/spec/clusterIP").is_some_and(|ip| ip == "")
        {
            return Err(InvalidIntent::EmptyClusterIp);
        }
        if version == "v1" && kind == "Secret" && body.get("stringData").is_some() {
            return Err(InvalidIntent::StringData);
        }
        check(&body, &mut Vec::new(), is_built_in(&version))?;
        Ok(Self {
            hash: hash_value(&body),
            body,
            kind,
            name,
            namespace,
        })
    }

    /// What is applied, without stamps.
    pub fn body(&self) -> &Value {
        &self.body
    }

    /// The hash of it: any removal, any other order and any change of a value makes another one.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The object's kind.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The object's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The object's namespace, if the intent says it.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// What is applied, with stamps. The intent hash is always among them, where `names` has a name for it.
    pub fn stamped(&self, stamps: &Stamps, names: &Names) -> Value {
        let stamps = Stamps {
            intent_hash: Some(self.hash.clone()),
            ..stamps.clone()
        };
        let mut body = self.body.clone();
        stamps.put_on(&mut body, names);
        body
    }

    /// A body of this intent (with or without stamps) as an object that can be created.
    pub fn object(&self, body: &Value) -> DynamicObject {
        // Every body of ours has the members that the type demands.
        serde_json::from_value(body.clone()).unwrap_or_else(|_| DynamicObject {
            types: None,
            metadata: kube::api::ObjectMeta::default(),
            data: body.clone(),
        })
    }

    /// Whether an apply of this intent by `manager` would change the live object, without asking the server.
    ///
    /// `live` is the object as the server gave it, managedFields included: they say which lists are maps, which are atomic, and
    /// what is still ours. The test compares the verdict with a dry-run apply.
    pub fn drift(&self, live: &Value, manager: &str, names: &Names) -> Drift {
        let stamped = FoundStamps::read(live, names).intent_hash;
        Drift {
            other_intent: stamped.as_deref() != Some(self.hash.as_str()),
            edits: compare(&self.body, live, manager),
        }
    }
}

/// Lists of built-in kinds whose elements have a key, by the list's name.
const KEYED: [(&str, &[&str]); 14] = [
    ("containers", &["name"]),
    ("initContainers", &["name"]),
    ("ephemeralContainers", &["name"]),
    ("env", &["name"]),
    ("volumes", &["name"]),
    ("imagePullSecrets", &["name"]),
    ("volumeMounts", &["mountPath"]),
    ("volumeDevices", &["devicePath"]),
    ("hostAliases", &["ip"]),
    ("topologySpreadConstraints", &["topologyKey", "whenUnsatisfiable"]),
    ("ownerReferences", &["uid"]),
    ("webhooks", &["name"]),
    ("ports", &["containerPort", "protocol"]),
    ("ports", &["port", "protocol"]),
];

/// `v1`, `apps/v1`, `networking.k8s.io/v1`: not a custom resource, whose lists of these names may be anything.
fn is_built_in(version: &str) -> bool {
    match version.split_once('/') {
        None => true,
        Some((group, _)) => !group.contains('.') || group.ends_with(".k8s.io"),
    }
}

fn check(value: &Value, path: &mut Vec<String>, built_in: bool) -> Result<(), InvalidIntent> {
    match value {
        Value::Null => Err(InvalidIntent::Null { path: shown(path) }),
        Value::Object(members) => {
            for (key, member) in members {
                path.push(format!(".{key}"));
                // Labels and annotations may have any name.
                let free = path
                    .last()
                    .is_some_and(|last| last == ".labels" || last == ".annotations");
                if built_in && !free {
                    check_keys(key, member, path)?;
                }
                check(member, path, built_in)?;
                path.pop();
            }
            Ok(())
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                path.push(format!("[{index}]"));
                check(item, path, built_in)?;
                path.pop();
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn check_keys(list: &str, value: &Value, path: &[String]) -> Result<(), InvalidIntent> {
    let Some(items) = value.as_array() else {
        return Ok(());
    };
    // NetworkPolicy has atomic lists of ports, which may hold one twice.
    let is_atomic = list == "ports" && path.iter().any(|step| step == ".ingress" || step == ".egress");
    for (_, keys) in KEYED.iter().filter(|(name, _)| *name == list && !is_atomic) {
        if !items.iter().all(|item| item.get(keys[0]).is_some()) {
            continue;
        }
        let key = |item: &Value| -> Vec<Value> {
            let part = |key: &&str| item.get(*key).cloned().unwrap_or_else(|| key_default(key));
            keys.iter().map(part).collect()
        };
        let mut seen: Vec<Vec<Value>> = Vec::new();
        for item in items {
            let key = key(item);
            if seen.contains(&key) {
                return Err(InvalidIntent::DuplicateKey {
                    path: shown(path),
                    key: keys.join(" and "),
                });
            }
            seen.push(key);
        }
    }
    Ok(())
}

/// What the server puts where a member of a key is left out.
pub(super) fn key_default(key: &str) -> Value {
    match key {
        "protocol" => Value::from("TCP"),
        _ => Value::Null,
    }
}

fn shown(path: &[String]) -> String {
    path.concat().trim_start_matches('.').to_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(object: &Value) -> InvalidIntent {
        Intent::new(object).unwrap_err()
    }

    #[test]
    fn what_never_converges_is_refused() {
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"clusterIP": ""}});
        assert_eq!(refused(&service), InvalidIntent::EmptyClusterIp);
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"a": "b"}});
        assert_eq!(refused(&secret), InvalidIntent::StringData);
        assert_eq!(refused(&json!({"kind": "Service"})), InvalidIntent::NoType);
        let null = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"image": null}]}});
        assert_eq!(
            refused(&null),
            InvalidIntent::Null {
                path: "spec.containers[0].image".to_owned()
            }
        );
    }

    #[test]
    fn two_elements_with_one_key_are_refused_by_their_defaulted_keys() {
        let pod = |container: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}});
        let env =
            pod(json!({"name": "c", "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}));
        let InvalidIntent::DuplicateKey { path, key } = refused(&env) else {
            panic!()
        };
        assert_eq!((path.as_str(), key.as_str()), ("spec.containers[0].env", "name"));
        let ports = pod(
            json!({"name": "c", "ports": [{"containerPort": 53}, {"containerPort": 53, "protocol": "TCP"}]}),
        );
        assert!(matches!(refused(&ports), InvalidIntent::DuplicateKey { .. }));
        // PITFALLS A48: both are wanted.
        let both = pod(
            json!({"name": "c", "ports": [{"containerPort": 53}, {"containerPort": 53, "protocol": "UDP"}]}),
        );
        assert!(Intent::new(&both).is_ok());
        let custom = json!({"apiVersion": "example.dev/v1", "kind": "W", "metadata": {"name": "w"},
            "spec": {"env": [{"name": "A"}, {"name": "A"}]}});
        assert!(Intent::new(&custom).is_ok());
    }

    #[test]
    fn what_the_server_owns_is_not_part_of_the_intent() {
        let plain =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "b"}});
        let mut read = plain.clone();
        for (member, value) in [
            ("resourceVersion", json!("1")),
            ("uid", json!("u")),
            ("managedFields", json!([])),
        ] {
            read["metadata"][member] = value;
        }
        assert_eq!(Intent::new(&plain).unwrap(), Intent::new(&read).unwrap());
    }
}
