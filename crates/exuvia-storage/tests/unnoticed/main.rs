//! A rewrite that nobody notices: no field changes its owner, on a real API server that is asked before and after.
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]
#![allow(clippy::unwrap_used)] // a test may panic

mod defaults;
mod matrix;
mod odd;
mod odd_asked;
mod odd_content;
mod odd_defaults;
mod odd_shapes;
mod odd_webhook;
mod renamed;
mod types;

use std::collections::BTreeSet;
use std::time::Duration;

use exuvia_storage::{Engine, MigrationReport, Options};
use exuvia_testenv::{ControlPlane, Widgets, until};
use exuvia_write::Writer;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::odd::Answer;

/// One CRD on the shared control plane.
struct Bench {
    control_plane: &'static ControlPlane,
    client: Client,
    widgets: Widgets,
}

impl Bench {
    /// The CRD, changed before it is installed; stored at v1alpha1.
    async fn installed(group: &str, change: impl FnOnce(&mut Value)) -> Self {
        let control_plane = ControlPlane::shared().await;
        let client = control_plane.client().unwrap();
        let widgets = Widgets::in_group(format!("{group}.example.com"));
        let mut crd = widgets.crd("v1alpha1");
        change(&mut crd);
        widgets.install_crd(&client, crd).await.unwrap();
        Self {
            control_plane,
            client,
            widgets,
        }
    }

    fn crds(&self) -> Api<CustomResourceDefinition> {
        Api::all(self.client.clone())
    }

    /// Changes the CRD once more.
    async fn change_crd(&self, change: impl FnOnce(&mut Value)) {
        let crds = self.crds();
        let mut crd = json!(crds.get(&self.widgets.crd_name()).await.unwrap());
        change(&mut crd);
        let crd = serde_json::from_value(crd).unwrap();
        crds.replace(&self.widgets.crd_name(), &PostParams::default(), &crd)
            .await
            .unwrap();
    }

    /// Rewrites the only object and drops v1alpha1, as somebody does who does not know of entries: from then on every apply
    /// answers 500.
    async fn drop_old_version(&self, intruder: &Value) {
        let nothing = Patch::Merge(json!({}));
        let api = self.widgets.api(&self.client, "v1");
        api.patch("a", &PatchParams::default(), &nothing).await.unwrap();
        let trim = Patch::Merge(json!({"status": {"storedVersions": ["v1"]}}));
        let name = self.widgets.crd_name();
        let crds = self.crds();
        crds.patch_status(&name, &PatchParams::default(), &trim)
            .await
            .unwrap();
        let widgets = &self.widgets;
        widgets.drop_version(&self.client, "v1alpha1").await.unwrap();
        self.until_apply_fails(intruder).await;
    }

    /// Waits until every apply answers 500.
    async fn until_apply_fails(&self, intruder: &Value) {
        until("apply answers 500", async || {
            let answer = self.tried("v1", "intruder", intruder.clone()).await;
            matches!(answer, Answer::Failed(500, _))
        })
        .await;
    }

    async fn flip(&self) {
        self.widgets.flip_storage(&self.client, "v1").await.unwrap();
    }

    fn engine(&self, change: impl FnOnce(&mut Options)) -> Engine {
        let config = self.control_plane.admin().config().unwrap();
        let writer = Writer::named("exuvia");
        let client = writer.connect(config.clone()).unwrap();
        let mut options = Options {
            settle: Duration::from_millis(300),
            api_servers: vec![self.control_plane.apiserver().url().parse().unwrap()],
            ..Options::default()
        };
        change(&mut options);
        Engine::new(&config, client, writer, self.widgets.crd_name(), options)
    }

    async fn migrate(&self) -> MigrationReport {
        self.engine(|_| {}).run().await.unwrap()
    }

    fn intent(&self, version: &str, name: &str, data: Value) -> DynamicObject {
        let mut intent = DynamicObject::new(name, &self.widgets.resource(version));
        intent.data = data;
        intent
    }

    async fn apply(&self, version: &str, manager: &str, name: &str, data: Value) {
        let intent = self.intent(version, name, data);
        let api = self.widgets.api(&self.client, version);
        api.patch(name, &PatchParams::apply(manager), &Patch::Apply(&intent))
            .await
            .unwrap();
    }

    async fn create(&self, version: &str, manager: &str, name: &str, data: Value) {
        let params = PostParams {
            field_manager: Some(manager.to_owned()),
            ..PostParams::default()
        };
        let api = self.widgets.api(&self.client, version);
        api.create(&params, &self.intent(version, name, data))
            .await
            .unwrap();
    }

    /// With whom it would be a conflict to apply this, without force.
    async fn conflicts(&self, version: &str, manager: &str, name: &str, data: Value) -> BTreeSet<String> {
        let intent = self.intent(version, name, data);
        let api = self.widgets.api(&self.client, version);
        let params = PatchParams::apply(manager).dry_run();
        let status = match api.patch(name, &params, &Patch::Apply(&intent)).await {
            Ok(_) => return BTreeSet::new(),
            Err(kube::Error::Api(status)) if status.code == 409 => status,
            Err(error) => panic!("{manager} applies {}: {error}", intent.data),
        };
        let details = status.details.unwrap();
        let managers = details
            .causes
            .iter()
            .map(|cause| cause.message.split('"').nth(1).unwrap().to_owned());
        managers.collect()
    }

    async fn live(&self, name: &str) -> DynamicObject {
        self.widgets.api(&self.client, "v1").get(name).await.unwrap()
    }

    /// The `apiVersion`s that etcd holds, once for each object.
    async fn stored(&self) -> Vec<String> {
        let stored = self.control_plane.stored(self.widgets.group(), "widgets");
        let all = stored.all().await.unwrap();
        let version = |stored: &exuvia_testenv::Stored| stored.api_version.clone().unwrap_or_default();
        all.iter().map(version).collect()
    }
}

/// The managers that have an entry, with the version it names.
fn managers(object: &DynamicObject) -> BTreeSet<(String, String)> {
    let entries = object.metadata.managed_fields.iter().flatten();
    entries
        .map(|entry| {
            let version = entry.api_version.clone().unwrap_or_default();
            let version = version.rsplit('/').next().unwrap_or_default().to_owned();
            (entry.manager.clone().unwrap_or_default(), version)
        })
        .collect()
}

/// The schema of `spec` in one of the two versions of the CRD.
fn spec_of(crd: &mut Value, version: usize) -> &mut Value {
    &mut crd["spec"]["versions"][version]["schema"]["openAPIV3Schema"]["properties"]["spec"]
}

fn pairs(of: &[(&str, &str)]) -> BTreeSet<(String, String)> {
    of.iter()
        .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
        .collect()
}
