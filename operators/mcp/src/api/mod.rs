//! The custom resources: `MCPServer`, `MCPToolConfig`, and the annotations and labels that people meet on them.

mod crds;
mod server;
mod tool_config;

use exuvia_write::Finalizer;

pub use self::crds::{SERVER_CRD, TOOL_CONFIG_CRD, crds};
pub use self::server::*;
pub use self::tool_config::*;

/// The API group.
pub const GROUP: &str = "mcp.exuvia.dev";

/// The operator's field manager.
pub const OPERATOR_MANAGER: &str = "mcp-operator";

/// The finalizer that the operator puts on every `MCPServer`: it takes the runner away before the backend, so that no
/// runner makes a backend again for a server that is going.
pub const FINALIZER: Finalizer = Finalizer::new("mcp.exuvia.dev/cleanup");

/// Asks for a restart: a time (RFC 3339). Nothing happens unless it is after [`RESTART_MARK`].
pub const RESTART: &str = "mcp.exuvia.dev/restarted-at";
/// The last restart that was carried out, as it was asked for. Written by the operator.
pub const RESTART_MARK: &str = "mcp.exuvia.dev/last-processed-restart";
/// How to restart: [`STRATEGY_ROLLING`] (the default) or [`STRATEGY_IMMEDIATE`].
pub const RESTART_STRATEGY: &str = "mcp.exuvia.dev/restart-strategy";
/// New pods come before old ones go.
pub const STRATEGY_ROLLING: &str = "rolling";
/// All old pods go at once.
pub const STRATEGY_IMMEDIATE: &str = "immediate";

/// The generation of the `MCPServer`, on the runner's pod template: for people, and for the compat gate.
pub const GENERATION: &str = "mcp.exuvia.dev/generation";
/// The last epoch that the operator issued, and what for: `<uid>/<epoch> <hash of the template>`. It is on the `MCPServer` itself, where no
/// runner may write, and is written before the roll-out begins.
pub const EPOCH: &str = "mcp.exuvia.dev/epoch";
/// The hash of the referenced `MCPToolConfig`, written to each `MCPServer` by the tool config controller.
pub const TOOL_CONFIG_HASH: &str = "mcp.exuvia.dev/tool-config-hash";

/// The label on every child: the name of its `MCPServer`.
pub const SERVER_LABEL: &str = "mcp.exuvia.dev/server";
/// The label that tells the parts of one server apart: [`PART_PROXY`] or [`PART_BACKEND`].
pub const PART_LABEL: &str = "mcp.exuvia.dev/part";
/// Pods that run `mcp-runner`.
pub const PART_PROXY: &str = "proxy";
/// Pods that run the MCP server itself.
pub const PART_BACKEND: &str = "backend";

/// Condition types of an `MCPServer`, as `kubectl wait --for=condition=…` takes them.
pub mod condition {
    /// The spec can be run.
    pub const ACCEPTED: &str = "Accepted";
    /// At least one proxy and one backend pod are ready.
    pub const AVAILABLE: &str = "Available";
    /// The operator shook hands with the MCP server, through the proxy.
    pub const VERIFIED: &str = "Verified";
    /// Every proxy and every backend pod is as the spec says.
    pub const ROLLED_OUT: &str = "RolledOut";
    /// All of them.
    pub const READY: &str = "Ready";
}
