//! What changes under the operator: a spec in the middle of a pass, and a CRD that its watch has not shown.

use exuvia_api::{Phase, StorageMigration};
use exuvia_testenv::proxy::{Fault, Match, Proxy, Rule};
use exuvia_testenv::{ControlPlane, Widgets, until};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::harness::*;
use crate::oracle::start_behind;

/// Widgets stored at v1alpha1 and flipped to v1, each with a field that only v1alpha1 has.
async fn with_a_field_to_lose(client: &Client, group: &str, count: usize) -> Widgets {
    let widgets = Widgets::in_group(group);
    let mut crd = widgets.crd("v1alpha1");
    let old = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    old["properties"]["legacy"] = json!({"type": "string"});
    widgets.install_crd(client, crd).await.unwrap();
    widgets.create(client, "v1alpha1", count).await.unwrap();
    let api = widgets.api(client, "v1alpha1");
    for index in 0..count {
        let legacy = Patch::Merge(json!({"spec": {"legacy": "precious"}}));
        api.patch(&format!("widget-{index:04}"), &PatchParams::default(), &legacy)
            .await
            .unwrap();
    }
    widgets.flip_storage(client, "v1").await.unwrap();
    widgets
}

/// How many objects have that field in etcd.
async fn keep_it(control_plane: &ControlPlane, widgets: &Widgets) -> usize {
    let stored = control_plane
        .stored(widgets.group(), "widgets")
        .all()
        .await
        .unwrap();
    let has_it = |json: serde_json::Value| json.to_string().contains("precious");
    stored
        .iter()
        .filter(|stored| stored.json().is_some_and(has_it))
        .count()
}

/// The watch of CRDs shows nothing from now on, as behind a NAT gateway that has forgotten the connection.
fn silence_the_watch_of_crds(proxy: &Proxy) {
    let watches = Match::method(http::Method::GET)
        .resource("customresourcedefinitions")
        .query("watch=true");
    proxy.inject(Rule::on(watches).always().then(Fault::StallAnswer));
}

#[tokio::test]
async fn a_crd_that_the_watch_has_not_shown_yet_is_migrated_as_a_crd() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let proxy = control_plane.proxy().await.unwrap();
    silence_the_watch_of_crds(&proxy);
    let operator = start_behind(&proxy, &control_plane, &[]);
    operator.ready().await;
    let harmless = flipped(&client, "unseen.example.com", 5, false).await;
    by_hand(&client, "unseen", spec_of(&harmless, json!({}))).await;
    in_phase(&client, "unseen", Phase::Migrated).await;
    assert_eq!(stored_versions(&client, &harmless).await, ["v1"]);

    // Nobody has accepted a loss.
    let lossy = with_a_field_to_lose(&client, "unseenloss.example.com", 5).await;
    by_hand(&client, "unseenloss", spec_of(&lossy, json!({}))).await;
    stalled_for(&client, "unseenloss", "Pruning").await;
    assert_eq!(keep_it(&control_plane, &lossy).await, 5);
}

/// A CRD's name has its group. Its plural alone names a built-in resource or nothing.
#[tokio::test]
async fn the_plural_of_a_crd_that_the_watch_has_not_shown_yet_names_nothing() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let proxy = control_plane.proxy().await.unwrap();
    silence_the_watch_of_crds(&proxy);
    let operator = start_behind(&proxy, &control_plane, &[]);
    operator.ready().await;
    let widgets = with_a_field_to_lose(&client, "unseenplural.example.com", 5).await;
    let spec = serde_json::from_value(json!({"resource": "widgets"})).unwrap();
    by_hand(&client, "unseenplural", spec).await;
    stalled_for(&client, "unseenplural", "NoSuchResource").await;
    assert_eq!(keep_it(&control_plane, &widgets).await, 5);
}

/// People change the spec of a migration that is done to have everything rewritten once more, as after a new encryption key.
#[tokio::test]
async fn a_spec_that_changes_while_the_server_fails_is_carried_out_afterwards() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    for index in 0..5 {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(format!("again-{index}"));
        maps.create(&PostParams::default(), &map).await.unwrap();
    }
    let proxy = control_plane.proxy().await.unwrap();
    let _operator = start_behind(&proxy, &control_plane, &[]);
    let spec = serde_json::from_value(json!({"resource": "configmaps"})).unwrap();
    by_hand(&client, "configmaps", spec).await;
    in_phase(&client, "configmaps", Phase::Migrated).await;
    let writes = || {
        let writes = proxy.writes();
        let of_ours = writes
            .iter()
            .filter(|write| write.path.contains("/configmaps/again-"));
        of_ours.count()
    };
    let before = writes();
    assert!(before >= 10, "two sweeps: {before}");
    let discovery = Match::method(http::Method::GET).path("/api/v1");
    let fault = proxy.inject(Rule::on(discovery).always().then(Fault::refuse(500)));
    change_spec(&client, "configmaps", json!({"qps": 77})).await;
    in_phase(&client, "configmaps", Phase::Stalled).await;
    fault.remove();
    status_when(&client, "configmaps", "migrated again", |status| {
        status.phase == Some(Phase::Migrated) && status.observed_generation == Some(2)
    })
    .await;
    let more = writes() - before;
    assert!(more >= 10, "two more sweeps: {more}");
}

#[tokio::test]
async fn a_version_to_shed_that_is_added_after_the_trim_is_shed() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "shedlate.example.com", 3, false).await;
    let proxy = control_plane.proxy().await.unwrap();
    let _operator = start_behind(&proxy, &control_plane, &["--settle=8s"]);
    by_hand(&client, "shedlate", spec_of(&widgets, json!({}))).await;
    in_phase(&client, "shedlate", Phase::Patrolling).await;
    let by = PatchParams {
        field_manager: Some("late".to_owned()),
        ..PatchParams::default()
    };
    let label = Patch::Merge(json!({"metadata": {"labels": {"late": "yes"}}}));
    let old = widgets.api(&client, "v1alpha1");
    old.patch("widget-0001", &by, &label).await.unwrap();
    change_spec(&client, "shedlate", json!({"shed": ["v1alpha1"]})).await;
    let status = status_when(&client, "shedlate", "migrated as of generation 2", |status| {
        status.phase == Some(Phase::Migrated) && status.observed_generation == Some(2)
    })
    .await;
    let live = widgets.api(&client, "v1").get("widget-0001").await.unwrap();
    let at_v1alpha1 = live.managed_fields().iter().filter(|entry| {
        let version = entry.api_version.as_deref();
        version.is_some_and(|version| version.ends_with("/v1alpha1"))
    });
    assert_eq!(at_v1alpha1.count(), 0, "{status:?}");
}

#[tokio::test]
async fn a_loss_that_is_no_longer_accepted_does_not_go_on() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = with_a_field_to_lose(&client, "withdrawn.example.com", 30).await;
    let proxy = control_plane.proxy().await.unwrap();
    let _operator = start_behind(&proxy, &control_plane, &[]);
    let spec = spec_of(&widgets, json!({"acceptPruning": true, "qps": 2}));
    by_hand(&client, "withdrawn", spec).await;
    let old = async || {
        let stored = stored_at(&control_plane, &widgets).await;
        stored.get("v1alpha1").copied().unwrap_or_default()
    };
    until("some are rewritten", async || old().await <= 27).await;
    change_spec(&client, "withdrawn", json!({"suspend": true})).await;
    in_phase(&client, "withdrawn", Phase::Suspended).await;
    let before = (old().await, keep_it(&control_plane, &widgets).await);
    assert!(before.0 > 0, "suspended too late to tell anything");
    let change = json!({"acceptPruning": false, "suspend": false, "qps": 100});
    change_spec(&client, "withdrawn", change).await;
    stalled_for(&client, "withdrawn", "Pruning").await;
    assert_eq!((old().await, keep_it(&control_plane, &widgets).await), before);
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    let status = migrations.get("withdrawn").await.unwrap().status.unwrap();
    assert!(status.losses.is_some_and(|losses| !losses.accepted));
}
