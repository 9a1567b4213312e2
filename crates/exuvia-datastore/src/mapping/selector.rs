//! Whether an object's labels are those that a selector asks for.

use exuvia_api::{LabelOperator, LabelSelector};
use serde_json::Value;

/// Whether the selector takes an object with these labels, as an API server would.
pub fn selects(selector: &LabelSelector, object: &Value) -> bool {
    let label = |key: &str| object.get("metadata")?.get("labels")?.get(key)?.as_str();
    selector
        .match_labels
        .iter()
        .all(|(key, value)| label(key) == Some(value))
        && selector.match_expressions.iter().all(|requirement| {
            let value = label(&requirement.key);
            let listed =
                || value.is_some_and(|value| requirement.values.iter().any(|listed| listed == value));
            match requirement.operator {
                LabelOperator::In => listed(),
                LabelOperator::NotIn => !listed(),
                LabelOperator::Exists => value.is_some(),
                LabelOperator::DoesNotExist => value.is_none(),
            }
        })
}

/// What is wrong with a selector, and in which of its requirements.
pub(super) fn problem(selector: &LabelSelector) -> Option<(usize, &'static str)> {
    selector
        .match_expressions
        .iter()
        .enumerate()
        .find_map(|(index, requirement)| {
            let lists = matches!(requirement.operator, LabelOperator::In | LabelOperator::NotIn);
            match (lists, requirement.values.is_empty()) {
                (true, true) => Some((index, "In and NotIn need at least one value")),
                (false, false) => Some((index, "Exists and DoesNotExist take no values")),
                _ => None,
            }
        })
}

#[cfg(test)]
mod tests {
    use exuvia_api::LabelRequirement;
    use serde_json::json;

    use super::*;

    fn requirement(operator: LabelOperator, values: &[&str]) -> LabelSelector {
        let values = values.iter().map(ToString::to_string).collect();
        LabelSelector {
            match_expressions: vec![LabelRequirement {
                key: "tier".to_owned(),
                operator,
                values,
            }],
            ..LabelSelector::default()
        }
    }

    #[test]
    fn each_operator_means_what_it_means_to_the_server() {
        use LabelOperator::{DoesNotExist, Exists, In, NotIn};
        let with = |tier: &str| json!({"metadata": {"labels": {"tier": tier}}});
        let without = json!({"metadata": {}});
        for (selector, gold, lead, none) in [
            (requirement(In, &["gold", "silver"]), true, false, false),
            (requirement(NotIn, &["gold", "silver"]), false, true, true),
            (requirement(Exists, &[]), true, true, false),
            (requirement(DoesNotExist, &[]), false, false, true),
            (LabelSelector::default(), true, true, true),
            (
                LabelSelector {
                    match_labels: [("tier".to_owned(), "gold".to_owned())].into(),
                    ..LabelSelector::default()
                },
                true,
                false,
                false,
            ),
        ] {
            assert_eq!(selects(&selector, &with("gold")), gold, "{selector:?}");
            assert_eq!(selects(&selector, &with("lead")), lead, "{selector:?}");
            assert_eq!(selects(&selector, &without), none, "{selector:?}");
        }
    }

    #[test]
    fn values_that_cannot_be_meant_are_a_problem() {
        assert!(problem(&requirement(LabelOperator::In, &[])).is_some());
        assert!(problem(&requirement(LabelOperator::Exists, &["x"])).is_some());
        assert!(problem(&requirement(LabelOperator::NotIn, &["x"])).is_none());
    }
}
