//! `exuvia storage migrate`: one bar per resource, one summary at the end.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use exuvia_storage::definition::Definition;
use exuvia_storage::references::Moved;
use exuvia_storage::servers::ApiServers;
use exuvia_storage::{End, Engine, Options, Report, builtin, is_in_groups};
use exuvia_sweep::{Control, Pressure};
use exuvia_write::Writer;
use indicatif::MultiProgress;
use kube::api::ApiResource;
use tokio::sync::Semaphore;

use super::args::{ManagedFieldsArg, MigrateArgs, VerifyArg};
use super::bars::show;
use super::cluster::Cluster;
use super::droppable::versions;
use super::output::remark;
use super::plan::{definitions, no_crds};
use super::references;
use super::summary::Summary;
use super::values::NO_SETTLE;
use super::verdicts;

/// What is to be migrated.
enum Target {
    Crd(Box<Definition>),
    BuiltIn(ApiResource),
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
    let mut summaries = all(&cluster, &writer, &control, &targets, args).await;
    let fine = |end: &End| matches!(end, End::Migrated | End::Clean | End::WouldMigrate);
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
    if !args.dry_run {
        tokio::select! {
            biased;
            () = control.cancelled() => {}
            () = verdicts::run(&cluster, args, &mut summaries) => {}
        }
    }
    for summary in &mut summaries {
        summary.conclude();
    }
    args.cluster
        .output
        .print(&summaries, || summaries.iter().map(Summary::text).collect())?;
    let stopped = summaries
        .iter()
        .any(|summary| summary.report.end == End::Cancelled);
    let reached = |summary: &Summary| {
        let moved = summary.owner_references.as_ref();
        fine(&summary.report.end)
            && moved.is_none_or(Moved::is_complete)
            && summary.unshed.is_empty()
            && (!args.require_droppable || summary.is_droppable())
    };
    Ok(match summaries.iter().all(reached) {
        true => ExitCode::SUCCESS,
        false if stopped => ExitCode::from(130),
        false => ExitCode::FAILURE,
    })
}

/// Looks at all of them first, so that they settle together, and then works on several at a time.
async fn all(
    cluster: &Cluster,
    writer: &Writer,
    control: &Control,
    targets: &[Target],
    args: &MigrateArgs,
) -> Vec<Summary> {
    let bars = MultiProgress::new();
    let slots = Arc::new(Semaphore::new(args.concurrent.into()));
    let servers = ApiServers::new(&cluster.config, &args.api_servers, &args.ignored_api_servers);
    let mut engines: Vec<Engine> = targets
        .iter()
        .map(|target| {
            let shown = show(target.name(), &bars);
            let engine = engine(cluster, writer, target, options(args));
            let engine = engine.asking(&servers);
            engine.controlled_by(control.clone()).watched_by(shown)
        })
        .collect();
    if !args.dry_run {
        let looks = engines.iter_mut().map(|engine| {
            let slots = &slots;
            async move {
                let _slot = slots.acquire().await;
                let _ = engine.look_around().await; // what is wrong comes up again when its turn comes
            }
        });
        futures::future::join_all(looks).await;
    }
    // Each ends with its run, and takes its bar with it.
    let runs = engines.into_iter().zip(targets).map(|(mut engine, target)| {
        let slots = &slots;
        async move {
            let report = if args.dry_run {
                let _slot = slots.acquire().await;
                engine.rehearse().await
            } else {
                engine.run_among(slots).await
            };
            // One that fails must not hide what was done to the others.
            let report = report.unwrap_or_else(|error| Report {
                resource: target.name(),
                end: End::Stalled {
                    reason: "Error",
                    message: super::sentence(&error.into()),
                },
                ..engine.report().clone()
            });
            let keeps = args.managed_fields == ManagedFieldsArg::Keep || args.dry_run;
            let definition = match (engine.definition(), target) {
                (Some(definition), _) => Some(definition.clone()),
                (None, Target::Crd(definition)) => Some(Definition::clone(definition)),
                (None, Target::BuiltIn(_)) => None,
            };
            Summary {
                definition,
                owners: engine.survey().map(|survey| survey.owners.clone()),
                ..Summary::of(report, engine.record())
            }
            .unshed(keeps)
        }
    });
    futures::future::join_all(runs).await
}

fn engine(cluster: &Cluster, writer: &Writer, target: &Target, options: Options) -> Engine {
    let (client, writer) = (cluster.client.clone(), writer.clone());
    match target {
        Target::Crd(definition) => Engine::new(&cluster.config, client, writer, &definition.name, options),
        Target::BuiltIn(resource) => {
            Engine::for_builtin(&cluster.config, client, writer, resource.clone(), options)
        }
    }
}

impl Target {
    fn name(&self) -> String {
        match self {
            Self::Crd(definition) => definition.name.clone(),
            Self::BuiltIn(resource) => builtin::resource_name(resource),
        }
    }
}

fn options(args: &MigrateArgs) -> Options {
    Options {
        settle: args.settle,
        api_servers: args.api_servers.clone(),
        ignored_api_servers: args.ignored_api_servers.clone(),
        verify: args.verify.into(),
        // Whoever names a CRD and asks for a full verification wants to know, whatever storedVersions says.
        always: !args.names.is_empty() && args.verify == VerifyArg::Full,
        // And a CRD that is named is swept at least once: a clean storedVersions is not believed.
        until_recorded: !args.names.is_empty() || args.require_droppable,
        patrol: args.patrol || args.require_droppable,
        etcd: args.etcd.to_options(),
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
