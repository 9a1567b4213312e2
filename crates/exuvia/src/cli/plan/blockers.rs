//! What holds old versions of a CRD: as seen now, as on record, and as its `StorageMigration` tells.

use exuvia_api::{Phase, StorageMigration, condition, reason};
use exuvia_storage::counted;
use exuvia_storage::definition::Definition;
use exuvia_storage::droppable::{Holds, older};
use exuvia_storage::record::Record;
use exuvia_storage::usage::still_writes;
use kube::ResourceExt;
use serde::Serialize;

use super::ownership::Ownership;
use crate::cli::output::seconds;

/// How many objects that a migration did not do are named to people.
const FAILURES_SHOWN: usize = 3;

/// How a message begins if something could not be seen, as in `StorageMigration.status.blockers`.
const NOT_KNOWN: &str = "not known:";

/// Something that holds a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Blocker {
    pub(super) version: String,
    /// As in `StorageMigration.status.blockers`.
    pub(super) holds: &'static str,
    pub(super) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) objects: Option<u64>,
}

/// What a `StorageMigration` says of the CRD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ToldByMigration {
    pub(super) name: String,
    pub(super) phase: Phase,
    /// Why it does not go on, if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stalled: Option<String>,
    /// Another one of the same CRD does the work.
    #[serde(skip)]
    is_duplicate: bool,
    /// How many objects it did not do.
    pub(super) failed: u64,
    /// The first of them: object, class of error, what the server said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) failures: Vec<String>,
    /// What only it has looked at: references, usage, what is served.
    #[serde(skip)]
    blockers: Vec<Blocker>,
}

impl ToldByMigration {
    pub(super) fn read(migration: &StorageMigration) -> Self {
        let status = migration.status.clone().unwrap_or_default();
        let stalled = status
            .conditions
            .iter()
            .find(|found| found.type_ == condition::STALLED && found.status == "True");
        let is_duplicate = stalled.is_some_and(|found| found.reason == reason::DUPLICATE);
        let stalled = stalled.map(|found| format!("{}: {}", found.reason, found.message));
        let failures = status.failures.unwrap_or_default();
        let only_it = [Holds::References, Holds::Usage, Holds::Served];
        let blockers = status.blockers.into_iter().filter_map(|blocker| {
            let holds = only_it.iter().find(|holds| holds.as_str() == blocker.holds)?;
            Some(Blocker {
                version: blocker.version,
                holds: holds.as_str(),
                message: format!(
                    "{} (found when StorageMigration {} ended, not looked at now)",
                    blocker.message,
                    migration.name_any()
                ),
                objects: blocker.objects.and_then(|objects| objects.try_into().ok()),
            })
        });
        Self {
            name: migration.name_any(),
            phase: status.phase.unwrap_or_default(),
            stalled,
            is_duplicate,
            failed: failures.count.try_into().unwrap_or_default(),
            failures: failures
                .first
                .iter()
                .map(|failure| format!("{} [{}] {}", failure.object, failure.class, failure.message))
                .collect(),
            blockers: blockers.collect(),
        }
    }

    /// What all `StorageMigration`s of one CRD say: the one that does the work comes first, then its duplicates.
    pub(super) fn of_crd(name: &str, all: &[(String, Self)]) -> Vec<Self> {
        let ours = all.iter().filter(|(resource, _)| resource == name);
        let mut ours: Vec<Self> = ours.map(|(_, told)| told.clone()).collect();
        ours.sort_by_key(|told| told.is_duplicate); // stable
        ours
    }

    /// For people, below the CRD's row; nothing where all is well.
    pub(super) fn lines(&self) -> Vec<(usize, String)> {
        let Self { name, phase, .. } = self;
        let mut lines = Vec::new();
        match (&self.stalled, phase) {
            (Some(why), _) => {
                lines.push((1, format!("StorageMigration {name} is {}: {why}", phase.as_str())));
            }
            (None, Phase::Migrated) if self.failed == 0 => {}
            (None, _) => lines.push((1, format!("StorageMigration {name} is {}", phase.as_str()))),
        }
        if self.failed > 0 {
            let shown = self.failures.iter().take(FAILURES_SHOWN);
            lines.extend(shown.map(|failure| (2, format!("not done: {failure}"))));
            let more = self.failed.saturating_sub(FAILURES_SHOWN as u64);
            if more > 0 {
                lines.push((
                    2,
                    format!("and {more} more: kubectl describe storagemigration {name}"),
                ));
            }
        }
        lines
    }
}

/// What holds each old version, in the order of the CRD's versions; then those that the CRD does not have any more.
pub(super) fn blockers(
    definition: &Definition,
    record: Option<&Record>,
    seen: &Ownership,
    migration: Option<&ToldByMigration>,
) -> Vec<Blocker> {
    let stored = definition.crd.old_versions();
    let candidates: Vec<&str> = older(definition).collect();
    let names = definition.versions.iter().map(|version| version.name.as_str());
    let old = names.filter(|name| candidates.contains(name) || stored.iter().any(|stored| stored == name));
    let gone = seen
        .versions(definition)
        .filter(|version| definition.version(version).is_none());
    let mut found = Vec::new();
    for version in old.chain(gone) {
        found.extend(bytes(definition, record, version));
        found.extend(ownership(definition, record, seen, version));
        let told = migration.iter().flat_map(|migration| &migration.blockers);
        found.extend(told.filter(|blocker| blocker.version == version).cloned());
    }
    found
}

/// What may be stored at the version. One that the CRD does not have any more is not listed by the server either.
fn bytes(definition: &Definition, record: Option<&Record>, version: &str) -> Option<Blocker> {
    let blocker = |holds: Holds, message: String| {
        Some(Blocker {
            version: version.to_owned(),
            holds: holds.as_str(),
            message,
            objects: None,
        })
    };
    if definition.crd.stored.iter().any(|stored| stored == version) {
        return blocker(
            Holds::Bytes,
            "storedVersions lists it: objects may be stored at it".to_owned(),
        );
    }
    definition.version(version)?;
    match record {
        None => blocker(
            Holds::Bytes,
            format!("{NOT_KNOWN} storedVersions does not list it, but no sweep on record has proven that"),
        ),
        Some(record) if !record.patrolled => blocker(
            Holds::Migration,
            format!("migrated at {}, not patrolled yet", seconds(record.at)),
        ),
        Some(_) => None,
    }
}

/// Each manager that owns fields at the version.
fn ownership(
    definition: &Definition,
    record: Option<&Record>,
    seen: &Ownership,
    version: &str,
) -> Vec<Blocker> {
    let misfits = seen.misfits.get(version);
    let api_version = definition.api_version(version);
    let managers = seen.owners.at(&api_version);
    managers
        .map(|(manager, owner)| {
            let mut message = format!(
                "{manager} owns fields on {}, such as {}",
                counted(owner.objects, "object"),
                owner.example
            );
            if let Some(last) = owner.last {
                message.push_str(&format!(", last write {}", seconds(last)));
            }
            if still_writes(owner, record) {
                message.push_str(": it still writes at this version");
            }
            if let Some(misfits) = misfits.filter(|misfits| misfits.managers.contains(manager)) {
                message.push_str(&format!(
                    "; {} is not a field of {}",
                    misfits.field, definition.crd.storage
                ));
            }
            Blocker {
                version: version.to_owned(),
                holds: Holds::Ownership.as_str(),
                message,
                objects: Some(owner.objects),
            }
        })
        .collect()
}

/// For people, below the CRD's row: one line per version, and one per blocker.
pub(super) fn lines(blockers: &[Blocker]) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut last = None;
    for blocker in blockers {
        if last != Some(&blocker.version) {
            let of_version = blockers.iter().filter(|other| other.version == blocker.version);
            let is_known = of_version
                .into_iter()
                .any(|other| !other.message.starts_with(NOT_KNOWN));
            let is = if is_known { "is" } else { "may be" };
            lines.push((1, format!("{} {is} held by", blocker.version)));
            last = Some(&blocker.version);
        }
        lines.push((
            2,
            format!("{}: {}", blocker.holds.to_lowercase(), blocker.message),
        ));
    }
    lines
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_duplicate_does_not_hide_the_migration_that_does_the_work() {
        let migration = |name: &str, reason: &str| {
            let migration: StorageMigration = serde_json::from_value(json!({
                "metadata": {"name": name}, "spec": {"resource": "widgets.example.com"},
                "status": {"phase": "Stalled", "conditions": [{"type": "Stalled", "status": "True", "reason": reason,
                           "message": "why", "lastTransitionTime": "2026-11-16T12:00:00Z"}]},
            }))
            .unwrap();
            (migration.spec.resource.clone(), ToldByMigration::read(&migration))
        };
        let all = [migration("a-copy", "Duplicate"), migration("real", "Failures")];
        let told = ToldByMigration::of_crd("widgets.example.com", &all);
        let names: Vec<&str> = told.iter().map(|told| told.name.as_str()).collect();
        assert_eq!(names, ["real", "a-copy"], "the duplicate is told of, too");
        assert_eq!(ToldByMigration::of_crd("gadgets.example.com", &all), []);
    }
}
