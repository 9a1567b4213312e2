//! `exuvia datastore verify`: every source beside its targets, read again.

use std::process::ExitCode;

use exuvia_api::{DatastoreMigration, DatastorePhase};
use exuvia_datastore::plan::{Side, Unlike};
use exuvia_storage::counted;
use kube::ResourceExt;
use serde::Serialize;

use super::args::NamedArgs;
use super::migrations;
use super::plan::object;
use crate::cli::cluster::Cluster;
use crate::cli::output::table;
use crate::cli::table::{paragraph, screen_width};

/// The phases in which the targets are in use.
const AFTER: [DatastorePhase; 2] = [DatastorePhase::Converged, DatastorePhase::Complete];

/// What was found.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Verified {
    migration: String,
    phase: &'static str,
    /// Every source that is moved has its target, and was not written since.
    complete: bool,
    kinds: Vec<Kind>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Kind {
    kind: String,
    sources: u64,
    equal: u64,
    differing: u64,
    changed_since: u64,
    not_compared: u64,
    without_target: u64,
    unconvertible: u64,
    unmoved: u64,
    unlike: Vec<Named>,
}

#[derive(Debug, Serialize)]
struct Named {
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    name: String,
    what: String,
}

pub(super) async fn run(args: &NamedArgs) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::connect(&args.cluster).await?;
    let migration = migrations::get(&cluster, &args.name).await?;
    if let Some(service) = migrations::hidden_by(&cluster, &migration).await? {
        anyhow::bail!(
            "the APIService {service} is in front of the targets, so they cannot be looked at before the switch; {} is {}",
            args.name,
            migrations::phase(&migration).as_str()
        );
    }
    let sides = migrations::look(&cluster, &migration).await?.sides().await?;
    let verified = Verified::new(&migration, sides);
    args.cluster.output.print(&verified, || verified.text())?;
    Ok(if verified.complete {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

impl Verified {
    fn new(migration: &DatastoreMigration, sides: Vec<Side>) -> Self {
        let missing = |side: &Side| side.without_target + side.unconvertible;
        let is_after = AFTER.contains(&migrations::phase(migration));
        Self {
            migration: migration.name_any(),
            phase: migrations::phase(migration).as_str(),
            // After the commit targets are in use, and may differ. Before it a difference means that the move is not done.
            complete: sides.iter().all(|side| {
                missing(side) == 0 && side.changed_since == 0 && (is_after || side.differing == 0)
            }),
            kinds: sides.into_iter().map(Kind::new).collect(),
        }
    }

    fn text(&self) -> String {
        let heads = [
            "KIND",
            "SOURCES",
            "EQUAL",
            "DIFFER",
            "CHANGED SINCE",
            "NOT COMPARED",
            "WITHOUT TARGET",
            "NOT MOVED",
        ];
        let rows: Vec<Vec<String>> = self.kinds.iter().map(Kind::row).collect();
        let mut text = table(&heads, &rows);
        let screen = screen_width();
        for kind in &self.kinds {
            for unlike in &kind.unlike {
                let line = format!(
                    "- {}: {}",
                    object(&kind.kind, &unlike.namespace, &unlike.name),
                    unlike.what
                );
                text.push_str(&paragraph(&line, screen));
            }
        }
        text.push_str(&paragraph(&self.verdict(), screen));
        text
    }

    fn verdict(&self) -> String {
        let (name, phase) = (&self.migration, self.phase);
        let sum = |part: fn(&Kind) -> u64| self.kinds.iter().map(part).sum::<u64>();
        let missing = sum(|kind| kind.without_target + kind.unconvertible);
        let moved = sum(|kind| kind.sources - kind.unmoved);
        let unknown = sum(|kind| kind.not_compared);
        let (differ, changed) = (sum(|kind| kind.differing), sum(|kind| kind.changed_since));
        let is_after = AFTER.map(DatastorePhase::as_str);
        if missing == 0 && unknown > 0 && changed == 0 {
            return format!(
                "{name} ({phase}): each of {} has its target; whether {unknown} of them are equal is not known, because a dry-run \
                 write is denied to you, by your rights or by the freeze",
                counted(moved, "source")
            );
        }
        if missing == 0 && differ == 0 && changed == 0 {
            return format!(
                "{name} ({phase}): each of {} has its target, and equals it",
                counted(moved, "source")
            );
        }
        if missing == 0 && changed > 0 && is_after.contains(&phase) {
            return format!(
                "{name} ({phase}): {changed} of {} were written after they were copied: these writes are not in the targets",
                counted(moved, "source")
            );
        }
        if missing == 0 && is_after.contains(&phase) {
            return format!(
                "{name} ({phase}): each of {} has its target; those that differ were written after the move, or were there before it and \
                 were left as they are",
                counted(moved, "source")
            );
        }
        if is_after.contains(&phase) {
            return format!(
                "{name} ({phase}): {missing} of {} have no target: it was deleted after the move, or never there, which cannot be told \
                 from here",
                counted(moved, "source")
            );
        }
        format!(
            "{name} ({phase}): {missing} of {} have no target yet, {differ} differ, {changed} changed after they were copied",
            counted(moved, "source")
        )
    }
}

impl Kind {
    fn new(side: Side) -> Self {
        Self {
            kind: side.kind,
            sources: side.sources,
            equal: side.equal,
            differing: side.differing,
            changed_since: side.changed_since,
            not_compared: side.not_compared,
            without_target: side.without_target,
            unconvertible: side.unconvertible,
            unmoved: side.unmoved,
            unlike: side
                .unlike
                .into_iter()
                .map(
                    |Unlike {
                         namespace,
                         name,
                         what,
                     }| Named {
                        namespace,
                        name,
                        what,
                    },
                )
                .collect(),
        }
    }

    fn row(&self) -> Vec<String> {
        let numbers = [
            self.sources,
            self.equal,
            self.differing,
            self.changed_since,
            self.not_compared,
            self.without_target + self.unconvertible,
            self.unmoved,
        ];
        let numbers = numbers.iter().map(ToString::to_string);
        std::iter::once(self.kind.clone()).chain(numbers).collect()
    }
}
