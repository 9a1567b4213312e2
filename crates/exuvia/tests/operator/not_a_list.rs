//! Answers in the place of a list that are not lists.

use exuvia_api::{Phase, StorageMigration};
use exuvia_testenv::proxy::{Answer, Fault, Match, Rule};
use exuvia_testenv::{Widgets, until};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::harness::*;
use crate::oracle::start_behind;

/// A gateway in front of the API server answers for it. No CRD was deleted, so no migration is removed: least of all one
/// that somebody has suspended.
#[tokio::test]
async fn an_answer_that_is_not_a_list_deletes_nothing() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("notalist.example.com");
    widgets.install(&client, "v1alpha1").await.unwrap();
    widgets.create(&client, "v1alpha1", 5).await.unwrap();
    label(&client, &widgets, Some("true")).await;
    let crd = widgets.crd_name();
    let proxy = control_plane.proxy().await.unwrap();
    let operator = start_behind(&proxy, &control_plane, &[]);
    in_phase(&client, &crd, Phase::Migrated).await;
    operator.process.kill().unwrap();
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    let suspend = Patch::Merge(json!({"spec": {"suspend": true}}));
    let before = migrations
        .patch(&crd, &PatchParams::default(), &suspend)
        .await
        .unwrap();
    widgets.flip_storage(&client, "v1").await.unwrap();

    // Each watch is told that it is too late, so that a list follows. The gateway answers those lists.
    let crds = || Match::method(http::Method::GET).resource("customresourcedefinitions");
    let late = proxy.inject(
        Rule::on(crds().query("watch=true"))
            .always()
            .then(Fault::refuse(410)),
    );
    let _operator = start_behind(&proxy, &control_plane, &[]);
    status_when(&client, &crd, "looked at, and suspended", |status| {
        status.phase == Some(Phase::Suspended)
    })
    .await;
    let login = Answer::status(200).json(&json!({"error": "session expired"}));
    let gateway = proxy.inject(
        Rule::on(crds().query("limit=50"))
            .always()
            .then(Fault::refuse(login)),
    );
    until("the gateway has answered", async || gateway.applied() >= 3).await;
    gateway.remove();
    late.remove();

    // What comes after those lists is seen, so what they made of the CRD would have been seen as well.
    let later = flipped(&client, "later.example.com", 3, true).await;
    in_phase(&client, &later.crd_name(), Phase::Migrated).await;
    let after = migrations.get(&crd).await.unwrap();
    assert_eq!(
        (after.uid(), after.spec.suspend),
        (before.uid(), true),
        "{:?}",
        after.status
    );
    assert_eq!(stored_versions(&client, &widgets).await, ["v1alpha1", "v1"]);
}
