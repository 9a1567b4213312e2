//! What a migration did, for people and for machines.

use std::time::Duration;

use exuvia_api::FrozenBy;
use exuvia_sweep::{Failures, Outcome, Tally};
use exuvia_write::Redacted;
use serde::{Deserialize, Serialize};

use crate::loss::Losses;
use crate::ownership::Owners;
use crate::preflight::Obstacle;
use crate::protocol::StepKind;

/// What was done to one resource.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationReport {
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
    pub rewrite: RewriteTally,
    /// The verify sweep that counted.
    pub verify: RewriteTally,
    /// How that one verified.
    pub verified: Option<Verified>,
    /// How many objects are proven in which way.
    pub verified_by: VerifiedBy,
    /// Why every object was patched, if nobody asked for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_full: Option<String>,
    /// Where the time went.
    pub timings: Timings,
    /// How many objects were in work at once at the most.
    pub peak_concurrency: usize,
    /// Objects that change with every write, because a webhook stamps them. Not a failure.
    pub mutated: u64,
    /// Objects that changed when verified because they had been written at another version meanwhile, and did not change
    /// again. Not a failure.
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
    #[cfg(feature = "etcd")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<exuvia_audit::AuditReport>,
    /// Objects that were not done, by name as far as they are remembered, and by class.
    pub failures: Failures,
    /// The datastore migration that keeps at least one of them from being written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frozen_by: Option<FrozenBy>,
    /// What the preflight found.
    pub obstacle: Option<Obstacle>,
    /// What the rewrite does to the objects' content, held for, accepted or harmless; `None`: it was not looked at.
    pub losses: Option<Losses>,
    /// Who names which version in managedFields, at the end; nobody if objects were rewritten and not looked at since.
    pub owners: Owners,
}

/// How many objects a verify sweep has proven, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VerifiedBy {
    /// Their resourceVersion alone proves that a settled API server has written them.
    pub resource_version: u64,
    /// An empty patch came back without a change, at once or after one more.
    pub patch: u64,
    /// API servers that were asked one by one, and have all shown the storage version.
    pub api_servers: usize,
}

/// How many objects had which outcome, in the words of a storage migration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RewriteTally {
    /// The server stored them again, in another form.
    pub rewritten: u64,
    /// They were stored in the right form already.
    pub current: u64,
    /// They do not exist any more.
    pub gone: u64,
    /// Another writer was faster, again and again: not done.
    pub conflict: u64,
    /// They failed.
    pub failed: u64,
    /// There was no need to ask the server.
    pub skipped: u64,
}

impl RewriteTally {
    /// What a migration calls an outcome, in metrics too; an object that was skipped counts as current.
    pub fn name_of(outcome: Outcome) -> &'static str {
        match outcome {
            Outcome::Changed => "rewritten",
            Outcome::Unchanged | Outcome::Skipped => "current",
            Outcome::Gone | Outcome::Conflict | Outcome::Failed => outcome.as_str(),
        }
    }

    /// All objects that are finished, whatever the outcome.
    pub fn done(&self) -> u64 {
        self.rewritten + self.current + self.gone + self.conflict + self.failed + self.skipped
    }
}

impl From<Tally> for RewriteTally {
    fn from(tally: Tally) -> Self {
        Self {
            rewritten: tally.changed,
            current: tally.unchanged,
            gone: tally.gone,
            conflict: tally.conflict,
            failed: tally.failed,
            skipped: tally.skipped,
        }
    }
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
        message: Redacted,
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

impl Timings {
    pub(crate) fn add(&mut self, step: StepKind, took: Duration) {
        let part = match step {
            StepKind::Preflight => &mut self.preflight,
            StepKind::Rewrite => &mut self.rewrite,
            StepKind::Verify => &mut self.verify,
            _ => return,
        };
        *part += took.as_secs_f64();
    }
}

pub use exuvia_api::counted;

/// So many objects, in words.
pub(crate) fn objects(number: u64) -> String {
    counted(number, "object")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_read_the_words_of_a_storage_migration() {
        let tally = Tally {
            changed: 1,
            unchanged: 2,
            gone: 3,
            conflict: 4,
            failed: 5,
            skipped: 6,
        };
        let counts = RewriteTally::from(tally);
        assert_eq!(counts.done(), tally.done());
        let expected = serde_json::json!({
            "rewritten": 1, "current": 2, "gone": 3, "conflict": 4, "failed": 5, "skipped": 6,
        });
        assert_eq!(serde_json::json!(counts), expected);
        let names = [
            Outcome::Changed,
            Outcome::Unchanged,
            Outcome::Skipped,
            Outcome::Gone,
        ];
        let names = names.map(RewriteTally::name_of);
        assert_eq!(names, ["rewritten", "current", "current", "gone"]);
    }
}
