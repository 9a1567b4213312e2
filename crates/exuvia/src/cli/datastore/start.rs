//! `exuvia datastore start`: creates a `DatastoreMigration`, if it is valid.

use std::process::ExitCode;

use anyhow::bail;
use exuvia_api::{DatastoreMigration, DatastorePhase};
use kube::ResourceExt;

use super::args::{StartArgs, connection};
use super::{lease, manifest, migrations, watch};
use crate::cli::cluster::Cluster;
use crate::cli::output::say;
use crate::cli::stop::unless_stopped;

pub(super) async fn run(args: &StartArgs) -> anyhow::Result<ExitCode> {
    let (mut migration, _) = manifest::only(&args.filename)?;
    migration.status = None;
    let given = connection(args.kubeconfig.as_ref(), args.context.as_ref());
    let cluster = unless_stopped(Cluster::connect(&given)).await?;
    let name = migration.name_any();
    create(&cluster, &migration).await?;
    say(&given.in_commands(&format!(
        "{name} is created; if something stands in its way, it waits with nothing frozen; `exuvia datastore status {name} --watch` \
         shows how far it is and what it waits for, `exuvia datastore abort {name}` undoes it\n"
    )))?;
    if args.watch {
        return watch::one(&cluster, &given, &args.lease, &name, args.interval).await;
    }
    lease::remark_if_nobody_runs(&cluster, &args.lease, &migration).await;
    Ok(ExitCode::SUCCESS)
}

async fn create(cluster: &Cluster, migration: &DatastoreMigration) -> anyhow::Result<()> {
    let name = migration.name_any();
    match cluster
        .writer
        .strict()
        .create(&migrations::api(cluster), migration)
        .await
    {
        Ok(_) => Ok(()),
        Err(error) if error.is_already_exists() => {
            let phase = migrations::get(cluster, &name)
                .await
                .map(|live| migrations::phase(&live));
            // After the commit nothing is undone, and `abort` alone refuses.
            let is_after = matches!(phase, Ok(DatastorePhase::Converged | DatastorePhase::Complete));
            let cleanup = if is_after { " --cleanup" } else { "" };
            let phase = phase
                .map(|phase| format!(", in phase {}", phase.as_str()))
                .unwrap_or_default();
            bail!(
                "there is a DatastoreMigration {name} already{phase}: give another name, or end it first with `exuvia \
                 datastore abort {name}{cleanup}`"
            )
        }
        Err(error) if error.is_unserved() => bail!(migrations::NOT_INSTALLED),
        Err(error) => Err(error.into()),
    }
}
