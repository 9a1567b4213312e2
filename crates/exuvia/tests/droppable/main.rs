//! `exuvia storage droppable` as a user runs it, against a real control plane: each thing that can hold a version does.

#![allow(clippy::disallowed_methods)] // tests set up their world
#![allow(clippy::unwrap_used)] // a test may panic

#[path = "../binary/mod.rs"]
mod binary;
mod bytes;
mod elsewhere;
mod references;
mod usage;

use std::process::Output;

use exuvia_storage::Verified;
use exuvia_storage::record::Record;
use exuvia_testenv::{ControlPlane, Widgets};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::binary::{admin, exuvia, flipped, json_of, migrate, printed};

/// What `storage droppable` says of v1alpha1: its exit code, and all that it prints.
async fn droppable(control_plane: &ControlPlane, widgets: &Widgets, flags: &[&str]) -> (i32, String) {
    let crd = widgets.crd_name();
    let question = ["storage", "droppable", &crd, "v1alpha1"];
    said(&admin(control_plane, &[&question, flags].concat()).await)
}

fn said(output: &Output) -> (i32, String) {
    (output.status.code().unwrap(), printed(output))
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
        patrolled_at: None,
        left: Vec::new(),
    };
    record.write(&mut crd);
    // Without a resourceVersion: the server writes conditions too, and a conflict would not matter.
    let conditions = json!({"status": {"conditions": crd.status.unwrap().conditions}});
    crds.patch_status(
        &widgets.crd_name(),
        &PatchParams::default(),
        &Patch::Merge(conditions),
    )
    .await
    .unwrap();
}
