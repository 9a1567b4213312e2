//! The operator does not take a signal for a fact: old-version writers, and storedVersions that somebody else trimmed.

use std::time::Duration;

use exuvia_api::{Phase, StorageMigration};
use exuvia_testenv::Widgets;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::harness::*;
use crate::oracle::{assert_every_trim_was_right, events, metric};

/// An old pod: patches `/status` at v1alpha1, one of four widgets after the other, for ever.
fn old_pod(client: &Client, widgets: &Widgets) -> tokio::task::JoinHandle<()> {
    let api = widgets.api(client, "v1alpha1");
    tokio::spawn(async move {
        let params = PatchParams {
            field_manager: Some("old-pod".to_owned()),
            ..PatchParams::default()
        };
        for round in 0_u64.. {
            let status = Patch::Merge(json!({"status": {"ready": round}}));
            let name = format!("widget-{:04}", round % 4);
            // A conflict is the migration's doing, and the pod tries again.
            let _ = api.patch_status(&name, &params, &status).await;
            tokio::time::sleep(Duration::from_millis(50)).await; // several between trim and patrol
        }
    })
}

/// PITFALLS A35: what the old pod writes lacks v1's default, so that the next patch moves the object, on a healthy server.
#[tokio::test]
async fn under_a_writer_at_the_old_version_beside_a_new_default_it_trims_once_and_stays_migrated() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("defaulted.example.com");
    let mut crd = widgets.crd("v1alpha1");
    let new =
        &mut crd["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    new["mode"] = json!({"type": "string", "default": "fast"});
    widgets.install_crd(&client, crd).await.unwrap();
    widgets.create(&client, "v1alpha1", 4).await.unwrap();
    widgets.flip_storage(&client, "v1").await.unwrap();
    let pod = old_pod(&client, &widgets);
    let known = format!("--apiserver={}", control_plane.apiserver().url());
    let operator = Operator::start(&control_plane, control_plane.admin(), "a", &[&known, LONG_LEASE]);
    label(&client, &widgets, Some("true")).await;

    let name = widgets.crd_name();
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    let once = ["v1alpha1", "v1alpha1 v1", "v1"];
    let trimmed_once = async || {
        let values = assert_every_trim_was_right(&control_plane, &widgets).await;
        let values: Vec<String> = values.iter().map(|value| value.join(" ")).collect();
        assert!(
            once.starts_with(&values.iter().map(String::as_str).collect::<Vec<_>>()),
            "{values:?}"
        );
        values.len() == once.len()
    };
    let phase = async || {
        let migration = migrations.get_opt(&name).await.unwrap();
        migration.and_then(|migration| migration.status)?.phase
    };
    in_phase(&client, &name, Phase::Migrated).await;
    assert!(trimmed_once().await);

    // It stays so, however often the operator looks: each annotation makes it look.
    let looks = async || {
        metric(
            &operator.get("/metrics").await.1,
            "controller_runtime_reconcile_total",
            "",
        )
    };
    for touch in ["1", "2", "3"] {
        let before = looks().await;
        merge_crd(
            &client,
            &widgets,
            json!({"metadata": {"annotations": {"example.com/touched": touch}}}),
        )
        .await;
        until("it looks once more", async || {
            (looks().await > before).then_some(())
        })
        .await;
        assert!(trimmed_once().await);
        assert_eq!(phase().await, Some(Phase::Migrated));
    }
    let status = status_when(&client, &name, "blockers name the writer", |status| {
        let names_it = |blocker: &exuvia_api::VersionBlocker| {
            blocker.version == "v1alpha1" && blocker.message.contains("old-pod")
        };
        status.blockers.iter().any(names_it)
    })
    .await;
    assert_eq!(status.phase, Some(Phase::Migrated));
    assert_eq!(
        status.droppable_versions.unwrap_or_default(),
        Vec::<String>::new()
    );
    assert_eq!(events(&client, "ServerBehind").await, [], "no server is accused");
    assert!(!pod.is_finished(), "it went on all the time");
    pod.abort();
}

/// PITFALLS A39: the first pass over a CRD sweeps, whatever storedVersions says.
#[tokio::test]
async fn the_first_pass_over_a_crd_does_not_believe_stored_versions() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let widgets = flipped(&client, "believed.example.com", 20, false).await;
    widgets.set_stored_versions(&client, &["v1"]).await.unwrap();
    assert_eq!(
        stored_at(&shared.control_plane, &widgets).await,
        [("v1alpha1".to_owned(), 20)].into()
    );
    label(&client, &widgets, Some("true")).await;
    in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    assert_eq!(
        stored_at(&shared.control_plane, &widgets).await,
        [("v1".to_owned(), 20)].into(),
        "Migrated means that every object is stored at v1"
    );
    assert_eq!(stored_versions(&client, &widgets).await, ["v1"]);
}
