//! Whether a write from before the freeze may still be under way: by gauges, and by time where they cannot be had.

use std::sync::{Mutex, mpsc};
use std::time::Duration;

use exuvia_datastore::freeze::{Drain, Drained, Form};
use exuvia_runtime::servers::ApiServers;
use exuvia_testenv::webhook::{Admission, Endpoint, WebhookServer};
use exuvia_testenv::{ControlPlane, until};
use exuvia_write::Writer;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::flowcontrol::v1::FlowSchema;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::requests::{MERGE, Write, at};
use crate::{Stage, control_plane, install_migrations};

/// A validating webhook for the source: it is asked after the policies are.
async fn slow_webhook(control_plane: &ControlPlane, stage: &Stage) -> WebhookServer {
    let webhooks = control_plane.webhooks().await.unwrap();
    let group = stage.source.group();
    let mut configuration = webhooks.validating_in_selected_namespaces(group);
    configuration["webhooks"][0]["timeoutSeconds"] = json!(30); // the longest: a busy machine must not end the write
    let configuration: ValidatingWebhookConfiguration = serde_json::from_value(configuration).unwrap();
    let api = Api::all(stage.admin.clone());
    api.create(&PostParams::default(), &configuration).await.unwrap();
    until("the webhook is asked", async || {
        recolor(&stage.other, group, "green").await;
        webhooks.calls(Endpoint::Validate) > 0
    })
    .await;
    webhooks
}

async fn recolor(client: &Client, group: &str, color: &str) -> u16 {
    let write = Write::new("recolor", "PATCH", at("v1", "w")).body(MERGE, json!({"spec": {"color": color}}));
    write.send(client, group, "kubectl").await.code
}

/// A write that passed the policies before the freeze, held by the webhook until it is let go.
async fn held_write(
    control_plane: &ControlPlane,
    stage: &Stage,
    writer: Client,
) -> (JoinHandle<u16>, mpsc::Sender<()>, WebhookServer) {
    let webhooks = slow_webhook(control_plane, stage).await;
    let (let_go, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    webhooks.on_validate(Admission::by(move |_| {
        let _ = held.lock().unwrap().recv();
        Admission::Allow
    }));
    let before = webhooks.calls(Endpoint::Validate);
    let group = stage.source.group().to_owned();
    let write = tokio::spawn(async move { recolor(&writer, &group, "late").await });
    webhooks.wait_for_calls(Endpoint::Validate, before + 1).await;
    (write, let_go, webhooks)
}

async fn drained_after_the_write(name: &str, by_master: bool) {
    let control_plane = control_plane().await;
    let stage = Stage::set(name).await;
    stage.widget("w", json!({})).await;
    let freeze = stage.freeze().gauges_count_after(Duration::ZERO);
    assert!(freeze.count_writers().await.unwrap());
    let drained = freeze.drained(Drain::Auto).await.unwrap();
    let is_said =
        matches!(&drained, Drained::NotYet { why } if why.contains("does not enforce the source policy"));
    assert!(is_said, "nothing is frozen: {drained:?}");
    let writer = if by_master {
        stage.admin.clone()
    } else {
        stage.other.clone()
    };
    let (write, let_go, webhooks) = held_write(control_plane, &stage, writer).await;
    stage.set_and_wait(&freeze, Form::Frozen, false).await;

    let what = if by_master {
        "besides those that are counted"
    } else {
        "works on 1 write to the source"
    };
    until("the write is counted", async || {
        match freeze.drained(Drain::Auto).await.unwrap() {
            Drained::WaitUntil { why, .. } if why.contains(what) => Ok(()),
            drained => {
                assert!(
                    !write.is_finished(),
                    "the write ended before it was looked for: {drained:?}"
                );
                Err(drained)
            }
        }
    })
    .await;
    for _ in 0..5 {
        assert!(
            !freeze.drained(Drain::Auto).await.unwrap().is_over(),
            "a write is under way"
        );
    }
    assert!(!write.is_finished());
    let_go.send(()).unwrap();
    assert_eq!(write.await.unwrap(), 200, "it commits after every server denied");
    drop((let_go, webhooks)); // nobody else is held
    let live = stage.source.api(&stage.admin, "v1").get("w").await.unwrap();
    assert_eq!(live.data["spec"]["color"], "late");
    until("the gauges prove it", async || {
        let drained = freeze.drained(Drain::Auto).await.unwrap();
        if drained == Drained::ProvenByGauges {
            Ok(())
        } else {
            Err(drained)
        }
    })
    .await;
    freeze.remove().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_passed_before_the_freeze_is_seen_until_it_ends() {
    drained_after_the_write("late", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_of_an_administrator_is_seen_although_it_bypasses_the_count() {
    drained_after_the_write("master", true).await;
}

#[tokio::test]
async fn without_a_count_of_its_own_the_drain_takes_its_time() {
    let stage = Stage::set("uncounted").await;
    let freeze = stage.freeze().gauges_count_after(Duration::ZERO);
    stage.set_and_wait(&freeze, Form::Frozen, false).await;
    let why = |drained: Drained| match drained {
        Drained::WaitUntil { why, .. } => why,
        drained => panic!("{drained:?}"),
    };
    let said = why(freeze.drained(Drain::Auto).await.unwrap());
    assert!(said.contains("does not exist"), "{said}");
    assert_eq!(
        freeze.drained(Drain::Fixed(Duration::ZERO)).await.unwrap(),
        Drained::WaitedOut
    );

    // Counted, then somebody takes the schema away.
    assert!(freeze.count_writers().await.unwrap());
    until("the gauges prove it", async || {
        freeze.drained(Drain::Auto).await.unwrap() == Drained::ProvenByGauges
    })
    .await;
    freeze.remove().await.unwrap();
    until("it says that the freeze is gone", async || {
        matches!(freeze.drained(Drain::Auto).await.unwrap(), Drained::NotYet { .. })
    })
    .await;
}

#[tokio::test]
async fn a_freeze_that_was_gone_for_a_moment_starts_over() {
    use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
    let stage = Stage::set("interrupted").await;
    let freeze = stage.freeze();
    stage.set_and_wait(&freeze, Form::Frozen, false).await;
    let at_once = Drain::Fixed(Duration::ZERO);
    assert_eq!(freeze.drained(at_once).await.unwrap(), Drained::WaitedOut);
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(stage.admin.clone());
    let name = format!("exuvia-{}-source", stage.scope.uid);
    bindings.delete(&name, &DeleteParams::default()).await.unwrap();
    freeze.set(Form::Frozen, false).await.unwrap();
    // Every server denies again, and did before: what passed in between is not known.
    until("the gap is noticed", async || {
        match freeze.drained(at_once).await.unwrap() {
            Drained::NotYet { why } if why.contains("was not seen to deny") => Ok(()),
            drained => Err(drained),
        }
    })
    .await;
    stage.set_and_wait(&freeze, Form::Frozen, false).await;
    assert_eq!(freeze.drained(at_once).await.unwrap(), Drained::WaitedOut);
    freeze.remove().await.unwrap();
}

#[tokio::test]
async fn a_schema_is_too_young_to_count_at_first() {
    let stage = Stage::set("young").await;
    let freeze = stage.freeze();
    assert!(freeze.count_writers().await.unwrap());
    stage.set_and_wait(&freeze, Form::Frozen, false).await;
    until("it says that it is too young", async || {
        match freeze.drained(Drain::Auto).await.unwrap() {
            Drained::WaitUntil { why, .. } if why.contains("less than 94 s") => Ok(()),
            drained => Err(drained),
        }
    })
    .await;
    let schemas: Api<FlowSchema> = Api::all(stage.admin.clone());
    schemas
        .delete(&format!("exuvia-{}", stage.scope.uid), &DeleteParams::default())
        .await
        .unwrap();
    freeze.remove().await.unwrap();
}

#[tokio::test]
async fn where_metrics_may_not_be_read_the_drain_takes_its_time() {
    let stage = Stage::set("blind").await;
    let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    let us = control_plane()
        .await
        .user_with_rules("exuvia-without-metrics", &rules)
        .await
        .unwrap();
    let client = us.client().unwrap();
    let widgets = stage.source.api(&client, "v1");
    until("the rights are in force", async || {
        widgets.list(&ListParams::default()).await
    })
    .await;
    let mut scope = stage.scope.clone();
    us.user().clone_into(&mut scope.username);
    let servers = ApiServers::new(&us.config().unwrap(), &stage.servers, &[]);
    let freeze = exuvia_datastore::freeze::Freeze::new(client, &Writer::named("exuvia"), servers, scope)
        .gauges_count_after(Duration::ZERO);
    assert!(freeze.count_writers().await.unwrap());
    stage.set_and_wait(&freeze, Form::Frozen, false).await;
    let drained = freeze.drained(Drain::Auto).await.unwrap();
    assert!(
        matches!(&drained, Drained::WaitUntil { why, .. } if why.contains("/metrics")),
        "{drained:?}"
    );
    freeze.remove().await.unwrap();
}

#[tokio::test]
async fn a_member_of_system_masters_proves_nothing_by_gauges() {
    let stage = Stage::set("admin").await;
    let mut scope = stage.scope.clone();
    scope.username = "admin".to_owned();
    let admin = control_plane().await.admin();
    let servers = ApiServers::new(&admin.config().unwrap(), &stage.servers, &[]);
    let writer = Writer::named("exuvia");
    let freeze = exuvia_datastore::freeze::Freeze::new(stage.admin.clone(), &writer, servers, scope)
        .gauges_count_after(Duration::ZERO);
    // So there is nothing to wait for.
    assert!(!freeze.count_writers().await.unwrap());
    stage.set_and_wait(&freeze, Form::Frozen, false).await;
    let drained = freeze.drained(Drain::Auto).await.unwrap();
    assert!(
        matches!(&drained, Drained::WaitUntil { why, .. } if why.contains("system:masters")),
        "{drained:?}"
    );
    freeze.remove().await.unwrap();
}

#[tokio::test]
async fn a_server_that_stands_still_after_it_denied_is_not_drained() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let second = control_plane.another_apiserver_on_host("host-b").await.unwrap();
    install_migrations(&control_plane.client().unwrap()).await;
    let mut stage = Stage::on(&control_plane, "asleep").await;
    stage.servers.push(second.url().parse().unwrap());
    let freeze = stage.freeze();
    stage.set_and_wait(&freeze, Form::Frozen, false).await;
    let at_once = Drain::Fixed(Duration::ZERO);
    assert_eq!(freeze.drained(at_once).await.unwrap(), Drained::WaitedOut);
    second.process().pause().unwrap();
    let drained = freeze.drained(at_once).await.unwrap();
    assert!(
        matches!(&drained, Drained::NotYet { why } if why.contains("did not answer")),
        "{drained:?}"
    );
    second.process().resume().unwrap();

    // Asked alone, the first is not all: the second is awake as far as its Lease tells, and gets more time.
    stage.servers.pop();
    let alone = stage.freeze();
    until("the first denies", async || {
        alone.probe(Form::Frozen).await.unwrap().all_asked_deny()
    })
    .await;
    let drained = alone.drained(Drain::Auto).await.unwrap();
    assert!(!drained.is_over(), "{drained:?}");
}
