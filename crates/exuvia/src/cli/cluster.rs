//! The cluster that a command works on: kubeconfig, context, a client that never waits for ever.

use std::path::Path;

use anyhow::{Context, anyhow, bail};
use exuvia_write::Writer;
use kube::config::{KubeConfigOptions, Kubeconfig};
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
        let kubeconfig = Kubeconfig::read_from(path)
            .with_context(|| format!("cannot read the kubeconfig {}", path.display()))?;
        return Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .context("the kubeconfig cannot be used");
    }
    if context.is_some() {
        return Config::from_kubeconfig(&options)
            .await
            .context("the kubeconfig cannot be used");
    }
    // With KUBECONFIG set, what is wrong with it is the news; inferring would talk about pods, too.
    if let Some(path) = std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty()) {
        let path = path.to_string_lossy().into_owned();
        return Config::from_kubeconfig(&options).await.map_err(|error| {
            anyhow!(
                "KUBECONFIG names {path}, which cannot be used: {}",
                root_cause(&error)
            )
        });
    }
    Config::infer().await.map_err(|_| {
        anyhow!("no cluster is configured: set KUBECONFIG, give --kubeconfig, or run inside a cluster")
    })
}

impl Cluster {
    pub(super) async fn connect(args: &ClusterArgs) -> anyhow::Result<Self> {
        let config = config(args.kubeconfig.as_deref(), args.context.as_deref()).await?;
        let writer = Writer::named("exuvia").user_agent(concat!("exuvia/", env!("CARGO_PKG_VERSION")));
        let client = writer.connect(config.clone())?;
        // The one place that can say where it tried to go. What the answer is does not matter here.
        if let Err(error) = client.apiserver_version().await
            && !matches!(error, kube::Error::Api(_))
        {
            let context = args
                .context
                .as_deref()
                .map(|name| format!(" (context {name})"))
                .unwrap_or_default();
            bail!(
                "the API server at {}{context} cannot be reached: {}; check the kubeconfig and the network",
                config.cluster_url,
                root_cause(&error)
            );
        }
        Ok(Self {
            config,
            client,
            writer,
        })
    }
}

fn root_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), root_cause)
}
