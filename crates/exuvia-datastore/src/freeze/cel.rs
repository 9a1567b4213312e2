//! Pieces of CEL text for the generated policies. Whatever comes from outside goes in as a quoted literal.

use exuvia_api::{LabelOperator, LabelRequirement, LabelSelector};

/// A CEL string literal. JSON's escapes are a part of CEL's.
pub(super) fn text(value: &str) -> String {
    serde_json::Value::from(value).to_string()
}

/// A CEL list of string literals.
pub(super) fn list<S: AsRef<str>>(values: impl IntoIterator<Item = S>) -> String {
    let values: Vec<String> = values.into_iter().map(|value| text(value.as_ref())).collect();
    format!("[{}]", values.join(", "))
}

/// Whether the request is about this resource, at any version.
pub(super) fn is_resource(group: &str, plural: &str) -> String {
    format!(
        "(request.resource.group == {} && request.resource.resource == {})",
        text(group),
        text(plural)
    )
}

/// Whether this user sent the request.
pub(super) fn is_user(name: &str) -> String {
    format!(
        "(has(request.userInfo.username) && request.userInfo.username == {})",
        text(name)
    )
}

/// Whether the request names this field manager. A DELETE has none.
pub(super) fn is_manager(name: &str) -> String {
    format!(
        "(has(request.options) && has(request.options.fieldManager) && request.options.fieldManager == {})",
        text(name)
    )
}

/// Whether the request is for a subresource whose object lacks labels and annotations. `/status` shows the whole object;
/// `/scale` does not, so that no selector can look at it.
pub(super) const ODD_SUBRESOURCE: &str =
    r#"(has(request.subResource) && !(request.subResource in ["", "status"]))"#;

/// Whether `variable` (`object` or `oldObject`) has an annotation of this value.
pub(super) fn has_annotation(variable: &str, key: &str, value: &str) -> String {
    let annotations = format!("{variable}.metadata.annotations");
    let key = text(key);
    format!(
        "({variable} != null && has({variable}.metadata) && has({annotations}) && {key} in {annotations} && {annotations}[{key}] == {})",
        text(value)
    )
}

/// Whether `variable` (`object` or `oldObject`) has the labels that the selector asks for.
pub(super) fn is_selected(variable: &str, selector: &LabelSelector) -> String {
    let equal = selector.match_labels.iter().map(|(key, value)| {
        let requirement = LabelRequirement {
            key: key.clone(),
            operator: LabelOperator::In,
            values: vec![value.clone()],
        };
        requirement_met(variable, &requirement)
    });
    let further = selector
        .match_expressions
        .iter()
        .map(|requirement| requirement_met(variable, requirement));
    let all: Vec<String> = std::iter::once(format!("{variable} != null"))
        .chain(equal)
        .chain(further)
        .collect();
    format!("({})", all.join(" && "))
}

fn requirement_met(variable: &str, requirement: &LabelRequirement) -> String {
    let labels = format!("{variable}.metadata.labels");
    let key = text(&requirement.key);
    let is_there = format!("(has({labels}) && {key} in {labels})");
    let is_one_of = || format!("({is_there} && {labels}[{key}] in {})", list(&requirement.values));
    match requirement.operator {
        LabelOperator::In => is_one_of(),
        LabelOperator::NotIn => format!("!{}", is_one_of()),
        LabelOperator::Exists => is_there,
        LabelOperator::DoesNotExist => format!("!{is_there}"),
    }
}

/// Whether an update changes nothing but what it takes to go away: finalizers are removed, and nothing else happens to the
/// object. The garbage collector (`is_collector`) may also change owner references: it does so to let a dependent go alone.
pub(super) fn only_lets_go(is_collector: &str) -> String {
    let bookkeeping = r#"["finalizers", "managedFields", "resourceVersion", "generation"]"#;
    let finalizers_left = "(!has(object.metadata.finalizers) || (has(oldObject.metadata.finalizers) && \
                           object.metadata.finalizers.all(f, f in oldObject.metadata.finalizers)))";
    let may_differ = format!("(k in {bookkeeping} || (k == \"ownerReferences\" && {is_collector}))");
    [
        "request.operation == \"UPDATE\"".to_owned(),
        "(!has(request.subResource) || request.subResource == \"\")".to_owned(),
        "object.all(k, k == \"metadata\" || (k in oldObject && object[k] == oldObject[k]))".to_owned(),
        "oldObject.all(k, k in object)".to_owned(),
        format!(
            "object.metadata.all(k, {may_differ} || (k in oldObject.metadata && object.metadata[k] == oldObject.metadata[k]))"
        ),
        format!("oldObject.metadata.all(k, {may_differ} || k in object.metadata)"),
        finalizers_left.to_owned(),
    ]
    .join(" && ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_end_its_literal() {
        assert_eq!(text(r#"a" || true || ""#), r#""a\" || true || \"""#);
        assert_eq!(text("a\\\n"), r#""a\\\n""#);
        assert_eq!(list(["a", "b\""]), r#"["a", "b\""]"#);
    }

    #[test]
    fn a_label_that_must_differ_may_be_absent() {
        let requirement = LabelRequirement {
            key: "tier".into(),
            operator: LabelOperator::NotIn,
            values: vec!["gold".into()],
        };
        let met = requirement_met("object", &requirement);
        assert!(met.starts_with("!((has(object.metadata.labels)"), "{met}");
    }
}
