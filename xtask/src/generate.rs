//! Files that are generated from the code, committed, and checked to be up to date.

use std::path::Path;

use anyhow::{Context, bail};
use clap::CommandFactory;
use exuvia_datastore::DatastoreController;
use exuvia_runtime::Metrics;
use exuvia_storage::StorageController;
use kube::CustomResourceExt;

const METRICS: &str = "docs/metrics.md";
const RBAC: &str = "docs/rbac.md";
/// What is between these lines of a page is generated.
const MARKERS: [&str; 2] = [
    "<!-- generated from the code by `cargo xtask generate` -->\n",
    "<!-- end of what is generated -->\n",
];

/// Writes every generated file; with `check`, only compares.
pub(crate) fn run(check: bool) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask is in the workspace")?;
    let generated = [
        ("docs/cli.md", cli_reference()),
        ("docs/configuration.md", configuration()?),
        (METRICS, between_markers(root, METRICS, &metrics()?)?),
        (RBAC, between_markers(root, RBAC, &crate::chart::rule_table()?)?),
        (
            "charts/exuvia-crds/templates/storagemigrations.exuvia.dev.yaml",
            crd(&exuvia_api::StorageMigration::crd())?,
        ),
        (
            "charts/exuvia-crds/templates/datastoremigrations.exuvia.dev.yaml",
            crd(&exuvia_api::DatastoreMigration::crd())?,
        ),
    ];
    let charts = crate::chart::files(root)?.into_iter().chain(crate::mcp::files()?);
    for (path, content) in generated.into_iter().chain(charts) {
        settle(root, path, &content, check)?;
    }
    // Rendered from the charts, of which the files above are part.
    for (path, content) in crate::deploy::manifests(root)? {
        settle(root, path, &content, check)?;
    }
    Ok(())
}

/// Writes the file, or fails if it is stale.
fn settle(root: &Path, path: &str, content: &str, check: bool) -> anyhow::Result<()> {
    let file = root.join(path);
    if std::fs::read_to_string(&file).is_ok_and(|existing| existing == content) {
        return Ok(());
    }
    if check {
        bail!("{path} is stale: run `cargo xtask generate` and commit the result");
    }
    if let Some(directory) = file.parent() {
        std::fs::create_dir_all(directory)?;
    }
    std::fs::write(&file, content).with_context(|| format!("failed to write {path}"))?;
    println!("wrote {path}");
    Ok(())
}

/// The page as it is, with this content between the markers.
pub(crate) fn between_markers(root: &Path, path: &str, content: &str) -> anyhow::Result<String> {
    let page = std::fs::read_to_string(root.join(path)).with_context(|| format!("failed to read {path}"))?;
    let parts = page
        .split_once(MARKERS[0])
        .and_then(|(before, rest)| Some((before, rest.split_once(MARKERS[1])?.1)));
    let (before, after) = parts.with_context(|| format!("{path} lacks the lines {MARKERS:?}"))?;
    let [begin, end] = MARKERS;
    Ok(format!("{before}{begin}\n{content}\n{end}{after}"))
}

/// Every metric of the operator, from a registry that has them all.
fn metrics() -> anyhow::Result<String> {
    let metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
    StorageController::sample_metrics(&metrics);
    DatastoreController::sample_metrics(&metrics);
    metrics.sample();
    let described = metrics.describe().map_err(|missing| {
        anyhow::anyhow!(
            "metrics without an example, add one to the sample: {}",
            missing.join(", ")
        )
    })?;
    let mut text = "| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for metric in described {
        let labels = metric.labels.join(", ");
        text.push_str(&format!(
            "| `{}` | {} | {labels} | {} |\n",
            metric.name, metric.kind, metric.help
        ));
    }
    Ok(text)
}

fn crd(crd: &impl serde::Serialize) -> anyhow::Result<String> {
    let yaml = serde_saphyr::to_string(crd)?;
    Ok(format!(
        "# Generated from the code by `cargo xtask generate`.\n{yaml}"
    ))
}

fn cli_reference() -> String {
    let mut text =
        "# Command-line reference\n\nGenerated from the code by `cargo xtask generate`.\n".to_owned();
    let mut root = exuvia::cli::Cli::command().term_width(100);
    root.build();
    describe(&root, &mut text);
    text
}

/// The operator's settings as a table, with the environment variable next to the flag.
fn configuration() -> anyhow::Result<String> {
    let mut root = exuvia::cli::Cli::command();
    root.build();
    let operator = root
        .find_subcommand("operator")
        .context("there is an operator command")?;
    let mut text = "# Configuration of the operator\n\nGenerated from the code by `cargo xtask generate`. A flag takes \
                    precedence over its environment variable.\n\n| flag | environment variable | default | meaning |\n|---|---|---|---|\n"
        .to_owned();
    let shown = operator
        .get_arguments()
        .filter(|arg| !arg.is_global_set() && !arg.is_hide_set());
    for arg in shown {
        let Some(long) = arg.get_long().filter(|long| *long != "help") else {
            continue;
        };
        let env = arg
            .get_env()
            .map_or(String::new(), |env| format!("`{}`", env.to_string_lossy()));
        let defaults: Vec<String> = arg
            .get_default_values()
            .iter()
            .map(|value| format!("`{}`", value.to_string_lossy()))
            .collect();
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let help = help.replace('|', "\\|");
        text.push_str(&format!(
            "| `--{long}` | {env} | {} | {help} |\n",
            defaults.join(" ")
        ));
    }
    text.push_str(
        "\nDurations have a unit: `500ms`, `60s`, `15m` or `1h`. The chart's values are in [the chart's \
         README](../charts/exuvia/README.md).\n",
    );
    Ok(text)
}

fn describe(command: &clap::Command, text: &mut String) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let help = command.clone().render_long_help().to_string();
    text.push_str(&format!("\n## `{name}`\n\n```text\n{}\n```\n", trim_lines(&help)));
    for subcommand in command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help" && !sub.is_hide_set())
    {
        describe(subcommand, text);
    }
}

fn trim_lines(text: &str) -> String {
    let lines: Vec<&str> = text.trim().lines().map(str::trim_end).collect();
    lines.join("\n")
}
