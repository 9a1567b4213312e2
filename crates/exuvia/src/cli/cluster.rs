//! The cluster that a command works on: kubeconfig, context, a client that never waits for ever.

use std::path::Path;

use anyhow::{Context, anyhow, bail};
use exuvia_write::Writer;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Status;
use kube::{Client, Config};

use super::args::ClusterArgs;

/// A connection, and what it was made from.
pub(super) struct Cluster {
    pub(super) config: Config,
    pub(super) client: Client,
    pub(super) writer: Writer,
}

/// Where to go and as whom, from a kubeconfig or from inside a cluster.
pub(super) async fn config(kubeconfig: Option<&Path>, context: Option<&str>) -> anyhow::Result<Config> {
    let options = KubeConfigOptions {
        context: context.map(str::to_owned),
        ..KubeConfigOptions::default()
    };
    if let Some(path) = kubeconfig {
        let read = Kubeconfig::read_from(path).map_err(|error| {
            anyhow!(
                "cannot read the kubeconfig {}: {}",
                path.display(),
                root_cause(&error)
            )
        })?;
        return choose(read, &options).await;
    }
    // With KUBECONFIG set, what is wrong with it is the news; inferring would talk about pods, too.
    if let Some(path) = std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty()) {
        let read = Kubeconfig::read().map_err(|error| {
            anyhow!(
                "KUBECONFIG names {}, which cannot be used: {}",
                path.to_string_lossy(),
                root_cause(&error)
            )
        })?;
        return choose(read, &options).await;
    }
    if context.is_some() {
        let read = Kubeconfig::read().map_err(|error| {
            anyhow!(
                "--context is given, but ~/.kube/config cannot be read: {}",
                root_cause(&error)
            )
        })?;
        return choose(read, &options).await;
    }
    Config::infer().await.map_err(|_| {
        anyhow!("no cluster is configured: set KUBECONFIG, give --kubeconfig, or run inside a cluster")
    })
}

/// The names of all contexts.
pub(super) async fn contexts(kubeconfig: Option<&Path>) -> anyhow::Result<Vec<String>> {
    let read = match kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let Ok(read) = read else {
        // What is wrong with it, somebody else says; inside of a cluster nothing is.
        config(kubeconfig, None).await?;
        bail!("there is no kubeconfig, and so there are no contexts: give --kubeconfig");
    };
    Ok(read.contexts.into_iter().map(|context| context.name).collect())
}

/// What the kubeconfig says of one context.
async fn choose(kubeconfig: Kubeconfig, options: &KubeConfigOptions) -> anyhow::Result<Config> {
    let wanted = options.context.as_ref().or(kubeconfig.current_context.as_ref());
    if let Some(wanted) = wanted
        && kubeconfig.contexts.iter().all(|context| context.name != *wanted)
    {
        let names: Vec<&str> = kubeconfig
            .contexts
            .iter()
            .map(|context| context.name.as_str())
            .collect();
        let names = if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        };
        bail!("the kubeconfig has no context {wanted:?}: it has {names}");
    }
    Config::from_custom_kubeconfig(kubeconfig, options)
        .await
        .context("the kubeconfig cannot be used")
}

impl Cluster {
    pub(super) async fn connect(args: &ClusterArgs) -> anyhow::Result<Self> {
        let config = config(args.kubeconfig.as_deref(), args.context.as_deref()).await?;
        let writer = Writer::named("exuvia").user_agent(concat!("exuvia/", env!("CARGO_PKG_VERSION")));
        let client = writer.connect(config.clone())?;
        // The one place that can say where it tried to go. What the answer is does not matter here.
        if let Err(error) = client.apiserver_version().await
            && let Some(why) = unusable(&error)
        {
            let context = args
                .context
                .as_deref()
                .map(|name| format!(" (context {name})"))
                .unwrap_or_default();
            bail!("the API server at {}{context} {why}", config.cluster_url);
        }
        Ok(Self {
            config,
            client,
            writer,
        })
    }
}

/// Why there is no Kubernetes API; `None` if there is one, whatever it says.
fn unusable(error: &kube::Error) -> Option<String> {
    match error {
        kube::Error::Api(status) if is_foreign(status) => Some(format!(
            "does not answer as a Kubernetes API does: {}; check the server's URL in the kubeconfig",
            answer(status)
        )),
        kube::Error::Api(_) => None,
        kube::Error::SerdeError(_) => Some(
            "does not answer as a Kubernetes API does; check the server's URL in the kubeconfig".to_owned(),
        ),
        other => Some(format!(
            "cannot be reached: {}; check the kubeconfig and the network",
            root_cause(other)
        )),
    }
}

/// Whether the answer is text that no Kubernetes API writes, such as a proxy's page. The client marks it so.
fn is_foreign(status: &Status) -> bool {
    status.reason == "Failed to parse error data"
}

/// What the server said, with the way out where it names none. Of a page only the beginning.
pub(super) fn answer(status: &Status) -> String {
    let mut said = status.message.clone();
    if is_foreign(status) {
        let words: Vec<&str> = said.split_whitespace().collect();
        let line: String = words.join(" ").chars().take(80).collect();
        said = format!("HTTP {}, {line:?}", status.code);
    }
    if status.code == 401 {
        said.push_str(
            ": the credentials of the kubeconfig's user are not accepted; log in again, or give another --kubeconfig or \
             --context",
        );
    }
    said
}

fn root_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), root_cause)
}
