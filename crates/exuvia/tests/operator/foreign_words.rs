//! What a server or a proxy says instead of an answer: it is published and logged without values, and never in full.

use exuvia_api::{Phase, StorageMigrationStatus};
use exuvia_testenv::proxy::{Answer, Fault, Match, Rule};
use exuvia_testenv::until;
use serde_json::json;

use crate::harness::*;
use crate::oracle::start_behind;

/// A message of a server that quotes what an object holds.
const QUOTES: &str = "spec.token: Invalid value: \"CANARY-s3cret\": must not be empty";

/// The status of a migration at its end, and the operator's log, where each request for metrics is answered 502 with this.
async fn migrated_without_metrics(group: &str, body: String) -> (StorageMigrationStatus, String) {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, group, 3, true).await;
    let proxy = control_plane.proxy().await.unwrap();
    let metrics = Match::method(http::Method::GET).path("/metrics");
    let answer = Answer::status(502).text(body);
    proxy.inject(Rule::on(metrics).always().then(Fault::refuse(answer)));
    let operator = start_behind(&proxy, &control_plane, &[]);
    let status = in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    (status, operator.log())
}

#[tokio::test]
async fn an_error_page_instead_of_metrics_is_published_without_values() {
    let (status, log) = migrated_without_metrics("canary.example.com", format!("upstream: {QUOTES}")).await;
    let usage = status.blockers.iter().find(|blocker| blocker.holds == "Usage");
    let said = &usage.unwrap().message;
    assert!(said.contains("spec.token"), "what is not a value stays: {said}");
    let published = serde_json::to_string(&status).unwrap();
    assert!(!published.contains("CANARY"), "{published}");
    assert!(!log.contains("CANARY"), "{log}");
}

#[tokio::test]
async fn a_large_error_page_instead_of_metrics_does_not_keep_a_migration_from_its_end() {
    let page = format!("<html>{}</html>", "x".repeat(2 * 1024 * 1024));
    let (status, log) = migrated_without_metrics("large.example.com", page).await;
    let longest = status.blockers.iter().map(|blocker| blocker.message.len()).max();
    assert!(longest.is_some_and(|bytes| bytes <= 1024), "{longest:?}");
    let longest = log.lines().map(str::len).max();
    assert!(longest.is_some_and(|bytes| bytes <= 8192), "{longest:?}");
}

#[tokio::test]
async fn what_a_list_fails_with_is_logged_without_values() {
    let control_plane = control_plane().await;
    let proxy = control_plane.proxy().await.unwrap();
    let message =
        format!("conversion webhook for exuvia.dev/v1beta1, Kind=StorageMigration failed: {QUOTES}");
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500, "reason": "InternalError",
        "message": message});
    let lists = Match::method(http::Method::GET).resource("storagemigrations");
    let failure = Fault::refuse(Answer::status(500).json(&body));
    proxy.inject(Rule::on(lists).always().then(failure));
    let operator = start_behind(&proxy, &control_plane, &[]);
    until("the failure is in the log", async || {
        operator.log().contains("watch failed; retrying")
    })
    .await;
    let log = operator.log();
    assert!(log.contains("conversion webhook for exuvia.dev/v1beta1"), "{log}");
    assert!(!log.contains("CANARY"), "{log}");
}
