//! `StorageMigration`: one per resource; its spec says what to do, its status how far it is.
#![allow(unreachable_pub)] // KubeSchema repeats each struct inside a function
#![allow(clippy::duplicated_attributes)] // each print column has a type of its own

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ManagedFields, Verify, limits};

/// Which resource to migrate, and how.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "exuvia.dev",
    version = "v1beta1",
    kind = "StorageMigration",
    plural = "storagemigrations",
    shortname = "sm",
    category = "exuvia",
    status = "StorageMigrationStatus",
    derive = "PartialEq",
    doc = "Rewrites every object of one resource that is stored at an old version, proves it, trims storedVersions, and says which versions may be dropped.",
    label("exuvia.dev/auto-migrate-storage-version", "true"),
    annotation("helm.sh/resource-policy", "keep"),
    printcolumn(name = "Resource", type_ = "string", json_path = ".spec.resource"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].reason"
    ),
    printcolumn(name = "Total", type_ = "integer", json_path = ".status.progress.total"),
    printcolumn(name = "Done", type_ = "integer", json_path = ".status.progress.done"),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.progress.failed"),
    printcolumn(name = "Droppable", type_ = "string", json_path = ".status.droppableVersions"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].message",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.settle) || !self.settle.matches('^[0-9]{1,9}(ms|s|m|h)$') || duration(self.settle) <= duration('24h')").message("settle must not be longer than 24h"))]
pub struct StorageMigrationSpec {
    /// The CRD's name, such as `widgets.example.com`, or a built-in resource, such as `secrets` or `deployments.apps`.
    #[schemars(
        length(max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    #[x_kube(validation = Rule::new("self == oldSelf").message("resource cannot be changed: create another StorageMigration"))]
    pub resource: String,
    /// Stop at the next object. Set it to false to resume.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
    /// How long after a CRD change an API server may still store at the old version, such as `60s`. Default: the operator's
    /// setting.
    #[schemars(regex(pattern = limits::DURATION_PATTERN))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settle: Option<String>,
    /// API servers to ask one by one whether they are behind, in addition to those that the cluster lists:
    /// `https://host:port`.
    #[schemars(
        length(max = 32),
        inner(length(max = 253), regex(pattern = limits::API_SERVER_PATTERN))
    )]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub api_servers: Vec<String>,
    /// API servers that are gone for good although the cluster still lists them. The migration does not wait for them, and
    /// verifies every object with a patch.
    #[schemars(
        length(max = 32),
        inner(length(max = 253), regex(pattern = limits::API_SERVER_PATTERN))
    )]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignore_api_servers: Vec<String>,
    /// How the verify sweep proves that every object is stored at the storage version. Proof trusts resourceVersions, and
    /// needs every API server accounted for. Full patches every object again. Auto uses Proof where it is possible.
    #[serde(default, skip_serializing_if = "is_default")]
    pub verify: Verify,
    /// How many objects are processed at once, at most. Default: the operator's setting.
    #[schemars(range(min = *limits::MAX_CONCURRENCY.start(), max = *limits::MAX_CONCURRENCY.end()), with = "Option<i32>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrency: Option<u16>,
    /// How many objects are processed per second, at most. An object may take more than one request. Default: the
    /// operator's setting.
    #[schemars(range(min = *limits::QPS.start(), max = *limits::QPS.end()), with = "Option<i32>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qps: Option<u32>,
    /// What happens to managedFields entries at old versions. Rewrite moves them to the storage version, Drop removes them,
    /// Keep leaves them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub managed_fields: ManagedFields,
    /// Also move managedFields entries away from these versions, although nothing is stored at them any more.
    #[schemars(length(max = 32), inner(length(max = 63)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shed: Vec<String>,
    /// Continue although the rewrite erases fields that only an old version has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accept_pruning: bool,
    /// Try an object that is denied at its own endpoint through `/status`. This bypasses the admission policy that denied it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub status_fallback: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// How far it is.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageMigrationStatus {
    /// Where it is on its way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// The generation of this object that the rest is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The CRD that the pass is about. For another uid or generation it is worth nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<ObservedCrd>,
    /// The resourceVersion of a consistent list, taken after settling: what is above it was written by a settled server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_resource_version: Option<String>,
    /// When the list of `settledResourceVersion` was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_at: Option<Time>,
    /// The smallest resourceVersion of the lists that the verify sweep read: what is above it, the patrol looks at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified_resource_version: Option<String>,
    /// When storedVersions was trimmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trimmed_at: Option<Time>,
    /// What else is remembered of the pass, so that one that was cut off goes on and asks nothing twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass: Option<PassState>,
    /// The CRD's generation at which every object was found to be stored at the storage version: only while the condition
    /// `Migrated` is true. Wait for this one to be the CRD's `metadata.generation`: the condition alone may still speak of an
    /// earlier CRD for a moment after the CRD was changed. A built-in resource has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrated_generation: Option<i64>,
    /// Objects by their outcome in the running sweep. Between sweeps: in the rewrite sweep, or in the last sweep if another
    /// process did the rewrite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<MigrationProgress>,
    /// The CRD's storedVersions before and after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_versions: Option<StoredVersions>,
    /// Versions older than the storage version that may be dropped, all of them together: at `lookedAt` everything that can
    /// hold a version was looked at, and nothing held these. A version in neither droppableVersions nor
    /// blockers is not older than the storage version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub droppable_versions: Option<Vec<String>>,
    /// When `droppableVersions` and `blockers` were last looked at. The operator looks again every hour, unless it is told
    /// otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_at: Option<Time>,
    /// What holds the other old versions, and what could not be seen of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<VersionBlocker>,
    /// Objects that were not done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<MigrationFailures>,
    /// What the rewrite takes away from objects, if it takes anything away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub losses: Option<MigrationLosses>,
    /// `Ready`, `Reconciling`, `Stalled` and `Migrated`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Where a migration is on its way.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum Phase {
    /// Not begun, or the preflight looks.
    #[default]
    Pending,
    /// Waits until every API server uses the new storage version.
    Settling,
    /// Each object that may be stored at an old version is written once.
    Rewriting,
    /// A second sweep proves it.
    Verifying,
    /// storedVersions is trimmed.
    Trimming,
    /// Waits, and looks once more at what was written meanwhile.
    Patrolling,
    /// Every object is stored at the storage version.
    Migrated,
    /// Something stands in the way: see the condition `Stalled`.
    Stalled,
    /// The spec asks to stop.
    Suspended,
}

impl Phase {
    /// All of them, in their order.
    pub const ALL: [Self; 9] = [
        Self::Pending,
        Self::Settling,
        Self::Rewriting,
        Self::Verifying,
        Self::Trimming,
        Self::Patrolling,
        Self::Migrated,
        Self::Stalled,
        Self::Suspended,
    ];

    /// All of their names.
    pub const NAMES: [&'static str; 9] = {
        let mut names = [""; 9];
        let mut index = 0;
        while index < names.len() {
            names[index] = Self::ALL[index].as_str();
            index += 1;
        }
        names
    };

    /// Whether work is under way in this phase, or waits for a time to pass.
    pub const fn is_working(self) -> bool {
        !matches!(self, Self::Migrated | Self::Stalled | Self::Suspended)
    }

    /// The name, as in the status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Settling => "Settling",
            Self::Rewriting => "Rewriting",
            Self::Verifying => "Verifying",
            Self::Trimming => "Trimming",
            Self::Patrolling => "Patrolling",
            Self::Migrated => "Migrated",
            Self::Stalled => "Stalled",
            Self::Suspended => "Suspended",
        }
    }
}

/// A CRD as it was when the pass began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObservedCrd {
    /// Its uid.
    pub uid: String,
    /// Its generation.
    pub generation: i64,
    /// The version that objects are written at.
    pub storage_version: String,
}

/// The spec that a pass carries out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PassSpec {
    /// The generation of the migration.
    pub generation: i64,
    /// The spec as JSON, without `suspend`, `qps` and `maxConcurrency`: a change of these lets a running pass go on.
    pub json: String,
}

/// What else is remembered of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PassState {
    /// The spec that the pass carries out. A pass for another spec begins again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<PassSpec>,
    /// Whether there is something to do although storedVersions is clean.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wanted: bool,
    /// Whether an earlier pass was trimmed and not patrolled, or a version had to be put back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub patrol_owed: bool,
    /// `Passed`, or why it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preflight: Option<String>,
    /// Objects that the rewrite sweep left unfinished; absent: it has not come to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewrite_unfinished: Option<i64>,
    /// Objects that the verify sweep left unfinished; absent: it has not come to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify_unfinished: Option<i64>,
    /// How many verify sweeps found objects that moved although nothing explains it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unexplained: i32,
    /// Whether the last verify sweep saw an object come back old after it had been rewritten.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub came_back: bool,
    /// Every object up to this resourceVersion was verified by a patch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified_up_to: Option<String>,
    /// Whether the verify sweep trusted no resourceVersion.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub verified_in_full: bool,
    /// Whether the patrol was done.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub patrolled: bool,
}

/// Objects, by what came of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigrationProgress {
    /// All, as far as the server says.
    pub total: i64,
    /// Done with: rewritten, current or gone.
    pub done: i64,
    /// Stored again.
    pub rewritten: i64,
    /// Stored at the storage version already.
    pub current: i64,
    /// Deleted meanwhile.
    pub gone: i64,
    /// Written by others at the same time, again and again.
    pub conflicts: i64,
    /// Not done: see `failures`.
    pub failed: i64,
    /// Objects per second, while a sweep runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<i64>,
    /// When the running sweep should be through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta: Option<Time>,
}

/// storedVersions before and after.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoredVersions {
    /// When the pass began.
    pub before: Vec<String>,
    /// Now.
    pub after: Vec<String>,
}

/// Something that holds a version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VersionBlocker {
    /// The version.
    pub version: String,
    /// `Bytes`, `Ownership`, `References`, `Usage`, `Migration` or `Served`.
    pub holds: String,
    /// Who or what, in one sentence. One that begins with `not known:` says what could not be seen, and what would find out.
    pub message: String,
    /// How many objects, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<i64>,
}

/// Objects that were not done: all by class, the first by name. Messages hold no values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigrationFailures {
    /// How many.
    pub count: i64,
    /// How many, by class of error.
    pub by_class: BTreeMap<String, i64>,
    /// The first of them.
    pub first: Vec<MigrationFailure>,
}

/// An object that was not done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MigrationFailure {
    /// `namespace/name`.
    pub object: String,
    /// The class of error.
    pub class: String,
    /// What the server said, redacted.
    pub message: String,
}

/// What the rewrite takes away from objects: paths and names, never values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigrationLosses {
    /// Whether `spec.acceptPruning` lets the rewrite take them away. Otherwise nothing is written.
    pub accepted: bool,
    /// How many objects lose something.
    pub objects: i64,
    /// Fields that are erased.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub erased: Vec<LostField>,
    /// Fields that get another value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<LostField>,
    /// Fields that are erased or changed and not listed here: 50 of each kind are.
    #[serde(default, skip_serializing_if = "is_default")]
    pub more_fields: i64,
    /// What could not be looked at, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<String>,
}

/// A field that objects lose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LostField {
    /// Where it is, such as `spec.items[].port`.
    pub path: String,
    /// How many objects have it.
    pub objects: i64,
    /// The first of them, `namespace/name`.
    pub first: Vec<String>,
}
