//! Somebody else's policies against ours: copies that cannot be deleted, differences that an update hides, words that quote.

use exuvia_api::{DatastorePhase, datastore_reason as reason};
use exuvia_datastore::protocol::{Hold, Step};
use exuvia_runtime::machine::Ended;
use exuvia_testenv::until;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::{Stage, up_to};

fn dry_run() -> PostParams {
    PostParams {
        dry_run: true,
        ..PostParams::default()
    }
}

/// A policy of somebody else about the targets.
async fn refuse(stage: &Stage, operation: &str, validation: Value) {
    let name = format!("{}-somebody", stage.name);
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": {"name": name}, "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [stage.new.group()], "apiVersions": ["*"], "operations": [operation], "resources": ["widgets"],
            }]},
            "validations": [validation],
        },
    }))
    .unwrap();
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
        "metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]},
    }))
    .unwrap();
    let (policies, bindings) = (
        Api::all(stage.client.clone()),
        Api::<ValidatingAdmissionPolicyBinding>::all(stage.client.clone()),
    );
    policies.create(&PostParams::default(), &policy).await.unwrap();
    bindings.create(&PostParams::default(), &binding).await.unwrap();
}

async fn let_go(stage: &Stage) {
    let name = format!("{}-somebody", stage.name);
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(stage.client.clone());
    bindings.delete(&name, &DeleteParams::default()).await.unwrap();
}

/// Until the API server obeys the policy about deletions.
async fn cannot_be_deleted(stage: &Stage, name: &str) {
    let params = DeleteParams {
        dry_run: true,
        ..DeleteParams::default()
    };
    until("copies cannot be deleted", async || {
        let refused = stage.api(&stage.new).delete(name, &params).await;
        refused.is_err_and(|error| error.to_string().contains("-somebody"))
    })
    .await;
}

#[tokio::test]
async fn copies_that_somebody_keeps_do_not_keep_writers_of_the_source_away() {
    let stage = Stage::new("keptcopies", 2).await;
    let other = stage.create(&stage.new, "other", json!({"size": 9})).await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Commit).await;
    refuse(
        &stage,
        "DELETE",
        json!({"expression": "false", "message": "nothing is deleted here"}),
    )
    .await;
    cannot_be_deleted(&stage, &other.name_any()).await;
    stage
        .migrations()
        .delete(&stage.name, &DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::CopiesLeft));
    let uid = migration.uid().unwrap();
    assert_eq!(stage.policies(&uid).await, 0);
    stage.thawed().await;
    let blockers = engine.blockers();
    assert_eq!(blockers.len(), 2, "{blockers:?}");
    assert_eq!(blockers[0].reason, reason::COPIES_LEFT);
    assert!(
        blockers[0].message.contains("keptcopies-somebody"),
        "{blockers:?}"
    );
    // Another process knows it, too, and it ends when they can be deleted.
    let mut engine = stage.engine(&stage.read().await);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::CopiesLeft));
    let_go(&stage).await;
    assert_eq!(stage.goes_on(&mut engine, Hold::CopiesLeft).await, Ended::Done);
    assert!(stage.migrations().get_opt(&stage.name).await.unwrap().is_none());
    let left: Vec<String> = stage
        .all(&stage.new)
        .await
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    assert_eq!(left, ["other"], "nothing but what is not ours");
}

fn mutating(kind: &str, plural: &str) -> ApiResource {
    let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
    ApiResource::from_gvk_with_plural(&kind, plural)
}

/// A target that somebody made with another value, where a policy puts back what there was on each update.
#[tokio::test]
async fn a_difference_that_every_update_hides_is_a_conflict() {
    let stage = Stage::new("putback", 1).await;
    stage
        .create(&stage.new, "w0", json!({"size": 7, "color": "red"}))
        .await;
    let policy = mutating("MutatingAdmissionPolicy", "mutatingadmissionpolicies");
    let binding = mutating(
        "MutatingAdmissionPolicyBinding",
        "mutatingadmissionpolicybindings",
    );
    let name = "putback-size";
    let rules = DynamicObject::new(name, &policy).data(json!({"spec": {
        "failurePolicy": "Fail", "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [{
            "apiGroups": [stage.new.group()], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["widgets"],
        }]},
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression":
            "[JSONPatch{op: 'replace', path: '/spec/size', value: oldObject.spec.size}]",
        }}],
    }}));
    let policies: Api<DynamicObject> = Api::all_with(stage.client.clone(), &policy);
    policies.create(&PostParams::default(), &rules).await.unwrap();
    let bound = DynamicObject::new(name, &binding).data(json!({"spec": {"policyName": name}}));
    let bindings: Api<DynamicObject> = Api::all_with(stage.client.clone(), &binding);
    bindings.create(&PostParams::default(), &bound).await.unwrap();
    let live = stage.api(&stage.new).get("w0").await.unwrap();
    until("updates do not change the size", async || {
        let mut other = live.clone();
        other.data["spec"]["size"] = json!(8);
        let put = stage.api(&stage.new).replace("w0", &dry_run(), &other).await;
        put.is_ok_and(|put| put.data["spec"]["size"] == 7)
    })
    .await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Conflicts));
    assert_eq!(engine.found().conflicts[0].field, "spec.size");
}

#[tokio::test]
async fn words_of_somebodys_policy_that_quote_an_object_are_not_shown() {
    let stage = Stage::new("quoted", 0).await;
    let secret = "s3cret-payload";
    stage.create_old("w0", json!({"payload": secret})).await;
    refuse(
        &stage,
        "CREATE",
        json!({"expression": "false", "messageExpression": "'not with ' + object.spec.payload"}),
    )
    .await;
    let mut probe = stage.new.widget("v1", "probe");
    probe.metadata.namespace = Some(stage.name.clone());
    probe.data["spec"] = json!({"payload": secret});
    until("the policy quotes what it refuses", async || {
        let refused = stage.api(&stage.new).create(&dry_run(), &probe).await;
        refused.is_err_and(|error| error.to_string().contains(secret))
    })
    .await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    let blocker = &engine.blockers()[0];
    assert!(blocker.message.contains("quoted-somebody"), "{}", blocker.message);
    assert!(!blocker.message.contains(secret), "{}", blocker.message);
    assert_eq!(stage.phase().await, DatastorePhase::Pending);
}
