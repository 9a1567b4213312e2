//! The cluster that a command works on: kubeconfig, context, a client that never waits for ever.

use anyhow::Context;
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

impl Cluster {
    pub(super) async fn connect(args: &ClusterArgs) -> anyhow::Result<Self> {
        let options = KubeConfigOptions {
            context: args.context.clone(),
            ..KubeConfigOptions::default()
        };
        let config = match &args.kubeconfig {
            Some(path) => {
                let kubeconfig = Kubeconfig::read_from(path)
                    .with_context(|| format!("cannot read the kubeconfig {}", path.display()))?;
                Config::from_custom_kubeconfig(kubeconfig, &options)
                    .await
                    .context("the kubeconfig cannot be used")?
            }
            None if args.context.is_some() => Config::from_kubeconfig(&options)
                .await
                .context("the kubeconfig cannot be used")?,
            None => Config::infer().await.context(
                "no cluster is configured: set KUBECONFIG, give --kubeconfig, or run inside a cluster",
            )?,
        };
        let writer = Writer::named("exuvia").user_agent(concat!("exuvia/", env!("CARGO_PKG_VERSION")));
        let client = writer.connect(config.clone())?;
        Ok(Self {
            config,
            client,
            writer,
        })
    }
}
