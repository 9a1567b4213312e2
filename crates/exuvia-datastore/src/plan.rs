//! Looks at what a migration would do or has done, for people who ask. Nothing is stored; every write is a dry run.

mod differences;
mod sides;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use exuvia_api::{Blocker, DatastoreMigration, datastore_reason as reason};
use exuvia_runtime::servers::ApiServers;
use exuvia_sweep::{Control, Sweep, Verdict};
use exuvia_write::{ErrorClass, Name, Redacted, Writer, redacted};
use kube::Client;
use kube::api::{DynamicObject, ObjectMeta};

pub use self::differences::{Difference, Differing};
pub use self::sides::{Side, Unlike};
use crate::Error;
use crate::compare::Comparison;
use crate::copy::{FIELD_MANAGER, Findings, Problem, all_looked_at};
use crate::kinds::{Kind, Kinds};
use crate::lock::lock;
use crate::mapping::{Converted, Mappings};

/// Looks at the objects of one migration.
pub struct Look {
    client: Client,
    writer: Writer,
    kinds: Kinds,
    mappings: Mappings,
    comparison: Comparison,
    migration: DatastoreMigration,
    control: Control,
}

impl std::fmt::Debug for Look {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Look")
            .field("mappings", &self.mappings)
            .finish_non_exhaustive()
    }
}

impl Look {
    /// At the objects that a migration's spec chooses. `mappings` are those of its spec.
    pub fn new(
        client: Client,
        writer: &Writer,
        kinds: Kinds,
        mappings: Mappings,
        migration: &DatastoreMigration,
        control: &Control,
    ) -> Self {
        Self {
            client,
            writer: writer.acting_as(FIELD_MANAGER).strict(),
            kinds,
            mappings,
            comparison: Comparison::new(&migration.spec.conflicts),
            migration: migration.clone(),
            control: control.clone(),
        }
    }

    /// Converts every object, and tries it nowhere: what can be known while another API server answers for the targets.
    ///
    /// # Errors
    ///
    /// Not every object could be looked at.
    pub async fn preview(&self) -> Result<Findings, Error> {
        let found = Mutex::new(Findings::new(&self.kinds));
        let places: Mutex<HashSet<String>> = Mutex::default();
        for kind in self.kinds.sources() {
            self.each(kind, async |source: DynamicObject| {
                match self.movable(&source).await {
                    Ok(converted) if converted.outputs.is_empty() => lock(&found).unmoved += 1,
                    Ok(converted) => self.count(kind, &source, &converted, &found, &places),
                    Err(problem) => lock(&found).block(kind, &source.metadata, problem),
                }
                Verdict::unchanged()
            })
            .await?;
        }
        Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn count(
        &self,
        kind: &Kind,
        source: &DynamicObject,
        converted: &Converted,
        found: &Mutex<Findings>,
        places: &Mutex<HashSet<String>>,
    ) {
        for output in &converted.outputs {
            let mapping = &self.migration.spec.mappings[output.mapping].name;
            lock(found).count(&kind.resource.kind, mapping, |progress| progress.total += 1);
            if !lock(places).insert(format!("{:?}", output.key())) {
                let problem = Problem::new(
                    reason::NAME_COLLISION,
                    redacted!(
                        "another source also becomes {} {}: let the mapping give them different names",
                        Name(&output.kind),
                        Name(&output.name)
                    ),
                );
                lock(found).block(kind, &source.metadata, problem);
            }
        }
    }

    /// The converted object, if it may be moved now. Without outputs: no mapping takes it.
    async fn movable(&self, source: &DynamicObject) -> Result<Converted, Problem> {
        let converted = self.convert(source).await?;
        if converted.outputs.is_empty() {
            return Ok(converted);
        }
        if source.metadata.deletion_timestamp.is_some() {
            return Err(Problem::new(
                reason::TERMINATING,
                "it is being deleted: wait until it is gone, or remove what holds it",
            ));
        }
        if !converted.ready {
            return Err(Problem::new(
                reason::NOT_READY,
                "the mapping's `ready` says that it cannot be moved now",
            ));
        }
        Ok(converted)
    }

    async fn convert(&self, source: &DynamicObject) -> Result<Converted, Problem> {
        let value = Arc::new(serde_json::to_value(source).unwrap_or_default());
        self.mappings
            .convert_async(value)
            .await
            .map_err(|error| Problem::new(reason::CONVERSION, error.redacted()))
    }

    /// Calls `worker` on every object of a kind.
    async fn each<F>(&self, kind: &Kind, worker: impl Fn(DynamicObject) -> F) -> Result<(), Error>
    where
        F: Future<Output = Verdict>,
    {
        let sweep = Sweep::of(self.client.clone(), &kind.resource).controlled_by(&self.control);
        all_looked_at(&sweep.run_whole(worker).await?)
    }

    /// Reads one object by its name; `None`: it does not exist.
    async fn read(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<DynamicObject>, exuvia_write::Error> {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            namespace: namespace.map(str::to_owned).filter(|_| kind.namespaced),
            ..ObjectMeta::default()
        };
        match self.writer.get(&kind.all(&self.client), &metadata).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.class() == ErrorClass::Gone => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What stands in the way of a migration besides its objects: kinds that are missing, other migrations, policies, flags. Rights
/// are left out: those of the caller are not those of the operator.
///
/// # Errors
///
/// The cluster could not be looked at.
pub async fn obstacles(
    client: &Client,
    writer: &Writer,
    servers: &ApiServers,
    migration: &DatastoreMigration,
) -> Result<Vec<Blocker>, Error> {
    let (mut blockers, _) = crate::check::check(client, writer, servers, &Control::new(), migration).await?;
    blockers.retain(|blocker| blocker.reason != reason::FORBIDDEN);
    Ok(blockers)
}

fn failed(error: &Error) -> Verdict {
    Verdict::failed("failed", Redacted::from_error(error))
}
