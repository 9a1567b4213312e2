//! The admission policies that a migration needs in each of its states: pure, from what is moved to the objects.
//!
//! Four parts, each a ValidatingAdmissionPolicy with a binding of the same name:
//!
//! | part | in force | denies | but not |
//! |---|---|---|---|
//! | source | Frozen | every write to the source kinds, every subresource and version | us, by user **and** field manager |
//! | source | Converged | CREATE and UPDATE | us; updates that only remove finalizers |
//! | target | Frozen | CREATE; UPDATE and DELETE of our copies; /scale | us |
//! | guard | Frozen | changes to the spec, and deletion, of the CRDs; the APIService with a backend | us, and the API server itself |
//! | guard | Converged | the APIService with a backend | the same |
//! | shield | while asked for | UPDATE and DELETE by the garbage collector where an owner is of a moved group | in namespaces that are being deleted |
//!
//! A DELETE names no field manager, so "us" cannot be told from a storage migration of the same account there. While frozen
//! nobody deletes sources, not even we: nothing needs it before Converged. Our own copies we must delete on an undo, so the
//! target part lets every DELETE of our user pass.
//!
//! Each part also denies one harmless thing, the *canary*: an update of the migration object itself by the field manager
//! `exuvia-probe-<part>`. It shows that a server has the policy, for kinds without an object and for parts that no
//! harmless write can meet.

use std::collections::BTreeMap;

use exuvia_api::{DATASTORE_LABEL, GROUP, LabelSelector, MIGRATION_UID_ANNOTATION};
use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec,
    Validation,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector as MetaSelector, ObjectMeta};

use super::cel;

/// The field manager of everything that a datastore migration writes. With our user it is what the policies let pass.
pub const FIELD_MANAGER: &str = "exuvia-datastore";
/// The field manager of writes that must be denied.
pub(super) const PROBE_MANAGER: &str = "exuvia-probe";

const MIGRATIONS: &str = "datastoremigrations";
/// Who collects garbage: with service accounts for controllers, and without.
const COLLECTORS: [&str; 2] = [
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:kube-controller-manager",
];
/// The API server's own loopback user: it sets up CRDs and makes APIServices for them.
const API_SERVER: &str = "system:apiserver";

const CREATE: &str = "CREATE";
const UPDATE: &str = "UPDATE";
const DELETE: &str = "DELETE";

/// What one migration freezes, and for whom not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scope {
    /// The uid of the `DatastoreMigration`: the name of everything that is made for it.
    pub uid: String,
    /// Its name: in every message.
    pub migration: String,
    /// What is moved.
    pub source: Vec<FrozenKind>,
    /// Group and plural of what is written.
    pub target: Vec<(String, String)>,
    /// The groups whose objects may be owners that move: dependents of them are shielded.
    pub moved_groups: Vec<String>,
    /// The APIService by which another server answers for the target group.
    pub api_service: Option<String>,
    /// Our user name. The field manager is [`FIELD_MANAGER`].
    pub username: String,
}

/// A kind whose objects are frozen. A kind may be there more than once, with different selectors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FrozenKind {
    /// The API group.
    pub group: String,
    /// A served version, for the probe. All versions are frozen.
    pub version: String,
    /// The kind.
    pub kind: String,
    /// The plural.
    pub plural: String,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
    /// Only objects with these labels. `/scale` does not show labels, so it is frozen for all objects of the kind.
    pub selector: LabelSelector,
}

/// How strict the policies are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// While objects are copied: nobody writes.
    Frozen,
    /// After the commit: the source can only be deleted, the target is free.
    Converged,
}

/// A policy with its binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Keeps the CRDs and the APIService as they are.
    Guard,
    /// Keeps dependents of moved owners from being collected.
    Shield,
    /// Keeps others off the target.
    Target,
    /// Keeps writers off the source.
    Source,
}

impl Part {
    /// All parts, in the order in which they are made. What frees others is taken away in the opposite order.
    pub const ALL: [Self; 4] = [Self::Guard, Self::Shield, Self::Target, Self::Source];

    /// The last word of its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guard => "guard",
            Self::Shield => "shield",
            Self::Target => "target",
            Self::Source => "source",
        }
    }

    /// The field manager whose update of the migration object this part denies.
    pub(super) fn probe_manager(self) -> String {
        format!("{PROBE_MANAGER}-{}", self.as_str())
    }
}

impl Scope {
    /// What policy and binding of a part are called.
    pub fn name(&self, part: Part) -> String {
        format!("exuvia-{}-{}", self.uid, part.as_str())
    }

    /// The parts that must be in force.
    pub fn parts(&self, form: Form, shield: bool) -> Vec<Part> {
        let is_wanted = |part: &Part| match part {
            Part::Source => !self.source.is_empty(),
            Part::Target => form == Form::Frozen && !self.target.is_empty(),
            Part::Guard => form == Form::Frozen || self.api_service.is_some(),
            Part::Shield => shield && !self.moved_groups.is_empty(),
        };
        Part::ALL.into_iter().filter(is_wanted).collect()
    }

    /// What somebody reads who is refused.
    pub fn message(&self, part: Part, form: Form) -> String {
        let name = format!("DatastoreMigration {}", self.migration);
        match (part, form) {
            (Part::Source, Form::Frozen) => {
                format!("this kind is being moved by {name}: writes are refused until it has converged")
            }
            (Part::Source, Form::Converged) => {
                format!(
                    "this kind was moved by {name}: its objects can be deleted, but not created or changed"
                )
            }
            (Part::Target, _) => {
                format!(
                    "objects are being copied to this kind by {name}: writes are refused until it has converged"
                )
            }
            (Part::Guard, Form::Frozen) => format!(
                "what serves this kind is in use by {name}: changes to it are refused until it has converged"
            ),
            (Part::Guard, Form::Converged) => {
                format!("this kind was moved by {name}: its APIService must not come back")
            }
            (Part::Shield, _) => format!(
                "an owner of this object is being moved by {name}: it is not collected until its owner references are rewritten"
            ),
        }
    }

    /// Policy and binding of a part.
    pub fn objects(
        &self,
        part: Part,
        form: Form,
    ) -> (ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding) {
        let name = self.name(part);
        let metadata = ObjectMeta {
            name: Some(name.clone()),
            labels: Some(BTreeMap::from([(DATASTORE_LABEL.to_owned(), self.uid.clone())])),
            ..ObjectMeta::default()
        };
        let policy = ValidatingAdmissionPolicy {
            metadata: metadata.clone(),
            spec: Some(self.policy_spec(part, form)),
            status: None,
        };
        let binding = ValidatingAdmissionPolicyBinding {
            metadata,
            spec: ValidatingAdmissionPolicyBindingSpec {
                policy_name: name,
                validation_actions: vec!["Deny".to_owned()],
                ..ValidatingAdmissionPolicyBindingSpec::default()
            },
        };
        (policy, binding)
    }

    fn policy_spec(&self, part: Part, form: Form) -> ValidatingAdmissionPolicySpec {
        let Rules {
            mut resources,
            conditions,
            allowed,
        } = match part {
            Part::Source => self.source_rules(form),
            Part::Target => self.target_rules(),
            Part::Guard => self.guard_rules(form),
            Part::Shield => self.shield_rules(),
        };
        let canary = cel::is_resource(GROUP, MIGRATIONS);
        let probed = cel::is_manager(&part.probe_manager());
        // The shield's rules cover the migration object already.
        if part != Part::Shield {
            resources.push(NamedRuleWithOperations {
                resource_names: Some(vec![self.migration.clone()]),
                ..rule(GROUP, vec![MIGRATIONS.to_owned()], &[UPDATE])
            });
        }
        let conditions = conditions.into_iter().map(|(name, expression)| MatchCondition {
            name: name.to_owned(),
            expression: format!("{canary} ? {probed} : {expression}"),
        });
        // Everything is stated that the server would default, so that what it stores equals what is wanted.
        ValidatingAdmissionPolicySpec {
            failure_policy: Some("Fail".to_owned()),
            match_constraints: Some(MatchResources {
                match_policy: Some("Equivalent".to_owned()),
                namespace_selector: Some(MetaSelector::default()),
                object_selector: Some(MetaSelector::default()),
                resource_rules: Some(resources),
                exclude_resource_rules: None,
            }),
            match_conditions: Some(conditions.collect()),
            validations: Some(vec![Validation {
                expression: format!("!{canary} && ({allowed})"),
                message: Some(self.message(part, form)),
                message_expression: None,
                reason: Some("Forbidden".to_owned()),
            }]),
            ..ValidatingAdmissionPolicySpec::default()
        }
    }

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

    fn source_rules(&self, form: Form) -> Rules {
        let operations: &[&str] = match form {
            Form::Frozen => &[CREATE, UPDATE, DELETE],
            // A namespace that holds a source could not be deleted for ever, otherwise.
            Form::Converged => &[CREATE, UPDATE],
        };
        let kinds = self
            .source
            .iter()
            .map(|kind| (kind.group.as_str(), kind.plural.as_str()));
        let is_free = format!("!({})", self.is_selected());
        let allowed = match form {
            Form::Frozen => is_free,
            Form::Converged => format!("{is_free} || ({})", cel::only_lets_go(&is_collector())),
        };
        Rules {
            resources: rules(kinds, operations),
            conditions: vec![("not-exuvia", format!("!{}", self.is_us()))],
            allowed,
        }
    }

    /// Whether the object in the request is one of those that are moved. Old and new count: a label that is taken off must
    /// not open the way, and one that is put on must not let an object slip in.
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

    fn target_rules(&self) -> Rules {
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

    fn guard_rules(&self, form: Form) -> Rules {
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

    fn shield_rules(&self) -> Rules {
        let groups = self.moved_groups.iter().map(|group| format!("{group}/"));
        let is_owned = format!(
            "oldObject != null && has(oldObject.metadata) && has(oldObject.metadata.ownerReferences) && \
             oldObject.metadata.ownerReferences.exists(r, {}.exists(g, r.apiVersion.startsWith(g)))",
            cel::list(groups)
        );
        // What is in a namespace that is being deleted goes anyway; the collector may run under the same user as the
        // controller that empties it.
        let is_going = "(namespaceObject != null && has(namespaceObject.metadata.deletionTimestamp))";
        Rules {
            resources: vec![rule("*", vec!["*/*".to_owned()], &[UPDATE, DELETE])],
            conditions: vec![("garbage-collector", is_collector())],
            allowed: format!("!({is_owned}) || {is_going}"),
        }
    }
}

/// What makes one policy.
struct Rules {
    resources: Vec<NamedRuleWithOperations>,
    /// Who is meant.
    conditions: Vec<(&'static str, String)>,
    /// What they may do all the same.
    allowed: String,
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

fn rule(group: &str, resources: Vec<String>, operations: &[&str]) -> NamedRuleWithOperations {
    NamedRuleWithOperations {
        api_groups: Some(vec![group.to_owned()]),
        api_versions: Some(vec!["*".to_owned()]),
        operations: Some(operations.iter().map(|&operation| operation.to_owned()).collect()),
        resources: Some(resources),
        resource_names: None,
        scope: Some("*".to_owned()),
    }
}

#[cfg(test)]
mod tests;
