//! Which RBAC rule is missing, read from what the API server says when it refuses.

use std::fmt;

use serde::Serialize;

/// The smallest rule that would have allowed a request.
///
/// ```
/// use exuvia_storage::MissingRule;
///
/// let said = r#"widgets.example.com is forbidden: User "exuvia" cannot list resource "widgets" in API group "example.com" at the cluster scope"#;
/// let rule = MissingRule::named_in(said).unwrap();
/// assert_eq!(rule.to_string(), r#"{apiGroups: ["example.com"], resources: ["widgets"], verbs: ["list"]}"#);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MissingRule {
    /// The API group; empty for the core group.
    pub group: String,
    /// The resource, with its subresource if it is about one.
    pub resource: String,
    /// What was to be done.
    pub verb: String,
}

impl MissingRule {
    /// Reads the server's sentence. `None`: it is not about a missing right, but comes from an admission policy.
    pub fn named_in(message: &str) -> Option<Self> {
        let (_, rest) = message.split_once(" cannot ")?;
        let (verb, rest) = rest.split_once(" resource \"")?;
        let (resource, rest) = rest.split_once('"')?;
        let group = rest.strip_prefix(" in API group \"")?.split_once('"')?.0;
        let is_word = |text: &str| {
            !text.is_empty()
                && text
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-./".contains(c))
        };
        (is_word(verb) && is_word(resource)).then(|| Self {
            group: group.to_owned(),
            resource: resource.to_owned(),
            verb: verb.to_owned(),
        })
    }
}

impl fmt::Display for MissingRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            group,
            resource,
            verb,
        } = self;
        write!(
            f,
            "{{apiGroups: [\"{group}\"], resources: [\"{resource}\"], verbs: [\"{verb}\"]}}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subresource_and_the_core_group_are_named() {
        let said = r#"customresourcedefinitions.apiextensions.k8s.io "w" is forbidden: User "u" cannot patch resource "customresourcedefinitions/status" in API group "apiextensions.k8s.io" at the cluster scope"#;
        let rule = MissingRule::named_in(said).expect("the server names it");
        assert_eq!(
            (rule.verb.as_str(), rule.resource.as_str()),
            ("patch", "customresourcedefinitions/status")
        );
        let said = r#"secrets is forbidden: User "u" cannot list resource "secrets" in API group "" at the cluster scope"#;
        assert_eq!(
            MissingRule::named_in(said).expect("the server names it").group,
            ""
        );
    }

    #[test]
    fn a_policy_that_denies_is_not_a_missing_right() {
        for said in [
            r#"admission webhook "policy.example.com" denied the request: you cannot do that"#,
            "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no",
        ] {
            assert_eq!(MissingRule::named_in(said), None);
        }
    }
}
