//! Gates, fence, frozen config and drift on a real API server: one control plane for all.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]

mod compat;
mod corpus;
mod drifts;
mod fences;
mod interleaved;
mod races;
mod strict;
mod torn;

use std::time::Duration;

use exuvia_rollout::gate::strict::Config;
use exuvia_rollout::{Generation, Intent, Names, ObjectRef, Ours, StrictGate, Token};
use exuvia_testenv::{ControlPlane, proxy::Proxy};
use exuvia_write::{RetryPolicy, Writer};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// What the targets are called.
pub(crate) const TARGET: &str = "till-backend";
pub(crate) const OWNER: &str = "till";

/// A namespace of its own with an owner in it, and two ways to the server.
pub(crate) struct Stage {
    pub(crate) namespace: String,
    pub(crate) direct: Client,
    pub(crate) proxied: Client,
    pub(crate) proxy: Proxy,
    pub(crate) owner_uid: String,
}

pub(crate) fn writer(manager: &str) -> Writer {
    Writer::named(manager.to_owned()).retry(RetryPolicy {
        base: Duration::from_millis(10),
        cap: Duration::from_millis(50),
        ..RetryPolicy::default()
    })
}

impl Stage {
    pub(crate) async fn set(name: &str) -> Self {
        let control_plane = ControlPlane::shared().await;
        let direct = control_plane.client().unwrap();
        let proxy = control_plane.proxy().await.unwrap();
        let namespaces: Api<Namespace> = Api::all(direct.clone());
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap();
        let mut stage = Self {
            namespace: name.to_owned(),
            proxied: proxy.client().unwrap(),
            direct,
            proxy,
            owner_uid: String::new(),
        };
        stage.owner_uid = stage.create_owner().await;
        stage
    }

    pub(crate) fn owners(&self) -> Api<ConfigMap> {
        Api::namespaced(self.direct.clone(), &self.namespace)
    }

    /// Any object will do for an owner. Its uid is returned.
    pub(crate) async fn create_owner(&self) -> String {
        let owner = serde_json::from_value(json!({"metadata": {"name": OWNER}})).unwrap();
        let owner = self
            .owners()
            .create(&PostParams::default(), &owner)
            .await
            .unwrap();
        owner.uid().unwrap()
    }

    pub(crate) async fn delete_owner(&self) {
        self.owners()
            .delete(OWNER, &DeleteParams::default())
            .await
            .unwrap();
    }

    pub(crate) fn target(&self) -> ObjectRef {
        ObjectRef::typed::<StatefulSet>(&self.namespace, TARGET)
    }

    /// The targets, straight from the server.
    pub(crate) fn sets(&self) -> Api<DynamicObject> {
        self.target().api(&self.direct)
    }

    pub(crate) async fn live(&self) -> Value {
        json!(self.sets().get(TARGET).await.unwrap())
    }

    /// The strict gate, through the proxy, which records.
    pub(crate) fn gate(&self) -> StrictGate {
        self.gate_with(writer("mcp-runner"))
    }

    pub(crate) fn gate_with(&self, writer: Writer) -> StrictGate {
        let owner = ObjectRef::typed::<ConfigMap>(&self.namespace, OWNER);
        let deployment = ObjectRef::typed::<Deployment>(&self.namespace, OWNER);
        StrictGate::new(
            self.proxied.clone(),
            writer,
            Names::default(),
            self.target(),
            owner,
        )
        .deployment(deployment)
    }

    pub(crate) fn intent(&self, image: &str) -> Intent {
        self.intent_named(TARGET, image)
    }

    pub(crate) fn intent_named(&self, name: &str, image: &str) -> Intent {
        Intent::new(&stateful_set(&self.namespace, name, image)).unwrap()
    }

    pub(crate) fn ours(&self, epoch: u64) -> Ours {
        ours_of(&self.owner_uid, epoch)
    }

    /// A write as anybody could make it.
    pub(crate) async fn patch(&self, patch: &Value) -> Result<DynamicObject, kube::Error> {
        let params = PatchParams::apply("kubectl-edit");
        let params = PatchParams {
            force: false,
            ..params
        };
        self.sets().patch(TARGET, &params, &Patch::Merge(patch)).await
    }
}

pub(crate) fn ours_of(uid: &str, epoch: u64) -> Ours {
    Ours {
        token: Some(Token::new(uid, epoch)),
        config_hash: Some("c0ffee".to_owned()),
        config: Config::Whole,
        generation: Generation::choose(Some(&epoch.to_string()), Some(9)),
    }
}

pub(crate) fn stateful_set(namespace: &str, name: &str, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{
                    "name": "mcp", "image": image, "ports": [{"containerPort": 8080}],
                    "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                    "resources": {"limits": {"memory": "1024Mi"}},
                }]},
            },
        },
    })
}

pub(crate) fn image(live: &Value) -> &str {
    live["spec"]["template"]["spec"]["containers"][0]["image"]
        .as_str()
        .unwrap()
}

pub(crate) fn annotation<'a>(live: &'a Value, name: &str) -> Option<&'a str> {
    live["metadata"]["annotations"][name].as_str()
}
