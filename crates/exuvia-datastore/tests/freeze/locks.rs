//! The objects of the freeze: what is there, what somebody did to them, what is left.

use std::collections::BTreeMap;

use exuvia_api::{DATASTORE_LABEL, RETIRED_ANNOTATION};
use exuvia_datastore::freeze::{Error, Form, Freeze, Part, Piece, thaw, whoami};
use exuvia_testenv::until;
use exuvia_write::Writer;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::Stage;
use crate::requests::create;

/// Everything in the cluster with the label of this migration: kind and name.
pub(crate) async fn made_for(client: &Client, uid: &str) -> Vec<String> {
    async fn names<K>(client: &Client, uid: &str) -> Vec<String>
    where
        K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let labels = ListParams::default().labels(&format!("{DATASTORE_LABEL}={uid}"));
        let list = Api::<K>::all(client.clone()).list(&labels).await.unwrap();
        let named = list
            .items
            .iter()
            .map(|object| format!("{} {}", K::kind(&()), object.name_any()));
        named.collect()
    }
    let mut all = names::<ValidatingAdmissionPolicy>(client, uid).await;
    all.extend(names::<ValidatingAdmissionPolicyBinding>(client, uid).await);
    all.extend(names::<FlowSchema>(client, uid).await);
    all.extend(names::<PriorityLevelConfiguration>(client, uid).await);
    all
}

async fn pieces(freeze: &Freeze) -> BTreeMap<Part, (Piece, Piece)> {
    let observed = freeze.observe(Form::Frozen, false).await.unwrap();
    let pieces = observed.parts.into_iter();
    pieces
        .map(|(part, state)| (part, (state.policy, state.binding)))
        .collect()
}

#[tokio::test]
async fn what_somebody_does_to_a_policy_is_seen_and_put_right() {
    let stage = Stage::set("meddled").await;
    let freeze = stage.freeze();
    let absent = (Piece::Absent, Piece::Absent);
    assert!(pieces(&freeze).await.values().all(|piece| *piece == absent));
    freeze.set(Form::Frozen, false).await.unwrap();
    let observed = freeze.observe(Form::Frozen, false).await.unwrap();
    assert!(observed.is_as_wanted(), "{observed:?}");

    let policies: Api<ValidatingAdmissionPolicy> = Api::all(stage.admin.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(stage.admin.clone());
    let name = freeze.scope().name(Part::Source);
    let params = PatchParams::default();
    let merge = |patch: Value| Patch::Merge(patch);

    bindings.delete(&name, &DeleteParams::default()).await.unwrap();
    assert_eq!(
        pieces(&freeze).await[&Part::Source],
        (Piece::AsWanted, Piece::Absent)
    );
    freeze.set(Form::Frozen, false).await.unwrap();

    policies.delete(&name, &DeleteParams::default()).await.unwrap();
    assert_eq!(
        pieces(&freeze).await[&Part::Source],
        (Piece::Absent, Piece::AsWanted)
    );
    freeze.set(Form::Frozen, false).await.unwrap();

    let lenient = merge(json!({"spec": {"failurePolicy": "Ignore"}}));
    policies.patch(&name, &params, &lenient).await.unwrap();
    assert_eq!(
        pieces(&freeze).await[&Part::Source],
        (Piece::Changed, Piece::AsWanted)
    );
    let audit = merge(json!({"spec": {"validationActions": ["Audit"]}}));
    bindings.patch(&name, &params, &audit).await.unwrap();
    assert_eq!(
        pieces(&freeze).await[&Part::Source],
        (Piece::Changed, Piece::Changed)
    );
    let unlabelled = merge(json!({"metadata": {"labels": null}}));
    policies.patch(&name, &params, &unlabelled).await.unwrap();
    assert_eq!(
        pieces(&freeze).await[&Part::Source].0,
        Piece::Changed,
        "it is ours all the same"
    );
    freeze.set(Form::Frozen, false).await.unwrap();
    let observed = freeze.observe(Form::Frozen, false).await.unwrap();
    assert!(observed.is_as_wanted(), "{observed:?}");

    policies.patch(&name, &params, &unlabelled).await.unwrap();
    freeze.remove().await.unwrap();
    assert!(
        policies.get_opt(&name).await.unwrap().is_none(),
        "without its label, too"
    );
    assert_eq!(made_for(&stage.admin, &stage.scope.uid).await, [""; 0]);
}

#[tokio::test]
async fn an_object_of_somebody_else_is_left_alone() {
    let stage = Stage::set("foreign").await;
    let freeze = stage.freeze();
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(stage.admin.clone());
    let name = freeze.scope().name(Part::Source);
    let foreign: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
        "metadata": {"name": name}, "spec": {"policyName": "theirs", "validationActions": ["Audit"]},
    }))
    .unwrap();
    bindings.create(&PostParams::default(), &foreign).await.unwrap();
    assert_eq!(
        pieces(&freeze).await[&Part::Source],
        (Piece::Absent, Piece::Foreign)
    );
    let refused = freeze.set(Form::Frozen, false).await;
    assert!(
        matches!(&refused, Err(Error::Foreign { what }) if what.contains(&name)),
        "{refused:?}"
    );
    freeze.remove().await.unwrap();
    assert_eq!(bindings.get(&name).await.unwrap().spec.policy_name, "theirs");
    assert_eq!(made_for(&stage.admin, &stage.scope.uid).await, [""; 0]);
}

#[tokio::test]
async fn a_second_set_writes_nothing() {
    let stage = Stage::set("twice").await;
    let freeze = stage.freeze();
    let versions = async || {
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(stage.admin.clone());
        let labels = ListParams::default().labels(&format!("{DATASTORE_LABEL}={}", stage.scope.uid));
        let list = policies.list(&labels).await.unwrap().items;
        list.iter().map(ResourceExt::resource_version).collect::<Vec<_>>()
    };
    freeze.set(Form::Frozen, true).await.unwrap();
    let before = versions().await;
    assert_eq!(before.len(), 4);
    freeze.set(Form::Frozen, true).await.unwrap();
    assert_eq!(versions().await, before);
    freeze.set(Form::Converged, true).await.unwrap();
    let observed = freeze.observe(Form::Converged, true).await.unwrap();
    assert!(observed.is_as_wanted(), "{observed:?}");
    assert_eq!(observed.parts.len(), 2, "shield and source");
    freeze.remove().await.unwrap();
}

#[tokio::test]
async fn a_retired_freeze_outlives_its_migration_until_it_is_thawed() {
    let stage = Stage::set("retired").await;
    let freeze = stage.freeze();
    assert!(freeze.count_writers().await.unwrap());
    stage.set_and_wait(&freeze, Form::Frozen, true).await;
    freeze.retire(&[]).await.unwrap();
    freeze.retire(&[]).await.unwrap();
    let observed = freeze.observe(Form::Converged, false).await.unwrap();
    assert!(observed.is_as_wanted() && observed.is_retired, "{observed:?}");
    assert_eq!(
        made_for(&stage.admin, &stage.scope.uid).await.len(),
        2,
        "source policy and binding"
    );
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(stage.admin.clone());
    let policy = policies.get(&freeze.scope().name(Part::Source)).await.unwrap();
    assert_eq!(policy.annotations()[RETIRED_ANNOTATION], "retired");

    let writer = Writer::named("exuvia");
    assert_eq!(thaw(&stage.ours, &writer, "another").await.unwrap(), 0);
    assert_eq!(thaw(&stage.ours, &writer, "retired").await.unwrap(), 2);
    assert_eq!(made_for(&stage.admin, &stage.scope.uid).await, [""; 0]);
    let group = stage.source.group();
    until("the source is thawed", async || {
        let answer = create(group, "again", json!({}))
            .send(&stage.other, group, "kubectl")
            .await;
        if answer.is_ok() { Ok(()) } else { Err(answer) }
    })
    .await;
}

#[tokio::test]
async fn the_guard_keeps_crds_and_the_backend_as_they_are() {
    let stage = Stage::set("guarded").await;
    let api_service = format!("v1.{}", stage.target.group());
    let mut scope = stage.scope.clone();
    scope.api_service = Some(api_service.clone());
    let freeze = stage.freeze_of(scope);
    stage.set_and_wait(&freeze, Form::Frozen, false).await;
    let crds: Api<CustomResourceDefinition> = Api::all(stage.other.clone());
    let services: Api<APIService> = Api::all(stage.other.clone());
    let params = PatchParams::default();
    let rename = Patch::Merge(json!({"spec": {"names": {"categories": ["all"]}}}));
    let label = Patch::Merge(json!({"metadata": {"labels": {"gitops": "synced"}}}));
    let guarded = |refused: &Result<(), kube::Error>| match refused {
        Err(kube::Error::Api(status)) => {
            status.code == 403 && status.message.contains("changes to it are refused")
        }
        _ => false,
    };
    for crd in [stage.source.crd_name(), stage.target.crd_name()] {
        crds.patch(&crd, &params, &label).await.unwrap();
        let refused = crds.patch(&crd, &params, &rename).await.map(drop);
        assert!(guarded(&refused), "{refused:?}");
        let refused = crds.delete(&crd, &DeleteParams::default()).await.map(drop);
        assert!(guarded(&refused), "{refused:?}");
        let by_name = ListParams::default().fields(&format!("metadata.name={crd}"));
        let refused = crds
            .delete_collection(&DeleteParams::default(), &by_name)
            .await
            .map(drop);
        assert!(guarded(&refused), "{refused:?}");
    }
    let ours: Api<CustomResourceDefinition> = Api::all(stage.ours.clone());
    let us = PatchParams {
        field_manager: Some("exuvia-datastore".into()),
        ..PatchParams::default()
    };
    ours.patch(&stage.target.crd_name(), &us, &rename).await.unwrap();

    // The server's own APIService comes back when it is deleted; one with a backend does not get in.
    services
        .delete(&api_service, &DeleteParams::default())
        .await
        .unwrap();
    until("the server made its own again", async || {
        services
            .get_opt(&api_service)
            .await
            .unwrap()
            .is_some_and(|live| live.metadata.deletion_timestamp.is_none())
    })
    .await;
    let backend = json!({"spec": {"service": {"name": "backend", "namespace": "default"}, "insecureSkipTLSVerify": true}});
    let with_backend = Patch::Merge(backend);
    let refused = services
        .patch(&api_service, &params, &with_backend)
        .await
        .map(drop);
    assert!(guarded(&refused), "{refused:?}");
    // After the commit the CRDs are free, and the backend must not come back still.
    stage.set_and_wait(&freeze, Form::Converged, false).await;
    crds.patch(&stage.source.crd_name(), &params, &rename)
        .await
        .unwrap();
    let refused = services
        .patch(&api_service, &params, &with_backend)
        .await
        .map(drop);
    let is_refused =
        matches!(&refused, Err(kube::Error::Api(status)) if status.message.contains("must not come back"));
    assert!(is_refused, "{refused:?}");
    freeze.remove().await.unwrap();
}

#[tokio::test]
async fn we_are_who_the_server_says() {
    let stage = Stage::set("whoami").await;
    let us = whoami(&stage.ours).await.unwrap();
    assert_eq!(us.username, "exuvia-whoami");
    assert!(us.groups.contains(&"system:authenticated".to_owned()));
}
