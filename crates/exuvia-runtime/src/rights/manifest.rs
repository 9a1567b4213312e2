//! Roles and bindings: one pair for each scope that has rules.

use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

use super::{Rule, RuleScope};

/// Who gets the rights.
#[derive(Clone, Debug)]
pub struct RoleHolder {
    /// The name of the cluster role and its binding; the other roles' names begin with it.
    pub name: String,
    /// The namespace of the operator and of its service account.
    pub namespace: String,
    /// The service account.
    pub service_account: String,
}

/// A role with its rules, or a binding.
#[derive(Clone, Debug, Serialize)]
pub struct Manifest {
    /// The object.
    #[serde(flatten)]
    pub object: Object,
    /// The rules of a role, each with its reason.
    #[serde(skip)]
    pub rules: Vec<Rule>,
}

/// One of the four kinds of RBAC.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)] // each variant is called like its kind
pub enum Object {
    ClusterRole(ClusterRole),
    ClusterRoleBinding(ClusterRoleBinding),
    Role(Role),
    RoleBinding(RoleBinding),
}

/// A role and its binding for each scope that has rules, in the order of [`RuleScope::ALL`].
pub fn manifests(rules: &[Rule], holder: &RoleHolder) -> Vec<Manifest> {
    let of_scope = |scope: RuleScope| -> Vec<Rule> {
        let matching = rules.iter().filter(|rule| rule.scope == scope);
        matching.cloned().collect()
    };
    RuleScope::ALL
        .into_iter()
        .map(|scope| (scope, of_scope(scope)))
        .filter(|(_, rules)| !rules.is_empty())
        .flat_map(|(scope, rules)| pair(scope, rules, holder))
        .collect()
}

fn pair(scope: RuleScope, rules: Vec<Rule>, holder: &RoleHolder) -> [Manifest; 2] {
    let name = format!("{}{}", holder.name, scope.role_suffix());
    let policy: Option<Vec<PolicyRule>> = Some(rules.iter().map(|rule| rule.rule.clone()).collect());
    let metadata = ObjectMeta {
        name: Some(name.clone()),
        namespace: match scope {
            RuleScope::Cluster => None,
            RuleScope::Own => Some(holder.namespace.clone()),
            RuleScope::Default | RuleScope::KubeSystem => scope.namespace().map(str::to_owned),
        },
        ..ObjectMeta::default()
    };
    let role_ref = |kind: &str| RoleRef {
        api_group: Some("rbac.authorization.k8s.io".to_owned()),
        kind: kind.to_owned(),
        name,
    };
    let subjects = Some(vec![Subject {
        kind: "ServiceAccount".to_owned(),
        name: holder.service_account.clone(),
        namespace: Some(holder.namespace.clone()),
        ..Subject::default()
    }]);
    let (role, binding) = if scope == RuleScope::Cluster {
        (
            Object::ClusterRole(ClusterRole {
                metadata: metadata.clone(),
                rules: policy,
                ..ClusterRole::default()
            }),
            Object::ClusterRoleBinding(ClusterRoleBinding {
                metadata,
                role_ref: role_ref("ClusterRole"),
                subjects,
            }),
        )
    } else {
        (
            Object::Role(Role {
                metadata: metadata.clone(),
                rules: policy,
            }),
            Object::RoleBinding(RoleBinding {
                metadata,
                role_ref: role_ref("Role"),
                subjects,
            }),
        )
    };
    let binding = Manifest {
        object: binding,
        rules: Vec::new(),
    };
    [Manifest { object: role, rules }, binding]
}
