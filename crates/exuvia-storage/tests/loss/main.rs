//! What a rewrite loses, judged on a real API server. What was lost is read from etcd, with no code of the thing under test.

#![allow(clippy::disallowed_methods)] // tests set up their world
#![allow(clippy::unwrap_used)] // a test may panic

mod differential;
mod generate;
mod hidden;
mod moving;
mod shapes;

use std::collections::BTreeMap;
use std::time::Duration;

use exuvia_storage::definition::Definition;
use exuvia_storage::loss::{Losses, look};
use exuvia_storage::{Engine, MigrationReport, Options};
use exuvia_sweep::Control;
use exuvia_testenv::proxy::Proxy;
use exuvia_testenv::{ControlPlane, Widgets, soon};
use exuvia_write::Writer;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

/// One CRD on a control plane.
struct Bench<'a> {
    control_plane: &'a ControlPlane,
    client: Client,
    widgets: Widgets,
}

impl Bench<'static> {
    /// The CRD with these schemas of `spec` at v1alpha1, where objects are stored, and at v1.
    async fn installed(group: &str, old: Value, new: Value) -> Self {
        Bench::installed_on(ControlPlane::shared().await, group, old, new).await
    }
}

impl<'a> Bench<'a> {
    async fn installed_on(control_plane: &'a ControlPlane, group: &str, old: Value, new: Value) -> Self {
        let client = control_plane.client().unwrap();
        let widgets = Widgets::in_group(format!("{group}.example.com"));
        let mut crd = widgets.crd("v1alpha1");
        for (version, spec) in [old, new].into_iter().enumerate() {
            crd["spec"]["versions"][version]["schema"]["openAPIV3Schema"]["properties"]["spec"] = spec;
        }
        widgets.install_crd(&client, crd).await.unwrap();
        Self {
            control_plane,
            client,
            widgets,
        }
    }

    async fn create(&self, version: &str, name: &str, spec: Value) {
        let mut widget = self.widgets.widget(version, name);
        widget.data["spec"] = spec;
        let api = self.widgets.api(&self.client, version);
        let created = api.create(&PostParams::default(), &widget).await;
        assert!(created.is_ok(), "{name}: {created:?}\n{}", widget.data);
    }

    async fn flip(&self) {
        self.widgets.flip_storage(&self.client, "v1").await.unwrap();
    }

    async fn definition(&self) -> Definition {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        Definition::read(&crds.get(&self.widgets.crd_name()).await.unwrap())
    }

    /// Changes the CRD by a merge patch of its versions.
    async fn change_versions(&self, change: impl Fn(&mut Value)) {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let crd = crds.get(&self.widgets.crd_name()).await.unwrap();
        let mut versions = json!(crd.spec.versions);
        versions.as_array_mut().unwrap().iter_mut().for_each(change);
        let patch = Patch::Merge(json!({"spec": {"versions": versions}}));
        crds.patch(&self.widgets.crd_name(), &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// A merge patch `{}` of one object at v1.
    async fn rewrite(&self, name: &str) -> Result<(), kube::Error> {
        let api = self.widgets.api(&self.client, "v1");
        let nothing = Patch::Merge(json!({}));
        api.patch(name, &PatchParams::default(), &nothing).await.map(drop)
    }

    async fn look(&self, client: &Client) -> Losses {
        let looked = look(client, &self.definition().await, &Control::new()).await;
        looked.unwrap().unwrap()
    }

    /// etcd's bytes by name, as JSON, with the revision of their last write.
    async fn stored(&self) -> BTreeMap<String, (Value, i64)> {
        let stored = self.control_plane.stored(self.widgets.group(), "widgets");
        let all = stored.all().await.unwrap();
        all.iter()
            .map(|stored| {
                (
                    stored.name().to_owned(),
                    (stored.json().unwrap(), stored.mod_revision),
                )
            })
            .collect()
    }

    /// `spec` of one object as it lies in etcd, with its version.
    async fn stored_spec(&self, name: &str) -> (String, Value) {
        let (object, _) = self.stored().await.remove(name).unwrap();
        let (_, version) = object["apiVersion"].as_str().unwrap().split_once('/').unwrap();
        (version.to_owned(), object["spec"].clone())
    }

    fn engine(&self, proxy: &Proxy, accept_pruning: bool) -> Engine {
        let config = self
            .control_plane
            .admin()
            .clone()
            .at(proxy.url())
            .config()
            .unwrap();
        let writer = Writer::named("exuvia-test");
        let client = writer.connect(config.clone()).unwrap();
        let options = Options {
            settle: Duration::from_millis(300),
            api_servers: vec![self.control_plane.apiserver().url().parse().unwrap()],
            accept_pruning,
            ..Options::default()
        };
        Engine::new(&config, client, writer, self.widgets.crd_name(), options)
    }

    /// Runs a migration that must stop before the first write, and shows that it did.
    async fn held(&self) -> MigrationReport {
        let before = self.stored().await;
        let proxy = self.control_plane.proxy().await.unwrap();
        let report = self.engine(&proxy, false).run().await.unwrap();
        let is_pruning = matches!(
            report.end,
            exuvia_storage::End::Stalled {
                reason: "Pruning",
                ..
            }
        );
        assert!(is_pruning, "{:?}", report.end);
        let is_real = |write: &exuvia_testenv::proxy::Recorded| !write.query.contains("dryRun=All");
        let real: Vec<_> = proxy.writes().into_iter().filter(is_real).collect();
        assert!(real.is_empty(), "{real:?}");
        assert_eq!(self.stored().await, before, "etcd is as it was");
        report
    }

    /// Runs a migration that goes on whatever is lost.
    async fn accepted(&self) -> MigrationReport {
        let proxy = self.control_plane.proxy().await.unwrap();
        let report = self.engine(&proxy, true).run().await.unwrap();
        assert_eq!(report.end, exuvia_storage::End::Migrated, "{report:?}");
        report
    }
}

/// Paths with the number of objects and the first of them.
fn paths(counts: &BTreeMap<String, exuvia_storage::loss::Count>) -> Vec<(&str, u64, &str)> {
    counts
        .iter()
        .map(|(path, count)| (path.as_str(), count.objects, count.first[0].as_str()))
        .collect()
}
