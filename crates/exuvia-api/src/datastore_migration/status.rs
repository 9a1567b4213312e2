//! How far a `DatastoreMigration` is.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{any_value, is_default};

/// How far it is.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DatastoreMigrationStatus {
    /// Where it is on its way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<DatastorePhase>,
    /// What is done in this phase right now.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub step: String,
    /// One sentence about it.
    #[schemars(length(max = 1024))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The generation of this object that the rest is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Since when locks or copies of it may exist. While it is set the mappings cannot be changed. A complete undo clears it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// Since when writers of the source may have been refused. An undo clears it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen_at: Option<Time>,
    /// When everything was copied and verified. From then on nothing is undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub converged_at: Option<Time>,
    /// When nothing was left to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
    /// Why everything is being undone. It survives a crash, so that an undo is never left half done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<UndoState>,
    /// How often everything was undone since somebody last asked for it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub retreats: i32,
    /// After an undo: when the source may be frozen again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Time>,
    /// What was changed on the way and comes back if the migration is undone.
    #[serde(default, skip_serializing_if = "is_default")]
    pub saved: SavedState,
    /// How many objects of which kinds are done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<DatastoreProgress>,
    /// The first targets that exist and differ. `exuvia datastore conflicts` shows all of them.
    #[schemars(length(max = 32))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<ConflictStatus>,
    /// Why the migration does not begin: the first reasons.
    #[schemars(length(max = 32))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<Blocker>,
    /// `Ready`, `Reconciling`, `Stalled`, and one for each stage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Where a datastore migration is on its way.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum DatastorePhase {
    /// Nothing is locked. What stands in the way is looked for.
    #[default]
    Pending,
    /// The source is being frozen, copied and verified, or that is being undone.
    Migrating,
    /// Targets exist that differ. Nothing is locked until somebody has resolved it.
    WaitingForConflictResolution,
    /// Everything is copied and verified, and the targets can be written. Nothing is undone from here on.
    Converged,
    /// Nothing is left to do.
    Complete,
    /// Everything was undone, and it does not begin again by itself.
    Failed,
}

impl DatastorePhase {
    /// All of them, in their order.
    pub const ALL: [Self; 6] = [
        Self::Pending,
        Self::Migrating,
        Self::WaitingForConflictResolution,
        Self::Converged,
        Self::Complete,
        Self::Failed,
    ];

    /// All of their names.
    pub const NAMES: [&'static str; 6] = {
        let mut names = [""; 6];
        let mut index = 0;
        while index < names.len() {
            names[index] = Self::ALL[index].as_str();
            index += 1;
        }
        names
    };

    /// The name, as in the status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Migrating => "Migrating",
            Self::WaitingForConflictResolution => "WaitingForConflictResolution",
            Self::Converged => "Converged",
            Self::Complete => "Complete",
            Self::Failed => "Failed",
        }
    }
}

/// Why everything is being undone, and what comes then.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UndoState {
    /// Why: a reason as in conditions.
    pub reason: String,
    /// Why, in one sentence without values.
    #[schemars(length(max = 1024))]
    pub message: String,
    /// The phase that follows: `Pending`, `WaitingForConflictResolution` or `Failed`.
    pub then: DatastorePhase,
}

/// What was changed on the way and comes back if the migration is undone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SavedState {
    /// Flags, each with its value from before.
    #[schemars(length(max = 16))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<SavedFlag>,
    /// The spec of the APIService from before.
    #[schemars(schema_with = "any_value")]
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub api_service: Value,
    /// How often the APIService came back after it had been removed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub api_service_returned: i32,
    /// How many of our copies could not be deleted by an undo.
    #[serde(default, skip_serializing_if = "is_default")]
    pub copies_left: i64,
}

/// A flag's value from before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SavedFlag {
    /// Its place in `spec.freeze.flags`.
    pub index: i32,
    /// The uid of the object that has it.
    pub uid: String,
    /// Its value; absent: the field was absent.
    #[schemars(schema_with = "any_value")]
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub value: Value,
}

impl SavedFlag {
    /// Whether the flag is on a target that the copy makes: no uid is known, nothing is frozen before, and nothing is restored.
    pub fn comes_with_copy(&self) -> bool {
        self.uid.is_empty()
    }
}

/// How many objects of which kinds are done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatastoreProgress {
    /// Kinds.
    pub total_types: i32,
    /// Kinds whose every object is done.
    pub completed_types: i32,
    /// The kind in work.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub current_type: String,
    /// Kinds done and all, such as `5 / 21`.
    pub type_progress: String,
    /// Objects.
    pub total: i64,
    /// Objects that were copied.
    pub migrated: i64,
    /// Objects whose target was there already, equal or preferred.
    pub skipped: i64,
    /// Objects whose target is there and differs.
    pub conflicts: i64,
    /// The same by kind.
    #[schemars(length(max = 128))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<TypeProgress>,
}

/// How many objects of one kind are done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TypeProgress {
    /// The kind.
    pub kind: String,
    /// The mapping that moves it.
    pub mapping: String,
    /// Objects.
    pub total: i64,
    /// Objects that were copied.
    pub migrated: i64,
    /// Objects whose target was there already, equal or preferred.
    pub skipped: i64,
    /// Objects whose target is there and differs.
    pub conflicts: i64,
}

/// A target that exists and differs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConflictStatus {
    /// The target's kind.
    pub kind: String,
    /// Its namespace, if it has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The first field that differs.
    pub field: String,
}

/// Why the migration does not begin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Blocker {
    /// Why: a reason as in conditions.
    pub reason: String,
    /// The kind that it is about, if it is about one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The object's namespace, if it is about one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The object's name, if it is about one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// What to do about it, in one sentence without values.
    pub message: String,
}

/// Condition types of a `DatastoreMigration`, besides `Ready`, `Reconciling` and `Stalled`.
pub mod datastore_condition {
    /// Nothing stands in the way.
    pub const VALIDATED: &str = "Validated";
    /// Writers of the source are refused by every API server, and none is under way any more.
    pub const FROZEN: &str = "Frozen";
    /// The target CRDs answer for their group.
    pub const ROUTED: &str = "Routed";
    /// Every object has its target.
    pub const COPIED: &str = "Copied";
    /// Every target was read again and is as it was written.
    pub const VERIFIED: &str = "Verified";
    /// The targets can be written. Nothing is undone from here on.
    pub const CONVERGED: &str = "Converged";
    /// Nothing is left to do.
    pub const COMPLETE: &str = "Complete";
    /// All of them, in their order.
    pub const ALL: [&str; 7] = [VALIDATED, FROZEN, ROUTED, COPIED, VERIFIED, CONVERGED, COMPLETE];
}

/// Reasons of a `DatastoreMigration`'s conditions, blockers and events that are not phases.
pub mod datastore_reason {
    /// The spec cannot be carried out as it is.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// Another migration works on one of the kinds.
    pub const OVERLAP: &str = "Overlap";
    /// A CRD is missing or not established, or a version is not served.
    pub const NOT_SERVED: &str = "NotServed";
    /// The API server has no ValidatingAdmissionPolicy.
    pub const NO_POLICY_API: &str = "NoPolicyApi";
    /// A right is missing.
    pub const FORBIDDEN: &str = "Forbidden";
    /// A target CRD cannot get a second served version, which SyncThenFreeze needs behind an APIService.
    pub const SECOND_VERSION: &str = "SecondVersion";
    /// The target's API refuses an object.
    pub const REFUSED: &str = "Refused";
    /// An object could not be converted.
    pub const CONVERSION: &str = "Conversion";
    /// Two sources have one target.
    pub const NAME_COLLISION: &str = "NameCollision";
    /// An object is being deleted.
    pub const TERMINATING: &str = "Terminating";
    /// An object is not ready to be moved.
    pub const NOT_READY: &str = "NotReady";
    /// An owner does not exist.
    pub const MISSING_OWNER: &str = "MissingOwner";
    /// Owners own each other in a circle.
    pub const OWNER_CYCLE: &str = "OwnerCycle";
    /// The target is larger than etcd accepts.
    pub const TOO_LARGE: &str = "TooLarge";
    /// A quota of a namespace leaves no room for the targets.
    pub const QUOTA: &str = "Quota";
    /// Somebody keeps our copies from being deleted.
    pub const COPIES_LEFT: &str = "CopiesLeft";
    /// A target exists and differs.
    pub const CONFLICT: &str = "Conflict";
    /// The freeze lasted too long.
    pub const MAX_DURATION: &str = "MaxDuration";
    /// Somebody puts the APIService back again and again.
    pub const ROUTE_CONTESTED: &str = "RouteContested";
    /// Targets are not as they were written.
    pub const VERIFY_FAILED: &str = "VerifyFailed";
    /// Somebody removed or changed our policy during the freeze.
    pub const POLICY_REMOVED: &str = "PolicyRemoved";
    /// The process ended during the switch of the APIService.
    pub const INTERRUPTED: &str = "Interrupted";
    /// The migration is being deleted.
    pub const ABORTED: &str = "Aborted";
    /// The spec asks to stop.
    pub const SUSPENDED: &str = "Suspended";
    /// The API server cannot be reached, or answers with errors.
    pub const SERVER_ERRORS: &str = "ServerErrors";
    /// All of them, for metrics.
    pub const ALL: [&str; 25] = [
        INVALID_SPEC,
        OVERLAP,
        NOT_SERVED,
        NO_POLICY_API,
        FORBIDDEN,
        SECOND_VERSION,
        REFUSED,
        CONVERSION,
        NAME_COLLISION,
        TERMINATING,
        NOT_READY,
        MISSING_OWNER,
        OWNER_CYCLE,
        TOO_LARGE,
        QUOTA,
        COPIES_LEFT,
        CONFLICT,
        MAX_DURATION,
        ROUTE_CONTESTED,
        VERIFY_FAILED,
        POLICY_REMOVED,
        INTERRUPTED,
        ABORTED,
        SUSPENDED,
        SERVER_ERRORS,
    ];
}
