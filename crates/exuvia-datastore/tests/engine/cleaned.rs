//! What becomes of the source in the end, and what never happens to anybody else's objects.

use exuvia_api::{DATASTORE_FINALIZER, DatastorePhase, RETIRED_ANNOTATION};
use exuvia_datastore::freeze;
use exuvia_datastore::protocol::{Hold, Step};
use exuvia_datastore::route::Clones;
use exuvia_runtime::machine::Ended;
use exuvia_runtime::servers::ApiServers;
use exuvia_testenv::{Widgets, until};
use exuvia_write::Writer;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, CustomResourceExt, ResourceExt};
use serde_json::{Value, json};

use crate::{Stage, control_plane, owned_by, start, up_to};

fn cleaned_up_by(stage: &Stage, source: &str) -> Value {
    let mut spec = stage.spec();
    spec["cleanup"] = json!({"source": source});
    spec
}

async fn crd_exists(stage: &Stage, widgets: &Widgets) -> bool {
    let crds: Api<CustomResourceDefinition> = Api::all(stage.client.clone());
    crds.get_opt(&widgets.crd_name()).await.unwrap().is_some()
}

/// A policy that was changed speaks as before for about a second more (PITFALLS D10), and refuses all the time.
async fn source_refuses(stage: &Stage) {
    let patch = Patch::Merge(json!({"spec": {"color": "blue"}}));
    until("the source says that it was moved", async || {
        let written = stage
            .api(&stage.old)
            .patch("w0", &PatchParams::default(), &patch)
            .await;
        let refused = written.expect_err("the source is frozen").to_string();
        refused.contains("was moved by").then_some(()).ok_or(refused)
    })
    .await;
}

#[tokio::test]
async fn a_source_that_stays_frozen_is_thawed_by_name() {
    let stage = Stage::new("kept", 1).await;
    assert_eq!(stage.run(stage.spec()).await, Ended::Done);
    let uid = stage.read().await.uid().unwrap();
    assert_eq!(stage.delete().await, Ended::Done);
    assert!(stage.migrations().get_opt(&stage.name).await.unwrap().is_none());
    source_refuses(&stage).await;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(stage.client.clone());
    let policy = policies.get(&format!("exuvia-{uid}-source")).await.unwrap();
    assert_eq!(policy.annotations()[RETIRED_ANNOTATION], "kept");
    assert_eq!(
        stage.policies(&uid).await,
        1,
        "only what keeps the source as it is"
    );
    let removed = freeze::thaw(&stage.client, &Writer::named("exuvia"), "kept").await;
    assert_eq!(removed.unwrap(), 2, "policy and binding");
    assert_eq!(stage.policies(&uid).await, 0);
    stage.thawed().await;
}

#[tokio::test]
async fn a_source_that_is_thawed_can_be_written_again() {
    let stage = Stage::new("thaw", 1).await;
    assert_eq!(stage.run(cleaned_up_by(&stage, "Thaw")).await, Ended::Done);
    let uid = stage.read().await.uid().unwrap();
    source_refuses(&stage).await;
    assert_eq!(stage.delete().await, Ended::Done);
    assert_eq!(stage.policies(&uid).await, 0);
    stage.thawed().await;
    assert_eq!(stage.all(&stage.new).await.len(), 1);
}

#[tokio::test]
async fn source_kinds_are_deleted_with_their_finalizers_and_dependents_live() {
    let stage = Stage::new("crds", 2).await;
    stage
        .merge(
            &stage.old,
            "w1",
            json!({"metadata": {"finalizers": ["example.com/old-controller"]}}),
        )
        .await;
    let owner = stage.api(&stage.old).get("w0").await.unwrap();
    stage
        .config_map("before", &[owned_by(&owner)], json!({"kept": "yes"}))
        .await;
    assert_eq!(stage.run(cleaned_up_by(&stage, "DeleteCRDs")).await, Ended::Done);
    // The old controller still makes objects.
    stage
        .config_map("late", &[owned_by(&owner)], json!({"kept": "yes"}))
        .await;
    let uid = stage.read().await.uid().unwrap();
    assert_eq!(stage.delete().await, Ended::Done);
    assert!(!crd_exists(&stage, &stage.old).await);
    assert!(crd_exists(&stage, &stage.new).await);
    assert_eq!(stage.policies(&uid).await, 0);
    let targets = stage.all(&stage.new).await;
    assert_eq!(targets.len(), 2);
    for name in ["before", "late"] {
        let dependent = stage.config_maps().get(name).await.unwrap();
        assert_eq!(
            dependent.metadata.owner_references,
            Some(vec![owned_by(&targets[0])])
        );
    }
}

#[tokio::test]
async fn an_object_that_was_not_moved_keeps_its_kind() {
    let stage = Stage::new("unmoved", 3).await;
    let mut spec = cleaned_up_by(&stage, "DeleteCRDs");
    spec["mappings"][0]["from"]["when"] = json!("object.spec.size != 1");
    // The target of this one is there already, so nothing on it will tell what it was made from.
    stage
        .create(&stage.new, "w2", json!({"size": 2, "color": "red"}))
        .await;
    assert_eq!(stage.run(spec).await, Ended::Done);
    let migration = stage.read().await;
    let converged_at = migration.status.clone().unwrap().converged_at.unwrap();
    // Somebody removes our lock and writes on.
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(stage.client.clone());
    let name = format!("exuvia-{}-source", migration.uid().unwrap());
    bindings.delete(&name, &DeleteParams::default()).await.unwrap();
    let mut number = 10;
    until("a write to the source a second after the commit", async || {
        number += 1;
        let patch = Patch::Merge(json!({"spec": {"size": number}}));
        let written = stage
            .api(&stage.old)
            .patch("w2", &PatchParams::default(), &patch)
            .await;
        written.is_ok_and(|written| {
            let mut entries = written.metadata.managed_fields.into_iter().flatten();
            entries.any(|entry| entry.time.is_some_and(|time| time.0 > converged_at.0))
        })
    })
    .await;
    stage
        .migrations()
        .delete(&stage.name, &DeleteParams::default())
        .await
        .unwrap();
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::CleanupBlocked));
    let mut named: Vec<&str> = engine
        .blockers()
        .iter()
        .map(|blocker| blocker.name.as_str())
        .collect();
    named.sort_unstable();
    assert_eq!(named, ["w1", "w2"]);
    assert!(crd_exists(&stage, &stage.old).await);
    for name in ["w1", "w2"] {
        stage
            .api(&stage.old)
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }
    assert_eq!(
        stage.goes_on(&mut engine, Hold::CleanupBlocked).await,
        Ended::Done
    );
    assert!(!crd_exists(&stage, &stage.old).await);
    assert_eq!(stage.all(&stage.new).await.len(), 2);
}

#[tokio::test]
async fn a_deletion_after_the_commit_goes_on_to_the_end() {
    let stage = Stage::new("converged", 2).await;
    let mut spec = cleaned_up_by(&stage, "Thaw");
    spec["cutover"] =
        json!({"waitFor": [{"group": "", "version": "v1", "kind": "ConfigMap", "name": "never"}]});
    let migration = stage.migration(spec).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::WaitingFor));
    assert_eq!(stage.phase().await, DatastorePhase::Converged);
    assert_eq!(stage.delete().await, Ended::Done);
    assert!(stage.migrations().get_opt(&stage.name).await.unwrap().is_none());
    let targets = stage.all(&stage.new).await;
    assert_eq!(targets.len(), 2, "nothing is undone");
    for target in targets {
        assert!(
            !target
                .annotations()
                .contains_key(exuvia_api::MIGRATION_UID_ANNOTATION)
        );
    }
    stage.thawed().await;
}

/// PITFALLS B14.
#[tokio::test]
async fn a_second_migration_of_a_migrated_cluster_writes_to_no_object() {
    let stage = Stage::new("again", 3).await;
    assert_eq!(stage.run(stage.spec()).await, Ended::Done);
    assert_eq!(stage.delete().await, Ended::Done);
    let before = stage.all(&stage.new).await;
    let audit = control_plane().await.audit();
    let written = || {
        let events = audit.events().unwrap();
        let of_ours = events.into_iter().filter(|event| {
            event.is_write()
                && event.code() < 300
                && event.resource() == "widgets"
                && !event.request_uri.contains("dryRun=All")
                && event
                    .object_ref
                    .as_ref()
                    .is_some_and(|object| object.namespace == "again")
        });
        of_ours.count()
    };
    let so_far = written();
    // All of it, and again with one target that somebody has changed since.
    assert_eq!(stage.run(stage.spec()).await, Ended::Done);
    let progress = stage.read().await.status.unwrap().progress.unwrap();
    assert_eq!((progress.skipped, progress.migrated), (3, 0));
    assert_eq!(stage.delete().await, Ended::Done);
    assert_eq!(written(), so_far);
    stage
        .merge(&stage.new, "w1", json!({"spec": {"color": "green"}}))
        .await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Conflicts));
    assert_eq!(stage.delete().await, Ended::Done);
    assert_eq!(written(), so_far + 1, "the test's own write");
    let after = stage.all(&stage.new).await;
    assert_eq!(after.len(), before.len());
    assert_eq!(after[1].data["spec"]["color"], "green");
}

#[tokio::test]
async fn a_migration_that_goes_along_with_its_crd_deletes_nothing() {
    let control_plane = start().await;
    let (complete, running) = tokio::join!(
        Stage::on(&control_plane, "gone-complete", 2),
        Stage::on(&control_plane, "gone-running", 2),
    );
    assert_eq!(
        complete.run(cleaned_up_by(&complete, "DeleteCRDs")).await,
        Ended::Done
    );
    let complete_migration = complete.read().await;
    let running_migration = running.migration(cleaned_up_by(&running, "DeleteCRDs")).await;
    let mut engine = running.engine(&running_migration);
    up_to(&mut engine, Step::Commit).await;
    let crds: Api<CustomResourceDefinition> = Api::all(complete.client.clone());
    crds.delete(
        exuvia_api::DatastoreMigration::crd_name(),
        &DeleteParams::default(),
    )
    .await
    .unwrap();
    until("the migrations are being deleted", async || {
        let migrations = complete.migrations().list(&ListParams::default()).await.unwrap();
        migrations
            .iter()
            .all(|migration| migration.metadata.deletion_timestamp.is_some())
    })
    .await;
    for (stage, migration, targets) in [
        (&complete, complete_migration, 2),
        (&running, running_migration, 0),
    ] {
        assert_eq!(stage.drive(&mut stage.engine(&migration)).await, Ended::Done);
        assert!(crd_exists(stage, &stage.old).await, "{}", stage.name);
        assert_eq!(stage.all(&stage.old).await.len(), 2);
        assert_eq!(stage.all(&stage.new).await.len(), targets);
        let kept = usize::from(stage.name == "gone-complete");
        assert_eq!(
            stage.policies(migration.uid().as_deref().unwrap()).await,
            kept,
            "{}",
            stage.name
        );
    }
    running.thawed().await;
    source_refuses(&complete).await;
    until("the CRD is gone", async || {
        crds.get_opt(exuvia_api::DatastoreMigration::crd_name())
            .await
            .unwrap()
            .is_none()
    })
    .await;
}

/// The process ended while objects were tried at clones; then somebody deleted the migration.
#[tokio::test]
async fn clones_of_an_earlier_life_are_removed_with_the_migration() {
    let stage = Stage::new("clones", 1).await;
    let migration = stage.migration(stage.spec()).await;
    let uid = migration.uid().unwrap();
    let finalizer = json!({"metadata": {"finalizers": [DATASTORE_FINALIZER]}});
    stage
        .migrations()
        .patch(&stage.name, &PatchParams::default(), &Patch::Merge(&finalizer))
        .await
        .unwrap();
    let config = kube::Config::new(http::Uri::from_static("https://127.0.0.1:1"));
    let clones = Clones::new(
        stage.client.clone(),
        Writer::named("exuvia-datastore"),
        ApiServers::new(&config, &[], &[]),
        &uid,
    );
    clones.ensure(&[stage.new.resource("v1")]).await.unwrap();
    assert_eq!(stage.delete().await, Ended::Done);
    assert!(!clones.exist().await.unwrap());
    assert!(stage.migrations().get_opt(&stage.name).await.unwrap().is_none());
}

/// Its content is nowhere else: the target that was there before was left as it was.
#[tokio::test]
async fn a_source_whose_target_was_left_as_it_was_keeps_its_kind() {
    let stage = Stage::new("preferred", 2).await;
    stage
        .create(&stage.new, "w0", json!({"size": 77, "color": "red"}))
        .await;
    let mut spec = cleaned_up_by(&stage, "DeleteCRDs");
    spec["conflicts"] = json!({"policy": "PreferTarget"});
    assert_eq!(stage.run(spec).await, Ended::Done);
    let migration = stage.read().await;
    stage
        .migrations()
        .delete(&stage.name, &DeleteParams::default())
        .await
        .unwrap();
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::CleanupBlocked));
    let blockers = engine.blockers();
    let named: Vec<&str> = blockers.iter().map(|blocker| blocker.name.as_str()).collect();
    assert_eq!(named, ["w0"], "{blockers:?}");
    assert!(blockers[0].message.contains("spec.size"), "{blockers:?}");
    assert!(crd_exists(&stage, &stage.old).await);
    // Once it is equal, nothing is lost with it.
    stage.merge(&stage.new, "w0", json!({"spec": {"size": 0}})).await;
    assert_eq!(
        stage.goes_on(&mut engine, Hold::CleanupBlocked).await,
        Ended::Done
    );
    assert!(!crd_exists(&stage, &stage.old).await);
}
