//! `exuvia storage migrate`: one bar per resource, one summary at the end.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use exuvia_storage::definition::Definition;
use exuvia_storage::references::Moved;
use exuvia_storage::servers::ApiServers;
use exuvia_storage::{
    EXCLUDE_ANNOTATION, End, Engine, Error, ManagedFields, MigrationReport, Options, Verify,
    built_in_resource, exclusion, is_in_groups, unsheddable,
};
use exuvia_sweep::Control;
use exuvia_write::Redacted;
use indicatif::MultiProgress;
use kube::api::ApiResource;
use tokio::sync::Semaphore;

use super::args::MigrateArgs;
use super::bars::show;
use super::cluster::Cluster;
use super::output::remark;
use super::plan::{definitions, no_crds};
use super::stop::{Stop, unless_stopped};
use super::summary::Summary;
use super::values::{NO_SETTLE, once};
use super::{moved, names, references, verdicts};

/// What is to be migrated.
enum Target {
    Crd(Box<Definition>),
    BuiltIn(ApiResource),
}

pub(super) async fn run(args: &MigrateArgs) -> anyhow::Result<ExitCode> {
    if args.settle.is_zero() && !args.dry_run {
        remark(&format!("warning: {NO_SETTLE}"));
    }
    let cluster = unless_stopped(Cluster::connect(&args.cluster)).await?;
    let targets = unless_stopped(targets(&cluster, args)).await?;
    refuse_versions(&targets, &args.shed)?;
    if let Some(note) = without_patrol(&targets, args) {
        remark(&note);
    }
    let crds: Vec<&Definition> = targets.iter().filter_map(Target::definition).collect();
    for note in unless_stopped(async { Ok(moved::notes(&cluster, &crds).await) }).await? {
        remark(&format!("note: {}", args.cluster.in_commands(&note)));
    }
    let control = Control::new();
    let stop = Stop::when_signalled(&control)?;
    let mut summaries = all(&cluster, &control, &targets, args).await;
    let fine = |end: &End| matches!(end, End::Migrated | End::Clean | End::WouldMigrate);
    if args.owner_references && !control.is_cancelled() {
        let ended_well = targets
            .iter()
            .zip(&mut summaries)
            .filter_map(|(target, summary)| match target {
                Target::Crd(definition) if fine(&summary.report.end) => Some((&**definition, summary)),
                _ => None,
            });
        references::run(&cluster, &cluster.writer, args, ended_well.collect()).await?;
    }
    if !args.dry_run {
        tokio::select! {
            biased;
            () = control.cancelled() => {}
            () = verdicts::run(&cluster, args, &mut summaries) => {}
        }
    }
    for summary in &mut summaries {
        summary.conclude(&args.cluster);
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
        false if stopped => ExitCode::from(stop.code().unwrap_or(130)),
        false => ExitCode::FAILURE,
    })
}

/// Looks at all of them first, so that they settle together, and then works on several at a time.
async fn all(cluster: &Cluster, control: &Control, targets: &[Target], args: &MigrateArgs) -> Vec<Summary> {
    let bars = MultiProgress::new();
    let slots = Arc::new(Semaphore::new(args.concurrent.into()));
    let servers = ApiServers::new(&cluster.config, &args.api_servers, &args.ignored_api_servers);
    let mut engines: Vec<Engine> = targets
        .iter()
        .map(|target| {
            let shown = show(target.name(), &bars);
            let engine = engine(cluster, target, options(args));
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
            // One failure must not hide what was done to the others.
            let report = report.unwrap_or_else(|error| MigrationReport {
                resource: target.name(),
                end: End::Stalled {
                    reason: "Error",
                    message: Redacted::ours(super::with_missing_right(
                        super::sentence(&error.into()),
                        super::STORAGE_RULES,
                    )), // without values
                },
                ..engine.report().clone()
            });
            let unread = args
                .etcd
                .etcd_endpoint
                .first()
                .filter(|_| report.end == End::Clean)
                .cloned();
            let keeps = args.managed_fields == ManagedFields::Keep || args.dry_run;
            let definition = match (engine.definition(), target) {
                (Some(definition), _) => Some(definition.clone()),
                (None, Target::Crd(definition)) => Some(Definition::clone(definition)),
                (None, Target::BuiltIn(_)) => None,
            };
            Summary {
                definition,
                owners: engine.survey().map(|survey| survey.owners.clone()),
                unread_etcd: unread,
                ..Summary::of(report, engine.record())
            }
            .unshed(keeps)
        }
    });
    futures::future::join_all(runs).await
}

fn engine(cluster: &Cluster, target: &Target, options: Options) -> Engine {
    let (client, writer) = (cluster.client.clone(), cluster.writer.clone());
    match target {
        Target::Crd(definition) => Engine::new(&cluster.config, client, writer, &definition.name, options),
        Target::BuiltIn(resource) => {
            Engine::for_built_in(&cluster.config, client, writer, resource.clone(), options)
        }
    }
}

impl Target {
    fn definition(&self) -> Option<&Definition> {
        match self {
            Self::Crd(definition) => Some(definition),
            Self::BuiltIn(_) => None,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Crd(definition) => definition.name.clone(),
            Self::BuiltIn(resource) => built_in_resource::resource_name(resource),
        }
    }
}

fn options(args: &MigrateArgs) -> Options {
    Options {
        settle: args.settle,
        api_servers: args.api_servers.clone(),
        ignored_api_servers: args.ignored_api_servers.clone(),
        verify: args.verify,
        // A full verification of a CRD that is named takes place whatever storedVersions says.
        always: !args.names.is_empty() && args.verify == Verify::Full,
        // A CRD that is named is swept at least once: a clean storedVersions is not a proof.
        until_recorded: !args.names.is_empty() || args.require_droppable,
        patrol: args.patrol || args.require_droppable,
        etcd: args.etcd.to_options(),
        managed_fields: args.managed_fields,
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
    if args.names.is_empty() {
        return chosen(&all, args);
    }
    let mut targets: Vec<Target> = Vec::new();
    for name in &args.names {
        match all.iter().find(|definition| definition.name == *name) {
            Some(definition) => {
                if let Some(reason) = exclusion(definition).filter(|_| !args.include_excluded) {
                    bail!(
                        "{name} is excluded from migration by the annotation {EXCLUDE_ANNOTATION} ({reason}): to migrate it \
                         anyway, add --include-excluded"
                    );
                }
                targets.push(Target::Crd(Box::new(definition.clone())));
            }
            None => targets.push(Target::BuiltIn(built_in(cluster, name, &all).await?)),
        }
    }
    let names: Vec<String> = targets.iter().map(Target::name).collect();
    once("resource", &names)?;
    Ok(targets)
}

/// The CRDs that `--all` or `--labelled` mean. Excluded ones are named.
fn chosen(all: &[Definition], args: &MigrateArgs) -> anyhow::Result<Vec<Target>> {
    let opt_in = args.opt_in.to_opt_in();
    let is_meant = |definition: &&Definition| {
        if args.labelled {
            opt_in.would_include(definition)
        } else {
            is_in_groups(&definition.group, &opt_in.groups)
        }
    };
    let meant: Vec<&Definition> = all.iter().filter(is_meant).collect();
    let of_groups = match opt_in.groups.as_slice() {
        [] => String::new(),
        groups => format!(" in group {}", groups.join(", ")),
    };
    if meant.is_empty() && args.labelled {
        let label = &opt_in.label;
        bail!("no CRD{of_groups} carries the label {label}: label one with `kubectl label crd NAME {label}`");
    } else if meant.is_empty() {
        bail!(no_crds(&opt_in.groups));
    }
    let (excluded, targets): (Vec<&Definition>, Vec<&Definition>) = meant
        .into_iter()
        .partition(|definition| exclusion(definition).is_some() && !args.include_excluded);
    let names: Vec<String> = excluded
        .iter()
        .map(|definition| {
            format!(
                "{} ({})",
                definition.name,
                exclusion(definition).unwrap_or_default()
            )
        })
        .collect();
    let names = names.join(", ");
    if targets.is_empty() {
        bail!(
            "every selected CRD is excluded by annotation: {names}; --include-excluded migrates them anyway"
        );
    }
    if !excluded.is_empty() {
        remark(&format!("left out, because excluded by annotation: {names}"));
    }
    let crd = |definition: &Definition| Target::Crd(Box::new(definition.clone()));
    Ok(targets.into_iter().map(crd).collect())
}

fn refuse_versions(targets: &[Target], shed: &[String]) -> anyhow::Result<()> {
    let crds: Vec<&Definition> = targets.iter().filter_map(Target::definition).collect();
    match unsheddable(&crds, shed) {
        Some(why) => bail!(why),
        None => Ok(()),
    }
}

/// What to say if a patrol is asked for that does not take place.
fn without_patrol(targets: &[Target], args: &MigrateArgs) -> Option<String> {
    let built_in = targets
        .iter()
        .filter(|target| matches!(target, Target::BuiltIn(_)));
    let names: Vec<String> = built_in.map(Target::name).collect();
    (args.patrol && !names.is_empty()).then(|| {
        format!(
            "note: --patrol has no effect on {}: a patrol looks for late writes at an old version of a CRD, and built-in \
             resources have no storedVersions to trim",
            names.join(", ")
        )
    })
}

/// A built-in resource by plural, or by `plural.group`. Never one that a CRD defines: that has versions, and must be given
/// by its full name.
async fn built_in(cluster: &Cluster, name: &str, crds: &[Definition]) -> anyhow::Result<ApiResource> {
    let is_plural = |crd: &&Definition| crd.plural == name || crd.kind == name;
    let meant: Vec<&str> = crds
        .iter()
        .filter(is_plural)
        .map(|crd| crd.name.as_str())
        .collect();
    if !meant.is_empty() {
        bail!(
            "invalid resource {name:?}: a CRD must be given by its full name; did you mean {}?",
            meant.join(" or ")
        );
    }
    let is_crd =
        |group: &str, plural: &str| crds.iter().any(|crd| crd.group == group && crd.plural == plural);
    let found = built_in_resource::find(&cluster.client, name, is_crd).await;
    match (found, names::meant(name, crds)) {
        (Err(Error::NotFound { .. }), Some(meant)) => {
            bail!("resource {name:?} not found: did you mean {meant}?")
        }
        (Err(Error::NotFound { .. }), None) => bail!(
            "resource {name:?} not found: the cluster has no CRD of that name (`exuvia plan` shows all), and no built-in resource \
             (`kubectl api-resources` shows all)"
        ),
        (found, _) => Ok(found?),
    }
}
