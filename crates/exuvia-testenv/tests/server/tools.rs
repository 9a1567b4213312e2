//! The real promtool and actionlint, on good and bad files.

use exuvia_testenv::{actionlint, promtool};

#[tokio::test]
async fn good_rules_are_accepted_and_bad_ones_refused() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, expression: &str| {
        let path = directory.path().join(name);
        let rules =
            format!("groups:\n- name: widgets\n  rules:\n  - alert: NoWidgets\n    expr: {expression}\n");
        std::fs::write(&path, rules).unwrap();
        path.display().to_string()
    };
    let good = write("good.yaml", "sum by (kind) (widgets) == 0");
    let bad = write("bad.yaml", "sum by (kind) (widgets ==");

    let printed = promtool(["check", "rules", &good]).await.unwrap();
    assert!(printed.contains("1 rules found"), "{printed}");
    let error = promtool(["check", "rules", &bad]).await.unwrap_err().to_string();
    assert!(
        error.contains("promtool check rules") && error.contains("bad.yaml") && error.contains("parse error"),
        "{error}"
    );
}

#[tokio::test]
async fn a_good_workflow_is_accepted_and_a_bad_one_refused() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, runner: &str| {
        let path = directory.path().join(name);
        let workflow =
            format!("on: push\njobs:\n  test:\n    runs-on: {runner}\n    steps:\n    - run: make test\n");
        std::fs::write(&path, workflow).unwrap();
        path
    };
    let good = write("good.yml", "ubuntu-latest");
    let bad = write("bad.yml", "${{ matrix.os }}");

    actionlint([&good]).await.unwrap();
    let error = actionlint([&good, &bad]).await.unwrap_err().to_string();
    assert!(
        error.contains("bad.yml:4") && error.contains(r#"property "os" is not defined"#),
        "{error}"
    );
}

/// Those of this repository.
#[tokio::test]
async fn workflows_are_valid() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.github/workflows");
    let paths = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let is_workflow =
        |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "yml" || end == "yaml");
    let workflows: Vec<_> = paths.filter(is_workflow).collect();
    assert_eq!(workflows.len(), 2, "{workflows:?}");
    actionlint(workflows).await.unwrap();
}
