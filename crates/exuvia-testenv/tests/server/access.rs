//! Who may do what, and what the audit log says of it.

use exuvia_testenv::{ControlPlane, Widgets};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;

#[tokio::test]
async fn a_user_has_only_the_rights_that_it_is_given() {
    let control_plane = ControlPlane::shared().await;
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]);
    let user = control_plane.user_with_rules("alice", &rules).await.unwrap();
    let config_maps: Api<ConfigMap> = Api::namespaced(user.client().unwrap(), "default");
    // A role binding takes effect when the authoriser's informer has seen it.
    exuvia_testenv::until("alice may list", async || {
        config_maps.list(&ListParams::default()).await.is_ok()
    })
    .await;
    let refused = config_maps.get("any").await.unwrap_err();
    assert!(
        matches!(&refused, kube::Error::Api(status) if status.code == 403),
        "{refused}"
    );

    let events = control_plane.audit().of("alice").unwrap();
    assert!(
        events
            .iter()
            .any(|e| e.verb == "list" && e.resource() == "configmaps" && e.code() == 200)
    );
    assert!(
        events
            .iter()
            .any(|e| e.verb == "get" && e.code() == 403 && !e.is_write())
    );
}

#[tokio::test]
async fn a_certificate_carries_two_groups_and_a_third_is_refused() {
    let control_plane = ControlPlane::shared().await;
    let member = control_plane
        .user("bob", &["bystanders", "system:masters"])
        .unwrap();
    let namespaces: Api<Namespace> = Api::all(member.client().unwrap());
    namespaces.list(&ListParams::default()).await.unwrap();
    let error = control_plane
        .user("carol", &["a", "b", "c"])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("carol") && error.contains("two at most"),
        "{error}"
    );
}

#[tokio::test]
async fn a_service_account_is_known_by_its_token() {
    let control_plane = ControlPlane::shared().await;
    let account = control_plane.service_account("default", "robot").await.unwrap();
    let config_maps: Api<ConfigMap> = Api::namespaced(account.client().unwrap(), "default");
    let refused = config_maps
        .list(&ListParams::default())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("system:serviceaccount:default:robot"),
        "{refused}"
    );
}

#[tokio::test]
async fn the_kubeconfig_works_for_any_client() {
    let control_plane = ControlPlane::shared().await;
    let path = control_plane.admin().kubeconfig().unwrap();
    let kubeconfig = kube::config::Kubeconfig::read_from(path).unwrap();
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default())
            .await
            .unwrap();
    let client = kube::Client::try_from(config).unwrap();
    client.apiserver_version().await.unwrap();
}

#[tokio::test]
async fn two_api_servers_serve_one_etcd() {
    let control_plane = ControlPlane::shared().await;
    let second = control_plane.another_apiserver().await.unwrap();
    let widgets = Widgets::in_group("two.example.com");
    widgets
        .install(&control_plane.client().unwrap(), "v1")
        .await
        .unwrap();
    widgets
        .create(&control_plane.client().unwrap(), "v1", 1)
        .await
        .unwrap();

    let other = widgets.api(&second.client().unwrap(), "v1");
    exuvia_testenv::until("the second server serves the CRD", async || {
        other.get("widget-0000").await.is_ok()
    })
    .await;
    other
        .create(&PostParams::default(), &widgets.widget("v1", "from-second"))
        .await
        .unwrap();
    assert_eq!(
        control_plane
            .stored("two.example.com", "widgets")
            .all()
            .await
            .unwrap()
            .len(),
        2
    );
    let seen_by_audit = control_plane.audit().events().unwrap();
    assert!(
        seen_by_audit
            .iter()
            .any(|e| e.verb == "create" && e.request_uri.contains("two.example.com")),
        "both servers' audit logs are read"
    );
}
