//! What storage migration reads of a CRD: versions, schemas, which versions are served.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, Resource};
use serde_json::Value;

use crate::protocol::Crd;

/// A CRD, as far as storage migration is concerned.
#[derive(Clone, Debug)]
pub struct Definition {
    /// The CRD's name, `<plural>.<group>`.
    pub name: String,
    /// The API group.
    pub group: String,
    /// The resource's plural.
    pub plural: String,
    /// The kind.
    pub kind: String,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// What the protocol looks at.
    pub crd: Crd,
    /// The CRD's own resourceVersion.
    pub resource_version: String,
    /// All versions, in the CRD's order.
    pub versions: Vec<Version>,
    /// Whether a webhook converts between versions; otherwise only `apiVersion` changes.
    pub webhook_conversion: bool,
    /// Whether `spec.preserveUnknownFields` turns pruning off, as old CRDs may.
    pub preserves_unknown_fields: bool,
    /// When the spec was last written, as far as managedFields tell.
    pub spec_changed_at: Option<Timestamp>,
    /// Versions that are to lose their owners although nothing is stored at them: see [`Options::shed`](crate::Options).
    pub shed: Vec<String>,
    /// The CRD's labels.
    pub labels: std::collections::BTreeMap<String, String>,
    /// The CRD's annotations.
    pub annotations: std::collections::BTreeMap<String, String>,
}

/// One version of a CRD.
#[derive(Clone, Debug)]
pub struct Version {
    /// Such as `v1alpha1`.
    pub name: String,
    /// Whether it is served.
    pub served: bool,
    /// Whether it has a `/status` endpoint.
    pub has_status: bool,
    /// The `openAPIV3Schema`.
    pub schema: Value,
    /// Whether it lacks a default of the endpoint's version. Found out once, because it is asked for every object.
    pub lacks_default: bool,
    /// Whether its schema is the storage version's: every path means the same there.
    pub same_schema: bool,
}

impl Definition {
    /// Reads a CRD as the server gave it.
    pub fn read(crd: &CustomResourceDefinition) -> Self {
        let meta = crd.meta();
        let spec = &crd.spec;
        let storage = spec
            .versions
            .iter()
            .find(|v| v.storage)
            .map(|v| v.name.clone())
            .unwrap_or_default();
        let stored = crd
            .status
            .as_ref()
            .and_then(|status| status.stored_versions.clone())
            .unwrap_or_default();
        let mut definition = Self {
            name: meta.name.clone().unwrap_or_default(),
            group: spec.group.clone(),
            plural: spec.names.plural.clone(),
            kind: spec.names.kind.clone(),
            namespaced: spec.scope == "Namespaced",
            crd: Crd {
                uid: meta.uid.clone().unwrap_or_default(),
                generation: meta.generation.unwrap_or_default(),
                storage,
                stored,
            },
            resource_version: meta.resource_version.clone().unwrap_or_default(),
            versions: spec.versions.iter().map(Version::read).collect(),
            webhook_conversion: spec.conversion.as_ref().is_some_and(|c| c.strategy == "Webhook"),
            preserves_unknown_fields: spec.preserve_unknown_fields == Some(true),
            spec_changed_at: spec_changed_at(crd),
            shed: Vec::new(),
            labels: meta.labels.clone().unwrap_or_default(),
            annotations: meta.annotations.clone().unwrap_or_default(),
        };
        definition.compare_schemas();
        definition
    }

    fn compare_schemas(&mut self) {
        let endpoint = self.endpoint().and_then(|name| self.version(name));
        let defaults = endpoint.map(|version| defaults_of(&version.schema));
        let storage = self.version(&self.crd.storage);
        let storage = storage.map(|version| without_words(&version.schema));
        for version in &mut self.versions {
            let own = defaults_of(&version.schema);
            let mut expected = defaults.iter().flatten();
            version.lacks_default = expected.any(|default| !own.contains(default));
            version.same_schema = storage.as_ref() == Some(&without_words(&version.schema));
        }
    }

    /// The names of the versions that are served.
    pub fn served(&self) -> impl Iterator<Item = &str> {
        self.versions
            .iter()
            .filter(|version| version.served)
            .map(|version| version.name.as_str())
    }

    /// The version at whose endpoint objects are rewritten: the storage version's, unless it is not served (PITFALLS
    /// A10). `None`: no version is served.
    pub fn endpoint(&self) -> Option<&str> {
        self.served()
            .find(|version| *version == self.crd.storage)
            .or_else(|| self.served().next())
    }

    /// The resource at one version.
    pub fn resource(&self, version: &str) -> ApiResource {
        ApiResource {
            group: self.group.clone(),
            version: version.to_owned(),
            api_version: self.api_version(version),
            kind: self.kind.clone(),
            plural: self.plural.clone(),
        }
    }

    /// `group/version`.
    pub fn api_version(&self, version: &str) -> String {
        format!("{}/{version}", self.group)
    }

    /// One version by name.
    pub fn version(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|version| version.name == name)
    }

    /// Whether a write at this `apiVersion` may leave an object that a write at the endpoint's version changes once more, on
    /// healthy servers: their schemas differ (a default that only one of them has), or a webhook converts.
    pub fn writes_otherwise(&self, api_version: &str) -> bool {
        let schema = |version: &str| {
            self.version(version)
                .map(|version| without_words(&version.schema))
        };
        let version = api_version.rsplit('/').next().unwrap_or_default();
        let endpoint = self.endpoint().unwrap_or_default();
        version != endpoint
            && (self.webhook_conversion || schema(version).is_none() || schema(version) != schema(endpoint))
    }

    /// Whether objects are stored at another version than the endpoint's, by another schema: the storage version is not
    /// served, and its defaults show only with the write after the one that stored an object.
    pub fn stores_otherwise(&self) -> bool {
        self.endpoint()
            .is_some_and(|endpoint| endpoint != self.crd.storage)
            && self.writes_otherwise(&self.api_version(&self.crd.storage))
    }

    /// Whether a client that writes at another served version leaves out a default of the endpoint's version. The next write
    /// that changes nothing then stores it, on healthy servers, and one that only removed something leaves no trace.
    pub fn has_own_defaults(&self) -> bool {
        let mut served = self.versions.iter().filter(|version| version.served);
        served.any(|version| version.lacks_default)
    }

    /// Whether a rewrite of an object that is stored at another version may set a default that only the endpoint's version
    /// has, whether that other version is served or not.
    pub fn sets_defaults_that_others_lack(&self) -> bool {
        self.versions.iter().any(|version| version.lacks_default)
    }

    /// Whether the endpoint's version has a default in the status: an object that was created, or whose status came from
    /// another version, is then written once more by the next write that changes nothing, on healthy servers.
    pub fn has_defaults_in_status(&self) -> bool {
        let endpoint = self.endpoint().and_then(|version| self.version(version));
        endpoint
            .is_some_and(|version| version.has_status && has_default(&version.schema["properties"]["status"]))
    }

    /// Whether an `apiVersion` that a managedFields entry names is one that an entry should no longer name: an old stored
    /// version, one that is to be shed, or one of this group that the CRD does not have.
    pub fn is_old(&self, api_version: &str) -> bool {
        let Some((group, version)) = api_version.rsplit_once('/') else {
            return false;
        };
        group == self.group
            && version != self.crd.storage
            && (self.crd.stored.iter().chain(&self.shed).any(|old| old == version)
                || self.version(version).is_none())
    }

    /// Whether an entry that names this `apiVersion` is moved by a rewrite: an old one, or one that
    /// [`breaks_apply`](Self::breaks_apply).
    pub fn is_to_be_moved(&self, api_version: &str) -> bool {
        self.is_old(api_version) || self.breaks_apply(api_version)
    }

    /// Whether an entry that names this `apiVersion` makes every apply by anybody answer 500 once the object is rewritten: the
    /// version lacks a default of the storage version's. Once that is stored, the server cannot read the object at that
    /// version any more (PITFALLS A56).
    pub fn breaks_apply(&self, api_version: &str) -> bool {
        let Some((group, name)) = api_version.rsplit_once('/') else {
            return false;
        };
        let version = self.version(name);
        group == self.group
            && name != self.crd.storage
            && version.is_some_and(|version| version.lacks_default)
    }

    /// Of the `apiVersion`s that entries name, those that [`is_old`](Self::is_old).
    pub fn old_among<'a>(&self, named: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
        named
            .into_iter()
            .filter(|api_version| self.is_old(api_version))
            .map(str::to_owned)
            .collect()
    }
}

/// Whether a schema sets a default anywhere. A property that is called `default` is not one.
fn has_default(schema: &Value) -> bool {
    !defaults_of(schema).is_empty()
}

/// The defaults that a schema sets, by path.
fn defaults_of(schema: &Value) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    collect_defaults(schema, "", &mut found);
    found
}

fn collect_defaults(schema: &Value, path: &str, found: &mut Vec<(String, Value)>) {
    if let Some(default) = schema.get("default") {
        found.push((path.to_owned(), default.clone()));
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(inner) {
            collect_defaults(inner, &format!("{path}[]"), found);
        }
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        collect_defaults(property, &format!("{path}.{name}"), found);
    }
}

/// A schema without descriptions and titles.
fn without_words(schema: &Value) -> Value {
    match schema {
        Value::Object(map) => map
            .iter()
            .filter(|(name, value)| !(*name == "description" && value.is_string()))
            .map(|(name, value)| (name.clone(), without_words(value)))
            .collect(),
        Value::Array(items) => items.iter().map(without_words).collect(),
        other => other.clone(),
    }
}

impl Version {
    fn read(
        version: &k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinitionVersion,
    ) -> Self {
        let schema = version
            .schema
            .as_ref()
            .and_then(|schema| schema.open_api_v3_schema.as_ref());
        Self {
            name: version.name.clone(),
            served: version.served,
            has_status: version
                .subresources
                .as_ref()
                .is_some_and(|sub| sub.status.is_some()),
            schema: schema
                .and_then(|schema| serde_json::to_value(schema).ok())
                .unwrap_or(Value::Null),
            lacks_default: false,
            same_schema: false,
        }
    }
}

/// managedFields hold the time of each manager's last write; one that owns part of the spec may have flipped it. Labels,
/// annotations and status do not matter to the API servers' codecs.
fn spec_changed_at(crd: &CustomResourceDefinition) -> Option<Timestamp> {
    let meta = crd.meta();
    let owns_spec = |entry: &&ManagedFieldsEntry| {
        let fields = entry.fields_v1.as_ref();
        fields.is_none_or(|fields| fields.0.get("f:spec").is_some())
    };
    let entries = meta.managed_fields.iter().flatten();
    entries
        .filter(|entry| entry.subresource.as_deref().unwrap_or_default().is_empty())
        .filter(owns_spec)
        .filter_map(|entry| entry.time.as_ref())
        .chain(&meta.creation_timestamp)
        .map(|time| time.0)
        .max()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definition(extra: Value) -> Definition {
        let mut crd = json!({
            "metadata": {"name": "widgets.example.com", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"kind": "Widget", "plural": "widgets"},
                "versions": [
                    {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}},
                    {"name": "v1beta1", "served": true, "storage": false,
                     "schema": {"openAPIV3Schema": {"type": "object", "description": "older"}}},
                    {"name": "v1alpha1", "served": true, "storage": false,
                     "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}},
                ],
            },
        });
        crd["metadata"]["managedFields"] = extra;
        Definition::read(&serde_json::from_value(crd).unwrap())
    }

    #[test]
    fn only_writers_of_the_spec_change_it() {
        let entry = |manager: &str, time: &str, fields: Value| {
            json!({"manager": manager, "operation": "Update", "apiVersion": "apiextensions.k8s.io/v1", "time": time,
                   "fieldsType": "FieldsV1", "fieldsV1": fields})
        };
        let changed = definition(json!([
            entry("helm", "2026-02-01T00:00:00Z", json!({"f:spec": {"f:group": {}}})),
            entry(
                "annotator",
                "2026-03-01T00:00:00Z",
                json!({"f:metadata": {"f:annotations": {}}})
            ),
        ]))
        .spec_changed_at;
        assert_eq!(changed, "2026-02-01T00:00:00Z".parse().ok());
        assert_eq!(
            definition(json!([])).spec_changed_at,
            "2026-01-01T00:00:00Z".parse().ok()
        );
    }

    #[test]
    fn a_default_is_found_at_any_depth_and_a_property_of_that_name_does_not_count() {
        let named = json!({"properties": {"default": {"type": "string"}}});
        assert!(!has_default(&named));
        let deep = json!({"properties": {"list": {"items": {"properties": {"a": {"default": 1}}}}}});
        assert!(has_default(&deep));
        assert!(has_default(&json!({"default": {"observedGeneration": -1}})));
    }

    #[test]
    fn a_version_with_another_schema_may_leave_an_object_that_the_endpoint_changes() {
        let definition = definition(json!([]));
        assert!(definition.writes_otherwise("example.com/v1alpha1"));
        assert!(
            !definition.writes_otherwise("example.com/v1"),
            "the endpoint itself"
        );
        assert!(
            !definition.writes_otherwise("example.com/v1beta1"),
            "a description does not matter"
        );
        assert!(definition.writes_otherwise("example.com/v1alpha9"), "unknown");
    }
}
