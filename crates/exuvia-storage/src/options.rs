//! The options of one migration.

use std::time::Duration;

use exuvia_api::{defaults, parse_duration};

pub use exuvia_api::{ManagedFields, Verify};

/// How a migration is done. The defaults are safe for a cluster in use.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long after a CRD change an API server may still store at the old version.
    pub settle: Duration,
    /// API servers to ask one by one, in addition to those that the cluster lists.
    pub api_servers: Vec<http::Uri>,
    /// API servers that are gone for good although the cluster still lists them. They are not waited for, and no
    /// resourceVersion counts as proof.
    pub ignored_api_servers: Vec<http::Uri>,
    /// Sweep although `storedVersions` is clean: anyone may have trimmed it (PITFALLS A39).
    pub always: bool,
    /// Sweep although `storedVersions` is clean, unless one of our sweeps is on record for the CRD as it is now.
    pub until_recorded: bool,
    /// [`Engine::run`](crate::Engine::run) continues until the patrol is done.
    pub patrol: bool,
    /// An audit of this etcd is the last gate before the trim.
    #[cfg(feature = "etcd")]
    pub etcd: Option<exuvia_audit::AuditOptions>,
    /// How to verify.
    pub verify: Verify,
    /// What happens to managedFields entries at old versions.
    pub managed_fields: ManagedFields,
    /// Also move managedFields entries away from these versions, although nothing is stored at them any more: a client
    /// wrote there after the last migration, and has been updated since.
    pub shed: Vec<String>,
    /// Continue although the rewrite erases fields that only an old version has.
    pub accept_pruning: bool,
    /// Try an object that is denied at its own endpoint through `/status`. This bypasses the policy that denied it.
    pub status_fallback: bool,
    /// How many objects are processed at once, at most.
    pub max_concurrency: usize,
    /// How many objects are processed per second, at most. An object may take more than one request.
    pub qps: Option<u32>,
    /// How many objects a list request returns.
    pub page_size: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            settle: parse_duration(defaults::SETTLE).expect("the default is a duration"),
            api_servers: Vec::new(),
            ignored_api_servers: Vec::new(),
            always: false,
            until_recorded: false,
            patrol: false,
            #[cfg(feature = "etcd")]
            etcd: None,
            verify: Verify::default(),
            managed_fields: ManagedFields::default(),
            shed: Vec::new(),
            accept_pruning: false,
            status_fallback: false,
            max_concurrency: defaults::MAX_CONCURRENCY.into(),
            qps: None,
            page_size: defaults::PAGE_SIZE,
        }
    }
}
