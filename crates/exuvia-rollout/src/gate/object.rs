//! The objects that a gate is about, by their names.

use kube::api::{ApiResource, DynamicObject, ObjectMeta};
use kube::{Api, Client, Resource};

/// An object by its name.
///
/// ```
/// use exuvia_rollout::ObjectRef;
/// use k8s_openapi::api::apps::v1::StatefulSet;
///
/// let target = ObjectRef::typed::<StatefulSet>("shop", "till-backend");
/// assert_eq!(target.to_string(), "statefulsets shop/till-backend");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectRef {
    /// What it is.
    pub resource: ApiResource,
    /// Where it is; `None` for a cluster-scoped object.
    pub namespace: Option<String>,
    /// What it is called.
    pub name: String,
}

impl ObjectRef {
    /// A namespaced object of a kind.
    pub fn new(resource: ApiResource, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            resource,
            namespace: Some(namespace.into()),
            name: name.into(),
        }
    }

    /// A namespaced object of a typed kind.
    pub fn typed<K: Resource<DynamicType = ()>>(
        namespace: impl Into<String>,
        name: impl Into<String>,
    ) -> Self {
        Self::new(ApiResource::erase::<K>(&()), namespace, name)
    }

    /// The `Api` for it.
    pub fn api(&self, client: &Client) -> Api<DynamicObject> {
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &self.resource),
            None => Api::all_with(client.clone(), &self.resource),
        }
    }

    pub(super) fn metadata(&self) -> ObjectMeta {
        ObjectMeta {
            name: Some(self.name.clone()),
            namespace: self.namespace.clone(),
            ..ObjectMeta::default()
        }
    }
}

impl std::fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ", self.resource.plural)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}
