//! Writes that are under way when the freeze begins: a slow webhook holds them, or an API server that stands still.

use std::time::Duration;

use exuvia_api::DatastorePhase;
use exuvia_datastore::Engine;
use exuvia_datastore::protocol::{Hold, NextStep, Step};
use exuvia_runtime::machine::{Ended, Machine};
use exuvia_runtime::servers::ApiServers;
use exuvia_testenv::webhook::{Endpoint, WebhookServer};
use exuvia_testenv::{Access, Widgets, until};
use exuvia_write::Writer;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::{Stage, control_plane, start, up_to};

/// So long the webhook thinks about a write.
const SLOW: Duration = Duration::from_secs(8);

/// Somebody who may do everything and whose requests are counted, which an administrator's are not.
async fn somebody(stage: &Stage, name: &str) -> Access {
    let anything = json!([
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
        {"nonResourceURLs": ["*"], "verbs": ["*"]},
    ]);
    let access = control_plane()
        .await
        .user_with_rules(name, &anything)
        .await
        .unwrap();
    let widgets = stage.old.api(&access.client().unwrap(), "v1");
    until("the rights are in force", async || {
        widgets.list(&ListParams::default()).await.is_ok()
    })
    .await;
    access
}

/// It is asked after the policies are.
async fn slow_webhook(stage: &Stage) -> WebhookServer {
    slow_webhook_of(stage, &stage.old).await
}

async fn slow_webhook_of(stage: &Stage, widgets: &Widgets) -> WebhookServer {
    let webhooks = control_plane().await.webhooks().await.unwrap();
    let mut configuration = webhooks.validating_in_selected_namespaces(widgets.group());
    configuration["webhooks"][0]["timeoutSeconds"] = json!(30);
    let configuration: ValidatingWebhookConfiguration = serde_json::from_value(configuration).unwrap();
    let api = Api::all(stage.client.clone());
    api.create(&PostParams::default(), &configuration).await.unwrap();
    let (rehearsed, green) = (
        PatchParams::default().dry_run(),
        json!({"spec": {"color": "green"}}),
    );
    until("the webhook is asked", async || {
        let patch = Patch::Merge(&green);
        stage.api(widgets).patch("w0", &rehearsed, &patch).await.unwrap();
        webhooks.calls(Endpoint::Validate) > 0
    })
    .await;
    webhooks.delay(Endpoint::Validate, SLOW);
    webhooks
}

async fn recolor(client: &Client, stage: &Stage, color: &str) -> Result<(), kube::Error> {
    let widgets: Api<kube::api::DynamicObject> =
        Api::namespaced_with(client.clone(), &stage.name, &stage.old.resource("v1"));
    let patch = Patch::Merge(json!({"spec": {"color": color}}));
    widgets
        .patch("w0", &PatchParams::default(), &patch)
        .await
        .map(drop)
}

/// A write that passes the policies just before they are there, and commits seconds later, is in the target.
async fn moves_what_commits_late(stage: &Stage, mut engine: Engine, writer: Client) {
    let webhooks = slow_webhook(stage).await;
    up_to(&mut engine, Step::Lock).await;
    let before = webhooks.calls(Endpoint::Validate);
    let late = recolor(&writer, stage, "late");
    let migrated = async {
        webhooks.wait_for_calls(Endpoint::Validate, before + 1).await;
        stage.drive(&mut engine).await
    };
    let (written, ended) = tokio::join!(late, migrated);
    written.expect("it passed the policies");
    assert_eq!(ended, Ended::Done);
    assert_eq!(stage.phase().await, DatastorePhase::Complete);
    let target = stage.api(&stage.new).get("w0").await.unwrap();
    assert_eq!(target.data["spec"]["color"], "late");
}

/// An engine that asks the API server for its gauges, and a writer whom they count.
async fn counted(stage: &Stage, in_mode: &str) -> (Engine, Client) {
    let names = ["us", "writer"].map(|name| format!("{}-{name}", stage.name));
    let (us, writer) = tokio::join!(somebody(stage, &names[0]), somebody(stage, &names[1]));
    let mut spec = stage.spec();
    spec["mode"] = json!(in_mode);
    spec["freeze"] = json!({"drain": "Auto", "maxDuration": "10m"});
    let migration = stage.migration(spec).await;
    let url = control_plane().await.apiserver().url().parse().unwrap();
    let servers = ApiServers::new(&us.config().unwrap(), &[url], &[]);
    // Time alone would take an hour.
    let engine = Engine::with_servers(
        servers,
        us.client().unwrap(),
        &Writer::named("exuvia-datastore"),
        migration,
    )
    .drains_within(Duration::from_secs(3600), Duration::ZERO)
    .writes_end_within(Duration::from_millis(100));
    (engine, writer.client().unwrap())
}

#[tokio::test]
async fn the_gauges_of_every_server_end_the_drain_when_the_last_write_has_committed() {
    for (name, in_mode) in [("gauges", "FreezeAndCopy"), ("sync-gauges", "SyncThenFreeze")] {
        let stage = Stage::new(name, 2).await;
        let (engine, writer) = counted(&stage, in_mode).await;
        Box::pin(moves_what_commits_late(&stage, engine, writer)).await;
    }
}

/// Copies that exist before the freeze can be written until it begins, and such a write may be under way.
#[tokio::test]
async fn a_write_to_a_copy_that_is_under_way_is_found_before_the_commit() {
    let stage = Stage::new("sync-copy-write", 2).await;
    let (mut engine, writer) = counted(&stage, "SyncThenFreeze").await;
    up_to(&mut engine, Step::Lock).await;
    let webhooks = slow_webhook_of(&stage, &stage.new).await;
    let before = webhooks.calls(Endpoint::Validate);
    let copies: Api<DynamicObject> = Api::namespaced_with(writer, &stage.name, &stage.new.resource("v1"));
    let theirs = json!({"spec": {"color": "theirs"}});
    let (params, patch) = (PatchParams::default(), Patch::Merge(&theirs));
    let migrated = async {
        webhooks.wait_for_calls(Endpoint::Validate, before + 1).await;
        let ended = stage.drive(&mut engine).await;
        webhooks.delay(Endpoint::Validate, Duration::ZERO);
        ended
    };
    let (written, ended) = tokio::join!(copies.patch("w0", &params, &patch), migrated);
    written.expect("it passed the policies");
    assert_eq!(ended, Ended::Held(Hold::Conflicts));
    let left = stage.all(&stage.new).await;
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].data["spec"]["color"], "theirs");
}

/// No API server is known that could be asked itself, so nothing is known of its gauges.
#[tokio::test]
async fn where_no_gauge_can_be_read_time_ends_the_drain() {
    let stage = Stage::new("bytime", 2).await;
    let writer = somebody(&stage, "bytime-writer").await;
    let mut spec = stage.spec();
    spec["freeze"] = json!({"drain": "Auto", "maxDuration": "10m"});
    let migration = stage.migration(spec).await;
    // Longer than the webhook takes: that is what the 34 s are, for an API server.
    let engine = stage
        .engine_of_unlisted(&migration)
        .drains_within(SLOW + Duration::from_secs(2), Duration::ZERO);
    Box::pin(moves_what_commits_late(&stage, engine, writer.client().unwrap())).await;
}

/// PITFALLS D11: an API server that stood still lets writes pass until it has caught up.
#[tokio::test]
async fn nothing_is_copied_before_a_server_that_stands_still_refuses_too() {
    let control_plane = start().await;
    let second = control_plane.another_apiserver_on_host("host-b").await.unwrap();
    let stage = Stage::on(&control_plane, "standstill", 2).await;
    let through_second = second.client().unwrap();
    until("the second server serves the kind", async || {
        recolor(&through_second, &stage, "blue").await.is_ok()
    })
    .await;
    let migration = stage.migration(stage.spec()).await;
    let config = control_plane.admin().config().unwrap();
    let servers = [control_plane.apiserver().url(), second.url()].map(|url| url.parse().unwrap());
    let mut engine = Engine::with_servers(
        ApiServers::new(&config, &servers, &[]),
        stage.client.clone(),
        &Writer::named("exuvia-datastore"),
        migration,
    )
    .writes_end_within(Duration::from_millis(100));
    up_to(&mut engine, Step::Lock).await;
    second.process().pause().unwrap();
    // The first server refuses soon. What is next stays the probe, however often it is asked.
    let mut asked = 0;
    until("it has been asked three times in vain", async || {
        match engine.next().await.map_err(|error| error.to_string())? {
            NextStep::Do(Step::Probe) => {
                engine
                    .carry_out(Step::Probe)
                    .await
                    .map_err(|error| error.to_string())?;
                let message = engine.message().map(ToString::to_string).unwrap_or_default();
                asked += usize::from(message.contains("did not answer"));
            }
            NextStep::Do(step @ (Step::Lock | Step::SaveFlags | Step::SetFlags)) => {
                engine.carry_out(step).await.map_err(|error| error.to_string())?;
            }
            other => panic!("{other:?} while a server stands still"),
        }
        if asked < 3 {
            return Err(format!("asked {asked} times"));
        }
        Ok(())
    })
    .await;
    assert!(stage.all(&stage.new).await.is_empty());
    second.process().resume().unwrap();
    // Until it has caught up it takes writes: each that it acknowledges is in the target.
    let writing = async {
        let mut acknowledged = "blue".to_owned();
        for number in 0.. {
            let color = format!("late-{number}");
            match recolor(&through_second, &stage, &color).await {
                Ok(()) => acknowledged = color,
                Err(kube::Error::Api(status)) if status.code == 403 => break,
                Err(error) => panic!("neither written nor refused: {error}"),
            }
        }
        acknowledged
    };
    let (acknowledged, ended) = tokio::join!(writing, stage.drive(&mut engine));
    assert_eq!(ended, Ended::Done);
    let target = stage.api(&stage.new).get("w0").await.unwrap();
    assert_eq!(target.data["spec"]["color"], acknowledged.as_str());
}
