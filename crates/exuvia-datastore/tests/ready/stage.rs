//! A ready manifest on a control plane: its kinds and objects, the engine, and what must be there in the end.

use std::time::Duration;

use exuvia_api::{DatastoreMigration, DatastorePhase};
use exuvia_datastore::protocol::{Hold, NextStep, Step};
use exuvia_datastore::{Engine, Kinds, rights};
use exuvia_runtime::machine::{Ended, Machine, Silent, drive};
use exuvia_runtime::servers::ApiServers;
use exuvia_testenv::{ControlPlane, until};
use exuvia_write::Writer;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, Client, CustomResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::fixtures::Move;

/// One control plane for all tests, with nodes on which roll-outs really happen.
pub(crate) async fn control_plane() -> &'static ControlPlane {
    static CONTROL_PLANE: OnceCell<ControlPlane> = OnceCell::const_new();
    CONTROL_PLANE.get_or_init(start).await
}

async fn start() -> ControlPlane {
    let control_plane = ControlPlane::builder()
        .controllers([
            "garbage-collector-controller",
            "namespace-controller",
            "daemonset-controller",
            "deployment-controller",
            "replicaset-controller",
        ])
        .fake_nodes()
        .start()
        .await
        .unwrap();
    control_plane.add_nodes(2).await.unwrap();
    let client = control_plane.client().unwrap();
    Api::all(client.clone())
        .create(&PostParams::default(), &DatastoreMigration::crd())
        .await
        .unwrap();
    let migrations: Api<DatastoreMigration> = Api::all(client);
    until("DatastoreMigrations are served", async || {
        migrations.list(&ListParams::default()).await.is_ok()
    })
    .await;
    control_plane
}

/// A move in a cluster.
pub(crate) struct Stage {
    pub(crate) client: Client,
    /// Somebody with the rights that `exuvia rbac -f` prints for the manifest, and no others.
    operator: Client,
    pub(crate) ready: Move,
}

impl Stage {
    /// Installs the kinds and creates the objects.
    pub(crate) async fn new(ready: Move) -> Self {
        let client = control_plane().await.client().unwrap();
        let mut stage = Self {
            operator: client.clone(),
            client,
            ready,
        };
        stage.install(&stage.ready.crds).await;
        stage.install_namespaces().await;
        for object in &stage.ready.objects {
            stage.create(object).await;
        }
        stage.operator = stage.bind().await;
        stage
    }

    /// Somebody who may do what the manifest needs.
    async fn bind(&self) -> Client {
        let (kinds, _) = Kinds::read(&self.client, &self.ready.migration.spec)
            .await
            .unwrap();
        let mut rules = rights::of_controller();
        rules.extend(rights::of_migration(&self.ready.migration, &kinds));
        let rules: Vec<Value> = (rules.iter())
            .map(|rule| serde_json::to_value(&rule.rule).unwrap())
            .collect();
        let name = format!("operator-of-{}", self.name());
        let user = control_plane().await.user_with_rules(&name, &json!(rules)).await;
        let client = user.unwrap().client().unwrap();
        let migrations: Api<DatastoreMigration> = Api::all(client.clone());
        until("the rights are in force", async || {
            migrations.list(&ListParams::default()).await.is_ok()
        })
        .await;
        client
    }

    /// Installs kinds, and waits until they are served.
    pub(crate) async fn install(&self, kinds: &[Value]) {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        for crd in kinds {
            let crd = serde_json::from_value(crd.clone()).unwrap();
            crds.create(&PostParams::default(), &crd).await.unwrap();
        }
        for crd in kinds {
            let spec = &crd["spec"];
            let (group, version) = (text(&spec["group"]), text(&spec["versions"][0]["name"]));
            let (kind, plural) = (text(&spec["names"]["kind"]), text(&spec["names"]["plural"]));
            let api_version = format!("{group}/{version}");
            let resource =
                ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
            until("the kind is served", async || {
                let listed = api.list(&ListParams::default().limit(1)).await.is_ok();
                listed
                    && (self.client.list_api_group_resources(&api_version).await)
                        .is_ok_and(|list| list.resources.iter().any(|resource| resource.name == plural))
            })
            .await;
        }
    }

    async fn install_namespaces(&self) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        for object in &self.ready.objects {
            let Some(name) = object["metadata"]["namespace"].as_str() else {
                continue;
            };
            let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
            match namespaces.create(&PostParams::default(), &namespace).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                created => drop(created.unwrap()),
            }
        }
    }

    /// The endpoint of an object that has at least kind, apiVersion and perhaps a namespace.
    pub(crate) fn api(&self, object: &Value) -> Api<DynamicObject> {
        let api_version = text(&object["apiVersion"]);
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let kind = text(&object["kind"]);
        let of_kind = |crd: &&Value| crd["spec"]["group"] == group && crd["spec"]["names"]["kind"] == kind;
        let plural = match self.ready.crds.iter().find(of_kind) {
            Some(crd) => text(&crd["spec"]["names"]["plural"]).to_owned(),
            None if kind == "Ingress" => "ingresses".to_owned(),
            None => format!("{}s", kind.to_lowercase()),
        };
        let kind = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, &plural);
        match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// Creates an object, with its status where that is a subresource.
    pub(crate) async fn create(&self, object: &Value) -> DynamicObject {
        let api = self.api(object);
        let parsed: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        let created = api.create(&PostParams::default(), &parsed).await.unwrap();
        match object.get("status") {
            Some(status) if created.data.get("status") != Some(status) => {
                let patch = Patch::Merge(json!({"status": status}));
                let name = text(&object["metadata"]["name"]);
                api.patch_status(name, &PatchParams::default(), &patch)
                    .await
                    .unwrap()
            }
            _ => created,
        }
    }

    pub(crate) async fn get(&self, object: &Value) -> DynamicObject {
        let name = text(&object["metadata"]["name"]);
        self.api(object).get(name).await.unwrap()
    }

    pub(crate) async fn patch(&self, object: &Value, patch: Value) -> Result<DynamicObject, kube::Error> {
        let name = text(&object["metadata"]["name"]);
        let patch = Patch::Merge(patch);
        self.api(object)
            .patch(name, &PatchParams::default(), &patch)
            .await
    }

    pub(crate) async fn delete(&self, object: &Value) {
        let name = text(&object["metadata"]["name"]);
        self.api(object)
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }

    pub(crate) fn migrations(&self) -> Api<DatastoreMigration> {
        Api::all(self.client.clone())
    }

    pub(crate) fn name(&self) -> &str {
        self.ready.migration.metadata.name.as_deref().unwrap()
    }

    /// Creates the migration, as the manifest has it but for the drain: nothing but the tests writes here.
    pub(crate) async fn start(&self) -> DatastoreMigration {
        let mut migration = self.ready.migration.clone();
        "1s".clone_into(&mut migration.spec.freeze.drain);
        self.migrations()
            .create(&PostParams::default(), &migration)
            .await
            .unwrap()
    }

    /// Changes the migration object.
    pub(crate) async fn edit(&self, patch: Value) {
        let patch = Patch::Merge(patch);
        self.migrations()
            .patch(self.name(), &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    pub(crate) async fn read(&self) -> DatastoreMigration {
        self.migrations().get(self.name()).await.unwrap()
    }

    pub(crate) async fn phase(&self) -> DatastorePhase {
        let status = self.read().await.status;
        status.and_then(|status| status.phase).unwrap_or_default()
    }

    /// A process that carries the migration out. Dropping it is what a kill is: nothing but the cluster remembers it.
    pub(crate) fn engine(&self, migration: &DatastoreMigration) -> Engine {
        // The cluster lists no API servers here, so nothing but the client is asked.
        let config = kube::Config::new(http::Uri::from_static("https://127.0.0.1:1"));
        let servers = ApiServers::new(&config, &[], &[]);
        let writer = Writer::named("exuvia");
        Engine::with_servers(servers, self.operator.clone(), &writer, migration.clone())
            .writes_end_within(Duration::from_millis(100))
    }

    /// Drives an engine until it neither waits nor works. What fails is tried again, as a controller does.
    pub(crate) async fn drive(&self, engine: &mut Engine) -> Ended<Hold> {
        until("the engine comes to an end", async || {
            match drive(engine, &mut Silent).await {
                Ok(Ended::Waits(time)) => {
                    tokio::time::sleep(time).await; // as a controller does that was asked to
                    Err("it waits".to_owned())
                }
                Ok(ended) => Ok(ended),
                Err(error) => Err(error.to_string()),
            }
        })
        .await
    }

    /// Looks again at what an engine holds for until it does not hold for that any more.
    pub(crate) async fn goes_on(&self, engine: &mut Engine, hold: Hold) -> Ended<Hold> {
        until("the engine goes on", async || {
            engine.retry(&hold);
            Some(self.drive(engine).await).filter(|ended| *ended != Ended::Held(hold))
        })
        .await
    }

    /// Deletes the migration, and another process carries that out.
    pub(crate) async fn end(&self) -> Ended<Hold> {
        let migration = self.read().await;
        self.migrations()
            .delete(self.name(), &DeleteParams::default())
            .await
            .unwrap();
        self.drive(&mut self.engine(&migration)).await
    }

    /// How many policies of this migration there are.
    pub(crate) async fn policies(&self, migration: &DatastoreMigration) -> usize {
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(self.client.clone());
        policies.list(&of(migration)).await.unwrap().items.len()
    }

    /// How many clones of CRDs of this migration there are.
    pub(crate) async fn clones(&self, migration: &DatastoreMigration) -> usize {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        crds.list_metadata(&of(migration)).await.unwrap().items.len()
    }

    /// Every expected object is there, field by field, and what the API server adds is in `defaults`: kind, name, field, value.
    pub(crate) async fn assert_expected(&self, defaults: &[(&str, &str, &str, &str)]) {
        for expected in &self.ready.expected {
            let mut wanted = expected.clone();
            for (kind, name, field, value) in defaults {
                if expected["kind"] == *kind && expected["metadata"]["name"] == *name {
                    wanted["spec"][field] = json!(value);
                }
            }
            let mut found = self.shown(expected).await;
            if wanted.get("status").is_none() {
                found.as_object_mut().unwrap().remove("status");
            }
            assert_eq!(found, wanted);
        }
    }

    /// A live object with that part of its metadata that people wrote.
    pub(crate) async fn shown(&self, object: &Value) -> Value {
        let mut found = serde_json::to_value(self.get(object).await).unwrap();
        let metadata = found["metadata"].as_object_mut().unwrap();
        metadata.retain(|field, _| ["name", "namespace", "labels", "annotations"].contains(&field.as_str()));
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.retain(|key, _| !key.starts_with("exuvia.dev/"));
            if annotations.is_empty() {
                metadata.remove("annotations");
            }
        }
        found
    }
}

fn of(migration: &DatastoreMigration) -> ListParams {
    let uid = migration.metadata.uid.as_deref().unwrap();
    ListParams::default().labels(&format!("{}={uid}", exuvia_api::DATASTORE_LABEL))
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// Whether the API refused it, and not for the object's sake.
pub(crate) fn is_refused<T>(answer: &Result<T, kube::Error>) -> bool {
    matches!(answer, Err(kube::Error::Api(status)) if status.code == 403)
}

/// Carries a migration out up to this step, which is not done.
pub(crate) async fn up_to(engine: &mut Engine, last: Step) {
    until(&format!("{last:?} is next"), async || {
        match engine.next().await.map_err(|error| error.to_string())? {
            NextStep::Do(step) if step == last => return Ok(()),
            NextStep::Do(step) => drop(engine.carry_out(step).await.map_err(|error| error.to_string())?),
            NextStep::Wait(time) => tokio::time::sleep(time).await,
            other => panic!("{other:?} before {last:?}: {:?}", engine.blockers()),
        }
        Err("on its way".to_owned())
    })
    .await;
}
