//! Beside others: the in-tree migrator on the same CRD at the same time, and the garbage collector.

use exuvia_api::{Phase, StorageMigration};
use exuvia_testenv::ControlPlane;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::json;

use crate::harness::*;

#[tokio::test]
async fn the_in_tree_migrator_on_the_same_crd_does_no_harm_and_the_garbage_collector_cleans_up() {
    let control_plane = ControlPlane::builder()
        .controllers([
            "storage-version-migrator-controller",
            "garbage-collector-controller",
        ])
        .start()
        .await
        .unwrap();
    let client = control_plane.client().unwrap();
    install_crds(&client).await;
    let widgets = flipped(&client, "beside.example.com", 60, true).await;

    let kind = GroupVersionKind::gvk("storagemigration.k8s.io", "v1", "StorageVersionMigration");
    let resource = ApiResource::from_gvk(&kind);
    let in_tree: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut migration = DynamicObject::new("beside", &resource);
    migration.data = json!({"spec": {"resource": {"group": widgets.group(), "resource": "widgets"}}});
    in_tree.create(&PostParams::default(), &migration).await.unwrap();
    let operator = Operator::start(&control_plane, control_plane.admin(), "a", &[]);

    let name = widgets.crd_name();
    in_phase(&client, &name, Phase::Migrated).await;
    until("the in-tree migrator is done, too", async || {
        let status = in_tree.get("beside").await.ok()?.data["status"].to_string();
        status.contains("Succeeded").then_some(())
    })
    .await;
    assert_eq!(
        stored_at(&control_plane, &widgets).await,
        [("v1".to_owned(), 60)].into()
    );
    assert_eq!(stored_versions(&client, &widgets).await, ["v1"]);

    // An operator that is gone cleans nothing up; the owner reference does.
    operator.process.kill().unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.delete(&name, &kube::api::DeleteParams::default())
        .await
        .unwrap();
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    until("the migration goes with its CRD", async || {
        migrations.get_opt(&name).await.ok()?.is_none().then_some(())
    })
    .await;
}
