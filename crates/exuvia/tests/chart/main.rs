//! The charts, rendered by the real helm and installed on a real control plane.
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]
#![allow(clippy::unwrap_used)] // a test may panic

#[path = "../rendered/mod.rs"]
mod rendered;

mod admission;
mod installed;
mod monitoring;
mod options;
mod rights;
mod tenancy;
mod values;

use std::path::PathBuf;
use std::process::{Command, Output};

use exuvia_testenv::ControlPlane;
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client};
use tokio::sync::OnceCell;

const NAMESPACE: &str = "exuvia-system";

/// The shared control plane, with both charts installed and every switch on that needs no CRD of another project.
async fn installed() -> &'static ControlPlane {
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    let control_plane = ControlPlane::shared().await;
    let install = async || {
        let helm = control_plane.helm().unwrap();
        let charts = rendered::charts();
        let crds = charts.join("exuvia-crds");
        helm.install(crds, "exuvia-crds", NAMESPACE, &["--create-namespace"])
            .await
            .unwrap();
        let switches = "flowControl.enabled=true,networkPolicy.enabled=true,grafanaDashboard.enabled=true";
        let flags = ["--set", switches, "--set", "crds={widgets.example.com}"];
        helm.install(charts.join("exuvia"), "exuvia", NAMESPACE, &flags)
            .await
            .unwrap();
    };
    INSTALLED.get_or_init(install).await;
    control_plane
}

/// The migrations, with the rights of `client`.
fn migrations(client: Client) -> Api<DynamicObject> {
    let resource = ApiResource {
        group: "exuvia.dev".into(),
        version: "v1beta1".into(),
        api_version: "exuvia.dev/v1beta1".into(),
        kind: "StorageMigration".into(),
        plural: "storagemigrations".into(),
    };
    Api::all_with(client, &resource)
}

/// The binary, with a kubeconfig.
async fn exuvia(kubeconfig: Option<PathBuf>, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_exuvia"));
    command
        .args(args)
        .env("KUBECONFIG", kubeconfig.unwrap_or("/nonexistent".into()));
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
