//! What the runner says when it cannot run: a clear error and an exit code, never a panic. No control plane is needed.

use std::process::{Command, Output};

fn runner(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-runner"));
    command.env_clear().envs(env.iter().copied());
    command.args([
        "run",
        "--listen=127.0.0.1:0",
        "--admin-listen=127.0.0.1:0",
        "--mount-patience=0s",
    ]);
    command.args(["--backend=http://127.0.0.1:9"]); // no cluster is needed
    command.args(args).output().unwrap()
}

fn assert_refused(output: &Output, code: i32, words: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(words), "{said}");
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn a_runner_without_a_run_config_says_where_it_looked() {
    let output = runner(
        &["--config=/nonexistent/a.json", "--config=/nonexistent/b.json"],
        &[],
    );
    assert_refused(
        &output,
        78,
        "expected one of /nonexistent/a.json, /nonexistent/b.json",
    );
}

#[test]
fn the_names_of_another_operator_have_other_paths() {
    let output = runner(&["--names=toolhive"], &[]);
    assert_refused(&output, 78, "/etc/toolhive/runconfig.json");
    assert_refused(
        &runner(&["--names=other"], &[]),
        2,
        "expected default or toolhive",
    );
}

#[test]
fn a_broken_run_config_is_refused_without_its_content() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("runconfig.json");
    for broken in ["", "{", "[]", r#"{"name": "s3cret"}"#, "s3cret"] {
        std::fs::write(&path, broken).unwrap();
        let config = format!("--config={}", path.display());
        let output = runner(&[&config], &[]);
        assert_refused(&output, 78, "invalid run config");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("s3cret"));
    }
}

#[test]
fn an_origin_that_is_not_one_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("runconfig.json");
    let config = r#"{"name": "a", "namespace": "b", "image": "i", "path": "/mcp", "mcpPort": 1, "proxyPort": 2,
                     "allowedOrigins": ["not an origin"]}"#;
    std::fs::write(&path, config).unwrap();
    let config = format!("--config={}", path.display());
    assert_refused(&runner(&[&config], &[]), 78, "invalid allowedOrigins");
}

#[test]
fn the_bridge_needs_a_command() {
    let output = Command::new(env!("CARGO_BIN_EXE_mcp-runner"))
        .arg("bridge")
        .output()
        .unwrap();
    assert_refused(&output, 2, "--");
}

#[test]
fn the_runner_copies_itself_for_pods_that_run_the_bridge() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("mcp-runner");
    let installed = Command::new(env!("CARGO_BIN_EXE_mcp-runner"))
        .arg("install")
        .arg(&copy)
        .output()
        .unwrap();
    assert!(installed.status.success(), "{installed:?}");
    let version = Command::new(&copy).arg("--version").output().unwrap();
    assert!(String::from_utf8_lossy(&version.stdout).starts_with("mcp-runner "));
}
