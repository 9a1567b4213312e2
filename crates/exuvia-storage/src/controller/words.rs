//! What a migration says of itself in one sentence: how far it is, what it takes away, what becomes of old versions.

use exuvia_api::{MigrationLosses, Phase, StorageMigrationStatus, VersionBlocker};
use exuvia_write::Redacted;

use super::status::{NOT_KNOWN, StatusUpdate};
use crate::loss::Tense;
use crate::report::objects;

/// So many fields that objects lose are in the sentence; `status.losses` has more.
const FIELDS: usize = 10;

/// The message of the condition `Ready`, from the status as it will be: a process that did not do the work itself says the
/// same as the one that did.
pub(super) fn message(update: &StatusUpdate, status: &StorageMigrationStatus) -> Redacted {
    let mut parts = vec![update.message.to_string()];
    if let Some(generation) = status.migrated_generation {
        parts[0].push_str(&format!(" (generation {generation} of the CRD)"));
    }
    if update.stall_cause.is_none() {
        parts.extend(accepted(status.losses.as_ref(), update.phase));
    }
    if update.phase == Phase::Migrated {
        parts.extend(versions(status));
    }
    Redacted::ours(parts.join("; "))
}

/// What the rewrite takes away because the spec accepts it.
pub(super) fn accepted(losses: Option<&MigrationLosses>, phase: Phase) -> Option<String> {
    let losses = losses.filter(|losses| losses.accepted)?;
    let tense = match phase {
        Phase::Verifying | Phase::Trimming | Phase::Patrolling | Phase::Migrated => Tense::Did,
        Phase::Rewriting => Tense::Does,
        _ => Tense::Would,
    };
    let mut said = Vec::new();
    for (verb, fields) in tense.verbs().into_iter().zip([&losses.erased, &losses.changed]) {
        let named = fields.iter().take(FIELDS).map(|field| {
            let count = objects(field.objects.unsigned_abs());
            format!("{} ({count})", field.path)
        });
        let mut named: Vec<String> = named.collect();
        if fields.len() > FIELDS {
            named.push(format!("{} more in status.losses", fields.len() - FIELDS));
        }
        if !named.is_empty() {
            said.push(format!("the rewrite {verb} {}", named.join(", ")));
        }
    }
    said.extend(losses.unseen.iter().take(FIELDS).cloned());
    Some(format!("accepted by spec.acceptPruning: {}", said.join("; ")))
}

/// One part for each old version: it may be dropped, or what holds it and what to do.
fn versions(status: &StorageMigrationStatus) -> Vec<String> {
    let mut said: Vec<String> = status
        .droppable_versions
        .iter()
        .flatten()
        .map(|version| format!("{version} may be dropped"))
        .collect();
    let mut versions: Vec<&str> = Vec::new();
    for blocker in &status.blockers {
        if !versions.contains(&blocker.version.as_str()) {
            versions.push(&blocker.version);
        }
    }
    for version in versions {
        let of_it: Vec<&VersionBlocker> = status
            .blockers
            .iter()
            .filter(|blocker| blocker.version == version)
            .collect();
        // What is known to hold it comes first.
        let Some(first) = of_it.first() else {
            continue;
        };
        let unknown = format!("{NOT_KNOWN}: ");
        let mut part = match first.message.strip_prefix(&unknown) {
            Some(why) => format!(
                "whether {version} may be dropped is not known, {}: {why}",
                first.holds.to_lowercase()
            ),
            None => format!("{version} is held by {}", first.message),
        };
        if of_it.len() > 1 {
            part.push_str(&format!(" (and {} more in status.blockers)", of_it.len() - 1));
        }
        said.push(part);
    }
    said
}

/// One sentence about a phase, for people.
pub(super) fn sentence(phase: Phase, storage_version: &str) -> String {
    match phase {
        // A built-in resource has no storage version to name.
        Phase::Rewriting if storage_version.is_empty() => "rewriting objects".to_owned(),
        Phase::Verifying if storage_version.is_empty() => "verifying with a second sweep".to_owned(),
        Phase::Migrated if storage_version.is_empty() => {
            "every object is stored as the API servers store it now, verified with a second sweep".to_owned()
        }
        Phase::Pending => "checking objects before the first write".to_owned(),
        Phase::Settling => "waiting until every API server uses the new storage version".to_owned(),
        Phase::Rewriting => format!("rewriting objects at {storage_version}"),
        Phase::Verifying => {
            format!("verifying with a second sweep that every object is stored at {storage_version}")
        }
        Phase::Trimming => {
            format!("writing storedVersions ({storage_version}) and what is proven to the CRD's status")
        }
        Phase::Patrolling => {
            "storedVersions is trimmed; waiting one settle time before a last check of the objects".to_owned()
        }
        Phase::Migrated => format!("every object is stored at {storage_version}"),
        Phase::Stalled => "stalled; the condition Stalled says why".to_owned(),
        Phase::Suspended => "suspended; set spec.suspend to false to resume".to_owned(),
    }
}
