//! The real promtool on rule files.

use exuvia_testenv::promtool;

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
