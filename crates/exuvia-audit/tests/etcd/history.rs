//! What happens to an audit when etcd moves on under it, on a separate etcd because others would notice.

use exuvia_audit::{AuditOptions, Error, Fault, audit, audit_with_progress};
use exuvia_testenv::ControlPlane;
use serde_json::json;

use crate::{fault, options, raw};

#[tokio::test]
async fn compaction_large_objects_and_users() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let options = AuditOptions {
        page_size: 5,
        ..options(&control_plane)
    };
    let endpoint = control_plane.etcd().endpoint().to_owned();
    a_compacted_revision_starts_the_audit_again_once(&control_plane, &options, &endpoint).await;
    a_page_that_is_too_large_is_asked_for_in_parts(&control_plane, &endpoint).await;
    an_etcd_with_users_is_told_apart(&options, &endpoint).await; // the last: the API server is locked out, too
}

async fn a_compacted_revision_starts_the_audit_again_once(
    control_plane: &ControlPlane,
    options: &AuditOptions,
    endpoint: &str,
) {
    let before = control_plane.etcd().revision().await.unwrap();
    let mut compactions = 0;
    let report = audit_with_progress(options, &mut |_| {
        if compactions == 0 {
            raw::compact(endpoint);
            compactions += 1;
        }
    })
    .await
    .unwrap();
    assert!(report.restarted && report.revision > before);
    let stored = control_plane
        .etcd()
        .stored_under("/registry/")
        .at(report.revision)
        .all()
        .await
        .unwrap();
    assert_eq!(
        report.objects,
        stored.len() as u64,
        "nothing of the first attempt is counted"
    );

    let error = audit_with_progress(options, &mut |_| raw::compact(endpoint))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Compacted { .. }), "{error}");
    assert!(
        error.to_string().contains("audit fewer resources at a time"),
        "{error}"
    );
    let calm = audit(options).await.unwrap();
    assert!(!calm.restarted);
}

/// Small objects make pages grow, and then 60 large ones come at once: 84 MB of base64 if nobody stopped it.
async fn a_page_that_is_too_large_is_asked_for_in_parts(control_plane: &ControlPlane, endpoint: &str) {
    let value = |size| json!({"apiVersion": "surprise.example.com/v1", "spec": "x".repeat(size)}).to_string();
    let (small, large) = (value(10), value(1 << 20));
    for index in 0..310 {
        let value = if index < 250 { &small } else { &large };
        let key = format!("/registry/surprise.example.com/things/default/{index:04}");
        raw::put(endpoint, &key, value);
    }
    let options = AuditOptions {
        resources: vec!["things.surprise.example.com".to_owned()],
        ..options(control_plane)
    };
    let mut seen = Vec::new();
    let report = audit_with_progress(&options, &mut |progress| {
        if progress.resource == "things.surprise.example.com" {
            seen.push(progress.objects);
        }
    })
    .await
    .unwrap();
    assert_eq!(report.resources[0].versions["surprise.example.com/v1"], 310);
    let pages: Vec<u64> = seen.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(pages[..3], [32, 64, 128], "growing");
    assert_eq!(pages[3], 16, "256 and 64 were too many");
    assert!(pages[4..].iter().all(|page| *page <= 8), "{pages:?}");
}

async fn an_etcd_with_users_is_told_apart(options: &AuditOptions, endpoint: &str) {
    raw::post(
        endpoint,
        "auth/user/add",
        &json!({"name": "root", "password": "pw"}),
    );
    raw::post(endpoint, "auth/role/add", &json!({"name": "root"}));
    raw::post(
        endpoint,
        "auth/user/grant",
        &json!({"user": "root", "role": "root"}),
    );
    raw::post(endpoint, "auth/enable", &json!({}));
    let error = audit(options).await.unwrap_err();
    assert!(error.to_string().contains("asks for an etcd user"), "{error}");
    assert!(matches!(fault(error), Fault::AuthEnabled(_)));
}
