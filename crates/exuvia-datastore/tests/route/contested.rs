//! Others change the `APIService`, too: an operator that puts it back, or changes it after it was saved.

use exuvia_datastore::route::{Error, Observed, Removed, Route, Saved, Switched};
use exuvia_testenv::aggregated::Aggregated;
use exuvia_testenv::{Widgets, until};
use exuvia_write::Writer;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::{World, api_services, both, is_automanaged, servers};

#[tokio::test]
async fn an_operator_that_puts_the_backend_back_is_told_and_left_alone() {
    let world = World::new("contested").await;
    let kinds = world.kinds();
    let saved = world.route.save().await.unwrap();
    assert_eq!(world.route.remove(&saved).await.unwrap(), Removed::Gone);
    assert_eq!(world.route.remove(&saved).await.unwrap(), Removed::Gone, "again");
    until("the automanaged one is there", async || {
        is_automanaged(&world.route.observe().await.unwrap())
    })
    .await;

    // Over the automanaged one, as an operator that reconciles.
    world.backend.install(&world.clients[0]).await.unwrap();
    let theirs = world.api_service().await.unwrap();
    let observed = world.route.observe().await.unwrap();
    assert!(Saved::from_value(&saved).unwrap().was_replaced_by(&observed));
    assert_eq!(world.route.remove(&saved).await.unwrap(), Removed::CameBack);
    let switched = world.route.switch(&saved, &kinds, &[]).await.unwrap();
    assert!(matches!(switched, Switched::CameBack), "{switched:?}");
    // A refresh of discovery is for automanaged ones alone.
    assert!(!world.route.refresh_discovery().await.unwrap());
    assert_eq!(
        world.api_service().await.unwrap().data["spec"],
        theirs.data["spec"]
    );

    // Who wants to remove it nevertheless saves it first.
    let saved = world.route.save().await.unwrap();
    assert_eq!(world.route.remove(&saved).await.unwrap(), Removed::Gone);
}

#[tokio::test]
async fn one_that_changed_since_it_was_saved_is_not_removed() {
    let world = World::new("changed").await;
    let saved = world.route.save().await.unwrap();
    let (api, name) = (world.api_services(), world.route.api_service());
    let change = Patch::Merge(json!({"spec": {"versionPriority": 201}}));
    api.patch(name, &PatchParams::default(), &change).await.unwrap();
    assert_eq!(world.route.remove(&saved).await.unwrap(), Removed::Changed);
    assert!(matches!(
        world.route.observe().await.unwrap(),
        Observed::Backend(_)
    ));

    let hold = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/hold"]}}));
    let held_as = Patch::Merge(json!({"metadata": {"finalizers": []}}));
    let saved = world.route.save().await.unwrap();
    api.patch(name, &PatchParams::default(), &hold).await.unwrap();
    for refused in [
        world.route.save().await.map(drop),
        world.route.remove(&saved).await.map(drop),
    ] {
        assert!(matches!(&refused, Err(Error::Held { .. })), "{refused:?}");
    }
    api.patch(name, &PatchParams::default(), &held_as).await.unwrap();
    assert_eq!(world.route.remove(&saved).await.unwrap(), Removed::Gone);
}

#[tokio::test]
async fn where_nothing_is_left_it_is_created_and_a_backend_of_somebody_else_is_kept() {
    let (control_plane, _) = servers().await;
    let client = control_plane.client().unwrap();
    // No CRD of the group that is shown, so no automanaged one comes.
    let stored = Widgets::in_group("absent.stored.example.com");
    stored.install(&client, "v1").await.unwrap();
    let shown = ("absent.shown.example.com", "v1");
    let backend = Aggregated::start(control_plane, shown, (stored.group(), "v1"), &["widgets"]);
    let backend = backend.await.unwrap();
    backend.install(&client).await.unwrap();
    let writer = Writer::named("exuvia-datastore");
    let servers = both().await;
    let route = Route::new(client.clone(), writer, servers, &backend.api_service_name());
    let route = route.unwrap();
    let saved = route.save().await.unwrap();
    assert_eq!(route.remove(&saved).await.unwrap(), Removed::Gone);
    assert_eq!(route.observe().await.unwrap(), Observed::Absent);
    route.restore(&saved).await.unwrap();
    let Observed::Backend(restored) = route.observe().await.unwrap() else {
        panic!("it has no backend")
    };
    assert!(restored.is_available());
    assert_eq!(
        json!(restored.object().labels()),
        backend.api_service()["metadata"]["labels"]
    );

    // An operator is faster, with another spec: it stays.
    let api = api_services(&client);
    let name = backend.api_service_name();
    api.delete(&name, &DeleteParams::default()).await.unwrap();
    let mut theirs = backend.api_service();
    theirs["spec"]["versionPriority"] = 77.into();
    let theirs = serde_json::from_value(theirs).unwrap();
    api.create(&PostParams::default(), &theirs).await.unwrap();
    route.restore(&saved).await.unwrap();
    let kept = api.get(&name).await.unwrap();
    assert_eq!(kept.data["spec"]["versionPriority"], 77);
}

#[tokio::test]
async fn a_backend_that_does_not_answer_is_said_to_be_unavailable() {
    let world = World::new("unavailable").await;
    let saved = world.route.save().await.unwrap();
    assert_eq!(world.route.remove(&saved).await.unwrap(), Removed::Gone);
    let World { backend, route, .. } = world;
    drop(backend);
    let error = route.restore(&saved).await.unwrap_err();
    assert!(matches!(error, Error::NotAvailable { .. }), "{error}");
    assert!(
        matches!(route.observe().await.unwrap(), Observed::Backend(_)),
        "it is back all the same"
    );
}
