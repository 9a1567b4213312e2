//! `mcp-runner`: decides at the gate, applies the backend, and serves clients as its proxy.

pub(crate) mod backend;
mod changes;
mod gate;
mod pods;
mod ready;
mod report;
mod serving;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use exuvia_rollout::{Action, Names, Next, ObjectRef, Outcome, Token, exit};
use exuvia_runtime::{Health, LogLevel, Metrics, bind, serve};
use exuvia_write::{ErrorClass, Writer};
use mcp_proxy::{Backend, Backends};
use tokio::sync::watch;

use self::gate::Runner;
use self::serving::Serving;
use crate::run_config::{self, ConfigError, FoundConfig};

/// The exit code of a runner without a usable run config (`EX_CONFIG`).
pub const EXIT_CONFIG: u8 = 78;

/// The check of `/readyz` that passes when clients may come.
const BACKEND_CHECK: &str = "backend";

/// Which gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum GateKind {
    /// Decides by token, uid and intent, and writes under a lock
    #[default]
    Strict,
    /// Compares generations, as `ToolHive` does
    Compat,
}

/// What a runner is told at its start.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// What annotations and variables are called.
    pub names: Names,
    /// Which gate.
    pub gate: GateKind,
    /// The name of the fence whose refusal is a conflict.
    pub fence: String,
    /// Where the run config is looked for; the first that exists is read.
    pub config_paths: Vec<PathBuf>,
    /// How long a run config that is not the pod's own is waited for.
    pub mount_patience: Duration,
    /// The image of the MCP server, instead of the run config's.
    pub image: Option<String>,
    /// Where clients connect to; the run config's port on all addresses by default.
    pub listen: Option<SocketAddr>,
    /// Where `/livez`, `/readyz` and `/metrics` are.
    pub admin_listen: String,
    /// Backends by their URLs. Then nothing is applied, and no pods are watched.
    pub backends: Vec<Backend>,
    /// How long calls may go on after the signal to stop.
    pub grace: Duration,
    /// The pod's name.
    pub pod: String,
    /// Environment variables, by name.
    pub env: fn(&str) -> Option<String>,
}

/// Why a runner ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No usable run config was found.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The token in the environment is not one.
    #[error("invalid {variable}: {source}")]
    Token {
        /// Its name.
        variable: String,
        /// What is wrong.
        source: exuvia_rollout::InvalidToken,
    },
    /// The run config leads to objects that cannot be applied.
    #[error(transparent)]
    Intent(#[from] exuvia_rollout::InvalidIntent),
    /// The run config has an origin that is not one.
    #[error("invalid allowedOrigins: {0}")]
    Origin(#[from] mcp_proxy::InvalidOrigin),
    /// The gate came to no outcome.
    #[error(transparent)]
    Gate(#[from] exuvia_rollout::Error),
    /// The gate refused.
    #[error("{0}")]
    Refused(String, u8),
    /// A write or read failed.
    #[error(transparent)]
    Write(#[from] exuvia_write::Error),
    /// Something could not be read.
    #[error("cannot read {what}: {}", exuvia_write::brief(source))]
    Read {
        /// What.
        what: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// No cluster is configured.
    #[error("no cluster is configured: give --kubeconfig, or run inside a cluster")]
    NoCluster,
    /// A port cannot be listened on.
    #[error(transparent)]
    Listen(#[from] std::io::Error),
    /// The same for the second port.
    #[error(transparent)]
    Admin(#[from] exuvia_runtime::Error),
}

impl Error {
    /// The exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Intent(_) | Self::Origin(_) | Self::Token { .. } => EXIT_CONFIG,
            Self::Gate(error) => error.exit_code(),
            Self::Refused(_, code) => *code,
            Self::Write(error) => match error.class() {
                ErrorClass::Denied | ErrorClass::Invalid | ErrorClass::Fatal => exit::FAILED,
                _ => exit::TRY_AGAIN,
            },
            Self::Read { source, .. } => match **source {
                // A missing right does not pass by itself.
                kube::Error::Api(ref status) if matches!(status.code, 401 | 403) => exit::FAILED,
                _ => exit::TRY_AGAIN,
            },
            Self::Listen(_) | Self::Admin(_) | Self::NoCluster => exit::FAILED,
        }
    }
}

/// Runs until `stop`, or until the gate refuses. `config` is the way to the API server, which is not needed for backends by URL.
pub async fn run(
    settings: RunSettings,
    config: Option<kube::Config>,
    log_level: LogLevel,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    let token = token(&settings)?; // what cannot change is checked before anything is waited for
    let mut stop = pin!(stop);
    let health = Health::for_checks(&[(BACKEND_CHECK, "not applied yet")]);
    let metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
    let frozen = settings.names.config_hash_env.as_deref().and_then(settings.env);
    let admin = bind(&settings.admin_listen).await?;
    tracing::info!(listen = %admin.local_addr()?, "admin server starts");
    let (_leave, mut left) = watch::channel(());
    let admin = serve(admin, health.clone(), metrics.clone(), log_level, async move {
        let _ = left.changed().await; // fails when the sender is dropped, and that is the signal
    });
    tokio::spawn(admin);

    let read = run_config::read(&settings.config_paths, frozen.as_deref(), settings.mount_patience);
    let found = tokio::select! {
        found = read => found?,
        () = stop.as_mut() => return Ok(()),
    };
    let FoundConfig {
        path, config: run, ..
    } = &found;
    tracing::info!(config = %path.display(), server = run.name, namespace = run.namespace, "run config read");
    let backends = Backends::default();
    let serving = Serving::bind(&settings, run, &backends, &metrics).await?;
    if !settings.backends.is_empty() {
        backends.set(settings.backends.iter().cloned());
        tracing::info!(
            backends = settings.backends.len(),
            "backends are given by URL: serving"
        );
        health.passed(BACKEND_CHECK, "given by URL");
        serving.until(stop, &health).await;
        return Ok(());
    }

    let writer = Writer::named(settings.names.field_manager.to_string())
        .user_agent(format!("mcp-runner/{}", env!("CARGO_PKG_VERSION")))
        .observe(metrics.observe_writes());
    let client = writer.connect(config.ok_or(Error::NoCluster)?)?;
    let runner = Runner::new(client, writer, &settings, &found, token, &metrics);
    let (namespace, name, port) = (run.namespace.clone(), run.name.clone(), run.mcp_port);
    let watching = runner.client().clone();
    let pods = pods::follow_pods(watching, &namespace, &name, port, &metrics, &backends);
    let backend = runner.keep(&health, &metrics);
    tokio::select! {
        () = serving.until(stop, &health) => Ok(()),
        () = pods => Ok(()),
        refused = backend => refused,
    }
}

/// The token that the pod was made with.
fn token(settings: &RunSettings) -> Result<Option<Token>, Error> {
    let Some(variable) = &settings.names.fence_env else {
        return Ok(None);
    };
    Token::from_env((settings.env)(variable).as_deref()).map_err(|source| Error::Token {
        variable: variable.to_string(),
        source,
    })
}

/// What to do after an outcome: whether the backend is ours to wait for, or the end.
fn next(target: &ObjectRef, outcome: &Outcome) -> Result<bool, Error> {
    match outcome.next() {
        Next::Serve { is_current } => Ok(is_current),
        Next::NotReady { exit } => Err(Error::Refused(refusal(target, outcome), exit)),
    }
}

/// The last words of a runner that the gate refused: cause and fix. The log has the stamps.
fn refusal(target: &ObjectRef, outcome: &Outcome) -> String {
    let fix = match (outcome.decision.action, outcome.decision.row) {
        (Action::RefuseTorn, _) => {
            "delete this pod, so that a new one mounts the run config that its template names"
        }
        (Action::RefuseOrphan, _) => {
            "this pod ends with its owner; if the MCPServer is still wanted, create it again"
        }
        (Action::RefuseUnversioned, 5) => {
            "let the operator make this pod, which then has MCP_FENCE, or delete the target if nobody needs it"
        }
        (Action::RefuseUnversioned, _) => {
            "see whose the target is, and delete it if nobody needs it: the next start of this pod makes it again"
        }
        _ => "the next start of this pod tries again",
    };
    let cause = outcome.event().map(|event| event.message);
    format!(
        "the gate refuses {target}: {}; {fix}",
        cause.unwrap_or_else(|| outcome.log_line())
    )
}

#[cfg(test)]
mod tests {
    use exuvia_rollout::{Decision, Generation};
    use k8s_openapi::api::apps::v1::StatefulSet;

    use super::*;

    #[test]
    fn the_last_words_of_a_refused_runner_are_a_sentence_with_cause_and_fix() {
        let target = ObjectRef::typed::<StatefulSet>("default", "a-backend");
        for action in Action::ALL {
            let Next::NotReady { exit } = action.next() else {
                continue;
            };
            for row in 1..=15 {
                let outcome = Outcome {
                    decision: Decision::new(row, action),
                    ours: Some("a/5".to_owned()),
                    theirs: None,
                    generation: Generation::choose(None, Some(1)),
                    object: None,
                    rounds: 1,
                };
                let error = next(&target, &outcome).expect_err("it is refused");
                assert_eq!(error.exit_code(), exit, "{action:?}");
                let said = error.to_string();
                assert!(said.contains("default/a-backend: "), "{said}");
                assert!(!said.contains('=') && said.contains("; "), "{said}");
            }
        }
    }
}
