//! What the command answers when something is refused, excluded, misspelt or cut off, as a user runs it against a real
//! control plane.

#![allow(clippy::disallowed_methods)] // tests set up their world
#![allow(clippy::unwrap_used)] // a test may panic

mod advice;
#[path = "../binary/mod.rs"]
mod binary;
mod causes;
mod etcd;
mod excluded;
mod signals;
mod slips;

use exuvia_testenv::Widgets;
use kube::Client;
use serde_json::Value;

use crate::binary::{admin, exuvia, flipped, json_of, migrate, printed, text};

async fn merge_crd(client: &Client, widgets: &Widgets, patch: Value) {
    widgets.merge_crd(client, patch).await.unwrap();
}
