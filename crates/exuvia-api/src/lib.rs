//! Exuvia's custom resources, and the labels, annotations, condition types and reasons that people meet in a cluster.
//!
//! Types and the rules over their names only: no client, no IO.

mod counted;
mod datastore_migration;
mod duration;
mod frozen;
mod opt_in;
mod options;
mod storage_migration;

pub use counted::counted;
pub use datastore_migration::*;
pub use duration::{InvalidDuration, format_duration, parse_duration};
pub use frozen::FrozenBy;
pub use opt_in::{InvalidLabel, OptInLabel, is_in_groups};
pub use options::{ManagedFields, Verify, defaults, limits};
pub use storage_migration::*;

/// The API group of everything that Exuvia defines.
pub const GROUP: &str = "exuvia.dev";

/// The label by which a CRD opts in to storage migration.
pub const OPT_IN_LABEL: &str = "exuvia.dev/auto-migrate-storage-version";
/// The annotation by which a CRD is left out of storage migration, with the reason as its value.
pub const EXCLUDE_ANNOTATION: &str = "exuvia.dev/exclude-storage-version-migration";

/// The label on whatever the operator made by itself, and may therefore remove.
pub const MADE_BY_LABEL: &str = "exuvia.dev/made-by";
/// Its value.
pub const MADE_BY_OPERATOR: &str = "operator";
/// Which operator made a `StorageMigration` or carries out a `DatastoreMigration`, by the namespace and name of its Lease: another
/// one leaves it alone.
pub const OPERATOR_ANNOTATION: &str = "exuvia.dev/operator";

/// Condition types, as `kubectl wait --for=condition=…` takes them.
pub mod condition {
    /// Nothing is left to do, and nothing stands in the way.
    pub const READY: &str = "Ready";
    /// Work is under way, or waits for a time to pass.
    pub const RECONCILING: &str = "Reconciling";
    /// Every object is stored at the storage version, proven, trimmed and patrolled.
    pub const MIGRATED: &str = "Migrated";
    /// Something stands in the way that somebody should look at; left by itself when the cause goes.
    pub const STALLED: &str = "Stalled";
}

/// Reasons of conditions and events that are not phases.
pub mod reason {
    /// A dry-run write was refused or not answered.
    pub const PREFLIGHT: &str = "Preflight";
    /// The rewrite would erase fields.
    pub const PRUNING: &str = "Pruning";
    /// An API server does not show, or does not use, the new storage version.
    pub const SERVER_BEHIND: &str = "ServerBehind";
    /// Objects keep moving and nothing explains it, or etcd holds something else than the sweeps saw. Nothing is trimmed.
    pub const NOT_PROVEN: &str = "NotProven";
    /// Objects failed or stayed in conflict.
    pub const FAILURES: &str = "Failures";
    /// We may not do what we would have to.
    pub const FORBIDDEN: &str = "Forbidden";
    /// The resource does not exist (yet).
    pub const NO_SUCH_RESOURCE: &str = "NoSuchResource";
    /// An older `StorageMigration` works on the same resource.
    pub const DUPLICATE: &str = "Duplicate";
    /// The spec cannot be carried out as it is.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// The API server cannot be reached, or answers with errors.
    pub const SERVER_ERRORS: &str = "ServerErrors";
    /// Nothing stands in the way.
    pub const NOT_STALLED: &str = "NotStalled";
}
