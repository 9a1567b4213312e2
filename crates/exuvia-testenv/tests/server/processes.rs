//! Processes: they start, pause, die and come back on command, and never outlive us.

use exuvia_testenv::ControlPlane;

#[tokio::test]
async fn version_tells_the_truth() {
    let control_plane = ControlPlane::shared().await;
    let version = control_plane.client().unwrap().apiserver_version().await.unwrap();
    let expected = exuvia_testenv::assets::Assets::from_env().unwrap().kube_version().full();
    assert_eq!(version.git_version, format!("v{expected}"));
}
