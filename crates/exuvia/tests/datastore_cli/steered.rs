//! `exuvia datastore start`, `cutover`, `abort`, `retry` and `thaw`: what each writes, and when it refuses.

use exuvia_api::{DATASTORE_FINALIZER, DATASTORE_LABEL, RETIRED_ANNOTATION, RETRY_ANNOTATION};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::binary::{printed, text};
use crate::world::World;

#[tokio::test]
async fn start_creates_a_valid_migration_once() {
    let world = World::new("started").await;
    let mut invalid = world.manifest();
    invalid["spec"]["mappings"][0]["convert"] = json!([{"path": "spec.size", "value": "object.spec +"}]);
    let output = world.exuvia(&["start", "-f", &world.file(&invalid)]).await;
    assert_eq!(output.status.code(), Some(2), "{}", printed(&output));
    assert!(
        printed(&output).contains("spec.mappings[0].convert[0].value"),
        "{}",
        printed(&output)
    );
    assert!(world.live().await.is_none(), "an invalid migration was created");
    let file = world.file(&world.manifest());
    let output = world.exuvia(&["start", "-f", &file]).await;
    assert!(output.status.success(), "{}", printed(&output));
    let live = world.live().await.unwrap();
    assert_eq!(live.spec.mappings.len(), 1);
    let output = world.exuvia(&["start", "-f", &file]).await;
    assert_eq!(output.status.code(), Some(2));
    let said = printed(&output);
    assert!(
        said.starts_with("error: there is a DatastoreMigration started already, in phase Pending: "),
        "{said}"
    );
    assert_eq!(world.live().await, Some(live));
}

#[tokio::test]
async fn cutover_clears_the_hold_and_nothing_else() {
    let world = World::new("held").await;
    let mut manifest = world.manifest();
    manifest["spec"]["cutover"] = json!({"hold": true});
    manifest["spec"]["concurrency"] = 3.into();
    world.create(manifest).await;
    let output = world.exuvia(&["cutover", "held"]).await;
    assert!(output.status.success(), "{}", printed(&output));
    assert!(
        printed(&output).contains("it is not verified yet"),
        "{}",
        printed(&output)
    );
    let live = world.live().await.unwrap();
    assert!(!live.spec.cutover.hold);
    assert_eq!(live.spec.concurrency, Some(3));
    let output = world.exuvia(&["cutover", "held"]).await;
    assert!(output.status.success());
    assert!(
        printed(&output).contains("there is nothing to clear"),
        "{}",
        printed(&output)
    );
    assert_eq!(
        world.live().await.unwrap().resource_version(),
        live.resource_version()
    );
}

#[tokio::test]
async fn abort_deletes_before_the_commit_and_refuses_after_it() {
    let world = World::new("aborted").await;
    let mut manifest = world.manifest();
    manifest["metadata"]["finalizers"] = json!([DATASTORE_FINALIZER]);
    manifest["spec"]["cleanup"] = json!({"source": "DeleteCRDs"});
    world.create(manifest).await;
    for phase in ["Converged", "Complete"] {
        world.set_status(json!({"phase": phase})).await;
        let output = world.exuvia(&["abort", "aborted"]).await;
        let said = printed(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("nothing is undone any more") && said.contains("all objects of the source"),
            "{said}"
        );
        assert!(world.live().await.unwrap().metadata.deletion_timestamp.is_none());
    }
    world.set_status(json!({"phase": "Migrating"})).await;
    let output = world.exuvia(&["abort", "aborted"]).await;
    let said = printed(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("the operator undoes everything that aborted did: its copies are deleted"),
        "{said}"
    );
    assert!(world.live().await.unwrap().metadata.deletion_timestamp.is_some());
    let output = world.exuvia(&["abort", "aborted"]).await;
    assert!(output.status.success());
    assert!(
        text(&output.stdout).starts_with("aborted is being deleted since "),
        "{}",
        printed(&output)
    );
}

#[tokio::test]
async fn with_cleanup_a_converged_migration_is_deleted() {
    let world = World::new("cleaned").await;
    world.create(world.manifest()).await;
    world.set_status(json!({"phase": "Complete"})).await;
    let output = world.exuvia(&["abort", "cleaned", "--cleanup"]).await;
    let said = printed(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("cleaned cannot be undone: the source stays, and nobody can create or update"),
        "{said}"
    );
    assert!(world.live().await.is_none());
}

#[tokio::test]
async fn retry_asks_a_failed_migration_only() {
    let world = World::new("retried").await;
    world.create(world.manifest()).await;
    world.set_status(json!({"phase": "Converged"})).await;
    let output = world.exuvia(&["retry", "retried"]).await;
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        printed(&output),
        "error: retried has not failed, it is Converged: there is nothing to retry\n"
    );
    assert!(
        !world
            .live()
            .await
            .unwrap()
            .annotations()
            .contains_key(RETRY_ANNOTATION)
    );
    world.set_status(json!({"phase": "Failed"})).await;
    let output = world.exuvia(&["retry", "retried"]).await;
    assert!(output.status.success(), "{}", printed(&output));
    assert!(
        world
            .live()
            .await
            .unwrap()
            .annotations()
            .contains_key(RETRY_ANNOTATION)
    );
}

#[tokio::test]
async fn thaw_removes_what_outlived_its_migration_and_nothing_else() {
    let world = World::new("thawed").await;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(world.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(world.client.clone());
    for (name, annotations) in [
        ("thawed-retired", json!({RETIRED_ANNOTATION: "thawed"})),
        ("thawed-other", json!({RETIRED_ANNOTATION: "another"})),
        ("thawed-running", json!({})),
    ] {
        let metadata = json!({"name": name, "labels": {DATASTORE_LABEL: "u"}, "annotations": annotations});
        let policy = json!({"metadata": metadata, "spec": {
            "matchConstraints": {"resourceRules": [
                {"apiGroups": ["none.example.com"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["*"]},
            ]},
            "validations": [{"expression": "false"}],
        }});
        let policy = serde_json::from_value(policy).unwrap();
        policies.create(&PostParams::default(), &policy).await.unwrap();
        let binding =
            json!({"metadata": metadata, "spec": {"policyName": name, "validationActions": ["Deny"]}});
        let binding = serde_json::from_value(binding).unwrap();
        bindings.create(&PostParams::default(), &binding).await.unwrap();
    }
    let output = world.exuvia(&["thaw", "thawed"]).await;
    assert!(output.status.success(), "{}", printed(&output));
    for (name, is_there) in [
        ("thawed-retired", false),
        ("thawed-other", true),
        ("thawed-running", true),
    ] {
        assert_eq!(
            policies.get_opt(name).await.unwrap().is_some(),
            is_there,
            "{name}"
        );
        assert_eq!(
            bindings.get_opt(name).await.unwrap().is_some(),
            is_there,
            "{name}"
        );
    }
    let output = world.exuvia(&["thaw", "thawed"]).await;
    assert_eq!(output.status.code(), Some(2));
    let said = printed(&output);
    assert!(
        said.contains("no migration \"thawed\" has left a frozen source behind"),
        "{said}"
    );
}
