//! Two groups with widgets, and a migration from one to the other. Nobody carries it out: its status is what a test says.

use std::path::PathBuf;
use std::process::Output;

use exuvia_api::DatastoreMigration;
use exuvia_testenv::{ControlPlane, Widgets, until};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, CustomResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::binary;

static INSTALLED: OnceCell<()> = OnceCell::const_new();

pub(crate) struct World {
    pub(crate) control_plane: &'static ControlPlane,
    pub(crate) client: Client,
    pub(crate) old: Widgets,
    pub(crate) new: Widgets,
    pub(crate) name: String,
    directory: tempfile::TempDir,
}

impl World {
    /// With three widgets in the old group.
    pub(crate) async fn new(name: &str) -> Self {
        let world = Self::without_target_crd(name).await;
        world.new.install(&world.client, "v1").await.unwrap();
        world
    }

    pub(crate) async fn without_target_crd(name: &str) -> Self {
        let control_plane = ControlPlane::shared().await;
        let client = control_plane.client().unwrap();
        INSTALLED.get_or_init(async || install(&client).await).await;
        let old = Widgets::in_group(format!("old.{name}.example.com"));
        let new = Widgets::in_group(format!("new.{name}.example.com"));
        old.install(&client, "v1").await.unwrap();
        old.create(&client, "v1", 3).await.unwrap();
        Self {
            control_plane,
            client,
            old,
            new,
            name: name.to_owned(),
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn manifest(&self) -> Value {
        json!({
            "apiVersion": "exuvia.dev/v1beta1",
            "kind": "DatastoreMigration",
            "metadata": {"name": self.name},
            "spec": {"mappings": [{
                "name": "all",
                "from": {"group": self.old.group(), "version": "v1", "kinds": ["Widget"]},
                "to": {"group": self.new.group(), "version": "v1"},
            }]},
        })
    }

    /// The manifest in a file.
    pub(crate) fn file(&self, manifest: &Value) -> String {
        let path = self.directory.path().join("migration.yaml");
        std::fs::write(&path, manifest.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn api(&self) -> Api<DatastoreMigration> {
        Api::all(self.client.clone())
    }

    pub(crate) async fn create(&self, manifest: Value) -> DatastoreMigration {
        let migration = serde_json::from_value(manifest).unwrap();
        self.api()
            .create(&PostParams::default(), &migration)
            .await
            .unwrap()
    }

    /// Says how far the migration is, as an operator would.
    pub(crate) async fn set_status(&self, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        let (api, params) = (self.api(), PatchParams::default());
        api.patch_status(&self.name, &params, &patch).await.unwrap();
    }

    pub(crate) async fn live(&self) -> Option<DatastoreMigration> {
        self.api().get_opt(&self.name).await.unwrap()
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.control_plane.admin().kubeconfig().unwrap()
    }

    pub(crate) async fn exuvia(&self, args: &[&str]) -> Output {
        binary::exuvia(self.kubeconfig(), &[&["datastore"], args].concat()).await
    }

    /// Creates a target with this content.
    pub(crate) async fn target(&self, name: &str, spec: Value) {
        let mut widget = self.new.widget("v1", name);
        widget.data = json!({"spec": spec});
        let api = self.new.api(&self.client, "v1");
        api.create(&PostParams::default(), &widget).await.unwrap();
    }

    /// Creates a source with this content.
    pub(crate) async fn source(&self, name: &str, spec: Value) {
        let mut widget = self.old.widget("v1", name);
        widget.data = json!({"spec": spec});
        let api = self.old.api(&self.client, "v1");
        api.create(&PostParams::default(), &widget).await.unwrap();
    }
}

async fn install(client: &Client) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.create(&PostParams::default(), &DatastoreMigration::crd())
        .await
        .unwrap();
    let migrations: Api<DatastoreMigration> = Api::all(client.clone());
    until("DatastoreMigrations are served", async || {
        migrations.list(&kube::api::ListParams::default()).await.is_ok()
    })
    .await;
}
