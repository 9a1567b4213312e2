//! The stage: a control plane with kwok nodes, the operator, and ways to wait.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use exuvia_testenv::assets::Assets;
use exuvia_testenv::{ControlPlane, Kubelet, Process};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use mcp_operator::api::{MCPServer, PART_BACKEND, PART_LABEL, PART_PROXY, SERVER_LABEL, crds};
use serde_json::{Value, json};

use crate::kit::{CONTROLLERS, MCP_PORT, PROXY_PORT};
use crate::pods::Pods;

/// What does not happen within this time does not happen.
const PATIENCE: Duration = Duration::from_secs(180);

/// Everything ends when it is dropped.
pub(crate) struct Stage {
    // Dropped from top to bottom: the operator before its server.
    operator: Process,
    pub(crate) client: Client,
    pub(crate) control_plane: ControlPlane,
    /// Of Kubernetes.
    pub(crate) version: String,
    runner: PathBuf,
    this: PathBuf,
}

impl Stage {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let this = std::env::current_exe().context("cannot tell where this program is")?;
        let (operator, runner) = (built(&this, "mcp-operator")?, built(&this, "mcp-runner")?);
        let control_plane = ControlPlane::builder()
            .assets(Assets::from_env()?)
            .controllers(CONTROLLERS)
            .fake_nodes()
            .leave_pods(PART_LABEL, PART_PROXY)
            .leave_pods(PART_LABEL, PART_BACKEND)
            .start()
            .await?;
        control_plane.add_nodes(2).await?;
        let client = control_plane.client()?;
        let version = client.apiserver_version().await?.git_version;
        let crd_api: Api<CustomResourceDefinition> = Api::all(client.clone());
        for crd in crds() {
            crd_api.create(&PostParams::default(), &crd).await?;
        }
        let servers: Api<MCPServer> = Api::all(client.clone());
        wait("the CRDs are served", async || {
            Ok(servers.list(&ListParams::default()).await.is_ok().then_some(()))
        })
        .await?;
        let args = [
            format!("--kubeconfig={}", control_plane.admin().kubeconfig()?.display()),
            "--runner-image=example.com/mcp-runner:1".to_owned(),
            "--leader-elect=false".to_owned(),
            "--listen=127.0.0.1:0".to_owned(),
            "--max-backoff=1s".to_owned(),
            "--resync=1s".to_owned(),
            "--pod-name=operator".to_owned(),
        ];
        let log = control_plane.directory().join("operator.log");
        Ok(Self {
            operator: Process::run("mcp-operator", operator, args, log)?,
            client,
            control_plane,
            version,
            runner,
            this,
        })
    }

    /// Where the operator logs to.
    pub(crate) fn operator_log(&self) -> &Path {
        self.operator.log_path()
    }

    /// A namespace whose pods run.
    pub(crate) async fn namespace(&self, name: &str) -> anyhow::Result<Kubelet> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        namespaces.create(&PostParams::default(), &namespace).await?;
        let kubeconfig = self.control_plane.admin().kubeconfig()?;
        let pods = Pods::new(self.runner.clone(), self.this.clone(), kubeconfig);
        Ok(Kubelet::start(
            self.client.clone(),
            name,
            self.control_plane.directory(),
            pods,
        ))
    }

    pub(crate) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(crate) async fn create_server(
        &self,
        namespace: &str,
        name: &str,
        image: &str,
        backends: i32,
    ) -> anyhow::Result<()> {
        let server = serde_json::from_value(json!({
            "apiVersion": "mcp.exuvia.dev/v1beta1", "kind": "MCPServer", "metadata": {"name": name},
            "spec": {"image": image, "mcpPort": MCP_PORT, "proxyPort": PROXY_PORT, "backendReplicas": backends},
        }))?;
        let servers: Api<MCPServer> = self.api(namespace);
        servers.create(&PostParams::default(), &server).await?;
        Ok(())
    }

    pub(crate) async fn patch_server(&self, namespace: &str, name: &str, patch: Value) -> anyhow::Result<()> {
        let servers: Api<MCPServer> = self.api(namespace);
        servers
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// The server, once a condition holds for its current generation.
    pub(crate) async fn server_when(
        &self,
        namespace: &str,
        name: &str,
        condition: &str,
    ) -> anyhow::Result<MCPServer> {
        let servers: Api<MCPServer> = self.api(namespace);
        wait(&format!("MCPServer {name} is {condition}"), async || {
            let server = servers.get(name).await?;
            let status = server.status.clone().unwrap_or_default();
            let mut facts = status.conditions.iter();
            let holds = facts.any(|fact| fact.type_ == condition && fact.status == "True");
            let is_current = status.observed_generation == server.metadata.generation;
            Ok((holds && is_current).then_some(server))
        })
        .await
    }

    pub(crate) async fn backend(&self, namespace: &str, server: &str) -> anyhow::Result<Option<StatefulSet>> {
        let sets: Api<StatefulSet> = self.api(namespace);
        Ok(sets.get_opt(&format!("{server}-backend")).await?)
    }

    /// The pods of a server's proxy.
    pub(crate) async fn proxies(&self, namespace: &str, server: &str) -> anyhow::Result<Vec<Pod>> {
        let which =
            ListParams::default().labels(&format!("{SERVER_LABEL}={server},{PART_LABEL}={PART_PROXY}"));
        Ok(self.api::<Pod>(namespace).list(&which).await?.items)
    }

    /// A pod of a server's proxy with this annotation.
    pub(crate) async fn proxy_with(
        &self,
        namespace: &str,
        server: &str,
        key: &str,
        value: &str,
    ) -> anyhow::Result<Pod> {
        wait(&format!("a runner's pod with {key} {value}"), async || {
            let pods = self.proxies(namespace, server).await?;
            let mut pods = pods.into_iter();
            Ok(pods.find(|pod| pod.annotations().get(key).is_some_and(|own| own == value)))
        })
        .await
    }
}

/// A program that was built with this one.
fn built(this: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let directory = this.parent().and_then(Path::parent);
    let path = directory.context("this program has no directory")?.join(name);
    if !path.exists() {
        bail!("{} is not built: run `cargo xtask demo mcp`", path.display());
    }
    Ok(path)
}

/// Polls until there is an answer.
pub(crate) async fn wait<T>(
    what: &str,
    mut poll: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let since = Instant::now();
    loop {
        if let Some(answer) = poll().await? {
            return Ok(answer);
        }
        if since.elapsed() > PATIENCE {
            bail!("waited {} s in vain until {what}", PATIENCE.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The image of a backend, without its registry.
pub(crate) fn image(backend: &StatefulSet) -> String {
    let pod = backend.spec.template.spec.as_ref();
    let image = pod.and_then(|pod| pod.containers.first()?.image.clone());
    let image = image.unwrap_or_default();
    image.rsplit('/').next().unwrap_or_default().to_owned()
}
