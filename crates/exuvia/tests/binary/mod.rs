//! The binary as a user runs it, against a real control plane.
#![allow(dead_code, reason = "no test uses all of it")]

use std::path::PathBuf;
use std::process::{Command, Output};

use exuvia_testenv::{ControlPlane, Widgets};
use kube::Client;
use serde_json::Value;

/// The binary, with a kubeconfig.
pub(crate) async fn exuvia(kubeconfig: PathBuf, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_exuvia"));
    // As in a pipe: nothing says how wide the screen is.
    command
        .args(args)
        .env("KUBECONFIG", kubeconfig)
        .env_remove("COLUMNS");
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

pub(crate) async fn admin(control_plane: &ControlPlane, args: &[&str]) -> Output {
    exuvia(control_plane.admin().kubeconfig().unwrap(), args).await
}

/// `storage migrate`, which need not wait for a minute to know that the one API server has understood.
pub(crate) async fn migrate(control_plane: &ControlPlane, args: &[&str]) -> Output {
    let server = control_plane.apiserver().url();
    let always = ["storage", "migrate", "--settle", "300ms", "--apiserver", server];
    admin(control_plane, &[&always, args].concat()).await
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Everything that it printed.
pub(crate) fn printed(output: &Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}

pub(crate) fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", printed(output)))
}

/// Widgets that were created at v1alpha1, and then the storage version was flipped.
pub(crate) async fn flipped(client: &Client, group: &str, count: usize) -> Widgets {
    Widgets::flipped(client, group, count).await.unwrap()
}
