//! Which scope gives which rules.

use k8s_openapi::api::rbac::v1::PolicyRule;

use super::*;

fn scope(crds: &[&str], groups: &[&str]) -> Scope {
    Scope {
        crds: crds.iter().map(|name| name.parse().unwrap()).collect(),
        groups: groups.iter().map(ToString::to_string).collect(),
        ..Scope::default()
    }
}

fn about(rules: &[Rule], resource: &str) -> Vec<PolicyRule> {
    let is_about = |rule: &&Rule| {
        rule.rule
            .resources
            .iter()
            .flatten()
            .any(|named| named == resource)
    };
    rules
        .iter()
        .filter(is_about)
        .map(|rule| rule.rule.clone())
        .collect()
}

#[test]
fn named_crds_give_rules_with_their_names() {
    let rules = StorageController::rights(&scope(
        &["widgets.example.com", "gadgets.example.com", "a.b.example.com"],
        &[],
    ));
    let trim = &about(&rules, "customresourcedefinitions/status")[0];
    assert_eq!(
        trim.resource_names.as_deref().unwrap(),
        ["a.b.example.com", "gadgets.example.com", "widgets.example.com"]
    );
    let of_example = &about(&rules, "widgets")[0];
    assert_eq!(of_example.api_groups.as_deref().unwrap(), ["example.com"]);
    assert_eq!(of_example.resources.as_deref().unwrap(), ["gadgets", "widgets"]);
    assert_eq!(of_example.verbs, ["get", "list", "patch"]);
    assert!(about(&rules, "*").is_empty());
}

#[test]
fn an_empty_scope_gives_no_right_to_patch_any_crd() {
    // An empty resourceNames would mean every CRD.
    let rules = StorageController::rights(&scope(&[], &[]));
    assert!(about(&rules, "customresourcedefinitions/status").is_empty());
    assert_eq!(rules, always());
}

#[test]
fn each_group_has_one_wildcard_rule_that_says_why() {
    let rules = StorageController::rights(&scope(
        &["storagemigrations.exuvia.dev"],
        &["example.com", "a.example.com"],
    ));
    let wildcards = about(&rules, "*");
    let groups: Vec<_> = wildcards
        .iter()
        .flat_map(|rule| rule.api_groups.clone().unwrap())
        .collect();
    assert_eq!(groups, ["a.example.com", "example.com"]);
    let trim = &about(&rules, "customresourcedefinitions/status")[0];
    assert_eq!(trim.resource_names, None);
    let why = &rules.last().unwrap().why;
    assert!(why.contains("at run time") && why.contains("subgroups"), "{why}");
}

#[test]
fn status_is_written_only_with_status_fallback() {
    let mut scope = scope(&["widgets.example.com"], &[]);
    assert!(about(&StorageController::rights(&scope), "widgets/status").is_empty());
    scope.status_fallback = true;
    let rule = &about(&StorageController::rights(&scope), "widgets/status")[0];
    assert_eq!(rule.verbs, ["patch"]);
}

#[test]
fn everything_may_be_listed_only_to_look_at_references() {
    let mut scope = scope(&["widgets.example.com"], &[]);
    assert!(about(&StorageController::rights(&scope), "*").is_empty());
    scope.look_at_references = true;
    let rule = &about(&StorageController::rights(&scope), "*")[0];
    assert_eq!(
        (rule.api_groups.as_deref().unwrap(), rule.verbs.as_slice()),
        (&["*".to_owned()][..], &["list".to_owned()][..])
    );
}

#[test]
fn a_name_that_no_crd_can_have_is_refused() {
    for name in [
        "widgets",
        "widgets.example",
        "Widgets.example.com",
        "widgets..com",
        ".a.b",
        "*",
    ] {
        let error = name.parse::<Crd>().unwrap_err().to_string();
        assert!(
            error.contains(name) && error.contains("widgets.example.com"),
            "{error}"
        );
    }
}

#[test]
fn wildcards_cover_found_and_requested_groups_but_never_exuvias_own() {
    let crds = [
        "widgets.a.example.com",
        "gadgets.a.example.com",
        "storagemigrations.exuvia.dev",
    ];
    let crds = crds.map(|name| name.parse::<Crd>().unwrap());
    let scope = Scope::of_groups(crds, ["example.com".to_owned(), "exuvia.dev".to_owned()]);
    let own: Vec<String> = scope.crds.iter().map(ToString::to_string).collect();
    assert_eq!(own, ["storagemigrations.exuvia.dev"]);
    assert_eq!(Vec::from_iter(scope.groups), ["a.example.com", "example.com"]);
}
