//! A control plane with the CRDs, one namespace per test, and ways to look at what is in it.

use std::fmt::Debug;
use std::path::PathBuf;

use exuvia_testenv::proxy::Proxy;
use exuvia_testenv::{ControlPlane, until};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use mcp_operator::api::{MCPServer, PART_LABEL, PART_PROXY, crds};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::kit::CONTROLLERS;
pub(crate) use crate::kit::{MCP_PORT, PROXY_PORT};

/// The shared control plane: deployments, stateful sets, garbage collection and scheduling work; kwok makes backends ready, unless
/// their image is bad; the pods of runners are left to the test's kubelet.
pub(crate) async fn control_plane() -> &'static ControlPlane {
    static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
    SHARED
        .get_or_init(async || {
            let control_plane = ControlPlane::builder()
                .controllers(CONTROLLERS)
                .fake_nodes()
                .leave_pods(PART_LABEL, PART_PROXY)
                .unready_images("bad")
                .start()
                .await
                .unwrap();
            control_plane.add_nodes(2).await.unwrap();
            install_crds(&control_plane.client().unwrap()).await;
            control_plane
        })
        .await
}

/// Installs the CRDs and waits until they are served.
pub(crate) async fn install_crds(client: &Client) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in crds() {
        api.create(&PostParams::default(), &crd).await.unwrap();
        until("the CRD is established", async || {
            let crd = api.get(&crd.name_any()).await.ok()?;
            let conditions = crd.status?.conditions?;
            conditions
                .iter()
                .any(|fact| fact.type_ == "Established" && fact.status == "True")
                .then_some(())
        })
        .await;
    }
}

/// One test's namespace.
pub(crate) struct World {
    pub(crate) control_plane: &'static ControlPlane,
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl World {
    pub(crate) async fn new(namespace: &str) -> Self {
        let control_plane = control_plane().await;
        let client = control_plane.client().unwrap();
        let api: Api<Namespace> = Api::all(client.clone());
        let object = serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
        Self {
            control_plane,
            client,
            namespace: namespace.to_owned(),
        }
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Servers with every field that they have, also those that the operator's type does not know.
    pub(crate) fn raw_servers(&self) -> Api<DynamicObject> {
        let resource = ApiResource::erase::<MCPServer>(&());
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    pub(crate) async fn create_server(&self, name: &str, spec: Value) -> MCPServer {
        let server = serde_json::from_value(json!({
            "apiVersion": "mcp.exuvia.dev/v1beta1",
            "kind": "MCPServer",
            "metadata": {"name": name},
            "spec": spec,
        }))
        .unwrap();
        self.api().create(&PostParams::default(), &server).await.unwrap()
    }

    pub(crate) async fn server(&self, name: &str) -> MCPServer {
        self.api().get(name).await.unwrap()
    }

    /// A merge patch of a server, as a person would send it.
    pub(crate) async fn patch_server(&self, name: &str, patch: Value) -> MCPServer {
        let api: Api<MCPServer> = self.api();
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap()
    }

    pub(crate) async fn annotate(&self, name: &str, key: &str, value: &str) -> MCPServer {
        self.patch_server(name, json!({"metadata": {"annotations": {key: value}}}))
            .await
    }

    /// The object, once it is there and `holds`.
    async fn when<K>(&self, name: &str, what: &str, holds: impl Fn(&K) -> bool) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        let api: Api<K> = self.api();
        until(&format!("{} {name}: {what}", K::kind(&())), async || {
            let found = api.get_opt(name).await.map_err(|error| format!("{error:?}"))?;
            let found = found.ok_or("absent".to_owned())?;
            if holds(&found) {
                Ok(found)
            } else {
                Err(format!("{found:?}"))
            }
        })
        .await
    }

    /// The Deployment, once `holds`.
    pub(crate) async fn deployment_when(
        &self,
        name: &str,
        what: &str,
        holds: impl Fn(&Deployment) -> bool,
    ) -> Deployment {
        self.when(name, what, holds).await
    }

    /// The server, once `holds`.
    pub(crate) async fn server_when(
        &self,
        name: &str,
        what: &str,
        holds: impl Fn(&MCPServer) -> bool,
    ) -> MCPServer {
        self.when(name, what, holds).await
    }

    /// The backend of the server, once `holds`.
    pub(crate) async fn backend_when(
        &self,
        name: &str,
        what: &str,
        holds: impl Fn(&StatefulSet) -> bool,
    ) -> StatefulSet {
        self.when(&format!("{name}-backend"), what, holds).await
    }

    pub(crate) async fn pods(&self, name: &str, part: &str) -> Vec<Pod> {
        let which = ListParams::default().labels(&format!(
            "mcp.exuvia.dev/server={name},mcp.exuvia.dev/part={part}"
        ));
        self.api::<Pod>().list(&which).await.unwrap().items
    }

    pub(crate) async fn run_configs(&self, name: &str) -> Vec<ConfigMap> {
        let which = ListParams::default().labels(&format!("{}={name}", exuvia_rollout::FROZEN_LABEL));
        self.api::<ConfigMap>().list(&which).await.unwrap().items
    }

    /// A fault proxy, and a kubeconfig that goes through it.
    pub(crate) async fn proxied(&self) -> (Proxy, PathBuf) {
        let proxy = self.control_plane.proxy().await.unwrap();
        let port = proxy.address().port();
        let path = self
            .control_plane
            .directory()
            .join(format!("proxied-{port}.yaml"));
        std::fs::write(&path, proxy.kubeconfig_yaml()).unwrap();
        (proxy, path)
    }
}

/// Whether a condition holds for the current generation.
pub(crate) fn is_true(server: &MCPServer, condition: &str) -> bool {
    let status = server.status.as_ref();
    status.is_some_and(|status| {
        status.observed_generation == server.metadata.generation
            && status
                .conditions
                .iter()
                .any(|fact| fact.type_ == condition && fact.status == "True")
    })
}

/// The stamp of a template, by the annotation's name.
pub(crate) fn template_annotation(deployment: &Deployment, key: &str) -> Option<String> {
    let template = &deployment.spec.template;
    template
        .metadata
        .as_ref()?
        .annotations
        .as_ref()?
        .get(key)
        .cloned()
}

/// A spec with what every test needs.
pub(crate) fn spec(image: &str) -> Value {
    json!({"image": image, "mcpPort": MCP_PORT, "proxyPort": PROXY_PORT})
}
