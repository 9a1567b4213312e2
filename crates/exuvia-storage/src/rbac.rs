//! The rights that storage migration needs: no rule more than it uses, each with its reason.

use std::collections::{BTreeMap, BTreeSet};

use exuvia_runtime::rights::Rule;
use exuvia_runtime::servers::ApiServers;

use crate::StorageController;

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
#[error("invalid CRD name \"{0}\": {expected}", expected = Self::EXPECTED)]
pub struct InvalidCrdName(String);

impl InvalidCrdName {
    /// What a valid name is.
    pub const EXPECTED: &str = "expected <plural>.<group>, such as widgets.example.com";
}

impl std::str::FromStr for Crd {
    type Err = InvalidCrdName;

    /// ```
    /// use exuvia_storage::rbac::Crd;
    ///
    /// let crd: Crd = "widgets.example.com".parse()?;
    /// assert_eq!((crd.plural.as_str(), crd.group.as_str()), ("widgets", "example.com"));
    /// assert!("widgets".parse::<Crd>().is_err());
    /// # Ok::<(), exuvia_storage::rbac::InvalidCrdName>(())
    /// ```
    fn from_str(name: &str) -> Result<Self, InvalidCrdName> {
        let label = |text: &str| {
            let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            !text.is_empty() && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-')
        };
        match name.split_once('.') {
            // The API server accepts no CRD whose group has no dot.
            Some((plural, group)) if group.contains('.') && name.split('.').all(label) => Ok(Self {
                group: group.to_owned(),
                plural: plural.to_owned(),
            }),
            _ => Err(InvalidCrdName(name.to_owned())),
        }
    }
}

impl std::fmt::Display for Crd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&exuvia_write::resource_name(&self.plural, &self.group))
    }
}

/// What the operator may migrate.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// CRDs by name.
    pub crds: BTreeSet<Crd>,
    /// Groups in which any CRD may be managed. RBAC cannot include subgroups, so each group is listed. `*` means all.
    pub groups: BTreeSet<String>,
    /// Whether a migration may have its objects tried at `/status`.
    pub status_fallback: bool,
    /// Whether the operator looks for ownerReferences on every object in the cluster.
    pub look_at_references: bool,
}

impl Scope {
    /// The groups of the CRDs, and the `requested` groups, instead of the CRDs. Exuvia's own CRDs are all known, so they
    /// need no wildcard.
    pub fn of_groups(
        crds: impl IntoIterator<Item = Crd>,
        requested: impl IntoIterator<Item = String>,
    ) -> Self {
        let (own, others): (BTreeSet<Crd>, BTreeSet<Crd>) =
            crds.into_iter().partition(|crd| crd.group == exuvia_api::GROUP);
        let groups = others.into_iter().map(|crd| crd.group);
        let requested = requested.into_iter().filter(|group| group != exuvia_api::GROUP);
        Self {
            crds: own,
            groups: groups.chain(requested).collect(),
            ..Self::default()
        }
    }
}

const CRDS: &str = "apiextensions.k8s.io";

impl StorageController {
    /// What the controller needs to migrate what is in scope, beyond what the runtime needs itself:
    /// [`rights::operator`](exuvia_runtime::rights::operator) adds that.
    pub fn rights(scope: &Scope) -> Vec<Rule> {
        let mut rules = always();
        if scope.look_at_references {
            rules.push(Rule::new(
                "Look for ownerReferences at old versions. Any object in the cluster may have one. The operator requests \
                 only metadata, but RBAC cannot restrict this rule to metadata: it includes Secrets.",
                "*",
                ["*"],
                &["list"],
            ));
        }
        rules.extend(trim(scope));
        rules.extend(objects(scope));
        rules
    }
}

/// What is needed whatever is migrated.
fn always() -> Vec<Rule> {
    let own = [
        Rule::new(
            "Find the CRDs that have opted in, and read their versions.",
            CRDS,
            ["customresourcedefinitions"],
            &["get", "list", "watch"],
        ),
        Rule::new(
            "Create a migration for each of them, delete it when the label is removed, and read the migrations that people \
             created.",
            exuvia_api::GROUP,
            ["storagemigrations"],
            &["get", "list", "watch", "create", "delete"],
        ),
        Rule::new(
            "Leave objects alone while a DatastoreMigration moves them.",
            exuvia_api::GROUP,
            ["datastoremigrations"],
            &["list"],
        ),
        Rule::new(
            "Report progress.",
            exuvia_api::GROUP,
            ["storagemigrations/status"],
            &["patch"],
        ),
        Rule::new(
            "See that a CRD itself answers for its versions, and not the backend of an APIService.",
            "apiregistration.k8s.io",
            ["apiservices"],
            &["get"],
        ),
        Rule::path(
            "Tell API servers apart, and see open watches at old versions.",
            "/metrics",
        ),
    ];
    own.into_iter()
        .chain(ApiServers::rights("whether it stores at the new version"))
        .collect()
}

/// An empty list of names would mean every CRD, so no rule is made if nothing is in scope.
fn trim(scope: &Scope) -> Option<Rule> {
    let rule = |why| Rule::new(why, CRDS, ["customresourcedefinitions/status"], &["patch"]);
    if !scope.groups.is_empty() {
        Some(rule(
            "Trim status.storedVersions, and put a version back if that was too early. This rule has no resourceNames, \
             because CRDs may be added to the groups later.",
        ))
    } else if !scope.crds.is_empty() {
        let names = scope.crds.iter().map(ToString::to_string);
        Some(
            rule("Trim status.storedVersions of these CRDs, and put a version back if that was too early.")
                .only(names),
        )
    } else {
        None
    }
}

/// What is needed for the migrated objects themselves.
fn objects(scope: &Scope) -> Vec<Rule> {
    let mut by_group: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for crd in &scope.crds {
        by_group.entry(&crd.group).or_default().push(&crd.plural);
    }
    let mut rules = Vec::new();
    for (group, plurals) in by_group {
        rules.push(Rule::new(
            "List the objects of these CRDs, and rewrite them.",
            group,
            plurals.iter().copied(),
            &["get", "list", "patch"],
        ));
        if scope.status_fallback {
            rules.push(Rule::new(
                "For migrations with spec.statusFallback: an object that is denied at its own endpoint is tried at its \
                 status.",
                group,
                plurals.iter().map(|plural| format!("{plural}/status")),
                &["patch"],
            ));
        }
    }
    rules.extend(scope.groups.iter().map(|group| {
        Rule::new(
            "List the objects of the CRDs of this group, and rewrite them. The rule covers all resources, because the \
             operator finds CRDs at run time. RBAC cannot include subgroups, so each group is listed. The wildcard \
             includes subresources. Rules for named CRDs need no wildcard.",
            group,
            ["*"],
            &["get", "list", "patch"],
        )
    }));
    rules
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
