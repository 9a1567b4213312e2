//! The CRDs as they are installed: two versions with one schema, and what the Rust types do not say.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};

use super::{MCPServer, MCPToolConfig};

/// The name of the CRD of `MCPServer`.
pub const SERVER_CRD: &str = "mcpservers.mcp.exuvia.dev";
/// The name of the CRD of `MCPToolConfig`.
pub const TOOL_CONFIG_CRD: &str = "mcptoolconfigs.mcp.exuvia.dev";

/// Served for clients of the first release; stored is `v1beta1`.
const OLD_VERSION: &str = "v1alpha1";

/// Both CRDs. Both versions have one schema, so that no conversion is needed.
///
/// ```
/// let [servers, _] = mcp_operator::api::crds();
/// let versions: Vec<_> = servers.spec.versions.iter().map(|v| (v.name.as_str(), v.storage)).collect();
/// assert_eq!(versions, [("v1beta1", true), ("v1alpha1", false)]);
/// ```
pub fn crds() -> [CustomResourceDefinition; 2] {
    [server(), tool_config()]
}

fn tool_config() -> CustomResourceDefinition {
    let mut crd = MCPToolConfig::crd();
    for version in &mut crd.spec.versions {
        let mut schema = serde_json::to_value(&version.schema).unwrap_or_default();
        // Without the names, or with a misspelt key for them, it would allow everything. The Rust type does not demand them, so that one
        // that is stored without is read, and told.
        if let Some(spec) = schema.pointer_mut("/openAPIV3Schema/properties/spec") {
            spec["required"] = json!(["toolsFilter"]);
        }
        version.schema = serde_json::from_value(schema).unwrap_or_default();
    }
    with_old_version(crd)
}

fn server() -> CustomResourceDefinition {
    let mut crd = MCPServer::crd();
    for version in &mut crd.spec.versions {
        let schema = serde_json::to_value(&version.schema).unwrap_or_default();
        let schema = complete(schema);
        version.schema = serde_json::from_value(schema).unwrap_or_default();
    }
    with_old_version(crd)
}

fn with_old_version(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    if let Some(mut old) = crd.spec.versions.first().cloned() {
        OLD_VERSION.clone_into(&mut old.name);
        old.storage = false;
        crd.spec.versions.push(old);
    }
    crd
}

/// What the Rust types do not say: fields of another controller, and which lists are maps.
fn complete(mut schema: Value) -> Value {
    let properties = "/openAPIV3Schema/properties";
    if let Some(spec) = schema.pointer_mut(&format!("{properties}/spec/properties")) {
        spec["authzConfig"] = json!({
            "description": "Who may call which tools. Another controller reads and writes it; the operator leaves it alone.",
            "type": "object",
            "nullable": true,
            "x-kubernetes-preserve-unknown-fields": true,
        });
    }
    let by_name = [
        "spec/properties/env",
        "spec/properties/imagePullSecrets",
        "spec/properties/resourceOverrides/properties/proxyDeployment/properties/env",
    ];
    for (place, key) in by_name
        .iter()
        .map(|place| (*place, "name"))
        .chain([("status/properties/conditions", "type")])
    {
        if let Some(list) = schema.pointer_mut(&format!("{properties}/{place}")) {
            list["x-kubernetes-list-type"] = json!("map");
            list["x-kubernetes-list-map-keys"] = json!([key]);
        }
    }
    // Keys of a list that is a map must be there: the name of a pull secret is optional in the Rust type.
    let item = format!("{properties}/spec/properties/imagePullSecrets/items");
    if let Some(item) = schema.pointer_mut(&item) {
        item["required"] = json!(["name"]);
    }
    schema
}
