//! `exuvia storage migrate`: one bar per resource, one summary at the end.

use std::process::ExitCode;

use anyhow::bail;
use exuvia_storage::definition::Definition;
use exuvia_storage::references::Moved;
use exuvia_storage::{
    End, Engine, Options, Report, Verified, builtin, droppable, is_in_groups, migrate_builtin,
};
use exuvia_sweep::{Control, Pressure};
use exuvia_write::Writer;
use kube::api::ApiResource;
use serde::Serialize;

use super::args::MigrateArgs;
use super::bars::show;
use super::cluster::Cluster;
use super::droppable::versions;
use super::output::{count, remark};
use super::plan::{definitions, no_crds};
use super::references;
use super::values::NO_SETTLE;

/// What is to be migrated.
enum Target {
    Crd(Box<Definition>),
    BuiltIn(ApiResource),
}

/// A report with the verdict that belongs to it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    #[serde(flatten)]
    pub(super) report: Report,
    /// Old versions that neither bytes nor ownership hold: the ones to ask about.
    pub(super) candidates: Vec<String>,
    /// What became of ownerReferences at old versions, if they were to be moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) owner_references: Option<Moved>,
}

pub(super) async fn run(args: &MigrateArgs) -> anyhow::Result<ExitCode> {
    if args.settle.is_zero() && !args.dry_run {
        remark(&format!("warning: {NO_SETTLE}"));
    }
    let cluster = Cluster::connect(&args.cluster).await?;
    let targets = targets(&cluster, args).await?;
    refuse_unknown_versions(&targets, &args.shed)?;
    let control = Control::new();
    // A writer that is answered 429 waits by itself; the sweep must learn of it at once, and send less.
    let brake = control.clone();
    let writer = cluster.writer.clone().observe(move |report| {
        if let exuvia_write::Outcome::Failed(class) = report.outcome
            && let Some(pressure) = Pressure::of(class)
        {
            brake.slow_down(pressure, report.duration);
        }
    });
    let on_interrupt = control.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            remark("stopping: objects in work are finished, nothing is trimmed");
            on_interrupt.cancel();
        }
    });
    let mut summaries = Vec::new();
    for target in &targets {
        // One that fails must not hide what was done to the others.
        let report = migrate(&cluster, &writer, &control, target, args)
            .await
            .unwrap_or_else(|error| Report {
                resource: target.name(),
                end: End::Stalled {
                    reason: "Error",
                    message: super::sentence(&error),
                },
                ..Report::default()
            });
        summaries.push(Summary::of(report, target));
    }
    let fine =
        |end: &End| matches!(end, End::Migrated | End::Clean) || (args.dry_run && *end == End::Unfinished);
    if args.owner_references && !control.is_cancelled() {
        let ended_well = targets
            .iter()
            .zip(&mut summaries)
            .filter_map(|(target, summary)| match target {
                Target::Crd(definition) if fine(&summary.report.end) => Some((&**definition, summary)),
                _ => None,
            });
        references::run(&cluster, &writer, args, ended_well.collect()).await?;
    }
    args.cluster
        .output
        .print(&summaries, || summaries.iter().map(Summary::text).collect())?;
    let stopped = summaries
        .iter()
        .any(|summary| summary.report.end == End::Cancelled);
    let moved = |summary: &Summary| {
        let moved = summary.owner_references.as_ref();
        moved.is_none_or(Moved::is_complete)
    };
    Ok(
        match summaries
            .iter()
            .all(|summary| fine(&summary.report.end) && moved(summary))
        {
            true => ExitCode::SUCCESS,
            false if stopped => ExitCode::from(130),
            false => ExitCode::FAILURE,
        },
    )
}

async fn migrate(
    cluster: &Cluster,
    writer: &Writer,
    control: &Control,
    target: &Target,
    args: &MigrateArgs,
) -> anyhow::Result<Report> {
    let options = options(args);
    match target {
        Target::Crd(definition) => {
            let (client, name) = (cluster.client.clone(), definition.name.clone());
            let engine = Engine::new(&cluster.config, client, writer.clone(), &name, options);
            let mut engine = engine.controlled_by(control.clone()).watched_by(show(name));
            Ok(if args.dry_run {
                engine.rehearse().await?
            } else {
                engine.run().await?
            })
        }
        Target::BuiltIn(_) if args.dry_run => Ok(Report {
            resource: target.name(),
            ..Report::default()
        }),
        Target::BuiltIn(resource) => {
            let shown = show(resource.plural.clone());
            Ok(migrate_builtin(&cluster.client, writer, resource, &options, control, &shown).await?)
        }
    }
}

impl Target {
    fn name(&self) -> String {
        match self {
            Self::Crd(definition) => definition.name.clone(),
            Self::BuiltIn(resource) if resource.group.is_empty() => resource.plural.clone(),
            Self::BuiltIn(resource) => format!("{}.{}", resource.plural, resource.group),
        }
    }
}

fn options(args: &MigrateArgs) -> Options {
    Options {
        settle: args.settle,
        api_servers: args.api_servers.clone(),
        verify: args.verify.into(),
        managed_fields: args.managed_fields.into(),
        shed: args.shed.clone(),
        accept_pruning: args.accept_pruning,
        status_fallback: args.status_fallback,
        max_concurrency: args.max_concurrency.into(),
        qps: args.qps,
        ..Options::default()
    }
}

async fn targets(cluster: &Cluster, args: &MigrateArgs) -> anyhow::Result<Vec<Target>> {
    let all = definitions(cluster).await?;
    let opt_in = args.opt_in.to_opt_in();
    if args.names.is_empty() {
        let wanted = |definition: &Definition| {
            if args.labelled {
                opt_in.includes(definition)
            } else {
                is_in_groups(&definition.group, &opt_in.groups)
            }
        };
        let targets: Vec<Target> = all
            .into_iter()
            .filter(wanted)
            .map(|d| Target::Crd(Box::new(d)))
            .collect();
        match targets.is_empty() {
            true if args.labelled => bail!(
                "no CRD carries the label {} in the groups asked for",
                opt_in.label
            ),
            true => bail!(no_crds(&opt_in.groups)),
            false => return Ok(targets),
        }
    }
    let mut targets = Vec::new();
    for name in &args.names {
        match all.iter().find(|definition| definition.name == *name) {
            Some(definition) => targets.push(Target::Crd(Box::new(definition.clone()))),
            None => targets.push(Target::BuiltIn(built_in(cluster, name, &all).await?)),
        }
    }
    Ok(targets)
}

/// A misspelt version would be shed without a word, and the one that was meant would stay. Entries at a version that the
/// CRD has no more need not be named: they are moved in any case.
fn refuse_unknown_versions(targets: &[Target], shed: &[String]) -> anyhow::Result<()> {
    let crds: Vec<&Definition> = targets
        .iter()
        .filter_map(|target| match target {
            Target::Crd(definition) => Some(&**definition),
            Target::BuiltIn(_) => None,
        })
        .collect();
    let unknown = |version: &&String| crds.iter().all(|crd| crd.version(version).is_none());
    match (shed.iter().find(unknown), crds.as_slice()) {
        (None, _) => Ok(()),
        (Some(version), [crd]) => bail!(
            "{} has no version {version} to shed: it has {}",
            crd.name,
            versions(crd)
        ),
        (Some(version), _) => bail!("none of the CRDs to migrate has a version {version} to shed"),
    }
}

/// A built-in resource by plural, or by `plural.group`. Never one that a CRD defines: that has versions to look after, and
/// goes by its full name.
async fn built_in(cluster: &Cluster, name: &str, crds: &[Definition]) -> anyhow::Result<ApiResource> {
    let meant: Vec<&str> = crds
        .iter()
        .filter(|crd| crd.plural == name || crd.kind == name)
        .map(|crd| crd.name.as_str())
        .collect();
    if !meant.is_empty() {
        bail!(
            "a CRD goes by its full name: did you mean {}?",
            meant.join(" or ")
        );
    }
    let is_crd =
        |group: &str, plural: &str| crds.iter().any(|crd| crd.group == group && crd.plural == plural);
    Ok(builtin::find(&cluster.client, name, is_crd).await?)
}

impl Summary {
    fn of(report: Report, target: &Target) -> Self {
        let candidates = match (target, &report.end) {
            (Target::Crd(definition), End::Migrated | End::Clean) => {
                let mut definition = definition.clone();
                definition.crd.stored.clone_from(&report.stored_after);
                droppable::droppable(&definition, &report.owners)
            }
            _ => Vec::new(),
        };
        Self {
            report,
            candidates,
            owner_references: None,
        }
    }

    /// For people: one line on how it ended, and what there is to know below it.
    pub(super) fn text(&self) -> String {
        let Self {
            report,
            candidates,
            owner_references,
        } = self;
        let mut text = format!("{}: ", report.resource);
        text.push_str(&match &report.end {
            End::Clean => "clean, nothing was written\n".to_owned(),
            End::Gone => "the CRD is gone\n".to_owned(),
            End::Cancelled => "stopped, nothing was trimmed\n".to_owned(),
            End::Unfinished if report.stored_before.is_empty() => {
                "would rewrite its objects and verify that\n".to_owned()
            }
            End::Unfinished => format!(
                "nothing stands in the way; would rewrite its objects at {}, verify that, and trim {}\n",
                report.storage_version,
                report
                    .stored_before
                    .iter()
                    .filter(|v| **v != report.storage_version)
                    .cloned()
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
            End::Stalled { reason, message } => format!("stalled ({reason}): {message}\n"),
            End::Migrated => "migrated\n".to_owned(),
        });
        let mut say = |line: String| text.push_str(&format!("  {line}\n"));
        let tally = report.rewrite;
        if tally.done() > 0 {
            say(format!(
                "{} rewritten, {} current, {} gone, {} written meanwhile, {} in conflict, {} failed",
                tally.rewritten, tally.current, tally.gone, tally.skipped, tally.conflict, tally.failed
            ));
        }
        match report.verified.filter(|_| report.verify.done() > 0) {
            Some(Verified::Proof) => say(
                "verified: by resourceVersions, as every API server was asked itself, and by patching the rest and a sample"
                    .to_owned(),
            ),
            Some(Verified::Full) => say("verified: every object was patched once more and came back unchanged".to_owned()),
            None => {}
        }
        if report.mutated > 0 {
            say(format!(
                "{} with every write: a webhook stamps them",
                count(report.mutated, "object") + " changed"
            ));
        }
        for failure in report.failures.first.iter().take(10) {
            say(format!(
                "not done: {} [{}] {}",
                failure.object(),
                failure.class,
                failure.message
            ));
        }
        let more = report.failures.count().saturating_sub(10);
        if more > 0 {
            say(format!("and {more} more; -o json shows up to 100"));
        }
        if report.end == End::Migrated && report.stored_before != report.stored_after {
            say(format!(
                "storedVersions: {} -> {}",
                report.stored_before.join(", "),
                report.stored_after.join(", ")
            ));
        }
        owner_references
            .iter()
            .flat_map(references::lines)
            .for_each(&mut say);
        for version in candidates {
            say(format!(
                "whether {version} may be dropped: exuvia storage droppable {} {version}",
                report.resource
            ));
        }
        text
    }
}
