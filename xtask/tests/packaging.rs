//! What a release is made of fits together: one toolchain, one version, a Krew manifest with all checksums.
#![allow(clippy::unwrap_used)] // a test may panic

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What follows `before` in the file, up to `after`.
fn between(path: &str, before: &str, after: &str) -> String {
    let text = read(path);
    let (_, rest) = text
        .split_once(before)
        .unwrap_or_else(|| panic!("{path} has no {before}"));
    rest.split_once(after).unwrap().0.to_owned()
}

fn render(checksums: &str) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("checksums.txt");
    std::fs::write(&file, checksums).unwrap();
    Command::new(root().join("deploy/krew/render"))
        .arg("v1.2.3")
        .arg(file)
        .output()
        .unwrap()
}

#[test]
fn the_krew_manifest_has_the_version_and_each_platforms_checksum() {
    let output =
        render("aaa  exuvia-linux-amd64.tar.gz\nbbb  exuvia-linux-arm64.tar.gz\nccc  exuvia.spdx.json\n");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let plugin: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(plugin["spec"]["version"], "v1.2.3");
    let platforms = plugin["spec"]["platforms"].as_array().unwrap();
    for (platform, (architecture, sum)) in platforms.iter().zip([("amd64", "aaa"), ("arm64", "bbb")]) {
        assert_eq!(platform["selector"]["matchLabels"]["arch"], architecture);
        assert_eq!(platform["sha256"], sum);
        let file = format!("/v1.2.3/exuvia-linux-{architecture}.tar.gz");
        assert!(platform["uri"].as_str().unwrap().ends_with(&file), "{platform}");
    }
    assert_eq!(platforms.len(), 2);
    assert!(!text.contains('@'), "a placeholder is left:\n{text}");
}

#[test]
fn a_checksum_that_is_missing_is_an_error_that_names_the_file() {
    let output = render("aaa  exuvia-linux-amd64.tar.gz\n");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("exuvia-linux-arm64.tar.gz"), "{said}");
}

#[test]
fn the_image_is_built_with_the_pinned_toolchain() {
    let pinned = between("rust-toolchain.toml", "channel = \"", "\"");
    let dockerfile = read("Dockerfile");
    let toolchains: Vec<&str> = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("FROM rust:"))
        .map(|image| image.split_once("-alpine").unwrap().0)
        .collect();
    assert_eq!(toolchains, [pinned.as_str(); 2]);
}

/// The chart starts the operator by its name, and the operator starts runners with arguments alone.
#[test]
fn the_image_of_the_mcp_operator_has_what_its_chart_starts() {
    let stage = between("Dockerfile", "FROM scratch AS mcp-operator\n", "\nFROM ");
    assert!(stage.contains("ENV PATH=/usr/local/bin\n"), "{stage}");
    assert!(
        stage.contains("/out/mcp-operator /out/mcp-runner /usr/local/bin/\n"),
        "{stage}"
    );
    assert!(
        stage.contains("ENTRYPOINT [\"/usr/local/bin/mcp-runner\"]"),
        "{stage}"
    );
    let deployment = read("charts/mcp-operator/templates/deployment.yaml");
    assert!(deployment.contains("command: [mcp-operator]"), "{deployment}");
    let user = stage.lines().find_map(|line| line.strip_prefix("USER ")).unwrap();
    let (user, group) = user.split_once(':').unwrap();
    assert!(deployment.contains(&format!("runAsUser: {user}\n")));
    assert!(deployment.contains(&format!("runAsGroup: {group}\n")));
    // Both workflows build it.
    for workflow in [".github/workflows/ci.yml", ".github/workflows/release.yml"] {
        let text = read(workflow);
        assert!(text.contains("target: mcp-operator"), "{workflow}");
    }
}

#[test]
fn crates_and_charts_have_one_version() {
    let version = between("Cargo.toml", "[workspace.package]\nversion = \"", "\"");
    for chart in ["exuvia", "exuvia-crds", "mcp-operator"] {
        let chart = &format!("charts/{chart}/Chart.yaml");
        assert_eq!(between(chart, "\nversion: ", "\n"), version, "{chart}");
        assert_eq!(between(chart, "\nappVersion: ", "\n"), version, "{chart}");
    }
}
