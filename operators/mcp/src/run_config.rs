//! The run config: what the operator tells the runner, as a file that never changes once it is mounted.

mod mistake;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use exuvia_rollout::gate::strict::Config;
use exuvia_rollout::{ReadConfig, hash_bytes, read_settled};
use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, LocalObjectReference, ResourceRequirements};
use serde::{Deserialize, Serialize};

use self::mistake::mistake;
use crate::api::{MCPServer, Transport};

/// The name of the file, in the `ConfigMap` and where it is mounted.
pub const FILE: &str = "runconfig.json";

/// Where the operator mounts it.
pub const MOUNT: &str = "/etc/runconfig";

/// What the runner needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunConfig {
    /// The name of the `MCPServer`.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its generation: what the compat gate compares.
    #[serde(default)]
    pub generation: i64,
    /// The image of the MCP server.
    pub image: String,
    /// The image that the bridge of a stdio server is copied from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge_image: Option<String>,
    /// How the MCP server speaks.
    #[serde(default)]
    pub transport: Transport,
    /// The path of its endpoint.
    pub path: String,
    /// The port that it listens on.
    pub mcp_port: u16,
    /// The port that clients connect to.
    pub proxy_port: u16,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Its environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Where more environment variables come from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_from: Vec<EnvFromSource>,
    /// Secrets for pulling the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Resources of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// The service account of the backend pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// How many backend pods, if that is not left to others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_replicas: Option<i32>,
    /// Whether each request may go to any pod.
    #[serde(default)]
    pub stateless: bool,
    /// Values of `Origin` that are let through.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_origins: Vec<String>,
    /// What a gateway in front adds to paths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint_prefix: Option<String>,
    /// Whether a proxy in front is believed.
    #[serde(default)]
    pub trust_proxy_headers: bool,
    /// The largest body of a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_body_bytes: Option<u64>,
    /// The tools that clients see and may call; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools_filter: Vec<String>,
    /// The last restart that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted_at: Option<String>,
}

impl RunConfig {
    /// What a server's spec says. `tools` and `restarted_at` come from elsewhere, and so does the image of the bridge.
    pub fn new(
        server: &MCPServer,
        tools: Vec<String>,
        restarted_at: Option<String>,
        bridge_image: &str,
    ) -> Self {
        let spec = &server.spec;
        let meta = &server.metadata;
        Self {
            name: meta.name.clone().unwrap_or_default(),
            namespace: meta.namespace.clone().unwrap_or_default(),
            generation: meta.generation.unwrap_or_default(),
            image: spec.image.clone(),
            bridge_image: (spec.transport == Transport::Stdio).then(|| bridge_image.to_owned()),
            transport: spec.transport,
            path: spec.path.clone(),
            mcp_port: spec.mcp_port,
            proxy_port: spec.proxy_port,
            args: spec.args.clone(),
            env: spec.env.clone(),
            env_from: spec.env_from.clone(),
            image_pull_secrets: spec.image_pull_secrets.clone(),
            resources: spec.resources.clone(),
            service_account: spec.service_account.clone(),
            backend_replicas: spec.backend_replicas,
            stateless: spec.stateless,
            allowed_origins: spec.allowed_origins.clone(),
            endpoint_prefix: spec.endpoint_prefix.clone(),
            trust_proxy_headers: spec.trust_proxy_headers,
            max_body_bytes: spec.max_body_bytes,
            tools_filter: tools,
            restarted_at,
        }
    }

    /// The text of the file.
    pub fn to_text(&self) -> String {
        // Strings, numbers and lists: nothing in it can fail to be written.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

/// A run config as it was found.
#[derive(Clone, Debug)]
pub struct FoundConfig {
    /// Where.
    pub path: PathBuf,
    /// What it says.
    pub config: RunConfig,
    /// The whole file, for fields that other operators name differently.
    pub json: serde_json::Value,
    /// The hash of the file's bytes.
    pub hash: String,
    /// Whether it is the one that the pod was made for.
    pub whole: Config,
}

/// Why no run config was read.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// None of the files is there.
    #[error("no run config: expected one of {}; mount it, or give --config", tried.join(", "))]
    Missing {
        /// Where it was looked for.
        tried: Vec<String>,
    },
    /// The first that is there cannot be read.
    #[error("cannot read the run config {path}: {source}")]
    Unreadable {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The first that is there is not a run config. What the file says is not repeated: it may hold secrets.
    #[error("invalid run config {path}: {what}")]
    Broken {
        /// Which.
        path: String,
        /// What is wrong, and where.
        what: String,
    },
}

/// The first file of the list that exists. A broken one is an error later on: the next one would be somebody else's.
pub fn locate(paths: &[PathBuf]) -> Result<&Path, ConfigError> {
    let found = paths.iter().find(|path| path.exists());
    found.map(PathBuf::as_path).ok_or_else(|| ConfigError::Missing {
        tried: paths.iter().map(|path| path.display().to_string()).collect(),
    })
}

/// Reads the run config from the first file that exists. It waits up to `patience` for the file that the pod was made for, whose
/// hash is `frozen`: a mount may lag behind.
pub async fn read(
    paths: &[PathBuf],
    frozen: Option<&str>,
    patience: Duration,
) -> Result<FoundConfig, ConfigError> {
    let path = locate(paths)?;
    let unreadable = |source| ConfigError::Unreadable {
        path: path.display().to_string(),
        source,
    };
    let mut is_told = false;
    let read = || {
        let read = std::fs::read(path);
        if !std::mem::replace(&mut is_told, true)
            && let Some(line) = waiting(&read, frozen, patience)
        {
            tracing::info!(config = %path.display(), "{line}");
        }
        read
    };
    let read = read_settled(read, frozen, patience).await;
    parse(path, read.map_err(unreadable)?)
}

/// What is said when a wait begins; `None` if there is nothing to wait for.
fn waiting(read: &io::Result<Vec<u8>>, frozen: Option<&str>, patience: Duration) -> Option<String> {
    let frozen = frozen.filter(|hash| !hash.is_empty() && !patience.is_zero())?;
    let cause = match read {
        Ok(bytes) => {
            let hash = hash_bytes(bytes);
            if hash == frozen {
                return None;
            }
            format!("run config has hash {hash}, this pod was made for {frozen}")
        }
        Err(error) => format!("run config cannot be read ({error})"),
    };
    Some(format!("{cause}: waiting up to {} s", patience.as_secs_f64()))
}

fn parse(path: &Path, read: ReadConfig) -> Result<FoundConfig, ConfigError> {
    let bytes = read.bytes.as_slice();
    let broken = |what| ConfigError::Broken {
        path: path.display().to_string(),
        what,
    };
    let config: RunConfig = serde_json::from_slice(bytes).map_err(|error| broken(mistake(bytes, &error)))?;
    let json = serde_json::from_slice(bytes).map_err(|error| broken(mistake(bytes, &error)))?;
    for (field, value) in [
        ("name", &config.name),
        ("namespace", &config.namespace),
        ("image", &config.image),
    ] {
        if value.trim().is_empty() {
            return Err(broken(format!("field `{field}` is empty: give it a value")));
        }
    }
    for (field, port) in [("mcpPort", config.mcp_port), ("proxyPort", config.proxy_port)] {
        if port == 0 {
            return Err(broken(format!("field `{field}` is 0: expected 1 to 65535")));
        }
    }
    if let Err(expected) = mcp_proxy::cli::values::path(&config.path) {
        return Err(broken(format!("field `path`: {expected}")));
    }
    Ok(FoundConfig {
        path: path.to_owned(),
        config,
        json,
        hash: read.hash,
        whole: read.config,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const GOOD: &str =
        r#"{"name": "a", "namespace": "ns", "image": "i", "path": "/mcp", "mcpPort": 1, "proxyPort": 2}"#;

    fn files(contents: &[(&str, &str)]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let directory = tempfile::tempdir().unwrap();
        let paths = contents.iter().map(|(name, content)| {
            let path = directory.path().join(name);
            if !content.is_empty() {
                std::fs::write(&path, content).unwrap();
            }
            path
        });
        let paths = paths.collect();
        (directory, paths)
    }

    fn find(paths: &[PathBuf]) -> Result<FoundConfig, ConfigError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(read(paths, None, Duration::ZERO))
    }

    #[test]
    fn the_first_file_that_exists_wins() {
        let other = GOOD.replace("\"a\"", "\"b\"");
        let (_directory, paths) = files(&[("missing", ""), ("first", GOOD), ("second", &other)]);
        let found = find(&paths).unwrap();
        assert_eq!(found.config.name, "a");
        assert_eq!(found.path, paths[1]);
        assert_eq!(found.hash, exuvia_rollout::hash_bytes(GOOD.as_bytes()));
    }

    #[test]
    fn a_missing_file_is_an_error_that_names_every_place() {
        let (_directory, paths) = files(&[("one", ""), ("two", "")]);
        let error = find(&paths).unwrap_err().to_string();
        assert!(
            error.contains("/one, ") && error.contains("/two; mount it"),
            "{error}"
        );
    }

    #[test]
    fn a_broken_file_is_an_error_and_the_next_one_is_not_taken() {
        for broken in ["{\"name\": ", "{\"name\": \"s3cret\"}", "[]", "s3cret"] {
            let (_directory, paths) = files(&[("broken", broken), ("good", GOOD)]);
            let error = find(&paths).unwrap_err().to_string();
            assert!(error.starts_with("invalid run config"), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn an_empty_name_or_image_is_refused_by_name() {
        for field in ["name", "namespace", "image"] {
            let mut config: serde_json::Value = serde_json::from_str(GOOD).unwrap();
            config[field] = " ".into();
            let (_directory, paths) = files(&[("empty", &config.to_string())]);
            let error = find(&paths).unwrap_err().to_string();
            assert!(error.contains(&format!("field `{field}` is empty")), "{error}");
        }
    }

    #[test]
    fn a_wait_says_what_is_waited_for_and_how_long() {
        let minute = Duration::from_secs(60);
        let hash = hash_bytes(b"x");
        assert_eq!(
            waiting(&Ok(b"x".to_vec()), Some("abc"), minute).unwrap(),
            format!("run config has hash {hash}, this pod was made for abc: waiting up to 60 s")
        );
        let denied = || Err(io::Error::from(io::ErrorKind::PermissionDenied));
        let said = waiting(&denied(), Some("abc"), minute).unwrap();
        assert!(said.ends_with("waiting up to 60 s"), "{said}");
        for (read, frozen, patience) in [
            (Ok(b"x".to_vec()), Some(hash.as_str()), minute),
            (Ok(b"x".to_vec()), None, minute),
            (Ok(b"x".to_vec()), Some(""), minute),
            (Ok(b"x".to_vec()), Some("abc"), Duration::ZERO),
            (denied(), None, minute),
        ] {
            assert_eq!(waiting(&read, frozen, patience), None);
        }
    }

    #[test]
    fn a_run_config_survives_being_written_and_read() {
        let config: RunConfig = serde_json::from_str(GOOD).unwrap();
        let again: RunConfig = serde_json::from_str(&config.to_text()).unwrap();
        assert_eq!(config, again);
    }
}
