//! What the garbage collector remembers of a switch that is undone: dependents that name the API server's uids live.

use exuvia_datastore::protocol::Step;
use exuvia_runtime::machine::Ended;
use exuvia_testenv::aggregated::alias_uid;
use exuvia_testenv::until;
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::calico::api_server;
use crate::parked::calico_in;
use crate::stage::{Stage, control_plane, up_to};

/// The collector looks for an owner while the CRDs answer, does not find it, and is refused the delete. It remembers that
/// such an owner does not exist, and asks nobody again. So the dependent names its source, too.
#[tokio::test]
async fn a_dependent_lives_after_an_abort_although_the_collector_has_looked_for_its_owner() {
    let group = "projectcalico.collected";
    let kinds = ["GlobalNetworkSet", "ClusterInformation"];
    let stage = Stage::new(calico_in(group).only(&kinds)).await;
    let backend = api_server(&stage, group).await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "collected"}});
    stage.create(&namespace).await;
    let source = json!({
        "apiVersion": format!("crd.{group}/v1"), "kind": "GlobalNetworkSet", "metadata": {"name": "blocked"},
    });
    let uid = alias_uid(&stage.get(&source).await.uid().unwrap());
    let dependent: Value = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
        "name": "by-api", "namespace": "collected", "ownerReferences": [
            {"apiVersion": format!("{group}/v3"), "kind": "GlobalNetworkSet", "name": "blocked", "uid": uid},
        ],
    }});
    stage.create(&dependent).await;

    let migration = stage.start().await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Commit).await;
    // As after the end of a watch, which comes every five to ten minutes, the collector lists again.
    control_plane()
        .await
        .controller_manager()
        .unwrap()
        .restart()
        .unwrap();
    until("the collector was refused", async || {
        let events = control_plane().await.audit().events().unwrap();
        let of_dependent = events
            .iter()
            .filter(|event| event.verb == "delete" && event.request_uri.contains("/configmaps/by-api"));
        let mut codes = of_dependent.filter_map(|event| event.response_status.as_ref());
        codes.any(|status| status.code == 403)
    })
    .await;
    assert_eq!(
        stage.get(&dependent).await.name_any(),
        "by-api",
        "the shield holds"
    );
    let delete = DeleteParams::default();
    stage.migrations().delete(stage.name(), &delete).await.unwrap();
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert!(backend.answers(&stage.client).await.unwrap());
    // It tries again with growing pauses, and is not refused any more. Beside an owner that exists it removes the other one.
    let source = stage.get(&source).await;
    until("the collector has looked at the dependent again", async || {
        let kept = stage.get(&dependent).await;
        let owners: Vec<String> = kept
            .owner_references()
            .iter()
            .map(|owner| owner.uid.clone())
            .collect();
        owners == [source.uid().unwrap()]
    })
    .await;
    stage.delete(&backend.api_service()).await;
}
