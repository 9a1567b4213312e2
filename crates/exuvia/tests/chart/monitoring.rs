//! Alert rules, checked with the real promtool, and the dashboard: both are valid, and query only metrics that exist.

use std::collections::BTreeSet;

use exuvia_testenv::promtool;
use serde_json::{Value, json};

use crate::NAMESPACE;
use crate::rendered::{Rendered, workspace};

/// Every metric that the operator has, with its type, from the page that is generated from the registry; and those that
/// Prometheus itself makes.
fn metrics() -> Vec<(String, String)> {
    let page = std::fs::read_to_string(workspace().join("docs/metrics.md")).unwrap();
    let mut metrics: Vec<(String, String)> = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            (cells[1].trim_matches('`').to_owned(), cells[2].to_owned())
        })
        .collect();
    assert!(metrics.len() > 30, "{metrics:?}");
    metrics.extend(["up", "ALERTS"].map(|name| (name.to_owned(), "gauge".to_owned())));
    metrics
}

/// Of a histogram, only `_bucket`, `_sum` and `_count` can be queried.
fn is_known(metric: &str) -> bool {
    metrics().iter().any(|(name, kind)| match kind.as_str() {
        "histogram" => metric
            .strip_prefix(name.as_str())
            .is_some_and(|rest| ["_bucket", "_sum", "_count"].contains(&rest)),
        _ => metric == name,
    })
}

/// The metrics in an expression: words that are not functions, keywords or labels.
fn metrics_in(expression: &str) -> BTreeSet<String> {
    let mut rest = String::new();
    let mut depth = 0;
    let mut quoted = false;
    for character in expression.chars() {
        match character {
            '"' => quoted = !quoted,
            '{' | '[' if !quoted => depth += 1,
            '}' | ']' if !quoted => depth -= 1,
            _ if depth == 0 && !quoted => rest.push(character),
            _ => {}
        }
    }
    // Labels stand in parentheses after these words.
    for word in ["by", "on"] {
        while let Some((before, after)) = rest.split_once(&format!(" {word} (")) {
            let after = after.split_once(')').unwrap().1;
            rest = format!("{before} {after}");
        }
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = BTreeSet::new();
    let mut start = None;
    for (index, character) in rest.char_indices().chain([(rest.len(), ' ')]) {
        match start {
            None if is_word(character) => start = Some(index),
            Some(from) if !is_word(character) => {
                let word = &rest[from..index];
                let is_call = rest[index..].trim_start().starts_with('(');
                let is_number = word.starts_with(|c: char| c.is_ascii_digit());
                let is_keyword = ["and", "or", "unless"].contains(&word);
                if !is_call && !is_number && !is_keyword {
                    found.insert(word.to_owned());
                }
                start = None;
            }
            _ => {}
        }
    }
    found
}

#[test]
fn metrics_are_found_in_expressions() {
    let found = metrics_in(
        r#"max by (resource) (a{phase=~"Rewriting|Verifying", x="unknown_metric"}) == 1 unless on (resource) sum(rate(b_total[15m])) > 0 or vector(0)"#,
    );
    assert_eq!(Vec::from_iter(found), ["a", "b_total"]);
    assert!(is_known("exuvia_write_duration_seconds_bucket") && !is_known("exuvia_write_duration_seconds"));
}

async fn groups() -> Value {
    let rendered = Rendered::exuvia(NAMESPACE, &["--set", "prometheusRule.enabled=true"]).await;
    rendered.one("PrometheusRule")["spec"].clone()
}

#[tokio::test]
async fn alert_rules_are_valid_and_query_only_existing_metrics() {
    let spec = groups().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), spec.to_string()).unwrap();
    let said = promtool([
        "check".as_ref(),
        "rules".as_ref(),
        "--lint=all".as_ref(),
        "--lint-fatal".as_ref(),
        file.path().as_os_str(),
    ])
    .await
    .unwrap_or_else(|error| panic!("{error}"));
    let rules = spec["groups"][0]["rules"].as_array().unwrap();
    assert!(said.contains(&format!("{} rules found", rules.len())), "{said}");
    for rule in rules {
        for metric in metrics_in(rule["expr"].as_str().unwrap()) {
            assert!(is_known(&metric), "{metric} in {}", rule["alert"]);
        }
        for text in ["summary", "description"] {
            assert!(
                rule["annotations"][text].is_string(),
                "{text} of {}",
                rule["alert"]
            );
        }
    }
}

/// What is to be told, and to whom it is not: under promtool's own clock.
#[tokio::test]
#[allow(clippy::too_many_lines)] // a table
async fn alerts_fire_when_people_should_look_and_not_before() {
    let directory = tempfile::tempdir().unwrap();
    let mut rules = groups().await;
    // promtool would compare the alert's annotations as well; they are only for people.
    for rule in rules["groups"][0]["rules"].as_array_mut().unwrap() {
        rule.as_object_mut().unwrap().remove("annotations");
    }
    std::fs::write(directory.path().join("rules.json"), rules.to_string()).unwrap();
    let series = |series: &str, values: &str| json!({"series": series, "values": values});
    let fires = |at: &str, alert: &str, labels: Value| {
        let mut expected = json!({"exp_labels": labels});
        expected["exp_labels"]["severity"] = json!(severity(alert));
        json!({"eval_time": at, "alertname": alert, "exp_alerts": [expected]})
    };
    let silent = |at: &str, alert: &str| json!({"eval_time": at, "alertname": alert, "exp_alerts": []});
    let build_info = series(r#"exuvia_build_info{version="0.1.0"}"#, "1x200");
    let stalled = r#"exuvia_storage_stalled{resource="widgets.example.com",reason="Failures",instance="a"}"#;
    let remaining = r#"exuvia_storage_objects_remaining{resource="widgets.example.com",instance="a"}"#;
    let leads =
        |instance: &str| format!(r#"leader_election_master_status{{name="exuvia",instance="{instance}"}}"#);
    let errors = r#"controller_runtime_reconcile_errors_total{controller="storagemigration"}"#;
    let throttled = r#"exuvia_write_retries_total{class="throttled"}"#;
    let nothing: Vec<Value> = rules["groups"][0]["rules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| silent("2h", rule["alert"].as_str().unwrap()))
        .collect();
    let cases = json!([
        {
            "name": "a quiet operator",
            "input_series": [build_info, series(stalled, "0x200"), series(&leads("a"), "1x200"), series(&leads("b"), "0x200"),
                series(errors, "5x200"), series(throttled, "0+6x200")],
            "alert_rule_test": nothing,
        },
        {
            "name": "gone",
            "input_series": [series(r#"exuvia_build_info{version="0.1.0"}"#, "1x5 stale")],
            "alert_rule_test": [silent("10m", "ExuviaDown"), fires("30m", "ExuviaDown", json!({}))],
        },
        {
            "name": "nobody leads, then two do",
            "input_series": [build_info, series(&leads("a"), "0x30 1x60"), series(&leads("b"), "0x30 1x60")],
            "alert_rule_test": [
                silent("3m", "ExuviaNoLeader"), fires("20m", "ExuviaNoLeader", json!({})),
                silent("20m", "ExuviaTwoLeaders"), fires("50m", "ExuviaTwoLeaders", json!({})),
            ],
        },
        {
            "name": "stalled",
            "input_series": [build_info, series(&leads("a"), "1x200"), series(stalled, "1x200")],
            "alert_rule_test": [
                silent("10m", "ExuviaMigrationStalled"),
                fires("20m", "ExuviaMigrationStalled", json!({"resource": "widgets.example.com", "reason": "Failures"})),
            ],
        },
        {
            "name": "what a former leader still shows",
            "input_series": [build_info, series(&leads("a"), "0x200"), series(&leads("b"), "1x200"),
                series(stalled, "1x200"), series(remaining, "5x200")],
            "alert_rule_test": [silent("2h", "ExuviaMigrationStalled"), silent("2h", "ExuviaMigrationWithoutProgress")],
        },
        {
            "name": "works, then stands still; another has nothing left to do",
            "input_series": [build_info, series(&leads("a"), "1x200"), series(remaining, "2000-10x60 1400x140"),
                series(&remaining.replace("widgets", "gadgets"), "0x200")],
            "alert_rule_test": [
                silent("1h", "ExuviaMigrationWithoutProgress"),
                fires("2h", "ExuviaMigrationWithoutProgress", json!({"resource": "widgets.example.com"})),
            ],
        },
        {
            "name": "a datastore migration that is stalled, and one whose freeze lasts",
            "input_series": [build_info, series(&leads("a"), "1x200"),
                series(r#"exuvia_datastore_stalled{resource="move",reason="NotServed",instance="a"}"#, "1x200"),
                series(r#"exuvia_datastore_frozen_seconds{resource="move",instance="a"}"#, "0+60x200"),
                series(r#"exuvia_datastore_frozen_seconds{resource="other",instance="b"}"#, "0+60x200")],
            "alert_rule_test": [
                silent("10m", "ExuviaDatastoreMigrationStalled"),
                fires("20m", "ExuviaDatastoreMigrationStalled", json!({"resource": "move", "reason": "NotServed"})),
                silent("9m", "ExuviaSourceFrozenForLong"),
                fires("12m", "ExuviaSourceFrozenForLong", json!({"resource": "move"})),
            ],
        },
        {
            "name": "errors and throttling that do not end",
            "input_series": [build_info, series(errors, "0+1x200"), series(throttled, "0+120x200")],
            "alert_rule_test": [
                silent("20m", "ExuviaReconcileErrors"),
                fires("1h", "ExuviaReconcileErrors", json!({"controller": "storagemigration"})),
                fires("1h", "ExuviaThrottled", json!({})),
            ],
        },
    ]);
    let mut tests = cases;
    for case in tests.as_array_mut().unwrap() {
        case["interval"] = json!("1m");
    }
    let file = directory.path().join("tests.json");
    let suite = json!({"rule_files": ["rules.json"], "evaluation_interval": "1m", "tests": tests});
    std::fs::write(&file, suite.to_string()).unwrap();
    promtool(["test".as_ref(), "rules".as_ref(), file.as_os_str()])
        .await
        .unwrap_or_else(|error| panic!("{error}"));
}

fn severity(alert: &str) -> &'static str {
    match alert {
        "ExuviaTwoLeaders" => "critical",
        "ExuviaThrottled" => "info",
        _ => "warning",
    }
}

#[tokio::test]
async fn the_dashboard_queries_only_existing_metrics() {
    let rendered = Rendered::exuvia(NAMESPACE, &["--set", "grafanaDashboard.enabled=true"]).await;
    let config_map = rendered.one("ConfigMap");
    assert_eq!(config_map["metadata"]["labels"]["grafana_dashboard"], "1");
    let dashboard: Value = serde_json::from_str(config_map["data"]["exuvia.json"].as_str().unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut expressions: Vec<String> = Vec::new();
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{}", panel["title"]);
        let targets = panel["targets"].as_array();
        assert!(
            targets.is_some_and(|targets| !targets.is_empty()) || panel["type"] == "row",
            "{} shows nothing",
            panel["title"]
        );
        for target in targets.into_iter().flatten() {
            expressions.push(target["expr"].as_str().unwrap().to_owned());
        }
    }
    for annotation in dashboard["annotations"]["list"].as_array().unwrap() {
        expressions.push(annotation["expr"].as_str().unwrap().to_owned());
    }
    assert!(expressions.len() > 25, "{}", expressions.len());
    for expression in &expressions {
        for metric in metrics_in(expression) {
            assert!(is_known(&metric), "{metric} in {expression}");
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if let Some(query) = variable["definition"].as_str() {
            let metric = query
                .trim_start_matches("label_values(")
                .split(['{', ','])
                .next()
                .unwrap();
            assert!(is_known(metric), "{metric} in {query}");
        }
    }
    // promtool does not know Grafana's variables.
    let rules: Vec<Value> = expressions
        .iter()
        .enumerate()
        .map(|(index, expression)| {
            let expression = expression
                .replace("$__rate_interval", "5m")
                .replace("$__range", "1h");
            json!({"record": format!("panel:{index}"), "expr": expression})
        })
        .collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    let groups = json!({"groups": [{"name": "dashboard", "rules": rules}]});
    std::fs::write(file.path(), groups.to_string()).unwrap();
    promtool(["check".as_ref(), "rules".as_ref(), file.path().as_os_str()])
        .await
        .unwrap_or_else(|error| panic!("{error}"));
}
