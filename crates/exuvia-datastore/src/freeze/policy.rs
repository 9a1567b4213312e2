//! The admission policies that a migration needs in each of its states: pure, from what is moved to the objects.
//!
//! Four parts, each a `ValidatingAdmissionPolicy` with a binding of the same name:
//!
//! | part | in force | denies | but not |
//! |---|---|---|---|
//! | source | Frozen | every write to the source kinds, every subresource and version | us, by user **and** field manager |
//! | source | Committed | as Frozen | us; updates that only remove finalizers; DELETE in namespaces that are being deleted |
//! | source | Converged | CREATE and UPDATE | us; updates that only remove finalizers |
//! | target | Frozen | CREATE; UPDATE and DELETE of our copies; /scale | us |
//! | guard | Frozen | changes to the spec, and deletion, of the CRDs; the `APIService` with a backend | us, and the API server itself |
//! | guard | Committed, Converged | the `APIService` with a backend | the same |
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

use exuvia_api::{DATASTORE_LABEL, GROUP, LabelSelector};
use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec,
    Validation,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector as MetaSelector, ObjectMeta};

use self::rules::{Rules, UPDATE, rule};
use super::cel;

mod rules;

/// The field manager of everything that a datastore migration writes. With our user it is what the policies let pass.
pub const FIELD_MANAGER: &str = "exuvia-datastore";
/// The field manager of writes that must be denied.
pub(super) const PROBE_MANAGER: &str = "exuvia-probe";

pub(super) const MIGRATIONS: &str = "datastoremigrations";

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
    /// Whether targets exist before the freeze: then writes to them that are under way count, too.
    pub has_early_targets: bool,
    /// The groups whose objects may be owners that move: dependents of them are shielded.
    pub moved_groups: Vec<String>,
    /// The `APIService` by which another server answers for the target group.
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
    /// After the commit, while dependents still name sources: the target is free. A source that is deleted now would take
    /// them along (PITFALLS D22), so nobody deletes one. A namespace that is being deleted takes both along anyway.
    Committed,
    /// Dependents name the targets: the source can only be deleted, the target is free.
    Converged,
}

/// A policy with its binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Keeps the CRDs and the `APIService` as they are.
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
            (Part::Source, Form::Committed) => {
                format!(
                    "this kind was moved by {name}: its objects can be deleted when dependents name the new ones"
                )
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
            (Part::Guard, Form::Committed | Form::Converged) => {
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
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
