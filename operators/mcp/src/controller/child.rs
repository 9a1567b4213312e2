//! Children of a server: their kinds, and each one as it should be next to how it is.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client, Resource, ResourceExt};

use crate::api::SERVER_LABEL;
use crate::naming;

/// Kinds of children, in the order in which they are applied: a pod starts when everything that it needs is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ChildKind {
    ServiceAccount,
    Role,
    RoleBinding,
    NetworkPolicy,
    Service,
    Deployment,
}

impl ChildKind {
    pub(crate) const ALL: [Self; 6] = [
        Self::ServiceAccount,
        Self::Role,
        Self::RoleBinding,
        Self::NetworkPolicy,
        Self::Service,
        Self::Deployment,
    ];

    pub(crate) fn resource(self) -> ApiResource {
        match self {
            Self::ServiceAccount => ApiResource::erase::<ServiceAccount>(&()),
            Self::Role => ApiResource::erase::<Role>(&()),
            Self::RoleBinding => ApiResource::erase::<RoleBinding>(&()),
            Self::NetworkPolicy => ApiResource::erase::<NetworkPolicy>(&()),
            Self::Service => ApiResource::erase::<Service>(&()),
            Self::Deployment => ApiResource::erase::<Deployment>(&()),
        }
    }

    /// Its resource as metrics and logs know it.
    pub(crate) fn resource_name(self) -> &'static str {
        match self {
            Self::ServiceAccount => "serviceaccounts",
            Self::Role => "roles.rbac.authorization.k8s.io",
            Self::RoleBinding => "rolebindings.rbac.authorization.k8s.io",
            Self::NetworkPolicy => "networkpolicies.networking.k8s.io",
            Self::Service => "services",
            Self::Deployment => "deployments.apps",
        }
    }

    /// What the child of a server is called.
    pub(crate) fn name(self, server: &str) -> String {
        match self {
            Self::ServiceAccount | Self::Role | Self::RoleBinding => naming::runner(server),
            Self::NetworkPolicy => naming::backend(server),
            Self::Service | Self::Deployment => server.to_owned(),
        }
    }

    pub(crate) fn api(self, client: &Client, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(client.clone(), namespace, &self.resource())
    }
}

/// Who controls an object, if anybody does.
pub(crate) fn controller_of(object: &impl Resource) -> Option<&str> {
    let owners = object.owner_references().iter();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    controllers.next().map(|owner| owner.uid.as_str())
}

/// Whether the server `name` may take this object for its child: it controls it, or nobody does and the object says by its label or by
/// its field managers that it was made for a server. Anything else belongs to somebody, whom nobody asked.
pub(crate) fn is_ours(object: &impl Resource, name: &str, uid: Option<&str>, manager: &str) -> bool {
    if let Some(owner) = controller_of(object) {
        return Some(owner) == uid;
    }
    let is_labelled = object.labels().get(SERVER_LABEL).is_some_and(|of| of == name);
    let mut writers = object.managed_fields().iter();
    is_labelled || writers.any(|entry| entry.manager.as_deref() == Some(manager))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_what_is_controlled_labelled_or_written_by_us_is_ours() {
        let service =
            |metadata: Value| -> Service { serde_json::from_value(json!({"metadata": metadata})).unwrap() };
        let owned = |uid: &str| {
            json!({"labels": {SERVER_LABEL: "a"}, "ownerReferences":
                   [{"apiVersion": "v1", "kind": "K", "name": "n", "uid": uid, "controller": true}]})
        };
        let written = |manager: &str| json!({"managedFields": [{"manager": manager, "operation": "Apply"}]});
        for (metadata, ours) in [
            (json!({}), false),
            (json!({"labels": {"app": "a"}}), false),
            (json!({"labels": {SERVER_LABEL: "b"}}), false),
            (json!({"labels": {SERVER_LABEL: "a"}}), true),
            (written("kubectl"), false),
            (written("me"), true),
            (owned("u"), true),
            (owned("other"), false),
        ] {
            assert_eq!(
                is_ours(&service(metadata.clone()), "a", Some("u"), "me"),
                ours,
                "{metadata}"
            );
        }
    }
}
