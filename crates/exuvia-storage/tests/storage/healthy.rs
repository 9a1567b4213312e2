//! Clusters that look as if something were wrong: healthy ones, in which a migration must end without an accusation, and one
//! with a server asleep of which nobody knows what it does next.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use exuvia_storage::{End, Options, Verify};
use exuvia_testenv::oracle::History;
use exuvia_testenv::proxy::{Match, Rule};
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::Bench;
use crate::obstacles::installed_with;

fn manager(name: &str) -> PatchParams {
    PatchParams {
        field_manager: Some(name.to_owned()),
        ..PatchParams::default()
    }
}

fn schema<'a>(crd: &'a mut Value, version: usize, part: &str) -> &'a mut Value {
    &mut crd["spec"]["versions"][version]["schema"]["openAPIV3Schema"]["properties"][part]["properties"]
}

/// A controller that patches `/status` of each object so often.
#[allow(clippy::needless_pass_by_value, reason = "reads better at the place of use")]
fn status_writer(api: Api<DynamicObject>, count: usize, every: Duration) -> Vec<JoinHandle<()>> {
    (0..count)
        .map(|index| {
            let api = api.clone();
            tokio::spawn(async move {
                for round in 0_u64.. {
                    let status = Patch::Merge(json!({"status": {"ready": round}}));
                    let name = format!("widget-{index:04}");
                    let _ = api.patch_status(&name, &manager("controller"), &status).await;
                    tokio::time::sleep(every).await;
                }
            })
        })
        .collect()
}

/// What storedVersions was at each revision of the CRD since `from`.
async fn stored_versions_since(bench: &Bench, from: i64) -> Vec<String> {
    let etcd = bench.control_plane.etcd();
    let key = format!(
        "/registry/apiextensions.k8s.io/customresourcedefinitions/{}",
        bench.widgets.crd_name()
    );
    let history = History::read(etcd, &[&key], from).await.unwrap();
    let states = history.snapshots.iter();
    let mut seen: Vec<String> = states
        .map(|then| then.json(&key)["status"]["storedVersions"].to_string())
        .collect();
    seen.dedup();
    seen
}

/// The status default is written again after each write of an old pod; a write of the pod between our two patches makes the
/// object move twice, with nothing else changed in it. One healthy server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_status_writer_at_the_old_version_is_not_a_server_that_is_behind() {
    let bench = installed_with("busy-status", |crd| {
        schema(crd, 1, "status")["observed"] = json!({"type": "integer", "default": -1});
    })
    .await;
    bench.widgets.create(&bench.client, "v1alpha1", 10).await.unwrap();
    bench.widgets.flip_storage(&bench.client, "v1").await.unwrap();
    let old = bench.widgets.api(&bench.client, "v1alpha1");
    let writers = status_writer(old, 10, Duration::from_millis(40));
    let options = Options {
        verify: Verify::Full,
        ..bench.options()
    };
    let report = bench.engine(options).run().await.unwrap();
    assert_eq!(report.came_back, 0);
    for writer in writers {
        writer.abort();
    }
    assert_eq!(report.end, End::Migrated);
}

/// storedVersions was clean all the time, and every byte is at v1: nothing may be put back, nobody accused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_crd_with_a_default_in_the_status_is_not_accused_of_a_wrong_trim() {
    let bench = installed_with("clean-default", |crd| {
        schema(crd, 1, "status")["observed"] = json!({"type": "integer"});
        crd["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["status"]["default"] =
            json!({"observed": -1});
        crd["spec"]["versions"][0]["storage"] = json!(false);
        crd["spec"]["versions"][1]["storage"] = json!(true);
    })
    .await;
    bench.widgets.create(&bench.client, "v1", 5).await.unwrap();
    let from = bench.control_plane.etcd().revision().await.unwrap();
    let options = Options {
        verify: Verify::Full,
        always: true,
        patrol: true,
        ..bench.options()
    };
    let report = bench.engine(options).run().await.unwrap();
    let seen = stored_versions_since(&bench, from).await;
    assert_eq!(seen, ["[\"v1\"]"], "{report:?}");
    assert_eq!(report.stored_otherwise, 0);
}

/// The same with a healthy controller that writes status at v1, several times a second, and no default anywhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_crd_with_a_busy_controller_is_not_accused_of_a_wrong_trim() {
    let bench = installed_with("clean-busy", |crd| {
        crd["spec"]["versions"][0]["storage"] = json!(false);
        crd["spec"]["versions"][1]["storage"] = json!(true);
    })
    .await;
    bench.widgets.create(&bench.client, "v1", 20).await.unwrap();
    let writers = status_writer(
        bench.widgets.api(&bench.client, "v1"),
        20,
        Duration::from_millis(100),
    );
    let api = bench.widgets.api(&bench.client, "v1");
    exuvia_testenv::until("the controller writes", async || {
        let last = api.get("widget-0019").await.unwrap();
        !last.data["status"].is_null()
    })
    .await;
    let from = bench.control_plane.etcd().revision().await.unwrap();
    let options = Options {
        verify: Verify::Full,
        always: true,
        patrol: true,
        ..bench.options()
    };
    let report = bench.engine(options).run().await.unwrap();
    for writer in writers {
        writer.abort();
    }
    let seen = stored_versions_since(&bench, from).await;
    assert_eq!(seen, ["[\"v1\"]"], "{report:?}");
    assert_eq!(report.stored_otherwise, 0);
}

/// A writer that only takes something away owns nothing, so no entry of managedFields tells of it. One healthy server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_writer_that_only_removes_does_not_keep_a_migration_from_its_end() {
    let bench = installed_with("remover", |crd| {
        schema(crd, 1, "spec")["mode"] = json!({"type": "string", "default": "fast"});
    })
    .await;
    bench.widgets.create(&bench.client, "v1alpha1", 4).await.unwrap();
    bench.widgets.flip_storage(&bench.client, "v1").await.unwrap();
    // A user asks at v1 by an annotation, an old controller at v1alpha1 takes the request off.
    let (new, old) = (
        bench.widgets.api(&bench.client, "v1"),
        bench.widgets.api(&bench.client, "v1alpha1"),
    );
    let writer = tokio::spawn(async move {
        for round in 0_u64.. {
            for index in 0..4 {
                let name = format!("widget-{index:04}");
                let ask = Patch::Merge(
                    json!({"metadata": {"annotations": {"example.com/restart": round.to_string()}}}),
                );
                let _ = new.patch(&name, &manager("user"), &ask).await;
                let done = Patch::Merge(json!({"metadata": {"annotations": {"example.com/restart": null}}}));
                let _ = old.patch(&name, &manager("old-controller"), &done).await;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let options = Options {
        verify: Verify::Full,
        ..bench.options()
    };
    let mut engine = bench.engine(options);
    let report = tokio::time::timeout(exuvia_testenv::DEADLINE, engine.run())
        .await
        .expect("it ends")
        .unwrap();
    writer.abort();
    assert_eq!(report.end, End::Migrated);
}

/// The storage version is not served, and sets a default; clients create objects at the served one. Each such object moves
/// once with the next write, on one healthy server, and its entry names the endpoint's own version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_default_of_an_unserved_storage_version_does_not_keep_a_migration_from_its_end() {
    let bench = installed_with("unserved-default", |crd| {
        schema(crd, 1, "spec")["payload"]["default"] = json!("x");
        crd["spec"]["versions"][1]["served"] = json!(false);
    })
    .await;
    bench.widgets.create(&bench.client, "v1alpha1", 4).await.unwrap();
    let crds: Api<
        k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    > = Api::all(bench.client.clone());
    let mut crd = crds.get(&bench.widgets.crd_name()).await.unwrap();
    crd.spec.versions[0].storage = false;
    crd.spec.versions[1].storage = true;
    crds.replace(&bench.widgets.crd_name(), &PostParams::default(), &crd)
        .await
        .unwrap();
    let api = bench.widgets.api(&bench.client, "v1alpha1");
    let widgets = bench.widgets.clone();
    let writer = tokio::spawn(async move {
        for round in 0_u64.. {
            let widget = widgets.widget("v1alpha1", &format!("fresh-{round:04}"));
            let _ = api.create(&PostParams::default(), &widget).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let options = Options {
        accept_pruning: true,
        ..bench.options()
    };
    let mut engine = bench.engine(options);
    let report = tokio::time::timeout(exuvia_testenv::DEADLINE, engine.run())
        .await
        .expect("it ends")
        .unwrap();
    writer.abort();
    assert_eq!(report.end, End::Migrated);
}

/// A webhook that notes who wrote last: idempotent for each user. A healthy controller writes beside it, at v1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_notes_who_wrote_last_does_not_keep_a_migration_from_its_end() {
    use exuvia_testenv::webhook::{Admission, Endpoint};
    let bench = Bench::flipped("whowrote", 10).await;
    let webhooks = bench.control_plane.webhooks().await.unwrap();
    webhooks.on_mutate(Admission::by(|request| {
        let who = request["options"]["fieldManager"].as_str().unwrap_or_default();
        Admission::Mutate(
            json!([{"op": "add", "path": "/metadata/annotations", "value": {"updated-by": who}}]),
        )
    }));
    let configuration = json!({
        "metadata": {"name": "who-wrote"},
        "webhooks": [{
            "name": "who.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
            "clientConfig": webhooks.client_config(Endpoint::Mutate),
            "rules": [{"apiGroups": [bench.widgets.group()], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": ["widgets"]}],
        }],
    });
    let configurations: Api<k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration> =
        Api::all(bench.client.clone());
    configurations
        .create(
            &PostParams::default(),
            &serde_json::from_value(configuration).unwrap(),
        )
        .await
        .unwrap();
    let api = bench.widgets.api(&bench.client, "v1");
    exuvia_testenv::until("the webhook is asked", async || {
        api.patch(
            "widget-0000",
            &PatchParams::default().dry_run(),
            &Patch::Merge(json!({})),
        )
        .await
        .unwrap();
        webhooks.calls(Endpoint::Mutate) > 0
    })
    .await;
    let writer = tokio::spawn(async move {
        for round in 0_u64.. {
            for index in 0..10 {
                let spec = Patch::Merge(json!({"spec": {"size": round}}));
                let _ = api
                    .patch(&format!("widget-{index:04}"), &manager("controller"), &spec)
                    .await;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let options = Options {
        verify: Verify::Full,
        ..bench.options()
    };
    let mut engine = bench.engine(options);
    let report = tokio::time::timeout(exuvia_testenv::DEADLINE, engine.run())
        .await
        .expect("it ends")
        .unwrap();
    writer.abort();
    configurations
        .delete("who-wrote", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(report.end, End::Migrated);
}

/// Two runs at once, each until its patrol.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_runs_at_once_both_end_well() {
    let bench = Bench::flipped("two-runs", 60).await;
    let options = || Options {
        patrol: true,
        ..bench.options()
    };
    let (mut one, mut two) = (
        bench.engine(options()),
        bench.engine(Options {
            verify: Verify::Full,
            ..options()
        }),
    );
    let (one, two) = tokio::join!(one.run(), two.run());
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!((one.end, two.end), (End::Migrated, End::Migrated));
    assert_eq!(bench.stored_at("v1alpha1").await, 0);
}

/// A server that nobody could ask sleeps over everything; its identity Lease tells that there is one. When it wakes it may
/// write the old version, so the patrol waits for it.
#[tokio::test]
async fn the_patrol_waits_for_a_server_that_is_known_by_its_lease_and_sleeps() {
    let control_plane = exuvia_testenv::ControlPlane::builder().start().await.unwrap();
    let second = control_plane.another_apiserver_on_host("host-b").await.unwrap();
    let client = control_plane.client().unwrap();
    let widgets = exuvia_testenv::Widgets::in_group("asleep.example.com");
    widgets.install(&client, "v1alpha1").await.unwrap();
    widgets.create(&client, "v1alpha1", 5).await.unwrap();
    let other = widgets.api(&second.client().unwrap(), "v1");
    exuvia_testenv::until("the second server serves it", async || {
        other.get("widget-0000").await.is_ok()
    })
    .await;
    let path = format!(
        "/apis/{}/v1/namespaces/default/widgets/widget-0000",
        widgets.group()
    );
    let queued = http::Request::patch(path)
        .header("content-type", "application/merge-patch+json")
        .body(b"{}".as_slice().into())
        .unwrap();
    let stale = second.pause_with_queued(vec![queued]).await.unwrap();
    widgets.flip_storage(&client, "v1").await.unwrap();
    let config = control_plane.admin().config().unwrap();
    let engine = || {
        let writer = exuvia_write::Writer::named("exuvia-test");
        let options = Options {
            settle: crate::SETTLE,
            api_servers: vec![control_plane.apiserver().url().parse().unwrap()],
            patrol: true,
            ..Options::default()
        };
        let client = writer.connect(config.clone()).unwrap();
        exuvia_storage::Engine::new(&config, client, writer, widgets.crd_name(), options)
    };
    let mut asleep = engine();
    let report = asleep.run().await.unwrap();
    let End::Stalled {
        reason: "ServerBehind",
        message,
    } = &report.end
    else {
        panic!("{:?}", report.end)
    };
    assert!(
        message.contains("host-b") && message.contains("delete the Lease"),
        "{message}"
    );
    assert!(asleep.record().is_some_and(|record| !record.patrolled));

    // Awake again, whatever it writes first is found.
    assert_eq!(stale.resume().await.unwrap(), [200]);
    let mut awake = engine();
    let report = awake.run().await.unwrap();
    assert_eq!(report.end, End::Migrated, "{report:?}");
    assert!(awake.record().is_some_and(|record| record.patrolled));
    let counts = control_plane
        .stored(widgets.group(), "widgets")
        .count_by_version()
        .await
        .unwrap();
    assert_eq!(counts, [(format!("{}/v1", widgets.group()), 5)].into());
}

/// However slow we are beside it: somebody writes the object before each write of ours reaches the server, so that none of those
/// under a lock succeeds.
#[tokio::test]
async fn an_object_that_is_written_before_each_of_our_writes_is_migrated() {
    let bench = Bench::flipped("outrun", 3).await;
    let proxy = bench.control_plane.proxy().await.unwrap();
    let api = bench.widgets.api(&bench.client, "v1");
    let (runtime, round) = (tokio::runtime::Handle::current(), AtomicU64::new(0));
    let meant = Match::writes()
        .object("default", "widget-0001")
        .except(Match::any().query("dryRun=All"));
    let outrun = proxy.inject(Rule::on(meant).always().on_request(move |_| {
        let (api, (done, written)) = (api.clone(), std::sync::mpsc::channel());
        let status = json!({"status": {"ready": round.fetch_add(1, Ordering::Relaxed)}});
        runtime.spawn(async move {
            let patch = Patch::Merge(status);
            let answer = api
                .patch_status("widget-0001", &manager("controller"), &patch)
                .await;
            done.send(answer.map(drop)).unwrap();
        });
        written.recv().unwrap().unwrap();
    }));
    let report = bench.engine_through(&proxy, bench.options()).run().await.unwrap();
    assert_eq!(report.end, End::Migrated, "{:?}", report.failures);
    assert!(outrun.applied() > 1, "it was tried under a lock first");
    let left = report.unmoved_example.unwrap_or_default();
    assert!(left.contains("widget-0001"), "{left}");
    bench.assert_trimmed_rightly("v1alpha1").await;
}

/// One object that is written some fifty times a second (a lock, a heartbeat), at v1, on one healthy server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_object_does_not_keep_a_migration_from_its_end() {
    let bench = Bench::flipped("heartbeat", 5).await;
    let writers = status_writer(
        bench.widgets.api(&bench.client, "v1"),
        1,
        Duration::from_millis(20),
    );
    let options = Options {
        verify: Verify::Full,
        ..bench.options()
    };
    let report = bench.engine(options).run().await.unwrap();
    for writer in writers {
        writer.abort();
    }
    assert_eq!(report.end, End::Migrated);
}
