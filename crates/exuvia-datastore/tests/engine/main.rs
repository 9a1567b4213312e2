//! Whole migrations by the engine, on a real control plane with garbage collector and namespace controller.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]

mod blocked;
mod cleaned;
mod contested;
mod copied;
mod crashed;
mod drained;
mod faults;
mod flagged;
mod forgotten;
mod hidden;
mod kept;
mod mapped;
mod mishaps;
mod moved;
mod namespaces;
mod owned;
mod refused;
mod resynced;
mod routed;
mod second;
mod synced;
mod undone;
mod writers;

use exuvia_api::{DatastoreMigration, DatastorePhase};
use exuvia_datastore::Engine;
use exuvia_datastore::protocol::{Hold, NextStep, Step};
use exuvia_runtime::machine::{Ended, Machine, Silent, drive};
use exuvia_runtime::servers::ApiServers;
use exuvia_testenv::{Access, ControlPlane, Widgets, until};
use exuvia_write::Writer;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, CustomResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// One control plane for all tests; each has groups of its own.
pub(crate) async fn control_plane() -> &'static ControlPlane {
    static CONTROL_PLANE: OnceCell<ControlPlane> = OnceCell::const_new();
    CONTROL_PLANE.get_or_init(start).await
}

/// A control plane that knows `DatastoreMigration`s.
pub(crate) async fn start() -> ControlPlane {
    let control_plane = ControlPlane::builder()
        .controllers(["garbage-collector-controller", "namespace-controller"])
        .start()
        .await
        .unwrap();
    install_migrations(&control_plane).await;
    control_plane
}

pub(crate) async fn install_migrations(control_plane: &ControlPlane) {
    let client = control_plane.client().unwrap();
    let crds = Api::all(client.clone());
    crds.create(&PostParams::default(), &DatastoreMigration::crd())
        .await
        .unwrap();
    let migrations: Api<DatastoreMigration> = Api::all(client);
    until("DatastoreMigrations are served", async || {
        migrations.list(&ListParams::default()).await.is_ok()
    })
    .await;
}

/// Widgets of an old and of a new group, in a namespace of their own, and a migration between them.
pub(crate) struct Stage {
    admin: Access,
    pub(crate) client: Client,
    pub(crate) name: String,
    pub(crate) old: Widgets,
    pub(crate) new: Widgets,
}

/// Each kind that is left costs every later migration one more list, and the API server one more part of its schema: the last
/// of fifty tests would take five times as long as the first.
impl Drop for Stage {
    fn drop(&mut self) {
        let (admin, kinds) = (self.admin.clone(), [self.old.crd_name(), self.new.crd_name()]);
        let delete = async move {
            let crds: Api<CustomResourceDefinition> = Api::all(admin.client().unwrap());
            for kind in kinds {
                // A test of a control plane of its own may have ended that, and kinds may be gone.
                let _ = crds.delete(&kind, &DeleteParams::default()).await;
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let deleted = std::thread::spawn(move || runtime.unwrap().block_on(delete)).join();
        assert!(deleted.is_ok() || std::thread::panicking());
    }
}

impl Stage {
    /// Both CRDs are installed, and `count` widgets are in the old group.
    pub(crate) async fn new(name: &str, count: usize) -> Self {
        Self::on(control_plane().await, name, count).await
    }

    /// As [`new`](Self::new), on this control plane.
    pub(crate) async fn on(control_plane: &ControlPlane, name: &str, count: usize) -> Self {
        let stage = Self::bare_on(control_plane, name).await;
        stage.old.install(&stage.client, "v1").await.unwrap();
        stage.new.install(&stage.client, "v1").await.unwrap();
        for index in 0..count {
            stage
                .create_old(&format!("w{index}"), json!({"size": index, "color": "red"}))
                .await;
        }
        stage
    }

    /// As [`new`](Self::new) without objects, and with one version of each kind: a served version costs the API server a cache of its
    /// own, and every later migration one more request when it walks all objects of the cluster.
    pub(crate) async fn of_one_version(name: &str) -> Self {
        let stage = Self::bare(name).await;
        for widgets in [&stage.old, &stage.new] {
            let mut crd = widgets.crd("v1");
            let versions = crd["spec"]["versions"].as_array_mut().unwrap();
            versions.retain(|version| version["name"] == "v1");
            widgets.install_crd(&stage.client, crd).await.unwrap();
        }
        stage
    }

    /// Nothing but the namespace.
    pub(crate) async fn bare(name: &str) -> Self {
        Self::bare_on(control_plane().await, name).await
    }

    async fn bare_on(control_plane: &ControlPlane, name: &str) -> Self {
        let client = control_plane.client().unwrap();
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap();
        Self {
            admin: control_plane.admin().clone(),
            client,
            name: name.to_owned(),
            old: Widgets::in_group(format!("old.{name}.dev")),
            new: Widgets::in_group(format!("new.{name}.dev")),
        }
    }

    pub(crate) fn api(&self, widgets: &Widgets) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.name, &widgets.resource("v1"))
    }

    pub(crate) async fn create(&self, widgets: &Widgets, name: &str, spec: Value) -> DynamicObject {
        let mut widget = widgets.widget("v1", name);
        widget.metadata.namespace = Some(self.name.clone());
        widget.data["spec"] = spec;
        made(&self.api(widgets), &widget).await
    }

    pub(crate) async fn create_old(&self, name: &str, spec: Value) -> DynamicObject {
        self.create(&self.old, name, spec).await
    }

    /// The spec of a plain move. The drain is short: nothing but the tests writes here.
    pub(crate) fn spec(&self) -> Value {
        json!({
            "mappings": [{
                "name": "widgets",
                "from": {"group": self.old.group(), "version": "v1", "kinds": ["Widget"]},
                "to": {"group": self.new.group(), "version": "v1"},
            }],
            "freeze": {"drain": "1s"},
        })
    }

    /// Creates the migration.
    pub(crate) async fn migration(&self, spec: Value) -> DatastoreMigration {
        let migration = serde_json::from_value(json!({
            "apiVersion": "exuvia.dev/v1beta1", "kind": "DatastoreMigration",
            "metadata": {"name": self.name}, "spec": spec,
        }))
        .unwrap();
        self.migrations()
            .create(&PostParams::default(), &migration)
            .await
            .unwrap()
    }

    pub(crate) fn migrations(&self) -> Api<DatastoreMigration> {
        Api::all(self.client.clone())
    }

    pub(crate) async fn read(&self) -> DatastoreMigration {
        self.migrations().get(&self.name).await.unwrap()
    }

    pub(crate) fn engine(&self, migration: &DatastoreMigration) -> Engine {
        self.engine_by(&self.client, migration)
    }

    /// An engine whose requests go through this client. The API server is named, because the cluster lists none here: one
    /// that cannot be asked by itself must renew its Lease under the freeze, which takes up to 10 s.
    pub(crate) fn engine_by(&self, client: &Client, migration: &DatastoreMigration) -> Engine {
        let url = self.admin.url().parse().unwrap();
        let servers = ApiServers::new(&self.admin.config().unwrap(), &[url], &[]);
        Self::engine_with(servers, client, migration)
    }

    /// An engine that cannot ask any API server by itself.
    pub(crate) fn engine_of_unlisted(&self, migration: &DatastoreMigration) -> Engine {
        let config = kube::Config::new(http::Uri::from_static("https://127.0.0.1:1"));
        Self::engine_with(ApiServers::new(&config, &[], &[]), &self.client, migration)
    }

    fn engine_with(servers: ApiServers, client: &Client, migration: &DatastoreMigration) -> Engine {
        Engine::with_servers(
            servers,
            client.clone(),
            &Writer::named("exuvia-datastore"),
            migration.clone(),
        )
        // Engines of tests are dropped with their connections: nothing of theirs is under way afterwards.
        .writes_end_within(std::time::Duration::from_millis(100))
    }

    /// Drives an engine until it neither waits nor works. What fails is tried again, as a controller does: other tests install
    /// and delete kinds meanwhile.
    pub(crate) async fn drive(&self, engine: &mut Engine) -> Ended<Hold> {
        until("the engine comes to an end", async || {
            match drive(engine, &mut Silent).await {
                Ok(Ended::Waits(time)) => {
                    // As a controller does that was asked to.
                    tokio::time::sleep(time).await;
                    Err("it waits".to_owned())
                }
                Ok(ended) => Ok(ended),
                Err(error) => Err(error.to_string()),
            }
        })
        .await
    }

    /// Looks again at what an engine holds for, as a controller does when it is woken, until it does not hold for that any more.
    pub(crate) async fn goes_on(&self, engine: &mut Engine, hold: Hold) -> Ended<Hold> {
        until("the engine goes on", async || {
            engine.retry(&hold);
            Some(self.drive(engine).await).filter(|ended| *ended != Ended::Held(hold))
        })
        .await
    }

    /// Deletes the migration and lets another process go on to its end.
    pub(crate) async fn delete(&self) -> Ended<Hold> {
        let migration = self.read().await;
        self.migrations()
            .delete(&self.name, &DeleteParams::default())
            .await
            .unwrap();
        self.drive(&mut self.engine(&migration)).await
    }

    /// Merges a patch into a widget.
    pub(crate) async fn merge(&self, widgets: &Widgets, name: &str, patch: Value) -> DynamicObject {
        self.api(widgets)
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap()
    }

    /// Merges a patch into a widget's status.
    pub(crate) async fn merge_status(&self, widgets: &Widgets, name: &str, patch: Value) -> DynamicObject {
        self.api(widgets)
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap()
    }

    pub(crate) fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    pub(crate) async fn config_map(&self, name: &str, owners: &[OwnerReference], data: Value) -> ConfigMap {
        let object = json!({"metadata": {"name": name, "ownerReferences": owners}, "data": data});
        let object = serde_json::from_value(object).unwrap();
        self.config_maps()
            .create(&PostParams::default(), &object)
            .await
            .unwrap()
    }

    /// Creates the migration and drives it to its end.
    pub(crate) async fn run(&self, spec: Value) -> Ended<Hold> {
        let migration = self.migration(spec).await;
        self.drive(&mut self.engine(&migration)).await
    }

    pub(crate) async fn phase(&self) -> DatastorePhase {
        self.read()
            .await
            .status
            .unwrap_or_default()
            .phase
            .unwrap_or_default()
    }

    pub(crate) async fn all(&self, widgets: &Widgets) -> Vec<DynamicObject> {
        self.api(widgets)
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
    }

    /// Waits until the source can be written again: an API server lets go about a second after a policy is gone (PITFALLS D10).
    pub(crate) async fn thawed(&self) {
        let mut widget = self.old.widget("v1", "after");
        widget.metadata.namespace = Some(self.name.clone());
        until("the source is thawed", async || {
            self.api(&self.old)
                .create(&PostParams::default(), &widget)
                .await
                .is_ok()
        })
        .await;
    }

    /// How many policies of this migration there are.
    pub(crate) async fn policies(&self, uid: &str) -> usize {
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(self.client.clone());
        let ours = ListParams::default().labels(&format!("{}={uid}", exuvia_api::DATASTORE_LABEL));
        policies.list(&ours).await.unwrap().items.len()
    }
}

/// Creates an object. Other tests install and delete kinds meanwhile: an API server that asks to come back later is asked again.
pub(crate) async fn made(api: &Api<DynamicObject>, object: &DynamicObject) -> DynamicObject {
    until("the object is created", async || {
        match api.create(&PostParams::default(), object).await {
            Err(kube::Error::Api(status)) if status.code == 429 || is_frozen(&status) => Err(status.message),
            answer => Ok(answer.unwrap()),
        }
    })
    .await
}

/// A policy that is gone refuses for about a second more (PITFALLS D10).
fn is_frozen(status: &kube::core::Status) -> bool {
    status.code == 403 && status.message.contains("DatastoreMigration")
}

/// Carries a migration out up to this step, which is not done.
pub(crate) async fn up_to(engine: &mut Engine, last: Step) {
    until(&format!("{last:?} is next"), async || {
        match engine.next().await.map_err(|error| error.to_string())? {
            NextStep::Do(step) if step == last => return Ok(()),
            NextStep::Do(step) => drop(engine.carry_out(step).await.map_err(|error| error.to_string())?),
            NextStep::Wait(time) => tokio::time::sleep(time).await,
            other => panic!("{other:?} before {last:?}"),
        }
        Err("on its way".to_owned())
    })
    .await;
}

/// A reference to a widget, as its controller.
pub(crate) fn owned_by(owner: &DynamicObject) -> OwnerReference {
    let types = owner.types.clone().unwrap();
    OwnerReference {
        api_version: types.api_version,
        kind: types.kind,
        name: owner.metadata.name.clone().unwrap(),
        uid: owner.metadata.uid.clone().unwrap(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}
