//! `DatastoreMigration`: moves kinds to another API group; its spec says what goes where, its status how far it is.
#![allow(unreachable_pub)] // KubeSchema repeats each struct inside a function
#![allow(clippy::duplicated_attributes)] // each print column has a type of its own

mod mapping;
mod side;
mod status;

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::mapping::*;
pub use self::status::*;

/// The finalizer on a `DatastoreMigration`: while it is there, locks or copies of it may exist.
pub const DATASTORE_FINALIZER: &str = "exuvia.dev/datastore-migration";
/// On a target: the uid of the `DatastoreMigration` that made it. Removed when the migration is complete.
pub const MIGRATION_UID_ANNOTATION: &str = "exuvia.dev/migration-uid";
/// On a target: the uids under which its source was known, separated by commas. It stays.
pub const SOURCE_UIDS_ANNOTATION: &str = "exuvia.dev/source-uids";
/// On a target: the source's resourceVersion when it was copied. Removed when the migration is complete.
pub const SOURCE_RV_ANNOTATION: &str = "exuvia.dev/source-rv";
/// On a target: a hash of the source when it was copied. It stays, so that a clean-up knows whether the source has changed since.
pub const SOURCE_HASH_ANNOTATION: &str = "exuvia.dev/source-hash";
/// The label on everything that a `DatastoreMigration` makes beside its targets: its uid.
pub const DATASTORE_LABEL: &str = "exuvia.dev/datastore-migration-uid";
/// On a target CRD: it has a second served version, which the `DatastoreMigration` of this uid added and will remove.
pub const SECOND_VERSION_LABEL: &str = "exuvia.dev/second-version";
/// On a policy that outlives its `DatastoreMigration`: the name of that migration.
pub const RETIRED_ANNOTATION: &str = "exuvia.dev/retired";
/// On a policy or an object that outlives its migration: flags that stay frozen, and what they were.
pub const RETIRED_FLAGS_ANNOTATION: &str = "exuvia.dev/retired-flags";
/// A `DatastoreMigration` gets this annotation to leave `Failed` without a change of its spec.
pub const RETRY_ANNOTATION: &str = "exuvia.dev/retry";

/// What to move where, and how.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "exuvia.dev",
    version = "v1beta1",
    kind = "DatastoreMigration",
    plural = "datastoremigrations",
    shortname = "dm",
    category = "exuvia",
    status = "DatastoreMigrationStatus",
    derive = "PartialEq",
    doc = "Moves kinds to another API group on a live cluster, with a way back until every object is copied and verified.",
    annotation("helm.sh/resource-policy", "keep"),
    label("exuvia.dev/auto-migrate-storage-version", "true"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.startedAt) || self.spec.mappings == oldSelf.spec.mappings").message("mappings cannot be changed while the migration runs: delete it (that undoes it), or wait for its end"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.startedAt) || (has(self.spec.freeze) == has(oldSelf.spec.freeze) && (!has(self.spec.freeze) || self.spec.freeze == oldSelf.spec.freeze))").message("freeze cannot be changed while the migration runs"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.startedAt) || (has(self.spec.cutover) && has(self.spec.cutover.apiService) ? self.spec.cutover.apiService : '') == (has(oldSelf.spec.cutover) && has(oldSelf.spec.cutover.apiService) ? oldSelf.spec.cutover.apiService : '')").message("cutover.apiService cannot be changed while the migration runs"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.startedAt) || (has(self.spec.mode) ? self.spec.mode : 'FreezeAndCopy') == (has(oldSelf.spec.mode) ? oldSelf.spec.mode : 'FreezeAndCopy')").message("mode cannot be changed while the migration runs"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Types", type_ = "string", json_path = ".status.progress.typeProgress"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message"),
    printcolumn(
        name = "Current",
        type_ = "string",
        json_path = ".status.progress.currentType",
        priority = 1
    ),
    printcolumn(
        name = "Migrated",
        type_ = "integer",
        json_path = ".status.progress.migrated",
        priority = 1
    ),
    printcolumn(
        name = "Skipped",
        type_ = "integer",
        json_path = ".status.progress.skipped",
        priority = 1
    ),
    printcolumn(
        name = "Conflicts",
        type_ = "integer",
        json_path = ".status.progress.conflicts",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct DatastoreMigrationSpec {
    /// How writers are treated while objects are copied. FreezeAndCopy refuses writes to the source from before the copy until
    /// the move is complete. SyncThenFreeze copies while writers go on, and refuses writes only for what is left then. With
    /// cutover.apiService it copies through a second served version of the target CRDs, which it adds and removes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: MigrationMode,
    /// Begin no further step. A freeze in force stays, and maxDuration runs on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
    /// How many objects are processed at once.
    #[schemars(range(min = 1, max = 64), with = "Option<i32>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u16>,
    /// What goes where. The first mapping in list order that takes an object moves it.
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub mappings: Vec<Mapping>,
    /// What becomes of objects that refer to moved ones.
    #[serde(default, skip_serializing_if = "is_default")]
    pub references: References,
    /// How writers are kept away.
    #[serde(default, skip_serializing_if = "is_default")]
    pub freeze: Freeze,
    /// What to do about targets that exist already.
    #[serde(default, skip_serializing_if = "is_default")]
    pub conflicts: Conflicts,
    /// What belongs to the switch from the source to the target.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cutover: Cutover,
    /// What becomes of the source when the migration is deleted after its end.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cleanup: Cleanup,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// How writers are treated while objects are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MigrationMode {
    /// Writes to the source are refused, then everything is copied.
    #[default]
    FreezeAndCopy,
    /// Everything is copied while writers go on; then writes are refused, and what is left is copied.
    SyncThenFreeze,
}

/// What becomes of objects that refer to moved ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct References {
    /// What to do about an owner that does not exist: such a reference is never written.
    #[serde(default, skip_serializing_if = "is_default")]
    pub missing_owner: MissingOwner,
    /// Whether to look for objects of other kinds that are owned by moved ones, in all kinds that can be listed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dependents: Dependents,
    /// Objects that are not moved but name moved ones in other fields.
    #[schemars(length(max = 32))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rewrite: Vec<RewriteRule>,
}

/// What to do about an owner that does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MissingOwner {
    /// The migration does not begin.
    #[default]
    Hold,
    /// The reference is left out of the copy.
    Drop,
}

/// Whether dependents are looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Dependents {
    /// All kinds that can be listed are looked at.
    #[default]
    Scan,
    /// Nothing but moved kinds is owned by moved objects.
    None,
}

/// Objects that are not moved but name moved ones: changed after the move.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RewriteRule {
    /// Which objects.
    #[serde(rename = "in")]
    pub within: RewriteScope,
    /// A CEL expression over `object`: whether this one is changed. Default: all of them.
    #[schemars(length(max = 8192))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub when: String,
    /// What is changed.
    #[schemars(length(max = 64))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub convert: Vec<Conversion>,
    /// Prefixes of label and annotation keys to replace.
    #[schemars(length(max = 32))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rewrite_keys: Vec<KeyPrefix>,
}

/// Objects of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RewriteScope {
    /// The API group; empty for the core group.
    #[schemars(length(max = 253))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// A served version.
    #[schemars(length(min = 1, max = 63))]
    pub version: String,
    /// The kind.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Only objects with these labels.
    #[serde(default, skip_serializing_if = "is_default")]
    pub selector: LabelSelector,
}

/// How writers are kept away while objects are copied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Freeze {
    /// Refuse writes by a ValidatingAdmissionPolicy. `false` needs at least one flag, and the controllers that
    /// follow the flags must stop writing by themselves.
    #[serde(skip_serializing_if = "Clone::clone")]
    pub admission: bool,
    /// Fields that tell controllers to stop.
    #[schemars(length(max = 16))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<Flag>,
    /// How to know that no write is under way any more: `Auto`, or a duration to wait for.
    #[schemars(regex(pattern = r"^(Auto|[0-9]{1,9}(ms|s|m|h))$"))]
    #[serde(skip_serializing_if = "is_auto")]
    pub drain: String,
    /// How long the freeze may last until everything is copied and verified. After that everything is undone. `0s`: no limit.
    #[schemars(regex(pattern = crate::limits::DURATION_PATTERN))]
    #[serde(skip_serializing_if = "is_default_max_duration")]
    pub max_duration: String,
}

const DEFAULT_MAX_DURATION: &str = "15m";

fn is_auto(drain: &String) -> bool {
    drain == "Auto"
}

fn is_default_max_duration(duration: &String) -> bool {
    duration == DEFAULT_MAX_DURATION
}

impl Default for Freeze {
    fn default() -> Self {
        Self {
            admission: true,
            flags: Vec::new(),
            drain: "Auto".to_owned(),
            max_duration: DEFAULT_MAX_DURATION.to_owned(),
        }
    }
}

/// A field of some object that tells a controller to stop writing. Its value from before is kept in the status, and restored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Flag {
    /// The API group; empty for the core group.
    #[schemars(length(max = 253))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// A served version.
    #[schemars(length(min = 1, max = 63))]
    pub version: String,
    /// The kind.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// The namespace, if the kind has one.
    #[schemars(length(max = 63))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The object's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The field, such as `spec.datastoreReady`.
    #[schemars(length(min = 1, max = 512))]
    pub path: String,
    /// Its value while writers must stop.
    #[schemars(schema_with = "any_value")]
    pub frozen: Value,
    /// Its value when they may write again. Without it the value from before is restored.
    #[schemars(schema_with = "any_value")]
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub thawed: Value,
    /// Whether it stops writers of the source, or of the target.
    #[serde(default, skip_serializing_if = "is_default")]
    pub side: FlagSide,
}

/// Whose writers a flag stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FlagSide {
    /// Writers of the source. The value from before comes back only if the migration is undone.
    #[default]
    Source,
    /// Writers of the target. They are let go as soon as the migration has converged.
    Target,
}

/// What to do about targets that exist already.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Conflicts {
    /// What to do about a target that exists and differs.
    #[serde(skip_serializing_if = "is_default")]
    pub policy: ConflictPolicy,
    /// What is compared.
    #[schemars(length(min = 1, max = 3))]
    #[serde(skip_serializing_if = "is_all_compared")]
    pub compare: Vec<Compared>,
    /// Annotations that do not count, besides those of kubectl, Argo CD, Helm and Exuvia.
    #[schemars(length(max = 64), inner(length(max = 317)))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignore_annotations: Vec<String>,
    /// How often conflicts are looked at again, besides at each change of the objects.
    #[schemars(regex(pattern = crate::limits::DURATION_PATTERN))]
    #[serde(skip_serializing_if = "is_default_poll_interval")]
    pub poll_interval: String,
}

const DEFAULT_POLL_INTERVAL: &str = "10s";

fn is_default_poll_interval(interval: &String) -> bool {
    interval == DEFAULT_POLL_INTERVAL
}

fn is_all_compared(compared: &Vec<Compared>) -> bool {
    *compared == Compared::ALL
}

impl Default for Conflicts {
    fn default() -> Self {
        Self {
            policy: ConflictPolicy::default(),
            compare: Compared::ALL.to_vec(),
            ignore_annotations: Vec::new(),
            poll_interval: DEFAULT_POLL_INTERVAL.to_owned(),
        }
    }
}

/// What to do about a target that exists and differs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConflictPolicy {
    /// Wait, unfrozen, until somebody has resolved it.
    #[default]
    Wait,
    /// The target stays as it is, and the source is not copied.
    PreferTarget,
}

/// What of source and target is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Compared {
    /// Everything but apiVersion, kind, metadata and status.
    Content,
    /// The labels.
    Labels,
    /// The annotations.
    Annotations,
}

impl Compared {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Content, Self::Labels, Self::Annotations];
}

/// What belongs to the switch from the source to the target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cutover {
    /// The APIService, such as `v3.projectcalico.org`, by which another API server answers for the target group. It is removed
    /// after the freeze, so that the target CRDs answer, and comes back if the migration is undone.
    #[schemars(length(max = 253))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_service: String,
    /// What must be so before the migration is complete.
    #[schemars(length(max = 32))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wait_for: Vec<WaitFor>,
    /// Stop when everything is copied and verified, until this is cleared. The freeze stays, and maxDuration runs on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
}

/// Objects that must be in some state before the migration is complete.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitFor {
    /// The API group; empty for the core group.
    #[schemars(length(max = 253))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// A served version.
    #[schemars(length(min = 1, max = 63))]
    pub version: String,
    /// The kind.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// The namespace. Default: all.
    #[schemars(length(max = 63))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name. Default: all that the selector chooses.
    #[schemars(length(max = 253))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Only objects with these labels.
    #[serde(default, skip_serializing_if = "is_default")]
    pub selector: LabelSelector,
    /// Their roll-out must be finished: for Deployments, StatefulSets and DaemonSets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rollout: bool,
    /// Environment variables that some container of the pod template must have.
    #[schemars(length(max = 32))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// A CEL expression over `object` that must be true.
    #[schemars(length(max = 8192))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub when: String,
    /// It is fine if no such object exists.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// What becomes of the source when the migration is deleted after its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cleanup {
    /// What becomes of the source.
    #[serde(default, skip_serializing_if = "is_default")]
    pub source: CleanupSource,
}

/// What becomes of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum CleanupSource {
    /// It stays, and nobody can create or update its objects until `exuvia datastore thaw`.
    #[default]
    KeepFrozen,
    /// It stays, and can be written again.
    Thaw,
    /// The CRDs of the source are deleted, and with them its objects.
    #[serde(rename = "DeleteCRDs")]
    DeleteCrds,
}

/// Any JSON value, which no schema limits.
fn any_value(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-preserve-unknown-fields": true})
}
