//! Dependents that no list shows: a version is not called droppable because nobody sees who names it.

use exuvia_storage::droppable::{Answer, Holds, Look, Question, look};
use exuvia_storage::servers::ApiServers;
use exuvia_storage::{End, Options};
use exuvia_testenv::{Widgets, until};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::Bench;

/// A CRD of which no version is served, with one object that names v1alpha1 of the bench's widgets as its owner's version.
async fn unserved_dependent(bench: &Bench) -> Widgets {
    let dependents = Widgets::in_group(format!("dependents.{}", bench.widgets.group()));
    dependents.install(&bench.client, "v1").await.unwrap();
    let owner = bench
        .widgets
        .api(&bench.client, "v1")
        .get("widget-0000")
        .await
        .unwrap();
    let mut dependent = dependents.widget("v1", "dependent");
    let reference = json!([{
        "apiVersion": format!("{}/v1alpha1", bench.widgets.group()), "kind": "Widget",
        "name": "widget-0000", "uid": owner.metadata.uid,
    }]);
    dependent.metadata.owner_references = serde_json::from_value(reference).unwrap();
    let api = dependents.api(&bench.client, "v1");
    api.create(&PostParams::default(), &dependent).await.unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(bench.client.clone());
    let mut crd = dependents.crd("v1");
    for version in crd["spec"]["versions"].as_array_mut().unwrap() {
        version["served"] = false.into();
    }
    let unserve = Patch::Merge(json!({"spec": {"versions": crd["spec"]["versions"]}}));
    crds.patch(&dependents.crd_name(), &PatchParams::default(), &unserve)
        .await
        .unwrap();
    until("it is not served", async || api.get("dependent").await.is_err()).await;
    dependents
}

/// A CRD whose names another one has: it was never established, so it cannot have objects.
async fn refused_names(bench: &Bench, taken_by: &Widgets) -> String {
    let name = format!("gadgets.{}", taken_by.group());
    let mut crd = taken_by.crd("v1");
    crd["metadata"]["name"] = name.clone().into();
    crd["spec"]["names"] =
        json!({"plural": "gadgets", "singular": "gadget", "kind": "Widget", "listKind": "WidgetList"});
    let crds: Api<CustomResourceDefinition> = Api::all(bench.client.clone());
    let crd = serde_json::from_value(crd).unwrap();
    crds.create(&PostParams::default(), &crd).await.unwrap();
    until("its names are refused", async || {
        let conditions = crds
            .get(&name)
            .await
            .unwrap()
            .status
            .and_then(|status| status.conditions);
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|condition| condition.type_ == "NamesAccepted" && condition.status == "False")
    })
    .await;
    name
}

#[tokio::test]
async fn a_dependent_of_a_crd_that_is_not_served_makes_it_not_known() {
    let bench = Bench::flipped("owner", 1).await;
    let options = Options {
        patrol: true,
        ..bench.options()
    };
    let report = bench.engine(options).run().await.unwrap();
    assert_eq!(report.end, End::Migrated, "{report:?}");
    let dependents = unserved_dependent(&bench).await;
    let refused = refused_names(&bench, &dependents).await;

    let crds: Api<CustomResourceDefinition> = Api::all(bench.client.clone());
    let crd = crds.get(&bench.widgets.crd_name()).await.unwrap();
    let config = bench.control_plane.admin().config().unwrap();
    let url = bench.control_plane.apiserver().url().parse().unwrap();
    let what = Look {
        references: true,
        servers: Some(ApiServers::new(&config, &[url], &[])),
        ..Look::default()
    };
    let question = Question::new(crd, vec!["v1alpha1".into()]);
    let verdict = look(&bench.client, &[question], &what, &|_| {}).await.remove(0);
    assert_eq!(verdict.answer, Answer::NotKnown, "{verdict}");
    let unknown = verdict
        .unknown
        .iter()
        .find(|unknown| unknown.what == Holds::References && unknown.why.contains(&dependents.crd_name()));
    let unknown = unknown.unwrap_or_else(|| panic!("{verdict}"));
    assert!(unknown.why.contains("no version of it is served"), "{verdict}");
    assert!(!unknown.why.contains(&refused), "{verdict}");
}
