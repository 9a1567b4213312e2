//! `exuvia datastore status`: how far migrations are. Bars by kind, how long the source is frozen, what stands in the way.

use std::process::ExitCode;
use std::time::Duration;

use exuvia_api::{
    DatastoreMigration, DatastoreMigrationStatus, DatastorePhase, MigrationMode, TypeProgress,
    format_duration, parse_duration,
};
use exuvia_datastore::protocol::StepKind;
use exuvia_storage::counted;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;
use serde_json::Value;

use super::args::DatastoreStatusArgs;
use super::lease::{Operator, Operators};
use super::plan::{blocked, object};
use super::{migrations, watch};
use crate::cli::cluster::Cluster;
use crate::cli::table::{Column, Row, Table, paragraph, screen_width};

/// How wide a bar is, without its brackets.
const BAR: usize = 30;

pub(super) async fn run(args: &DatastoreStatusArgs) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::connect(&args.cluster).await?;
    match &args.name {
        Some(name) if args.watch => {
            watch::one(&cluster, &args.cluster, &args.lease, name, args.interval).await
        }
        None if args.watch => watch::all(&cluster, &args.cluster, &args.lease, args.interval).await,
        Some(name) => {
            let migration = migrations::get(&cluster, name).await?;
            let operator = Operators::new(&args.lease).of(&cluster, &migration).await;
            let answer = Answer::of(&migration).with(operator.as_ref());
            args.cluster.output.print(&answer, || {
                let mut text = detail(&migration, Timestamp::now(), screen_width());
                text.push_str(&said(operator.as_ref(), screen_width()));
                args.cluster.in_commands(&text)
            })?;
            Ok(ExitCode::SUCCESS)
        }
        None => {
            let migrations = migrations::all(&cluster).await?;
            let operators = Operators::new(&args.lease).of_all(&cluster, &migrations).await;
            let answers: Vec<Answer> = migrations
                .iter()
                .zip(&operators)
                .map(|(migration, operator)| Answer::of(migration).with(operator.as_ref()))
                .collect();
            args.cluster.output.print(&answers, || {
                let mut text = overview(&migrations, Timestamp::now(), screen_width());
                text.push_str(&said_of_all(&operators, screen_width()));
                args.cluster.in_commands(&text)
            })?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// A migration, as a machine reads it: its status as the cluster has it, without what was saved of other objects.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Answer {
    name: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    deleting: bool,
    status: Value,
    /// Whether an operator runs, if it matters.
    #[serde(skip_serializing_if = "Option::is_none")]
    operator: Option<Operator>,
}

impl Answer {
    pub(super) fn of(migration: &DatastoreMigration) -> Self {
        let mut status = serde_json::to_value(&migration.status).unwrap_or_default();
        if let Some(status) = status.as_object_mut() {
            status.remove("saved"); // values of other objects
        }
        Self {
            name: migration.name_any(),
            deleting: migration.metadata.deletion_timestamp.is_some(),
            status,
            operator: None,
        }
    }

    pub(super) fn with(self, operator: Option<&Operator>) -> Self {
        Self {
            operator: operator.cloned(),
            ..self
        }
    }
}

/// What there is to say of the operator: nothing if it runs.
pub(super) fn said(operator: Option<&Operator>, screen: Option<usize>) -> String {
    match operator.and_then(Operator::trouble) {
        Some(trouble) => format!("\n{}", paragraph(trouble, screen)),
        None => String::new(),
    }
}

/// The same of several, each thing once.
pub(super) fn said_of_all(operators: &[Option<Operator>], screen: Option<usize>) -> String {
    let mut troubles: Vec<&str> = operators.iter().flatten().filter_map(Operator::trouble).collect();
    troubles.sort_unstable();
    troubles.dedup();
    let troubles = troubles
        .into_iter()
        .map(|trouble| format!("\n{}", paragraph(trouble, screen)));
    troubles.collect()
}

/// All migrations in a table.
pub(super) fn overview(migrations: &[DatastoreMigration], now: Timestamp, screen: Option<usize>) -> String {
    if migrations.is_empty() {
        return "there are no DatastoreMigrations in this cluster\n".to_owned();
    }
    let row = |migration: &DatastoreMigration| {
        let status = migration.status.clone().unwrap_or_default();
        let progress = status.progress.clone().unwrap_or_default();
        Row::of([
            migration.name_any(),
            state(migration),
            progress.type_progress,
            progress.total.to_string(),
            progress.migrated.to_string(),
            progress.skipped.to_string(),
            progress.conflicts.to_string(),
            frozen_for(migration, now).map_or_else(|| "-".to_owned(), short),
            status.message,
        ])
    };
    let facts = [
        "NAME",
        "STATE",
        "KINDS",
        "OBJECTS",
        "COPIED",
        "SKIPPED",
        "CONFLICTS",
        "FROZEN",
    ];
    let columns = facts
        .map(Column::Fact)
        .into_iter()
        .chain([Column::Prose("MESSAGE", "")]);
    let table = Table {
        columns: columns.collect(),
        rows: migrations.iter().map(row).collect(),
    };
    table.render(screen)
}

/// Phase and step, such as `Migrating/Copying`.
fn state(migration: &DatastoreMigration) -> String {
    let Some(status) = &migration.status else {
        return "New".to_owned();
    };
    let phase = migrations::phase(migration).as_str();
    let deleting = if migration.metadata.deletion_timestamp.is_some() {
        ", deleting"
    } else {
        ""
    };
    match status.step.as_str() {
        "" => format!("{phase}{deleting}"),
        step => format!("{phase}/{step}{deleting}"),
    }
}

/// How long writers of the source have been refused, while that can still be undone.
pub(super) fn frozen_for(migration: &DatastoreMigration, now: Timestamp) -> Option<Duration> {
    let status = migration.status.as_ref()?;
    let since = status
        .frozen_at
        .as_ref()
        .filter(|_| status.phase == Some(DatastorePhase::Migrating))?;
    // The server's clock may be ahead of ours.
    Some(Duration::try_from(now.duration_since(since.0)).unwrap_or_default())
}

/// `1h02m`, `3m05s`, `12s`.
pub(super) fn short(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Everything about one migration.
pub(in crate::cli) fn detail(
    migration: &DatastoreMigration,
    now: Timestamp,
    screen: Option<usize>,
) -> String {
    let name = migration.name_any();
    let mut text = String::new();
    let mut say = |line: &str| text.push_str(&paragraph(line, screen));
    let Some(status) = &migration.status else {
        say(&format!(
            "{name}: no operator has looked at it yet; is one running, with datastore migration turned on?"
        ));
        return text;
    };
    say(&format!("{name}: {}", state(migration)));
    let step = StepKind::ALL
        .into_iter()
        .find(|step| step.as_str() == status.step);
    match (status.message.as_str(), step) {
        ("", Some(step)) => say(step.doing()),
        ("", None) => {}
        (message, _) => say(message),
    }
    if let Some(frozen) = frozen(migration, status, now) {
        say(&frozen);
    }
    let progress = status.progress.clone().unwrap_or_default();
    if progress.total_types > 0 {
        say("");
    }
    let wide = progress
        .types
        .iter()
        .map(|kind| label(kind).chars().count())
        .max();
    for kind in &progress.types {
        let line = format!(
            "  {:<width$}  {}",
            label(kind),
            bar(kind),
            width = wide.unwrap_or_default()
        );
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let mut say = |line: &str| text.push_str(&paragraph(line, screen));
    if !status.blockers.is_empty() {
        say("");
        say("What stands in the way (nothing is frozen):");
        for blocker in &status.blockers {
            say(&format!("- {}", blocked(blocker)));
        }
    }
    if !status.conflicts.is_empty() {
        let total = u64::try_from(progress.conflicts).unwrap_or_default();
        say("");
        say(&format!(
            "{} in conflict (`exuvia datastore conflicts {name}` shows all of them, field by field):",
            counted(total.max(status.conflicts.len() as u64), "target")
        ));
        for conflict in &status.conflicts {
            say(&format!(
                "- {}: {}",
                object(&conflict.kind, &conflict.namespace, &conflict.name),
                conflict.field
            ));
        }
    }
    if let Some(next) = next(migration) {
        say("");
        say(&next);
    }
    text
}

/// Whether objects are copied while writers go on, as they do now.
pub(super) fn is_synced(migration: &DatastoreMigration) -> bool {
    let is_frozen = migration
        .status
        .as_ref()
        .is_some_and(|status| status.frozen_at.is_some());
    migration.spec.mode == MigrationMode::SyncThenFreeze && !is_frozen
}

/// What there is to do for people, if anything.
fn next(migration: &DatastoreMigration) -> Option<String> {
    let name = migration.name_any();
    match migrations::phase(migration) {
        DatastorePhase::Failed => Some(format!(
            "everything was undone; `exuvia datastore retry {name}` lets it begin again"
        )),
        DatastorePhase::Migrating if migration.spec.cutover.hold && is_synced(migration) => Some(format!(
            "it stops before the freeze (cutover.hold), and writes go on; `exuvia datastore cutover {name}` lets it go on"
        )),
        DatastorePhase::Migrating if migration.spec.cutover.hold => Some(format!(
            "it stops before its commit (cutover.hold), with the source frozen; `exuvia datastore cutover {name}` lets it go on"
        )),
        DatastorePhase::Complete => Some(format!(
            "everything is moved; `exuvia datastore abort {name} --cleanup` ends it (cleanup.source: {})",
            serde_json::to_value(migration.spec.cleanup.source)
                .ok()
                .and_then(|source| source.as_str().map(str::to_owned))
                .unwrap_or_default()
        )),
        _ => None,
    }
}

/// The freeze timer.
fn frozen(
    migration: &DatastoreMigration,
    status: &DatastoreMigrationStatus,
    now: Timestamp,
) -> Option<String> {
    if let Some(frozen) = frozen_for(migration, now) {
        let most = parse_duration(&migration.spec.freeze.max_duration).unwrap_or_default();
        let left = if status.undo.is_some() {
            "and is being let go".to_owned()
        } else if most.is_zero() {
            "without a limit (freeze.maxDuration: 0s)".to_owned()
        } else {
            format!(
                "{} left of {} before everything is undone",
                short(most.saturating_sub(frozen)),
                format_duration(most)
            )
        };
        return Some(format!("frozen for {}, {left}", short(frozen)));
    }
    let over = status.frozen_at.as_ref().zip(status.converged_at.as_ref());
    let (from, to) = over?;
    let lasted = Duration::try_from(to.0.duration_since(from.0)).unwrap_or_default();
    Some(format!(
        "writers waited for {}; the source stays frozen, and can only be deleted",
        short(lasted)
    ))
}

fn label(kind: &TypeProgress) -> String {
    format!("{} ({})", kind.kind, kind.mapping)
}

/// `[=====>    ] 5/21, 1 skipped`.
fn bar(kind: &TypeProgress) -> String {
    let (total, done) = (kind.total.max(0), (kind.migrated + kind.skipped).max(0));
    let filled = match usize::try_from(total) {
        Ok(total) if total > 0 => usize::try_from(done).unwrap_or_default().min(total) * BAR / total,
        _ => 0,
    };
    let head = if filled > 0 && filled < BAR { ">" } else { "" };
    let mut drawn = "=".repeat(filled.saturating_sub(head.len()));
    drawn.push_str(head);
    let mut text = format!("[{drawn:<BAR$}] {done}/{total}");
    for (count, what) in [(kind.skipped, "there already"), (kind.conflicts, "in conflict")] {
        if count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn migration(status: &Value) -> DatastoreMigration {
        serde_json::from_value(json!({
            "apiVersion": "exuvia.dev/v1beta1", "kind": "DatastoreMigration", "metadata": {"name": "move"},
            "spec": {"mappings": [], "freeze": {"maxDuration": "15m"}}, "status": status,
        }))
        .expect("a migration")
    }

    fn at(time: &str) -> Timestamp {
        time.parse().expect("a time")
    }

    #[test]
    fn a_running_migration_shows_bars_and_the_freeze_timer() {
        let migration = migration(&json!({
            "phase": "Migrating", "step": "Copying", "message": "copying Widget", "frozenAt": "2026-11-17T10:00:00Z",
            "progress": {
                "totalTypes": 2, "completedTypes": 0, "typeProgress": "0 / 2", "total": 31, "migrated": 10, "skipped": 5,
                "conflicts": 0, "types": [
                    {"kind": "Widget", "mapping": "all", "total": 30, "migrated": 10, "skipped": 5, "conflicts": 0},
                    {"kind": "LongerKind", "mapping": "all", "total": 1, "migrated": 0, "skipped": 0, "conflicts": 0},
                ],
            },
        }));
        assert_eq!(
            detail(&migration, at("2026-11-17T10:01:12Z"), None),
            "move: Migrating/Copying\ncopying Widget\nfrozen for 1m12s, 13m48s left of 15m before everything is undone\n\n  Widget \
             (all)      [==============>               ] 15/30, 5 there already\n  LongerKind (all)  \
             [                              ] 0/1\n"
        );
    }

    #[test]
    fn a_freeze_that_is_over_says_how_long_writers_waited() {
        let migration = migration(&json!({
            "phase": "Complete", "frozenAt": "2026-11-17T10:00:00Z", "convergedAt": "2026-11-17T10:00:41Z",
        }));
        let text = detail(&migration, at("2026-11-18T00:00:00Z"), None);
        assert!(text.contains("writers waited for 41s"), "{text}");
        assert_eq!(frozen_for(&migration, at("2026-11-18T00:00:00Z")), None);
    }

    #[test]
    fn a_clock_that_is_behind_the_servers_does_not_count_backwards() {
        let migration = migration(&json!({"phase": "Migrating", "frozenAt": "2026-11-17T10:00:00Z"}));
        assert_eq!(
            frozen_for(&migration, at("2026-11-17T09:59:00Z")),
            Some(Duration::ZERO)
        );
    }

    #[test]
    fn what_was_saved_of_other_objects_is_not_shown() {
        let migration = migration(&json!({
            "phase": "Migrating", "saved": {"flags": [{"index": 0, "uid": "u", "value": "CANARY"}]},
        }));
        let text = serde_json::to_string(&Answer::of(&migration)).expect("JSON");
        assert!(!text.contains("CANARY") && text.contains("Migrating"), "{text}");
    }
}
