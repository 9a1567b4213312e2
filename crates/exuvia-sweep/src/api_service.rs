//! Who answers for a group-version: the API server itself with its CRDs, or the backend of an `APIService`.
//!
//! An `APIService` with a backend hides the CRDs of its group-version (PITFALLS A14). Lists, reads and writes then go to that
//! server, and say nothing about what the CRDs hold.

use std::fmt;

use exuvia_write::{ErrorClass, Name, Redacted, RetryPolicy, redacted};
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use serde_json::Value;

/// The API server itself keeps `APIServices` with this label in order: one with a backend is turned into a local one within
/// milliseconds (PITFALLS D1).
pub const AUTOMANAGED_LABEL: &str = "kube-aggregator.kubernetes.io/automanaged";

/// An `APIService` as it is now.
#[derive(Clone, Debug, PartialEq)]
pub enum ApiService {
    /// It does not exist. CRDs answer, if there are any.
    Absent,
    /// It points to the API server itself, so that CRDs answer.
    Local {
        /// The object.
        object: Box<DynamicObject>,
        /// The API server made it and keeps it in order.
        automanaged: bool,
    },
    /// Another server answers.
    Backend(Backend),
}

impl ApiService {
    /// What was found under the name of an `APIService`.
    pub fn from_object(found: Option<DynamicObject>) -> Self {
        let Some(object) = found else {
            return Self::Absent;
        };
        match object.data["spec"].get("service") {
            Some(service) if !service.is_null() => Self::Backend(Backend(Box::new(object))),
            _ => Self::Local {
                automanaged: object.labels().contains_key(AUTOMANAGED_LABEL),
                object: Box::new(object),
            },
        }
    }

    /// Reads the `APIService` `<version>.<group>`.
    ///
    /// # Errors
    ///
    /// It could not be read. A 404 that is not about this object says nothing about it, and is an error too.
    pub async fn read(client: &Client, group: &str, version: &str) -> Result<Self, kube::Error> {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource());
        let name = format!("{version}.{group}");
        match RetryPolicy::default().read(|| api.get(&name)).await {
            Ok(found) => Ok(Self::from_object(Some(found))),
            // The API server makes it a moment after the CRD, and again if somebody deletes it (PITFALLS D2). Until then no
            // request is handed over to anybody.
            Err(error) if ErrorClass::of(&error) == ErrorClass::Gone => Ok(Self::Absent),
            Err(error) => Err(error),
        }
    }
}

/// An `APIService` with a backend.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend(Box<DynamicObject>);

impl Backend {
    /// Its uid.
    pub fn uid(&self) -> String {
        self.0.uid().unwrap_or_default()
    }

    /// The object.
    pub fn object(&self) -> &DynamicObject {
        &self.0
    }

    /// Somebody is deleting it.
    pub fn is_deleting(&self) -> bool {
        self.0.metadata.deletion_timestamp.is_some()
    }

    /// Its backend has answered the API server. The condition of an automanaged one outlives the write that gives it a
    /// backend, and says `Local`.
    pub fn is_available(&self) -> bool {
        let available = self.condition();
        available["status"] == "True" && available["reason"] != "Local"
    }

    /// Why it is not available, as its condition says.
    pub fn why_unavailable(&self) -> Redacted {
        let condition = self.condition();
        let word = |member: &str| condition[member].as_str().unwrap_or_default();
        match word("reason") {
            "" | "Local" => "the API server has not tried its backend yet".into(),
            reason => redacted!("{}: {}", Name(reason), Redacted::from_server(word("message"))),
        }
    }

    fn condition(&self) -> &Value {
        let conditions = self.0.data["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        conditions
            .find(|condition| condition["type"] == "Available")
            .unwrap_or(&Value::Null)
    }

    /// What it hides.
    fn hidden(&self) -> Hidden {
        let spec = &self.0.data["spec"];
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Hidden {
            group: word(&spec["group"]),
            version: word(&spec["version"]),
            service: format!(
                "{}/{}",
                word(&spec["service"]["namespace"]),
                word(&spec["service"]["name"])
            ),
        }
    }
}

/// A group-version whose CRDs are hidden: somebody else answers for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Hidden {
    /// The group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The Service that is asked instead, `namespace/name`.
    pub service: String,
}

impl Hidden {
    /// Those of a group's versions that are hidden now. Needs `get` on `apiservices.apiregistration.k8s.io`.
    ///
    /// # Errors
    ///
    /// An `APIService` could not be read, so that it is not known.
    pub async fn among<'a>(
        client: &Client,
        group: &str,
        versions: impl IntoIterator<Item = &'a str>,
    ) -> Result<Vec<Self>, kube::Error> {
        let mut hidden = Vec::new();
        for version in versions {
            if let ApiService::Backend(backend) = ApiService::read(client, group, version).await? {
                hidden.push(backend.hidden());
            }
        }
        Ok(hidden)
    }

    /// All that are hidden in the cluster, by one list. Needs `list`.
    ///
    /// # Errors
    ///
    /// The list could not be read.
    pub async fn all(client: &Client) -> Result<Vec<Self>, kube::Error> {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource());
        let everything = kube::api::ListParams::default();
        let list = RetryPolicy::default().read(|| api.list(&everything)).await?;
        let observed = list
            .items
            .into_iter()
            .map(|object| ApiService::from_object(Some(object)));
        Ok(observed
            .filter_map(|observed| match observed {
                ApiService::Backend(backend) => Some(backend.hidden()),
                ApiService::Absent | ApiService::Local { .. } => None,
            })
            .collect())
    }

    /// The name of the `APIService`.
    pub fn api_service(&self) -> String {
        format!("{}.{}", self.version, self.group)
    }
}

impl fmt::Display for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the APIService {} sends requests to the Service {}, so that the CRD does not answer at {}",
            self.api_service(),
            self.service,
            self.version
        )
    }
}

/// Read and written as they are, so that fields which nobody here knows come back with the rest.
pub fn resource() -> ApiResource {
    ApiResource {
        group: "apiregistration.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "apiregistration.k8s.io/v1".to_owned(),
        kind: "APIService".to_owned(),
        plural: "apiservices".to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn observed(spec: &Value) -> ApiService {
        let object = json!({"metadata": {"name": "v1.example.com"}, "spec": spec});
        ApiService::from_object(Some(serde_json::from_value(object).unwrap()))
    }

    #[test]
    fn only_one_with_a_service_has_a_backend() {
        let mut spec = json!({"group": "example.com", "version": "v1"});
        assert!(matches!(
            observed(&spec),
            ApiService::Local {
                automanaged: false,
                ..
            }
        ));
        spec["service"] = Value::Null;
        assert!(matches!(observed(&spec), ApiService::Local { .. }));
        spec["service"] = json!({"namespace": "ns", "name": "api"});
        let ApiService::Backend(backend) = observed(&spec) else {
            panic!("it has a backend")
        };
        assert_eq!(
            backend.hidden().to_string(),
            "the APIService v1.example.com sends requests to the Service ns/api, so that the CRD does not answer at v1"
        );
        assert_eq!(ApiService::from_object(None), ApiService::Absent);
    }
}
