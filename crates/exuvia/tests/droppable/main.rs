//! `exuvia storage droppable` as a user runs it, against a real control plane: each thing that can hold a version does.

#![allow(clippy::disallowed_methods)] // tests set up their world
#![allow(clippy::unwrap_used)] // a test may panic

mod bytes;
mod references;
mod usage;

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use exuvia_storage::Verified;
use exuvia_storage::record::Record;
use exuvia_testenv::{ControlPlane, Widgets};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

/// The binary, with a kubeconfig.
async fn exuvia(kubeconfig: PathBuf, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_exuvia"));
    command.args(args).env("KUBECONFIG", kubeconfig);
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

async fn admin(control_plane: &ControlPlane, args: &[&str]) -> Output {
    exuvia(control_plane.admin().kubeconfig().unwrap(), args).await
}

/// `storage migrate`, which need not wait for a minute to know that the one API server has understood.
async fn migrate(control_plane: &ControlPlane, args: &[&str]) -> Output {
    let server = control_plane.apiserver().url();
    let always = ["storage", "migrate", "--settle", "300ms", "--apiserver", server];
    admin(control_plane, &[&always, args].concat()).await
}

/// What `storage droppable` says of v1alpha1: its exit code, and all that it prints.
async fn droppable(control_plane: &ControlPlane, widgets: &Widgets, flags: &[&str]) -> (i32, String) {
    let crd = widgets.crd_name();
    let question = ["storage", "droppable", &crd, "v1alpha1"];
    said(&admin(control_plane, &[&question, flags].concat()).await)
}

fn said(output: &Output) -> (i32, String) {
    let text = text(&output.stdout) + &text(&output.stderr);
    (output.status.code().unwrap(), text)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output.stderr)))
}

/// Widgets that were created at v1alpha1, and then the storage version was flipped.
async fn flipped(client: &Client, group: &str, count: usize) -> Widgets {
    let widgets = Widgets::in_group(group);
    widgets.install(client, "v1alpha1").await.unwrap();
    widgets.create(client, "v1alpha1", count).await.unwrap();
    widgets.flip_storage(client, "v1").await.unwrap();
    widgets
}

/// Widgets that were migrated, and of which that is on record.
async fn proven(control_plane: &ControlPlane, group: &str, count: usize) -> Widgets {
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, group, count).await;
    let done = migrate(control_plane, &[&widgets.crd_name()]).await;
    assert!(done.status.success(), "{:?}", said(&done));
    put_on_record(&client, &widgets, true).await;
    widgets
}

/// Writes down by hand what a migration does that is waited for until its patrol: these tests are about what is read of it.
async fn put_on_record(client: &Client, widgets: &Widgets, patrolled: bool) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut crd = crds.get(&widgets.crd_name()).await.unwrap();
    let record = Record {
        uid: crd.metadata.uid.clone().unwrap(),
        generation: crd.metadata.generation.unwrap(),
        storage_version: "v1".into(),
        verified: Verified::Full,
        r1: None,
        at: Timestamp::now(),
        patrolled,
    };
    record.write(&mut crd);
    // Without a resourceVersion: the server writes conditions too, and a conflict would be no news.
    let conditions = json!({"status": {"conditions": crd.status.unwrap().conditions}});
    crds.patch_status(
        &widgets.crd_name(),
        &PatchParams::default(),
        &Patch::Merge(conditions),
    )
    .await
    .unwrap();
}

/// Waits for a condition for a minute at most.
async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let waiting = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
    assert!(waited.is_ok(), "waited for: {what}");
}
