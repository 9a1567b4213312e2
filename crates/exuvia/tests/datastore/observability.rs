//! Metrics: documented, and there.

use std::collections::BTreeSet;

use exuvia_api::DatastorePhase;

use crate::harness::*;

/// Metrics that are only there while a copy runs, or after something went wrong.
const SELDOM: [&str; 6] = [
    "exuvia_datastore_objects_remaining",
    "exuvia_datastore_objects_per_second",
    "exuvia_datastore_stalled",
    "exuvia_datastore_resource_errors_total",
    "exuvia_datastore_retries_total",
    "exuvia_datastore_frozen_seconds",
];

#[tokio::test]
async fn every_metric_is_documented_and_every_documented_metric_is_there() {
    let stage = Stage::new("seen", 4).await;
    stage.create(&stage.new, "w1", "red").await;
    stage.migrate(stage.spec()).await;
    stage.in_phase(DatastorePhase::Complete).await;
    let operator = &shared().await.operator;
    let phase = r#"exuvia_datastore_phase{resource="seen",phase="Complete"} 1"#;
    let metrics = until("the phase is shown", async || {
        let metrics = operator.get("/metrics").await.1;
        metrics.contains(phase).then_some(metrics)
    })
    .await;
    for phase in DatastorePhase::NAMES {
        let series = format!(r#"exuvia_datastore_phase{{resource="seen",phase="{phase}"}}"#);
        assert!(metrics.contains(&series), "{series}: {metrics}");
    }
    for series in [
        r#"exuvia_datastore_resources_total{kind="Widget",outcome="migrated"}"#,
        r#"exuvia_datastore_resources_total{kind="Widget",outcome="skipped"}"#,
        r#"exuvia_datastore_duration_seconds_count{resource="seen"} 1"#,
        r#"exuvia_datastore_type_duration_seconds_count{kind="Widget"}"#,
        r#"exuvia_datastore_step_duration_seconds_count{step="Copying"}"#,
    ] {
        assert!(metrics.contains(series), "{series}: {metrics}");
    }

    let shown: BTreeSet<String> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE exuvia_datastore_"))
        .filter_map(|line| line.split_once(' '))
        .map(|(name, kind)| match kind {
            "counter" => format!("exuvia_datastore_{name}_total"),
            _ => format!("exuvia_datastore_{name}"),
        })
        .collect();
    let page = include_str!("../../../../docs/metrics.md");
    let documented: BTreeSet<String> = page
        .lines()
        .filter(|line| line.starts_with("| `exuvia_datastore_"))
        .filter_map(|line| line.split('`').nth(1))
        .map(str::to_owned)
        .collect();
    let undocumented: Vec<_> = shown.difference(&documented).collect();
    assert!(undocumented.is_empty(), "docs/metrics.md lacks {undocumented:?}");
    let missing: Vec<_> = documented
        .difference(&shown)
        .filter(|name| !SELDOM.contains(&name.as_str()))
        .collect();
    assert!(missing.is_empty(), "not shown: {missing:?}\n{metrics}");
}
