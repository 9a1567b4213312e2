//! A custom resource to try things on: `widgets` in a group that the caller chooses, served at `v1alpha1` and `v1`.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::{ControlPlane, Error, until};

/// The CRD `widgets.<group>` and its objects. Choose a group per test: it keeps tests on a shared control plane apart.
#[derive(Clone, Debug)]
pub struct Widgets {
    group: String,
}

impl Widgets {
    /// Widgets in this group.
    pub fn in_group(group: impl Into<String>) -> Self {
        Self { group: group.into() }
    }

    /// The group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The CRD's name.
    pub fn crd_name(&self) -> String {
        format!("widgets.{}", self.group)
    }

    /// The CRD with both versions served and stored at `storage`; change the value before installing it, if need be.
    pub fn crd(&self, storage: &str) -> Value {
        let version = |name: &str| {
            json!({
                "name": name, "served": true, "storage": name == storage,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "size": {"type": "integer"},
                        "color": {"type": "string"},
                        "payload": {"type": "string"},
                        "tags": {"type": "array", "items": {"type": "string"}},
                        "parts": {"type": "object", "additionalProperties": {"type": "string"}},
                    }},
                    "status": {"type": "object", "properties": {
                        "phase": {"type": "string"},
                        "ready": {"type": "integer"},
                        "notes": {"type": "object", "additionalProperties": {"type": "string"}},
                        "conditions": {
                            "type": "array",
                            "x-kubernetes-list-type": "map",
                            "x-kubernetes-list-map-keys": ["type"],
                            "items": {
                                "type": "object",
                                "required": ["type", "status"],
                                "properties": {
                                    "type": {"type": "string"},
                                    "status": {"type": "string"},
                                    "reason": {"type": "string"},
                                    "message": {"type": "string"},
                                    "observedGeneration": {"type": "integer"},
                                    "lastTransitionTime": {"type": "string", "format": "date-time"},
                                },
                            },
                        },
                    }},
                }}},
            })
        };
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": self.crd_name()},
            "spec": {
                "group": self.group,
                "scope": "Namespaced",
                "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
                "versions": [version("v1alpha1"), version("v1")],
            },
        })
    }

    /// Installs the CRD, stored at `storage`, and waits until it is served.
    pub async fn install(&self, client: &Client, storage: &str) -> Result<(), Error> {
        self.install_crd(client, self.crd(storage)).await
    }

    /// Installs a changed CRD and waits until it is served.
    pub async fn install_crd(&self, client: &Client, crd: Value) -> Result<(), Error> {
        let crd: CustomResourceDefinition =
            serde_json::from_value(crd).map_err(|e| Error::Client(e.into()))?;
        Api::all(client.clone())
            .create(&PostParams::default(), &crd)
            .await?;
        // Served means that each version answers a list and is in discovery: the server's handler and its
        // discovery learn of a CRD apart, and either may be first.
        for version in crd.spec.versions.iter().filter(|version| version.served) {
            let api = self.api(client, &version.name);
            let group_version = format!("{}/{}", self.group, version.name);
            until("the new version is served", async || {
                api.list(&kube::api::ListParams::default().limit(1)).await.is_ok()
                    && (client.list_api_group_resources(&group_version).await)
                        .is_ok_and(|list| list.resources.iter().any(|resource| resource.name == "widgets"))
            })
            .await;
        }
        Ok(())
    }

    /// So many widgets that were created at `v1alpha1` before the storage version became `v1`.
    pub async fn flipped(client: &Client, group: &str, count: usize) -> Result<Self, Error> {
        let widgets = Self::in_group(group);
        widgets.install(client, "v1alpha1").await?;
        widgets.create(client, "v1alpha1", count).await?;
        widgets.flip_storage(client, "v1").await?;
        Ok(widgets)
    }

    /// Changes the CRD by a merge patch.
    pub async fn merge_crd(&self, client: &Client, patch: Value) -> Result<(), Error> {
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        let patch = Patch::Merge(patch);
        crds.patch(&self.crd_name(), &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// The CRD's `status.storedVersions`.
    pub async fn stored_versions(&self, client: &Client) -> Result<Vec<String>, Error> {
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        let status = crds.get(&self.crd_name()).await?.status;
        Ok(status
            .and_then(|status| status.stored_versions)
            .unwrap_or_default())
    }

    /// Writes `status.storedVersions`, as tools do that believe that they know.
    pub async fn set_stored_versions(&self, client: &Client, versions: &[&str]) -> Result<(), Error> {
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        let patch = Patch::Merge(json!({"status": {"storedVersions": versions}}));
        crds.patch_status(&self.crd_name(), &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// How many objects etcd holds at each version, such as `v1`.
    pub async fn stored_at(&self, control_plane: &ControlPlane) -> Result<BTreeMap<String, usize>, Error> {
        let counts = control_plane.stored(&self.group, "widgets");
        let short = |api_version: String| api_version.rsplit('/').next().unwrap_or_default().to_owned();
        let counts = counts.count_by_version().await?.into_iter();
        Ok(counts.map(|(version, count)| (short(version), count)).collect())
    }

    /// Makes `storage` the storage version and waits until the server that `client` speaks to has understood.
    pub async fn flip_storage(&self, client: &Client, storage: &str) -> Result<(), Error> {
        let before = self.storage_version_hash(client).await?;
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        let crd = crds.get(&self.crd_name()).await?;
        let versions: Vec<Value> = crd
            .spec
            .versions
            .iter()
            .map(|version| {
                let mut version = json!(version);
                version["storage"] = json!(version["name"] == storage);
                version
            })
            .collect();
        let patch = Patch::Merge(json!({"spec": {"versions": versions}}));
        crds.patch(&self.crd_name(), &PatchParams::default(), &patch)
            .await?;
        until("discovery shows the new storage version", async || {
            self.storage_version_hash(client)
                .await
                .is_ok_and(|hash| hash != before)
        })
        .await;
        // It may be a moment until the server has storage for the kind again: 429 "storage is (re)initializing".
        let api = self.api(client, storage);
        until("the kind has storage again", async || {
            let list = api
                .list_metadata(&kube::api::ListParams::default().limit(1))
                .await;
            !matches!(list, Err(kube::Error::Api(status)) if status.code == 429)
        })
        .await;
        Ok(())
    }

    /// Takes a version out of the CRD; [`Error::Refused`] if the server does not let it go.
    pub async fn drop_version(&self, client: &Client, version: &str) -> Result<(), Error> {
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        let mut crd = crds.get(&self.crd_name()).await?;
        crd.spec.versions.retain(|kept| kept.name != version);
        match crds.replace(&self.crd_name(), &PostParams::default(), &crd).await {
            Err(kube::Error::Api(status)) if status.code == 422 => Err(Error::Refused {
                what: format!("dropping {version}"),
                message: status.message,
            }),
            replaced => Ok(replaced.map(drop)?),
        }
    }

    /// The hash in discovery that tells at which version a server stores.
    pub async fn storage_version_hash(&self, client: &Client) -> Result<String, Error> {
        let list = client
            .list_api_group_resources(&format!("{}/v1", self.group))
            .await?;
        let widgets = list
            .resources
            .into_iter()
            .find(|resource| resource.name == "widgets");
        Ok(widgets
            .and_then(|resource| resource.storage_version_hash)
            .unwrap_or_default())
    }

    /// What the API calls a widget at this version.
    pub fn resource(&self, version: &str) -> ApiResource {
        ApiResource {
            group: self.group.clone(),
            version: version.to_owned(),
            api_version: format!("{}/{version}", self.group),
            kind: "Widget".to_owned(),
            plural: "widgets".to_owned(),
        }
    }

    /// The widgets of namespace `default`, at this version.
    pub fn api(&self, client: &Client, version: &str) -> Api<DynamicObject> {
        Api::namespaced_with(client.clone(), "default", &self.resource(version))
    }

    /// A widget as one would send it.
    pub fn widget(&self, version: &str, name: &str) -> DynamicObject {
        DynamicObject::new(name, &self.resource(version))
            .within("default")
            .data(json!({"spec": {"size": 1, "color": "green"}}))
    }

    /// Creates `widget-0000`, `widget-0001` and so on at this version, several at a time.
    pub async fn create(&self, client: &Client, version: &str, count: usize) -> Result<(), Error> {
        use futures::{StreamExt, TryStreamExt};
        let api = self.api(client, version);
        futures::stream::iter(0..count)
            .map(|index| {
                let (api, widget) = (api.clone(), self.widget(version, &format!("widget-{index:04}")));
                async move { api.create(&PostParams::default(), &widget).await.map(drop) }
            })
            .buffer_unordered(16)
            .try_collect::<()>()
            .await?;
        Ok(())
    }
}
