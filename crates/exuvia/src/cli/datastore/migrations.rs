//! `DatastoreMigration`s of the cluster, read for a command; and what to say if there are none.

use anyhow::{Context, anyhow, bail};
use exuvia_api::{DatastoreMigration, DatastorePhase};
use exuvia_datastore::Kinds;
use exuvia_datastore::mapping::Mappings;
use exuvia_datastore::plan::Look;
use exuvia_datastore::route::{Observed, Route};
use exuvia_runtime::servers::ApiServers;
use exuvia_sweep::{Control, Pages};
use exuvia_usage::nearest;
use exuvia_write::RetryPolicy;
use kube::{Api, ResourceExt};

use crate::cli::cluster::Cluster;

/// What to say where the CRD is missing.
pub(super) const NOT_INSTALLED: &str = "this cluster has no DatastoreMigrations: install Exuvia's CRDs (`kubectl apply \
                                        --server-side -f deploy/crds.yaml`, or the chart exuvia-crds)";

pub(super) fn api(cluster: &Cluster) -> Api<DatastoreMigration> {
    Api::all(cluster.client.clone())
}

/// All of them, by name.
pub(super) async fn all(cluster: &Cluster) -> anyhow::Result<Vec<DatastoreMigration>> {
    let listed = Pages::of(&api(cluster))
        .retry(RetryPolicy::default())
        .collect()
        .await;
    match listed {
        Ok(migrations) => Ok(migrations),
        Err(kube::Error::Api(status)) if status.code == 404 => bail!(NOT_INSTALLED),
        Err(error) => Err(error).context("the DatastoreMigrations cannot be listed"),
    }
}

/// One of them, if it exists.
pub(super) async fn find(cluster: &Cluster, name: &str) -> anyhow::Result<Option<DatastoreMigration>> {
    let api = api(cluster);
    match RetryPolicy::default().read(|| api.get_opt(name)).await {
        // A 404 that names no object: the kind is not served.
        Err(kube::Error::Api(status)) if status.code == 404 => bail!(NOT_INSTALLED),
        found => found.with_context(|| format!("the DatastoreMigration {name} cannot be read")),
    }
}

/// One of them; otherwise which one may be meant.
pub(super) async fn get(cluster: &Cluster, name: &str) -> anyhow::Result<DatastoreMigration> {
    match find(cluster, name).await? {
        Some(migration) => Ok(migration),
        None => Err(not_found(cluster, name).await),
    }
}

async fn not_found(cluster: &Cluster, name: &str) -> anyhow::Error {
    let all = match all(cluster).await {
        Ok(all) => all,
        Err(error) => return error,
    };
    let names: Vec<String> = all.iter().map(ResourceExt::name_any).collect();
    let meant = nearest(name, names.iter().map(String::as_str));
    match (meant.as_slice(), names.as_slice()) {
        (_, []) => anyhow!("DatastoreMigration {name:?} not found: this cluster has none"),
        ([], _) => {
            anyhow!("DatastoreMigration {name:?} not found: `exuvia datastore status` shows all of them")
        }
        (meant, _) => anyhow!(
            "DatastoreMigration {name:?} not found: did you mean {}?",
            meant.join(" or ")
        ),
    }
}

pub(super) fn phase(migration: &DatastoreMigration) -> DatastorePhase {
    let phase = migration.status.as_ref().and_then(|status| status.phase);
    phase.unwrap_or_default()
}

/// The mappings of a migration of the cluster.
pub(super) fn mappings(migration: &DatastoreMigration) -> anyhow::Result<Mappings> {
    Mappings::compile(&migration.spec).map_err(|invalid| {
        let first = invalid.first().map(ToString::to_string).unwrap_or_default();
        anyhow!("the spec of {} is not valid: {first}", migration.name_any())
    })
}

/// The kinds of a migration, all of which must be there.
pub(super) async fn kinds(cluster: &Cluster, migration: &DatastoreMigration) -> anyhow::Result<Kinds> {
    let read = Kinds::read(&cluster.client, &migration.spec).await;
    let (kinds, missing) = read.context("the CRDs cannot be listed")?;
    match missing.first() {
        None => Ok(kinds),
        Some(missing) => bail!("{}", missing.message),
    }
}

/// What looks at the objects of a migration.
pub(super) async fn look(cluster: &Cluster, migration: &DatastoreMigration) -> anyhow::Result<Look> {
    let (kinds, mappings) = (kinds(cluster, migration).await?, mappings(migration)?);
    let client = cluster.client.clone();
    Ok(Look::new(
        client,
        &cluster.writer,
        kinds,
        mappings,
        migration,
        &Control::new(),
    ))
}

/// The `APIService` by which another API server answers for the targets now, so that they cannot be looked at.
pub(super) async fn hidden_by(
    cluster: &Cluster,
    migration: &DatastoreMigration,
) -> anyhow::Result<Option<String>> {
    let name = &migration.spec.cutover.api_service;
    if name.is_empty() {
        return Ok(None);
    }
    let servers = ApiServers::new(&cluster.config, &[], &[]);
    let route = Route::new(cluster.client.clone(), cluster.writer.clone(), servers, name)?;
    let observed = route.observe().await?;
    Ok(matches!(observed, Observed::Backend(_)).then(|| name.clone()))
}
