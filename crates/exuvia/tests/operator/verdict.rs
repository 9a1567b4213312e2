//! What `droppableVersions` and `blockers` say at the end of a pass: nothing is called droppable that was not looked at.

use exuvia_api::{Phase, StorageMigration, StorageMigrationStatus};
use exuvia_testenv::{ControlPlane, Widgets};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::harness::*;

/// Whether v1alpha1 could be dropped, but for ownerReferences, which an operator does not look at unless told to.
pub(crate) fn is_free_but_for_references(status: &StorageMigrationStatus) -> bool {
    let [blocker] = status.blockers.as_slice() else {
        return false;
    };
    status.droppable_versions.as_ref().is_some_and(Vec::is_empty)
        && (blocker.version.as_str(), blocker.holds.as_str()) == ("v1alpha1", "References")
        && blocker.message.starts_with("not known:")
}

/// An operator that looks at references, with every right.
fn looking(control_plane: &ControlPlane) -> Operator {
    let user = control_plane.user("exuvia", &["system:masters"]).unwrap();
    Operator::start(control_plane, &user, "looking", &["--look-at-references"])
}

/// The migration is made once more, and the verdict with it: the CRD's record says that nothing else is left to do.
async fn looked_again(client: &Client, name: &str) -> StorageMigrationStatus {
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    let uid = migrations.get(name).await.unwrap().uid();
    migrations.delete(name, &DeleteParams::default()).await.unwrap();
    until("there is another one", async || {
        let found = migrations.get_opt(name).await.ok()??;
        (found.uid() != uid).then_some(())
    })
    .await;
    in_phase(client, name, Phase::Migrated).await
}

#[tokio::test]
async fn a_version_that_nothing_holds_is_droppable_and_the_event_says_so() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "free.example.com", 6, true).await;
    let _operator = looking(&control_plane);
    let name = widgets.crd_name();
    let status = in_phase(&client, &name, Phase::Migrated).await;
    assert_eq!(
        status.droppable_versions,
        Some(vec!["v1alpha1".to_owned()]),
        "{status:?}"
    );
    assert_eq!(status.blockers, []);
    let events = events_about(&client, &name).await;
    let said = |event: &k8s_openapi::api::events::v1::Event| {
        let note = event.note.clone().unwrap_or_default();
        event.reason.as_deref() == Some("Migrated") && note.contains("may be dropped: v1alpha1")
    };
    assert!(events.iter().any(said), "{events:?}");
}

#[tokio::test]
async fn a_dependent_that_names_the_old_version_holds_it_until_it_is_moved() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "owned.example.com", 4, true).await;
    own(&client, &widgets, &["first", "second"]).await;
    let _operator = looking(&control_plane);
    let name = widgets.crd_name();
    let status = in_phase(&client, &name, Phase::Migrated).await;
    assert_eq!(status.droppable_versions, Some(vec![]), "{status:?}");
    let [blocker] = status.blockers.as_slice() else {
        panic!("{status:?}");
    };
    assert_eq!(
        (blocker.version.as_str(), blocker.holds.as_str(), blocker.objects),
        ("v1alpha1", "References", Some(2)),
        "{status:?}"
    );

    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    for dependent in ["first", "second"] {
        let move_it = json!([{"op": "replace", "path": "/metadata/ownerReferences/0/apiVersion",
                              "value": format!("{}/v1", widgets.group())}]);
        let patch = Patch::<()>::Json(serde_json::from_value(move_it).unwrap());
        maps.patch(dependent, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
    let status = looked_again(&client, &name).await;
    assert_eq!(
        status.droppable_versions,
        Some(vec!["v1alpha1".to_owned()]),
        "{status:?}"
    );
}

/// Makes `ConfigMap`s that are owned by a widget, at v1alpha1.
async fn own(client: &Client, widgets: &Widgets, names: &[&str]) {
    let api = widgets.api(client, "v1");
    let owners = until("objects can be listed after the flip", async || {
        api.list(&ListParams::default()).await.ok()
    })
    .await;
    let owner = &owners.items[0];
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    for name in names {
        let map = json!({"metadata": {"name": name, "ownerReferences": [{
            "apiVersion": format!("{}/v1alpha1", widgets.group()), "kind": "Widget",
            "name": owner.name_any(), "uid": owner.uid(),
        }]}});
        let map: ConfigMap = serde_json::from_value(map).unwrap();
        maps.create(&PostParams::default(), &map).await.unwrap();
    }
}

#[tokio::test]
async fn an_open_watch_at_the_old_version_holds_it() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "watched.example.com", 4, false).await;
    let old = widgets.api(&client, "v1alpha1");
    let (open, opened) = tokio::sync::watch::channel(false);
    let laggard = tokio::spawn(async move {
        loop {
            // As any informer does, it comes back when the server ends it.
            let Ok(stream) = old.watch(&WatchParams::default(), "0").await else {
                continue;
            };
            let mut stream = stream.boxed();
            while let Ok(Some(_)) = stream.try_next().await {
                open.send_replace(true);
            }
        }
    });
    let mut opened = opened;
    opened.wait_for(|open| *open).await.unwrap();
    label(&client, &widgets, Some("true")).await;
    let _operator = looking(&control_plane);
    let status = in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    assert_eq!(status.droppable_versions, Some(vec![]), "{status:?}");
    let [blocker] = status.blockers.as_slice() else {
        panic!("{status:?}");
    };
    assert_eq!(
        (blocker.version.as_str(), blocker.holds.as_str()),
        ("v1alpha1", "Usage"),
        "{status:?}"
    );
    assert!(blocker.message.contains("1 watch is open"), "{}", blocker.message);
    assert!(!laggard.is_finished());
    laggard.abort();
}

#[tokio::test]
async fn an_operator_that_does_not_look_at_references_calls_no_version_droppable() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let widgets = flipped(&client, "unreferenced.example.com", 4, true).await;
    let name = widgets.crd_name();
    let status = in_phase(&client, &name, Phase::Migrated).await;
    assert!(is_free_but_for_references(&status), "{status:?}");
    let message = &status.blockers[0].message;
    let find_out = format!("to find out: exuvia storage droppable {name} v1alpha1");
    assert!(
        message.contains("--look-at-references") && message.ends_with(&find_out),
        "{message}"
    );
    let notes = events_about(&client, &name).await;
    let notes: Vec<String> = notes.into_iter().filter_map(|event| event.note).collect();
    assert!(
        !notes.iter().any(|note| note.contains("may be dropped")),
        "{notes:?}"
    );
}

/// It is looked at by the one that works.
#[tokio::test]
async fn a_second_migration_of_the_same_resource_holds_nothing() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let widgets = flipped(&client, "second.example.com", 4, false).await;
    let suspended = json!({"suspend": true});
    let elder = by_hand(&client, "second-elder", spec_of(&widgets, suspended)).await;
    let created = elder.creation_timestamp().unwrap().0;
    in_phase(&client, "second-elder", Phase::Suspended).await;
    until("a second passes: the server counts no less", async || {
        (Timestamp::now().as_second() > created.as_second()).then_some(())
    })
    .await;
    by_hand(&client, "second-younger", spec_of(&widgets, json!({}))).await;
    stalled_for(&client, "second-younger", "Duplicate").await;
    change_spec(&client, "second-elder", json!({"suspend": false})).await;
    let status = in_phase(&client, "second-elder", Phase::Migrated).await;
    assert!(is_free_but_for_references(&status), "{status:?}");
}

/// Each of two versions may go, but not both: the storage version is not served.
#[tokio::test]
async fn what_is_called_droppable_may_be_dropped_together() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("together.example.com");
    let mut crd = widgets.crd("v1alpha1");
    let mut beta = crd["spec"]["versions"][0].clone();
    (beta["name"], beta["storage"]) = ("v1beta1".into(), false.into());
    crd["spec"]["versions"].as_array_mut().unwrap().insert(1, beta);
    crd["spec"]["versions"][2]["served"] = false.into();
    widgets.install_crd(&client, crd.clone()).await.unwrap();
    widgets.create(&client, "v1alpha1", 2).await.unwrap();
    let strip = Patch::Merge(json!({"metadata": {"managedFields": [{}]}}));
    for name in ["widget-0000", "widget-0001"] {
        let api = widgets.api(&client, "v1alpha1");
        api.patch(name, &PatchParams::default(), &strip).await.unwrap();
    }
    crd["spec"]["versions"][0]["storage"] = false.into();
    crd["spec"]["versions"][2]["storage"] = true.into();
    merge_crd(
        &client,
        &widgets,
        json!({"spec": {"versions": crd["spec"]["versions"]}}),
    )
    .await;
    label(&client, &widgets, Some("true")).await;
    let _operator = looking(&control_plane);
    let status = in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    assert_eq!(
        status.droppable_versions,
        Some(vec!["v1alpha1".to_owned()]),
        "{status:?}"
    );
    let [blocker] = status.blockers.as_slice() else {
        panic!("{status:?}");
    };
    assert_eq!(
        (blocker.version.as_str(), blocker.holds.as_str()),
        ("v1beta1", "Served"),
        "{status:?}"
    );
}

/// What was true when the migration ended may not be true for ever.
#[tokio::test]
async fn a_version_is_no_longer_called_droppable_when_somebody_uses_it_again() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "used-again.example.com", 2, true).await;
    let user = control_plane.user("exuvia", &["system:masters"]).unwrap();
    let flags = ["--look-at-references", "--look-again=1s"];
    let _operator = Operator::start(&control_plane, &user, "looking-again", &flags);
    let name = widgets.crd_name();
    let status = in_phase(&client, &name, Phase::Migrated).await;
    assert_eq!(
        status.droppable_versions,
        Some(vec!["v1alpha1".to_owned()]),
        "{status:?}"
    );
    assert!(status.looked_at.is_some(), "{status:?}");

    let write = json!({"apiVersion": format!("{}/v1alpha1", widgets.group()), "kind": "Widget",
                       "metadata": {"name": "widget-0000"}, "spec": {"size": 7}});
    let apply = PatchParams::apply("laggard").force();
    let old = widgets.api(&client, "v1alpha1");
    old.patch("widget-0000", &apply, &Patch::Apply(&write))
        .await
        .unwrap();
    let status = status_when(&client, &name, "the writer is seen", |status| {
        status.droppable_versions.as_ref().is_some_and(Vec::is_empty)
    })
    .await;
    assert_eq!(status.phase, Some(Phase::Migrated), "{status:?}");
    let blocker = &status.blockers[0];
    assert_eq!(blocker.holds, "Ownership", "{status:?}");
    assert!(blocker.message.contains("laggard"), "{status:?}");
}
