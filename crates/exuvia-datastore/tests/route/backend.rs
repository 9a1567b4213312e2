//! The extension API server of the tests is one: reads, writes and watches go through it to the group that is stored.

use exuvia_testenv::aggregated::alias_uid;
use exuvia_testenv::soon;
use futures::{StreamExt, TryStreamExt};
use kube::ResourceExt;
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent, WatchParams,
};
use serde_json::json;

use crate::World;

#[tokio::test]
async fn what_is_done_through_the_backend_is_done_to_the_stored_group() {
    let world = World::new("backend").await;
    let client = &world.clients[1];
    let shown = world.shown.api(client, "v1");
    let stored = world.stored.api(client, "v1");

    let list = shown.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(list.items.len(), 2);
    let rest = ListParams::default().continue_token(list.metadata.continue_.as_deref().unwrap());
    assert_eq!(shown.list(&rest).await.unwrap().items.len(), 1);
    let types = list.items[0].types.clone().unwrap();
    assert_eq!(types.api_version, format!("{}/v1", world.shown.group()));
    let metadata = shown.list_metadata(&ListParams::default()).await.unwrap();
    assert_eq!(metadata.items.len(), 3);

    let watching = WatchParams::default().timeout(60);
    let since = metadata.metadata.resource_version.unwrap();
    let mut watched = shown.watch(&watching, &since).await.unwrap().boxed();
    let made = world.shown.widget("v1", "made");
    let made = shown.create(&PostParams::default(), &made).await.unwrap();
    let real = stored.get("made").await.unwrap();
    assert_eq!(made.uid().unwrap(), alias_uid(&real.uid().unwrap()));
    match soon(watched.try_next()).await.unwrap() {
        Some(WatchEvent::Added(object)) => assert_eq!(object.uid(), made.uid()),
        other => panic!("{other:?}"),
    }

    let patch = Patch::Merge(json!({"spec": {"size": 7}}));
    let mut patched = shown
        .patch("made", &PatchParams::default(), &patch)
        .await
        .unwrap();
    patched.data["spec"]["color"] = "red".into();
    shown
        .replace("made", &PostParams::default(), &patched)
        .await
        .unwrap();
    let real = stored.get("made").await.unwrap();
    assert_eq!(real.data["spec"], json!({"size": 7, "color": "red"}));

    // By the uid that the client knows.
    let by_uid = |uid: Option<String>| DeleteParams {
        preconditions: Some(Preconditions {
            uid,
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let refused = shown.delete("made", &by_uid(real.uid())).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 409));
    shown.delete("made", &by_uid(made.uid())).await.unwrap();
    assert!(stored.get_opt("made").await.unwrap().is_none());
    let gone = shown.get("made").await.unwrap_err();
    let kube::Error::Api(status) = gone else {
        panic!("{gone}")
    };
    assert_eq!(status.details.unwrap().group, world.shown.group());

    let requests = world.backend.recorded();
    assert_eq!(world.backend.requests(), requests.len());
    let deletes = requests
        .iter()
        .filter(|(method, _)| method == http::Method::DELETE);
    assert_eq!(deletes.count(), 2);
}
