//! Plain manifests for clusters without helm: the charts, rendered with their defaults by the real helm.

use std::path::Path;

use anyhow::Context;
use exuvia::cli::OPERATOR_NAMESPACE as NAMESPACE;
use exuvia_testenv::Helm;

/// The files below `deploy/`, rendered from the charts as they are now: write the charts' own generated files first.
pub(crate) fn manifests(root: &Path) -> anyhow::Result<[(&'static str, String); 2]> {
    let header = |chart: &str| format!("# charts/{chart}, rendered by `cargo xtask generate`.\n");
    Ok([
        (
            "deploy/crds.yaml",
            header("exuvia-crds") + &render(root, "exuvia-crds")?,
        ),
        (
            "deploy/exuvia.yaml",
            header("exuvia") + &namespace() + &render(root, "exuvia")?,
        ),
    ])
}

/// helm creates the namespace itself; here it is part of the manifests, and enforces what the pods comply with.
fn namespace() -> String {
    format!(
        "---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}\n  labels:\n    \
         pod-security.kubernetes.io/enforce: restricted\n"
    )
}

fn render(root: &Path, chart: &str) -> anyhow::Result<String> {
    let rendered = tokio::runtime::Runtime::new()?
        .block_on(Helm::offline()?.template(root.join("charts").join(chart), chart, NAMESPACE, &[]))
        .with_context(|| format!("failed to render charts/{chart}"))?;
    Ok(plain(&rendered))
}

/// Without labels and comments that are about helm.
fn plain(rendered: &str) -> String {
    let of_helm = [
        "# Source:",
        "helm.sh/chart:",
        "app.kubernetes.io/managed-by: Helm",
    ];
    let mut text = String::new();
    let lines = rendered.lines().filter(|line| {
        let line = line.trim_start();
        !of_helm.iter().any(|start| line.starts_with(start))
    });
    for line in lines {
        // helm leaves an empty line before each separator.
        if line == "---" {
            text.truncate(text.trim_end().len());
            text.push_str(if text.is_empty() { "" } else { "\n" });
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_of_helm_is_left() {
        let rendered = "---\n# Source: exuvia/templates/a.yaml\na:\n  helm.sh/chart: exuvia-0.1.0\n  \
                        app.kubernetes.io/managed-by: Helm\n  b: c\n\n---\n# Source: x\nd: e\n\n";
        assert_eq!(super::plain(rendered), "---\na:\n  b: c\n---\nd: e\n");
    }
}
