//! What is said of a spec that cannot be right, before anything is read from a cluster.

use exuvia_datastore::mapping::{InvalidSpec, Mappings};
use serde_json::{Value, json};

use super::{from, merge, spec, widgets};

fn problems(spec: Value) -> Vec<InvalidSpec> {
    Mappings::compile(&from(spec))
        .map(|_| ())
        .expect_err("it is not valid")
}

/// What is wrong with one mapping that has these fields more.
fn mapping(more: Value) -> Vec<InvalidSpec> {
    problems(json!({"mappings": [widgets(more)]}))
}

/// What is wrong with a spec that has these fields more.
fn beside(more: Value) -> Vec<InvalidSpec> {
    let mut spec = json!({"mappings": [widgets(json!({}))]});
    merge(&mut spec, more);
    problems(spec)
}

#[track_caller]
fn one(problems: &[InvalidSpec], path: &str, words: &str) {
    let [problem] = problems else {
        panic!("{problems:#?}")
    };
    assert_eq!(problem.path(), path, "{problem}");
    assert!(problem.to_string().contains(words), "{problem}");
    assert!(!problem.to_string().contains('\n'), "{problem}");
}

#[test]
fn an_expression_is_named_with_mapping_path_line_and_column() {
    let problem = mapping(json!({"convert": [
        {"path": "spec.a", "value": "1"},
        {"path": "spec.b", "value": "object.spec.a +\n  objct.spec.b"},
    ]}));
    assert_eq!(
        problem[0].to_string(),
        "mapping \"widgets\": mappings[0].convert[1].value at 2:3: unknown variable \"objct\": \
         expected object (did you mean object?)"
    );
    assert_eq!(problem[0].position(), Some((2, 3)));
}

#[test]
fn every_expression_is_compiled() {
    let bad = "nope()";
    for (more, path) in [
        (json!({"from": {"when": bad}}), "mappings[0].from.when"),
        (json!({"from": {"ready": bad}}), "mappings[0].from.ready"),
        (json!({"metadata": {"name": bad}}), "mappings[0].metadata.name"),
        (
            json!({"metadata": {"namespace": bad}}),
            "mappings[0].metadata.namespace",
        ),
        (
            json!({"metadata": {"annotations": {"a/b": bad}}}),
            "mappings[0].metadata.annotations[\"a/b\"]",
        ),
        (
            json!({"convert": [{"path": "spec.a", "value": bad}]}),
            "mappings[0].convert[0].value",
        ),
    ] {
        one(&mapping(more), path, "at 1:5: unknown function \"nope\"");
    }
    let rule = json!({"in": {"version": "v1", "kind": "Secret"}, "convert": [{"path": "data", "value": "1"}], "when": bad});
    one(
        &beside(json!({"references": {"rewrite": [rule]}})),
        "references.rewrite[0].when",
        "nope",
    );
    let rule =
        json!({"in": {"version": "v1", "kind": "Secret"}, "convert": [{"path": "data", "value": bad}]});
    one(
        &beside(json!({"references": {"rewrite": [rule]}})),
        "references.rewrite[0].convert[0].value",
        "nope",
    );
    let wait = json!({"version": "v1", "kind": "Secret", "when": bad});
    one(
        &beside(json!({"cutover": {"waitFor": [wait]}})),
        "cutover.waitFor[0].when",
        "nope",
    );
}

#[test]
fn unpacked_is_known_where_something_is_unpacked() {
    let more = json!({"convert": [{"path": "spec.a", "value": "unpacked.name"}]});
    one(
        &mapping(more.clone()),
        "mappings[0].convert[0].value",
        "unknown variable \"unpacked\"",
    );
    let mut unpacking = widgets(more);
    merge(&mut unpacking, json!({"metadata": {"unpack": "a/b"}}));
    assert!(Mappings::compile(&spec(json!([unpacking]))).is_ok());
    one(
        &mapping(json!({"metadata": {"unpack": "a/b"}, "from": {"when": "unpacked.x"}})),
        "mappings[0].from.when",
        "unpacked",
    );
}

#[test]
fn a_path_must_name_one_field_that_may_be_written() {
    for (path, words) in [
        ("spec.*", "wildcard"),
        ("spec.rules[0].port", "whole list"),
        ("spec..a", "empty"),
        ("apiVersion", "expected it in `to`"),
        ("kind", "expected it in `to`"),
        ("metadata", "only labels and annotations"),
        ("metadata.name", "expected it in `metadata`"),
        ("metadata.namespace", "expected it in `metadata`"),
        ("metadata.finalizers", "expected it in `metadata`"),
        ("metadata.ownerReferences", "only labels and annotations"),
        ("metadata.uid", "only labels and annotations"),
        ("metadata.labels.a.b", "has no fields"),
        ("status.phase", "status: Copy"),
    ] {
        one(
            &mapping(json!({"convert": [{"path": path, "value": "1"}]})),
            "mappings[0].convert[0].path",
            words,
        );
        one(
            &mapping(json!({"remove": [path]})),
            "mappings[0].remove[0]",
            words,
        );
        let flag = json!({"version": "v1", "kind": "Secret", "name": "x", "path": path, "frozen": true});
        one(
            &beside(json!({"freeze": {"flags": [flag]}})),
            "freeze.flags[0].path",
            words,
        );
    }
    let more = json!({"convert": [{"path": "spec.a.b", "value": "1"}], "remove": ["spec.a"]});
    one(&mapping(more), "mappings[0].remove[0]", "which convert sets");
}

#[test]
fn mappings_must_fit_together() {
    let two = |first: Value, second: Value| problems(json!({"mappings": [widgets(first), widgets(second)]}));
    let more = json!({"from": {"kinds": ["Widget", "Gadget"]}, "to": {"kind": "Thing"}});
    one(
        &mapping(more),
        "mappings[0].to.kind",
        "several kinds cannot become one",
    );
    one(
        &mapping(json!({"extra": true})),
        "mappings[0].from.kinds[0]",
        "nothing moves Widget",
    );
    one(
        &mapping(json!({"to": {"group": "old.example.com", "version": "v2"}})),
        "mappings[0].to",
        "would become itself",
    );
    one(
        &mapping(json!({"from": {"kinds": ["Widget", "Widget"]}})),
        "mappings[0].from.kinds[1]",
        "listed twice",
    );
    one(
        &mapping(json!({"name": "Widgets"})),
        "mappings[0].name",
        "invalid name",
    );
    one(
        &two(json!({"from": {"when": "true"}}), json!({})),
        "mappings[1].name",
        "is used twice",
    );
    one(
        &two(json!({}), json!({"name": "b"})),
        "mappings[1].from.kinds[0]",
        "it takes nothing",
    );
    one(
        &two(
            json!({"from": {"when": "true"}}),
            json!({"name": "b", "from": {"version": "v2"}}),
        ),
        "mappings[1].from.version",
        "expected the same version",
    );
    let back = json!({"name": "b", "from": {"group": "new.example.com"}, "to": {"group": "old.example.com"}});
    one(
        &two(json!({}), back),
        "mappings[1].to",
        "is also a source, of mapping \"widgets\"",
    );
    one(&problems(json!({"mappings": []})), "mappings", "expected 1 to 64");
}

#[test]
fn bounds_durations_and_the_rest_are_checked() {
    for (more, path, words) in [
        (json!({"concurrency": 0}), "concurrency", "1 to 64"),
        (json!({"concurrency": 65}), "concurrency", "1 to 64"),
        (
            json!({"freeze": {"admission": false}}),
            "freeze.admission",
            "at least one flag",
        ),
        (
            json!({"freeze": {"drain": "soon"}}),
            "freeze.drain",
            "invalid duration \"soon\"",
        ),
        (
            json!({"freeze": {"maxDuration": "15"}}),
            "freeze.maxDuration",
            "invalid duration \"15\"",
        ),
        (
            json!({"conflicts": {"pollInterval": "1d"}}),
            "conflicts.pollInterval",
            "invalid duration",
        ),
        (
            json!({"conflicts": {"pollInterval": "0s"}}),
            "conflicts.pollInterval",
            "at least 1s",
        ),
        (
            json!({"conflicts": {"compare": []}}),
            "conflicts.compare",
            "at least one",
        ),
        (
            json!({"cutover": {"apiService": "v1.other.example.com"}}),
            "cutover.apiService",
            "group of a target",
        ),
        (
            json!({"cutover": {"waitFor": [{"version": "v1", "kind": "Secret", "rollout": true}]}}),
            "cutover.waitFor[0].rollout",
            "expected one of them",
        ),
        (
            json!({"cutover": {"waitFor": [{"version": "v1", "kind": "Secret", "name": "a", "selector": {"matchLabels": {"a": "b"}}}]}}),
            "cutover.waitFor[0]",
            "expected one of them",
        ),
        (
            json!({"references": {"rewrite": [{"in": {"version": "v1", "kind": "Secret"}}]}}),
            "references.rewrite[0]",
            "changes nothing",
        ),
        (
            json!({"references": {"rewrite": [{
                "in": {"group": "old.example.com", "version": "v1", "kind": "Widget"},
                "rewriteKeys": [{"from": "a/", "to": "b/"}],
            }]}}),
            "references.rewrite[0].in",
            "its objects are moved",
        ),
    ] {
        one(&beside(more), path, words);
    }
}

#[test]
fn the_bounds_of_a_mapping_are_checked() {
    for (more, path, words) in [
        (json!({"wave": 1001}), "mappings[0].wave", "0 to 1000"),
        (
            json!({"from": {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}}),
            "mappings[0].from.selector.matchExpressions[0]",
            "at least one value",
        ),
        (
            json!({"metadata": {"rewriteKeys": [{"from": "a/", "to": "a/"}]}}),
            "mappings[0].metadata.rewriteKeys[0]",
            "itself",
        ),
        (
            json!({"metadata": {"rewriteKeys": [{"from": "a", "to": "b"}, {"from": "a/", "to": "c"}]}}),
            "mappings[0].metadata.rewriteKeys[1]",
            "never used",
        ),
        (
            json!({"metadata": {"annotations": {"k": "'v'"}, "dropAnnotations": ["k"]}}),
            "mappings[0].metadata.annotations[\"k\"]",
            "dropAnnotations names it too",
        ),
        (
            json!({"metadata": {"finalizers": {"keep": ["f"], "rename": {"f": "g"}}}}),
            "mappings[0].metadata.finalizers.rename[\"f\"]",
            "keep names it too",
        ),
        (
            json!({"from": {"when": "1 == 1 ".repeat(1_500)}}),
            "mappings[0].from.when",
            "at most 8192",
        ),
        (
            json!({"remove": vec!["spec.a"; 65]}),
            "mappings[0].remove",
            "expected 0 to 64",
        ),
        (
            json!({"from": {"when": "(".repeat(5_000)}}),
            "mappings[0].from.when",
            "at 1:65: the brackets are nested",
        ),
        (
            json!({"from": {"when": vec!["1"; 3_000].join("+")}}),
            "mappings[0].from.when",
            "too deep",
        ),
        (
            json!({"from": {"when": vec!["1"; 70].join("+")}}),
            "mappings[0].from.when",
            "more than 64 deep",
        ),
    ] {
        one(&mapping(more), path, words);
    }
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let problems = mapping(json!({
        "name": "Bad Name", "wave": -1, "from": {"when": "("},
        "convert": [{"path": "kind", "value": "x"}], "remove": ["a.*"],
    }));
    let paths: Vec<&str> = problems.iter().map(InvalidSpec::path).collect();
    assert_eq!(
        paths,
        [
            "mappings[0].name",
            "mappings[0].wave",
            "mappings[0].from.when",
            "mappings[0].convert[0].path",
            "mappings[0].convert[0].value",
            "mappings[0].remove[0]",
        ]
    );
}
