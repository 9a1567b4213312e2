//! The charts' values: described, checked, and refused with a helpful message.

use exuvia_testenv::Helm;
use serde_json::Value;

use crate::NAMESPACE;
use crate::rendered::{Rendered, charts};

fn read(path: &str) -> String {
    std::fs::read_to_string(charts().join(path)).unwrap()
}

#[tokio::test]
async fn both_charts_pass_helms_lint() {
    let helm = Helm::offline().unwrap();
    for chart in ["exuvia", "exuvia-crds"] {
        helm.lint(charts().join(chart), &["--strict"])
            .await
            .unwrap_or_else(|error| panic!("{error}"));
    }
}

#[tokio::test]
async fn an_invalid_value_is_refused_by_name() {
    let charts = charts().join("exuvia");
    let mut refused = Vec::new();
    for (set, words) in [
        ("replicsa=3", ["additional properties", "replicsa"]),
        ("log.levle=debug", ["/log", "levle"]),
        ("settle=soon", ["/settle", "soon"]),
        ("replicas=two", ["/replicas", "want integer"]),
        ("maxConcurrency=0", ["/maxConcurrency", "minimum"]),
        ("log.format=xml", ["/log/format", "'text', 'json'"]),
        ("optInLabel=not a label", ["/optInLabel", "not a label"]),
        (
            "groups={Example.com}",
            ["invalid API group \"Example.com\"", "such as example.com"],
        ),
        ("groups={}", ["invalid API group \"\"", "\"*\" for all"]),
        (
            "groups={Example.com},rbac.create=false",
            ["invalid API group \"Example.com\"", "such as example.com"],
        ),
        (
            "crds={widgets}",
            ["invalid CRD name \"widgets\"", "widgets.example.com"],
        ),
        (
            "crds[0].name=widgets",
            ["invalid CRD name \"widgets\"", "widgets.example.com"],
        ),
        ("crds[0].nmae=widgets.example.com", ["/crds/0", "nmae"]),
        ("image.digest=latest", ["/image/digest", "latest"]),
        (
            "leaderElection.enabled=false",
            ["each of 2 replicas would write", "set replicas to 1"],
        ),
        ("log.level=loud", ["invalid level \"loud\"", "error, warn, info"]),
        (
            "shutdownGrace=1m",
            ["shutdownGrace is 1m", "increase terminationGracePeriodSeconds"],
        ),
        (
            "shutdownGrace=30001ms",
            [
                "shutdownGrace is 30001ms",
                "increase terminationGracePeriodSeconds",
            ],
        ),
        ("groups=null", ["groups and crds are both empty", "set groups"]),
        (
            "serviceAccount.create=false",
            ["serviceAccount.create is false", "serviceAccount.name"],
        ),
    ] {
        let helm = Helm::offline().unwrap();
        let rendered = helm.template(&charts, "exuvia", NAMESPACE, &["--set", set]).await;
        let error = rendered.err().map(|error| error.to_string()).unwrap_or_default();
        if !words.iter().all(|word| error.contains(word)) {
            refused.push(format!("{set}: {error}"));
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[tokio::test]
async fn every_value_is_described_in_the_schema_and_in_the_readme() {
    let values: Value = serde_saphyr::from_str(&read("exuvia/values.yaml")).unwrap();
    let schema: Value = serde_json::from_str(&read("exuvia/values.schema.json")).unwrap();
    let readme = read("exuvia/README.md");
    let mut missing = Vec::new();
    let mut seen = 0;
    check(&values, &schema, "", &mut |path, described| {
        seen += 1;
        if !described {
            missing.push(format!("{path} has no description in the schema"));
        }
        if !readme.contains(&format!("| `{path}` |")) {
            missing.push(format!("{path} has no line in the README"));
        }
    });
    assert!(seen > 50, "{seen}");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// Calls `found` for each value that has no further values in it, according to the schema.
fn check(values: &Value, schema: &Value, path: &str, found: &mut impl FnMut(&str, bool)) {
    for (name, value) in values.as_object().unwrap() {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        let schema = &schema["properties"][name];
        let described = schema["description"]
            .as_str()
            .is_some_and(|text| text.ends_with('.'));
        if schema["properties"].is_object() {
            check(value, schema, &path, found);
        } else {
            found(&path, described);
        }
    }
}

/// Every value that the schema accepts is in `values.yaml`, where people look for it.
#[test]
fn every_value_of_the_schema_has_a_default() {
    let values: Value = serde_saphyr::from_str(&read("exuvia/values.yaml")).unwrap();
    let schema: Value = serde_json::from_str(&read("exuvia/values.schema.json")).unwrap();
    for (name, of_schema) in schema["properties"].as_object().unwrap() {
        if name == "global" {
            continue; // set by a parent chart
        }
        assert!(values.get(name).is_some(), "{name}");
        for below in of_schema["properties"].as_object().into_iter().flatten() {
            assert!(values[name].get(below.0).is_some(), "{name}.{}", below.0);
        }
    }
}

#[tokio::test]
async fn crds_may_be_strings_or_objects() {
    for set in ["crds={widgets.example.com}", "crds[0].name=widgets.example.com"] {
        let rendered = Rendered::exuvia(NAMESPACE, &["--set", set]).await;
        let args = rendered.container("pod").args;
        assert!(
            args.contains(&"--crds=widgets.example.com".to_owned()),
            "{set}: {args:?}"
        );
    }
}

#[tokio::test]
async fn values_accept_what_the_flags_accept() {
    for (set, flag) in [
        (
            "optInLabel=example.com/migrate",
            "--opt-in-label=example.com/migrate=true",
        ),
        ("log.level=WARN", "--log-level=WARN"),
        ("log.level=exuvia_write=debug", "--log-level=exuvia_write=debug"),
        ("shutdownGrace=30s", "--shutdown-grace=30s"),
        ("groups={*}", "--groups=*"),
    ] {
        let rendered = Rendered::exuvia(NAMESPACE, &["--set", set]).await;
        let args = rendered.container("pod").args;
        assert!(args.contains(&flag.to_owned()), "{set}: {args:?}");
    }
}

#[test]
fn charts_and_binary_have_one_version() {
    for chart in ["exuvia", "exuvia-crds"] {
        let chart: Value = serde_saphyr::from_str(&read(&format!("{chart}/Chart.yaml"))).unwrap();
        for field in ["version", "appVersion"] {
            assert_eq!(chart[field], env!("CARGO_PKG_VERSION"), "{field} of {chart}");
        }
    }
}
