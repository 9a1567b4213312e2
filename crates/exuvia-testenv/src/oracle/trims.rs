//! Whether a version ever left `storedVersions` while an object was stored at it, as etcd's history tells.

use serde_json::Value;

use super::History;
use crate::{ControlPlane, Error, Stored, Widgets};

/// What `storedVersions` of a CRD was, from one revision on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredVersions {
    /// The revision at which the CRD was written.
    pub revision: i64,
    /// What it listed.
    pub listed: Vec<String>,
}

/// The key of the widgets' CRD.
fn crd_key(control_plane: &ControlPlane, widgets: &Widgets) -> String {
    let kind = "apiextensions.k8s.io/customresourcedefinitions";
    format!("{}/{kind}/{}", control_plane.etcd().prefix(), widgets.crd_name())
}

fn listed_in(crd: &Value) -> Vec<String> {
    let versions = crd["status"]["storedVersions"].as_array().into_iter().flatten();
    versions
        .filter_map(|version| Some(version.as_str()?.to_owned()))
        .collect()
}

/// What `storedVersions` of the widgets' CRD is now.
///
/// # Errors
/// If etcd does not answer.
pub async fn stored_versions(
    control_plane: &ControlPlane,
    widgets: &Widgets,
) -> Result<Option<StoredVersions>, Error> {
    let key = crd_key(control_plane, widgets);
    let stored = control_plane.etcd().stored_under(&key).all().await?;
    let crd = stored.into_iter().find(|stored| stored.key == key);
    Ok(crd.map(|crd| StoredVersions {
        revision: crd.mod_revision,
        listed: listed_in(&crd.json().unwrap_or_default()),
    }))
}

/// The names of the widgets that etcd held at a version at a revision.
///
/// # Errors
/// If etcd does not answer, or the revision was compacted away.
pub async fn held_at(
    control_plane: &ControlPlane,
    widgets: &Widgets,
    version: &str,
    revision: i64,
) -> Result<Vec<String>, Error> {
    let api_version = format!("{}/{version}", widgets.group());
    let then = control_plane.stored(widgets.group(), "widgets").at(revision);
    let mut held = then.all().await?;
    held.retain(|stored| stored.api_version.as_ref() == Some(&api_version));
    Ok(held.iter().map(Stored::name).map(str::to_owned).collect())
}

/// Checks that whenever a version left `storedVersions`, no object was stored at it at that very revision. Returns all values
/// that `storedVersions` has had, in their order.
///
/// # Panics
/// If a version was dropped with objects stored at it, or etcd does not answer.
pub async fn assert_every_trim_was_right(
    control_plane: &ControlPlane,
    widgets: &Widgets,
) -> Vec<Vec<String>> {
    let key = crd_key(control_plane, widgets);
    let history = History::of_key(control_plane.etcd(), &key).await;
    let history = history.unwrap_or_else(|error| panic!("etcd's history cannot be read: {error}"));
    let mut values: Vec<Vec<String>> = Vec::new();
    for past in &history.snapshots {
        let (revision, listed) = (past.revision, listed_in(&past.json(&key)));
        let before = values.last().cloned().unwrap_or_default();
        for dropped in before.iter().filter(|version| !listed.contains(version)) {
            let held = held_at(control_plane, widgets, dropped, revision).await;
            let held = held.unwrap_or_else(|error| panic!("etcd's history cannot be read: {error}"));
            assert!(
                held.is_empty(),
                "{dropped} was dropped with objects stored at it: {held:?}"
            );
        }
        if before != listed {
            values.push(listed);
        }
    }
    values
}
