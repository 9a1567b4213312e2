//! Files that are written from the code, checked in, and checked for freshness.

use std::path::Path;

use anyhow::{Context, bail};
use clap::CommandFactory;
use kube::CustomResourceExt;

/// Writes every generated file; with `check`, only compares.
pub(crate) fn run(check: bool) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask lies in the workspace")?;
    let generated = [
        ("docs/cli.md", cli_reference()),
        ("docs/configuration.md", configuration()?),
        (
            "charts/exuvia-crds/templates/storagemigrations.exuvia.dev.yaml",
            crd(&exuvia_api::StorageMigration::crd())?,
        ),
    ];
    for (path, content) in generated {
        settle(root, path, &content, check)?;
    }
    // Rendered from the charts, of which the CRD above is part.
    for (path, content) in crate::deploy::manifests(root)? {
        settle(root, path, &content, check)?;
    }
    Ok(())
}

/// Makes the file what it should be, or complains if it is not.
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
    std::fs::write(&file, content).with_context(|| format!("cannot write {path}"))?;
    println!("wrote {path}");
    Ok(())
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

/// The operator's settings as a table: whoever writes a Deployment wants the environment variable beside the flag.
fn configuration() -> anyhow::Result<String> {
    let mut root = exuvia::cli::Cli::command();
    root.build();
    let operator = root
        .find_subcommand("operator")
        .context("there is an operator command")?;
    let mut text = "# Configuration of the operator\n\nGenerated from the code by `cargo xtask generate`. A flag wins over \
                    its environment variable.\n\n| flag | environment variable | default | meaning |\n|---|---|---|---|\n"
        .to_owned();
    for arg in operator.get_arguments().filter(|arg| !arg.is_global_set()) {
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
        "\nDurations are written `500ms`, `60s`, `15m` or `1h`. The chart's values are described in \
         [its own page](../charts/exuvia/README.md).\n",
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
