//! The oracle: reads from etcd what everything under some keys was at every revision, and checks invariants over it.
//!
//! It uses no code of the program under test, and sees states that existed for an instant only.
//!
//! ```no_run
//! # async fn example(control_plane: exuvia_testenv::ControlPlane, since: i64) -> Result<(), exuvia_testenv::Error> {
//! use exuvia_testenv::oracle::History;
//!
//! let history = History::read(control_plane.etcd(), &["/registry/configmaps/default/"], since).await?;
//! history.assert_each_change("no ConfigMap is ever deleted", |before, after| {
//!     let deleted = before.keys().find(|key| after.get(key).is_none());
//!     deleted.map_or(Ok(()), |key| Err(format!("{key} is gone")))
//! });
//! # Ok(()) }
//! ```

mod trims;

use std::collections::BTreeMap;

use serde_json::Value;

pub use self::trims::{StoredVersions, assert_every_trim_was_right, held_at, stored_versions};
use crate::{Error, Etcd, Stored};

/// Everything under the keys as it was at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The revision of etcd.
    pub revision: i64,
    objects: BTreeMap<String, Stored>,
}

impl Snapshot {
    /// The object under a key.
    pub fn get(&self, key: &str) -> Option<&Stored> {
        self.objects.get(key)
    }

    /// The object under a key as JSON; null if it does not exist, or it is not stored as JSON.
    pub fn json(&self, key: &str) -> Value {
        self.get(key).and_then(Stored::json).unwrap_or_default()
    }

    /// All keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.objects.keys().map(String::as_str)
    }

    /// All objects whose key begins with `prefix`, sorted by key.
    pub fn under(&self, prefix: &str) -> impl Iterator<Item = &Stored> {
        let all = self.objects.iter();
        all.filter(move |(key, _)| key.starts_with(prefix))
            .map(|(_, stored)| stored)
    }
}

/// All states that there were, oldest first.
#[derive(Clone, Debug)]
pub struct History {
    /// The state at the first revision, and after it one for each revision at which something changed. Never empty.
    pub snapshots: Vec<Snapshot>,
}

impl History {
    /// Reads everything under each of these key prefixes at every revision from `since` until now.
    ///
    /// It asks etcd once per prefix and revision: begin at a revision that was noted when the test began.
    ///
    /// # Errors
    /// If etcd does not answer, or `since` was compacted away.
    pub async fn read(etcd: &Etcd, prefixes: &[&str], since: i64) -> Result<Self, Error> {
        let mut snapshots: Vec<Snapshot> = Vec::new();
        for revision in since..=etcd.revision().await? {
            let mut objects = BTreeMap::new();
            for prefix in prefixes {
                let stored = etcd.stored_under(prefix).at(revision).all().await?;
                objects.extend(stored.into_iter().map(|stored| (stored.key.clone(), stored)));
            }
            if snapshots.last().is_none_or(|last| last.objects != objects) {
                snapshots.push(Snapshot { revision, objects });
            }
        }
        if snapshots.is_empty() {
            snapshots.push(Snapshot::default()); // `since` is in the future
        }
        Ok(Self { snapshots })
    }

    /// What one key held since it was last created: cheap, because it asks etcd once per change. A single empty state if
    /// the key does not exist now.
    ///
    /// # Errors
    /// If etcd does not answer, or part of the history was compacted away.
    pub async fn of_key(etcd: &Etcd, key: &str) -> Result<Self, Error> {
        let mut snapshots = Vec::new();
        let mut at = etcd.revision().await?;
        let is_it = |stored: &Stored| stored.key == key;
        while let Some(stored) = etcd.stored_under(key).at(at).all().await?.into_iter().find(is_it) {
            let (created, revision) = (stored.create_revision, stored.mod_revision);
            snapshots.push(Snapshot {
                revision,
                objects: [(key.to_owned(), stored)].into(),
            });
            if revision == created {
                break;
            }
            at = revision - 1;
        }
        if snapshots.is_empty() {
            snapshots.push(Snapshot::default());
        }
        snapshots.reverse();
        Ok(Self { snapshots })
    }

    /// Checks every state, the first and the last included.
    ///
    /// # Panics
    /// With all violations, each with its revision.
    #[track_caller]
    pub fn assert_always(&self, invariant: &str, holds: impl Fn(&Snapshot) -> Result<(), String>) {
        let checks = self.snapshots.iter().map(|now| (now.revision, holds(now)));
        report(invariant, checks);
    }

    /// Checks each two successive states: `holds(before, after)`.
    ///
    /// # Panics
    /// With all violations, each with its revision.
    #[track_caller]
    pub fn assert_each_change(
        &self,
        invariant: &str,
        holds: impl Fn(&Snapshot, &Snapshot) -> Result<(), String>,
    ) {
        let changes = self.snapshots.windows(2);
        report(
            invariant,
            changes.map(|two| (two[1].revision, holds(&two[0], &two[1]))),
        );
    }

    /// The last state.
    pub fn end(&self) -> &Snapshot {
        self.snapshots.last().expect("a history is never empty")
    }
}

#[track_caller]
fn report(invariant: &str, checks: impl Iterator<Item = (i64, Result<(), String>)>) {
    let violations: Vec<String> = checks
        .filter_map(|(revision, check)| Some(format!("revision {revision}: {}", check.err()?)))
        .collect();
    assert!(
        violations.is_empty(),
        "violated: {invariant}\n{}",
        violations.join("\n")
    );
}
