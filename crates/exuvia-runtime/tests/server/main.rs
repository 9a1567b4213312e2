//! The runtime on a real API server, and behind a proxy that breaks what it is told to: one control plane for all.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]

mod asking;
mod carrying;
mod electing;
mod following;
mod keeper;
mod leading;
#[path = "../open_metrics/mod.rs"]
mod open_metrics;
mod telling;
mod toy;

use std::borrow::Cow;

use exuvia_testenv::{ControlPlane, Widgets, proxy::Proxy, soon, until};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DeleteParams, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams},
    core::DynamicResourceScope,
};
use serde::{Deserialize, Serialize};

/// A widget, to whom a size above 255 is nonsense.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Widget {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: Spec,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) size: u8,
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

/// A group for this test, and two ways to the server.
pub(crate) struct Stage {
    pub(crate) widgets: Widgets,
    pub(crate) direct: Client,
    pub(crate) proxied: Client,
    pub(crate) proxy: Proxy,
}

impl Stage {
    /// With the CRD. `name` is the group's first part: one per test, which keeps them apart.
    pub(crate) async fn set(name: &str) -> Self {
        let stage = Self::bare(name).await;
        stage.widgets.install(&stage.direct, "v1").await.unwrap();
        stage
    }

    /// Without the CRD.
    pub(crate) async fn bare(name: &str) -> Self {
        Self::at(ControlPlane::shared().await, name).await
    }

    pub(crate) async fn at(control_plane: &ControlPlane, name: &str) -> Self {
        let proxy = control_plane.proxy().await.unwrap();
        Self {
            widgets: Widgets::in_group(format!("{name}.example.com")),
            direct: control_plane.client().unwrap(),
            proxied: proxy.client().unwrap(),
            proxy,
        }
    }

    pub(crate) fn api(&self, client: &Client) -> Api<Widget> {
        Api::namespaced_with(client.clone(), "default", &self.widgets.resource("v1"))
    }

    pub(crate) async fn create(&self, name: &str) {
        let api = self.widgets.api(&self.direct, "v1");
        let widget = self.widgets.widget("v1", name);
        api.create(&PostParams::default(), &widget).await.unwrap();
    }

    pub(crate) async fn create_sized(&self, name: &str, size: i64) {
        let api = self.widgets.api(&self.direct, "v1");
        let mut widget = self.widgets.widget("v1", name);
        widget.data["spec"]["size"] = size.into();
        api.create(&PostParams::default(), &widget).await.unwrap();
    }

    pub(crate) async fn resize(&self, name: &str, size: i64) {
        let patch = serde_json::json!({"spec": {"size": size}});
        let api = self.widgets.api(&self.direct, "v1");
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }

    pub(crate) async fn delete(&self, name: &str) {
        let api = self.widgets.api(&self.direct, "v1");
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }
}
