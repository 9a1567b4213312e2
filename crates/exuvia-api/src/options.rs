//! Options that people choose in a `StorageMigration`, by a flag or by a chart value: each is defined here, and only here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the verify sweep proves that every object is stored at the storage version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Verify {
    /// By proof if every API server is accounted for, otherwise in full.
    #[default]
    Auto,
    /// The resourceVersion proves an object that was written after all API servers had settled. The other objects, and a
    /// sample of the proven ones, are patched and must come back unchanged.
    Proof,
    /// Every object is patched again and must come back unchanged.
    Full,
}

/// What happens to managedFields entries that name an old version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum ManagedFields {
    /// They are moved to the storage version, in the write that rewrites the object.
    #[default]
    Rewrite,
    /// They are removed; their fields then have no owner.
    Drop,
    /// They stay as they are, and hold the version.
    Keep,
}

/// What applies unless it is set: the defaults of the flags, and through them of the chart.
pub mod defaults {
    /// How long after a CRD change an API server may still store at the old version.
    pub const SETTLE: &str = "60s";
    /// How many objects are processed at once. With more of them only the latency grows.
    pub const MAX_CONCURRENCY: u16 = 32;
    /// How many objects a list request returns.
    pub const PAGE_SIZE: u32 = 500;
    /// How many CRDs a command migrates at once.
    pub const CONCURRENT_CRDS: u16 = 4;
    /// How many migrations the operator runs at once.
    pub const CONCURRENT_MIGRATIONS: u16 = 2;
    /// The longest pause between two tries of a stalled migration.
    pub const MAX_BACKOFF: &str = "5m";
    /// `--look-again`.
    pub const LOOK_AGAIN: &str = "1h";
    /// How long the operator's Lease is valid after a renewal.
    pub const LEASE_DURATION: &str = "15s";
    /// Where the operator serves metrics and health.
    pub const LISTEN: &str = "[::]:8080";
    /// What the operator logs.
    pub const LOG_LEVEL: &str = "info";
    /// How long running migrations may take to stop.
    pub const SHUTDOWN_GRACE: &str = "25s";
}

/// What the flags, the CRD and the chart accept.
pub mod limits {
    use std::ops::RangeInclusive;

    /// Durations in manifests. The flags also accept a number without a unit, in seconds.
    pub const DURATION_PATTERN: &str = "^[0-9]{1,9}(ms|s|m|h)$";
    /// API servers in manifests.
    pub const API_SERVER_PATTERN: &str = "^https://[^/]+$";
    /// Objects processed at once.
    pub const MAX_CONCURRENCY: RangeInclusive<u64> = 1..=1024;
    /// Objects per second.
    pub const QPS: RangeInclusive<u64> = 1..=1_000_000;
    /// Objects per list request.
    pub const PAGE_SIZE: RangeInclusive<u64> = 1..=5000;
    /// Migrations at once.
    pub const CONCURRENT_MIGRATIONS: RangeInclusive<u64> = 1..=64;
}
