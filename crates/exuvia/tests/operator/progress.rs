//! What people see while a migration runs, and after: status, print columns, conditions, events, metrics.

use std::path::PathBuf;
use std::process::{Command, Output};

use exuvia_api::{Phase, StorageMigration, StorageMigrationStatus};
use exuvia_testenv::assets::{Assets, Binary};
use exuvia_testenv::kstatus::{Kstatus, kstatus};
use futures::{StreamExt, pin_mut};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::harness::*;

/// The real kubectl.
pub(crate) async fn kubectl(kubeconfig: PathBuf, args: &[&str]) -> Output {
    let find = || Assets::from_env().unwrap().find(Binary::Kubectl).unwrap();
    let program = tokio::task::spawn_blocking(find).await.unwrap();
    run(program, kubeconfig, args).await
}

/// A program as somebody with this kubeconfig runs it.
pub(crate) async fn run(program: PathBuf, kubeconfig: PathBuf, args: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(args).env("KUBECONFIG", kubeconfig);
    let run = move || command.output().unwrap();
    tokio::task::spawn_blocking(run).await.unwrap()
}

/// Every status of the migration as it comes, from its creation until it is migrated.
async fn history(client: Client, name: &'static str, from: String) -> Vec<StorageMigrationStatus> {
    let migrations: Api<StorageMigration> = Api::all(client);
    let params = WatchParams::default().fields(&format!("metadata.name={name}"));
    let events = migrations.watch(&params, &from).await.unwrap();
    pin_mut!(events);
    let mut seen = Vec::new();
    while let Some(event) = events.next().await {
        let (WatchEvent::Added(migration) | WatchEvent::Modified(migration)) = event.unwrap() else {
            continue;
        };
        let read = kstatus(&serde_json::to_value(&migration).unwrap());
        let status = migration.status.unwrap_or_default();
        let done = status.phase == Some(Phase::Migrated);
        // One that nobody has looked at yet has no status, and kstatus takes it for current.
        let expected = if done || status.phase.is_none() {
            Kstatus::Current
        } else {
            Kstatus::InProgress
        };
        assert_eq!(read, expected, "{status:?}");
        seen.push(status);
        if done {
            break;
        }
    }
    seen
}

#[tokio::test]
async fn a_running_pass_shows_how_far_it_is_and_its_phases_come_in_order() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let kubeconfig = shared.control_plane.admin().kubeconfig().unwrap();
    let widgets = flipped(&client, "progress.example.com", 48, false).await;
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    let now = migrations.list(&ListParams::default()).await.unwrap();
    let from = now.metadata.resource_version.unwrap();
    let history = tokio::spawn(history(client.clone(), "progress", from));
    let servers = [shared.control_plane.apiserver().url()];
    by_hand(
        &client,
        "progress",
        spec_of(&widgets, json!({"qps": 8, "apiServers": servers})),
    )
    .await;
    let waited = tokio::spawn({
        let kubeconfig = kubeconfig.clone();
        async move {
            let args = [
                "wait",
                "--for=condition=Ready",
                "storagemigration/progress",
                "--timeout=120s",
            ];
            kubectl(kubeconfig, &args).await
        }
    });

    let name = widgets.crd_name();
    let phase = |phase: &str| format!(r#"exuvia_storage_phase{{resource="{name}",phase="{phase}"}} 1"#);
    let remaining = format!(r#"exuvia_storage_objects_remaining{{resource="{name}"}} "#);
    let running = |metrics: &str| {
        let left = metrics.lines().find_map(|line| line.strip_prefix(&remaining));
        metrics.contains(&phase("Rewriting")) && left.is_some_and(|left| left != "0")
    };
    shared.operator.metrics_when("what remains", running).await;

    let waited = waited.await.unwrap();
    assert!(
        waited.status.success(),
        "{}",
        String::from_utf8_lossy(&waited.stderr)
    );
    let over = |metrics: &str| {
        metrics.contains(&phase("Migrated"))
            && !metrics.contains(&phase("Rewriting"))
            && !metrics.contains(&remaining)
    };
    shared.operator.metrics_when("that it is over", over).await;

    let history = history.await.unwrap();
    assert_in_order(&history);
    assert_columns(kubeconfig, &name).await;
    assert_events(&client, "progress", &["Rewriting", "Migrated"]).await;
    assert_events(&client, &name, &["Rewriting", "Migrated"]).await;
}

fn assert_in_order(history: &[StorageMigrationStatus]) {
    let mut phases: Vec<Phase> = history.iter().filter_map(|status| status.phase).collect();
    phases.dedup();
    let in_order = [
        Phase::Pending,
        Phase::Settling,
        Phase::Rewriting,
        Phase::Verifying,
        Phase::Trimming,
        Phase::Patrolling,
        Phase::Migrated,
    ];
    assert_eq!(phases, in_order);
    for status in history.iter().filter(|status| status.phase.is_some()) {
        let done = status.phase == Some(Phase::Migrated);
        let expected = if done { "True" } else { "False" };
        assert_eq!(condition(status, "Migrated").0, expected, "{status:?}");
        assert_eq!(condition(status, "Ready").0, expected, "{status:?}");
        assert_eq!(condition(status, "Stalled").0, "False", "{status:?}");
        assert_eq!(status.droppable_versions.is_some(), done, "{status:?}");
    }
    let told = history
        .iter()
        .filter(|status| status.phase == Some(Phase::Rewriting));
    let told: Vec<_> = told.filter_map(|status| status.progress.as_ref()).collect();
    assert!(told.is_sorted_by_key(|progress| progress.rewritten), "{told:?}");
    let underway = told.iter().find(|progress| progress.rate > Some(0)).unwrap();
    assert_eq!((underway.total, underway.failed), (48, 0));
    assert!(
        underway.rewritten > 0 && underway.rewritten < 48 && underway.eta.is_some(),
        "{underway:?}"
    );
    let end = history.last().unwrap().progress.clone().unwrap();
    assert_eq!(
        (end.total, end.rewritten, end.rate, end.eta),
        (48, 48, None, None)
    );
}

async fn assert_columns(kubeconfig: PathBuf, resource: &str) {
    let shown = kubectl(kubeconfig, &["get", "sm", "progress"]).await;
    let shown = String::from_utf8(shown.stdout).unwrap();
    let mut lines = shown
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let columns = [
        "NAME",
        "RESOURCE",
        "PHASE",
        "REASON",
        "TOTAL",
        "DONE",
        "FAILED",
        "DROPPABLE",
        "AGE",
    ];
    assert_eq!(lines.next().unwrap(), columns);
    let row = lines.next().unwrap();
    assert_eq!(
        row[..8],
        [
            "progress", resource, "Migrated", "Migrated", "48", "48", "0", "[]"
        ],
        "{shown}"
    );
}

/// These events are there, once each, and none is larger than 1 KiB as it was sent.
async fn assert_events(client: &Client, about: &str, reasons: &[&str]) {
    let mut events = events_about(client, about).await;
    events.sort_by_key(|event| event.event_time.clone());
    let found: Vec<&str> = events
        .iter()
        .filter_map(|event| event.reason.as_deref())
        .collect();
    assert_eq!(found, reasons, "{about}: {events:?}");
    assert_small(events);
}

#[tokio::test]
async fn events_stay_small_and_one_per_cause_however_long_the_names_are_and_often_it_is_tried() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let group = format!("{}.example.com", ["long"; 30].join("-"));
    let widgets = flipped(&client, &group, 0, false).await;
    let api = widgets.api(&client, "v1alpha1");
    let names: Vec<String> = (0..6)
        .map(|index| format!("{}-{index}", ["name"; 48].join("-")))
        .collect();
    for name in &names {
        api.create(
            &kube::api::PostParams::default(),
            &widgets.widget("v1alpha1", name),
        )
        .await
        .unwrap();
    }
    // Whatever is written, a transition rule refuses it.
    let rule = json!([{"rule": "self.size > oldSelf.size", "message": "size must grow ".repeat(40)}]);
    refuse_writes(&client, &widgets, "spec", rule, &names[0]).await;
    by_hand(&client, "long", spec_of(&widgets, json!({}))).await;
    let status = stalled_for(&client, "long", "Failures").await;
    let failures = status.failures.clone().unwrap();
    assert_eq!((failures.count, failures.first.len()), (6, 6));
    // Tried again and again, by itself.
    let tries = shared.operator.writes_to(&widgets.crd_name()).await;
    until("it is tried again, twice", async || {
        let now = shared.operator.writes_to(&widgets.crd_name()).await;
        (now >= tries + 12).then_some(())
    })
    .await;
    let again = stalled_for(&client, "long", "Failures").await;
    assert_eq!(again, status, "the same cause is told once, in the same words");
    let (on_migration, on_crd) = (
        events_about(&client, "long").await,
        events_about(&client, &widgets.crd_name()).await,
    );
    for events in [&on_migration, &on_crd] {
        let stalled = events
            .iter()
            .filter(|event| event.reason.as_deref() == Some("Failures"));
        assert_eq!(stalled.count(), 1, "{events:?}");
    }
    assert_small(on_migration);
    assert_small(on_crd);
    assert_eq!(stored_versions(&client, &widgets).await, ["v1alpha1", "v1"]);
}
