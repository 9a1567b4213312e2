//! A target group for which another API server answers until the switch.

use exuvia_api::{DatastorePhase, SOURCE_UIDS_ANNOTATION};
use exuvia_datastore::protocol::{Hold, Step};
use exuvia_runtime::machine::{Ended, Machine};
use exuvia_testenv::aggregated::{Aggregated, alias_uid};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::{Stage, control_plane, owned_by, up_to};

/// A stage whose new group is answered for by another API server, which stores in the old one.
pub(crate) async fn stage(name: &str, count: usize) -> (Stage, Aggregated) {
    let stage = Stage::new(name, count).await;
    let (new, old) = (stage.new.group().to_owned(), stage.old.group().to_owned());
    let backend = Aggregated::start(control_plane().await, (&new, "v1"), (&old, "v1"), &["widgets"])
        .await
        .unwrap();
    backend.install(&stage.client).await.unwrap();
    (stage, backend)
}

/// An APIService without its server would stand in the way of the other tests' look at all kinds.
pub(crate) async fn leave(stage: &Stage) {
    let services = kube::api::ApiResource {
        group: "apiregistration.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "apiregistration.k8s.io/v1".to_owned(),
        kind: "APIService".to_owned(),
        plural: "apiservices".to_owned(),
    };
    let services: Api<kube::api::DynamicObject> = Api::all_with(stage.client.clone(), &services);
    let name = format!("v1.{}", stage.new.group());
    drop(services.delete(&name, &DeleteParams::default()).await);
}

fn spec(stage: &Stage) -> Value {
    let mut spec = stage.spec();
    spec["cutover"] = json!({"apiService": format!("v1.{}", stage.new.group())});
    spec
}

async fn clones(stage: &Stage, uid: &str) -> usize {
    let crds: Api<CustomResourceDefinition> = Api::all(stage.client.clone());
    let ours = ListParams::default().labels(&format!("{}={uid}", exuvia_api::DATASTORE_LABEL));
    crds.list_metadata(&ours).await.unwrap().items.len()
}

/// A `ConfigMap` owned by a widget, as the other API server shows it.
pub(crate) async fn dependent(stage: &Stage, owner: &str) -> ConfigMap {
    let shown = stage.api(&stage.new).get(owner).await.unwrap();
    let map = serde_json::from_value(json!({
        "metadata": {"name": "dependent", "namespace": stage.name, "ownerReferences": [{
            "apiVersion": format!("{}/v1", stage.new.group()), "kind": "Widget", "name": owner, "uid": shown.uid(),
        }]},
    }))
    .unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(stage.client.clone(), &stage.name);
    maps.create(&PostParams::default(), &map).await.unwrap()
}

#[tokio::test]
async fn after_the_switch_the_crds_answer_and_dependents_follow_the_new_uids() {
    let (stage, backend) = stage("switched", 3).await;
    let source = stage.api(&stage.old).get("w1").await.unwrap();
    dependent(&stage, "w1").await;
    assert_eq!(stage.run(spec(&stage)).await, Ended::Done);
    assert_eq!(stage.phase().await, DatastorePhase::Complete);
    let asked_before = backend.requests();
    let target = stage.api(&stage.new).get("w1").await.unwrap();
    assert_eq!(backend.requests(), asked_before, "the CRD answers");
    let uids = &target.annotations()[SOURCE_UIDS_ANNOTATION];
    let uid = source.uid().unwrap();
    assert_eq!(*uids, format!("{uid},{}", alias_uid(&uid)));
    let maps: Api<ConfigMap> = Api::namespaced(stage.client.clone(), &stage.name);
    let owners = maps
        .get("dependent")
        .await
        .unwrap()
        .metadata
        .owner_references
        .unwrap();
    assert_eq!((owners.len(), &owners[0].uid), (1, &target.uid().unwrap()));
    let stored = control_plane().await.stored(stage.new.group(), "widgets");
    assert_eq!(stored.all().await.unwrap().len(), 3);
}

#[tokio::test]
async fn an_abort_after_the_switch_puts_the_other_api_server_back() {
    let (stage, backend) = stage("switchback", 2).await;
    let migration = stage.migration(spec(&stage)).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Verify).await;
    assert!(!backend.answers(&stage.client).await.unwrap());
    stage
        .migrations()
        .delete(&stage.name, &DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert!(backend.answers(&stage.client).await.unwrap());
    assert_eq!(
        stage.policies(migration.metadata.uid.as_deref().unwrap()).await,
        0
    );
    let stored = control_plane().await.stored(stage.new.group(), "widgets");
    assert!(
        stored.all().await.unwrap().is_empty(),
        "none of our targets is left behind the other server"
    );
    assert_eq!(
        clones(&stage, migration.metadata.uid.as_deref().unwrap()).await,
        0
    );
    stage.thawed().await;
    leave(&stage).await;
}

/// Aborts after the switch, up to the step in which dependents get their sources as owners, and does that step. Returns how often the
/// other API server was asked for `owner` meanwhile.
async fn anchored(stage: &Stage, backend: &Aggregated, spec: Value, owner: &str) -> usize {
    let migration = stage.migration(spec).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Verify).await;
    let delete = DeleteParams::default();
    stage.migrations().delete(&stage.name, &delete).await.unwrap();
    up_to(&mut engine, Step::AnchorDependents).await;
    let asked = || {
        let path = format!("/widgets/{owner}");
        let all = backend.recorded();
        all.iter().filter(|(_, asked)| asked.ends_with(&path)).count()
    };
    let before = asked();
    engine.carry_out(Step::AnchorDependents).await.unwrap();
    let times = asked() - before;
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    times
}

/// A reference to a widget as the other API server shows it.
async fn shown(stage: &Stage, name: &str) -> OwnerReference {
    OwnerReference {
        controller: None,
        block_owner_deletion: None,
        ..owned_by(&stage.api(&stage.new).get(name).await.unwrap())
    }
}

/// The uids of the owners of a `ConfigMap`, but not this one, which the collector may remove.
async fn other_owners(stage: &Stage, name: &str, but: &str) -> Vec<String> {
    let map = stage.config_maps().get(name).await.unwrap();
    let owners = map.owner_references().iter().map(|owner| owner.uid.clone());
    owners.filter(|uid| uid != but).collect()
}

#[tokio::test]
async fn after_an_undo_many_dependents_of_one_owner_get_its_source_and_it_is_asked_for_once() {
    const DEPENDENTS: usize = 40;
    let (stage, backend) = stage("manydependents", 1).await;
    let owner = shown(&stage, "w0").await;
    for number in 0..DEPENDENTS {
        stage
            .config_map(&format!("d{number}"), std::slice::from_ref(&owner), json!({}))
            .await;
    }
    let times = anchored(&stage, &backend, spec(&stage), "w0").await;
    // The garbage collector looks at it, too.
    assert!(times < DEPENDENTS / 2, "it was asked for {times} times");
    let source = stage.api(&stage.old).get("w0").await.unwrap().uid().unwrap();
    for number in 0..DEPENDENTS {
        let owners = other_owners(&stage, &format!("d{number}"), &owner.uid).await;
        assert_eq!(owners, [source.as_str()], "d{number}");
    }
    leave(&stage).await;
}

/// By the mapping, `w0` is what the source `w1` becomes.
#[tokio::test]
async fn after_an_undo_dependents_get_the_source_of_another_name_that_the_mapping_gives() {
    let (stage, backend) = stage("swapped", 2).await;
    let owner = shown(&stage, "w0").await;
    stage
        .config_map("named", std::slice::from_ref(&owner), json!({}))
        .await;
    let mut spec = spec(&stage);
    spec["mappings"][0]["metadata"] = json!({"name": "object.metadata.name == 'w0' ? 'w1' : 'w0'"});
    anchored(&stage, &backend, spec, "w0").await;
    let source = stage.api(&stage.old).get("w1").await.unwrap().uid().unwrap();
    assert_eq!(other_owners(&stage, "named", &owner.uid).await, [source]);
    leave(&stage).await;
}

#[tokio::test]
async fn a_process_that_ends_during_the_switch_is_undone_and_tried_again() {
    let (stage, _backend) = stage("interrupted", 2).await;
    let migration = stage.migration(spec(&stage)).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Copy).await;
    drop(engine);
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert_eq!(stage.phase().await, DatastorePhase::Complete);
    assert_eq!(stage.all(&stage.new).await.len(), 2);
}

#[tokio::test]
async fn an_object_that_the_target_refuses_is_found_at_a_clone_before_anything_is_locked() {
    let stage = Stage::bare("cloned").await;
    stage.old.install(&stage.client, "v1").await.unwrap();
    let mut crd = stage.new.crd("v1");
    crd["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["size"]["maximum"] =
        json!(5);
    stage.new.install_crd(&stage.client, crd).await.unwrap();
    stage.create_old("large", json!({"size": 9})).await;
    let (new, old) = (stage.new.group().to_owned(), stage.old.group().to_owned());
    let backend = Aggregated::start(control_plane().await, (&new, "v1"), (&old, "v1"), &["widgets"])
        .await
        .unwrap();
    backend.install(&stage.client).await.unwrap();
    let migration = stage.migration(spec(&stage)).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    assert_eq!(engine.blockers()[0].name, "large", "{:?}", engine.blockers());
    assert_eq!(
        stage.policies(migration.metadata.uid.as_deref().unwrap()).await,
        0
    );
    assert!(backend.answers(&stage.client).await.unwrap());
    leave(&stage).await;
}
