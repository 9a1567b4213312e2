//! How rules are put together.

use super::*;
use crate::servers::ApiServers;

const WIDGETS: (&str, [&str; 1]) = ("example.dev", ["widgets"]);

fn widgets(why: &str, verbs: &[&str]) -> Rule {
    Rule::new(why, WIDGETS.0, WIDGETS.1, verbs)
}

#[test]
fn a_rule_that_another_covers_is_folded_into_it_with_its_reason() {
    for rules in [
        [widgets("Look.", &["list"]), widgets("Work.", &["get", "list"])],
        [widgets("Look.", &["get", "list"]), widgets("Work.", &["list"])],
    ] {
        let folded = folded(rules.to_vec());
        assert_eq!(folded, [widgets("Look. Work.", &["get", "list"])]);
    }
}

#[test]
fn a_reason_that_two_controllers_share_is_given_once() {
    let rules = [
        Rule::path("Tell API servers apart, and see open watches.", "/metrics"),
        Rule::path("Tell API servers apart.", "/metrics"),
    ];
    assert_eq!(folded(rules.to_vec()), rules[..1]);
    let two: Vec<Rule> = ["whether it stores", "whether it denies"]
        .into_iter()
        .flat_map(ApiServers::rights)
        .collect();
    let folded = folded(two);
    assert_eq!(folded.len(), 3);
    assert_eq!(folded[0], rules[1]);
    assert!(
        folded[1].why.contains("stores. ") && folded[1].why.ends_with("denies."),
        "{}",
        folded[1].why
    );
}

#[test]
fn rules_that_do_not_cover_each_other_stay_apart() {
    let apart = vec![
        widgets("One.", &["list"]),
        widgets("Two.", &["patch"]),
        widgets("Three.", &["list"]).within(RuleScope::Own),
        widgets("Four.", &["list"]).only(["one".to_owned()]),
        Rule::path("Five.", "/metrics"),
    ];
    assert_eq!(folded(apart.clone()), apart);
}

#[test]
fn the_runtime_adds_what_it_needs_itself() {
    let rules = operator(Some("lease"), [vec![widgets("Work.", &["get"])]]);
    let needed: Vec<(RuleScope, &str)> = rules
        .iter()
        .map(|rule| (rule.scope, rule.rule.resources.as_ref().unwrap()[0].as_str()))
        .collect();
    assert_eq!(
        needed,
        [
            (RuleScope::Cluster, "customresourcedefinitions"),
            (RuleScope::Cluster, "widgets"),
            (RuleScope::Default, "events"),
            (RuleScope::Own, "leases"),
            (RuleScope::Own, "leases"),
        ]
    );
}

#[test]
fn without_controllers_there_is_nothing_but_the_lease() {
    let scopes = |rules: Vec<Rule>| rules.iter().map(|rule| rule.scope).collect::<Vec<_>>();
    assert_eq!(
        scopes(operator(Some("lease"), [])),
        [RuleScope::Own, RuleScope::Own]
    );
    assert_eq!(scopes(operator(None, [])), []);
}

#[test]
fn each_scope_with_rules_gets_a_role_and_a_binding() {
    let holder = RoleHolder {
        name: "shell".to_owned(),
        namespace: "here".to_owned(),
        service_account: "account".to_owned(),
    };
    let rules = operator(Some("lease"), [vec![widgets("Work.", &["get"])]]);
    let manifests = serde_json::to_value(manifests(&rules, &holder)).unwrap();
    let named = |index: usize| {
        let meta = &manifests[index]["metadata"];
        (
            manifests[index]["kind"].as_str().unwrap(),
            meta["name"].as_str().unwrap(),
            meta["namespace"].as_str(),
        )
    };
    let all: Vec<_> = (0..manifests.as_array().unwrap().len()).map(named).collect();
    assert_eq!(
        all,
        [
            ("ClusterRole", "shell", None),
            ("ClusterRoleBinding", "shell", None),
            ("Role", "shell-default", Some("default")),
            ("RoleBinding", "shell-default", Some("default")),
            ("Role", "shell-leader-election", Some("here")),
            ("RoleBinding", "shell-leader-election", Some("here")),
        ]
    );
    for index in [1, 3, 5] {
        let subject = &manifests[index]["subjects"][0];
        assert_eq!(subject["name"], "account");
        assert_eq!(subject["namespace"], "here");
        assert_eq!(
            manifests[index]["roleRef"]["name"],
            manifests[index]["metadata"]["name"]
        );
    }
}

#[test]
fn comments_wrap_between_words() {
    assert_eq!(wrap("one two three", 7), ["one two", "three"]);
}
