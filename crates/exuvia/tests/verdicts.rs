//! `exuvia storage migrate` ends with an answer that one can act on: what becomes of each old version, and what to do.

#![allow(clippy::disallowed_methods)] // tests set up their world
#![allow(clippy::unwrap_used)] // a test may panic

mod binary;

use exuvia_testenv::webhook::{Conversion, WebhookServer};
use exuvia_testenv::{ControlPlane, Widgets};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::binary::{flipped, json_of, migrate, printed, text};

/// The exit code of `storage migrate`, and what it says on standard output.
async fn migrated(args: &[&str]) -> (i32, String) {
    let output = migrate(ControlPlane::shared().await, args).await;
    (output.status.code().unwrap(), text(&output.stdout))
}

/// The verdict on v1alpha1 in the JSON of a migration.
async fn verdict(args: &[&str]) -> Value {
    let output = migrate(ControlPlane::shared().await, &[args, &["-o", "json"]].concat()).await;
    let verdicts = json_of(&output)[0]["oldVersions"].take();
    let [verdict] = verdicts.as_array().unwrap().as_slice() else {
        panic!("one for each old version: {}", printed(&output));
    };
    assert_eq!(verdict["version"], "v1alpha1");
    verdict.clone()
}

/// Somebody writes at v1alpha1.
async fn laggard(client: &Client, widgets: &Widgets, name: &str) {
    let params = PatchParams {
        field_manager: Some("laggard".into()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({"spec": {"size": 5}}));
    let old = widgets.api(client, "v1alpha1");
    old.patch(name, &params, &patch).await.unwrap();
}

#[tokio::test]
async fn a_migration_ends_with_one_answer_for_each_old_version() {
    let client = ControlPlane::shared().await.client().unwrap();
    let widgets = flipped(&client, "ends.example.com", 3).await;
    let crd = widgets.crd_name();
    let ask = format!("exuvia storage droppable {crd} v1alpha1");

    let (code, said) = migrated(&[&crd]).await;
    assert_eq!(code, 0, "{said}");
    let held = "v1alpha1: held by\n    migration: migrated at ";
    let patrol = format!("not patrolled yet: run `exuvia storage migrate {crd} --patrol`");
    assert!(said.contains(held) && said.contains(&patrol), "{said}");
    let references =
        "not known, references: not looked at (that takes a list of every object in the cluster)";
    assert!(
        said.contains(&format!("{references}; to find out: {ask}")),
        "{said}"
    );
    assert!(!said.contains("next: "), "it is said once: {said}");

    let (code, said) = migrated(&[&crd, "--patrol"]).await;
    assert_eq!(code, 0, "{said}");
    let last = said.lines().last().unwrap();
    assert_eq!(
        last,
        format!("  v1alpha1: {references}; to find out: {ask}"),
        "{said}"
    );
    let of_machine = verdict(&[&crd]).await;
    assert_eq!(of_machine["answer"], "notKnown", "{of_machine}");
    assert_eq!(of_machine["unknown"][0]["what"], "references", "{of_machine}");
    assert_eq!(of_machine["unknown"][0]["command"], ask.as_str(), "{of_machine}");

    let (code, said) = migrated(&[&crd, "--require-droppable"]).await;
    assert_eq!(code, 0, "{said}");
    let last = said.lines().last().unwrap();
    assert_eq!(last, "  v1alpha1: droppable, nothing holds it", "{said}");
    assert_eq!(verdict(&[&crd, "--require-droppable"]).await["answer"], "yes");
}

/// From the flip to the answer in one command.
#[tokio::test]
async fn one_that_must_be_droppable_is_patrolled_and_looked_at_in_the_same_run() {
    let client = ControlPlane::shared().await.client().unwrap();
    let crd = flipped(&client, "oneshot.example.com", 2).await.crd_name();
    let (code, said) = migrated(&[&crd, "--require-droppable"]).await;
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("2 rewritten") && said.contains("v1alpha1: droppable"),
        "{said}"
    );
}

#[tokio::test]
async fn a_held_version_is_a_failure_only_where_it_must_be_droppable() {
    let client = ControlPlane::shared().await.client().unwrap();
    let widgets = flipped(&client, "required.example.com", 3).await;
    let crd = widgets.crd_name();
    assert_eq!(migrated(&[&crd, "--patrol"]).await.0, 0);
    laggard(&client, &widgets, "widget-0002").await;

    let (code, said) = migrated(&[&crd]).await;
    assert_eq!(code, 0, "{said}");
    let held = "ownership: laggard owns fields at it on 1 object (such as default/widget-0002";
    let cure = format!("run `exuvia storage migrate {crd} --shed v1alpha1`");
    assert!(said.contains(held) && said.contains(&cure), "{said}");
    let (code, said) = migrated(&[&crd, "--require-droppable"]).await;
    assert_eq!(code, 1, "{said}");
    assert!(said.contains(&format!("v1alpha1: held by {held}")), "{said}");
    let of_machine = verdict(&[&crd]).await;
    assert_eq!(of_machine["answer"], "no", "{of_machine}");
    assert_eq!(of_machine["holders"][0]["holds"], "ownership", "{of_machine}");
    assert_eq!(of_machine["holders"][0]["objects"], 1, "{of_machine}");

    let (code, said) = migrated(&[&crd, "--require-droppable", "--shed", "v1alpha1"]).await;
    assert_eq!(code, 0, "the cure that was named cures: {said}");
}

#[tokio::test]
async fn references_are_answered_for_where_they_are_moved_and_a_moved_one_is_not_called_nothing() {
    let client = ControlPlane::shared().await.client().unwrap();
    let widgets = flipped(&client, "referred.example.com", 1).await;
    let crd = widgets.crd_name();
    assert_eq!(migrated(&[&crd, "--patrol"]).await.0, 0);
    let owner = widgets.api(&client, "v1").get("widget-0000").await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let map = json!({"metadata": {"name": "referring", "ownerReferences": [{
        "apiVersion": "referred.example.com/v1alpha1", "kind": "Widget", "name": "widget-0000",
        "uid": owner.metadata.uid}]}});
    let map = serde_json::from_value(map).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();

    let (code, said) = migrated(&[&crd, "--require-droppable"]).await;
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("v1alpha1: held by references: ownerReferences of 1 object in configmaps"),
        "{said}"
    );
    assert!(said.contains("nothing was written"), "{said}");

    let (code, said) = migrated(&[&crd, "--owner-references"]).await;
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("1 dependent moved") && said.contains("v1alpha1: droppable"),
        "{said}"
    );
    assert!(!said.contains("nothing was written"), "{said}");
}

#[tokio::test]
async fn objects_that_fail_hold_the_version_and_the_answer_says_so() {
    let client = ControlPlane::shared().await.client().unwrap();
    let widgets = Widgets::in_group("failing.example.com");
    let mut crd = widgets.crd("v1alpha1");
    // Whatever is written to it at v1, a transition rule refuses it.
    let spec = &mut crd["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    spec["x-kubernetes-validations"] = json!([{"rule": "self.size != 7 || self.size > oldSelf.size"}]);
    widgets.install_crd(&client, crd).await.unwrap();
    widgets.create(&client, "v1alpha1", 4).await.unwrap();
    // The other sample of the preflight is one that passes.
    let old = widgets.api(&client, "v1alpha1");
    let seven = Patch::Merge(json!({"spec": {"size": 7}}));
    old.patch("widget-0003", &PatchParams::default(), &seven)
        .await
        .unwrap();
    widgets.flip_storage(&client, "v1").await.unwrap();

    let crd = widgets.crd_name();
    let (code, said) = migrated(&[&crd]).await;
    assert_eq!(code, 1, "{said}");
    let held = "v1alpha1: held by bytes: objects may be stored at it, as status.storedVersions lists it: this run stalled \
                (Failures); ";
    let cure = format!("{held}remove the cause, then run `exuvia storage migrate {crd}`");
    assert!(said.contains(&cure), "{said}");
    let of_machine = verdict(&[&crd]).await;
    assert_eq!(of_machine["answer"], "no", "{of_machine}");
    assert_eq!(of_machine["holders"][0]["holds"], "bytes", "{of_machine}");
}

/// A webhook that renames a field, and takes no other value of it than it has: so it cannot be asked who owns it.
async fn taciturn(control_plane: &ControlPlane, widgets: &Widgets) -> WebhookServer {
    let webhooks = control_plane.webhooks().await.unwrap();
    webhooks.on_convert(Conversion::by(|mut object, to| {
        let (from, into) = if to.ends_with("/v1") {
            ("color", "paint")
        } else {
            ("paint", "color")
        };
        if let Some(spec) = object["spec"].as_object_mut()
            && let Some(value) = spec.remove(from)
        {
            assert_eq!(value, "green");
            spec.insert(into.to_owned(), value);
        }
        object["apiVersion"] = json!(to);
        object
    }));
    let mut crd = widgets.crd("v1alpha1");
    crd["spec"]["conversion"] = webhooks.conversion();
    let new = &mut crd["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let properties = new["properties"].as_object_mut().unwrap();
    let color = properties.remove("color").unwrap();
    properties.insert("paint".into(), color);
    let client = control_plane.client().unwrap();
    widgets.install_crd(&client, crd).await.unwrap();
    webhooks
}

#[tokio::test]
async fn entries_that_cannot_be_moved_are_told_of_and_what_was_to_be_shed_and_is_not_is_a_failure() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("unmovable.example.com");
    let _webhooks = taciturn(control_plane, &widgets).await;
    widgets.create(&client, "v1alpha1", 2).await.unwrap();
    widgets.flip_storage(&client, "v1").await.unwrap();
    let crd = widgets.crd_name();

    let (code, said) = migrated(&[&crd, "--patrol"]).await;
    assert_eq!(code, 0, "the objects are migrated: {said}");
    assert!(
        said.contains("v1alpha1: held") && said.contains("--managed-fields drop"),
        "{said}"
    );
    let (code, said) = migrated(&[&crd, "--shed", "v1alpha1"]).await;
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("not shed: managedFields entries still name v1alpha1"),
        "{said}"
    );
    let patrolled = said.lines().find(|line| line.contains("patrolled")).unwrap();
    assert!(
        patrolled.starts_with("  patrolled at ") && patrolled.contains("by an earlier run, not by this one"),
        "this run has not patrolled: {said}"
    );
    let output = migrate(control_plane, &[&crd, "--shed", "v1alpha1", "-o", "json"]).await;
    assert_eq!(json_of(&output)[0]["unshed"], json!(["v1alpha1"]));

    // The run before was not patrolled: what is asked for is done anyway.
    let drop = [
        crd.as_str(),
        "--shed",
        "v1alpha1",
        "--managed-fields",
        "drop",
        "--require-droppable",
    ];
    let (code, said) = migrated(&drop).await;
    assert_eq!(code, 0, "the cure that was named cures: {said}");
}

#[tokio::test]
async fn a_good_dry_run_says_that_it_would_migrate() {
    let client = ControlPlane::shared().await.client().unwrap();
    let crd = flipped(&client, "rehearsed.example.com", 2).await.crd_name();
    let output = migrate(ControlPlane::shared().await, &[&crd, "--dry-run", "-o", "json"]).await;
    assert!(output.status.success(), "{}", printed(&output));
    let summary = json_of(&output);
    assert_eq!(summary[0]["end"], json!({"state": "wouldMigrate"}));
    assert_eq!(
        summary[0]["oldVersions"],
        Value::Null,
        "nothing has become of them"
    );
    let both = migrate(
        ControlPlane::shared().await,
        &[&crd, "--dry-run", "--require-droppable"],
    )
    .await;
    assert_eq!(
        both.status.code(),
        Some(2),
        "a dry run makes nothing droppable: {}",
        printed(&both)
    );
}
