//! Step 2, pure: whether the server can be run as it is, and what it means.

use exuvia_rollout::names::FIELD_MANAGER;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use mcp_proxy::Origins;

use super::child::{ChildKind, is_ours};
use super::dereference::Found;
use super::restart::{self, Restart};
use crate::api::{MCPToolConfig, OPERATOR_MANAGER, Transport};
use crate::naming;

/// The port of `/livez`, `/readyz` and `/metrics` of the runner.
pub(crate) const ADMIN_PORT: u16 = 8081;

/// The reason of a server one of whose children would have the name of somebody else's object.
pub(crate) const NAME_TAKEN: &str = "NameTaken";

/// A server that can be run.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) found: Found,
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    /// The tools that clients see and may call; empty: all.
    pub(crate) tools: Vec<String>,
    pub(crate) restart: Restart,
}

/// Why a server cannot be run: a reason for the condition, and a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Checks what the schema cannot. `now` is for restarts.
pub(crate) fn validate(found: Found, now: Timestamp) -> Result<Accepted, (Box<Found>, Rejection)> {
    if let Some(rejection) = rejection(&found) {
        return Err((Box::new(found), rejection));
    }
    let server = &found.server;
    let tools = found
        .tool_config
        .as_ref()
        .map(|config| config.spec.tools_filter.clone());
    Ok(Accepted {
        name: server.name_any(),
        namespace: server.namespace().unwrap_or_default(),
        uid: server.uid().unwrap_or_default(),
        tools: tools.unwrap_or_default(),
        restart: restart::read(server.annotations(), now),
        found,
    })
}

fn rejection(found: &Found) -> Option<Rejection> {
    let server = &found.server;
    let rejected = |reason, message| Some(Rejection { reason, message });
    let name = server.name_any();
    if name.len() > naming::MAX_NAME {
        return rejected(
            "InvalidName",
            format!(
                "the name has {} characters: expected at most {}, so that the names of its pods fit into labels",
                name.len(),
                naming::MAX_NAME
            ),
        );
    }
    if name.contains('.') || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        return rejected(
            "InvalidName",
            "the name cannot be that of a Service: expected lower-case letters, digits and '-', and a letter first"
                .to_owned(),
        );
    }
    if server.spec.image.trim().is_empty() || server.spec.image.contains(char::is_whitespace) {
        return rejected(
            "InvalidImage",
            "invalid image: expected one without spaces, such as example.com/mcp/everything:1.0".to_owned(),
        );
    }
    if server.spec.proxy_port == ADMIN_PORT {
        return rejected(
            "InvalidPort",
            format!(
                "invalid proxyPort {ADMIN_PORT}: expected any other, because the proxy's metrics are served there"
            ),
        );
    }
    if server.spec.transport == Transport::Stdio && server.spec.args.is_empty() {
        return rejected(
            "NoCommand",
            "a stdio server is started by the bridge, which does not know the image's entry point: set args to the whole \
             command line"
                .to_owned(),
        );
    }
    if let Err(error) = Origins::new(&server.spec.allowed_origins) {
        return rejected("InvalidOrigin", format!("allowedOrigins: {error}"));
    }
    if let Some(neighbour) = &found.neighbour {
        return rejected(
            NAME_TAKEN,
            format!(
                "MCPServer {neighbour} is older, and both would have a Service of one name; rename this server"
            ),
        );
    }
    if let (Some(reference), None) = (&server.spec.tool_config_ref, &found.tool_config) {
        return rejected(
            "ToolConfigNotFound",
            format!(
                "MCPToolConfig {:?} was not found in this namespace; create it",
                reference.name
            ),
        );
    }
    let names_none = |config: &MCPToolConfig| config.spec.tools_filter.is_empty();
    if let Some(config) = found.tool_config.as_ref().filter(|config| names_none(config)) {
        return rejected(
            "NoTools",
            format!(
                "MCPToolConfig {:?} names no tools: expected at least one in toolsFilter; without toolConfigRef, clients see all tools",
                config.name_any()
            ),
        );
    }
    if let Some((resource, child)) = foreign(found) {
        return rejected(
            NAME_TAKEN,
            format!("{resource} {child} belongs to somebody else; rename this server, or remove that object"),
        );
    }
    None
}

/// The first object that has the name of a child and is not ours. All are looked at before anything is written: those of the runner as
/// well, which would find out later.
fn foreign(found: &Found) -> Option<(&'static str, String)> {
    let server = &found.server;
    let (name, uid) = (server.name_any(), server.uid());
    let uid = uid.as_deref();
    let is_needed = |kind: ChildKind| kind != ChildKind::NetworkPolicy || server.spec.network_policy;
    let mut children = found.children.iter().filter(|(kind, _)| is_needed(**kind));
    let operators = children
        .find(|(_, child)| !is_ours(*child, &name, uid, OPERATOR_MANAGER))
        .map(|(kind, child)| (kind.resource_name(), child.name_any()));
    let backend = found.backend.iter();
    let backend = backend
        .filter(|child| !is_ours(*child, &name, uid, FIELD_MANAGER))
        .map(|child| ("statefulsets.apps", child.name_any()));
    let headless = found.headless.iter();
    let headless = headless
        .filter(|child| !is_ours(*child, &name, uid, FIELD_MANAGER))
        .map(|child| ("services", child.name_any()));
    operators.into_iter().chain(backend).chain(headless).next()
}
