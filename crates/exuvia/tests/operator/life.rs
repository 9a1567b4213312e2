//! The operator's life from start to end: settings, readiness, its CRD coming and going, idling, logs.

use std::process::Command;

use exuvia_api::{Phase, StorageMigration};
use exuvia_testenv::proxy::{Match, Rule};
use exuvia_testenv::{AuditEvent, ControlPlane, Widgets};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, PostParams};
use kube::{Api, Client, CustomResourceExt, ResourceExt};
use serde_json::{Value, json};

use crate::harness::*;
use crate::leader::{Held, complaints, replica, terminate, told};

const OWN_CRD: &str = "storagemigrations.exuvia.dev";

/// Everything that a user wrote but the Lease, whatever the answer, in a few words each.
fn other_writes(control_plane: &ControlPlane, user: &str) -> Vec<String> {
    let other = |event: &AuditEvent| event.is_write() && event.resource() != "leases";
    let events = control_plane.audit().of(user).unwrap();
    events.iter().filter(|event| other(event)).map(told).collect()
}

/// Waits until a user has written the Lease so many times more: time goes by for an operator, whatever the clock says.
async fn renewals(control_plane: &ControlPlane, user: &str, count: usize) {
    let so_far = || {
        let events = control_plane.audit().of(user).unwrap();
        let renewal =
            |event: &&AuditEvent| event.resource() == "leases" && event.is_write() && event.code() < 300;
        events.iter().filter(renewal).count()
    };
    let before = so_far();
    until(&format!("{user} renews the Lease {count} times"), async || {
        (so_far() >= before + count).then_some(())
    })
    .await;
}

async fn delete_crd(client: &Client, name: &str) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.delete(name, &DeleteParams::default()).await.unwrap();
    until(&format!("{name} is gone"), async || {
        crds.get_opt(name).await.ok()?.is_none().then_some(())
    })
    .await;
}

async fn says(operator: &Operator, path: &str, text: &str) {
    until(&format!("{path} says {text:?}"), async || {
        let (code, answer) = operator.get(path).await;
        (code == 200 && answer.contains(text)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn it_waits_for_its_crd_stops_when_that_goes_and_starts_again_when_it_is_back() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "early.example.com", 5, true).await;
    let operator = replica(&control_plane, "a", &["--lease-duration=3s"]);
    let waits = format!("waits for crd {OWN_CRD}");
    says(&operator, "/readyz?verbose", &waits).await;
    renewals(&control_plane, "a", 3).await;
    assert_eq!(other_writes(&control_plane, "a"), Vec::<String>::new());

    install_crds(&client).await;
    in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    says(&operator, "/readyz?verbose", "synced").await;

    // Every migration goes with it.
    delete_crd(&client, OWN_CRD).await;
    says(&operator, "/readyz?verbose", &waits).await;
    let before = other_writes(&control_plane, "a");
    widgets.flip_storage(&client, "v1alpha1").await.unwrap();
    let other = flipped(&client, "other.example.com", 1, true).await;
    delete_crd(&client, &other.crd_name()).await;
    renewals(&control_plane, "a", 3).await;
    assert_eq!(other_writes(&control_plane, "a"), before);

    install_crds(&client).await;
    in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    assert_eq!(
        stored_at(&control_plane, &widgets).await,
        [("v1alpha1".to_owned(), 5)].into()
    );
    assert_eq!(migration_names(&client).await, [widgets.crd_name()]);
    // A busy machine may be late with the Lease; that is another matter.
    let mut complaints = complaints(&operator);
    complaints.retain(|line| !line.contains(" exuvia_runtime::elect: "));
    let (missing, others): (Vec<_>, Vec<_>) = complaints
        .into_iter()
        .partition(|line| line.contains("waiting for the controller's CRD, which is not installed"));
    assert_eq!((missing.len(), others), (2, Vec::<String>::new()));
}

#[tokio::test]
async fn it_is_ready_after_the_first_sync_and_idle_when_all_is_clean_and_a_follower_is_ready_and_silent() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let clean: Vec<Widgets> = (0..15)
        .map(|n| Widgets::in_group(format!("clean-{n}.example.com")))
        .collect();
    futures::future::join_all(clean.iter().map(async |widgets| {
        widgets.install(&client, "v1").await.unwrap();
        label(&client, widgets, Some("true")).await;
    }))
    .await;

    let access = control_plane.user("a", &["system:masters"]).unwrap();
    let proxy = control_plane.proxy_as(&access).await.unwrap();
    let held = Held::default();
    let list = Match::method(http::Method::GET).resource("storagemigrations");
    let holding = proxy.inject(Rule::on(list).times(1).on_request(held.hold()));
    let flags = ["--lease-duration=2s"];
    let leader = Operator::start(&control_plane, &access.clone().at(proxy.url()), "a", &flags);
    until("the first list is asked for", async || {
        (holding.applied() > 0).then_some(())
    })
    .await;
    renewals(&control_plane, "a", 2).await;
    assert_eq!(leader.get("/livez").await, (200, "ok\n".to_owned()));
    let (code, text) = leader.get("/readyz").await;
    assert!(
        code == 503 && text.contains("waiting for its first sync"),
        "{code} {text}"
    );
    assert_eq!(other_writes(&control_plane, "a"), Vec::<String>::new());
    held.let_go();
    leader.ready().await;

    let follower = replica(&control_plane, "b", &flags);
    follower.ready().await;
    for widgets in &clean {
        in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    }
    let before = other_writes(&control_plane, "a");
    renewals(&control_plane, "a", 15).await;
    assert_eq!(other_writes(&control_plane, "a"), before);
    let by_follower = control_plane.audit().of("b").unwrap();
    assert!(!by_follower.is_empty());
    let writes: Vec<String> = by_follower
        .iter()
        .filter(|event| event.is_write())
        .map(told)
        .collect();
    assert_eq!(writes, Vec::<String>::new());
    for (operator, leads) in [(&leader, 1), (&follower, 0)] {
        let (_, metrics) = operator.get("/metrics").await;
        let line = format!("leader_election_master_status{{name=\"exuvia\"}} {leads}\n");
        assert!(metrics.contains(&line), "{metrics}");
    }
}

/// Puts a migration into the cluster that no operator of this version can read, as one of a later version might.
async fn unreadable(client: &Client, name: &str, resource: &str) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let strict = crds.get(OWN_CRD).await.unwrap();
    let mut loose = serde_json::to_value(&strict).unwrap();
    let verify = loose
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/verify")
        .unwrap();
    verify.as_object_mut().unwrap().remove("enum");
    let loose: CustomResourceDefinition = serde_json::from_value(loose).unwrap();
    crds.replace(OWN_CRD, &PostParams::default(), &loose)
        .await
        .unwrap();
    let migrations: Api<DynamicObject> =
        Api::all_with(client.clone(), &ApiResource::erase::<StorageMigration>(&()));
    let mut migration = DynamicObject::new(name, &ApiResource::erase::<StorageMigration>(&()));
    migration.data = json!({"spec": {"resource": resource, "verify": "Sideways"}});
    until("the server takes it", async || {
        migrations.create(&PostParams::default(), &migration).await.ok()
    })
    .await;
    let strict = StorageMigration::crd();
    let mut restored = crds.get(OWN_CRD).await.unwrap();
    restored.spec = strict.spec;
    crds.replace(OWN_CRD, &PostParams::default(), &restored)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_migration_that_cannot_be_read_is_named_and_the_others_go_on() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let operator = replica(&control_plane, "a", &["--lease-duration=10s"]);
    operator.ready().await;
    let mut seen_first = 0;
    for round in ["watched", "listed"] {
        // Once it comes as an event, and once it is in the first list.
        if round == "watched" {
            unreadable(&client, "from-the-future", "widgets.future.example.com").await;
        } else {
            operator.process.restart().unwrap();
        }
        until("the log names it", async || {
            let named = operator.log().matches("from-the-future").count();
            (named > seen_first).then(|| seen_first = named)
        })
        .await;
        let widgets = flipped(&client, &format!("{round}.example.com"), 3, true).await;
        in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    }
    operator.ready().await;
    assert!(
        !operator.log().contains("Sideways"),
        "it may be a secret: {}",
        operator.log()
    );
}

#[tokio::test]
async fn switched_off_it_is_healthy_and_touches_nothing() {
    let shared = shared().await;
    let control_plane = &shared.control_plane;
    let client = control_plane.client().unwrap();
    // The shared operator has nothing to do with this group.
    let widgets = flipped(&client, "off.example.org", 3, true).await;
    let by_flag = [
        "--lease-name=off-1",
        "--groups=example.org",
        "--enable-storage-migration=false",
    ];
    let by_flag = replica(control_plane, "off-by-flag", &by_flag);
    let access = control_plane
        .user("off-by-variable", &["system:masters"])
        .unwrap();
    let variable = ["ENABLE_STORAGE_MIGRATION=false"];
    let flags = ["--lease-name=off-2", "--groups=example.org"];
    let by_variable = Operator::start_with(control_plane, &access, "off-by-variable", &variable, &flags);
    for (operator, user) in [(&by_flag, "off-by-flag"), (&by_variable, "off-by-variable")] {
        operator.ready().await;
        operator.logs("storage_migration=false").await;
        renewals(control_plane, user, 5).await;
        assert_eq!(operator.get("/livez").await.0, 200);
        assert_eq!(other_writes(control_plane, user), Vec::<String>::new());
    }
    assert_eq!(
        stored_at(control_plane, &widgets).await,
        [("v1alpha1".to_owned(), 3)].into()
    );
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    assert_eq!(
        migrations
            .get_opt(&widgets.crd_name())
            .await
            .unwrap()
            .map(|found| found.name_any()),
        None
    );
}

#[tokio::test]
async fn the_log_level_changes_at_run_time_and_json_logs_are_json_to_the_last_line() {
    let shared = shared().await;
    let flags = [
        "--lease-name=logs",
        "--enable-storage-migration=false",
        "--log-format=json",
    ];
    let operator = replica(&shared.control_plane, "logs", &flags);
    assert_eq!(operator.get("/log-level").await, (200, "info\n".to_owned()));
    let (code, text) = operator.ask("PUT", "/log-level", "loud").await;
    assert_eq!((code, text.lines().count()), (400, 1), "{text}");
    assert!(
        text.contains("loud") && text.contains("expected error, warn, info, debug"),
        "{text}"
    );
    renewals(&shared.control_plane, "logs", 2).await;
    let debugs = |log: &str| log.matches(r#""level":"DEBUG""#).count();
    assert_eq!(debugs(&operator.log()), 0);
    assert_eq!(
        operator.ask("PUT", "/log-level", "debug").await,
        (200, "debug\n".to_owned())
    );
    until("a renewal shows in the log", async || {
        (debugs(&operator.log()) > 0).then_some(())
    })
    .await;
    terminate(&operator);
    let code = until("the operator ends", async || operator.process.exit_code()).await;
    assert_eq!(code, 0);
    let log = operator.log();
    assert!(log.contains("operator has stopped"), "{log}");
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for key in ["timestamp", "level", "target", "message"] {
            assert!(line[key].is_string(), "{key} in {line}");
        }
    }
}

#[test]
fn a_setting_that_makes_no_sense_is_one_sentence_and_a_failure() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("--listen={}", taken.local_addr().unwrap());
    let kubeconfig = tempfile::NamedTempFile::new().unwrap();
    let no_cluster = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
    });
    std::fs::write(kubeconfig.path(), no_cluster.to_string()).unwrap();
    let path = kubeconfig.path().to_str().unwrap();
    let with = format!("--kubeconfig={path}");
    for (args, names) in [
        (vec!["--settle=soon"], vec!["--settle", "soon"]),
        (vec!["--opt-in-label="], vec!["--opt-in-label"]),
        (vec!["--groups="], vec!["--groups", "expected a group"]),
        (
            vec!["--groups=a.dev, b.dev"],
            vec!["--groups", "expected a group"],
        ),
        (vec!["--crds=widgets"], vec!["--crds", "widgets.example.com"]),
        (
            vec!["--log-level=loud"],
            vec!["loud", "expected error, warn, info"],
        ),
        (
            vec!["--lease-duration=0s"],
            vec!["--lease-duration", "100ms or more"],
        ),
        (vec!["--max-backoff=0s"], vec!["--max-backoff", "100ms or more"]),
        (vec![&listen, &with], vec![&listen[9..], "in use"]),
        (vec!["--kubeconfig=/nowhere/config"], vec!["/nowhere/config"]),
        (vec![&with, "--context=other"], vec!["other"]),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_exuvia"))
            .arg("operator")
            .args(&args)
            .env_remove("KUBECONFIG")
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{args:?}: {said}");
        let complaint: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(complaint.len(), 1, "{args:?}: {said}");
        assert!(
            names.iter().all(|name| complaint[0].contains(name)),
            "{args:?}: {said}"
        );
    }
}
