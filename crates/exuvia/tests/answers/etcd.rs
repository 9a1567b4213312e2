//! The etcd that is to be audited before the trim is tried before anything is written, and in a dry run.

use exuvia_testenv::ControlPlane;

use super::{flipped, migrate, printed};

#[tokio::test]
async fn a_wrong_etcd_is_one_sentence_before_anything_is_written() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "gate.answers.io", 3).await;
    let crd = widgets.crd_name();
    let right = control_plane.etcd().endpoint();
    let other = ControlPlane::builder().start().await.unwrap();
    let elsewhere = other.etcd().endpoint();
    for dry_run in [&["--dry-run"][..], &[]] {
        for (endpoint, prefix, parts) in [
            (
                "http://127.0.0.1:1",
                "/registry",
                ["127.0.0.1:1", "refuses connections"],
            ),
            (right, "/wrong", ["nothing under /wrong", "--etcd-prefix"]),
            ("nonsense", "/registry", ["nonsense", "https://127.0.0.1:2379"]),
            (
                elsewhere,
                "/registry",
                ["another cluster's etcd", "the API server shows 3 objects"],
            ),
        ] {
            let gate = [crd.as_str(), "--etcd-endpoint", endpoint, "--etcd-prefix", prefix];
            let refused = migrate(control_plane, &[&gate, dry_run].concat()).await;
            let said = printed(&refused);
            assert_eq!(refused.status.code(), Some(1), "{said}");
            for part in parts {
                assert!(said.contains(part), "{part:?} is not in {said}");
            }
        }
        let counts = control_plane
            .stored(widgets.group(), "widgets")
            .count_by_version();
        assert_eq!(
            counts.await.unwrap()["gate.answers.io/v1alpha1"],
            3,
            "nothing was written"
        );
    }
    for dry_run in [&["--dry-run"][..], &[]] {
        let gate = [crd.as_str(), "--etcd-endpoint", right];
        let fine = migrate(control_plane, &[&gate, dry_run].concat()).await;
        assert_eq!(fine.status.code(), Some(0), "{}", printed(&fine));
    }
    // Now it is proven, and nothing is left to trim.
    for dry_run in [&["--dry-run"][..], &[]] {
        let gate = [crd.as_str(), "--etcd-endpoint", right];
        let said = printed(&migrate(control_plane, &[&gate, dry_run].concat()).await);
        let instead =
            format!("etcd was not read, because there is nothing to trim; `exuvia storage audit {crd}");
        assert!(said.contains(&instead), "{said}");
    }
}
