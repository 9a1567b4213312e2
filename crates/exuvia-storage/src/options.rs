//! What a user may choose about a migration.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How a migration is done. The defaults are safe for a cluster in use.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long after a CRD change no API server can be behind any more.
    pub settle: Duration,
    /// API servers to ask one by one, beside those that the cluster lists.
    pub api_servers: Vec<http::Uri>,
    /// API servers that are not waited for although the cluster lists them: they are known to be gone for good. Nothing is
    /// taken for proven by a resourceVersion then.
    pub ignored_api_servers: Vec<http::Uri>,
    /// Sweep although `storedVersions` is clean: anybody can have trimmed it (PITFALLS A39).
    pub always: bool,
    /// Sweep although `storedVersions` is clean, unless a sweep of ours is on record for the CRD as it is.
    pub until_recorded: bool,
    /// [`Engine::run`](crate::Engine::run) goes on until the patrol has been.
    pub patrol: bool,
    /// An audit of this etcd is the last gate before the trim.
    pub etcd: Option<crate::audit::Options>,
    /// How to verify.
    pub verify: Verify,
    /// What becomes of managedFields entries at old versions.
    pub managed_fields: ManagedFields,
    /// Versions whose managedFields entries are moved as well, although nothing is stored at them any more: a client has
    /// written there since the last migration, and has been updated.
    pub shed: Vec<String>,
    /// Go on although the rewrite erases fields that only an old version knows.
    pub accept_pruning: bool,
    /// Try an object that is denied at its own endpoint through `/status`. That evades somebody's policy.
    pub status_fallback: bool,
    /// Objects in work at once, at most.
    pub max_concurrency: usize,
    /// Requests per second, at most.
    pub qps: Option<u32>,
    /// Objects per page of a list.
    pub page_size: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            settle: Duration::from_secs(60),
            api_servers: Vec::new(),
            ignored_api_servers: Vec::new(),
            always: false,
            until_recorded: false,
            patrol: false,
            etcd: None,
            verify: Verify::Auto,
            managed_fields: ManagedFields::Rewrite,
            shed: Vec::new(),
            accept_pruning: false,
            status_fallback: false,
            max_concurrency: 32, // beyond it only latency grows (CONTROL-PLANE's figures)
            qps: None,
            page_size: 500,
        }
    }
}

/// How the second sweep proves what the first one did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// `Proof` where every API server can be asked itself, otherwise `Full`.
    #[default]
    Auto,
    /// A resourceVersion above R0 proves an object; the others, and a sample of the proven, are patched.
    Proof,
    /// Every object is patched once more and must come back unchanged.
    Full,
}

/// What becomes of managedFields entries that name an old version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ManagedFields {
    /// They are moved to the storage version, in the write that rewrites the object.
    #[default]
    Rewrite,
    /// They are removed; their fields have no owner then.
    Drop,
    /// They stay, and hold the version.
    Keep,
}
