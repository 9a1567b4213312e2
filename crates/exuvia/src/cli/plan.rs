//! `exuvia plan` and `exuvia storage status`: every CRD of one or several clusters, what it still stores, what to do next.

mod advice;
mod args;
mod blockers;
mod line;
mod ownership;
mod rights;
mod round;
mod watch;

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Context, bail};
use exuvia_api::StorageMigration;
use exuvia_storage::definition::Definition;
use exuvia_storage::droppable::storage_migrations;
use exuvia_sweep::Pages;
use exuvia_write::RetryPolicy;
use futures::{StreamExt, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, CustomResourceExt, ResourceExt};
use tokio::sync::OnceCell;

pub use self::args::{PlanArgs, PlanFormat};
use self::blockers::ToldByMigration;
use self::line::{Line, Shown};
use self::rights::{Wanted, explained};
pub(super) use self::round::note_on_groups;
use self::round::{Round, columns, notes_on_rights};
use super::args::{ClusterArgs, StatusArgs};
use super::bars::{CrdProgress, crd_progress};
use super::cluster::{Cluster, contexts};
use super::output::{Format, remark};
use super::table::{Table, paragraph, screen_width};

/// CRDs of one cluster that are looked at at once.
const AT_ONCE: usize = 8;

/// A cluster to be looked at.
struct Target {
    /// The context, if one was chosen.
    context: Option<String>,
    args: ClusterArgs,
    connected: OnceCell<Cluster>,
}

impl PlanArgs {
    /// Whether the metadata of all objects is looked at.
    fn looks(&self) -> bool {
        self.ownership || self.output == PlanFormat::Wide
    }

    /// Whether a table says which cluster a row is of.
    fn several(&self) -> bool {
        self.all_contexts || self.contexts.len() > 1
    }
}

pub(super) async fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let targets = targets(args).await?;
    if args.watch {
        return watch::run(&targets, args).await;
    }
    let round = Round::look(&targets, args, args.several(), &crd_progress()).await?;
    let screen = screen_width();
    args.output
        .format()
        .print(&round.answers(), || round.text(args, screen))?;
    tell(&round.notes);
    Ok(round.exit_code())
}

/// Notes go to standard error: in a pipe, each line of standard output is a CRD.
fn tell(notes: &[String]) {
    let screen = screen_width().filter(|_| std::io::stderr().is_terminal());
    let text = noted(notes, screen);
    if !text.is_empty() {
        remark(text.trim_end());
    }
}

fn noted(notes: &[String], screen: Option<usize>) -> String {
    let notes = notes
        .iter()
        .map(|note| paragraph(&format!("note: {note}"), screen));
    notes.collect()
}

/// The clusters that were asked for, each once.
async fn targets(args: &PlanArgs) -> anyhow::Result<Vec<Target>> {
    let mut chosen: Vec<Option<String>> = Vec::new();
    let named = if args.all_contexts {
        contexts(args.kubeconfig.as_deref()).await?
    } else {
        args.contexts.clone()
    };
    for name in named.into_iter().map(Some) {
        if !chosen.contains(&name) {
            chosen.push(name);
        }
    }
    if chosen.is_empty() {
        if args.all_contexts {
            bail!("--all-contexts needs a context, but the kubeconfig has none: give another --kubeconfig");
        }
        chosen.push(None);
    }
    let target = |context: Option<String>| Target {
        args: ClusterArgs {
            kubeconfig: args.kubeconfig.clone(),
            context: context.clone(),
            output: Format::default(),
            show_values: args.show_values,
        },
        context,
        connected: OnceCell::new(),
    };
    Ok(chosen.into_iter().map(target).collect())
}

/// Why a selection of CRDs is empty.
pub(super) fn no_crds(groups: &[String]) -> String {
    match groups {
        [] => "this cluster has no CRDs".to_owned(),
        groups => format!("this cluster has no CRDs in group {}", groups.join(", ")),
    }
}

pub(super) async fn status(args: &StatusArgs) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&args.cluster).await?;
    let wanted = Wanted {
        names: &args.names,
        migrations: true,
        ..Wanted::default()
    };
    let all = crds_for(&cluster.client, &wanted).await?;
    if let Some(unknown) = args
        .names
        .iter()
        .find(|name| all.iter().all(|crd| crd.name_any() != **name))
    {
        bail!(super::names::no_such_crd(unknown, &all));
    }
    let (migrations, mut notes) = migrations_among(&cluster.client, &all, true).await;
    let chosen = all
        .into_iter()
        .filter(|crd| args.names.is_empty() || args.names.contains(&crd.name_any()))
        .collect();
    let lines = lines(&cluster.client, chosen, true, &migrations, &crd_progress()).await;
    notes.extend(notes_on_rights(&lines));
    args.cluster.output.print(&lines, || {
        if lines.is_empty() {
            return no_crds(&[]) + "\n";
        }
        let shown = Shown::default();
        let table = Table {
            columns: columns(shown),
            rows: lines.iter().map(|line| line.row(shown)).collect(),
        };
        table.render(screen_width())
    })?;
    tell(&notes);
    Ok(())
}

/// All CRDs, by name.
pub(super) async fn crds(cluster: &Cluster) -> anyhow::Result<Vec<CustomResourceDefinition>> {
    list(&cluster.client).await.context("the CRDs cannot be listed")
}

/// One CRD. The others are listed only to say which one may be meant.
pub(super) async fn crd(cluster: &Cluster, name: &str) -> anyhow::Result<CustomResourceDefinition> {
    // A name that no CRD can have might ask for another path.
    if name.parse::<exuvia_storage::rbac::Crd>().is_ok() {
        let api: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
        let found = RetryPolicy::default().read(|| api.get_opt(name)).await;
        if let Some(crd) = found.with_context(|| format!("the CRD {name} cannot be read"))? {
            return Ok(crd);
        }
    }
    bail!(super::names::no_such_crd(name, &crds(cluster).await?))
}

/// All CRDs, by name, as far as migration is concerned.
pub(super) async fn definitions(cluster: &Cluster) -> anyhow::Result<Vec<Definition>> {
    Ok(crds(cluster).await?.iter().map(Definition::read).collect())
}

/// All CRDs, for a caller who lists their objects next: if a right is missing, all that will be needed are named.
async fn crds_for(client: &Client, wanted: &Wanted<'_>) -> anyhow::Result<Vec<CustomResourceDefinition>> {
    match list(client).await {
        Ok(crds) => Ok(crds),
        Err(error) => Err(explained(client, error, wanted).await),
    }
}

async fn list(client: &Client) -> Result<Vec<CustomResourceDefinition>, kube::Error> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let crds: Vec<_> = Pages::of(&api).retry(RetryPolicy::default()).collect().await?;
    tracing::debug!(crds = crds.len(), "listed CRDs");
    Ok(crds)
}

/// What `StorageMigration`s say, by CRD, where they are installed and wanted; and a note if they cannot be read.
async fn migrations_among(
    client: &Client,
    crds: &[CustomResourceDefinition],
    wanted: bool,
) -> (Vec<(String, ToldByMigration)>, Vec<String>) {
    let installed = || {
        crds.iter()
            .any(|crd| crd.name_any() == StorageMigration::crd_name())
    };
    if !wanted || !installed() {
        return (Vec::new(), Vec::new());
    }
    match storage_migrations(client).await {
        Ok(all) => {
            let told = |migration: &StorageMigration| {
                (migration.spec.resource.clone(), ToldByMigration::read(migration))
            };
            (all.iter().map(told).collect(), Vec::new())
        }
        Err(error) => {
            let said = super::sentence(&error.into());
            let help = exuvia_storage::MissingRule::named_in(&said)
                .map(|rule| format!("; add to the role: {rule}"))
                .unwrap_or_default();
            let note = format!("the blockers that StorageMigrations report are not known: {said}{help}");
            (Vec::new(), vec![note])
        }
    }
}

/// A line for each CRD, in their order.
async fn lines(
    client: &Client,
    crds: Vec<CustomResourceDefinition>,
    look: bool,
    migrations: &[(String, ToldByMigration)],
    progress: &CrdProgress,
) -> Vec<Line> {
    progress.found(crds.len());
    let lines = stream::iter(crds).map(|crd| async move {
        let of_crd = ToldByMigration::of_crd(&crd.name_any(), migrations);
        let line = Line::read(client, &crd, look, of_crd).await;
        progress.done();
        line
    });
    lines.buffered(AT_ONCE).collect().await
}
