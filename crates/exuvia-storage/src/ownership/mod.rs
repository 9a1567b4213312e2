//! Who owns fields at which version: what becomes of old entries, and what is left of them.

mod asked;
mod leaves;
mod paths;
mod reshape;
pub(crate) mod shape;

pub use paths::in_words;
pub use shape::has_path;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use exuvia_write::{EntryId, Error, Fate, Plan, Writer, plan_move};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DynamicObject, ObjectMeta};
use serde::Serialize;
use serde_json::Value;

use crate::definition::Definition;
use crate::options::ManagedFields;
use asked::{Asked, Shown};

/// The field manager of every write that is to change nothing. What an entry of this name owns was set by the server or by a
/// webhook in such a write (PITFALLS A35), and we must not own it: its owner's next apply would be a conflict with us.
pub(crate) const REWRITER: &str = "exuvia-rewrites";

pub(crate) fn is_ours(entry: &ManagedFieldsEntry) -> bool {
    entry.manager.as_deref() == Some(REWRITER)
}

/// Whether one of our rewrites has left an entry.
pub(crate) fn has_ours(metadata: &ObjectMeta) -> bool {
    metadata.managed_fields.iter().flatten().any(is_ours)
}

/// Whether the server has merged the oldest entries of updates into one, because there were more than ten.
pub(crate) fn has_merged(metadata: &ObjectMeta) -> bool {
    let mut entries = metadata.managed_fields.iter().flatten();
    entries.any(|entry| entry.manager.as_deref() == Some("ancient-changes"))
}

/// Takes our own entry off an object, if there is one; `false`: it could not be done, or the same write has left another one,
/// as where a webhook stamps every write.
pub(crate) async fn disown(writer: &Writer, api: &Api<DynamicObject>, metadata: &ObjectMeta) -> bool {
    if !has_ours(metadata) {
        return true;
    }
    let nothing_old = BTreeSet::new();
    let without_ours = |entries: &[_]| plan_move(entries, &nothing_old, "", |_| Fate::Leave).without(is_ours);
    let moved = writer.move_ownership(api, metadata, without_ours).await;
    moved.is_ok_and(|moved| !has_ours(&moved.metadata))
}

/// How an entry gets to the storage version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// As it is: its paths mean the same there.
    AsItIs,
    /// In another shape, by what the object holds.
    Reshaped,
    /// By asking the server, because a webhook converts: a path may mean something else at the storage version.
    Asked,
    /// Not at all.
    None,
}

impl Way {
    fn of(definition: &Definition, entry: &ManagedFieldsEntry) -> Self {
        let (Some(storage), Some(fields)) = (definition.version(&definition.crd.storage), &entry.fields_v1)
        else {
            return Self::AsItIs;
        };
        let old = definition.version(version_of(entry));
        if definition.webhook_conversion {
            return match old {
                Some(old) if old.served && storage.served => Self::Asked,
                // Nobody can be asked.
                _ if shape::has_paths(&storage.schema, fields) => Self::AsItIs,
                _ => Self::None,
            };
        }
        match old {
            Some(old) if !old.same_schema && !reshape::keeps_shape(fields, &old.schema, &storage.schema) => {
                Self::Reshaped
            }
            _ => Self::AsItIs,
        }
    }
}

/// `v1` of `example.com/v1`.
fn version_of(entry: &ManagedFieldsEntry) -> &str {
    let named = entry.api_version.as_deref().unwrap_or_default();
    named.rsplit('/').next().unwrap_or_default()
}

/// An entry that is larger than this when it is taken apart stays: with too large an object the server drops all entries
/// (PITFALLS A21).
const LARGEST_ENTRY: usize = 256 * 1024;

/// So many objects are asked about before entries of the same fields are believed to be moved as they are.
const ASKED_FIRST: u32 = 3;

/// What was found out about entries that own the same fields at the same version, by a hash of those.
#[derive(Debug, Default)]
pub(crate) struct Experience(Mutex<HashMap<u64, u32>>);

impl Experience {
    fn key(entry: &ManagedFieldsEntry) -> u64 {
        let fields = entry.fields_v1.as_ref().map(|fields| fields.0.to_string());
        let mut hasher = DefaultHasher::new();
        (&entry.api_version, &entry.subresource, fields).hash(&mut hasher);
        hasher.finish()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the server was asked often enough, and such an entry was to be moved as it is each time.
    fn is_enough(&self, entry: &ManagedFieldsEntry) -> bool {
        self.lock()
            .get(&Self::key(entry))
            .is_some_and(|count| *count >= ASKED_FIRST)
    }

    fn note(&self, entry: &ManagedFieldsEntry, found: &Result<FieldsV1, String>) {
        let as_it_is = found
            .as_ref()
            .is_ok_and(|found| Some(found) == entry.fields_v1.as_ref());
        let mut counts = self.lock();
        let count = counts.entry(Self::key(entry)).or_default();
        *count = if as_it_is { *count + 1 } else { 0 };
    }
}

/// What the entries of one object own at the storage version, where that takes a look at it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// `Err`: it could not be found out.
    fields: BTreeMap<EntryId, Result<FieldsV1, String>>,
}

impl Known {
    /// Why an entry could not be moved.
    pub(crate) fn why_left(&self) -> Option<&str> {
        self.fields
            .values()
            .find_map(|found| found.as_ref().err())
            .map(String::as_str)
    }

    /// Finds out, for an object as the storage version shows it; `None`: it was written meanwhile.
    pub(crate) async fn find(
        definition: &Definition,
        policy: ManagedFields,
        writer: &Writer,
        api: &Api<DynamicObject>,
        object: &DynamicObject,
        experience: &Experience,
    ) -> Result<Option<Self>, Error> {
        let mut known = Self::default();
        let Some(storage) = definition.version(&definition.crd.storage) else {
            return Ok(Some(known));
        };
        let mut asked = Vec::new();
        for entry in object.metadata.managed_fields.iter().flatten() {
            if !moves(definition, policy, entry) {
                continue;
            }
            match (Way::of(definition, entry), &entry.fields_v1) {
                (Way::Asked, _) => asked.push(entry),
                (Way::Reshaped, Some(fields)) => {
                    let from = definition.version(version_of(entry));
                    let from = from.map_or(&Value::Null, |old| &old.schema);
                    let fields = reshape::reshape(fields, from, &storage.schema, &object.data);
                    let found = if fields.0.to_string().len() > LARGEST_ENTRY {
                        Err("taken apart, its managedFields would be too large for the server".to_owned())
                    } else {
                        Ok(fields)
                    };
                    known.fields.insert(EntryId::of(entry), found);
                }
                _ => {}
            }
        }
        let mut views: BTreeMap<&str, DynamicObject> = BTreeMap::new();
        for version in asked.iter().map(|entry| version_of(entry)) {
            if !views.contains_key(version) {
                let api = Api::all_with(api.clone().into_client(), &definition.resource(version));
                let view: DynamicObject = writer.get(&api, &object.metadata).await?;
                if view.metadata.resource_version != object.metadata.resource_version {
                    return Ok(None);
                }
                views.insert(version, view);
            }
        }
        let mut questions = Vec::new();
        for entry in asked {
            let Some(view) = views.get(version_of(entry)) else {
                continue;
            };
            let before = &view.data;
            if experience.is_enough(entry) && holds_the_same(entry, before, &object.data) {
                continue; // it is moved as it is
            }
            questions.push(Asked { entry, before });
        }
        if questions.is_empty() {
            return Ok(Some(known));
        }
        let shown = Shown {
            object,
            schema: &storage.schema,
            has_status: storage.has_status,
        };
        let answers = asked::owned_at(writer, api, &shown, &questions).await;
        for (question, answer) in questions.iter().zip(answers) {
            experience.note(question.entry, &answer);
            known.fields.insert(EntryId::of(question.entry), answer);
        }
        Ok(Some(known))
    }
}

/// Whether everything that the entry owns is there at both versions, and the same.
fn holds_the_same(entry: &ManagedFieldsEntry, before: &Value, after: &Value) -> bool {
    let required = paths::required(entry, before);
    required
        .iter()
        .all(|path| paths::value_at(before, path) == paths::value_at(after, path))
}

/// Whether a rewrite moves this entry. `Keep` leaves what it can: an entry that would make every apply answer 500 is moved all
/// the same.
fn moves(definition: &Definition, policy: ManagedFields, entry: &ManagedFieldsEntry) -> bool {
    let named = entry.api_version.as_deref().unwrap_or_default();
    match policy {
        ManagedFields::Rewrite => definition.is_to_be_moved(named),
        ManagedFields::Keep => definition.breaks_apply(named),
        ManagedFields::Drop => false,
    }
}

/// Whether some entry can only be moved with a look at the object.
pub(crate) fn needs_object(
    definition: &Definition,
    policy: ManagedFields,
    entries: &[ManagedFieldsEntry],
) -> bool {
    entries.iter().any(|entry| {
        moves(definition, policy, entry) && matches!(Way::of(definition, entry), Way::Reshaped | Way::Asked)
    })
}

/// Plans what one object's write does to its managedFields.
pub(crate) fn plan(
    definition: &Definition,
    policy: ManagedFields,
    entries: &[ManagedFieldsEntry],
    known: &Known,
) -> Plan {
    let is_concerned = |entry: &&ManagedFieldsEntry| match policy {
        ManagedFields::Drop => definition.is_old(entry.api_version.as_deref().unwrap_or_default()),
        ManagedFields::Rewrite | ManagedFields::Keep => moves(definition, policy, entry),
    };
    let concerned = entries.iter().filter(is_concerned);
    let old = concerned.filter_map(|entry| entry.api_version.clone()).collect();
    let target = definition.api_version(&definition.crd.storage);
    let moved = |entry: &ManagedFieldsEntry| match known.fields.get(&EntryId::of(entry)) {
        Some(Ok(fields)) if is_empty(fields) => Fate::Drop, // nothing of it is there at the storage version
        Some(Ok(fields)) => Fate::MoveAs(fields.clone()),
        Some(Err(_)) => Fate::Leave,
        None if Way::of(definition, entry) == Way::None => Fate::Leave,
        None => Fate::Move,
    };
    plan_move(entries, &old, &target, |entry| match policy {
        ManagedFields::Drop => Fate::Drop,
        ManagedFields::Rewrite | ManagedFields::Keep => moved(entry),
    })
}

fn is_empty(fields: &FieldsV1) -> bool {
    fields.0.as_object().is_none_or(serde_json::Map::is_empty)
}

/// Who names which version in managedFields, counted over a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Owners {
    /// By `apiVersion`, then by manager.
    pub by_version: BTreeMap<String, BTreeMap<String, Owner>>,
}

/// One manager at one version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Owner {
    /// On how many objects.
    pub objects: u64,
    /// When it last wrote, as far as entries tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Timestamp>,
    /// One of the objects, as `namespace/name`.
    pub example: String,
}

impl Owners {
    /// Counts one object's entries.
    pub fn add(&mut self, metadata: &ObjectMeta) {
        for entry in metadata.managed_fields.iter().flatten() {
            let (Some(version), manager) = (&entry.api_version, entry.manager.clone().unwrap_or_default())
            else {
                continue;
            };
            let owner = self
                .by_version
                .entry(version.clone())
                .or_default()
                .entry(manager)
                .or_default();
            let object = object_name(metadata);
            // A manager may have several entries on one object (`/status`): it counts once.
            if owner.example != object {
                owner.objects += 1;
                owner.example = object;
            }
            owner.last = owner.last.max(entry.time.as_ref().map(|time| time.0));
        }
    }

    /// How many objects name this version at least (the largest count of any one manager).
    pub fn objects_at(&self, api_version: &str) -> u64 {
        self.at(api_version)
            .map(|(_, owner)| owner.objects)
            .max()
            .unwrap_or_default()
    }

    /// The managers at one version.
    pub fn at(&self, api_version: &str) -> impl Iterator<Item = (&str, &Owner)> {
        let managers = self.by_version.get(api_version).into_iter().flatten();
        managers.map(|(manager, owner)| (manager.as_str(), owner))
    }

    /// The versions that entries name.
    pub fn versions(&self) -> impl Iterator<Item = &str> {
        self.by_version.keys().map(String::as_str)
    }
}

/// `namespace/name`, or the name alone.
pub(crate) fn object_name(metadata: &ObjectMeta) -> String {
    let name = metadata.name.as_deref().unwrap_or_default();
    metadata
        .namespace
        .as_ref()
        .map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
}
