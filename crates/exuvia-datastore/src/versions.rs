//! Fields that a source has only at another version than the one at which it is read: they would not be copied.
//!
//! Without a conversion webhook the server prunes an object to the schema of the version that is asked for. The schemas may only
//! say that nothing can be hidden that way; otherwise the objects are read at both versions and compared.

use std::sync::Mutex;

use exuvia_api::{Blocker, datastore_reason as reason};
use exuvia_sweep::{Sweep, Verdict};
use exuvia_write::Redacted;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSONSchemaProps, JSONSchemaPropsOrArray,
    JSONSchemaPropsOrBool,
};
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client, ResourceExt};

use crate::Error;
use crate::copy::{Mover, all_looked_at};
use crate::kinds::Kind;
use crate::lock::lock;

/// How many objects are named.
const MAX_LISTED: usize = 32;

/// Objects that have content at another version which the version that is read does not show.
pub(crate) async fn hidden_content(client: &Client, mover: &Mover) -> Result<Vec<Blocker>, Error> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let blockers = Mutex::new(Vec::new());
    for kind in mover.kinds.sources() {
        let Some(crd) = crds.get_opt(&kind.name()).await? else {
            continue; // said by the check of kinds
        };
        for version in richer_versions(&crd, &kind.resource.version) {
            if version.served {
                compare(client, mover, kind, &version.name, &blockers).await?;
            } else {
                lock(&blockers).push(Blocker {
                    message: unserved(&version.name, &kind.resource.version),
                    ..blocker(kind)
                });
            }
        }
    }
    let mut blockers = blockers
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    blockers.truncate(MAX_LISTED);
    Ok(blockers)
}

fn blocker(kind: &Kind) -> Blocker {
    Blocker {
        reason: reason::CONVERSION.to_owned(),
        kind: kind.shown(),
        ..Blocker::default()
    }
}

/// A version at which objects may show more than at the one that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Richer {
    pub(crate) resource: ApiResource,
    pub(crate) is_served: bool,
}

/// For each kind, the versions at which its objects may show more.
pub(crate) async fn richer(client: &Client, kinds: &[Kind]) -> Result<Vec<Vec<Richer>>, Error> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut all = Vec::new();
    for kind in kinds {
        let crd = crds.get_opt(&kind.name()).await?;
        let versions = crd
            .iter()
            .flat_map(|crd| richer_versions(crd, &kind.resource.version));
        let versions = versions.map(|version| Richer {
            resource: at_version(kind, &version.name),
            is_served: version.served,
        });
        all.push(versions.collect());
    }
    Ok(all)
}

fn at_version(kind: &Kind, version: &str) -> ApiResource {
    let mut resource = kind.resource.clone();
    version.clone_into(&mut resource.version);
    resource.api_version = format!("{}/{version}", resource.group);
    resource
}

/// A field that only another version shows.
pub(crate) fn hidden(path: &str, version: &str, read: &str) -> String {
    format!(
        "{path} shows at {version}, but not at {read}, so it would not be copied: set from.version to {version}"
    )
}

/// A version that may hide fields, and cannot be read.
pub(crate) fn unserved(version: &str, read: &str) -> String {
    format!(
        "objects are stored at {version}, which has fields that {read} lacks, and {version} is not served: serve it, and set \
         from.version to {version}"
    )
}

async fn compare(
    client: &Client,
    mover: &Mover,
    kind: &Kind,
    version: &str,
    blockers: &Mutex<Vec<Blocker>>,
) -> Result<(), Error> {
    let sweep = Sweep::of(client.clone(), &at_version(kind, version)).controlled_by(&mover.control);
    let report = sweep
        .run_whole(async |there: DynamicObject| {
            let namespace = there.metadata.namespace.as_deref();
            let here = match mover.read(kind, namespace, &there.name_any()).await {
                Ok(Some(here)) => here,
                Ok(None) => return Verdict::gone(),
                Err(error) => return Verdict::failed(error.class().as_str(), Redacted::from_error(&error)),
            };
            if let Some(path) = mover.lacks_content_of(&here, &there) {
                let mut blockers = lock(blockers);
                if blockers.len() < MAX_LISTED {
                    blockers.push(Blocker {
                        namespace: there.namespace().unwrap_or_default(),
                        name: there.name_any(),
                        message: hidden(&path, version, &kind.resource.version),
                        ..blocker(kind)
                    });
                }
            }
            Verdict::unchanged()
        })
        .await?;
    all_looked_at(&report)
}

/// Versions that objects may be stored at or written through, and that may show more than the one that is read.
fn richer_versions<'a>(
    crd: &'a CustomResourceDefinition,
    read: &str,
) -> Vec<&'a CustomResourceDefinitionVersion> {
    let conversion = crd.spec.conversion.as_ref();
    if conversion.is_some_and(|conversion| conversion.strategy != "None") {
        return Vec::new(); // what a conversion webhook shows at which version is its own promise
    }
    let versions = &crd.spec.versions;
    let Some(read) = versions.iter().find(|version| version.name == read) else {
        return Vec::new();
    };
    let stored = crd
        .status
        .as_ref()
        .and_then(|status| status.stored_versions.as_ref());
    let is_stored = |name: &String| stored.is_some_and(|stored| stored.contains(name));
    let others = versions.iter().filter(|version| version.name != read.name);
    others
        .filter(|version| version.served || version.storage || is_stored(&version.name))
        .filter(|version| match (schema(read), schema(version)) {
            (Some(read), Some(other)) => may_show_more(other, read, true),
            _ => true,
        })
        .collect()
}

fn schema(version: &CustomResourceDefinitionVersion) -> Option<&JSONSchemaProps> {
    version.schema.as_ref()?.open_api_v3_schema.as_ref()
}

/// Whether a schema may keep something that the other one prunes.
fn may_show_more(one: &JSONSchemaProps, other: &JSONSchemaProps, is_root: bool) -> bool {
    let keeps_unknown = |schema: &JSONSchemaProps| schema.x_kubernetes_preserve_unknown_fields == Some(true);
    if keeps_unknown(one) && !keeps_unknown(other) {
        return true;
    }
    let known = other.properties.as_ref();
    for (name, property) in one.properties.iter().flatten() {
        if is_root && matches!(name.as_str(), "apiVersion" | "kind" | "metadata" | "status") {
            continue;
        }
        let more = match (known.and_then(|known| known.get(name)), values(other)) {
            (Some(same), _) | (None, Values::Like(same)) => may_show_more(property, same, false),
            (None, Values::Any) => false,
            (None, Values::No) => !keeps_unknown(other),
        };
        if more {
            return true;
        }
    }
    let of_values = match (values(one), values(other)) {
        (Values::No, _) | (_, Values::Any) => false,
        (_, Values::No) => !keeps_unknown(other),
        (Values::Any, Values::Like(_)) => true,
        (Values::Like(one), Values::Like(other)) => may_show_more(one, other, false),
    };
    of_values
        || match (items(one), items(other)) {
            (Some(one), Some(other)) => may_show_more(one, other, false),
            (Some(_), None) => !keeps_unknown(other),
            (None, _) => false,
        }
}

/// What `additionalProperties` allows.
enum Values<'a> {
    No,
    Any,
    Like(&'a JSONSchemaProps),
}

fn values(schema: &JSONSchemaProps) -> Values<'_> {
    match schema.additional_properties.as_ref() {
        None | Some(JSONSchemaPropsOrBool::Bool(false)) => Values::No,
        Some(JSONSchemaPropsOrBool::Bool(true)) => Values::Any,
        Some(JSONSchemaPropsOrBool::Schema(each)) => Values::Like(each),
    }
}

fn items(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match schema.items.as_ref()? {
        JSONSchemaPropsOrArray::Schema(each) => Some(each),
        JSONSchemaPropsOrArray::Schemas(each) => each.first(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn more(one: Value, other: Value) -> bool {
        let schema = |spec: Value| -> JSONSchemaProps {
            serde_json::from_value(json!({"type": "object", "properties": {"spec": spec}})).unwrap()
        };
        may_show_more(&schema(one), &schema(other), true)
    }

    #[test]
    fn a_schema_shows_more_only_if_it_has_a_place_that_the_other_lacks() {
        let object = |properties: Value| json!({"type": "object", "properties": properties});
        let (a, ab) = (
            object(json!({"a": {"type": "string"}})),
            object(json!({"a": {"type": "string"}, "b": {}})),
        );
        assert!(more(ab.clone(), a.clone()));
        assert!(!more(a.clone(), ab.clone()));
        let list = |of: &Value| json!({"type": "array", "items": of});
        assert!(more(list(&ab), list(&a)));
        assert!(!more(list(&a), list(&ab)));
        let map = |of: &Value| json!({"type": "object", "additionalProperties": of});
        assert!(more(map(&ab), map(&a)));
        assert!(!more(map(&a), map(&json!(true))));
        let free = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        assert!(more(free.clone(), a.clone()));
        assert!(!more(a, free));
    }
}
