//! `StorageMigration`s that somebody made by hand: for what has no label, or no CRD, and with other settings.

use std::collections::BTreeMap;

use exuvia_api::{Phase, StorageMigration, StorageMigrationSpec, StorageMigrationStatus};
use exuvia_testenv::Widgets;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::harness::*;
use crate::verdict::is_free_but_for_references;

/// Migrated, and the status is about this generation of the spec.
async fn migrated_as_of(client: &Client, name: &str, generation: i64) -> StorageMigrationStatus {
    status_when(
        client,
        name,
        &format!("migrated as of generation {generation}"),
        |status| status.phase == Some(Phase::Migrated) && status.observed_generation == Some(generation),
    )
    .await
}

/// The versions that managedFields name, over all objects.
async fn owned_at(client: &Client, widgets: &Widgets) -> BTreeMap<String, usize> {
    let objects = widgets
        .api(client, "v1")
        .list(&ListParams::default())
        .await
        .unwrap();
    let mut versions = BTreeMap::new();
    for entry in objects.iter().flat_map(ResourceExt::managed_fields) {
        let version = entry.api_version.clone().unwrap_or_default();
        *versions
            .entry(version.rsplit('/').next().unwrap_or_default().to_owned())
            .or_default() += 1;
    }
    versions
}

#[tokio::test]
async fn a_resource_that_is_not_there_yet_is_taken_up_when_it_comes_label_or_not() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let widgets = Widgets::in_group("absent.example.com");
    by_hand(&client, "early", spec_of(&widgets, json!({}))).await;
    let status = stalled_for(&client, "early", "NoSuchResource").await;
    assert_eq!(warnings(&client, "early").await, ["NoSuchResource"]);
    let (_, _, message) = condition(&status, "Stalled");
    assert!(message.contains(&widgets.crd_name()), "{message}");

    widgets.install(&client, "v1alpha1").await.unwrap();
    in_phase(&client, "early", Phase::Migrated).await;
    widgets.create(&client, "v1alpha1", 4).await.unwrap();
    widgets.flip_storage(&client, "v1").await.unwrap();
    let done = |status: &StorageMigrationStatus| {
        status.phase == Some(Phase::Migrated) && is_free_but_for_references(status)
    };
    status_when(&client, "early", "migrated", done).await;
    assert_eq!(
        stored_at(&shared.control_plane, &widgets).await,
        [("v1".to_owned(), 4)].into()
    );
    assert_eq!(stored_versions(&client, &widgets).await, ["v1"]);

    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.delete(&widgets.crd_name(), &DeleteParams::default())
        .await
        .unwrap();
    let gone = stalled_for(&client, "early", "NoSuchResource").await;
    assert_eq!(
        gone.droppable_versions, None,
        "nothing may be dropped of what is not there"
    );
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    migrations.get("early").await.unwrap();
}

#[tokio::test]
async fn a_built_in_resource_is_rewritten_object_by_object_and_can_be_suspended() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    for index in 0..30 {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(format!("map-{index:02}"));
        maps.create(&PostParams::default(), &map).await.unwrap();
    }
    let asked = || {
        let mut by_object: BTreeMap<String, usize> = BTreeMap::new();
        for write in object_writes(&shared.control_plane, SHARED_USER, "") {
            let object = write.object_ref.unwrap_or_default();
            if object.resource == "configmaps" && object.namespace == "default" {
                *by_object.entry(object.name).or_default() += 1;
            }
        }
        by_object
    };
    let spec: StorageMigrationSpec =
        serde_json::from_value(json!({"resource": "configmaps", "qps": 4})).unwrap();
    by_hand(&client, "configmaps", spec).await;
    until("some are patched", async || {
        (shared.operator.writes_to("configmaps").await >= 2).then_some(())
    })
    .await;
    change_spec(&client, "configmaps", json!({"suspend": true})).await;
    in_phase(&client, "configmaps", Phase::Suspended).await;
    let before = asked();
    assert!(before.len() < 30, "suspended too late to tell anything");
    // Whatever else is done to the migration wakes the operator, which must not go on.
    change_spec(&client, "configmaps", json!({"qps": 1000})).await;
    let seen = |status: &StorageMigrationStatus| status.observed_generation == Some(3);
    status_when(&client, "configmaps", "looked at again", seen).await;
    assert_eq!(asked(), before);

    change_spec(&client, "configmaps", json!({"suspend": false})).await;
    let status = in_phase(&client, "configmaps", Phase::Migrated).await;
    assert!(
        status
            .progress
            .as_ref()
            .is_some_and(|progress| progress.total >= 30),
        "{status:?}"
    );
    assert_eq!(status.droppable_versions, None, "there is nothing to drop");
    let after = asked();
    assert!(
        (0..30).all(|index| after
            .get(&format!("map-{index:02}"))
            .is_some_and(|asked| *asked >= 2)),
        "rewritten and verified, each of them: {after:?}"
    );
}

#[tokio::test]
async fn what_becomes_of_managed_fields_is_as_the_spec_says_and_a_changed_spec_means_a_new_pass() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let kept = flipped(&client, "kept.example.com", 3, false).await;
    by_hand(&client, "kept", spec_of(&kept, json!({"managedFields": "Keep"}))).await;
    let status = in_phase(&client, "kept", Phase::Migrated).await;
    assert_eq!(status.droppable_versions, Some(vec![]));
    assert_eq!(
        stored_versions(&client, &kept).await,
        ["v1"],
        "the bytes are done"
    );
    let blocker = &status.blockers[0];
    assert_eq!(
        (blocker.version.as_str(), blocker.holds.as_str(), blocker.objects),
        ("v1alpha1", "Ownership", Some(3)),
        "{status:?}"
    );
    assert_eq!(
        owned_at(&client, &kept).await,
        [("v1alpha1".to_owned(), 3)].into()
    );
    let (.., message) = condition(&status, "Ready");
    for said in [&blocker.message, &message] {
        assert!(said.contains("add v1alpha1 to spec.shed"), "{said}");
        assert!(!said.contains("--shed"), "a flag is of no use here: {said}");
    }
    assert!(message.contains("v1alpha1 is held by ownership: "), "{message}");
    // storedVersions is clean: only a look at managedFields shows what is left to do, and only `shed` asks for it.
    change_spec(
        &client,
        "kept",
        json!({"managedFields": "Rewrite", "shed": ["v1alpha1"]}),
    )
    .await;
    let status = migrated_as_of(&client, "kept", 2).await;
    assert!(is_free_but_for_references(&status), "{status:?}");
    assert_eq!(owned_at(&client, &kept).await, [("v1".to_owned(), 3)].into());

    // Somebody writes at the old version again; the user who sheds it has updated that client since.
    let laggard = PatchParams {
        field_manager: Some("laggard".into()),
        ..PatchParams::default()
    };
    let size = Patch::Merge(json!({"spec": {"size": 7}}));
    let old = kept.api(&client, "v1alpha1");
    old.patch("widget-0001", &laggard, &size).await.unwrap();
    // To suspend one that is done and let it go on again is a change of spec as any other.
    change_spec(&client, "kept", json!({"suspend": true})).await;
    in_phase(&client, "kept", Phase::Suspended).await;
    change_spec(&client, "kept", json!({"suspend": false, "shed": []})).await;
    let status = migrated_as_of(&client, "kept", 4).await;
    assert!(
        status
            .blockers
            .iter()
            .any(|blocker| blocker.message.contains("laggard")),
        "{status:?}"
    );
    change_spec(&client, "kept", json!({"shed": ["v1alpha1"]})).await;
    let status = migrated_as_of(&client, "kept", 5).await;
    assert!(is_free_but_for_references(&status), "{status:?}");
    assert_eq!(owned_at(&client, &kept).await, [("v1".to_owned(), 4)].into());

    let dropped = flipped(&client, "dropped.example.com", 3, false).await;
    by_hand(
        &client,
        "dropped",
        spec_of(&dropped, json!({"managedFields": "Drop"})),
    )
    .await;
    let status = in_phase(&client, "dropped", Phase::Migrated).await;
    assert!(is_free_but_for_references(&status), "{status:?}");
    assert_eq!(owned_at(&client, &dropped).await, BTreeMap::new());
}

#[tokio::test]
async fn verifying_in_full_asks_every_object_in_each_sweep_and_proof_needs_servers_to_ask() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let widgets = flipped(&client, "full.example.com", 5, false).await;
    let servers = [shared.control_plane.apiserver().url()];
    let full = json!({"verify": "Full", "apiServers": servers});
    by_hand(&client, "full", spec_of(&widgets, full)).await;
    let status = in_phase(&client, "full", Phase::Migrated).await;
    assert!(status.pass.is_some_and(|pass| pass.verified_in_full));
    let writes = object_writes(&shared.control_plane, SHARED_USER, widgets.group());
    assert_eq!(
        writes.len(),
        15,
        "the rewrite, the verification and the patrol, each of every object"
    );

    // Without the servers' names, none can be asked here.
    let widgets = flipped(&client, "proof.example.com", 5, false).await;
    by_hand(&client, "proof", spec_of(&widgets, json!({"verify": "Proof"}))).await;
    let status = stalled_for(&client, "proof", "InvalidSpec").await;
    let (_, _, message) = condition(&status, "Stalled");
    assert!(
        message.contains("spec.apiServers") && message.contains("spec.verify: Auto"),
        "{message}"
    );
    assert!(!message.contains("--"), "a flag is of no use here: {message}");
    assert_eq!(stored_versions(&client, &widgets).await, ["v1alpha1", "v1"]);
    change_spec(&client, "proof", json!({"apiServers": servers})).await;
    let status = in_phase(&client, "proof", Phase::Migrated).await;
    assert!(status.pass.is_some_and(|pass| !pass.verified_in_full));
    let writes = object_writes(&shared.control_plane, SHARED_USER, widgets.group());
    assert_eq!(
        writes.len(),
        10,
        "the rewrite and the verification; the patrol finds nothing new"
    );
}

/// `kubectl apply` of the same manifest again and again changes nothing.
#[tokio::test]
async fn a_spec_that_is_applied_again_unchanged_starts_nothing() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let widgets = flipped(&client, "again.example.com", 3, false).await;
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    let manifest: Value = json!({
        "apiVersion": "exuvia.dev/v1beta1", "kind": "StorageMigration",
        "metadata": {"name": "again"}, "spec": {"resource": widgets.crd_name()},
    });
    let apply = async || {
        let params = PatchParams::apply("gitops");
        migrations
            .patch("again", &params, &Patch::Apply(&manifest))
            .await
            .unwrap()
    };
    apply().await;
    let first = in_phase(&client, "again", Phase::Migrated).await;
    let writes = object_writes(&shared.control_plane, SHARED_USER, widgets.group()).len();
    let before = migrations.get("again").await.unwrap().resource_version();
    assert_eq!(
        apply().await.resource_version(),
        before,
        "applied, and nothing changed"
    );
    // A touched CRD is looked at, and nothing is found to do.
    merge_crd(
        &client,
        &widgets,
        json!({"metadata": {"annotations": {"touched": "yes"}}}),
    )
    .await;
    let other = flipped(&client, "again-other.example.com", 1, true).await;
    in_phase(&client, &other.crd_name(), Phase::Migrated).await;
    assert_eq!(migrations.get("again").await.unwrap().status, Some(first));
    assert_eq!(
        object_writes(&shared.control_plane, SHARED_USER, widgets.group()).len(),
        writes
    );
}

#[tokio::test]
async fn an_api_server_that_was_named_and_does_not_answer_is_named_and_holds_the_migration() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let widgets = flipped(&client, "unanswered.example.com", 2, false).await;
    let servers = json!({"apiServers": ["https://127.0.0.1:1"]});
    by_hand(&client, "unanswered", spec_of(&widgets, servers)).await;
    let status = stalled_for(&client, "unanswered", "ServerBehind").await;
    let (.., message) = condition(&status, "Stalled");
    assert!(
        message.contains("127.0.0.1:1") && message.contains("spec.ignoreApiServers"),
        "{message}"
    );
    assert!(!message.contains("--"), "a flag is of no use here: {message}");
    assert_eq!(stored_versions(&client, &widgets).await, ["v1alpha1", "v1"]);
    change_spec(&client, "unanswered", json!({"apiServers": []})).await;
    in_phase(&client, "unanswered", Phase::Migrated).await;
}

#[tokio::test]
async fn what_is_not_stored_cannot_be_migrated() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let reviews = serde_json::from_value(json!({"resource": "tokenreviews.authentication.k8s.io"})).unwrap();
    by_hand(&client, "reviews", reviews).await;
    let status = stalled_for(&client, "reviews", "InvalidSpec").await;
    let (.., message) = condition(&status, "Stalled");
    assert!(message.contains("cannot be listed and patched"), "{message}");
}

/// As `exuvia storage migrate --shed` checks it.
#[tokio::test]
async fn a_version_that_cannot_be_shed_is_refused_and_one_that_was_shed_may_be_dropped() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let widgets = flipped(&client, "shedding.example.com", 2, false).await;
    by_hand(&client, "shedding", spec_of(&widgets, json!({"shed": ["v9"]}))).await;
    let refused = async |part: &str| {
        let what = format!("refused: {part}");
        let because = |status: &StorageMigrationStatus| {
            let (stalled, reason, message) = condition(status, "Stalled");
            (stalled.as_str(), reason.as_str()) == ("True", "InvalidSpec") && message.contains(part)
        };
        status_when(&client, "shedding", &what, because).await;
    };
    refused("spec.shed: widgets.shedding.example.com has no version v9 to shed: it has v1alpha1, v1").await;
    change_spec(&client, "shedding", json!({"shed": ["v1"]})).await;
    refused("v1 is the storage version").await;
    assert_eq!(
        stored_at(&shared.control_plane, &widgets).await,
        [("v1alpha1".to_owned(), 2)].into(),
        "nothing is done"
    );
    change_spec(&client, "shedding", json!({"shed": ["v1alpha1"]})).await;
    in_phase(&client, "shedding", Phase::Migrated).await;
    widgets.drop_version(&client, "v1alpha1").await.unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let generation = crds.get(&widgets.crd_name()).await.unwrap().metadata.generation;
    status_when(&client, "shedding", "migrated after the drop", |status| {
        let seen = status.observed.as_ref().map(|observed| observed.generation);
        status.phase == Some(Phase::Migrated) && seen == generation
    })
    .await;
}
