//! Each fault of the proxy, shown on a real API server: what the client saw, and what the cluster holds.
#![allow(clippy::unwrap_used)] // a test may panic
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]

use exuvia_testenv::proxy::Proxy;
use exuvia_testenv::{ControlPlane, soon};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;

mod reads;
mod wire;
mod writes;

/// A proxy for this test to the shared API server, and the config maps on either side of it.
struct Setup {
    proxy: Proxy,
    direct: Api<ConfigMap>,
    through: Api<ConfigMap>,
}

async fn setup() -> Setup {
    let control_plane = ControlPlane::shared().await;
    let proxy = control_plane.proxy().await.unwrap();
    let direct = Api::namespaced(control_plane.client().unwrap(), "default");
    let through = Api::namespaced(proxy.client().unwrap(), "default");
    Setup {
        proxy,
        direct,
        through,
    }
}

/// A config map with a label by which a test finds its own.
fn config_map(test: &str, name: &str) -> ConfigMap {
    let metadata = json!({"name": name, "labels": {"test": test}});
    serde_json::from_value(json!({"metadata": metadata, "data": {"n": "0"}})).unwrap()
}

fn labelled(test: &str) -> ListParams {
    ListParams::default().labels(&format!("test={test}"))
}

async fn create(api: &Api<ConfigMap>, name: &str) -> Result<ConfigMap, kube::Error> {
    soon(api.create(&PostParams::default(), &config_map(name, name))).await
}

fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}
