//! The fence: an admission policy by which a stamp never goes back nor vanishes, with any writer. Pure, but for the probe.

mod probe;

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec,
    Validation, Variable,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};
use serde_json::{Value, json};

use crate::{Names, StampOn};

pub use probe::{InForce, ProbeError};

/// What a fence is called, unless somebody says otherwise: `exuvia rollout fence` prints it under this name.
pub const DEFAULT_FENCE: &str = "exuvia-rollout-fence";
/// The label by which every cluster names its namespaces.
const NAMESPACE_LABEL: &str = "kubernetes.io/metadata.name";
/// The field manager whose creations the fence always denies: so it is probed.
const PROBE_MANAGER: &str = "exuvia-fence-probe";

/// A kind whose objects are fenced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FencedKind {
    /// The API group; empty for the core group.
    pub group: String,
    /// The plural.
    pub plural: String,
    /// Only objects with these names; all if empty.
    pub names: Vec<String>,
}

impl FencedKind {
    /// All objects of a kind.
    pub fn new(group: impl Into<String>, plural: impl Into<String>) -> Self {
        Self {
            group: group.into(),
            plural: plural.into(),
            names: Vec::new(),
        }
    }
}

/// A fence around targets. Without a stamp on it an object is not fenced, so a fence can cover whole kinds.
///
/// It denies an update of a stamped object that takes the stamp away, makes it unreadable, or sets it back: to a lower epoch of
/// the same owner, or, with names that have no token, to a lower generation. Another owner's stamp passes only if that owner is the
/// controller among the object's owner references; a policy cannot know which owner lives. Deletion passes.
///
/// ```
/// use exuvia_rollout::{Fence, FencedKind, Names};
///
/// let fence = Fence::new("till-fence", vec![FencedKind::new("apps", "statefulsets")], Names::default());
/// let [policy, binding] = fence.manifests();
/// assert_eq!(policy["spec"]["failurePolicy"], "Fail");
/// assert_eq!(binding["spec"]["policyName"], "till-fence");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Fence {
    /// The name of policy and binding.
    pub name: String,
    /// What is fenced.
    pub kinds: Vec<FencedKind>,
    /// Only in these namespaces; everywhere if empty.
    pub namespaces: Vec<String>,
    /// What stamps are called, and where they are.
    pub names: Names,
}

impl Fence {
    /// A fence in all namespaces.
    pub fn new(name: impl Into<String>, kinds: Vec<FencedKind>, names: Names) -> Self {
        Self {
            name: name.into(),
            kinds,
            namespaces: Vec::new(),
            names,
        }
    }

    /// Policy and binding, to apply or print.
    pub fn manifests(&self) -> [Value; 2] {
        let mut policy = serde_json::to_value(self.policy()).unwrap_or_default();
        let mut binding = serde_json::to_value(self.binding()).unwrap_or_default();
        for (object, kind) in [
            (&mut policy, "ValidatingAdmissionPolicy"),
            (&mut binding, "ValidatingAdmissionPolicyBinding"),
        ] {
            object["apiVersion"] = json!("admissionregistration.k8s.io/v1");
            object["kind"] = json!(kind);
        }
        [policy, binding]
    }

    /// The binding: every object that the policy matches, denied.
    pub fn binding(&self) -> ValidatingAdmissionPolicyBinding {
        ValidatingAdmissionPolicyBinding {
            metadata: self.metadata(),
            spec: ValidatingAdmissionPolicyBindingSpec {
                policy_name: self.name.clone(),
                validation_actions: vec!["Deny".to_owned()],
                ..ValidatingAdmissionPolicyBindingSpec::default()
            },
        }
    }

    /// The policy.
    pub fn policy(&self) -> ValidatingAdmissionPolicy {
        let rules = self.kinds.iter().map(FencedKind::rule);
        let namespaces = LabelSelectorRequirement {
            key: NAMESPACE_LABEL.to_owned(),
            operator: "In".to_owned(),
            values: Some(self.namespaces.clone()),
        };
        let namespace_selector = LabelSelector {
            match_expressions: (!self.namespaces.is_empty()).then(|| vec![namespaces]),
            ..LabelSelector::default()
        };
        let variable = |name: &str, expression: String| Variable {
            name: name.to_owned(),
            expression,
        };
        let validation = |expression: String, message: &str| Validation {
            expression,
            message: Some(message.to_owned()),
            message_expression: None,
            reason: Some("Forbidden".to_owned()),
        };
        let (old, new) = (self.stamp("oldObject"), self.stamp("object"));
        let readable = self.readable();
        // A stamp that nobody can read fences nothing: it must be possible to repair it.
        let is_fenced = format!(
            "request.operation == 'CREATE' ? {} : ({old}).matches({readable})",
            probed()
        );
        ValidatingAdmissionPolicy {
            metadata: self.metadata(),
            spec: Some(ValidatingAdmissionPolicySpec {
                failure_policy: Some("Fail".to_owned()),
                match_constraints: Some(MatchResources {
                    match_policy: Some("Equivalent".to_owned()),
                    namespace_selector: Some(namespace_selector),
                    object_selector: Some(LabelSelector::default()),
                    resource_rules: Some(rules.collect()),
                    exclude_resource_rules: None,
                }),
                match_conditions: Some(vec![MatchCondition {
                    name: "stamped".to_owned(),
                    expression: is_fenced,
                }]),
                variables: Some(vec![
                    // A probe has no old object, and is denied by the first validation already.
                    variable("old", format!("request.operation == 'CREATE' ? '' : ({old})")),
                    variable("new", new),
                ]),
                validations: Some(vec![
                    validation(
                        "request.operation != 'CREATE'".to_owned(),
                        "this is how the fence is probed: nothing is created by this field manager",
                    ),
                    validation(
                        format!("request.operation == 'CREATE' || variables.new.matches({readable})"),
                        "the stamp of this object may not be taken away: a program with a newer stamp applies it",
                    ),
                    validation(
                        format!(
                            "request.operation == 'CREATE' || !variables.new.matches({readable}) || ({})",
                            self.goes_on()
                        ),
                        "the stamp of this object may not go back: a program with a newer stamp applied it",
                    ),
                    validation(
                        format!(
                            "request.operation == 'CREATE' || !variables.new.matches({readable}) || ({})",
                            self.is_of_its_owner()
                        ),
                        "the stamp of this object may not become another owner's, unless that owner becomes its controller",
                    ),
                ]),
                ..ValidatingAdmissionPolicySpec::default()
            }),
            status: None,
        }
    }

    /// Whether an error is the refusal of the fence with this name.
    pub fn is_denial(name: &str, error: &exuvia_write::Error) -> bool {
        let named = format!("ValidatingAdmissionPolicy '{name}'");
        error
            .status()
            .is_some_and(|status| status.message.contains(&named))
    }

    fn metadata(&self) -> ObjectMeta {
        ObjectMeta {
            name: Some(self.name.clone()),
            ..ObjectMeta::default()
        }
    }

    /// CEL for the stamp of `object`, or for an empty text.
    fn stamp(&self, object: &str) -> String {
        let at = match self.place() {
            StampOn::Object => vec!["metadata"],
            StampOn::PodTemplate => vec!["spec", "template", "metadata"],
        };
        let mut path = object.to_owned();
        let mut there = Vec::new();
        for member in at.into_iter().chain(["annotations"]) {
            path = format!("{path}.{member}");
            there.push(format!("has({path})"));
        }
        let annotation = self.annotation();
        there.push(format!("'{annotation}' in {path}"));
        format!("{} ? {path}['{annotation}'] : ''", there.join(" && "))
    }

    fn annotation(&self) -> &str {
        self.names
            .fence_annotation
            .as_ref()
            .unwrap_or(&self.names.generation_annotation)
    }

    fn place(&self) -> StampOn {
        if self.names.fence_annotation.is_some() {
            self.names.stamp_on
        } else {
            StampOn::PodTemplate
        }
    }

    /// CEL for the pattern of a stamp that can be read. 18 digits always fit a number.
    fn readable(&self) -> &'static str {
        if self.names.fence_annotation.is_some() {
            "'^[^/]+/[0-9]{1,18}$'"
        } else {
            "'^[0-9]{1,18}$'"
        }
    }

    /// CEL for "the new stamp is of the owner of the old one, or of the controller", where both can be read. Otherwise a stamp could go
    /// back by way of an owner that nobody has.
    fn is_of_its_owner(&self) -> String {
        if self.names.fence_annotation.is_none() {
            return "true".to_owned();
        }
        let uid = "variables.new.split('/')[0]";
        format!(
            "{uid} == variables.old.split('/')[0] || (has(object.metadata.ownerReferences) && \
             object.metadata.ownerReferences.exists(owner, has(owner.controller) && owner.controller && owner.uid == {uid}))"
        )
    }

    /// CEL for "the new stamp is not older", where both can be read.
    fn goes_on(&self) -> String {
        let (old, new) = ("variables.old", "variables.new");
        if self.names.fence_annotation.is_some() {
            format!(
                "{new}.split('/')[0] != {old}.split('/')[0] || int({new}.split('/')[1]) >= int({old}.split('/')[1])"
            )
        } else {
            format!("int({new}) >= int({old})")
        }
    }
}

fn probed() -> String {
    format!(
        "has(request.options) && has(request.options.fieldManager) && request.options.fieldManager == '{PROBE_MANAGER}'"
    )
}

impl FencedKind {
    fn rule(&self) -> NamedRuleWithOperations {
        // Through /status of built-in kinds annotations can be written as well. /scale shows none.
        let resources = vec![self.plural.clone(), format!("{}/status", self.plural)];
        NamedRuleWithOperations {
            api_groups: Some(vec![self.group.clone()]),
            api_versions: Some(vec!["*".to_owned()]),
            operations: Some(vec!["CREATE".to_owned(), "UPDATE".to_owned()]),
            resource_names: (!self.names.is_empty()).then(|| self.names.clone()),
            resources: Some(resources),
            scope: Some("*".to_owned()),
        }
    }
}
