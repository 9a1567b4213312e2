//! What can be seen from outside: metrics as documented, in a form that Prometheus takes.

use std::collections::BTreeSet;

use exuvia_api::Phase;

use crate::harness::*;

/// Metrics that are only there while a sweep runs, or after something went wrong.
const SELDOM: [&str; 5] = [
    "exuvia_storage_objects_remaining",
    "exuvia_storage_objects_per_second",
    "exuvia_storage_stalled",
    "exuvia_write_retries_total",
    "exuvia_watch_restarts_total",
];

#[tokio::test]
async fn every_metric_is_documented_and_every_documented_metric_is_there() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "seen.example.com", 5, true).await;
    // A lead that is lost on the way, as on a busy machine with a short lease, would cost the pass its duration.
    let operator = Operator::start(
        &control_plane,
        control_plane.admin(),
        "a",
        &["--lease-duration=30s"],
    );
    in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    let (code, text) = operator.get("/metrics").await;
    assert_eq!(code, 200);
    assert!(text.ends_with("# EOF\n"), "{text}");

    let suffix = |name: &str, kind: &str| match kind {
        "counter" => format!("{name}_total"),
        "info" => format!("{name}_info"),
        _ => name.to_owned(),
    };
    let shown: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|line| line.split_once(' '))
        .map(|(name, kind)| suffix(name, kind))
        .collect();
    let page = include_str!("../../../../docs/metrics.md");
    let documented: BTreeSet<String> = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .flat_map(|line| line.split('|').nth(1).unwrap().split('`').skip(1).step_by(2))
        .filter(|name| !name.starts_with("exuvia_datastore_")) // tests/datastore looks at these
        .map(str::to_owned)
        .collect();
    let undocumented: Vec<_> = shown.difference(&documented).collect();
    assert!(undocumented.is_empty(), "docs/metrics.md lacks {undocumented:?}");
    let missing: Vec<_> = documented
        .difference(&shown)
        .filter(|name| !SELDOM.contains(&name.as_str()))
        .collect();
    assert!(missing.is_empty(), "not shown: {missing:?}\n{text}");
}
