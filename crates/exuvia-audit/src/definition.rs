//! What CRDs say about their resource, read from the CRDs' own bytes in etcd.

use serde::{Deserialize, Serialize};

use super::value::{self, Cause};

/// What is known about a resource apart from its objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "source", rename_all = "camelCase")]
#[non_exhaustive]
pub enum Definition {
    /// The API server's own; at which version it stores them does not show in etcd.
    BuiltIn,
    /// A CRD.
    Crd(Crd),
    /// A CRD that cannot be read.
    Unreadable(Cause),
    /// No CRD: what a deleted one left behind, or the objects of an aggregated API server.
    Missing,
}

/// What matters of a CRD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Crd {
    /// The version that objects are written at.
    pub storage_version: String,
    /// `status.storedVersions`.
    pub stored_versions: Vec<String>,
    /// All versions it has, served or not.
    pub versions: Vec<String>,
    /// `Namespaced` or `Cluster`.
    pub scope: String,
}

/// Reads a CRD's stored bytes; its schemas are skipped, not built.
pub(super) fn read(bytes: &[u8]) -> Result<Crd, Cause> {
    #[derive(Deserialize)]
    struct Stored {
        spec: Spec,
        status: Option<Status>,
    }
    #[derive(Deserialize)]
    struct Spec {
        scope: String,
        versions: Vec<Version>,
    }
    #[derive(Deserialize)]
    struct Version {
        name: String,
        storage: bool,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Status {
        stored_versions: Option<Vec<String>>,
    }
    value::api_version(bytes)?;
    let stored: Stored = serde_json::from_slice(bytes).map_err(|_| Cause::Unknown)?;
    let versions = stored.spec.versions;
    let storage = versions.iter().find(|version| version.storage);
    Ok(Crd {
        storage_version: storage
            .map(|version| version.name.clone())
            .ok_or(Cause::Unknown)?,
        stored_versions: stored
            .status
            .and_then(|status| status.stored_versions)
            .unwrap_or_default(),
        versions: versions.into_iter().map(|version| version.name).collect(),
        scope: stored.spec.scope,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn versions_are_read_and_the_rest_is_not() {
        let stored = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "spec": {"scope": "Namespaced", "group": "example.com", "versions": [
                {"name": "v1alpha1", "storage": false, "served": true, "schema": {"deep": [1, {"a": null}]}},
                {"name": "v1", "storage": true, "served": true},
            ]},
            "status": {"storedVersions": ["v1alpha1", "v1"], "conditions": null},
        });
        let expected = Crd {
            storage_version: "v1".to_owned(),
            stored_versions: vec!["v1alpha1".to_owned(), "v1".to_owned()],
            versions: vec!["v1alpha1".to_owned(), "v1".to_owned()],
            scope: "Namespaced".to_owned(),
        };
        assert_eq!(read(stored.to_string().as_bytes()), Ok(expected));
    }

    /// PITFALLS B10.
    #[test]
    fn a_crd_without_status_or_storage_version_does_no_harm() {
        let mut stored = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "spec": {"scope": "Cluster", "versions": [{"name": "v1", "storage": true}]},
        });
        let crd = read(stored.to_string().as_bytes()).expect("it has all that matters");
        assert!(crd.stored_versions.is_empty());
        stored["spec"]["versions"][0]["storage"] = json!(false);
        assert_eq!(read(stored.to_string().as_bytes()), Err(Cause::Unknown));
        assert!(matches!(
            read(b"k8s:enc:secretbox:v1:key1:x"),
            Err(Cause::Encrypted { .. })
        ));
    }
}
