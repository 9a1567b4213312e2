//! API servers on hosts of different names: each has its own identity Lease (PITFALLS A40).

use std::collections::BTreeMap;

use exuvia_testenv::ControlPlane;
use kube::ResourceExt;

/// When each host last renewed its Lease.
async fn renewals(control_plane: &ControlPlane) -> BTreeMap<String, String> {
    let leases = control_plane.identity_leases().await.unwrap();
    let host = |lease: &k8s_openapi::api::coordination::v1::Lease| {
        let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
        (
            lease.labels()["kubernetes.io/hostname"].clone(),
            serde_json::to_string(&renewed).unwrap(),
        )
    };
    leases.iter().map(host).collect()
}

#[tokio::test]
async fn a_server_on_another_host_has_a_lease_of_its_own_and_keeps_it_while_it_stands_still() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let alone = renewals(&control_plane).await;
    assert_eq!(
        alone.len(),
        1,
        "it is there as soon as the control plane is: {alone:?}"
    );
    let same_host = control_plane.another_apiserver().await.unwrap();
    assert_eq!(
        renewals(&control_plane).await.len(),
        1,
        "servers of one host share a Lease"
    );

    let second = control_plane.another_apiserver_on_host("host-b").await.unwrap();
    let pid = second.process().pid().unwrap();
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert_eq!(name.trim(), "kube-apiserver", "signals reach the server itself");
    let both = renewals(&control_plane).await;
    assert_eq!(both.len(), 2, "{both:?}");
    assert!(both.contains_key("host-b"), "{both:?}");
    assert!(!alone.contains_key("host-b"), "our own host is not called so");

    second.process().pause().unwrap();
    let paused = renewals(&control_plane).await;
    let first = alone.keys().next().unwrap();
    exuvia_testenv::until("the first server renews its Lease", async || {
        renewals(&control_plane).await[first] != paused[first]
    })
    .await;
    let later = renewals(&control_plane).await;
    assert_eq!(
        later.get("host-b"),
        paused.get("host-b"),
        "still there, not renewed"
    );
    second.process().resume().unwrap();
    second.ready().await.unwrap();
    drop((second, same_host));
    assert!(
        std::fs::metadata(format!("/proc/{pid}")).is_err(),
        "it ends when it is dropped"
    );
}
