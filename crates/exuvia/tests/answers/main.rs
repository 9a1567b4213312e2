//! What the command answers when something is refused, excluded, misspelt or cut off, as a user runs it against a real
//! control plane.

#![allow(clippy::disallowed_methods)] // tests set up their world
#![allow(clippy::unwrap_used)] // a test may panic

#[path = "../binary/mod.rs"]
mod binary;
mod causes;
mod etcd;
mod excluded;
mod signals;
mod slips;

use std::time::Duration;

use exuvia_testenv::Widgets;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::Value;

use crate::binary::{admin, exuvia, flipped, json_of, migrate, printed, text};

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

async fn merge_crd(client: &Client, widgets: &Widgets, patch: Value) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.patch(&widgets.crd_name(), &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
}
