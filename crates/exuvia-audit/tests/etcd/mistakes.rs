//! What people get wrong, and what they are told.

use exuvia_audit::{AuditOptions, Error, Fault, audit};
use exuvia_testenv::ControlPlane;

use crate::{fault, options};

/// An endpoint at which nothing listens.
fn dead() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[tokio::test]
async fn endpoints_are_tried_in_turn_and_each_says_what_is_wrong() {
    let control_plane = ControlPlane::shared().await;
    let with = |endpoints: Vec<String>| AuditOptions {
        endpoints,
        ..options(control_plane)
    };
    let alive = control_plane.etcd().endpoint().to_owned();
    let report = audit(&with(vec![dead(), alive.clone()])).await.unwrap();
    assert_eq!(report.endpoint, alive);

    let error = audit(&with(vec![dead()])).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("refuses connections; does etcd run there"),
        "{error}"
    );
    assert_eq!(fault(error), Fault::Refused);

    let error = audit(&with(vec![dead(), "http://no-such-host.invalid:2379".to_owned()]))
        .await
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("refuses connections") && text.contains("cannot be reached"),
        "{text}"
    );

    let mut tls = with(vec![alive.replace("http://", "https://")]);
    tls.cacert = Some(control_plane.directory().join("ca.crt"));
    let error = audit(&tls).await.unwrap_err();
    assert!(
        error.to_string().contains("is it http:// and not https://?"),
        "{error}"
    );

    assert!(matches!(audit(&with(Vec::new())).await, Err(Error::NoEndpoint)));
    let error = audit(&with(vec!["127.0.0.1:2379".to_owned()])).await.unwrap_err();
    assert!(matches!(error, Error::BadEndpoint { .. }), "{error}");
}

#[tokio::test]
async fn an_api_server_is_not_an_etcd() {
    let control_plane = ControlPlane::shared().await;
    let options = AuditOptions {
        endpoints: vec![control_plane.admin().url().to_owned()],
        cacert: Some(control_plane.directory().join("ca.crt")),
        ..options(control_plane)
    };
    let error = audit(&options).await.unwrap_err();
    assert!(
        error.to_string().contains("is this etcd's client port?"),
        "{error}"
    );
    assert!(matches!(
        fault(error),
        Fault::Status {
            status: 401 | 403,
            ..
        }
    ));
}

#[tokio::test]
async fn an_empty_prefix_is_not_a_success() {
    let control_plane = ControlPlane::shared().await;
    let options = AuditOptions {
        prefix: "/kubernetes.io".to_owned(),
        ..options(control_plane)
    };
    assert_eq!(
        audit(&options).await.unwrap_err().to_string(),
        "nothing under /kubernetes.io: is --etcd-prefix right? this etcd holds keys below /registry"
    );
}

#[tokio::test]
async fn a_gateway_that_is_off_is_named() {
    let control_plane = ControlPlane::builder()
        .etcd_flag("--enable-grpc-gateway=false")
        .start()
        .await
        .unwrap();
    let error = audit(&options(&control_plane)).await.unwrap_err();
    assert!(error.to_string().contains("--enable-grpc-gateway"), "{error}");
    assert_eq!(fault(error), Fault::NoGateway);
}
