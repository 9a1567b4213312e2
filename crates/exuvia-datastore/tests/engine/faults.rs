//! An API server that refuses, fails, forgets to answer or throttles: the end is the same.

use exuvia_api::DatastorePhase;
use exuvia_datastore::protocol::{Hold, Step};
use exuvia_runtime::machine::Ended;
use exuvia_testenv::proxy::{Answer, Fault, Match, Rule};
use http::Method;
use kube::api::PostParams;
use serde_json::json;

use crate::{Stage, control_plane, owned_by, up_to};

/// A migration of an owner, its dependent and a third object through a proxy with these rules; `true` once each rule struck.
async fn moves_through(name: &str, rules: Vec<Rule>) {
    let stage = Stage::new(name, 2).await;
    let owner = stage.api(&stage.old).get("w0").await.unwrap();
    let mut dependent = stage.old.widget("v1", "dependent");
    dependent.metadata.namespace = Some(stage.name.clone());
    dependent.metadata.owner_references = Some(vec![owned_by(&owner)]);
    stage
        .api(&stage.old)
        .create(&PostParams::default(), &dependent)
        .await
        .unwrap();
    stage
        .merge_status(&stage.old, "w1", json!({"status": {"ready": 4}}))
        .await;
    stage
        .config_map("owned", &[owned_by(&owner)], json!({"kept": "yes"}))
        .await;
    let proxy = control_plane().await.proxy().await.unwrap();
    let mut spec = stage.spec();
    spec["mappings"][0]["status"] = json!("Copy");
    let migration = stage.migration(spec).await;
    let struck: Vec<_> = rules.into_iter().map(|rule| proxy.inject(rule)).collect();
    let mut engine = stage.engine_by(&proxy.client().unwrap(), &migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert!(struck.iter().all(|rule| rule.applied() > 0), "{struck:?}");
    assert_eq!(stage.phase().await, DatastorePhase::Complete);
    let targets = stage.all(&stage.new).await;
    assert_eq!(targets.len(), 3);
    let [dependent, first, second] = &targets[..] else {
        panic!("{targets:?}");
    };
    assert_eq!(dependent.metadata.owner_references, Some(vec![owned_by(first)]));
    assert_eq!(second.data["status"]["ready"], 4);
    let map = stage.config_maps().get("owned").await.unwrap();
    assert_eq!(map.metadata.owner_references, Some(vec![owned_by(first)]));
    for target in &targets {
        let annotations = target.metadata.annotations.clone().unwrap_or_default();
        assert!(!annotations.contains_key(exuvia_api::MIGRATION_UID_ANNOTATION));
    }
    let status = stage.read().await.status.unwrap();
    assert!(status.undo.is_none());
    let progress = status.progress.unwrap();
    assert_eq!((progress.total, progress.conflicts), (3, 0));
}

/// Writes that store something, to these resources.
fn writes(resource: &str) -> Match {
    Match::writes()
        .resource(resource)
        .except(Match::any().query("dryRun="))
}

fn lists(stage: &str) -> Match {
    Match::method(Method::GET).path(format!("/apis/old.{stage}.dev/v1/widgets"))
}

#[tokio::test]
async fn a_server_that_throttles_is_left_alone_for_a_while() {
    let throttled = || Fault::refuse(Answer::status(429).retry_after(1));
    moves_through(
        "fault429",
        vec![
            Rule::on(writes("widgets")).times(3).then(throttled()),
            Rule::on(lists("fault429")).times(2).then(throttled()),
            Rule::on(writes("validatingadmissionpolicies"))
                .nth(2)
                .then(throttled()),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_server_that_fails_is_asked_again() {
    moves_through(
        "fault500",
        vec![
            Rule::on(writes("widgets")).times(4).then(Fault::refuse(500)),
            Rule::on(lists("fault500")).times(4).then(Fault::refuse(500)),
            Rule::on(Match::method(Method::GET).path("/apis/old.fault500.dev/v1/namespaces/*"))
                .times(6)
                .then(Fault::refuse(500)),
            Rule::on(writes("datastoremigrations"))
                .nth(3)
                .times(2)
                .then(Fault::refuse(500)),
            Rule::on(writes("configmaps")).times(2).then(Fault::refuse(500)),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_counts_once() {
    moves_through(
        "fault504",
        vec![
            Rule::on(writes("widgets")).then(Fault::replace(504)).times(4),
            Rule::on(writes("datastoremigrations"))
                .nth(2)
                .times(3)
                .then(Fault::replace(504)),
            Rule::on(writes("validatingadmissionpolicybindings"))
                .times(2)
                .then(Fault::ResetAnswer),
            Rule::on(writes("configmaps")).times(1).then(Fault::replace(504)),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_conflict_is_looked_into() {
    moves_through(
        "fault409",
        vec![
            Rule::on(Match::method(Method::PATCH).resource("widgets"))
                .times(3)
                .then(Fault::refuse(409)),
            Rule::on(
                Match::method(Method::PATCH)
                    .resource("datastoremigrations")
                    .subresource("status"),
            )
            .nth(2)
            .times(2)
            .then(Fault::refuse(409)),
            Rule::on(writes("configmaps")).times(1).then(Fault::refuse(409)),
        ],
    )
    .await;
}

/// A list that expires or breaks off in the middle is not the whole list.
#[tokio::test]
async fn a_list_that_expires_or_breaks_off_is_read_again() {
    moves_through(
        "fault410",
        vec![
            Rule::on(lists("fault410")).times(2).then(Fault::refuse(410)),
            Rule::on(lists("fault410"))
                .nth(4)
                .times(2)
                .then(Fault::Truncate(200)),
            Rule::on(lists("fault410")).nth(7).then(Fault::DropAnswer),
            Rule::on(Match::method(Method::GET).path("/apis/new.fault410.dev/v1/widgets"))
                .times(2)
                .then(Fault::Truncate(150)),
        ],
    )
    .await;
}

/// A source that cannot be listed is not an empty one: nothing is committed, and the freeze ends when it may not last longer.
#[tokio::test]
async fn a_source_that_cannot_be_listed_under_the_freeze_is_never_taken_for_empty() {
    let stage = Stage::new("unlisted", 2).await;
    let proxy = control_plane().await.proxy().await.unwrap();
    let mut spec = stage.spec();
    spec["freeze"]["maxDuration"] = json!("20s");
    let migration = stage.migration(spec).await;
    let mut engine = stage.engine_by(&proxy.client().unwrap(), &migration);
    up_to(&mut engine, Step::Copy).await;
    let broken = proxy.inject(
        Rule::on(lists("unlisted"))
            .always()
            .then(Fault::refuse(Answer::status(403))),
    );
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Failed));
    assert!(broken.applied() > 0);
    let status = stage.read().await.status.unwrap();
    assert!(status.message.contains("maxDuration"), "{}", status.message);
    assert_eq!(stage.all(&stage.old).await.len(), 2);
    assert!(stage.all(&stage.new).await.is_empty());
    stage.thawed().await;
}
