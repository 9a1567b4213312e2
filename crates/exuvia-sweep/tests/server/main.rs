//! Sweeps over objects of a real API server.
#![allow(clippy::unwrap_used)] // a test may panic
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]

mod everything;
mod expired;
mod faults;
mod pages;
mod pressure;
mod whole;

use std::{collections::BTreeMap, sync::Mutex};

use exuvia_sweep::{Pressure, Sweep, Verdict};
use exuvia_testenv::{ControlPlane, Widgets, proxy::Proxy, soon};
use exuvia_write::{Effect, ErrorClass, Redacted, Writer};
use kube::{
    Api, Client,
    api::{DynamicObject, ObjectMeta},
    core::PartialObjectMeta,
};

/// Widgets in a group for this test, and a client that reaches them through a proxy for this test.
struct Setup {
    proxy: Proxy,
    through: Client,
    direct: Client,
    widgets: Widgets,
}

/// So many widgets, stored at `v1alpha1`.
async fn setup(group: &str, count: usize) -> Setup {
    let control_plane = ControlPlane::shared().await;
    let proxy = control_plane.proxy().await.unwrap();
    let direct = control_plane.client().unwrap();
    let widgets = Widgets::in_group(group);
    widgets.install(&direct, "v1alpha1").await.unwrap();
    widgets.create(&direct, "v1alpha1", count).await.unwrap();
    let through = proxy.client().unwrap();
    Setup {
        proxy,
        through,
        direct,
        widgets,
    }
}

impl Setup {
    /// A sweep with pages of ten, through the proxy.
    fn sweep(&self) -> Sweep {
        Sweep::of(self.through.clone(), &self.widgets.resource("v1")).page_size(10)
    }

    /// The objects of all namespaces, for writing through the proxy.
    fn api(&self) -> Api<DynamicObject> {
        Api::all_with(self.through.clone(), &self.widgets.resource("v1"))
    }

    fn lists(&self) -> usize {
        let requests = self.proxy.requests();
        requests.iter().filter(|request| !request.is_write()).count()
    }
}

/// How often each object was seen.
#[derive(Default)]
struct Seen(Mutex<BTreeMap<String, usize>>);

impl Seen {
    /// Takes note; returns how many times any was seen so far.
    fn note(&self, object: &PartialObjectMeta) -> usize {
        let mut seen = self.0.lock().unwrap();
        let name = object.metadata.name.clone().unwrap();
        *seen.entry(name).or_default() += 1;
        seen.values().sum()
    }

    fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().keys().cloned().collect()
    }

    fn assert_each_once(&self) {
        let seen = self.0.lock().unwrap();
        let twice: Vec<_> = seen.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "{twice:?}");
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("widget-{index:04}")).collect()
}

/// What a migration does with an object.
async fn rewrite(writer: &Writer, api: &Api<DynamicObject>, metadata: &ObjectMeta) -> Verdict {
    match writer.rewrite(api, metadata).await {
        Ok(written) if written.effect == Effect::Changed => Verdict::changed(),
        Ok(_) => Verdict::unchanged(),
        Err(error) if error.class() == ErrorClass::Gone => Verdict::gone(),
        Err(error) => {
            let class = error.class();
            Verdict::failed(class.as_str(), Redacted::from_error(&error)).under(Pressure::of(class))
        }
    }
}
