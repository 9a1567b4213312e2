//! What the policies say, without a server: which parts there are, what they match, what they exempt.

use super::*;

fn scope() -> Scope {
    Scope {
        uid: "u-1".into(),
        migration: "tills".into(),
        source: vec![
            kind("old.example.com", "tills", ""),
            kind("old.example.com", "drawers", ""),
        ],
        target: vec![("new.example.com".into(), "tills".into())],
        has_early_targets: false,
        moved_groups: vec!["old.example.com".into(), "new.example.com".into()],
        api_service: None,
        username: "system:serviceaccount:exuvia:exuvia".into(),
    }
}

fn kind(group: &str, plural: &str, label: &str) -> FrozenKind {
    let mut selector = LabelSelector::default();
    if !label.is_empty() {
        selector.match_labels.insert(label.into(), "yes".into());
    }
    FrozenKind {
        group: group.into(),
        plural: plural.into(),
        selector,
        ..FrozenKind::default()
    }
}

fn spec(scope: &Scope, part: Part, form: Form) -> ValidatingAdmissionPolicySpec {
    scope.objects(part, form).0.spec.unwrap()
}

fn rules_of(scope: &Scope, part: Part, form: Form) -> Vec<NamedRuleWithOperations> {
    spec(scope, part, form)
        .match_constraints
        .unwrap()
        .resource_rules
        .unwrap()
}

fn expression(scope: &Scope, part: Part, form: Form) -> String {
    spec(scope, part, form).validations.unwrap().remove(0).expression
}

#[test]
fn which_parts_there_are_follows_from_the_state() {
    let mut scope = scope();
    assert_eq!(
        scope.parts(Form::Frozen, true),
        [Part::Guard, Part::Shield, Part::Target, Part::Source]
    );
    assert_eq!(scope.parts(Form::Converged, false), [Part::Source]);
    assert_eq!(scope.parts(Form::Committed, false), [Part::Source]);
    scope.api_service = Some("v3.new.example.com".into());
    assert_eq!(scope.parts(Form::Converged, false), [Part::Guard, Part::Source]);
    scope.moved_groups.clear();
    assert!(
        !scope.parts(Form::Frozen, true).contains(&Part::Shield),
        "nothing to shield"
    );
}

#[test]
fn every_subresource_and_version_of_the_source_is_frozen() {
    let rules = rules_of(&scope(), Part::Source, Form::Frozen);
    let resources = ["drawers", "drawers/*", "tills", "tills/*"].map(str::to_owned);
    assert_eq!(rules[0].resources.as_deref(), Some(&resources[..]));
    assert_eq!(rules[0].api_versions, Some(vec!["*".to_owned()]));
    let operations = ["CREATE", "UPDATE", "DELETE"].map(str::to_owned);
    assert_eq!(rules[0].operations.as_deref(), Some(&operations[..]));
}

#[test]
fn after_the_commit_anyone_may_delete_a_source() {
    let rules = rules_of(&scope(), Part::Source, Form::Converged);
    assert_eq!(
        rules[0].operations,
        Some(vec!["CREATE".to_owned(), "UPDATE".to_owned()])
    );
}

#[test]
fn a_refusal_names_the_migration_and_is_forbidden() {
    for part in Part::ALL {
        let validation = spec(&scope(), part, Form::Frozen).validations.unwrap().remove(0);
        let message = validation.message.unwrap();
        assert!(message.contains("DatastoreMigration tills"), "{message}");
        assert_eq!(validation.reason.as_deref(), Some("Forbidden"));
    }
}

#[test]
fn the_two_forms_refuse_in_different_words() {
    // Otherwise the probe could not tell which of them a server enforces.
    let scope = Scope {
        api_service: Some("v3.new.example.com".into()),
        ..scope()
    };
    for part in [Part::Source, Part::Guard] {
        assert_ne!(
            scope.message(part, Form::Frozen),
            scope.message(part, Form::Converged)
        );
    }
}

#[test]
fn a_kind_is_wholly_frozen_if_any_of_its_mappings_takes_all() {
    let mut scope = scope();
    scope.source = vec![kind("g", "tills", "moved"), kind("g", "tills", "")];
    assert!(!expression(&scope, Part::Source, Form::Frozen).contains("labels"));
    scope.source = vec![kind("g", "tills", "moved"), kind("g", "tills", "gone")];
    let chosen = expression(&scope, Part::Source, Form::Frozen);
    assert!(
        chosen.contains("\"moved\"") && chosen.contains("\"gone\""),
        "{chosen}"
    );
    for variable in ["object.metadata.labels", "oldObject.metadata.labels"] {
        assert!(chosen.contains(variable), "{chosen}");
    }
}

#[test]
fn a_user_name_with_quotes_stays_a_literal() {
    let scope = Scope {
        username: "x\" || true || \"".into(),
        ..scope()
    };
    let conditions = spec(&scope, Part::Source, Form::Frozen).match_conditions.unwrap();
    assert!(conditions[0].expression.contains(r#"== "x\" || true || \"""#));
}

#[test]
fn everything_has_the_label_by_which_it_is_found() {
    for part in Part::ALL {
        let (policy, binding) = scope().objects(part, Form::Frozen);
        for metadata in [policy.metadata, binding.metadata] {
            assert_eq!(metadata.labels.unwrap()[DATASTORE_LABEL], "u-1");
            assert_eq!(metadata.name.unwrap(), format!("exuvia-u-1-{}", part.as_str()));
        }
    }
}

#[test]
fn every_refusal_names_the_migration_as_others_read_it() {
    let scope = scope();
    for part in Part::ALL {
        for form in [Form::Frozen, Form::Committed, Form::Converged] {
            let (policy, message) = (scope.name(part), scope.message(part, form));
            let said = format!(
                "ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {message}"
            );
            let frozen = exuvia_api::FrozenBy::named_in(&said).unwrap();
            assert_eq!(
                (frozen.migration.as_str(), frozen.policy),
                ("tills", policy),
                "{said}"
            );
        }
    }
}
