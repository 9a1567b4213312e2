//! What a migration did, for people and for machines.

use exuvia_sweep::{Failures, Tally};
use serde::{Deserialize, Serialize};

use crate::loss::Losses;
use crate::ownership::Owners;
use crate::preflight::Obstacle;

/// What was done to one resource.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The CRD's name, or a built-in resource's plural.
    pub resource: String,
    /// How it ended.
    pub end: End,
    /// The storage version; empty for a built-in resource.
    pub storage_version: String,
    /// `storedVersions` when it began.
    pub stored_before: Vec<String>,
    /// `storedVersions` at the end.
    pub stored_after: Vec<String>,
    /// The rewrite sweep.
    pub rewrite: Tally,
    /// The verify sweep that counted.
    pub verify: Tally,
    /// How that one verified.
    pub verified: Option<Verified>,
    /// Why every object was patched, if nobody asked for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_full: Option<String>,
    /// Where the time went.
    pub timings: Timings,
    /// How many objects were in work at once at the most.
    pub peak_concurrency: usize,
    /// Objects that change with every write, because a webhook stamps them. No failure.
    pub mutated: u64,
    /// Objects that changed when verified because they had been written at another version meanwhile, and did not change
    /// again. No failure.
    pub explained: u64,
    /// Objects that changed when verified, did not change again, and nothing tells why.
    pub unexplained: u64,
    /// Objects that changed when verified, and again, with nothing changed in them: an API server stores them at an old
    /// version.
    pub came_back: u64,
    /// Objects that were stored in another form although `storedVersions` listed the storage version alone.
    pub stored_otherwise: u64,
    /// A patrol found something that moved without an explanation, and the trimmed versions are listed again.
    pub put_back: bool,
    /// Objects whose managedFields lost an owner in the rewrite.
    pub lost_owners: u64,
    /// One of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_owners_example: Option<String>,
    /// Objects of which Exuvia owns a field after the rewrite, because a webhook sets it with every write.
    pub owned: u64,
    /// One of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owned_example: Option<String>,
    /// Objects with a managedFields entry at an old version of which nobody can tell what it owns at the storage version.
    pub unmoved: u64,
    /// One of them, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmoved_example: Option<String>,
    /// The versions that those name; `None`: nothing was rewritten.
    #[serde(skip)]
    pub left: Option<Vec<String>>,
    /// What etcd itself showed right before the trim, if it was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<crate::audit::Report>,
    /// Objects that were not done, by name as far as they are remembered, and by class.
    pub failures: Failures,
    /// What the preflight found.
    pub obstacle: Option<Obstacle>,
    /// What the rewrite does to the objects' content, held for, accepted or harmless; `None`: it was not looked at.
    pub losses: Option<Losses>,
    /// Who names which version in managedFields, at the end; nobody if objects were rewritten and not looked at since.
    pub owners: Owners,
}

/// How a migration ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum End {
    /// It did not come to an end.
    #[default]
    Unfinished,
    /// It was only rehearsed, and nothing was found that stands in the way.
    WouldMigrate,
    /// There was nothing to do, and nothing was written.
    Clean,
    /// Rewritten, verified, and trimmed where there is something to trim.
    Migrated,
    /// Something stands in the way; nothing was trimmed.
    Stalled {
        /// One of `Preflight`, `Pruning`, `ServerBehind`, `NotProven`, `Failures`, `Forbidden`.
        reason: &'static str,
        /// One sentence.
        message: String,
    },
    /// The CRD went away.
    Gone,
    /// It was cancelled; nothing was trimmed.
    Cancelled,
}

/// How the verify sweep proved it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verified {
    /// By resourceVersions above R0, and patches for the rest.
    Proof,
    /// By a patch of every object.
    Full,
}

/// Seconds that each part took; what was done twice counts twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timings {
    /// Looking at metadata, dry-runs, the search for fields that would be pruned.
    pub preflight: f64,
    /// The rewrite sweep.
    pub rewrite: f64,
    /// The verify sweep.
    pub verify: f64,
    /// Everything, waiting included.
    pub all: f64,
}

/// So many objects, in words.
pub(crate) fn objects(count: u64) -> String {
    match count {
        1 => "1 object".to_owned(),
        count => format!("{count} objects"),
    }
}
