//! What each part matches, whom it means, and what they may do all the same.

use std::collections::BTreeMap;

use exuvia_api::{LabelSelector, MIGRATION_UID_ANNOTATION};
use k8s_openapi::api::admissionregistration::v1::NamedRuleWithOperations;

use super::{FIELD_MANAGER, Form, Scope};
use crate::freeze::cel;

/// Who collects garbage: with service accounts for controllers, and without.
const COLLECTORS: [&str; 2] = [
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:kube-controller-manager",
];
/// The API server's own loopback user: it sets up CRDs and makes `APIServices` for them.
const API_SERVER: &str = "system:apiserver";

/// What is in a namespace that is being deleted goes anyway.
const NAMESPACE_IS_GOING: &str =
    "(namespaceObject != null && has(namespaceObject.metadata.deletionTimestamp))";

const CREATE: &str = "CREATE";
pub(super) const UPDATE: &str = "UPDATE";
const DELETE: &str = "DELETE";

/// What makes one policy.
pub(super) struct Rules {
    pub(super) resources: Vec<NamedRuleWithOperations>,
    /// Who is meant.
    pub(super) conditions: Vec<(&'static str, String)>,
    /// What they may do all the same.
    pub(super) allowed: String,
}

impl Scope {
    /// Whether it is us who write: user and field manager, because a storage migration runs under the same account.
    fn is_us(&self) -> String {
        format!(
            "({} && {})",
            cel::is_user(&self.username),
            cel::is_manager(FIELD_MANAGER)
        )
    }

    /// As [`is_us`](Self::is_us), and any DELETE of our user: a DELETE has no field manager.
    fn is_us_or_our_delete(&self) -> String {
        let user = cel::is_user(&self.username);
        format!(
            "({user} && (request.operation == \"DELETE\" || {}))",
            cel::is_manager(FIELD_MANAGER)
        )
    }

    pub(super) fn source_rules(&self, form: Form) -> Rules {
        let operations: &[&str] = match form {
            Form::Frozen | Form::Committed => &[CREATE, UPDATE, DELETE],
            // A namespace that holds a source could not be deleted for ever, otherwise.
            Form::Converged => &[CREATE, UPDATE],
        };
        let kinds = self
            .source
            .iter()
            .map(|kind| (kind.group.as_str(), kind.plural.as_str()));
        let is_free = format!("!({})", self.is_selected());
        let lets_go = cel::only_lets_go(&is_collector());
        let allowed = match form {
            Form::Frozen => is_free,
            Form::Committed => format!(
                "{is_free} || ({lets_go}) || (request.operation == \"DELETE\" && {NAMESPACE_IS_GOING})"
            ),
            Form::Converged => format!("{is_free} || ({lets_go})"),
        };
        Rules {
            resources: rules(kinds, operations),
            conditions: vec![("not-exuvia", format!("!{}", self.is_us()))],
            allowed,
        }
    }

    /// Whether the object in the request is one of those that are moved. Old and new count: a label that is taken off must
    /// not open the way, and one that is put on must not let an object slip in.
    ///
    /// Not by an `objectSelector`: that holds for a whole policy, and the objects of `/scale` have no labels, so it would
    /// let every write through `/scale` pass.
    fn is_selected(&self) -> String {
        let mut by_kind: BTreeMap<(&str, &str), Vec<&LabelSelector>> = BTreeMap::new();
        for kind in &self.source {
            let selectors = by_kind.entry((&kind.group, &kind.plural)).or_default();
            selectors.push(&kind.selector);
        }
        by_kind.retain(|_, selectors| selectors.iter().all(|selector| !selector.is_empty()));
        let not_chosen = by_kind.into_iter().map(|((group, plural), selectors)| {
            let chosen = selectors.into_iter().flat_map(|selector| {
                ["object", "oldObject"].map(|variable| cel::is_selected(variable, selector))
            });
            let chosen: Vec<String> = std::iter::once(cel::ODD_SUBRESOURCE.to_owned())
                .chain(chosen)
                .collect();
            format!(
                "!({} && !({}))",
                cel::is_resource(group, plural),
                chosen.join(" || ")
            )
        });
        let all: Vec<String> = std::iter::once("true".to_owned()).chain(not_chosen).collect();
        all.join(" && ")
    }

    pub(super) fn target_rules(&self) -> Rules {
        let kinds = self
            .target
            .iter()
            .map(|(group, plural)| (group.as_str(), plural.as_str()));
        let is_ours = ["object", "oldObject"]
            .map(|variable| cel::has_annotation(variable, MIGRATION_UID_ANNOTATION, &self.uid));
        let denied = [
            "request.operation == \"CREATE\"".to_owned(),
            cel::ODD_SUBRESOURCE.to_owned(),
        ];
        let denied: Vec<String> = denied.into_iter().chain(is_ours).collect();
        Rules {
            resources: rules(kinds, &[CREATE, UPDATE, DELETE]),
            conditions: vec![("not-exuvia", format!("!{}", self.is_us_or_our_delete()))],
            allowed: format!("!({})", denied.join(" || ")),
        }
    }

    pub(super) fn guard_rules(&self, form: Form) -> Rules {
        let mut resources = Vec::new();
        let mut denied = Vec::new();
        if form == Form::Frozen {
            resources.push(rule(
                "apiextensions.k8s.io",
                vec!["customresourcedefinitions".to_owned()],
                &[UPDATE, DELETE],
            ));
            // By the object's name: a DELETE of a collection has none in its request. GitOps may go on to label them.
            denied.push(format!(
                "({} && oldObject.metadata.name in {} && (request.operation == \"DELETE\" || object.spec != oldObject.spec))",
                cel::is_resource("apiextensions.k8s.io", "customresourcedefinitions"),
                cel::list(self.crds())
            ));
        }
        if let Some(name) = &self.api_service {
            resources.push(rule(
                "apiregistration.k8s.io",
                vec!["apiservices".to_owned()],
                &[CREATE, UPDATE],
            ));
            // Without a backend it is the server's own, made for the CRDs (PITFALLS D19).
            denied.push(format!(
                "({} && object.metadata.name == {} && has(object.spec.service) && object.spec.service != null && \
                 (oldObject == null || !has(oldObject.spec.service) || oldObject.spec.service == null))",
                cel::is_resource("apiregistration.k8s.io", "apiservices"),
                cel::text(name)
            ));
        }
        let exempt = format!(
            "!({} || {})",
            self.is_us_or_our_delete(),
            cel::is_user(API_SERVER)
        );
        Rules {
            resources,
            conditions: vec![("not-exuvia", exempt)],
            allowed: format!("!({})", denied.join(" || ")),
        }
    }

    /// The names of the CRDs of source and target.
    fn crds(&self) -> Vec<String> {
        let source = self.source.iter().map(|kind| (&kind.group, &kind.plural));
        let target = self.target.iter().map(|(group, plural)| (group, plural));
        let mut names: Vec<String> = source
            .chain(target)
            .map(|(group, plural)| format!("{plural}.{group}"))
            .collect();
        names.sort();
        names.dedup();
        names
    }

    pub(super) fn shield_rules(&self) -> Rules {
        let groups = self.moved_groups.iter().map(|group| format!("{group}/"));
        let is_owned = format!(
            "oldObject != null && has(oldObject.metadata) && has(oldObject.metadata.ownerReferences) && \
             oldObject.metadata.ownerReferences.exists(r, {}.exists(g, r.apiVersion.startsWith(g)))",
            cel::list(groups)
        );
        // The collector may run under the same user as the controller that empties the namespace.
        Rules {
            resources: vec![rule("*", vec!["*/*".to_owned()], &[UPDATE, DELETE])],
            conditions: vec![("garbage-collector", is_collector())],
            allowed: format!("!({is_owned}) || {NAMESPACE_IS_GOING}"),
        }
    }
}

fn is_collector() -> String {
    format!(
        "(has(request.userInfo.username) && request.userInfo.username in {})",
        cel::list(COLLECTORS)
    )
}

/// One rule for each group: the plurals, and all that is below them (PITFALLS A28, D16).
fn rules<'a>(
    kinds: impl Iterator<Item = (&'a str, &'a str)>,
    operations: &[&str],
) -> Vec<NamedRuleWithOperations> {
    let mut by_group: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (group, plural) in kinds {
        by_group.entry(group).or_default().push(plural);
    }
    by_group
        .into_iter()
        .map(|(group, mut plurals)| {
            plurals.sort_unstable();
            plurals.dedup();
            let resources = plurals
                .into_iter()
                .flat_map(|plural| [plural.to_owned(), format!("{plural}/*")]);
            rule(group, resources.collect(), operations)
        })
        .collect()
}

pub(super) fn rule(group: &str, resources: Vec<String>, operations: &[&str]) -> NamedRuleWithOperations {
    NamedRuleWithOperations {
        api_groups: Some(vec![group.to_owned()]),
        api_versions: Some(vec!["*".to_owned()]),
        operations: Some(operations.iter().map(|&operation| operation.to_owned()).collect()),
        resources: Some(resources),
        resource_names: None,
        scope: Some("*".to_owned()),
    }
}
