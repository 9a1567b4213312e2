//! `exuvia storage migrate`: one bar per resource, one summary at the end.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use exuvia_storage::definition::Definition;
use exuvia_storage::record::Record;
use exuvia_storage::references::Moved;
use exuvia_storage::servers::ApiServers;
use exuvia_storage::{End, Engine, Obstacle, Options, Report, Verified, builtin, is_in_groups};
use exuvia_sweep::{Control, Pressure};
use exuvia_write::Writer;
use indicatif::MultiProgress;
use kube::api::ApiResource;
use serde::Serialize;
use tokio::sync::Semaphore;

use super::args::{MigrateArgs, VerifyArg};
use super::bars::show;
use super::cluster::Cluster;
use super::droppable::versions;
use super::output::{count, remark};
use super::plan::{definitions, no_crds};
use super::references;
use super::values::NO_SETTLE;

/// So many paths of each class are shown to people; `-o json` has them all.
const LOSSES_SHOWN: usize = 20;

/// What is to be migrated.
enum Target {
    Crd(Box<Definition>),
    BuiltIn(ApiResource),
}

/// A report with what there is to do next.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    #[serde(flatten)]
    pub(super) report: Report,
    /// What is on record in the CRD about its bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) record: Option<Record>,
    /// Commands that answer the next question.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) next: Vec<String>,
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
    let mut summaries = all(&cluster, &writer, &control, &targets, args).await;
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
    let runs = engines.iter_mut().zip(targets).map(|(engine, target)| {
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
            Summary::of(report, engine.record())
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
        patrol: args.patrol,
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

impl Summary {
    pub(super) fn of(report: Report, record: Option<&Record>) -> Self {
        let name = &report.resource;
        let is_old = |version: &&String| **version != report.storage_version;
        let old = report.stored_before.iter().filter(is_old);
        let next = match (&report.end, record) {
            (End::Clean, None) if !report.storage_version.is_empty() => {
                vec![format!("exuvia storage migrate {name} --verify full --patrol")]
            }
            (End::Migrated | End::Clean, Some(record)) => {
                let patrol = format!("exuvia storage migrate {name} --patrol");
                let ask = old.map(|version| format!("exuvia storage droppable {name} {version}"));
                (!record.patrolled).then_some(patrol).into_iter().chain(ask).collect()
            }
            _ => Vec::new(),
        };
        Self {
            next,
            record: record.cloned(),
            report,
            owner_references: None,
        }
    }

    /// For people: one line on how it ended, and what there is to know below it.
    pub(super) fn text(&self) -> String {
        let Self {
            report,
            record,
            next,
            owner_references,
        } = self;
        let mut text = format!("{}: ", report.resource);
        text.push_str(&match &report.end {
            End::Clean => match record {
                Some(record) => format!(
                    "clean: every object is stored at {}, as a sweep has proven; nothing was written\n",
                    record.storage_version
                ),
                None => "storedVersions is clean, but anybody can trim it: not proven; nothing was written\n".to_owned(),
            },
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
        if let Some(losses) = &report.losses {
            // What holds it is in the sentence above already, unless that had to be cut.
            let is_said = matches!(&report.obstacle, Some(Obstacle::Pruning(held)) if held.fits_a_sentence());
            let lines = if is_said {
                losses.harmless()
            } else {
                losses.clone()
            }
            .lines(LOSSES_SHOWN);
            lines.into_iter().for_each(&mut say);
        }
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
        if report.explained > 0 {
            say(format!(
                "{} written at another version meanwhile, changed once more and proven since",
                count(report.explained, "object")
            ));
        }
        if report.stored_otherwise > 0 {
            say(format!(
                "{} stored at another version although storedVersions did not say so: somebody trimmed it too early",
                count(report.stored_otherwise, "object")
            ));
        }
        if report.lost_owners > 0 {
            let example = report.lost_owners_example.as_deref().unwrap_or_default();
            say(format!(
                "warning: {} lost owners of fields in the rewrite, such as {example}: compare managedFields",
                count(report.lost_owners, "object")
            ));
        }
        if report.put_back {
            say("a patrol found objects that had changed without an explanation: what was trimmed was listed again and proven once more".to_owned());
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
        if report.audit.is_some() && report.end == End::Migrated {
            say("etcd itself was read right before the trim, and holds nothing old".to_owned());
        }
        if report.end == End::Migrated && !report.storage_version.is_empty() {
            say(match record {
                Some(record) if record.patrolled => "patrolled: nothing was written behind it".to_owned(),
                _ => "not patrolled yet: an API server that was behind may still have written".to_owned(),
            });
        }
        owner_references
            .iter()
            .flat_map(references::lines)
            .for_each(&mut say);
        for command in next {
            say(format!("next: {command}"));
        }
        text
    }
}
