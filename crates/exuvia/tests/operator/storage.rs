//! Storage migration as a controller: from the label to the end, and what stops it on the way.

use std::collections::BTreeMap;

use exuvia_api::{Phase, StorageMigration, StorageMigrationStatus};
use exuvia_testenv::{AuditEvent, Widgets};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::harness::*;
use crate::verdict::is_free_but_for_references;

/// Waits until so many objects are stored at v1.
async fn rewritten(widgets: &Widgets, at_least: usize) {
    let control_plane = &shared().await.control_plane;
    until("some objects are rewritten", async || {
        let stored = stored_at(control_plane, widgets).await;
        stored.get("v1").filter(|count| **count >= at_least).copied()
    })
    .await;
}

fn writes_by_object(writes: &[AuditEvent]) -> BTreeMap<String, usize> {
    let mut by_object = BTreeMap::new();
    for write in writes {
        let object = write.object_ref.clone().unwrap_or_default();
        *by_object.entry(object.name).or_default() += 1;
    }
    by_object
}

/// Waits until the shared operator has done something else from the beginning to the end: whatever it would have done
/// meanwhile, it has.
async fn something_else_is_done(client: &Client, group: &str) {
    let other = flipped(client, group, 1, true).await;
    in_phase(client, &other.crd_name(), Phase::Migrated).await;
}

#[tokio::test]
async fn a_labelled_crd_is_migrated_and_its_migration_says_so() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let widgets = flipped(&client, "happy.example.com", 40, true).await;
    let status = in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    assert_eq!(
        stored_at(&shared.control_plane, &widgets).await,
        [("v1".to_owned(), 40)].into()
    );
    assert_eq!(stored_versions(&client, &widgets).await, ["v1"]);
    assert!(is_free_but_for_references(&status), "{status:?}");
    let progress = status.progress.clone().unwrap();
    assert_eq!((progress.total, progress.rewritten, progress.failed), (40, 40, 0));
    let stored = status.stored_versions.clone().unwrap();
    assert_eq!(
        (stored.before, stored.after),
        (vec!["v1alpha1".into(), "v1".into()], vec!["v1".into()])
    );
    assert!(
        status.settled_resource_version.is_some()
            && status.verified_resource_version.is_some()
            && status.trimmed_at.is_some()
    );
    let (ready, migrated, stalled) = (
        condition(&status, "Ready"),
        condition(&status, "Migrated"),
        condition(&status, "Stalled"),
    );
    assert_eq!(
        (ready.0.as_str(), migrated.0.as_str(), stalled.0.as_str()),
        ("True", "True", "False")
    );
    let counted =
        r#"exuvia_storage_objects_total{resource="widgets.happy.example.com",outcome="rewritten"} 40"#;
    let shown = |metrics: &str| metrics.contains(counted);
    shared.operator.metrics_when("40 rewritten", shown).await;
}

#[tokio::test]
async fn a_label_taken_off_stops_a_pass_at_the_next_object_and_nothing_is_trimmed() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    // A clean CRD gets its migration; that one is then slowed down before there is something to do.
    let widgets = Widgets::in_group("unlabel.example.com");
    widgets.install(&client, "v1alpha1").await.unwrap();
    widgets.create(&client, "v1alpha1", 40).await.unwrap();
    label(&client, &widgets, Some("true")).await;
    let name = widgets.crd_name();
    in_phase(&client, &name, Phase::Migrated).await;
    change_spec(&client, &name, json!({"qps": 4})).await;
    status_when(&client, &name, "slowed down", |status| {
        status.phase == Some(Phase::Migrated) && status.observed_generation == Some(2)
    })
    .await;
    let looked_at = object_writes(&shared.control_plane, SHARED_USER, widgets.group()).len();
    widgets.flip_storage(&client, "v1").await.unwrap();
    rewritten(&widgets, 2).await;

    label(&client, &widgets, None).await;
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    until("its migration goes", async || {
        migrations.get_opt(&name).await.unwrap().is_none().then_some(())
    })
    .await;
    something_else_is_done(&client, "unlabel-other.example.com").await;
    let audit = shared.control_plane.audit().of(SHARED_USER).unwrap();
    let removed = audit
        .iter()
        .find(|event| event.verb == "delete" && event.request_uri.contains(&name))
        .unwrap();
    let writes = object_writes(&shared.control_plane, SHARED_USER, widgets.group());
    let writes = &writes[looked_at..];
    let late: Vec<_> = writes
        .iter()
        .filter(|write| write.request_received_timestamp > removed.request_received_timestamp)
        .collect();
    assert!(late.is_empty(), "{late:?}");
    assert!(
        writes.len() < 40,
        "{} of 40 objects were written anyway",
        writes.len()
    );
    let stored = stored_at(&shared.control_plane, &widgets).await;
    assert_eq!(stored["v1"], writes.len(), "{stored:?}");
    assert_eq!(stored_versions(&client, &widgets).await, ["v1alpha1", "v1"]);

    label(&client, &widgets, Some("true")).await;
    let status = in_phase(&client, &name, Phase::Migrated).await;
    assert_eq!(
        stored_at(&shared.control_plane, &widgets).await,
        [("v1".to_owned(), 40)].into()
    );
    assert_eq!(stored_versions(&client, &widgets).await, ["v1"]);
    assert!(is_free_but_for_references(&status), "{status:?}");
    let log = shared.operator.log();
    let noise: Vec<_> = log
        .lines()
        .filter(|line| line.contains(&name) && (line.contains("WARN") || line.contains("ERROR")))
        .collect();
    assert!(noise.is_empty(), "{noise:?}");
}

#[tokio::test]
async fn a_suspended_pass_goes_on_from_its_r0_and_asks_nothing_twice() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let widgets = flipped(&client, "suspend.example.com", 30, false).await;
    // The test control plane lists no API server: the one there is must be named to be asked itself.
    let servers = [shared.control_plane.apiserver().url()];
    by_hand(
        &client,
        "suspended",
        spec_of(&widgets, json!({"qps": 4, "apiServers": servers})),
    )
    .await;
    rewritten(&widgets, 2).await;
    change_spec(&client, "suspended", json!({"suspend": true})).await;
    let held = in_phase(&client, "suspended", Phase::Suspended).await;
    let before = object_writes(&shared.control_plane, SHARED_USER, widgets.group());
    assert!(before.len() < 30, "suspended too late to tell anything");
    assert!(held.settled_resource_version.is_some(), "{held:?}");
    assert_eq!(condition(&held, "Stalled").0, "False", "it is as asked for");
    something_else_is_done(&client, "suspend-other.example.com").await;
    let after = object_writes(&shared.control_plane, SHARED_USER, widgets.group());
    assert_eq!(after.len(), before.len());
    assert_eq!(stored_versions(&client, &widgets).await, ["v1alpha1", "v1"]);

    change_spec(&client, "suspended", json!({"suspend": false, "qps": 1000})).await;
    let done = in_phase(&client, "suspended", Phase::Migrated).await;
    assert_eq!(done.settled_resource_version, held.settled_resource_version);
    assert_eq!(
        stored_at(&shared.control_plane, &widgets).await,
        [("v1".to_owned(), 30)].into()
    );
    // One write to rewrite it, one to verify it: so few objects are all in the sample.
    let by_object = writes_by_object(&object_writes(
        &shared.control_plane,
        SHARED_USER,
        widgets.group(),
    ));
    assert_eq!(by_object.len(), 30);
    assert!(by_object.values().all(|writes| *writes == 2), "{by_object:?}");
}

#[tokio::test]
async fn of_two_for_one_resource_the_older_works_and_the_younger_says_so_and_takes_over() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let widgets = flipped(&client, "twice.example.com", 30, false).await;
    let spec = spec_of(&widgets, json!({"qps": 4}));
    let older = by_hand(&client, "twice-older", spec.clone()).await;
    let created = older.creation_timestamp().unwrap().0;
    until("a second passes: the server counts no less", async || {
        (Timestamp::now().as_second() > created.as_second()).then_some(())
    })
    .await;
    let fast = spec_of(&widgets, json!({"qps": 1000}));
    by_hand(&client, "twice-a-younger", fast).await;
    let younger = stalled_for(&client, "twice-a-younger", "Duplicate").await;
    assert_eq!(warnings(&client, "twice-a-younger").await, ["Duplicate"]);
    let (_, _, message) = condition(&younger, "Stalled");
    assert!(message.contains("twice-older"), "{message}");
    assert_eq!(condition(&younger, "Ready").0, "False");
    rewritten(&widgets, 2).await;
    assert_eq!(younger.settled_resource_version, None, "the older one works");

    // In the middle of its pass.
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    migrations
        .delete("twice-older", &DeleteParams::default())
        .await
        .unwrap();
    let status = in_phase(&client, "twice-a-younger", Phase::Migrated).await;
    assert_eq!(condition(&status, "Stalled").1, "NotStalled");
    assert_eq!(
        stored_at(&shared.control_plane, &widgets).await,
        [("v1".to_owned(), 30)].into()
    );
    assert_eq!(stored_versions(&client, &widgets).await, ["v1"]);
    let log = shared.operator.log();
    let failed: Vec<_> = log
        .lines()
        .filter(|line| line.contains("reconcile failed") && line.contains(&widgets.crd_name()))
        .collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[tokio::test]
async fn a_field_that_would_be_pruned_stalls_it_by_name_until_that_is_accepted() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let widgets = Widgets::in_group("pruned.example.com");
    let mut crd = widgets.crd("v1alpha1");
    let old = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    old["properties"]["legacy"] = json!({"type": "string"});
    widgets.install_crd(&client, crd).await.unwrap();
    widgets.create(&client, "v1alpha1", 5).await.unwrap();
    let legacy = Patch::Merge(json!({"spec": {"legacy": "precious"}}));
    let api = widgets.api(&client, "v1alpha1");
    api.patch("widget-0003", &PatchParams::default(), &legacy)
        .await
        .unwrap();
    widgets.flip_storage(&client, "v1").await.unwrap();
    label(&client, &widgets, Some("true")).await;
    let name = widgets.crd_name();
    let status = stalled_for(&client, &name, "Pruning").await;
    let (_, _, message) = condition(&status, "Stalled");
    for part in ["default/widget-0003", "spec.legacy", "spec.acceptPruning"] {
        assert!(message.contains(part), "{message}");
    }
    assert!(!message.contains("precious"), "{message}");
    assert!(!message.contains("--"), "a flag is of no use here: {message}");
    let losses = status.losses.unwrap();
    assert_eq!((losses.accepted, losses.objects), (false, 1));
    let lost = exuvia_api::LostField {
        path: "spec.legacy".to_owned(),
        objects: 1,
        first: vec!["default/widget-0003".to_owned()],
    };
    assert_eq!(losses.erased, std::slice::from_ref(&lost));
    let stalled = format!(r#"exuvia_storage_stalled{{resource="{name}",reason="Pruning"}} 1"#);
    let shown = |metrics: &str| metrics.contains(&stalled);
    shared.operator.metrics_when("that it is stalled", shown).await;
    assert_eq!(
        stored_at(&shared.control_plane, &widgets).await,
        [("v1alpha1".to_owned(), 5)].into()
    );
    assert!(object_writes(&shared.control_plane, SHARED_USER, widgets.group()).is_empty());

    change_spec(&client, &name, json!({"acceptPruning": true})).await;
    let status = in_phase(&client, &name, Phase::Migrated).await;
    assert_eq!(condition(&status, "Stalled").1, "NotStalled");
    assert_eq!(stored_versions(&client, &widgets).await, ["v1"]);
    let (.., message) = condition(&status, "Ready");
    let went = "accepted by spec.acceptPruning: the rewrite erased spec.legacy (1 object)";
    assert!(message.contains(went), "{message}");
    let losses = status.losses.unwrap();
    assert_eq!((losses.accepted, losses.erased), (true, vec![lost]));
    let withdrawn = |metrics: &str| !shown(metrics);
    shared.operator.metrics_when("that it is not", withdrawn).await;
}

/// As when a CA bundle is renewed: a new pass begins, and finds everything clean.
#[tokio::test]
async fn a_crd_that_changes_between_trim_and_patrol_is_patrolled_all_the_same() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let widgets = flipped(&client, "owed.example.com", 3, false).await;
    by_hand(&client, "owed", spec_of(&widgets, json!({"settle": "3s"}))).await;
    let trimmed = in_phase(&client, "owed", Phase::Patrolling).await;
    let generation = |status: &StorageMigrationStatus| status.observed.as_ref().map(|crd| crd.generation);
    merge_crd(
        &client,
        &widgets,
        json!({"spec": {"names": {"shortNames": ["wi"]}}}),
    )
    .await;
    let status = status_when(&client, "owed", "migrated again", |status| {
        status.phase == Some(Phase::Migrated) && generation(status) > generation(&trimmed)
    })
    .await;
    assert!(status.trimmed_at > trimmed.trimmed_at);
    let pass = status.pass.unwrap();
    assert!(
        !pass.patrol_owed && pass.verified_in_full && pass.patrolled,
        "{pass:?}"
    );
}
