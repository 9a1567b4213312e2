//! Step 3, pure: the children as they should be, each built once.

mod proxy;

use exuvia_rollout::{FoundStamps, FrozenConfig, Intent, InvalidIntent, Names, Stamp, Stamps, Token};
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::child::ChildKind;
use super::restart::Restart;
use super::validate::{Accepted, Rejection};
use crate::api::{EPOCH, GROUP, PART_BACKEND, PART_LABEL, PART_PROXY, SERVER_LABEL};
use crate::run_config::{FILE, RunConfig};
use crate::runner::backend::{PARALLEL, headless_service, stateful_set};
use crate::{naming, rights};

/// What is to be applied. It exists only for a server that was accepted.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) accepted: Accepted,
    /// In the order in which they are applied.
    pub(crate) children: Vec<Intended>,
    /// The run config, which is made before the Deployment that mounts it.
    pub(crate) config: FrozenConfig,
    /// The stamp of this roll-out.
    pub(crate) token: Token,
    /// The backend as the runner is going to apply it: built by the same function, from the same run config.
    pub(crate) backend: Intent,
    /// Its headless Service.
    pub(crate) headless: Intent,
    /// What the server is to say about the epoch, see [`EPOCH`].
    pub(crate) noted: String,
}

/// A child as it should be.
#[derive(Debug)]
pub(crate) struct Intended {
    pub(crate) kind: ChildKind,
    pub(crate) intent: Intent,
}

impl Intended {
    /// What an apply sends: the intent, and its hash, by which a field that was dropped is noticed.
    pub(crate) fn stamped(&self) -> Value {
        let stamps = Stamps {
            intent_hash: Some(self.intent.hash().to_owned()),
            ..Stamps::default()
        };
        self.intent.stamped(&stamps, &Names::default())
    }

    /// Whether the live object is not what the intent says: it was made from another one, or somebody edited it.
    pub(crate) fn is_drifted(&self, live: &DynamicObject, manager: &str) -> bool {
        let live = serde_json::to_value(live).unwrap_or_default();
        let drift = self.intent.drift(&live, manager, &Names::default());
        drift.other_intent || !drift.edits.is_empty()
    }
}

impl Prepared {
    pub(crate) fn restart(&self) -> &Restart {
        &self.accepted.restart
    }

    /// An epoch that would not be believed later is never issued: after it, epochs would begin again, and an older runner could win.
    pub(crate) fn epoch_rejection(&self) -> Option<Rejection> {
        (self.token.epoch >= IMPLAUSIBLE_EPOCH).then(|| Rejection {
            reason: "EpochTooHigh",
            message: format!(
                "no epoch is left below {IMPLAUSIBLE_EPOCH}: somebody raised {EPOCH}; delete this MCPServer and create it again"
            ),
        })
    }
}

/// Builds every child. `runner_image` is the image of `mcp-runner`.
pub(crate) fn build(accepted: Accepted, runner_image: &str) -> Result<Prepared, InvalidIntent> {
    let server = &accepted.found.server;
    let run = RunConfig::new(
        server,
        accepted.tools.clone(),
        accepted.restart.stamped.clone(),
        runner_image,
    );
    let config = FrozenConfig::new(&accepted.name, FILE, run.to_text());
    let names = Names::default();
    let known = known_stamps(&accepted, &names);
    let (deployment, token, template_hash) = proxy::deployment(&accepted, runner_image, &config, &known);

    let runner = naming::runner(&accepted.name);
    let backend = naming::backend(&accepted.name);
    let mut children = vec![
        (ChildKind::ServiceAccount, service_account(&accepted, &runner)),
        (ChildKind::Role, role(&accepted, &runner)),
        (ChildKind::RoleBinding, role_binding(&accepted, &runner)),
    ];
    if server.spec.network_policy {
        children.push((ChildKind::NetworkPolicy, network_policy(&accepted, &backend)));
    }
    children.push((ChildKind::Service, service(&accepted)));
    children.push((ChildKind::Deployment, deployment));
    let intended = |(kind, intent): (_, Value)| {
        Ok(Intended {
            kind,
            intent: Intent::new(&intent)?,
        })
    };
    Ok(Prepared {
        children: children
            .into_iter()
            .map(intended)
            .collect::<Result<_, InvalidIntent>>()?,
        backend: backend_intent(&accepted, &run)?,
        headless: Intent::new(&headless_service(&run, Some(&accepted.uid)))?,
        config,
        noted: format!("{token} {template_hash}"),
        token,
        accepted,
    })
}

/// The backend of this run config. Like the runner, it keeps the policy of the live one, which cannot be changed.
fn backend_intent(accepted: &Accepted, run: &RunConfig) -> Result<Intent, InvalidIntent> {
    let live = accepted.found.backend.as_ref();
    let policy = live.and_then(|live| live.spec.pod_management_policy.as_deref());
    let policy = policy.unwrap_or(PARALLEL);
    Intent::new(&stateful_set(run, &run.image, Some(&accepted.uid), policy))
}

/// No epoch is that high: one roll-out each second would take 30 000 years. A stamp that says so was made up, and the next one would soon
/// not be readable.
const IMPLAUSIBLE_EPOCH: u64 = 1_000_000_000_000;

/// Every stamp that counts: what the server notes about the last epoch, and the Deployment's template. The highest counts, so that epochs
/// never go back, whatever is deleted. The status and the backend can be written by runners, and so they are asked only if the server
/// notes nothing: somebody took the note away, or an operator without notes made the last roll-out.
fn known_stamps(accepted: &Accepted, names: &Names) -> Vec<FoundStamps> {
    let found = &accepted.found;
    let value = |object: Option<Value>| object.unwrap_or_default();
    let deployment = found.deployment.as_ref();
    let deployment = value(deployment.and_then(|object| serde_json::to_value(object).ok()));
    let mut known = vec![FoundStamps::of_template(&deployment, names)];
    if let Some(noted) = noted(accepted) {
        known.push(noted);
    } else {
        let backend = found.backend.as_ref();
        let backend = value(backend.and_then(|object| serde_json::to_value(object).ok()));
        known.push(FoundStamps::of_object(&backend, names));
        let epoch = found.server.status.as_ref().and_then(|status| status.epoch);
        known.extend(
            epoch
                .and_then(|epoch| u64::try_from(epoch).ok())
                .map(|epoch| FoundStamps {
                    token: Stamp::Found(Token::new(&accepted.uid, epoch)),
                    ..FoundStamps::default()
                }),
        );
    }
    known.retain(is_plausible);
    known
}

fn is_plausible(stamps: &FoundStamps) -> bool {
    let token = stamps.token.found();
    token.is_none_or(|token| token.epoch < IMPLAUSIBLE_EPOCH)
}

/// What the server notes, if it is about this very server and can be true.
fn noted(accepted: &Accepted) -> Option<FoundStamps> {
    let note = accepted.found.server.annotations().get(EPOCH)?;
    let (token, template_hash) = note.split_once(' ')?;
    let token: Token = token.parse().ok()?;
    let is_ours = token.uid == accepted.uid;
    // A Deployment that was rolled out and is gone: its runners may still be alive, so the next one gets an epoch of its own.
    let status = accepted.found.server.status.as_ref();
    let reported = status.and_then(|status| u64::try_from(status.epoch?).ok());
    let is_gone = accepted.found.deployment.is_none() && reported >= Some(token.epoch);
    let stamps = FoundStamps {
        token: Stamp::Found(token),
        template_hash: (!is_gone).then(|| template_hash.to_owned()),
        ..FoundStamps::default()
    };
    Some(stamps).filter(|stamps| is_ours && is_plausible(stamps))
}

/// `metadata` of a child: its name, whose it is, which part.
fn metadata(accepted: &Accepted, name: &str, part: &str) -> Value {
    let server = &accepted.found.server;
    json!({
        "name": name,
        "namespace": accepted.namespace,
        "labels": labels(&accepted.name, part),
        "ownerReferences": [owner_reference(server.name_any().as_str(), &accepted.uid)],
    })
}

/// The labels of a child.
pub(crate) fn labels(server: &str, part: &str) -> Value {
    json!({
        SERVER_LABEL: server,
        PART_LABEL: part,
        "app.kubernetes.io/managed-by": "mcp-operator",
    })
}

/// Makes an object a child of the server. Without `blockOwnerDeletion`, which would need one more right.
pub(crate) fn owner_reference(server: &str, uid: &str) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1beta1"),
        "kind": "MCPServer",
        "name": server,
        "uid": uid,
        "controller": true,
    })
}

fn service_account(accepted: &Accepted, name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(accepted, name, PART_PROXY),
    })
}

fn role(accepted: &Accepted, name: &str) -> Value {
    let rules: Vec<_> = rights::runner(&accepted.name)
        .into_iter()
        .map(|rule| rule.rule)
        .collect();
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": metadata(accepted, name, PART_PROXY),
        "rules": rules,
    })
}

fn role_binding(accepted: &Accepted, name: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata(accepted, name, PART_PROXY),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": accepted.namespace}],
    })
}

/// Lets only the proxy connect to the backend.
fn network_policy(accepted: &Accepted, name: &str) -> Value {
    let pods = |part: &str| json!({"matchLabels": {SERVER_LABEL: accepted.name, PART_LABEL: part}});
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(accepted, name, PART_BACKEND),
        "spec": {
            "podSelector": pods(PART_BACKEND),
            "policyTypes": ["Ingress"],
            "ingress": [{
                "from": [{"podSelector": pods(PART_PROXY)}],
                "ports": [{"protocol": "TCP", "port": accepted.found.server.spec.mcp_port}],
            }],
        },
    })
}

fn service(accepted: &Accepted) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(accepted, &accepted.name, PART_PROXY),
        "spec": {
            "type": "ClusterIP",
            "selector": {SERVER_LABEL: accepted.name, PART_LABEL: PART_PROXY},
            "ports": [{
                "name": "http",
                "port": accepted.found.server.spec.proxy_port,
                "targetPort": "http",
                "protocol": "TCP",
            }],
        },
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::needless_pass_by_value)] // `server(json!(…))` reads better
mod tests;
