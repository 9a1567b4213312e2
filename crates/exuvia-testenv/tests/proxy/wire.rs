//! What passes through the proxy, as whom, and what is recorded of it.

use exuvia_testenv::ControlPlane;
use exuvia_testenv::proxy::{Answer, Fault, Match, Rule};
use futures::{StreamExt, TryStreamExt};
use http::Method;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube::config::KubeConfigOptions;
use serde_json::json;

use crate::{Setup, config_map, create, labelled, setup, soon};

#[tokio::test]
async fn too_many_requests_come_with_retry_after_and_any_body() {
    let Setup { proxy, .. } = setup().await;
    let answer = Answer::status(429)
        .retry_after(7)
        .text("Too many requests, please try again later.");
    proxy.inject(
        Rule::on(Match::method(Method::GET).path("/version"))
            .times(1)
            .then(Fault::refuse(answer)),
    );
    let client = proxy.client().unwrap();
    let version = || {
        http::Request::get("/version")
            .body(kube::client::Body::empty())
            .unwrap()
    };
    let refused = soon(client.send(version())).await.unwrap();
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()[http::header::RETRY_AFTER], "7");
    let text = refused.into_body().collect_bytes().await.unwrap();
    assert_eq!(text, "Too many requests, please try again later.");
    assert_eq!(soon(client.send(version())).await.unwrap().status(), 200);
}

#[tokio::test]
async fn every_request_is_recorded_as_it_was_on_the_wire() {
    let Setup {
        proxy,
        direct,
        through,
    } = setup().await;
    create(&direct, "recorded").await.unwrap();
    let patch = Patch::Merge(json!({"data": {"n": "1"}}));
    through
        .patch("recorded", &PatchParams::apply("wire"), &patch)
        .await
        .unwrap();
    through.get("recorded").await.unwrap();
    assert_eq!(proxy.requests().len(), 2);
    let [write] = proxy.writes().try_into().unwrap();
    assert_eq!(write.method, Method::PATCH);
    assert_eq!(write.query, "&fieldManager=wire", "kube's way of writing it");
    assert_eq!(write.path, "/api/v1/namespaces/default/configmaps/recorded");
    assert_eq!(write.content_type(), Some("application/merge-patch+json"));
    assert_eq!(write.json(), json!({"data": {"n": "1"}}));
    assert_eq!(
        (write.upstream, write.answer, write.bytes_in),
        (Some(200), Some(200), 18)
    );
    proxy.forget();
    assert!(proxy.requests().is_empty());
}

#[tokio::test]
async fn many_requests_pass_at_once() {
    let Setup {
        proxy,
        direct,
        through,
    } = setup().await;
    futures::stream::iter(0..200)
        .map(|n| {
            let through = through.clone();
            async move {
                through
                    .create(&PostParams::default(), &config_map("many", &format!("many-{n}")))
                    .await
                    .map(drop)
            }
        })
        .buffer_unordered(64)
        .try_collect::<()>()
        .await
        .unwrap();
    assert_eq!(
        direct.list_metadata(&labelled("many")).await.unwrap().items.len(),
        200
    );
    assert!(proxy.writes().iter().all(|r| r.answer == Some(201)));
    assert_eq!(proxy.writes().len(), 200);
}

#[tokio::test]
async fn a_token_counts_for_more_than_the_proxys_certificate() {
    let Setup { proxy, .. } = setup().await;
    let who = async |client: kube::Client| {
        let reviews: Api<SelfSubjectReview> = Api::all(client);
        let review = reviews
            .create(&PostParams::default(), &SelfSubjectReview::default())
            .await
            .unwrap();
        review.status.unwrap().user_info.unwrap().username.unwrap()
    };
    let control_plane = ControlPlane::shared().await;
    let account = control_plane
        .service_account("default", "behind-proxy")
        .await
        .unwrap();
    let with_token = account.at(proxy.url()).client().unwrap();
    assert_eq!(
        who(with_token).await,
        "system:serviceaccount:default:behind-proxy"
    );
    assert_eq!(who(proxy.client().unwrap()).await, control_plane.admin().user());

    let kubeconfig = kube::config::Kubeconfig::from_yaml(&proxy.kubeconfig_yaml()).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    assert_eq!(
        who(kube::Client::try_from(config).unwrap()).await,
        control_plane.admin().user()
    );
}
