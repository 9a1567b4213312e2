//! Starts a real control plane, flips the storage version of a CRD, and reads from etcd what is stored.
//!
//!     cargo run -p exuvia-testenv --example stored_bytes
//!
//! The first run builds etcd and kube-apiserver, which takes minutes; see docs/testenv.md.
#![allow(clippy::disallowed_methods, reason = "a test creates objects directly")]

use std::collections::BTreeMap;
use std::process::ExitCode;

use exuvia_testenv::{ControlPlane, Error, Widgets};
use kube::api::PostParams;

#[tokio::main]
async fn main() -> ExitCode {
    match start().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// Prints the error with its causes, each once: some errors repeat what is below them.
fn fail(error: &dyn std::error::Error) -> ExitCode {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let own = error.to_string();
        if !text.contains(&own) {
            text = format!("{text}: {own}");
        }
        cause = error.source();
    }
    eprintln!("error: {text}");
    ExitCode::FAILURE
}

async fn start() -> Result<(), Error> {
    let control_plane = ControlPlane::builder().start().await?;
    println!("the API server is {}", control_plane.apiserver().url());
    let counts = run(&control_plane).await?;
    println!("the storage version is v1 now; etcd holds: {counts:?}");
    Ok(()) // everything ends with `control_plane`
}

/// How many objects etcd holds at each version, after a flip and one write.
pub(crate) async fn run(control_plane: &ControlPlane) -> Result<BTreeMap<String, usize>, Error> {
    let client = control_plane.client()?; // a kube::Client, as administrator
    let widgets = Widgets::in_group("bytes.example.com");
    widgets.install(&client, "v1alpha1").await?;
    widgets.create(&client, "v1alpha1", 3).await?;
    widgets.flip_storage(&client, "v1").await?;
    // Only what is written after the flip is stored at v1.
    widgets
        .api(&client, "v1")
        .create(&PostParams::default(), &widgets.widget("v1", "new"))
        .await?;
    control_plane
        .stored(widgets.group(), "widgets")
        .count_by_version()
        .await
}
