//! `exuvia plan` and `exuvia storage status` as a user runs them, against real control planes.

#![allow(clippy::disallowed_methods)] // tests set up their world
#![allow(clippy::unwrap_used)] // a test may panic

mod advice;
#[path = "../binary/mod.rs"]
mod binary;
mod clusters;
mod optin;
mod rights;
mod screen;
mod terminal;
mod watch;
mod wide;

use std::process::Output;

use exuvia_testenv::{Access, ControlPlane};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

/// What `exuvia plan` says of one group, as a machine reads it.
async fn plan_of(control_plane: &ControlPlane, group: &str, flags: &[&str]) -> Value {
    let always = ["plan", "--groups", group, "-o", "json"];
    let output = binary::admin(control_plane, &[&always, flags].concat()).await;
    assert!(output.status.success(), "{}", binary::printed(&output));
    binary::json_of(&output)
}

/// What `exuvia plan` says of one group, as people read it in a pipe.
async fn shown(control_plane: &ControlPlane, group: &str, flags: &[&str]) -> String {
    let output = binary::admin(control_plane, &[&["plan", "--groups", group], flags].concat()).await;
    assert!(output.status.success(), "{}", binary::printed(&output));
    binary::text(&output.stdout)
}

/// What `exuvia plan` remarks beside its answer about one group.
async fn remarked(control_plane: &ControlPlane, group: &str, flags: &[&str]) -> String {
    let output = binary::admin(control_plane, &[&["plan", "--groups", group], flags].concat()).await;
    assert!(output.status.success(), "{}", binary::printed(&output));
    binary::text(&output.stderr)
}

/// A kubeconfig with a context for each of these, and one that leads nowhere if it is named.
fn kubeconfig(contexts: &[(&str, &Access)], nowhere: Option<&str>) -> NamedTempFile {
    let mut all = json!({"apiVersion": "v1", "kind": "Config", "clusters": [], "users": [], "contexts": []});
    let mut add = |name: &str, cluster: &Value, user: &Value| {
        let context = json!({"name": name, "context": {"cluster": name, "user": name}});
        for (list, item) in [
            ("clusters", json!({"name": name, "cluster": cluster})),
            ("users", json!({"name": name, "user": user})),
            ("contexts", context),
        ] {
            all[list].as_array_mut().unwrap().push(item);
        }
    };
    for (name, access) in contexts {
        let of_one: Value = serde_json::from_str(&access.kubeconfig_text()).unwrap();
        add(
            name,
            &of_one["clusters"][0]["cluster"],
            &of_one["users"][0]["user"],
        );
    }
    if let Some(name) = nowhere {
        add(name, &json!({"server": "https://127.0.0.1:1"}), &json!({}));
    }
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), all.to_string()).unwrap();
    file
}

/// Runs the binary until its answer is as wanted: a binding takes effect when the authoriser has seen it.
async fn until_it_says(access: &Access, args: &[&str], is_wanted: impl Fn(&Output) -> bool) -> Output {
    let kubeconfig = access.kubeconfig().unwrap();
    exuvia_testenv::until(&format!("{args:?} says so"), async || {
        let output = binary::exuvia(kubeconfig.clone(), args).await;
        if is_wanted(&output) {
            Ok(output)
        } else {
            Err(binary::printed(&output))
        }
    })
    .await
}
