//! `exuvia storage migrate`: one bar per resource, one summary at the end.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, bail};
use exuvia_storage::definition::Definition;
use exuvia_storage::{
    Activity, End, Engine, Options, Report, Verified, droppable, is_in_groups, migrate_builtin,
};
use exuvia_sweep::{Control, Pressure, Progress};
use indicatif::{ProgressBar, ProgressStyle};
use kube::api::ApiResource;
use kube::discovery::Discovery;
use serde::Serialize;
use tokio::sync::watch;

use super::args::MigrateArgs;
use super::cluster::Cluster;
use super::plan::definitions;

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
    pub(super) droppable_versions: Vec<String>,
}

pub(super) async fn run(args: &MigrateArgs) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::connect(&args.cluster).await?;
    let targets = targets(&cluster, args).await?;
    if args.dry_run {
        print_plan(&targets);
        return Ok(ExitCode::SUCCESS);
    }
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
            eprintln!("stopping: objects in work are finished, nothing is trimmed");
            on_interrupt.cancel();
        }
    });
    let mut summaries = Vec::new();
    for target in targets {
        let report = match &target {
            Target::Crd(definition) => {
                Engine::new(
                    &cluster.config,
                    cluster.client.clone(),
                    writer.clone(),
                    &definition.name,
                    options(args),
                )
                .await?
                .controlled_by(control.clone())
                .watched_by(show(definition.name.clone()))
                .run()
                .await?
            }
            Target::BuiltIn(resource) => {
                let shown = show(resource.plural.clone());
                migrate_builtin(
                    &cluster.client,
                    &writer,
                    resource,
                    &options(args),
                    &control,
                    &shown,
                )
                .await?
            }
        };
        let droppable_versions = match (&target, &report.end) {
            (Target::Crd(definition), End::Migrated | End::Clean) => {
                let mut definition = definition.clone();
                definition.crd.stored.clone_from(&report.stored_after);
                droppable::droppable(&definition, &report.owners)
            }
            _ => Vec::new(),
        };
        summaries.push(Summary {
            report,
            droppable_versions,
        });
    }
    args.cluster
        .output
        .print(&summaries, || summaries.iter().for_each(print_summary))?;
    let all_well = summaries
        .iter()
        .all(|s| matches!(s.report.end, End::Migrated | End::Clean));
    Ok(if all_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
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
    let all = definitions(cluster)
        .await
        .context("the cluster's CRDs cannot be listed")?;
    let opt_in = args.opt_in.to_opt_in();
    if args.names.is_empty() {
        let wanted = |definition: &Definition| {
            if args.labelled {
                opt_in.includes(definition)
            } else {
                is_in_groups(&definition.group, &opt_in.groups)
            }
        };
        return Ok(all
            .into_iter()
            .filter(wanted)
            .map(|d| Target::Crd(Box::new(d)))
            .collect());
    }
    let mut targets = Vec::new();
    for name in &args.names {
        match all.iter().find(|definition| definition.name == *name) {
            Some(definition) => targets.push(Target::Crd(Box::new(definition.clone()))),
            None => targets.push(Target::BuiltIn(built_in(cluster, name).await?)),
        }
    }
    Ok(targets)
}

/// A built-in resource by plural, or by `plural.group`.
async fn built_in(cluster: &Cluster, name: &str) -> anyhow::Result<ApiResource> {
    let discovery = Discovery::new(cluster.client.clone())
        .run()
        .await
        .context("discovery failed")?;
    let (plural, wanted) = name
        .split_once('.')
        .map_or((name, None), |(plural, group)| (plural, Some(group)));
    for group in discovery.groups() {
        if wanted.is_some_and(|wanted| wanted != group.name()) {
            continue;
        }
        for (resource, _) in group.recommended_resources() {
            if resource.plural == plural {
                return Ok(resource);
            }
        }
    }
    bail!(
        "there is no CRD or built-in resource named {name}: CRDs are named <plural>.<group>, see `exuvia plan`"
    )
}

fn print_plan(targets: &[Target]) {
    for target in targets {
        match target {
            Target::Crd(definition) => {
                let old = definition.crd.old_versions();
                if old.is_empty() {
                    println!(
                        "{}: storedVersions is clean; managedFields would be looked at",
                        definition.name
                    );
                } else {
                    println!(
                        "{}: would rewrite its objects at {}, verify that, and trim {}",
                        definition.name,
                        definition.crd.storage,
                        old.join(", ")
                    );
                }
            }
            Target::BuiltIn(resource) => {
                println!("{}: would rewrite its objects and verify that", resource.plural);
            }
        }
    }
}

/// Bars on a terminal, nothing elsewhere: the summary tells all.
pub(super) fn show(name: String) -> impl Fn(Activity) + Send + Sync + 'static {
    let bar: Mutex<Option<ProgressBar>> = Mutex::new(None);
    move |activity| {
        if !std::io::stderr().is_terminal() {
            return;
        }
        let mut bar = bar.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Activity::Settling(left) = &activity
            && let Some(shown) = bar.as_ref().filter(|bar| bar.length().is_none())
        {
            shown.set_message(settling(&name, *left));
            return;
        }
        if let Some(last) = bar.take() {
            last.finish_and_clear();
        }
        *bar = Some(match activity {
            Activity::Preflight => spinner(format!("{name}: looking at objects, nothing is written yet")),
            Activity::Settling(left) => spinner(settling(&name, left)),
            Activity::Trimming => spinner(format!("{name}: trimming storedVersions")),
            Activity::Rewriting(progress) => follow(&name, "rewriting", progress),
            Activity::Verifying(progress) => follow(&name, "verifying", progress),
        });
    }
}

fn settling(name: &str, left: Duration) -> String {
    format!(
        "{name}: waiting {:.0} s more, until no API server can be behind",
        left.as_secs_f64().ceil()
    )
}

fn spinner(message: String) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(message);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

fn follow(name: &str, what: &str, mut progress: watch::Receiver<Progress>) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} {prefix}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ");
    let bar = ProgressBar::new(0)
        .with_style(style)
        .with_message(format!("{name}: {what}"));
    let shown = bar.clone();
    tokio::spawn(async move {
        while progress.changed().await.is_ok() {
            let now = progress.borrow_and_update().clone();
            shown.set_length(now.total.unwrap_or_default().max(now.done()));
            shown.set_position(now.done());
            let eta = now
                .eta
                .map(|eta| format!(", {} s left", eta.as_secs()))
                .unwrap_or_default();
            shown.set_prefix(format!("{:.0}/s, {} at once{eta}", now.rate, now.concurrency));
        }
    });
    bar
}

pub(super) fn print_summary(summary: &Summary) {
    let Summary {
        report,
        droppable_versions,
    } = summary;
    let name = &report.resource;
    match &report.end {
        End::Clean => println!("{name}: clean, nothing was written"),
        End::Gone => println!("{name}: the CRD is gone"),
        End::Cancelled | End::Unfinished => println!("{name}: stopped, nothing was trimmed"),
        End::Stalled { reason, message } => println!("{name}: stalled ({reason}): {message}"),
        End::Migrated => println!("{name}: migrated"),
    }
    let tally = report.rewrite;
    if tally.done() > 0 {
        println!(
            "  {} rewritten, {} current, {} gone, {} written meanwhile, {} in conflict, {} failed",
            tally.rewritten, tally.current, tally.gone, tally.skipped, tally.conflict, tally.failed
        );
    }
    if let Some(verified) = report.verified {
        let how = match verified {
            Verified::Proof => {
                "each object is proven by its resourceVersion, the rest and a sample by a patch"
            }
            Verified::Full => "every object was patched once more and came back unchanged",
        };
        println!("  verified: {how}");
    }
    if report.mutated > 0 {
        println!(
            "  {} objects change with every write: a webhook stamps them",
            report.mutated
        );
    }
    for failure in report.failures.first.iter().take(10) {
        let namespace = failure
            .namespace
            .as_ref()
            .map(|n| format!("{n}/"))
            .unwrap_or_default();
        println!(
            "  not done: {namespace}{} [{}] {}",
            failure.name, failure.class, failure.message
        );
    }
    let more = report.failures.count().saturating_sub(10);
    if more > 0 {
        println!("  and {more} more; -o json shows up to 100");
    }
    if report.end == End::Migrated
        && !report.stored_before.is_empty()
        && report.stored_before != report.stored_after
    {
        println!(
            "  storedVersions: {} -> {}",
            report.stored_before.join(", "),
            report.stored_after.join(", ")
        );
    }
    if !droppable_versions.is_empty() {
        println!("  may be dropped from the CRD: {}", droppable_versions.join(", "));
    }
}
