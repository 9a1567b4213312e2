//! What one run of a crash test works on: set up, looked at, and removed.

use std::collections::BTreeMap;

use exuvia_testenv::aggregated::Aggregated;
use exuvia_testenv::until;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::{Stage, control_plane, made, owned_by};

/// Three objects, an owner and its dependent among them, two flags and a dependent that is not moved.
pub(super) struct Slot {
    pub(super) stage: Stage,
    pub(super) mode: &'static str,
    /// Answers for the targets until the switch.
    pub(super) backend: Option<Aggregated>,
}

impl Slot {
    pub(super) async fn new(name: &str, mode: &'static str) -> Self {
        Self {
            stage: Stage::of_one_version(name).await,
            mode,
            backend: None,
        }
    }

    /// One whose targets another API server answers for.
    pub(super) async fn routed(name: &str) -> Self {
        let (stage, backend) = crate::routed::stage(name, 0).await;
        Self {
            stage,
            mode: "SyncThenFreeze",
            backend: Some(backend),
        }
    }

    pub(super) fn spec(&self) -> Value {
        let flag = |path: &str, side: &str| {
            json!({
                "group": "", "version": "v1", "kind": "ConfigMap", "namespace": self.stage.name, "name": "switch",
                "path": path, "frozen": "yes", "thawed": "no", "side": side,
            })
        };
        let mut spec = self.stage.spec();
        spec["mode"] = json!(self.mode);
        spec["concurrency"] = json!(1);
        spec["mappings"][0]["status"] = json!("Copy");
        spec["freeze"] = json!({
            "drain": "100ms", "flags": [flag("data.paused", "Target"), flag("data.stopped", "Source")],
        });
        spec["cleanup"] = json!({"source": "Thaw"});
        if self.backend.is_some() {
            spec["cutover"] = json!({"apiService": format!("v1.{}", self.stage.new.group())});
        }
        spec
    }

    pub(super) async fn set_up(&self) {
        let stage = &self.stage;
        if let Some(backend) = &self.backend {
            // So does the one that keeps APIServices away.
            until("the APIService can come back", async || {
                backend
                    .install(&stage.client)
                    .await
                    .map_err(|error| error.to_string())
            })
            .await;
        }
        stage.config_map("switch", &[], json!({"stopped": "yes"})).await;
        let mut root = stage.old.widget("v1", "root");
        root.metadata.namespace = Some(stage.name.clone());
        // A policy that is gone refuses for about a second more (PITFALLS D10).
        let root = until("the source is thawed", async || {
            stage.api(&stage.old).create(&PostParams::default(), &root).await
        })
        .await;
        let mut leaf = stage.old.widget("v1", "leaf");
        leaf.metadata.namespace = Some(stage.name.clone());
        leaf.metadata.owner_references = Some(vec![owned_by(&root)]);
        made(&stage.api(&stage.old), &leaf).await;
        stage.create_old("state", json!({"size": 3})).await;
        stage
            .merge_status(
                &stage.old,
                "state",
                json!({"status": {"ready": 3, "phase": "On"}}),
            )
            .await;
        // Somebody has put this one there already, equal.
        if self.backend.is_none() {
            until("the target is thawed", async || {
                let mut there = stage.new.widget("v1", "there");
                there.metadata.namespace = Some(stage.name.clone());
                stage.api(&stage.new).create(&PostParams::default(), &there).await
            })
            .await;
        }
        let mut there = stage.old.widget("v1", "there");
        there.metadata.namespace = Some(stage.name.clone());
        made(&stage.api(&stage.old), &there).await;
        stage
            .config_map("dependent", &[owned_by(&root)], json!({"kept": "yes"}))
            .await;
        stage.migration(self.spec()).await;
    }

    pub(super) async fn tear_down(&self) {
        let (delete, all) = (DeleteParams::default(), ListParams::default());
        let stage = &self.stage;
        if self.backend.is_some() {
            crate::routed::leave(stage).await;
        }
        stage
            .config_maps()
            .delete_collection(&delete, &all)
            .await
            .unwrap();
        for widgets in [&stage.old, &stage.new] {
            until("the objects can be deleted", async || {
                stage.api(widgets).delete_collection(&delete, &all).await
            })
            .await;
        }
    }

    /// Everything that people see, without what differs from run to run.
    pub(super) async fn seen(&self) -> Value {
        let stage = &self.stage;
        let config_maps: Vec<Value> = stage
            .config_maps()
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .iter()
            .map(|object| serde_json::to_value(object).unwrap())
            .collect();
        let mut uids = BTreeMap::new();
        let mut all = BTreeMap::new();
        for widgets in [&stage.old, &stage.new] {
            for object in stage.all(widgets).await {
                let place = format!("{} {}", widgets.group(), object.name_any());
                uids.insert(object.uid().unwrap(), place.clone());
                all.insert(place, serde_json::to_value(&object).unwrap());
            }
        }
        for object in config_maps {
            all.insert(format!("{}", object["metadata"]["name"]), object);
        }
        for object in all.values_mut() {
            same_in_each_run(object, &uids);
        }
        let migration = stage.migrations().get_opt(&stage.name).await.unwrap();
        let migration = migration.map(|migration| {
            let status = serde_json::to_value(migration.status.clone().unwrap_or_default()).unwrap();
            let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
            let conditions: Vec<Value> = conditions
                .iter()
                .map(|condition| json!([condition["type"], condition["status"], condition["reason"]]))
                .collect();
            json!({
                "finalizers": migration.metadata.finalizers, "phase": status["phase"], "undo": status["undo"],
                "progress": status["progress"], "conditions": conditions,
            })
        });
        let behind = match &self.backend {
            Some(_) => self.behind().await,
            None => Value::Null,
        };
        json!({"objects": all, "policies": self.policies().await, "migration": migration, "behind": behind})
    }

    /// The target CRD, and how many objects of it are stored, also while another server answers for them.
    pub(super) async fn behind(&self) -> Value {
        let stage = &self.stage;
        let crds: Api<CustomResourceDefinition> = Api::all(stage.client.clone());
        let crd = crds.get(&stage.new.crd_name()).await.unwrap();
        let versions: Vec<String> = crd
            .spec
            .versions
            .into_iter()
            .map(|version| version.name)
            .collect();
        let stored = stage.new.stored_at(control_plane().await).await.unwrap();
        json!([
            versions,
            crd.metadata.labels,
            crd.status.unwrap().stored_versions,
            stored
        ])
    }

    /// The locks, by the ends of their names: in between is the migration's uid.
    pub(super) async fn policies(&self) -> Value {
        let client = self.stage.client.clone();
        let mut locks = BTreeMap::new();
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
        for policy in policies.list(&ListParams::default()).await.unwrap() {
            let spec = serde_json::to_string(&policy.spec).unwrap();
            if spec.contains(&format!("DatastoreMigration {}:", self.stage.name)) {
                let name = policy.name_any();
                let part = name.rsplit('-').next().unwrap().to_owned();
                let rules = policy.spec.unwrap().match_constraints.unwrap().resource_rules;
                locks.insert(part, json!([rules, "unbound"]));
                let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
                if bindings.get_opt(&name).await.unwrap().is_some() {
                    let part = name.rsplit('-').next().unwrap();
                    locks.get_mut(part).unwrap()[1] = json!("bound");
                }
            }
        }
        json!(locks)
    }
}

fn same_in_each_run(object: &mut Value, uids: &BTreeMap<String, String>) {
    let metadata = object["metadata"].as_object_mut().unwrap();
    for key in ["uid", "resourceVersion", "creationTimestamp"] {
        metadata.remove(key);
    }
    if let Some(entries) = metadata.get_mut("managedFields").and_then(Value::as_array_mut) {
        for entry in entries {
            let version = &entry["apiVersion"];
            *entry = json!([
                entry["manager"],
                entry["operation"],
                entry["subresource"],
                version
            ]);
        }
    }
    for reference in metadata
        .get_mut("ownerReferences")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let owner = uids.get(reference["uid"].as_str().unwrap());
        reference["uid"] = json!(owner.map_or("nobody", String::as_str));
    }
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        for (key, value) in annotations {
            let text = value.as_str().unwrap_or_default();
            if key.ends_with("source-uids") {
                *value = json!(uids.get(text));
            } else if key.starts_with("exuvia.dev/") {
                *value = json!("set");
            }
        }
    }
}
