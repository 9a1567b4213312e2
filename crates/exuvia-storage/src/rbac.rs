//! The operator's rights as RBAC manifests: no rule more than it uses, each with the reason for it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

/// Where the API server keeps its endpoints, and where events of cluster-scoped objects live.
const DEFAULT_NAMESPACE: &str = "default";
/// Where each API server keeps its identity Lease.
const SERVERS_NAMESPACE: &str = "kube-system";
const RBAC_GROUP: &str = "rbac.authorization.k8s.io";

/// A CRD by what RBAC knows it by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Crd {
    /// The API group.
    pub group: String,
    /// The resource's plural.
    pub plural: String,
}

/// A name that no CRD can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no name of a CRD: write <plural>.<group>, such as widgets.example.com")]
pub struct NotACrdName(String);

impl std::str::FromStr for Crd {
    type Err = NotACrdName;

    /// ```
    /// use exuvia_storage::rbac::Crd;
    ///
    /// let crd: Crd = "widgets.example.com".parse()?;
    /// assert_eq!((crd.plural.as_str(), crd.group.as_str()), ("widgets", "example.com"));
    /// assert!("widgets".parse::<Crd>().is_err());
    /// # Ok::<(), exuvia_storage::rbac::NotACrdName>(())
    /// ```
    fn from_str(name: &str) -> Result<Self, NotACrdName> {
        let label = |text: &str| {
            let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            !text.is_empty() && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-')
        };
        match name.split_once('.') {
            // The API server takes no CRD whose group has no dot.
            Some((plural, group)) if group.contains('.') && name.split('.').all(label) => Ok(Self {
                group: group.to_owned(),
                plural: plural.to_owned(),
            }),
            _ => Err(NotACrdName(name.to_owned())),
        }
    }
}

impl std::fmt::Display for Crd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.plural, self.group)
    }
}

/// What the operator shall be able to migrate.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// CRDs by name.
    pub crds: BTreeSet<Crd>,
    /// Groups of which any CRD may be managed, each by itself: RBAC cannot say "and those below". `*` stands for all.
    pub groups: BTreeSet<String>,
    /// Whether a migration may ask for its objects to be tried at `/status`.
    pub status_fallback: bool,
    /// Whether the operator looks for ownerReferences, at everything in the cluster.
    pub look_at_references: bool,
}

/// One rule, and why it is there.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// One sentence.
    pub why: String,
    /// The rule.
    pub rule: PolicyRule,
}

impl Scope {
    /// The groups of the CRDs, and those that are `asked_for`, instead of the CRDs. Exuvia's own CRDs are all known, so
    /// they need no wildcard.
    pub fn of_groups(
        crds: impl IntoIterator<Item = Crd>,
        asked_for: impl IntoIterator<Item = String>,
    ) -> Self {
        let (own, others): (BTreeSet<Crd>, BTreeSet<Crd>) =
            crds.into_iter().partition(|crd| crd.group == exuvia_api::GROUP);
        let groups = others.into_iter().map(|crd| crd.group);
        let asked_for = asked_for.into_iter().filter(|group| group != exuvia_api::GROUP);
        Self {
            crds: own,
            groups: groups.chain(asked_for).collect(),
            ..Self::default()
        }
    }

    /// What it takes at cluster scope.
    pub fn cluster_rules(&self) -> Vec<Rule> {
        const CRDS: &str = "apiextensions.k8s.io";
        let mut rules = vec![
            Rule::new(
                "Find the CRDs that have opted in, see their versions change, and wait for its own.",
                CRDS,
                ["customresourcedefinitions"],
                &["get", "list", "watch"],
            ),
            Rule::new(
                "Make a migration for each of them, take it away when the label goes, and read what people made by hand.",
                exuvia_api::GROUP,
                ["storagemigrations"],
                &["get", "list", "watch", "create", "delete"],
            ),
            Rule::new(
                "Report progress.",
                exuvia_api::GROUP,
                ["storagemigrations/status"],
                &["patch"],
            ),
            Rule::path(
                "Tell API servers apart, and see open watches at old versions.",
                "/metrics",
            ),
        ];
        if self.look_at_references {
            rules.push(Rule::new(
                "Look for ownerReferences at old versions, which any object in the cluster may have. Only metadata is asked \
                 for, but RBAC cannot say that: this includes Secrets.",
                "*",
                ["*"],
                &["list"],
            ));
        }
        let trim = |why| Rule::new(why, CRDS, ["customresourcedefinitions/status"], &["patch"]);
        if !self.groups.is_empty() {
            rules.push(trim(
                "Trim status.storedVersions, and put a version back if that was too early. Which CRDs the groups will \
                 have is not known here, so no names restrict this.",
            ));
        } else if !self.crds.is_empty() {
            rules.push(
                trim("Trim status.storedVersions of exactly these CRDs, and put a version back if that was too early.")
                    .only(self.crds.iter().map(ToString::to_string)),
            );
        }
        let mut by_group: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for crd in &self.crds {
            by_group.entry(&crd.group).or_default().push(&crd.plural);
        }
        for (group, plurals) in by_group {
            rules.push(Rule::new(
                "List the objects of the CRDs of this group, and rewrite them.",
                group,
                plurals.iter().copied(),
                &["get", "list", "patch"],
            ));
            if self.status_fallback {
                rules.push(Rule::new(
                    "For migrations with spec.statusFallback: what is denied at the object itself is tried at its status.",
                    group,
                    plurals.iter().map(|plural| format!("{plural}/status")),
                    &["patch"],
                ));
            }
        }
        rules.extend(self.groups.iter().map(|group| {
            Rule::new(
                "List the objects of the CRDs of this group, and rewrite them. All resources, because the operator finds \
                 CRDs at run time; RBAC cannot say \"and all groups below\", so each group is listed. Subresources are \
                 part of the wildcard.",
                group,
                ["*"],
                &["get", "list", "patch"],
            )
        }));
        rules
    }
}

/// What it takes in namespace `default`.
fn default_namespace_rules() -> Vec<Rule> {
    vec![
        Rule::new(
            "Find the API servers, to ask each whether it stores at the new version.",
            "discovery.k8s.io",
            ["endpointslices"],
            &["list"],
        ),
        Rule::new(
            "Tell what happens: events of cluster-scoped objects live in this namespace.",
            "events.k8s.io",
            ["events"],
            &["create"],
        ),
    ]
}

/// What it takes in namespace `kube-system`.
fn servers_namespace_rules() -> Vec<Rule> {
    vec![Rule::new(
        "Count the API servers by their identity Leases.",
        "coordination.k8s.io",
        ["leases"],
        &["list"],
    )]
}

/// What it takes in the operator's own namespace.
fn own_namespace_rules(lease: &str) -> Vec<Rule> {
    const LEASES: (&str, [&str; 1]) = ("coordination.k8s.io", ["leases"]);
    vec![
        Rule::new(
            "Make the Lease: a name cannot be asked for before there is one.",
            LEASES.0,
            LEASES.1,
            &["create"],
        ),
        Rule::new("Hold the Lease.", LEASES.0, LEASES.1, &["get", "patch"]).only([lease.to_owned()]),
    ]
}

impl Rule {
    fn new<R: Into<String>>(
        why: &str,
        group: &str,
        resources: impl IntoIterator<Item = R>,
        verbs: &[&str],
    ) -> Self {
        let rule = PolicyRule {
            api_groups: Some(vec![group.to_owned()]),
            resources: Some(resources.into_iter().map(Into::into).collect()),
            verbs: verbs.iter().map(ToString::to_string).collect(),
            ..PolicyRule::default()
        };
        Self {
            why: why.to_owned(),
            rule,
        }
    }

    /// To get what is at this path, which is not a resource.
    fn path(why: &str, path: &str) -> Self {
        let rule = PolicyRule {
            non_resource_urls: Some(vec![path.to_owned()]),
            verbs: vec!["get".to_owned()],
            ..PolicyRule::default()
        };
        Self {
            why: why.to_owned(),
            rule,
        }
    }

    /// Only for objects with these names.
    fn only(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.rule.resource_names = Some(names.into_iter().collect());
        self
    }
}

/// Whose rights they are.
#[derive(Clone, Debug)]
pub struct Holder {
    /// What the roles and bindings are called.
    pub name: String,
    /// The namespace of the operator and of its service account.
    pub namespace: String,
    /// The service account.
    pub service_account: String,
    /// The Lease that the operator holds.
    pub lease: String,
}

/// A role or a binding; of a role, `why` has one sentence for each rule, in their order.
#[derive(Clone, Debug, Serialize)]
pub struct Manifest {
    /// The object.
    #[serde(flatten)]
    pub object: Object,
    /// The reasons for the rules.
    #[serde(skip)]
    pub why: Vec<String>,
}

/// One of the four kinds.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)] // they are what they are called
pub enum Object {
    ClusterRole(ClusterRole),
    ClusterRoleBinding(ClusterRoleBinding),
    Role(Role),
    RoleBinding(RoleBinding),
}

/// Everything that `holder` needs, and nothing more: a role and its binding for the cluster, for the namespaces `default` and
/// `kube-system`, and for its own.
pub fn manifests(scope: &Scope, holder: &Holder) -> Vec<Manifest> {
    let mut manifests = Vec::new();
    let (rules, why) = split(scope.cluster_rules());
    let meta = meta(&holder.name, None);
    manifests.push(Manifest {
        object: Object::ClusterRole(ClusterRole {
            metadata: meta.clone(),
            rules: Some(rules),
            ..ClusterRole::default()
        }),
        why,
    });
    manifests.push(Manifest {
        object: Object::ClusterRoleBinding(ClusterRoleBinding {
            metadata: meta,
            role_ref: role_ref("ClusterRole", &holder.name),
            subjects: Some(vec![holder.subject()]),
        }),
        why: Vec::new(),
    });
    let namespaced = [
        ("default", DEFAULT_NAMESPACE, default_namespace_rules()),
        ("apiservers", SERVERS_NAMESPACE, servers_namespace_rules()),
        (
            "leader-election",
            &holder.namespace,
            own_namespace_rules(&holder.lease),
        ),
    ];
    for (suffix, namespace, rules) in namespaced {
        let name = format!("{}-{suffix}", holder.name);
        let (rules, why) = split(rules);
        let meta = self::meta(&name, Some(namespace));
        manifests.push(Manifest {
            object: Object::Role(Role {
                metadata: meta.clone(),
                rules: Some(rules),
            }),
            why,
        });
        manifests.push(Manifest {
            object: Object::RoleBinding(RoleBinding {
                metadata: meta,
                role_ref: role_ref("Role", &name),
                subjects: Some(vec![holder.subject()]),
            }),
            why: Vec::new(),
        });
    }
    manifests
}

impl Holder {
    fn subject(&self) -> Subject {
        Subject {
            kind: "ServiceAccount".to_owned(),
            name: self.service_account.clone(),
            namespace: Some(self.namespace.clone()),
            ..Subject::default()
        }
    }
}

fn split(rules: Vec<Rule>) -> (Vec<PolicyRule>, Vec<String>) {
    rules.into_iter().map(|rule| (rule.rule, rule.why)).unzip()
}

fn meta(name: &str, namespace: Option<&str>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: namespace.map(str::to_owned),
        ..ObjectMeta::default()
    }
}

fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef {
        api_group: Some(RBAC_GROUP.to_owned()),
        kind: kind.to_owned(),
        name: name.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
