//! Bad input: one sentence that names the cause and the fix.

use std::os::unix::fs::PermissionsExt;

use exuvia_testenv::ControlPlane;
use exuvia_testenv::assets::Assets;

#[tokio::test]
async fn a_busy_port_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = ControlPlane::builder()
        .port(port)
        .start()
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        format!("port {port} on 127.0.0.1 is in use: choose another one, or none to get a free one")
    );
}

#[tokio::test]
async fn a_directory_without_binaries_is_named() {
    let assets = Assets::only_in("/nonexistent", "").ready_binaries("/nonexistent/assets");
    let error = ControlPlane::builder()
        .assets(assets)
        .start()
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("/nonexistent/assets") && error.contains("KUBEBUILDER_ASSETS"),
        "{error}"
    );
}

#[tokio::test]
async fn a_program_that_is_not_a_server_is_named_with_what_it_said() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["etcd", "kube-apiserver"] {
        let path = directory.path().join(name);
        std::fs::write(&path, "#!/bin/sh\necho not a server\nexit 3\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let assets = Assets::only_in("/nonexistent", "").ready_binaries(directory.path());
    let error = ControlPlane::builder()
        .assets(assets)
        .start()
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("ended with exit code 3") && error.contains("not a server"),
        "{error}"
    );
}

#[tokio::test]
async fn a_flag_that_the_server_refuses_is_shown_from_its_log() {
    let error = ControlPlane::builder()
        .apiserver_flag("--no-such-flag")
        .start()
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("kube-apiserver ended") && error.contains("no-such-flag"),
        "{error}"
    );
}
