//! `MCPToolConfig`: which tools clients see and may call, for any number of servers.
#![allow(unreachable_pub)] // KubeSchema repeats each struct inside a function

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which tools clients see and may call.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "mcp.exuvia.dev",
    version = "v1beta1",
    kind = "MCPToolConfig",
    plural = "mcptoolconfigs",
    shortname = "mcptc",
    category = "mcp",
    namespaced,
    status = "MCPToolConfigStatus",
    derive = "PartialEq",
    doc = "Names the tools that the clients of an MCPServer see and may call. The proxy hides all others.",
    annotation("helm.sh/resource-policy", "keep"),
    printcolumn(name = "Servers", type_ = "integer", json_path = ".status.servers"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct MCPToolConfigSpec {
    /// The names of the tools that clients see and may call, exactly as the server writes them. At least one.
    #[schemars(length(min = 1, max = 512), inner(length(min = 1, max = 128)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools_filter: Vec<String>,
}

/// Where it is used.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MCPToolConfigStatus {
    /// The generation that the rest is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The hash that is written to each server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// How many servers refer to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<i32>,
}
