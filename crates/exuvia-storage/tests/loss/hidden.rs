//! What another server shows at the old version says nothing about what a rewrite loses.

use exuvia_storage::End;
use exuvia_testenv::aggregated::Aggregated;
use exuvia_testenv::{Widgets, until};
use serde_json::json;

use crate::Bench;

/// An object that the storage version shows and the old version does not is not gone: it was not compared.
#[tokio::test]
async fn an_object_that_a_backend_of_the_old_version_does_not_show_is_not_taken_for_gone() {
    let free = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let typed = json!({"type": "object", "properties": {"size": {"type": "integer"}}});
    let bench = Bench::installed("behind-old", free, typed).await;
    let spec = json!({"size": 1, "precious": "gone"});
    bench.create("v1alpha1", "rich", spec.clone()).await;
    bench.flip().await;

    let elsewhere = Widgets::in_group("elsewhere.behind-old.example.com");
    elsewhere.install(&bench.client, "v1").await.unwrap();
    let (shown, stored) = ((bench.widgets.group(), "v1alpha1"), (elsewhere.group(), "v1"));
    let backend = Aggregated::start(bench.control_plane, shown, stored, &["widgets"])
        .await
        .unwrap();
    backend.install(&bench.client).await.unwrap();
    until("the backend answers", async || {
        backend.answers(&bench.client).await.unwrap()
    })
    .await;

    let losses = bench.look(&bench.client).await;
    assert!(losses.holds(), "{losses:?}");
    assert_eq!(losses.unseen.len(), 1, "{losses:?}");
    assert!(losses.unseen[0].why.contains("default/rich"), "{losses:?}");

    let proxy = bench.control_plane.proxy().await.unwrap();
    let report = bench.engine(&proxy, false).run().await.unwrap();
    let End::Stalled { message, .. } = &report.end else {
        panic!("{report:?}")
    };
    assert!(
        message.contains("APIService v1alpha1.behind-old.example.com"),
        "{message}"
    );
    assert_eq!(bench.stored_spec("rich").await, ("v1alpha1".to_owned(), spec));
}
