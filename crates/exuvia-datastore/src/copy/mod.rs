//! Copies objects: tries them, writes them, reads them again, and takes them back.

mod aliases;
mod anchors;
mod compared;
mod contested;
mod findings;
mod follow;
mod ledger;
mod marks;
mod pass;
mod quota;
mod rounds;
mod settle;
mod successors;
mod target;
mod trial;
mod verify;
mod watched;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use exuvia_api::{
    ConflictPolicy, DatastoreMigration, MIGRATION_UID_ANNOTATION, SOURCE_HASH_ANNOTATION,
    SOURCE_RV_ANNOTATION, SOURCE_UIDS_ANNOTATION,
};
use exuvia_sweep::{Control, Sweep};
use exuvia_write::Writer;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;
use kube::api::DynamicObject;
use serde_json::{Value, json};

pub(crate) use self::aliases::Aliases;
pub(crate) use self::compared::{Compared, compare};
pub use self::findings::{Findings, Problem};
pub(crate) use self::follow::{Follower, Kept};
pub(crate) use self::marks::{EDITED_ANNOTATION, TakenBack, written_by_others};
pub(crate) use self::trial::all_looked_at;
pub use self::verify::Verification;
use crate::compare::Comparison;
use crate::kinds::{Kind, Kinds};
use crate::lock::lock;
use crate::mapping::{Mappings, Output};
use crate::owners::{Lookup, OwnerKind, Successor};

/// The field manager of everything that a datastore migration writes. The policies let it pass.
pub const FIELD_MANAGER: &str = "exuvia-datastore";

/// How many objects are processed at once unless the spec says otherwise.
const CONCURRENCY: usize = 10;

/// Copies the objects of one migration.
pub struct Mover {
    pub(crate) client: Client,
    pub(crate) writer: Writer,
    pub(crate) kinds: Kinds,
    pub(crate) mappings: Mappings,
    comparison: Comparison,
    migration: DatastoreMigration,
    uid: String,
    pub(crate) control: Control,
    /// Uids under which an aggregated API server shows the objects.
    pub(crate) aliases: Aliases,
    findings: Arc<Mutex<Findings>>,
    /// Successors that were found, by the uids of their sources.
    successors: Mutex<HashMap<String, Successor>>,
    /// Places of targets that had to wait for their owners.
    waited: Mutex<HashSet<u128>>,
    owner_kinds: Vec<OwnerKind>,
    /// What copies were when they were last in step, by their places. A copy that is being written is not among them.
    pub(crate) known: Mutex<HashMap<u128, u128>>,
    /// Uids of other migrations, and whether they may still take their copies back.
    others: Mutex<HashMap<String, bool>>,
}

impl Mover {
    /// For the objects that a migration's spec chooses. `writer` writes as [`FIELD_MANAGER`] from now on.
    pub fn new(
        client: Client,
        writer: &Writer,
        kinds: Kinds,
        mappings: Mappings,
        migration: &DatastoreMigration,
        control: &Control,
    ) -> Self {
        let mut owner_kinds: Vec<OwnerKind> = Vec::new();
        for kind in kinds.sources().into_iter().chain(kinds.targets()) {
            owner_kinds.push(OwnerKind {
                group: kind.resource.group.clone(),
                kind: kind.resource.kind.clone(),
            });
        }
        Self {
            client,
            writer: writer.acting_as(FIELD_MANAGER).strict(),
            comparison: Comparison::new(&migration.spec.conflicts),
            findings: Arc::new(Mutex::new(Findings::new(&kinds))),
            kinds,
            mappings,
            uid: migration.metadata.uid.clone().unwrap_or_default(),
            migration: migration.clone(),
            control: control.clone(),
            aliases: Aliases::default(),
            successors: Mutex::default(),
            waited: Mutex::default(),
            owner_kinds,
            known: Mutex::default(),
            others: Mutex::default(),
        }
    }

    /// Whether no pass has found anything yet.
    pub(crate) fn is_untouched(&self) -> bool {
        *self.found() == Findings::new(&self.kinds)
    }

    /// What was found so far, in the pass that runs or ran last.
    pub fn findings(&self) -> Findings {
        self.found().clone()
    }

    /// The same, to look at while a pass runs.
    #[cfg(feature = "controller")]
    pub(crate) fn shared_findings(&self) -> Arc<Mutex<Findings>> {
        Arc::clone(&self.findings)
    }

    fn found(&self) -> MutexGuard<'_, Findings> {
        lock(&self.findings)
    }

    fn forget_findings(&self) {
        *self.found() = Findings::new(&self.kinds);
    }

    fn prefers_target(&self) -> bool {
        self.migration.spec.conflicts.policy == ConflictPolicy::PreferTarget
    }

    /// The first field of an object that the same object, read at another version, lacks.
    pub(crate) fn lacks_content_of(&self, other: &DynamicObject, object: &DynamicObject) -> Option<String> {
        let value = |object: &DynamicObject| serde_json::to_value(object).unwrap_or_default();
        let differences = self.comparison.differences(&value(object), &value(other));
        let lost = differences.into_iter().find(|(_, _, there)| there.is_null());
        lost.map(|(path, _, _)| path)
    }

    fn lookup(&self) -> Lookup {
        Lookup::new(self.client.clone(), self.writer.clone())
    }

    /// The kinds whose objects may own others: those of the source, and those of the target under former uids.
    pub(crate) fn owner_kinds(&self) -> &[OwnerKind] {
        &self.owner_kinds
    }

    /// A sweep over all objects of a source kind.
    fn sweep(&self, kind: &Kind) -> Sweep {
        let concurrency = self.migration.spec.concurrency.map_or(CONCURRENCY, usize::from);
        Sweep::of(self.client.clone(), &kind.resource)
            .max_concurrency(concurrency)
            .controlled_by(&self.control)
    }

    /// All uids under which references may name a source.
    fn uids_of(&self, source: &DynamicObject, output: &Output) -> Vec<String> {
        let own = source.metadata.uid.clone();
        let alias = self
            .aliases
            .of(source, output)
            .filter(|alias| own.as_ref() != Some(alias));
        own.into_iter().chain(alias).collect()
    }

    /// The object to create: the converted copy, with its owners and with the marks that tell whose it is.
    fn marked(&self, source: &DynamicObject, output: &Output, owners: &[OwnerReference]) -> Value {
        let mut object = output.object.clone();
        let metadata = &mut object["metadata"];
        if !metadata["annotations"].is_object() {
            metadata["annotations"] = json!({});
        }
        let uids = self.uids_of(source, output).join(",");
        let version = source.metadata.resource_version.clone().unwrap_or_default();
        metadata["annotations"][MIGRATION_UID_ANNOTATION] = json!(self.uid);
        metadata["annotations"][SOURCE_UIDS_ANNOTATION] = json!(uids);
        metadata["annotations"][SOURCE_RV_ANNOTATION] = json!(version);
        metadata["annotations"][SOURCE_HASH_ANNOTATION] = json!(hash_of(source));
        if !owners.is_empty() {
            metadata["ownerReferences"] = json!(owners);
        }
        object
    }

    /// Whether a live target was made by this migration.
    fn is_ours(&self, live: &DynamicObject) -> bool {
        annotation(live, MIGRATION_UID_ANNOTATION) == Some(self.uid.as_str())
    }
}

impl std::fmt::Debug for Mover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mover")
            .field("uid", &self.uid)
            .finish_non_exhaustive()
    }
}

/// A hash of what people can change of an object. Finalizers do not count: controllers may take theirs off after the move.
pub(crate) fn hash_of(object: &DynamicObject) -> String {
    let metadata = &object.metadata;
    let counting = json!([
        metadata.labels,
        metadata.annotations,
        metadata.owner_references,
        metadata.deletion_timestamp,
        object.data,
    ]);
    let digest = ring::digest::digest(&ring::digest::SHA256, counting.to_string().as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest.as_ref()[..16]);
    format!("{:032x}", u128::from_be_bytes(bytes))
}

/// A number for everything that people can change of a copy. Owners are left out: the garbage collector removes those that
/// are gone.
fn content_of(object: &DynamicObject) -> u128 {
    let metadata = &object.metadata;
    let counting = json!([
        metadata.uid,
        metadata.labels,
        metadata.annotations,
        metadata.finalizers,
        object.data,
    ]);
    let digest = ring::digest::digest(&ring::digest::SHA256, counting.to_string().as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest.as_ref()[..16]);
    u128::from_be_bytes(bytes)
}

/// An annotation's value.
pub(crate) fn annotation<'a>(object: &'a DynamicObject, key: &str) -> Option<&'a str> {
    let annotations = object.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}
