//! What a migration's spec becomes in this cluster: compiled mappings, kinds, policies, routes.

use exuvia_api::{Blocker, DatastoreMigration, MigrationMode, datastore_reason as reason};
use exuvia_runtime::servers::ApiServers;
use exuvia_sweep::Control;
use exuvia_write::Writer;
use kube::Client;

use crate::Error;
use crate::copy::{FIELD_MANAGER, Mover};
use crate::freeze::{self, Freeze, FrozenKind};
use crate::kinds::Kinds;
use crate::mapping::Mappings;
use crate::route::{Clones, Route};

/// Everything that works on one generation of a migration.
pub(crate) struct Work {
    pub(crate) generation: Option<i64>,
    pub(crate) mover: Mover,
    pub(crate) freeze: Freeze,
    pub(crate) route: Option<Route>,
    pub(crate) clones: Clones,
    /// Kinds that are not there as the spec wants them.
    pub(crate) missing: Vec<Blocker>,
}

impl Work {
    /// Reads the spec and the cluster; otherwise why the spec cannot be carried out.
    pub(crate) async fn new(
        client: &Client,
        writer: &Writer,
        servers: &ApiServers,
        control: &Control,
        migration: &DatastoreMigration,
    ) -> Result<Result<Self, Vec<Blocker>>, Error> {
        let mappings = match Mappings::compile(&migration.spec) {
            Ok(mappings) => mappings,
            Err(invalid) => {
                return Ok(Err(invalid
                    .iter()
                    .map(|why| invalid_spec(why.to_string()))
                    .collect()));
            }
        };
        let (kinds, missing) = Kinds::read(client, &migration.spec).await?;
        let writer = writer.acting_as(FIELD_MANAGER);
        let username = freeze::whoami(client).await?.username;
        let scope = scope(migration, &kinds, username);
        let api_service = migration.spec.cutover.api_service.as_str();
        let route = if api_service.is_empty() {
            None
        } else {
            match Route::new(client.clone(), writer.clone(), servers.clone(), api_service) {
                Ok(route) => Some(route),
                Err(error) => return Ok(Err(vec![invalid_spec(error.to_string())])),
            }
        };
        let uid = migration.metadata.uid.as_deref().unwrap_or_default();
        Ok(Ok(Self {
            generation: migration.metadata.generation,
            freeze: Freeze::new(client.clone(), &writer, servers.clone(), scope),
            clones: Clones::new(client.clone(), writer.clone(), servers.clone(), uid),
            route,
            mover: Mover::new(client.clone(), &writer, kinds, mappings, migration, control),
            missing,
        }))
    }
}

fn invalid_spec(message: String) -> Blocker {
    Blocker {
        reason: reason::INVALID_SPEC.to_owned(),
        message,
        ..Blocker::default()
    }
}

/// What is frozen: each source kind once for each selector, and the targets.
fn scope(migration: &DatastoreMigration, kinds: &Kinds, username: String) -> freeze::Scope {
    let mut source: Vec<FrozenKind> = Vec::new();
    for moved in &kinds.moved {
        let mapping = &migration.spec.mappings[moved.mapping];
        let kind = FrozenKind {
            group: moved.source.resource.group.clone(),
            version: moved.source.resource.version.clone(),
            kind: moved.source.resource.kind.clone(),
            plural: moved.source.resource.plural.clone(),
            namespaced: moved.source.namespaced,
            selector: mapping.from.selector.clone(),
        };
        if !source.contains(&kind) {
            source.push(kind);
        }
    }
    let targets = kinds.targets().into_iter();
    let target: Vec<(String, String)> = targets
        .map(|kind| (kind.resource.group.clone(), kind.resource.plural.clone()))
        .collect();
    let mut moved_groups: Vec<String> = source.iter().map(|kind| kind.group.clone()).collect();
    moved_groups.extend(target.iter().map(|(group, _)| group.clone()));
    moved_groups.sort();
    moved_groups.dedup();
    freeze::Scope {
        uid: migration.metadata.uid.clone().unwrap_or_default(),
        migration: migration.metadata.name.clone().unwrap_or_default(),
        source,
        target,
        has_early_targets: migration.spec.mode == MigrationMode::SyncThenFreeze,
        moved_groups,
        api_service: Some(migration.spec.cutover.api_service.clone()).filter(|name| !name.is_empty()),
        username,
    }
}
