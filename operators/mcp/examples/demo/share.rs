//! The runner's own share of a roll-out: from its start to its apply, and from the backend being ready to its saying so.

use std::fmt;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use exuvia_testenv::{AuditEvent, Kubelet};
use k8s_openapi::jiff::Timestamp;
use mcp_operator::workload::is_stateful_set_ready;

use crate::stage::{Stage, wait};

/// As measured. What lies between the two is the time of controllers, scheduler and kubelet.
pub(crate) struct Share {
    /// From the start of the process until its apply was answered.
    to_apply: Duration,
    /// From the server knowing that the backend is ready until `/readyz` says 200.
    to_ready: Duration,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.to_apply + self.to_ready;
        write!(
            f,
            "{:.2} s: start to applied {:.2} s, backend ready to /readyz {:.2} s",
            all.as_secs_f64(),
            self.to_apply.as_secs_f64(),
            self.to_ready.as_secs_f64()
        )
    }
}

/// Follows the first runner of a generation until it is ready. What the server did is in its audit log, with its times.
pub(crate) async fn measure(
    stage: &Stage,
    kubelet: &Kubelet,
    namespace: &str,
    server: &str,
    generation: &str,
    since: SystemTime,
) -> anyhow::Result<Share> {
    let pod = stage
        .proxy_with(namespace, server, "mcp.exuvia.dev/generation", generation)
        .await?;
    let running = kubelet.running(&pod).await;
    let ready_at = wait("the new runner is ready", async || {
        let is_ready = running.is_ready().await;
        Ok(is_ready.then(SystemTime::now))
    })
    .await?;
    // It said so because of this.
    let backend = stage.backend(namespace, server).await?.context("no backend")?;
    anyhow::ensure!(is_stateful_set_ready(&backend), "the runner was ready too early");
    let events = stage.control_plane.audit().events()?;
    let of_backend = |event: &&AuditEvent, subresource: &str| {
        let object = event.object_ref.as_ref();
        object.is_some_and(|object| {
            object.resource == "statefulsets"
                && object.namespace == namespace
                && object.name == format!("{server}-backend")
                && object.subresource == subresource
        }) && event.is_write()
            && event.code() < 300
    };
    let applied = events
        .iter()
        .filter(|event| of_backend(event, "") && event.user_agent.starts_with("mcp-runner"))
        .filter_map(at)
        .find(|at| *at > since)
        .context("the audit log has no apply of the runner")?;
    let backend_ready = events
        .iter()
        .filter(|event| of_backend(event, "status"))
        .filter_map(at)
        .rfind(|at| *at <= ready_at)
        .context("the audit log has no status of the backend")?;
    Ok(Share {
        to_apply: applied.duration_since(running.started)?,
        to_ready: ready_at.duration_since(backend_ready)?,
    })
}

/// When the server had answered.
fn at(event: &AuditEvent) -> Option<SystemTime> {
    let at: Timestamp = event.stage_timestamp.parse().ok()?;
    Some(at.into())
}
