//! The mode `SyncThenFreeze` while others write to the copies, or move the same kinds: nothing of theirs is lost, and nothing that
//! is written to a source.

use exuvia_api::{DatastoreMigration, DatastorePhase, MIGRATION_UID_ANNOTATION, datastore_reason as reason};
use exuvia_datastore::protocol::{Hold, NextStep, Step};
use exuvia_runtime::machine::{Ended, Machine};
use exuvia_testenv::until;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::resynced::{contents, cut_over, held};
use crate::{Stage, up_to};

/// Waits for a person, with the copy as somebody left it; then it is deleted, and everything is copied.
async fn is_waited_for(stage: &Stage, engine: &mut exuvia_datastore::Engine, name: &str) {
    let theirs = stage.api(&stage.new).get(name).await.unwrap();
    cut_over(stage).await;
    assert_eq!(stage.drive(engine).await, Ended::Held(Hold::Conflicts));
    assert_eq!(stage.phase().await, DatastorePhase::WaitingForConflictResolution);
    let [left] = &stage.all(&stage.new).await[..] else {
        panic!("one copy is left: {:?}", stage.all(&stage.new).await);
    };
    assert_eq!((left.uid(), &left.data), (theirs.uid(), &theirs.data));
    let found = engine.found();
    assert_eq!(found.conflicts[0].name, name, "{:?}", found.conflicts);
    let delete = DeleteParams::default();
    stage.api(&stage.new).delete(name, &delete).await.unwrap();
    assert_eq!(stage.goes_on(engine, Hold::Conflicts).await, Ended::Done);
    assert_eq!(
        contents(stage, &stage.new).await,
        contents(stage, &stage.old).await
    );
}

/// Whatever it holds: nobody would keep it in step.
#[tokio::test]
async fn a_copy_whose_status_somebody_writes_is_a_conflict() {
    for (name, policy) in [("contest-status", "Halt"), ("contest-prefer", "PreferTarget")] {
        let stage = Stage::new(name, 2).await;
        let mut engine = held(&stage, |spec| {
            if policy == "PreferTarget" {
                spec["conflicts"] = json!({"policy": policy});
            }
        })
        .await;
        let theirs = json!({"status": {"phase": "theirs"}});
        stage.merge_status(&stage.new, "w1", theirs).await;
        let ours = json!({"status": {"ready": 4}});
        stage.merge_status(&stage.old, "w1", ours).await;
        stage.merge(&stage.old, "w1", json!({"spec": {"size": 77}})).await;
        is_waited_for(&stage, &mut engine, "w1").await;
        assert_eq!(contents(&stage, &stage.new).await[1].1["size"], 77, "{name}");
    }
}

#[tokio::test]
async fn a_copy_that_somebody_writes_to_is_a_conflict_though_its_source_is_gone() {
    let stage = Stage::new("contest-gone", 2).await;
    let mut engine = held(&stage, |_| {}).await;
    let theirs = json!({"status": {"phase": "theirs"}});
    stage.merge_status(&stage.new, "w1", theirs).await;
    let delete = DeleteParams::default();
    stage.api(&stage.old).delete("w1", &delete).await.unwrap();
    is_waited_for(&stage, &mut engine, "w1").await;
    assert_eq!(stage.all(&stage.new).await.len(), 1);
}

/// Who only removes a field owns none, so the managed fields do not tell of it.
#[tokio::test]
async fn an_edit_that_only_removes_a_field_is_a_conflict() {
    for (name, moves) in [("contest-removed", false), ("contest-removed-both", true)] {
        let stage = Stage::new(name, 2).await;
        let mut engine = held(&stage, |_| {}).await;
        let theirs = json!({"spec": {"color": null}});
        stage.merge(&stage.new, "w1", theirs).await;
        if moves {
            stage.merge(&stage.old, "w1", json!({"spec": {"size": 50}})).await;
        }
        is_waited_for(&stage, &mut engine, "w1").await;
    }
}

#[tokio::test]
async fn what_a_status_loses_is_removed_from_its_copy() {
    let stage = Stage::new("contest-less", 3).await;
    let notes = json!({"status": {"ready": 1, "notes": {"a": "b", "c": "d"}}});
    for name in ["w0", "w1", "w2"] {
        stage.merge_status(&stage.old, name, notes.clone()).await;
    }
    let mut engine = held(&stage, |_| {}).await;
    assert_eq!(
        contents(&stage, &stage.new).await,
        contents(&stage, &stage.old).await
    );
    let fewer = json!({"status": {"ready": null, "notes": {"c": null}}});
    stage.merge_status(&stage.old, "w0", fewer).await;
    let none = json!({"status": null});
    stage.merge_status(&stage.old, "w1", none).await;
    cut_over(&stage).await;
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    let moved = contents(&stage, &stage.new).await;
    assert_eq!(moved, contents(&stage, &stage.old).await);
    assert_eq!(moved[0].2, json!({"notes": {"a": "b"}}));
    assert_eq!(moved[1].2, Value::Null);
}

#[tokio::test]
async fn a_namespace_that_is_deleted_while_targets_are_kept_in_step_is_waited_for() {
    let stage = Stage::new("contest-namespace", 6).await;
    let mut engine = held(&stage, |_| {}).await;
    let namespaces: Api<Namespace> = Api::all(stage.client.clone());
    let delete = DeleteParams::default();
    namespaces.delete(&stage.name, &delete).await.unwrap();
    until("the namespace is gone", async || {
        assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::BeforeCutover));
        namespaces.get_opt(&stage.name).await.unwrap().is_none()
    })
    .await;
    cut_over(&stage).await;
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert_eq!(stage.read().await.status.unwrap().retreats, 0);
}

/// As policies do that note who has changed an object.
#[tokio::test]
async fn what_a_policy_adds_to_every_update_is_not_a_difference() {
    let stage = Stage::new("contest-stamped", 2).await;
    let admission = |kind: &str| {
        let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        Api::<DynamicObject>::all_with(stage.client.clone(), &ApiResource::from_gvk(&kind))
    };
    let stamp = r#"Object{metadata: Object.metadata{annotations: {"audit.dev/modified-by": request.userInfo.username}}}"#;
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": stage.name},
        "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [stage.new.group()], "apiVersions": ["*"], "resources": ["widgets"], "operations": ["UPDATE"],
            }]},
            "reinvocationPolicy": "Never", "failurePolicy": "Fail",
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": stamp}}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": stage.name}, "spec": {"policyName": stage.name},
    });
    let (policies, bindings) = (
        admission("MutatingAdmissionPolicy"),
        admission("MutatingAdmissionPolicyBinding"),
    );
    let params = PostParams::default();
    let read = |object: Value| serde_json::from_value::<DynamicObject>(object).unwrap();
    policies.create(&params, &read(policy)).await.unwrap();
    bindings.create(&params, &read(binding)).await.unwrap();
    // Nobody's, and not moved.
    stage.create(&stage.new, "probe", json!({})).await;
    until("updates are stamped", async || {
        let touch = json!({"metadata": {"labels": {"touched": "true"}}});
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let api = stage.api(&stage.new);
        let touched = api.patch("probe", &params, &Patch::Merge(&touch)).await;
        touched.is_ok_and(|touched| touched.annotations().contains_key("audit.dev/modified-by"))
    })
    .await;
    let mut engine = held(&stage, |_| {}).await;
    stage.merge(&stage.old, "w0", json!({"spec": {"size": 9}})).await;
    cut_over(&stage).await;
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert_eq!(stage.phase().await, DatastorePhase::Complete);
    let target = stage.api(&stage.new).get("w0").await.unwrap();
    assert_eq!(target.data["spec"]["size"], 9);
    let delete = DeleteParams::default();
    bindings.delete(&stage.name, &delete).await.unwrap();
    policies.delete(&stage.name, &delete).await.unwrap();
}

async fn another(stage: &Stage, name: &str) -> DatastoreMigration {
    let mut spec = stage.spec();
    spec["mode"] = json!("SyncThenFreeze");
    let migration = serde_json::from_value(json!({
        "apiVersion": "exuvia.dev/v1beta1", "kind": "DatastoreMigration",
        "metadata": {"name": name}, "spec": spec,
    }))
    .unwrap();
    let params = PostParams::default();
    stage.migrations().create(&params, &migration).await.unwrap()
}

async fn set_phase(stage: &Stage, name: &str, phase: &str) {
    let status = json!({"status": {"phase": phase}});
    stage
        .migrations()
        .patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
        .await
        .unwrap();
}

/// Each has looked for others before the other one was there to be seen.
#[tokio::test]
async fn of_two_migrations_that_begin_at_the_same_time_one_retreats() {
    let stage = Stage::new("contest-two", 2).await;
    let (one, two) = ("contest-two-one", "contest-two-two");
    let older = another(&stage, one).await;
    set_phase(&stage, one, "Failed").await;
    let younger = another(&stage, two).await;
    let mut second = stage.engine(&younger);
    up_to(&mut second, Step::Start).await;
    set_phase(&stage, one, "Pending").await;
    let mut first = stage.engine(&older);
    up_to(&mut first, Step::Start).await;
    for engine in [&mut first, &mut second] {
        engine.carry_out(Step::Start).await.unwrap();
    }
    assert_eq!(stage.drive(&mut first).await, Ended::Held(Hold::Blocked));
    let [blocker] = first.blockers() else {
        panic!("{:?}", first.blockers());
    };
    assert_eq!(blocker.reason, reason::OVERLAP);
    assert!(blocker.message.contains(two), "{}", blocker.message);
    assert!(stage.all(&stage.new).await.is_empty());
    assert_eq!(stage.drive(&mut second).await, Ended::Done);
    let delete = DeleteParams::default();
    stage.migrations().delete(one, &delete).await.unwrap();
    assert_eq!(stage.drive(&mut first).await, Ended::Done);
    assert_eq!(
        contents(&stage, &stage.new).await,
        contents(&stage, &stage.old).await
    );
    assert!(matches!(second.next().await.unwrap(), NextStep::Done));
}

#[tokio::test]
async fn a_copy_that_another_migration_may_take_back_is_a_conflict() {
    let stage = Stage::new("contest-marked", 1).await;
    let migration = stage.migration(stage.spec()).await;
    let other = another(&stage, "contest-marked-other").await;
    let source = stage.api(&stage.old).get("w0").await.unwrap();
    let mut copy = stage.new.widget("v1", "w0");
    copy.metadata.namespace = Some(stage.name.clone());
    copy.data["spec"] = source.data["spec"].clone();
    let mark = (MIGRATION_UID_ANNOTATION.to_owned(), other.uid().unwrap());
    copy.metadata.annotations = Some([mark].into());
    let as_us = PostParams {
        field_manager: Some("exuvia-datastore".to_owned()),
        ..PostParams::default()
    };
    let made = stage.api(&stage.new).create(&as_us, &copy).await.unwrap();
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Conflicts));
    let delete = DeleteParams::default();
    let name = other.name_any();
    stage.migrations().delete(&name, &delete).await.unwrap();
    assert_eq!(stage.goes_on(&mut engine, Hold::Conflicts).await, Ended::Done);
    let left = stage.api(&stage.new).get("w0").await.unwrap();
    assert_eq!(left.uid(), made.uid());
}
