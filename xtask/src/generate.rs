//! Files that are written from the code, checked in, and checked for freshness.

use std::path::Path;

use anyhow::{Context, bail};
use clap::CommandFactory;

/// Writes every generated file; with `check`, only compares.
pub(crate) fn run(check: bool) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask lies in the workspace")?;
    for (path, content) in [("docs/cli.md", cli_reference())] {
        let file = root.join(path);
        if std::fs::read_to_string(&file).is_ok_and(|existing| existing == content) {
            continue;
        }
        if check {
            bail!("{path} is stale: run `cargo xtask generate` and commit the result");
        }
        std::fs::write(&file, content).with_context(|| format!("cannot write {path}"))?;
        println!("wrote {path}");
    }
    Ok(())
}

fn cli_reference() -> String {
    let mut text =
        "# Command-line reference\n\nGenerated from the code by `cargo xtask generate`.\n".to_owned();
    let mut root = exuvia::cli::Cli::command().term_width(100);
    root.build();
    describe(&root, &mut text);
    text
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
