//! What the freeze does to writers on a real API server, and what it proves: one control plane with garbage collector and
//! namespace controller for all, and others where a server must stand still.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]

mod collected;
mod crash;
mod drained;
mod flags;
mod frozen;
mod locks;
mod probed;
mod requests;

use exuvia_api::{DatastoreMigration, LabelSelector};
use exuvia_datastore::freeze::{Form, Freeze, FrozenKind, Scope};
use exuvia_runtime::servers::ApiServers;
use exuvia_testenv::{Access, ControlPlane, Widgets, until};
use exuvia_write::Writer;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, PostParams};
use kube::{Api, Client, CustomResourceExt, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();

/// With the controllers that a freeze must live with.
pub(crate) async fn control_plane() -> &'static ControlPlane {
    let start = || async {
        let controllers = ["garbage-collector-controller", "namespace-controller"];
        let control_plane = ControlPlane::builder()
            .controllers(controllers)
            .start()
            .await
            .unwrap();
        install_migrations(&control_plane.client().unwrap()).await;
        control_plane
    };
    SHARED.get_or_init(start).await
}

/// The CRD of `DatastoreMigration`.
pub(crate) async fn install_migrations(client: &Client) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.create(&PostParams::default(), &DatastoreMigration::crd())
        .await
        .unwrap();
    let migrations: Api<DatastoreMigration> = Api::all(client.clone());
    until("DatastoreMigrations are served", async || {
        migrations.list(&kube::api::ListParams::default()).await
    })
    .await;
}

/// A source and a target kind, a migration between them, and who writes: we, and somebody else. Both may do anything,
/// and neither is a member of system:masters.
pub(crate) struct Stage {
    pub(crate) admin: Client,
    pub(crate) us: Access,
    pub(crate) ours: Client,
    pub(crate) other: Client,
    pub(crate) source: Widgets,
    pub(crate) target: Widgets,
    pub(crate) scope: Scope,
    /// The addresses of the API servers that are asked.
    pub(crate) servers: Vec<http::Uri>,
}

impl Stage {
    /// `name` keeps tests on the shared control plane apart.
    pub(crate) async fn set(name: &str) -> Self {
        Self::on(control_plane().await, name).await
    }

    pub(crate) async fn on(control_plane: &ControlPlane, name: &str) -> Self {
        let admin = control_plane.client().unwrap();
        let source = Widgets::in_group(format!("old.{name}.example.com"));
        let target = Widgets::in_group(format!("new.{name}.example.com"));
        source
            .install_crd(&admin, with_scale(source.crd("v1")))
            .await
            .unwrap();
        target
            .install_crd(&admin, with_scale(target.crd("v1")))
            .await
            .unwrap();
        let anything = json!([
            {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
            {"nonResourceURLs": ["*"], "verbs": ["*"]},
        ]);
        let us = format!("exuvia-{name}");
        let us = control_plane.user_with_rules(&us, &anything).await.unwrap();
        let other = format!("somebody-{name}");
        let other = control_plane.user_with_rules(&other, &anything).await.unwrap();
        let migration = migration(&admin, name, &source, &target).await;
        let scope = Scope {
            uid: migration.uid().unwrap(),
            migration: name.to_owned(),
            source: vec![FrozenKind {
                group: source.group().to_owned(),
                version: "v1".to_owned(),
                kind: "Widget".to_owned(),
                plural: "widgets".to_owned(),
                namespaced: true,
                selector: LabelSelector::default(),
            }],
            target: vec![(target.group().to_owned(), "widgets".to_owned())],
            has_early_targets: false,
            moved_groups: vec![source.group().to_owned(), target.group().to_owned()],
            api_service: None,
            username: us.user().to_owned(),
        };
        let stage = Self {
            ours: us.client().unwrap(),
            other: other.client().unwrap(),
            us,
            admin,
            source,
            target,
            scope,
            servers: vec![control_plane.apiserver().url().parse().unwrap()],
        };
        for client in [&stage.ours, &stage.other] {
            let widgets = stage.source.api(client, "v1");
            until("the rights are in force", async || {
                widgets.list(&kube::api::ListParams::default()).await
            })
            .await;
        }
        stage
    }

    pub(crate) fn freeze(&self) -> Freeze {
        self.freeze_of(self.scope.clone())
    }

    pub(crate) fn freeze_of(&self, scope: Scope) -> Freeze {
        let servers = ApiServers::new(&self.us.config().unwrap(), &self.servers, &[]);
        Freeze::new(self.ours.clone(), &Writer::named("exuvia"), servers, scope)
    }

    /// Sets the policies and waits until they are in force.
    pub(crate) async fn set_and_wait(&self, freeze: &Freeze, form: Form, shield: bool) {
        freeze.set(form, shield).await.unwrap();
        until("every server denies", async || {
            let probed = freeze.probe(form).await.unwrap();
            let shielded = !shield || freeze.probe_shield().await.unwrap().all_asked_deny();
            if probed.all_asked_deny() && shielded {
                Ok(())
            } else {
                Err(probed)
            }
        })
        .await;
    }

    /// A source object, with these labels and finalizers.
    pub(crate) async fn widget(&self, name: &str, metadata: Value) -> DynamicObject {
        let mut widget = self.source.widget("v1", name);
        let mut whole = serde_json::to_value(&widget.metadata).unwrap();
        whole
            .as_object_mut()
            .unwrap()
            .extend(metadata.as_object().unwrap().clone());
        widget.metadata = serde_json::from_value(whole).unwrap();
        let namespace = widget.namespace().unwrap();
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.admin.clone(), &namespace, &self.source.resource("v1"));
        api.create(&PostParams::default(), &widget).await.unwrap()
    }
}

/// `/scale` is a subresource whose object has neither labels nor annotations.
fn with_scale(mut crd: Value) -> Value {
    for version in crd["spec"]["versions"].as_array_mut().unwrap() {
        version["subresources"]["scale"] =
            json!({"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.ready"});
    }
    crd
}

async fn migration(client: &Client, name: &str, source: &Widgets, target: &Widgets) -> DatastoreMigration {
    let migrations: Api<DatastoreMigration> = Api::all(client.clone());
    let migration: DatastoreMigration = serde_json::from_value(json!({
        "apiVersion": "exuvia.dev/v1beta1",
        "kind": "DatastoreMigration",
        "metadata": {"name": name},
        "spec": {"mappings": [{
            "name": "widgets",
            "from": {"group": source.group(), "version": "v1", "kinds": ["Widget"]},
            "to": {"group": target.group(), "version": "v1"},
        }]},
    }))
    .unwrap();
    migrations
        .create(&PostParams::default(), &migration)
        .await
        .unwrap()
}
