//! `exuvia datastore plan`: what a migration would do, kind by kind. Nothing is written.

use std::process::ExitCode;

use anyhow::bail;
use exuvia_api::{Blocker, ConflictPolicy, ConflictStatus, DatastoreMigration, DatastorePhase};
use exuvia_datastore::Error;
use exuvia_datastore::copy::{Findings, Mover};
use exuvia_datastore::freeze::{Tight, tight};
use exuvia_datastore::mapping::Mappings;
use exuvia_datastore::plan::{Look, obstacles};
use exuvia_runtime::servers::ApiServers;
use exuvia_storage::counted;
use exuvia_sweep::Control;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;

use super::args::DatastorePlanArgs;
use super::{manifest, migrations};
use crate::cli::cluster::Cluster;
use crate::cli::output::{remark, table};
use crate::cli::table::{paragraph, screen_width};

/// What a migration would do.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Plan {
    migration: String,
    /// Nothing stands in the way.
    can_start: bool,
    /// The targets cannot be looked at: this `APIService` is in front of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    hidden_by: Option<String>,
    kinds: Vec<PlannedKind>,
    /// Objects that no mapping takes.
    unmoved: u64,
    /// Objects that cannot be moved.
    refused: u64,
    /// The first of them, and what else stands in the way.
    blockers: Vec<Blocker>,
    /// The first targets that exist and differ.
    conflicts: Vec<ConflictStatus>,
    /// How many of the blockers are about something else than an object; they come first.
    #[serde(skip)]
    obstacles: usize,
    /// How many refused objects are not among them.
    #[serde(skip)]
    unlisted: u64,
    #[serde(skip)]
    prefers_target: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PlannedKind {
    kind: String,
    mapping: String,
    to: String,
    targets: i64,
    already_there: i64,
    conflicts: i64,
}

pub(super) async fn run(args: &DatastorePlanArgs) -> anyhow::Result<ExitCode> {
    // What is wrong with the file needs no cluster to be said.
    let given = args.filename.as_ref().map(manifest::only).transpose()?;
    let cluster = Cluster::connect(&args.cluster).await?;
    let (migration, mappings) = match (given, &args.name) {
        (Some((mut migration, mappings)), _) => {
            // It would come after all others.
            migration.metadata.creation_timestamp = Some(Time(Timestamp::now()));
            (migration, mappings)
        }
        (None, name) => {
            let migration = migrations::get(&cluster, name.as_deref().unwrap_or_default()).await?;
            not_begun(&migration)?;
            let mappings = migrations::mappings(&migration)?;
            if let Some(Tight::Perhaps(why)) = tight(&migration.spec.freeze) {
                remark(&format!("note: {why}"));
            }
            (migration, mappings)
        }
    };
    let plan = look(&cluster, &migration, mappings).await?;
    args.cluster
        .output
        .print(&plan, || args.cluster.in_commands(&plan.text()))?;
    Ok(if plan.can_start {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Under a freeze everything would look refused, and after it everything is there.
fn not_begun(migration: &DatastoreMigration) -> anyhow::Result<()> {
    let (name, phase) = (migration.name_any(), migrations::phase(migration));
    match phase {
        DatastorePhase::Migrating | DatastorePhase::Converged | DatastorePhase::Complete => bail!(
            "{name} is {}: a plan is for a migration that has not begun; `exuvia datastore status {name}` shows how far it is",
            phase.as_str()
        ),
        _ => Ok(()),
    }
}

async fn look(cluster: &Cluster, migration: &DatastoreMigration, mappings: Mappings) -> anyhow::Result<Plan> {
    let servers = ApiServers::new(&cluster.config, &[], &[]);
    let mut blockers = match obstacles(&cluster.client, &cluster.writer, &servers, migration).await {
        Ok(blockers) => blockers,
        Err(Error::List(error)) if error.class.as_str() == "missing" => {
            remark(&format!("note: {}", migrations::NOT_INSTALLED));
            Vec::new()
        }
        Err(error) => return Err(error.into()),
    };
    let (kinds, missing) = exuvia_datastore::Kinds::read(&cluster.client, &migration.spec).await?;
    let hidden_by = migrations::hidden_by(cluster, migration).await?;
    let (client, writer, control) = (cluster.client.clone(), &cluster.writer, Control::new());
    let targets: Vec<(String, String)> = kinds
        .moved
        .iter()
        .map(|moved| (moved.source.shown(), moved.target.shown()))
        .collect();
    let found = if !missing.is_empty() {
        Findings::default() // the rest says nothing without the kinds that are missing
    } else if hidden_by.is_some() {
        let look = Look::new(client, writer, kinds, mappings, migration, &control);
        look.preview().await?
    } else {
        let mover = Mover::new(client, writer, kinds, mappings, migration, &control);
        mover.try_all(None, false).await?
    };
    blockers.extend(missing);
    let mut blockers = each_once(blockers);
    let obstacles = blockers.len();
    blockers.extend(found.blockers.iter().cloned());
    let blockers = each_once(blockers);
    let kinds = found.progress.types.iter().zip(&targets);
    let conflicts = found.progress.conflicts;
    Ok(Plan {
        migration: migration.name_any(),
        can_start: blockers.is_empty() && conflicts == 0,
        kinds: kinds
            .map(|(progress, (from, to))| PlannedKind {
                kind: from.clone(),
                mapping: progress.mapping.clone(),
                to: to.clone(),
                targets: progress.total,
                already_there: progress.skipped,
                conflicts: progress.conflicts,
            })
            .collect(),
        unmoved: found.unmoved,
        refused: found.blocked,
        unlisted: found.blocked.saturating_sub(found.blockers.len() as u64),
        blockers,
        obstacles,
        conflicts: found.conflicts,
        hidden_by,
        prefers_target: migration.spec.conflicts.policy == ConflictPolicy::PreferTarget,
    })
}

/// Several looks may find the same.
fn each_once(blockers: Vec<Blocker>) -> Vec<Blocker> {
    let mut once: Vec<Blocker> = Vec::new();
    for blocker in blockers {
        if !once.contains(&blocker) {
            once.push(blocker);
        }
    }
    once
}

impl Plan {
    fn text(&self) -> String {
        let screen = screen_width();
        let mut text = String::new();
        if !self.kinds.is_empty() {
            let rows: Vec<Vec<String>> = self.kinds.iter().map(PlannedKind::row).collect();
            let there = if self.hidden_by.is_some() {
                "THERE ALREADY (not known)"
            } else {
                "THERE ALREADY"
            };
            text.push_str(&table(
                &["KIND", "MAPPING", "BECOMES", "TARGETS", there, "CONFLICTS"],
                &rows,
            ));
        }
        let mut say = |line: &str| text.push_str(&paragraph(line, screen));
        if let Some(service) = &self.hidden_by {
            say(&format!(
                "the APIService {service} answers for the target group, so the targets cannot be seen before the switch: objects \
                 were converted but not tried, and conflicts are not known. When the migration runs, it tries every object on \
                 copies of the target CRDs before it freezes anything"
            ));
        }
        if self.unmoved > 0 {
            say(&format!(
                "no mapping takes {}, which will not be moved",
                counted(self.unmoved, "object")
            ));
        }
        let (others, objects) = self.blockers.split_at(self.obstacles.min(self.blockers.len()));
        if !others.is_empty() {
            say("what stands in the way:");
            for blocker in others {
                say(&format!("- {}", blocked(blocker)));
            }
        }
        if self.refused > 0 {
            say(&format!("{} cannot be moved:", counted(self.refused, "object")));
            for blocker in objects {
                say(&format!("- {}", blocked(blocker)));
            }
        }
        if self.unlisted > 0 {
            say(&format!("- and {}", counted(self.unlisted, "other object")));
        }
        if !self.conflicts.is_empty() {
            say("targets that exist and differ, each with the first field that does:");
            for conflict in &self.conflicts {
                say(&format!(
                    "- {}: {}",
                    object(&conflict.kind, &conflict.namespace, &conflict.name),
                    conflict.field
                ));
            }
        }
        if self.prefers_target {
            say(
                "targets that exist stay as they are (conflicts.policy: PreferTarget), and count as there already",
            );
        }
        let name = &self.migration;
        say(&if self.can_start {
            format!("{name}: nothing stands in the way; nothing was written")
        } else {
            format!(
                "{name}: if it were started now, it would wait until all of that is resolved, with nothing frozen and nothing \
                 moved; nothing was written"
            )
        });
        text
    }
}

impl PlannedKind {
    fn row(&self) -> Vec<String> {
        vec![
            self.kind.clone(),
            self.mapping.clone(),
            self.to.clone(),
            self.targets.to_string(),
            self.already_there.to_string(),
            self.conflicts.to_string(),
        ]
    }
}

/// `Widget.example.com shop/a`.
pub(super) fn object(kind: &str, namespace: &str, name: &str) -> String {
    let place = match namespace {
        "" => name.to_owned(),
        namespace => format!("{namespace}/{name}"),
    };
    format!("{kind} {place}").trim().to_owned()
}

/// A blocker in one line.
pub(super) fn blocked(blocker: &Blocker) -> String {
    match object(&blocker.kind, &blocker.namespace, &blocker.name).as_str() {
        "" => format!("{} ({})", blocker.message, blocker.reason),
        object => format!("{object}: {} ({})", blocker.message, blocker.reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_looks_find_is_said_once() {
        let blocker = |name: &str| Blocker {
            name: name.to_owned(),
            ..Blocker::default()
        };
        let found = vec![blocker("a"), blocker("b"), blocker("a")];
        assert_eq!(each_once(found), [blocker("a"), blocker("b")]);
    }
}
