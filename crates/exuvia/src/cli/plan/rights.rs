//! Which rights are missing, all of them at once, and the rules that would help.

use std::collections::{BTreeMap, BTreeSet};

use exuvia_storage::{MissingRule, is_in_groups};
use futures::{StreamExt, stream};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::discovery::{Discovery, verbs};
use kube::{Api, Client, CustomResourceExt};

/// Reviews that are asked for at once.
const AT_ONCE: usize = 16;

/// Groups of Kubernetes itself: no CRD defines what is in them.
const BUILT_IN: [&str; 27] = [
    "",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "custom.metrics.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "extensions",
    "external.metrics.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "metrics.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "storagemigration.k8s.io",
];

/// What a command would list if it could see the CRDs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted<'a> {
    /// The resources of these CRDs; none: of all.
    pub(super) names: &'a [String],
    /// Only those of these groups; none: of all.
    pub(super) groups: &'a [String],
    /// `StorageMigration`s as well, where they are installed.
    pub(super) migrations: bool,
}

/// The rules that would help, as few as there are groups.
pub(super) fn rules<'a>(missing: impl IntoIterator<Item = &'a MissingRule>) -> String {
    let mut by_group: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for rule in missing {
        by_group
            .entry((&rule.group, &rule.verb))
            .or_default()
            .insert(&rule.resource);
    }
    let rules: Vec<String> = by_group
        .iter()
        .map(|((group, verb), resources)| {
            let resources: Vec<String> = resources.iter().map(|resource| format!("{resource:?}")).collect();
            let resources = resources.join(", ");
            format!("{{apiGroups: [{group:?}], resources: [{resources}], verbs: [{verb:?}]}}")
        })
        .collect();
    rules.join(", ")
}

/// Why the CRDs cannot be listed. If a right is missing, one sentence names it with every other right that the command
/// would miss next, as far as the server tells.
pub(super) async fn explained(client: &Client, error: kube::Error, wanted: &Wanted<'_>) -> anyhow::Error {
    let missing = match &error {
        kube::Error::Api(status) => MissingRule::named_in(&status.message),
        _ => None,
    };
    let Some(first) = missing else {
        return anyhow::Error::new(error).context("the CRDs cannot be listed");
    };
    let said = crate::cli::sentence(&error.into());
    let next = resources(client, wanted).await;
    let asked = match &next {
        Some(next) => missing_of(client, next).await,
        None => Vec::new(),
    };
    let more = if next.is_some() {
        ""
    } else {
        "; `list` on the resources of the CRDs is needed, too"
    };
    let rules = rules([&first].into_iter().chain(&asked));
    anyhow::anyhow!("the CRDs cannot be listed: {said}; add to the role: {rules}{more}")
}

/// What would be listed, as group and plural; `None`: that cannot be known.
async fn resources(client: &Client, wanted: &Wanted<'_>) -> Option<Vec<(String, String)>> {
    let discovery = Discovery::new(client.clone()).run_aggregated().await.ok()?;
    let is_wanted = |group: &str, plural: &str| {
        let name = exuvia_write::resource_name(plural, group);
        let is_named = wanted.names.is_empty() || wanted.names.contains(&name);
        (is_named && is_in_groups(group, wanted.groups))
            || (wanted.migrations && name == exuvia_api::StorageMigration::crd_name())
    };
    let mut found = BTreeSet::new();
    for group in discovery.groups() {
        let name = group.name();
        if BUILT_IN.contains(&name) {
            continue;
        }
        for version in group.versions() {
            let listable = group.versioned_resources(version).into_iter();
            let listable = listable.filter(|(resource, can)| {
                can.supports_operation(verbs::LIST) && is_wanted(name, &resource.plural)
            });
            found.extend(listable.map(|(resource, _)| (name.to_owned(), resource.plural)));
        }
    }
    Some(found.into_iter().collect())
}

/// Those that we may not list. What the server does not answer is not claimed.
async fn missing_of(client: &Client, resources: &[(String, String)]) -> Vec<MissingRule> {
    let asked = stream::iter(resources.to_vec()).map(|(group, resource)| async move {
        let rule = MissingRule {
            group,
            resource,
            verb: "list".to_owned(),
        };
        (may(client, &rule).await == Some(false)).then_some(rule)
    });
    let answers: Vec<Option<MissingRule>> = asked.buffered(AT_ONCE).collect().await;
    answers.into_iter().flatten().collect()
}

/// Whether we may do that, in all namespaces; `None`: the server does not say.
#[expect(
    clippy::disallowed_methods,
    reason = "a review is a question in the form of a create: the server answers it and stores nothing"
)]
async fn may(client: &Client, rule: &MissingRule) -> Option<bool> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let question = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(rule.group.clone()),
                resource: Some(rule.resource.clone()),
                verb: Some(rule.verb.clone()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = reviews.create(&PostParams::default(), &question).await.ok()?;
    Some(answer.status?.allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_one_group_become_one() {
        let rule = |group: &str, resource: &str| MissingRule {
            group: group.into(),
            resource: resource.into(),
            verb: "list".into(),
        };
        let missing = [
            rule("b.io", "widgets"),
            rule("a.io", "gadgets"),
            rule("b.io", "gears"),
            rule("b.io", "gears"),
        ];
        assert_eq!(
            rules(&missing),
            r#"{apiGroups: ["a.io"], resources: ["gadgets"], verbs: ["list"]}, {apiGroups: ["b.io"], resources: ["gears", "widgets"], verbs: ["list"]}"#
        );
    }
}
