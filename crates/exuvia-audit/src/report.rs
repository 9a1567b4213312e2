//! What an audit found: keys, versions and counts, never a value.

use std::collections::BTreeMap;

use serde::Serialize;

use super::definition::Definition;
use super::value::Cause;

/// What lies in etcd, all of it as of one revision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditReport {
    /// The endpoint that answered last.
    pub endpoint: String,
    /// The prefix that was read, such as `/registry`.
    pub prefix: String,
    /// The revision that was read.
    pub revision: i64,
    /// The first attempt was given up because etcd compacted its revision away meanwhile.
    pub restarted: bool,
    /// Objects of these resources.
    pub objects: u64,
    /// Pages that were read, those of the CRDs included.
    pub pages: u64,
    /// Resources, ordered by name; CRDs without objects included.
    pub resources: Vec<ResourceReport>,
}

impl AuditReport {
    /// Whether every custom resource that was read is proven to be stored at its CRD's storage version, and every value
    /// could be read.
    pub fn is_current(&self) -> bool {
        let settled = |verdict| matches!(verdict, Verdict::Current | Verdict::NotJudged);
        self.resources.iter().all(|resource| settled(resource.verdict))
    }

    /// A resource by its name, such as `widgets.example.com`.
    pub fn resource(&self, name: &str) -> Option<&ResourceReport> {
        self.resources.iter().find(|resource| resource.name == name)
    }
}

/// One resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceReport {
    /// As CRDs call it (`widgets.example.com`), or the plural of a built-in (`secrets`).
    pub name: String,
    /// What its keys begin with.
    pub key_prefix: String,
    /// What it comes to.
    pub verdict: Verdict,
    /// Where it comes from.
    pub definition: Definition,
    /// How many objects there are.
    pub objects: u64,
    /// How many are stored at each `apiVersion`.
    pub versions: BTreeMap<String, u64>,
    /// Those whose version cannot be told, by cause.
    pub unreadable: Vec<Unreadable>,
    /// How many objects are stored at another version than the storage version, or have no CRD.
    pub offending: u64,
    /// The first of them.
    pub offenders: Vec<Offender>,
    /// Versions in `storedVersions`, other than the storage version, at which nothing is stored: as far as bytes go they
    /// can be dropped. Empty while there are objects that cannot be read.
    pub empty_versions: Vec<String>,
    /// Versions at which objects are stored and which `storedVersions` does not list: it was trimmed too early.
    pub unlisted_versions: Vec<String>,
    /// Versions at which objects are stored and which the CRD no longer has: the API server cannot even delete them.
    pub undefined_versions: Vec<String>,
}

/// What a resource comes to, the worst that applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum Verdict {
    /// Objects are stored at a version that the CRD no longer has.
    Stranded,
    /// Objects without a CRD.
    Orphaned,
    /// Objects are stored at another version than the storage version.
    Behind,
    /// Objects, or the CRD, cannot be read; what can be is current.
    Unreadable,
    /// Every object is stored at the storage version, or there are no objects.
    Current,
    /// A built-in resource: versions are counted, but which one is right does not show in etcd.
    NotJudged,
}

/// Objects whose version cannot be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unreadable {
    /// Why not.
    #[serde(flatten)]
    pub cause: Cause,
    /// How many.
    pub objects: u64,
    /// The keys of the first of them.
    pub keys: Vec<String>,
}

/// An object that is stored at another version than the storage version, or that has no CRD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Offender {
    /// Its key.
    pub key: String,
    /// The `apiVersion` it is stored at.
    pub api_version: String,
}
