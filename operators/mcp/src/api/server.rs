//! `MCPServer`: one MCP server, its backend and its proxy.
#![allow(unreachable_pub)] // KubeSchema repeats each struct inside a function
#![allow(clippy::duplicated_attributes)] // each print column has a type of its own

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, LocalObjectReference, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What to run, and how it is reached.
///
/// `authzConfig` is in the CRD's schema and not here: another controller owns it, and the operator never writes it.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "mcp.exuvia.dev",
    version = "v1beta1",
    kind = "MCPServer",
    plural = "mcpservers",
    shortname = "mcp",
    category = "mcp",
    namespaced,
    status = "MCPServerStatus",
    derive = "PartialEq",
    doc = "Runs one MCP server as a StatefulSet, behind a proxy that keeps sessions on their pod.",
    annotation("helm.sh/resource-policy", "keep"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(name = "URL", type_ = "string", json_path = ".status.url"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct MCPServerSpec {
    /// The container image of the MCP server.
    #[schemars(length(min = 1, max = 1024))]
    pub image: String,
    /// How the MCP server speaks. `stdio` servers are run behind a bridge inside the backend pod.
    #[serde(default)]
    pub transport: Transport,
    /// The path of the MCP endpoint.
    #[schemars(length(max = 253), regex(pattern = r"^/"))]
    #[serde(default = "default_path")]
    pub path: String,
    /// The port that the MCP server listens on.
    #[schemars(range(min = 1, max = 65535), with = "i32")]
    #[serde(default = "default_port")]
    pub mcp_port: u16,
    /// The port that clients connect to.
    #[schemars(range(min = 1, max = 65535), with = "i32")]
    #[serde(default = "default_port")]
    pub proxy_port: u16,
    /// Arguments of the MCP server. For `stdio`, the whole command line.
    #[schemars(length(max = 256))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Environment variables of the MCP server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Where more environment variables of the MCP server come from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_from: Vec<EnvFromSource>,
    /// Secrets for pulling the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Resources of the MCP server's container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// The service account of the backend pods. They get no token unless this is set.
    #[schemars(length(max = 253))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// How many proxies. Unset: whatever the Deployment has, so that an autoscaler may own it.
    #[schemars(range(min = 0), with = "Option<i32>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// How many backend pods. Unset: whatever the `StatefulSet` has, so that an autoscaler may own it.
    #[schemars(range(min = 0), with = "Option<i32>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_replicas: Option<i32>,
    /// The MCP server keeps no sessions, so that each request may go to any pod.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stateless: bool,
    /// Values of `Origin` that are let through. A request with any other is answered with 403; one without the header passes.
    #[schemars(length(max = 64), inner(length(max = 253)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_origins: Vec<String>,
    /// What stands before the path of the `endpoint` event of old SSE servers, if a gateway in front adds a prefix.
    #[schemars(length(max = 253), regex(pattern = r"^/"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint_prefix: Option<String>,
    /// Add to the `X-Forwarded-*` headers of a proxy in front, instead of replacing them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trust_proxy_headers: bool,
    /// The largest body of a request. Default: 16 MiB.
    #[schemars(range(min = 1024), with = "Option<i64>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_body_bytes: Option<u64>,
    /// Let only the proxy connect to the backend.
    #[serde(default = "default_true")]
    pub network_policy: bool,
    /// The `MCPToolConfig` of this namespace that says which tools clients see and may call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_config_ref: Option<ToolConfigRef>,
    /// What to change on the proxy's Deployment. It replaces nothing that the roll-out depends on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_overrides: Option<ResourceOverrides>,
}

/// How an MCP server speaks.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// HTTP, one endpoint.
    #[default]
    StreamableHttp,
    /// The old transport: a stream of events, and a second endpoint for messages.
    Sse,
    /// Standard input and output.
    Stdio,
}

/// Refers to an `MCPToolConfig` of the same namespace.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolConfigRef {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// What to change on children.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceOverrides {
    /// The Deployment of the proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_deployment: Option<ProxyDeploymentOverrides>,
}

/// What to change on the Deployment of the proxy.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyDeploymentOverrides {
    /// More annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// More labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The same for its pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template_metadata_overrides: Option<MetadataOverrides>,
    /// More environment variables of the proxy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
}

/// More labels and annotations.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetadataOverrides {
    /// More annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// More labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// How it is. Everything but `runtime` is written by the operator.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MCPServerStatus {
    /// In one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// The generation that the rest is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where clients in the cluster connect to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// How many proxies are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// The same in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The number of the last roll-out: it grows whenever the runner's pod template changes, and never goes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i64>,
    /// What the MCP server said about itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_info: Option<ServerInfo>,
    /// Accepted, Available, Verified, `RolledOut`, and Ready, which is all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Written by the runner that decided last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeStatus>,
}

/// In one word.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Nothing runs yet.
    Pending,
    /// A roll-out is under way.
    Progressing,
    /// All is well.
    Running,
    /// Somebody should look.
    Failed,
    /// It is being deleted.
    Terminating,
}

/// What an MCP server says about itself.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerInfo {
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The version of the protocol that was agreed on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<String>,
}

/// What the runner decided. Scalars only, so that its writes never conflict with the operator's.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeStatus {
    /// The runner's pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The generation that the runner was started for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// What the gate decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<String>,
    /// The runner's own stamp.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ours: Option<String>,
    /// The stamp on the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub theirs: Option<String>,
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

fn default_path() -> String {
    "/mcp".to_owned()
}

fn default_port() -> u16 {
    8080
}

fn default_true() -> bool {
    true
}
