//! A migration's status: what is remembered of a pass, there and back; phase, conditions, progress.

use std::collections::BTreeMap;
use std::time::Duration;

use exuvia_api::{
    LostField, MigrationFailure, MigrationFailures, MigrationLosses, MigrationProgress, ObservedCrd,
    PassState, Phase, StorageMigration, StorageMigrationStatus, StoredVersions, VersionBlocker, condition,
    reason,
};
use exuvia_runtime::publish::{Published, StallCause, Summary, Update};
use exuvia_sweep::{Failures, Progress};
use exuvia_write::{Redacted, conditions};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use super::{STALL_REASONS, words};
use crate::RewriteTally;
use crate::droppable::{Holder, Outlook, Unknown};
use crate::loss::{Count, Losses};
use crate::protocol::{Blocked, Hold, Next, NextStep, Pass, Preflight, StepKind, SweepEnd};

/// How many failed objects a status names: an object that grows without bound would itself fail to be stored.
const NAMED: usize = 20;
/// How many blockers a status lists, and how many fields of each kind that objects lose.
const LISTED: usize = 50;
/// How a blocker begins that nobody has seen.
pub(super) const NOT_KNOWN: &str = "not known";

/// What is to be said of a migration.
#[derive(Clone, Debug)]
pub(super) struct StatusUpdate {
    pub(super) phase: Phase,
    /// One sentence, for the condition `Ready`.
    pub(super) message: Redacted,
    pub(super) stall_cause: Option<StallCause>,
    pub(super) pass: Option<Pass>,
    pub(super) storage_version: String,
    pub(super) stored_after: Vec<String>,
    pub(super) progress: Option<MigrationProgress>,
    pub(super) failures: Option<MigrationFailures>,
    pub(super) losses: Option<MigrationLosses>,
    /// Versions that may be dropped, and what holds the others; `None`: nobody has looked, so nothing changes.
    pub(super) outlook: Option<Outlook>,
    /// When that was looked at, if it is a verdict.
    pub(super) looked_at: Option<Timestamp>,
}

impl StatusUpdate {
    /// An update of nothing but the phase, and maybe why.
    pub(super) fn new(phase: Phase, message: impl Into<Redacted>, stall_cause: Option<StallCause>) -> Self {
        Self {
            phase,
            message: message.into(),
            stall_cause,
            pass: None,
            storage_version: String::new(),
            stored_after: Vec::new(),
            progress: None,
            failures: None,
            losses: None,
            outlook: None,
            looked_at: None,
        }
    }

    fn remember(&self, pass: &Pass, status: &mut StorageMigrationStatus) {
        let count = |end: SweepEnd| i64::try_from(end.unfinished).unwrap_or(i64::MAX);
        status.observed = Some(ObservedCrd {
            uid: pass.uid.clone(),
            generation: pass.generation,
            storage_version: self.storage_version.clone(),
        });
        status.stored_versions = Some(StoredVersions {
            before: pass.stored_before.clone(),
            after: self.stored_after.clone(),
        });
        status.settled_resource_version = pass.r0.map(|version| version.to_string());
        status.settled_at = pass.r0_at.map(whole_second);
        status.verified_resource_version = pass.r1.map(|version| version.to_string());
        status.trimmed_at = pass.trimmed_at.filter(|_| pass.trimmed).map(whole_second);
        status.pass = Some(PassState {
            spec: pass.spec.clone(),
            wanted: pass.wanted,
            // Once it has been, nothing is owed.
            patrol_owed: pass.patrol_owed && !pass.patrolled,
            preflight: pass
                .preflight
                .as_ref()
                .map(|found| preflight_name(found).to_owned()),
            rewrite_unfinished: pass.rewrite.map(count),
            verify_unfinished: pass.verify.map(count),
            unexplained: pass.unexplained.into(),
            came_back: pass.came_back,
            verified_up_to: pass.verified_up_to.map(|version| version.to_string()),
            verified_in_full: pass.verified_in_full,
            patrolled: pass.patrolled,
        });
    }
}

impl Update<StorageMigration> for StatusUpdate {
    fn phase(&self) -> &'static str {
        self.phase.as_str()
    }

    fn message(&self) -> &str {
        &self.message
    }

    fn stall_cause(&self) -> Option<&StallCause> {
        self.stall_cause.as_ref()
    }

    fn apply(&self, migration: &mut StorageMigration, generation: Option<i64>) {
        let migrated = self.phase == Phase::Migrated;
        let stalled_for = self.stall_cause.as_ref().map(|cause| cause.reason);
        let status = migration.status.get_or_insert_default();
        status.phase = Some(self.phase);
        status.observed_generation = generation;
        if let Some(pass) = &self.pass {
            self.remember(pass, status);
        }
        if self.phase == Phase::Pending || stalled_for == Some(reason::NO_SUCH_RESOURCE) {
            // A new pass, or none any more: what was said about the last one no longer holds.
            status.droppable_versions = None;
            status.looked_at = None;
            status.blockers.clear();
        }
        status.progress.clone_from(&self.progress);
        status.failures.clone_from(&self.failures);
        status.losses.clone_from(&self.losses);
        if let Some(outlook) = &self.outlook {
            status.droppable_versions = migrated.then(|| outlook.droppable.clone());
            status.looked_at = self.looked_at.filter(|_| migrated).map(begun_second);
            let held = outlook.held.iter().map(blocker);
            let unknown = outlook.unknown.iter().map(not_known);
            status.blockers = held.chain(unknown).take(LISTED).collect();
        }
        // Whatever was found at some time: a version that is in storedVersions (again) cannot be dropped.
        if let Some(droppable) = &mut status.droppable_versions {
            droppable.retain(|version| !self.stored_after.contains(version));
        }
        let of_crd = status.observed.as_ref().filter(|crd| !crd.uid.is_empty());
        status.migrated_generation = of_crd.map(|crd| crd.generation).filter(|_| migrated);
        let message = words::message(self, status);
        let phase = self.phase.as_str();
        let summary = Summary {
            is_ready: migrated,
            is_working: self.phase.is_working(),
            reason: phase,
            message: &message,
            stall_cause: self.stall_cause.as_ref(),
        };
        let all = summary.conditions(migration, generation);
        let mut is_migrated = conditions::new(migration, condition::MIGRATED, migrated, phase, &message);
        is_migrated.observed_generation = generation;
        let status = migration.status.get_or_insert_default();
        for condition in all.into_iter().chain([is_migrated]) {
            conditions::set(&mut status.conditions, condition);
        }
    }
}

/// What the publisher must know of a `StorageMigration`.
pub(super) enum Migrations {}

impl Published for Migrations {
    type Object = StorageMigration;

    const PHASES: &'static [&'static str] = &Phase::NAMES;
    const STALL_REASONS: &'static [&'static str] = &STALL_REASONS;
    const METRICS: &'static str = "exuvia_storage";
    const ACTION: &'static str = "Migrate";

    fn subject(migration: &StorageMigration) -> &str {
        &migration.spec.resource
    }

    fn phase(migration: &StorageMigration) -> Option<&'static str> {
        let phase = migration.status.as_ref()?.phase?;
        Some(phase.as_str())
    }

    fn conditions(migration: &StorageMigration) -> &[Condition] {
        let status = migration.status.as_ref();
        status.map_or(&[], |status| &status.conditions)
    }
}

/// Kubernetes keeps whole seconds. Upwards, so that the process that goes on from here waits too long rather than too short.
fn whole_second(at: Timestamp) -> Time {
    let begun = i64::from(at.subsec_nanosecond() > 0);
    Time(Timestamp::from_second(at.as_second() + begun).unwrap_or(at))
}

/// Whole seconds, downwards: what was looked at then is never called younger than it is.
fn begun_second(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

/// After what time it is due to look again whether versions may be dropped; `None`: nobody has looked yet. A time that is still
/// to come is another clock's, and says nothing.
pub(super) fn looked_again_in(migration: &StorageMigration, interval: Duration) -> Option<Duration> {
    let status = migration.status.as_ref()?;
    status.droppable_versions.as_ref()?;
    let ago = |at: &Time| Duration::try_from(Timestamp::now().duration_since(at.0)).ok();
    let ago = status.looked_at.as_ref().and_then(ago);
    Some(ago.map_or(Duration::ZERO, |ago| interval.saturating_sub(ago)))
}

/// What a status remembers of a pass.
pub(super) fn pass_of(status: &StorageMigrationStatus) -> Option<Pass> {
    let (observed, kept) = (status.observed.as_ref()?, status.pass.as_ref()?);
    let end = |unfinished: Option<i64>| {
        unfinished.map(|count| SweepEnd {
            unfinished: count.try_into().unwrap_or_default(),
        })
    };
    let version = |text: &Option<String>| text.as_deref().and_then(|text| text.parse().ok());
    Some(Pass {
        uid: observed.uid.clone(),
        generation: observed.generation,
        stored_before: status
            .stored_versions
            .as_ref()
            .map(|stored| stored.before.clone())
            .unwrap_or_default(),
        wanted: kept.wanted,
        patrol_owed: kept.patrol_owed,
        preflight: kept.preflight.as_deref().and_then(preflight_of),
        r0: version(&status.settled_resource_version),
        r0_at: status.settled_at.as_ref().map(|at| at.0),
        rewrite: end(kept.rewrite_unfinished),
        unexplained: kept.unexplained.try_into().unwrap_or(u8::MAX),
        came_back: kept.came_back,
        verified_up_to: version(&kept.verified_up_to),
        verify: end(kept.verify_unfinished),
        r1: version(&status.verified_resource_version),
        verified_in_full: kept.verified_in_full,
        trimmed: status.trimmed_at.is_some(),
        trimmed_at: status.trimmed_at.as_ref().map(|at| at.0),
        patrolled: kept.patrolled,
        spec: kept.spec.clone(),
    })
}

/// The preflight, by name.
fn preflight_name(found: &Preflight) -> &'static str {
    match found {
        Preflight::Passed => "Passed",
        Preflight::Blocked(why) => why.reason(),
    }
}

fn preflight_of(name: &str) -> Option<Preflight> {
    let all = [
        Preflight::Passed,
        Preflight::Blocked(Blocked::Preflight),
        Preflight::Blocked(Blocked::Pruning),
        Preflight::Blocked(Blocked::Forbidden),
    ];
    all.into_iter().find(|found| preflight_name(found) == name)
}

/// The phase in which a migration is when this is next.
pub(super) fn phase_of(next: &Next, pass: Option<&Pass>) -> Phase {
    match next {
        NextStep::Do(step) => step.kind().phase(),
        NextStep::Wait(_) => StepKind::waited_for(pass).phase(),
        NextStep::Done => Phase::Migrated,
        NextStep::Hold(Hold::Suspended) => Phase::Suspended,
        NextStep::Hold(_) => Phase::Stalled,
    }
}

/// What came of a sweep that is over.
pub(super) fn finished(tally: &RewriteTally) -> Option<MigrationProgress> {
    (tally.done() > 0).then(|| counts(tally, tally.done()))
}

/// What came of a sweep so far.
pub(super) fn running(progress: &Progress) -> MigrationProgress {
    let now = Timestamp::now();
    let eta = progress.eta.and_then(|eta| now.checked_add(eta).ok());
    #[expect(clippy::cast_possible_truncation)] // objects per second are few
    let rate = progress.rate.round() as i64;
    MigrationProgress {
        rate: Some(rate),
        eta: eta.map(Time),
        ..counts(&progress.tally.into(), progress.total.unwrap_or(progress.done()))
    }
}

fn counts(tally: &RewriteTally, total: u64) -> MigrationProgress {
    let int = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    MigrationProgress {
        total: int(total),
        done: int(tally.rewritten + tally.current + tally.skipped + tally.gone),
        rewritten: int(tally.rewritten),
        // What was written after R0 is stored at the storage version.
        current: int(tally.current + tally.skipped),
        gone: int(tally.gone),
        conflicts: int(tally.conflict),
        failed: int(tally.failed),
        rate: None,
        eta: None,
    }
}

/// As it is when nothing runs: how fast it went and when it would be through no longer matters.
pub(super) fn at_rest(mut progress: MigrationProgress) -> MigrationProgress {
    (progress.rate, progress.eta) = (None, None);
    progress
}

/// What the rewrite takes away, bounded; `None`: nothing.
pub(super) fn losses(losses: &Losses) -> Option<MigrationLosses> {
    let int = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let listed = |paths: &BTreeMap<String, Count>| -> Vec<LostField> {
        let fields = paths.iter().take(LISTED).map(|(path, count)| LostField {
            path: path.clone(),
            objects: i64::try_from(count.objects).unwrap_or(i64::MAX),
            first: count.first.clone(),
        });
        fields.collect()
    };
    let unlisted = |paths: &BTreeMap<String, Count>| paths.len().saturating_sub(LISTED);
    losses.holds().then(|| MigrationLosses {
        accepted: losses.accepted,
        objects: i64::try_from(losses.objects).unwrap_or(i64::MAX),
        erased: listed(&losses.erased),
        changed: listed(&losses.changed),
        more_fields: int(unlisted(&losses.erased) + unlisted(&losses.changed))
            .saturating_add(i64::try_from(losses.more_paths).unwrap_or(i64::MAX)),
        unseen: losses
            .unseen
            .iter()
            .map(|unseen| unseen.why.to_string())
            .collect(),
    })
}

/// Failures, bounded.
pub(super) fn failures(failures: &Failures) -> Option<MigrationFailures> {
    let int = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    (failures.count() > 0).then(|| MigrationFailures {
        count: int(failures.count()),
        by_class: failures
            .by_class
            .iter()
            .map(|(class, count)| ((*class).to_owned(), int(*count)))
            .collect(),
        first: failures
            .first
            .iter()
            .take(NAMED)
            .map(|failure| MigrationFailure {
                object: failure.object(),
                class: failure.class.to_owned(),
                message: failure.message.to_string(),
            })
            .collect(),
    })
}

/// How much a blocker says at most: a status is kept in etcd.
const SAID: usize = 1024;

fn blocker((version, holder): &(String, Holder)) -> VersionBlocker {
    VersionBlocker {
        version: version.clone(),
        holds: holder.holds.as_str().to_owned(),
        message: Redacted::ours(holder.to_string()).cut(SAID).into_string(),
        objects: holder.objects.and_then(|objects| i64::try_from(objects).ok()),
    }
}

fn not_known((version, unknown): &(String, Unknown)) -> VersionBlocker {
    VersionBlocker {
        version: version.clone(),
        holds: unknown.what.as_str().to_owned(),
        message: Redacted::ours(format!(
            "{NOT_KNOWN}: {}; to find out: {}",
            unknown.why, unknown.command
        ))
        .cut(SAID)
        .into_string(),
        objects: None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
