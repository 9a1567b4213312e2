//! Extra flags: encryption at rest, another prefix, etcd with client certificates, early compaction.

use exuvia_testenv::{ControlPlane, Widgets};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;

#[tokio::test]
async fn etcd_may_want_client_certificates_and_another_prefix_and_encryption() {
    let encryption = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
        - resources: [secrets]\n  providers:\n  - secretbox: {keys: [{name: key1, \
        secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}\n  - identity: {}\n";
    let control_plane = ControlPlane::builder()
        .etcd_client_certificates()
        .etcd_prefix("/elsewhere")
        .encryption(encryption)
        .start()
        .await
        .unwrap();
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("flags.example.com");
    widgets.install(&client, "v1").await.unwrap();
    widgets.create(&client, "v1", 1).await.unwrap();
    let stored = control_plane
        .stored("flags.example.com", "widgets")
        .all()
        .await
        .unwrap();
    assert_eq!(
        stored[0].key,
        "/elsewhere/flags.example.com/widgets/default/widget-0000"
    );

    let secrets: Api<Secret> = Api::namespaced(client, "default");
    let secret = serde_json::from_value(json!({"metadata": {"name": "hidden"}})).unwrap();
    secrets.create(&PostParams::default(), &secret).await.unwrap();
    let stored = control_plane
        .etcd()
        .stored_under("/elsewhere/secrets/default/")
        .all()
        .await
        .unwrap();
    assert!(stored[0].bytes.starts_with(b"k8s:enc:secretbox:v1:key1:"));
    assert_eq!(stored[0].api_version, None, "encrypted bytes tell no version");
}

/// PITFALLS A8: what the server does, so that a sweep's test can rely on it.
#[tokio::test]
async fn a_continue_token_expires_and_the_answer_hands_out_a_fresh_one() {
    let control_plane = ControlPlane::builder()
        .apiserver_flag("--etcd-compaction-interval=2s")
        .start()
        .await
        .unwrap();
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("expire.example.com");
    widgets.install(&client, "v1").await.unwrap();
    widgets.create(&client, "v1", 30).await.unwrap();
    let api = widgets.api(&client, "v1");
    let page = async |token: &str| {
        api.list(&ListParams::default().limit(10).continue_token(token))
            .await
    };
    let first = api.list(&ListParams::default().limit(10)).await.unwrap();
    let token = first.metadata.continue_.unwrap();
    let fresh = std::cell::RefCell::new(None);
    exuvia_testenv::until("the token expires", async || {
        // Compaction needs revisions to throw away.
        let _ = api
            .create(&PostParams::default(), &widgets.widget("v1", "widget-9999"))
            .await;
        let _ = api
            .delete("widget-9999", &kube::api::DeleteParams::default())
            .await;
        match page(&token).await {
            Err(kube::Error::Api(status)) if status.code == 410 => {
                *fresh.borrow_mut() = status.metadata.and_then(|meta| meta.continue_);
                true
            }
            _ => false,
        }
    })
    .await;
    let fresh = fresh.into_inner().expect("410 carries a token");
    let second = page(&fresh).await.unwrap();
    assert_eq!(
        second.items[0].metadata.name.as_deref(),
        Some("widget-0010"),
        "it goes on where it was"
    );
}
