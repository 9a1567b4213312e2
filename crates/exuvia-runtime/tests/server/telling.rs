//! What is told: events, and what the writer's metrics say.

use exuvia_runtime::{EventKind, Events, Metrics};
use exuvia_testenv::proxy::{Fault, Match, Rule};
use exuvia_write::{Redacted, Writer};
use k8s_openapi::api::{
    core::v1::{ConfigMap, ObjectReference},
    events::v1::Event,
};
use kube::{Api, Client, api::ListParams};

use crate::{Stage, open_metrics::assert_open_metrics, soon};

fn about(kind: &str, name: &str, namespace: Option<&str>) -> ObjectReference {
    ObjectReference {
        api_version: Some("example.com/v1".to_owned()),
        kind: Some(kind.to_owned()),
        name: Some(name.to_owned()),
        namespace: namespace.map(str::to_owned),
        uid: Some(format!("uid-of-{name}")),
        ..ObjectReference::default()
    }
}

async fn events_about(client: &Client, name: &str) -> Vec<Event> {
    let api: Api<Event> = Api::all(client.clone());
    let list = api.list(&ListParams::default()).await.unwrap();
    let about = |event: &Event| event.regarding.as_ref().and_then(|object| object.name.clone());
    list.into_iter()
        .filter(|event| about(event).as_deref() == Some(name))
        .collect()
}

#[tokio::test]
async fn a_note_of_any_length_becomes_an_event() {
    let stage = Stage::bare("note").await;
    let events = Events::new(
        stage.direct.clone(),
        Writer::named("teller"),
        "teller-0".to_owned(),
    );
    let widget = about("Widget", "long-noted", Some("kube-system"));
    let note = Redacted::ours("größer als erlaubt; ".repeat(500));
    events
        .publish(&widget, EventKind::Warning, "Stalled", "Migrate", &note)
        .await;
    let published = events_about(&stage.direct, "long-noted").await;
    let event = published.first().unwrap();
    let text = event.note.clone().unwrap();
    assert!(
        text.len() < 1024 && text.len() > 400 && text.ends_with('…'),
        "{}",
        text.len()
    );
    assert_eq!(event.metadata.namespace.as_deref(), Some("kube-system"));
    assert_eq!(event.reporting_controller.as_deref(), Some("teller"));
    assert_eq!(event.reporting_instance.as_deref(), Some("teller-0"));
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert_eq!(
        (event.reason.as_deref(), event.action.as_deref()),
        (Some("Stalled"), Some("Migrate"))
    );
}

#[tokio::test]
async fn what_is_published_twice_or_whose_answer_is_lost_is_one_event() {
    let stage = Stage::bare("twice").await;
    let crd = about("CustomResourceDefinition", "twice:told", None);
    let creates = Match::writes().resource("events");
    stage
        .proxy
        .inject(Rule::on(creates).nth(1).then(Fault::DropAnswer));
    for instance in ["before", "after"] {
        let events = Events::new(
            stage.proxied.clone(),
            Writer::named("teller"),
            instance.to_owned(),
        );
        events
            .publish(&crd, EventKind::Normal, "Migrated", "Migrate", "all of it")
            .await;
    }
    let told = events_about(&stage.direct, "twice:told").await;
    assert_eq!(told.len(), 1);
    assert_eq!(
        told[0].metadata.namespace.as_deref(),
        Some("default"),
        "it has no namespace itself"
    );
    assert_eq!(told[0].reporting_instance.as_deref(), Some("before"));
    let events = Events::new(stage.direct.clone(), Writer::named("teller"), "after".to_owned());
    events
        .publish(&crd, EventKind::Normal, "Migrated", "Migrate", "all of it again")
        .await;
    assert_eq!(events_about(&stage.direct, "twice:told").await.len(), 2);
}

#[tokio::test]
async fn an_event_that_cannot_be_published_fails_nobody() {
    let stage = Stage::bare("unpublished").await;
    let events = Events::new(stage.proxied.clone(), Writer::named("teller"), String::new());
    let homeless = about("Widget", "homeless", Some("no-such-namespace"));
    soon(events.publish(&homeless, EventKind::Normal, "R", "A", "n")).await;
    stage
        .proxy
        .inject(Rule::on(Match::any()).then(Fault::refuse(403)));
    soon(events.publish(&about("Widget", "denied", None), EventKind::Normal, "R", "A", "n")).await;
    assert!(events_about(&stage.direct, "denied").await.is_empty());
}

#[tokio::test]
async fn writes_are_counted_by_outcome_and_retries_by_their_cause() {
    let stage = Stage::bare("counted").await;
    let metrics = Metrics::new("test");
    let writer = Writer::named("counter").observe(metrics.observe_writes());
    let api: Api<ConfigMap> = Api::namespaced(stage.proxied.clone(), "default");
    let mut map = ConfigMap::default();
    map.metadata.name = Some("counted".to_owned());
    let creates = Match::writes().resource("configmaps");
    stage
        .proxy
        .inject(Rule::on(creates).times(2).then(Fault::refuse(503)));
    let map = writer.create(&api, &map).await.unwrap();
    writer.patch(&api, &map, |_| {}).await.unwrap();
    let mut pretended = ConfigMap::default();
    pretended.metadata.name = Some("pretended".to_owned());
    writer.dry_run().create(&api, &pretended).await.unwrap();
    writer
        .gate(|_| Err("no".to_owned()))
        .create(&api, &map)
        .await
        .unwrap_err();
    let text = metrics.encode();
    assert_open_metrics(&text);
    for line in [
        r#"exuvia_write_requests_total{verb="create",resource="configmaps",outcome="transient"} 2"#,
        r#"exuvia_write_requests_total{verb="create",resource="configmaps",outcome="written"} 1"#,
        r#"exuvia_write_requests_total{verb="create",resource="configmaps",outcome="gated"} 1"#,
        r#"exuvia_write_requests_total{verb="patch",resource="configmaps",outcome="unsent"} 1"#,
        r#"exuvia_write_requests_total{verb="create_dry_run",resource="configmaps",outcome="written"} 1"#,
        r#"exuvia_write_retries_total{class="transient"} 2"#,
        r#"exuvia_write_duration_seconds_count{verb="create"} 3"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}
