//! What the writer does to a real API server, and what the API server does to it: one control plane for all.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]

mod exclusive;
mod faults;
mod finalizers;
mod footguns;
mod lifecycle;
mod missing;
mod ownership;
mod rewrite;
mod status;
mod wire;

use exuvia_testenv::{
    ControlPlane, Widgets,
    proxy::{Proxy, Recorded},
};
use exuvia_write::{Finalizer, RetryPolicy, Writer};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, ObjectMeta, PostParams},
    core::DynamicResourceScope,
};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, time::Duration};

pub(crate) const CLEANUP: Finalizer = Finalizer::new("write.example.com/cleanup");

/// A widget as an older program would know it: `spec.color`, `spec.tags` and `status.notes` are not in it.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Widget {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: Spec,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<Status>,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) size: i64,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub(crate) struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phase: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ready: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) conditions: Vec<Condition>,
}

impl Widget {
    pub(crate) fn status_mut(&mut self) -> &mut Status {
        self.status.get_or_insert_default()
    }
}

impl Resource for Widget {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(kind: &ApiResource) -> Cow<'_, str> {
        DynamicObject::kind(kind)
    }
    fn group(kind: &ApiResource) -> Cow<'_, str> {
        DynamicObject::group(kind)
    }
    fn version(kind: &ApiResource) -> Cow<'_, str> {
        DynamicObject::version(kind)
    }
    fn plural(kind: &ApiResource) -> Cow<'_, str> {
        DynamicObject::plural(kind)
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// A CRD for this test, and a way to it that records everything and breaks what it is told to.
pub(crate) struct Stage {
    pub(crate) widgets: Widgets,
    /// Straight to the server.
    pub(crate) direct: Client,
    /// Through the proxy.
    pub(crate) proxied: Client,
    pub(crate) proxy: Proxy,
    pub(crate) writer: Writer,
}

impl Stage {
    /// `name` is the group's first part: one per test, which keeps them apart on the shared control plane.
    pub(crate) async fn set(name: &str) -> Self {
        let stage = Self::bare(name).await;
        stage.widgets.install(&stage.direct, "v1").await.unwrap();
        stage
    }

    /// Without the CRD.
    pub(crate) async fn bare(name: &str) -> Self {
        let control_plane = ControlPlane::shared().await;
        let direct = control_plane.client().unwrap();
        let proxy = control_plane.proxy().await.unwrap();
        let writer = Writer::named("tester").retry(RetryPolicy {
            base: Duration::from_millis(10),
            cap: Duration::from_millis(50),
            ..RetryPolicy::default()
        });
        let kubeconfig = kube::config::Kubeconfig::from_yaml(&proxy.kubeconfig_yaml()).unwrap();
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .unwrap();
        let proxied = writer.connect(config).unwrap();
        let widgets = Widgets::in_group(format!("{name}.example.com"));
        Self {
            widgets,
            direct,
            proxied,
            proxy,
            writer,
        }
    }

    /// The widgets as the older program knows them, through the proxy.
    pub(crate) fn api(&self) -> Api<Widget> {
        Api::namespaced_with(self.proxied.clone(), "default", &self.widgets.resource("v1"))
    }

    /// The widgets as they are, straight from the server.
    pub(crate) fn raw(&self) -> Api<DynamicObject> {
        self.widgets.api(&self.direct, "v1")
    }

    /// A new widget, as the older program reads it.
    pub(crate) async fn widget(&self, name: &str) -> Widget {
        let widget = self.widgets.widget("v1", name);
        self.raw().create(&PostParams::default(), &widget).await.unwrap();
        self.read(name).await
    }

    /// Makes `v1` the storage version, and waits until the server has set up its storage again (PITFALLS A24).
    pub(crate) async fn flip(&self) {
        self.widgets.flip_storage(&self.direct, "v1").await.unwrap();
        exuvia_testenv::until("v1 is served again", async || self.raw().get("w").await).await;
    }

    /// As the older program reads it, without a trace in the proxy's log.
    pub(crate) async fn read(&self, name: &str) -> Widget {
        let api: Api<Widget> =
            Api::namespaced_with(self.direct.clone(), "default", &self.widgets.resource("v1"));
        api.get(name).await.unwrap()
    }

    /// Everything that the server has.
    pub(crate) async fn live(&self, name: &str) -> serde_json::Value {
        serde_json::to_value(self.raw().get(name).await.unwrap()).unwrap()
    }

    /// The one write that went through the proxy so far.
    pub(crate) fn only_write(&self) -> Recorded {
        let [only] = <[Recorded; 1]>::try_from(self.proxy.writes()).expect("exactly one write");
        only
    }
}
