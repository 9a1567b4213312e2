//! What the extension API server says that it serves: the plain documents, and the aggregated one.

use serde_json::{Value, json};

use super::GroupVersion;

/// How a client asks for the aggregated document, and how it is answered.
pub(super) const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// `/apis/<group>`.
pub(super) fn group(shown: &GroupVersion) -> Value {
    let version = json!({"groupVersion": shown.api_version(), "version": shown.version});
    json!({
        "apiVersion": "v1", "kind": "APIGroup", "name": shown.group,
        "versions": [version], "preferredVersion": version,
    })
}

/// `/apis`.
pub(super) fn groups(shown: &GroupVersion) -> Value {
    json!({"apiVersion": "v1", "kind": "APIGroupList", "groups": [group(shown)]})
}

/// `/apis/<group>/<version>`: what the CRDs' own document says, as a server that is not made of CRDs would say it.
pub(super) fn resources(of_crds: &Value, shown: &GroupVersion, plurals: &[String]) -> Value {
    let all = of_crds["resources"].as_array().cloned().unwrap_or_default();
    let ours = all.into_iter().filter(|resource| {
        let name = resource["name"].as_str().unwrap_or_default();
        let plural = name.split('/').next().unwrap_or_default();
        plurals.iter().any(|known| known == plural)
    });
    let resources: Vec<Value> = ours
        .map(|mut resource| {
            if let Some(verbs) = resource["verbs"].as_array_mut() {
                verbs.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
            }
            if let Some(members) = resource.as_object_mut() {
                members.remove("storageVersionHash");
            }
            resource
        })
        .collect();
    json!({
        "apiVersion": "v1", "kind": "APIResourceList",
        "groupVersion": shown.api_version(), "resources": resources,
    })
}

/// The aggregated document, from the plain one.
pub(super) fn aggregated(plain: &Value, shown: &GroupVersion) -> Value {
    let all = plain["resources"].as_array().cloned().unwrap_or_default();
    let kind = |resource: &Value| {
        let or = |member: &str, default: &str| resource[member].as_str().unwrap_or(default).to_owned();
        json!({
            "group": or("group", &shown.group),
            "version": or("version", &shown.version),
            "kind": resource["kind"],
        })
    };
    let split = |resource: &Value| {
        let name = resource["name"].as_str().unwrap_or_default();
        name.split_once('/')
            .map(|(plural, sub)| (plural.to_owned(), sub.to_owned()))
    };
    let resources: Vec<Value> = all
        .iter()
        .filter(|resource| split(resource).is_none())
        .map(|resource| {
            let subresources: Vec<Value> = all
                .iter()
                .filter_map(|sub| {
                    let (plural, name) = split(sub)?;
                    (resource["name"] == plural).then(
                        || json!({"subresource": name, "responseKind": kind(sub), "verbs": sub["verbs"]}),
                    )
                })
                .collect();
            json!({
                "resource": resource["name"],
                "responseKind": kind(resource),
                "scope": if resource["namespaced"] == true { "Namespaced" } else { "Cluster" },
                "singularResource": resource["singularName"],
                "verbs": resource["verbs"],
                "shortNames": resource.get("shortNames").cloned().unwrap_or(json!([])),
                "categories": resource.get("categories").cloned().unwrap_or(json!([])),
                "subresources": subresources,
            })
        })
        .collect();
    json!({
        "apiVersion": "apidiscovery.k8s.io/v2", "kind": "APIGroupDiscoveryList", "metadata": {},
        "items": [{
            "metadata": {"name": shown.group},
            "versions": [{"version": shown.version, "freshness": "Current", "resources": resources}],
        }],
    })
}
