//! A migration from its creation to its end, as people and tools see it.

use exuvia_api::DatastorePhase;
use exuvia_testenv::kstatus::{Kstatus, kstatus};
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use crate::harness::*;

#[tokio::test]
async fn twenty_objects_move_and_everybody_can_see_it() {
    let stage = Stage::new("twenty", 20).await;
    let kubeconfig = shared().await.control_plane.admin().kubeconfig().unwrap();
    stage.migrate(stage.spec()).await;
    let waited = kubectl(
        kubeconfig.clone(),
        &["wait", "--for=condition=Complete", "--timeout=170s", "dm/twenty"],
    )
    .await;
    assert!(waited.status.success(), "{}", text(&waited.stderr));

    assert_eq!(stage.names(&stage.new).await, stage.names(&stage.old).await);
    let status = stage
        .status_when("Ready", |status| condition(status, "Ready").0 == "True")
        .await;
    assert_eq!(status.phase, Some(DatastorePhase::Complete));
    let progress = status.progress.clone().unwrap();
    assert_eq!((progress.total, progress.migrated, progress.skipped), (20, 20, 0));
    assert_eq!(progress.type_progress, "1 / 1");
    for stage in exuvia_api::datastore_condition::ALL {
        assert_eq!(condition(&status, stage).0, "True", "{stage}: {status:?}");
    }
    let migration = stage.migrations().get("twenty").await.unwrap();
    assert_eq!(status.observed_generation, migration.metadata.generation);
    assert_eq!(
        kstatus(&serde_json::to_value(&migration).unwrap()),
        Kstatus::Current
    );
    assert_eq!(
        stage.event_reasons().await,
        ["Complete", "Converged", "Frozen", "Started"]
    );

    let columns = async |args: &[&str]| {
        let output = kubectl(kubeconfig.clone(), &[&["get", "dm", "twenty"], args].concat()).await;
        let shown = text(&output.stdout);
        let mut lines = shown.lines().map(str::to_owned);
        (lines.next().unwrap_or_default(), lines.next().unwrap_or_default())
    };
    let (head, row) = columns(&[]).await;
    for column in ["NAME", "PHASE", "TYPES", "MESSAGE", "AGE"] {
        assert!(head.contains(column), "{head}");
    }
    assert!(!head.contains("MIGRATED"), "{head}");
    for cell in ["Complete", "1 / 1", "20 objects of 1 kind are moved"] {
        assert!(row.contains(cell), "{row}");
    }
    let (head, _) = columns(&["-o", "wide"]).await;
    for column in ["CURRENT", "MIGRATED", "SKIPPED", "CONFLICTS"] {
        assert!(head.contains(column), "{head}");
    }
}

#[tokio::test]
async fn objects_are_copied_while_writers_go_on_until_somebody_says_go() {
    let stage = Stage::new("synced", 5).await;
    let mut spec = stage.spec();
    spec["mode"] = json!("SyncThenFreeze");
    spec["cutover"] = json!({"hold": true});
    stage.migrate(spec).await;
    let status = stage
        .status_when("it is in step", |status| status.message.contains("cutover.hold"))
        .await;
    assert_eq!(status.step, "Syncing");
    assert!(status.frozen_at.is_none(), "{status:?}");
    assert_eq!(stage.names(&stage.new).await, stage.names(&stage.old).await);
    stage.create(&stage.old, "late", "blue").await;
    stage.change(json!({"spec": {"cutover": {"hold": false}}})).await;
    let status = stage.in_phase(DatastorePhase::Complete).await;
    assert_eq!(stage.names(&stage.new).await, stage.names(&stage.old).await);
    let progress = status.progress.unwrap();
    assert_eq!((progress.total, progress.migrated), (6, 6));
    assert_eq!(
        stage.event_reasons().await,
        ["Complete", "Converged", "Frozen", "Started"]
    );
}

#[tokio::test]
async fn a_migration_that_is_deleted_in_the_end_leaves_no_finalizer_behind() {
    let stage = Stage::new("cleaned", 2).await;
    let mut spec = stage.spec();
    spec["cleanup"] = json!({"source": "Thaw"});
    stage.migrate(spec).await;
    stage.in_phase(DatastorePhase::Complete).await;
    let migrations = stage.migrations();
    migrations
        .delete(&stage.name, &DeleteParams::default())
        .await
        .unwrap();
    until("it is gone", async || {
        migrations.get_opt(&stage.name).await.unwrap().is_none()
    })
    .await;
    until("the source can be written again", async || {
        let mut widget = stage.old.widget("v1", "later");
        widget.metadata.namespace = Some(stage.name.clone());
        let created = stage
            .api(&stage.old)
            .create(&PostParams::default(), &widget)
            .await;
        created.map(drop).map_err(|error| error.to_string())
    })
    .await;
    let gauge = format!("resource=\"{}\"", stage.name);
    until("its gauges are gone", async || {
        let metrics = shared().await.operator.get("/metrics").await.1;
        let phases = metrics
            .lines()
            .filter(|line| line.starts_with("exuvia_datastore_phase"));
        phases.filter(|line| line.contains(&gauge)).count() == 0
    })
    .await;
}
