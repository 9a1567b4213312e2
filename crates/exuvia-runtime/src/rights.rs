//! Rights: each controller states its RBAC rules, each with its reason; manifests are made from them.
//!
//! The runtime states its own rules: it waits for each controller's CRD, publishes events and holds a Lease. A controller
//! adds what it needs itself. [`operator`] puts them together, [`manifests`] makes roles and bindings of them.

mod manifest;

use k8s_openapi::api::rbac::v1::PolicyRule;

pub use self::manifest::{Manifest, Object, RoleHolder, manifests};

/// How wide comments are.
const COMMENT_WIDTH: usize = 110;

/// Where a rule applies: each scope has one role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleScope {
    /// The whole cluster, and paths that are not resources.
    Cluster,
    /// Namespace `default`: the API servers' endpoints, and events about cluster-scoped objects.
    Default,
    /// Namespace `kube-system`: the API servers' identity Leases.
    KubeSystem,
    /// The operator's own namespace.
    Own,
}

impl RuleScope {
    /// All of them, in the order in which roles are printed.
    pub const ALL: [Self; 4] = [Self::Cluster, Self::Default, Self::KubeSystem, Self::Own];

    /// The namespace, if every operator has the same one.
    pub fn namespace(self) -> Option<&'static str> {
        match self {
            Self::Default => Some("default"),
            Self::KubeSystem => Some("kube-system"),
            Self::Cluster | Self::Own => None,
        }
    }

    /// What follows the operator's name in the name of the role.
    pub fn role_suffix(self) -> &'static str {
        match self {
            Self::Cluster => "",
            Self::Default => "-default",
            Self::KubeSystem => "-apiservers",
            Self::Own => "-leader-election",
        }
    }
}

/// One rule, why it is there, and where it applies.
///
/// ```
/// use exuvia_runtime::rights::{Rule, RuleScope};
///
/// let rule = Rule::new("Read the settings.", "", ["configmaps"], &["get"])
///     .within(RuleScope::Own)
///     .only(["settings".to_owned()]);
/// assert_eq!(
///     rule.to_yaml(),
///     "# Read the settings.\n- apiGroups: [\"\"]\n  resources: [\"configmaps\"]\n  resourceNames: [\"settings\"]\n  \
///      verbs: [\"get\"]\n"
/// );
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The reason, in whole sentences.
    pub why: String,
    /// The rule.
    pub rule: PolicyRule,
    /// Where it applies.
    pub scope: RuleScope,
}

impl Rule {
    /// Verbs on resources of one API group, in the whole cluster.
    pub fn new<R: Into<String>>(
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
            scope: RuleScope::Cluster,
        }
    }

    /// `get` on a path that is not a resource.
    pub fn path(why: &str, path: &str) -> Self {
        let rule = PolicyRule {
            non_resource_urls: Some(vec![path.to_owned()]),
            verbs: vec!["get".to_owned()],
            ..PolicyRule::default()
        };
        Self {
            why: why.to_owned(),
            rule,
            scope: RuleScope::Cluster,
        }
    }

    /// The same rule in another scope.
    #[must_use]
    pub fn within(mut self, scope: RuleScope) -> Self {
        self.scope = scope;
        self
    }

    /// The same rule for objects with these names alone.
    #[must_use]
    pub fn only(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.rule.resource_names = Some(names.into_iter().collect());
        self
    }

    /// The rule as an entry of a role's `rules`, below a comment that says why: one line for each field.
    pub fn to_yaml(&self) -> String {
        let mut text = String::new();
        for line in wrap(&self.why, COMMENT_WIDTH) {
            text.push_str(&format!("# {line}\n"));
        }
        let verbs = Some(&self.rule.verbs);
        let fields = [
            ("apiGroups", self.rule.api_groups.as_ref()),
            ("resources", self.rule.resources.as_ref()),
            ("resourceNames", self.rule.resource_names.as_ref()),
            ("nonResourceURLs", self.rule.non_resource_urls.as_ref()),
            ("verbs", verbs),
        ];
        let given = fields
            .into_iter()
            .filter_map(|(name, values)| Some((name, values?)));
        for (index, (name, values)) in given.enumerate() {
            let values: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
            let dash = if index == 0 { "-" } else { " " };
            text.push_str(&format!("{dash} {name}: [{}]\n", values.join(", ")));
        }
        text
    }

    /// Whether a role with this rule needs no `other` rule. Wildcards are compared as text.
    fn covers(&self, other: &Self) -> bool {
        let what = |rule: &PolicyRule| PolicyRule {
            verbs: Vec::new(),
            ..rule.clone()
        };
        self.scope == other.scope
            && what(&self.rule) == what(&other.rule)
            && other.rule.verbs.iter().all(|verb| self.rule.verbs.contains(verb))
    }
}

/// All rules of an operator: those of its controllers, and those of the runtime below them. `lease` is the name of the Lease
/// that it holds, if it holds one.
///
/// A rule that another one covers is left out, and its reason is kept: no rule is there twice.
pub fn operator(lease: Option<&str>, controllers: impl IntoIterator<Item = Vec<Rule>>) -> Vec<Rule> {
    let mut rules: Vec<Rule> = controllers.into_iter().flatten().collect();
    if !rules.is_empty() {
        rules.insert(0, crd_rule());
        rules.push(event_rule());
    }
    rules.extend(lease.map(lease_rules).into_iter().flatten());
    folded(rules)
}

/// What the runtime does for every controller: it waits for the controller's CRD, and notices when the CRD goes.
fn crd_rule() -> Rule {
    Rule::new(
        "Wait for the CRD of each controller.",
        "apiextensions.k8s.io",
        ["customresourcedefinitions"],
        &["list", "watch"],
    )
}

/// What [`Events`](crate::Events) needs.
fn event_rule() -> Rule {
    Rule::new(
        "Publish events: those about cluster-scoped objects are in this namespace.",
        "events.k8s.io",
        ["events"],
        &["create"],
    )
    .within(RuleScope::Default)
}

/// What [`elect`](crate::elect()) needs.
fn lease_rules(name: &str) -> [Rule; 2] {
    const GROUP: &str = "coordination.k8s.io";
    [
        Rule::new(
            "Create the Lease. RBAC cannot restrict `create` to a name.",
            GROUP,
            ["leases"],
            &["create"],
        )
        .within(RuleScope::Own),
        Rule::new("Hold the Lease.", GROUP, ["leases"], &["get", "patch"])
            .within(RuleScope::Own)
            .only([name.to_owned()]),
    ]
}

/// Each rule that another one covers becomes part of it. A reason that is given already is not repeated.
pub fn folded(rules: Vec<Rule>) -> Vec<Rule> {
    let mut kept: Vec<Rule> = Vec::new();
    for rule in rules {
        if let Some(wider) = kept.iter_mut().find(|kept| kept.covers(&rule)) {
            wider.why = both_reasons(&wider.why, &rule.why);
        } else if let Some(narrower) = kept.iter_mut().find(|kept| rule.covers(kept)) {
            narrower.why = both_reasons(&narrower.why, &rule.why);
            narrower.rule = rule.rule;
        } else {
            kept.push(rule);
        }
    }
    kept
}

/// The second reason after the first, unless the first one says it, too.
fn both_reasons(first: &str, second: &str) -> String {
    if first.contains(second.trim_end_matches('.')) {
        return first.to_owned();
    }
    format!("{first} {second}")
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(last) if last.len() + 1 + word.len() <= width => {
                last.push(' ');
                last.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
