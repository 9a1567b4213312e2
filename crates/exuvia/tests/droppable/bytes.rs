//! What is stored, what is on record about it, and what is served.

use exuvia_api::StorageMigration;
use exuvia_testenv::proxy::{Fault, Match, Rule};
use exuvia_testenv::{ControlPlane, Widgets, until};
use http::Method;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, CustomResourceExt};
use serde_json::json;

use super::{admin, droppable, exuvia, flipped, json_of, migrate, proven, put_on_record, said};

/// Widgets stored at v1alpha1 whose managedFields say nothing, as after a tool that drops them; then the flip.
async fn unowned(client: &Client, group: &str, count: usize) -> Widgets {
    let widgets = Widgets::in_group(group);
    widgets.install(client, "v1alpha1").await.unwrap();
    widgets.create(client, "v1alpha1", count).await.unwrap();
    let strip = Patch::Merge(json!({"metadata": {"managedFields": [{}]}}));
    for index in 0..count {
        let name = format!("widget-{index:04}");
        let api = widgets.api(client, "v1alpha1");
        api.patch(&name, &PatchParams::default(), &strip).await.unwrap();
    }
    widgets.flip_storage(client, "v1").await.unwrap();
    widgets
}

async fn trim(client: &Client, crd: &str) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let trimmed = json!({"status": {"storedVersions": ["v1"]}});
    crds.patch_status(crd, &PatchParams::default(), &Patch::Merge(trimmed))
        .await
        .unwrap();
}

/// PITFALLS A39: what another tool has written, after a failure as after a success.
#[tokio::test]
async fn stored_versions_that_somebody_else_trimmed_prove_nothing() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = unowned(&client, "trimmed.example.com", 3).await;
    let crd = widgets.crd_name();
    trim(&client, &crd).await;

    let (code, text) = droppable(control_plane, &widgets, &[]).await;
    assert_eq!(code, 3, "{text}");
    assert!(text.starts_with("not known: v1alpha1 of"), "{text}");
    let way_out = format!("exuvia storage droppable {crd} v1alpha1 --prove");
    assert!(text.contains(&way_out), "{text}");

    let plan = ["plan", "--groups", "trimmed.example.com", "-o", "json"];
    let status = ["storage", "status", &crd, "-o", "json"];
    for command in [&plan[..], &status] {
        let line = &json_of(&admin(control_plane, command).await)[0];
        assert_eq!(
            line["verdict"], "storedVersions is clean, but no sweep has proven it",
            "{command:?}"
        );
    }
    let line = &json_of(&admin(control_plane, &plan).await)[0];
    assert_eq!(line["next"], way_out, "{line}");
}

/// Needs the engine to sweep although `storedVersions` is clean (`Options::always`), and to write down what it has proven.
#[tokio::test]
async fn prove_sweeps_now_and_the_answer_rests_on_that() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = unowned(&client, "proving.example.com", 3).await;
    trim(&client, &widgets.crd_name()).await;
    let server = control_plane.apiserver().url();
    let flags = ["--prove", "--settle", "300ms", "--apiserver", server];
    let (code, text) = droppable(control_plane, &widgets, &flags).await;
    assert_eq!(code, 0, "{text}");
    let counts = control_plane
        .stored("proving.example.com", "widgets")
        .count_by_version()
        .await
        .unwrap();
    assert_eq!(counts.get("proving.example.com/v1"), Some(&3), "{counts:?}");
    // It is on record from now on.
    let (code, text) = droppable(control_plane, &widgets, &[]).await;
    assert_eq!(code, 0, "{text}");
}

/// A healthy server answers 429 for a moment after a CRD was created: "storage is (re)initializing".
#[tokio::test]
async fn a_read_that_is_refused_for_a_moment_is_read_again_and_leaves_no_doubt() {
    let control_plane = ControlPlane::shared().await;
    let widgets = proven(control_plane, "refusedonce.example.com", 2).await;
    let proxy = control_plane.proxy().await.unwrap();
    let reads = [
        Match::method(Method::GET).resource("customresourcedefinitions"),
        Match::method(Method::GET).resource("storagemigrations"),
        Match::method(Method::GET).path("/apis"),
        Match::method(Method::GET).path("/apis/refusedonce.example.com/v1"),
    ];
    let refusals = reads.map(|read| proxy.inject(Rule::on(read).nth(1).then(Fault::refuse(429))));
    let kubeconfig = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(kubeconfig.path(), proxy.kubeconfig_yaml()).unwrap();
    let question = ["storage", "droppable", &widgets.crd_name(), "v1alpha1"];
    let (code, text) = said(&exuvia(kubeconfig.path().to_owned(), &question).await);
    assert_eq!(code, 0, "{text}");
    assert_eq!(refusals.map(|refusal| refusal.applied()), [1, 1, 1, 1]);
}

#[tokio::test]
async fn a_record_is_believed_until_the_crd_changes_and_shown() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = proven(control_plane, "onrecord.example.com", 2).await;
    let crd = widgets.crd_name();
    let (code, text) = droppable(control_plane, &widgets, &[]).await;
    assert_eq!(code, 0, "{text}");
    assert!(
        text.starts_with(&format!("yes: nothing holds v1alpha1 of {crd}\n")),
        "{text}"
    );
    let plan = json_of(
        &admin(
            control_plane,
            &["plan", "--groups", "onrecord.example.com", "-o", "json"],
        )
        .await,
    );
    assert_eq!(
        plan[0]["verdict"], "nothing old is stored (proven at generation 2)",
        "{plan}"
    );
    assert_eq!(
        plan[0]["next"],
        format!("exuvia storage droppable {crd} v1alpha1")
    );

    put_on_record(&client, &widgets, false).await;
    let (code, text) = droppable(control_plane, &widgets, &[]).await;
    assert_eq!(code, 1, "{text}");
    let patrol = format!("exuvia storage migrate {crd} --patrol");
    assert!(
        text.contains("migration: migrated at ") && text.contains(&patrol),
        "{text}"
    );

    put_on_record(&client, &widgets, true).await;
    widgets.flip_storage(&client, "v1alpha1").await.unwrap();
    widgets.flip_storage(&client, "v1").await.unwrap();
    trim(&client, &crd).await;
    let (code, text) = droppable(control_plane, &widgets, &[]).await;
    assert_eq!(code, 3, "two flips later: {text}");
}

#[tokio::test]
async fn a_migration_that_is_under_way_holds_the_version() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = proven(control_plane, "underway.example.com", 1).await;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.create(&PostParams::default(), &StorageMigration::crd())
        .await
        .unwrap();
    let api: Api<StorageMigration> = Api::all(client.clone());
    let wanted: StorageMigration = serde_json::from_value(
        json!({"metadata": {"name": "under-way"}, "spec": {"resource": widgets.crd_name()}}),
    )
    .unwrap();
    until("StorageMigrations can be created", async || {
        api.create(&PostParams::default(), &wanted).await.is_ok()
    })
    .await;
    for (phase, code) in [("Rewriting", 1), ("Stalled", 1), ("Migrated", 0)] {
        let begun = json!({"uid": "u", "generation": 1, "storageVersion": "v1"});
        let status = Patch::Merge(json!({"status": {"phase": phase, "observed": begun}}));
        api.patch_status("under-way", &PatchParams::default(), &status)
            .await
            .unwrap();
        let (answered, text) = droppable(control_plane, &widgets, &[]).await;
        assert_eq!(answered, code, "{text}");
        let said_so = text.contains(&format!("the StorageMigration under-way is {phase}"));
        assert_eq!(said_so, code == 1, "{text}");
    }
}

#[tokio::test]
async fn the_only_served_version_is_never_droppable() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = proven(control_plane, "only.example.com", 2).await;

    // As a manifest would have it: v1alpha1 goes, and v1 is not served.
    let mut next = widgets.crd("v1");
    let versions = next["spec"]["versions"].as_array_mut().unwrap();
    versions.remove(0);
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    for (served, wanted) in [(true, 0), (false, 1)] {
        next["spec"]["versions"][0]["served"] = json!(served);
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [next]});
        std::fs::write(path, format!("---\n---\n{list}\n---\nnull\n")).unwrap();
        let (code, text) = said(&admin(control_plane, &["storage", "droppable", "-f", path]).await);
        assert_eq!(code, wanted, "{text}");
        assert_eq!(
            text.contains("served: no version that stays is served"),
            !served,
            "{text}"
        );
    }

    // As it is now.
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut crd = crds.get(&widgets.crd_name()).await.unwrap();
    crd.spec.versions[1].served = false;
    crds.replace(&widgets.crd_name(), &PostParams::default(), &crd)
        .await
        .unwrap();
    put_on_record(&client, &widgets, true).await;
    until("v1 is not served", async || {
        widgets.api(&client, "v1").get("widget-0000").await.is_err()
    })
    .await;
    let (code, text) = droppable(control_plane, &widgets, &[]).await;
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("served: it is the only version that is served"),
        "{text}"
    );
}

#[tokio::test]
async fn bytes_that_stored_versions_lists_hold_it_and_a_migration_alone_is_not_yet_a_yes() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "listed.example.com", 2).await;
    let (code, text) = droppable(control_plane, &widgets, &[]).await;
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("bytes: objects may be stored at it, as status.storedVersions lists it"),
        "{text}"
    );
    let done = said(&migrate(control_plane, &[&widgets.crd_name()]).await).1;
    let ask = format!("exuvia storage droppable {} v1alpha1", widgets.crd_name());
    assert!(
        done.contains(&ask) && !done.contains("may be dropped from"),
        "{done}"
    );
    let (code, text) = droppable(control_plane, &widgets, &[]).await;
    assert_ne!(code, 0, "nobody has patrolled: {text}");
}
