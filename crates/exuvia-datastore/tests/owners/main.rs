//! Owners and dependents of moved objects, with the real garbage collector: one control plane for all.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]

mod copies;
mod dependents;
mod left;
mod lookups;

use exuvia_datastore::owners::{OwnerKind, Successor};
use exuvia_testenv::{ControlPlane, Widgets, until};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DynamicObject, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// The uid of nobody.
pub(crate) const NOBODY: &str = "00000000-0000-0000-0000-000000000000";

/// Widgets of an old and of a new group, and a garbage collector that knows both.
pub(crate) struct World {
    pub(crate) control_plane: ControlPlane,
    pub(crate) old: Widgets,
    pub(crate) new: Widgets,
}

pub(crate) async fn world() -> &'static World {
    static WORLD: OnceCell<World> = OnceCell::const_new();
    WORLD.get_or_init(World::start).await
}

impl World {
    async fn start() -> Self {
        let control_plane = ControlPlane::builder()
            .controllers(["garbage-collector-controller"])
            .start()
            .await
            .unwrap();
        let client = control_plane.client().unwrap();
        let [old, new] = ["old.example.com", "new.example.com"].map(Widgets::in_group);
        for widgets in [&old, &new] {
            widgets.install(&client, "v1").await.unwrap();
        }
        let world = Self {
            control_plane,
            old,
            new,
        };
        // The collector learns of new kinds twice a minute.
        for widgets in [&world.old, &world.new] {
            world.collects(&widgets.api(&client, "v1"), widgets).await;
        }
        world
    }

    pub(crate) fn client(&self) -> Client {
        self.control_plane.client().unwrap()
    }

    /// The kind that is moved.
    pub(crate) fn moved(&self) -> [OwnerKind; 1] {
        [OwnerKind {
            group: self.old.group().to_owned(),
            kind: "Widget".to_owned(),
        }]
    }

    /// A namespace of the test's own.
    pub(crate) async fn namespace(&self, name: &str) -> Place {
        let client = self.client();
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap();
        let widgets = |of: &Widgets| Api::namespaced_with(client.clone(), name, &of.resource("v1"));
        Place {
            name: name.to_owned(),
            old: widgets(&self.old),
            new: widgets(&self.new),
            config_maps: Api::namespaced(client.clone(), name),
        }
    }

    /// Waits until the collector has dealt with an object that was made just now in `api`, and so with what was made there
    /// before: two objects, one after the other, whose owner does not exist.
    pub(crate) async fn collects(&self, api: &Api<DynamicObject>, widgets: &Widgets) {
        static CANARIES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        for _ in 0..2 {
            let number = CANARIES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let name = format!("canary-{number}");
            let reference = owned_by(widgets, "nobody", NOBODY);
            create(
                api,
                json!({"metadata": {"name": name, "ownerReferences": [reference]}}),
            )
            .await;
            is_collected(api, &name).await;
        }
    }
}

/// What a namespace holds.
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) old: Api<DynamicObject>,
    pub(crate) new: Api<DynamicObject>,
    pub(crate) config_maps: Api<ConfigMap>,
}

impl Place {
    /// A config map with these references.
    pub(crate) async fn config_map(&self, name: &str, owners: &[OwnerReference]) -> ConfigMap {
        let object = json!({"metadata": {"name": name, "ownerReferences": owners}, "data": {"kept": "yes"}});
        let object = serde_json::from_value(object).unwrap();
        self.config_maps
            .create(&PostParams::default(), &object)
            .await
            .unwrap()
    }

    /// The config maps, as anything.
    pub(crate) fn any_config_maps(&self) -> Api<DynamicObject> {
        let resource = kube::api::ApiResource::erase::<ConfigMap>(&());
        Api::namespaced_with(self.config_maps.clone().into_client(), &self.name, &resource)
    }
}

/// A widget, or a config map, of the type that `api` is about.
pub(crate) async fn create(api: &Api<DynamicObject>, mut object: Value) -> DynamicObject {
    let mut segments = api.resource_url().trim_start_matches('/').split('/');
    let (api_version, kind) = match segments.next() {
        Some("apis") => (
            format!("{}/{}", segments.next().unwrap(), segments.next().unwrap()),
            "Widget",
        ),
        _ => (segments.next().unwrap().to_owned(), "ConfigMap"),
    };
    object["apiVersion"] = json!(api_version);
    object["kind"] = json!(kind);
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap()
}

/// A widget of this name with these references.
pub(crate) async fn widget(api: &Api<DynamicObject>, name: &str, owners: &[OwnerReference]) -> DynamicObject {
    create(
        api,
        json!({"metadata": {"name": name, "ownerReferences": owners}}),
    )
    .await
}

/// A reference to a widget, as its controller.
pub(crate) fn owned_by(widgets: &Widgets, name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: format!("{}/v1", widgets.group()),
        kind: "Widget".to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// A reference to this config map.
pub(crate) fn owned_by_config_map(owner: &ConfigMap) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        name: owner.metadata.name.clone().unwrap(),
        uid: owner.metadata.uid.clone().unwrap(),
        ..OwnerReference::default()
    }
}

pub(crate) fn uid(object: &DynamicObject) -> &str {
    object.metadata.uid.as_deref().unwrap()
}

pub(crate) fn successor(widgets: &Widgets, target: &DynamicObject) -> Successor {
    Successor::new(&widgets.resource("v1"), &target.metadata).unwrap()
}

pub(crate) async fn is_collected(api: &Api<DynamicObject>, name: &str) {
    until(&format!("{name} is collected"), async || {
        api.get_opt(name).await.unwrap().is_none()
    })
    .await;
}

/// A controller runs it as a task: checked by the compiler.
pub(crate) fn spawnable<F: Future + Send>(future: F) -> F {
    future
}
