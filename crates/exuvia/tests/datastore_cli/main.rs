//! `exuvia datastore …` as a user runs it: offline on files, and against a real control plane.

#![allow(clippy::disallowed_methods)] // tests set up their world
#![allow(clippy::unwrap_used)] // a test may panic

#[path = "../binary/mod.rs"]
mod binary;
mod conflicts;
mod planned;
mod rendered;
mod status;
mod steered;
#[path = "../plan/terminal.rs"]
#[allow(dead_code, reason = "no test uses all of it")]
mod terminal;
mod validated;
mod verified;
mod world;
mod wrong;

use std::path::Path;
use std::process::{Command, Stdio};

/// Runs the binary without a cluster: exit code, output, errors. Words are separated by spaces.
fn offline(directory: &Path, line: &str) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_exuvia"))
        .args(line.split(' ').filter(|word| !word.is_empty()))
        .current_dir(directory)
        .env("KUBECONFIG", "./none")
        .env_remove("COLUMNS")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (
        output.status.code(),
        binary::text(&output.stdout),
        binary::text(&output.stderr),
    )
}

fn write(directory: &Path, name: &str, text: &str) {
    let path = directory.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}
