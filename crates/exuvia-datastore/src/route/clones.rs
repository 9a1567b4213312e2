//! Clones of the target CRDs in a scratch group: where the backend hides the target, objects can be tried at its clone.

mod definition;

pub(super) use self::definition::crds;

use std::fmt;
use std::time::Duration;

use exuvia_api::DATASTORE_LABEL;
use exuvia_runtime::servers::ApiServers;
use exuvia_sweep::{Identity, Pages};
use exuvia_write::{Adopted, Delete, Name, Redacted, RetryPolicy, Writer, brief, redacted};
use futures::future::try_join_all;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};
use tokio::time::{Instant, sleep};

use super::{Error, resource};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(200);
/// How long one call waits: 22 clones were established after 5.1 s and gone after 4.9 s (DATASTORE §2). The caller comes back
/// after it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The clones of one migration. They hold no objects: everything that is sent to them is a dry-run.
///
/// They are known by their label and their group alone, so that another process finds and removes what this one made.
///
/// ```no_run
/// use exuvia_datastore::route::Clones;
/// # use exuvia_runtime::servers::ApiServers;
/// # use exuvia_write::Writer;
/// # use kube::{Api, Client, api::{ApiResource, DynamicObject}};
///
/// # async fn example(client: Client, writer: Writer, servers: ApiServers, pool: ApiResource, mut object: DynamicObject)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// let clones = Clones::new(client.clone(), writer.clone(), servers, "5f6e7d8c-0b1a-4c2d-8e3f-9a0b1c2d3e4f");
/// clones.ensure(&[pool.clone()]).await?;
/// let resource = clones.resource(&pool);
/// if let Some(types) = &mut object.types {
///     types.api_version = resource.api_version.clone();
/// }
/// let api: Api<DynamicObject> = Api::all_with(client, &resource);
/// if let Err(refused) = writer.dry_run().create(&api, &object).await {
///     println!("{}", clones.in_words_of_target(&refused.to_string(), &pool));
/// }
/// clones.remove().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Clones {
    client: Client,
    writer: Writer,
    servers: ApiServers,
    migration_uid: String,
    group: String,
}

impl fmt::Debug for Clones {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clones")
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

impl Clones {
    /// The clones of the migration with this uid.
    pub fn new(client: Client, writer: Writer, servers: ApiServers, migration_uid: &str) -> Self {
        Self {
            client,
            writer,
            servers,
            migration_uid: migration_uid.to_owned(),
            group: definition::group(migration_uid),
        }
    }

    /// The group that they are in.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// What the API calls the clone of a target.
    pub fn resource(&self, target: &ApiResource) -> ApiResource {
        let plural = definition::renamed(&target.plural);
        resource(&self.group, &target.version, &target.kind, &plural)
    }

    /// The plural of a target's clone: no other resource has such a name.
    pub fn plural(target: &str) -> String {
        definition::renamed(target)
    }

    /// What a server said about an object at the clone, as it would have said it about one at the target.
    pub fn in_words_of_target(&self, said: &str, target: &ApiResource) -> String {
        said.replace(&self.group, &target.group)
            .replace(&definition::renamed(&target.plural), &target.plural)
    }

    /// Makes the clones that are missing, and waits until every API server serves all of them. A clone of a CRD that has
    /// changed since is made again.
    ///
    /// # Errors
    ///
    /// [`Error::NotServed`] if that takes too long. Call again.
    pub async fn ensure(&self, targets: &[ApiResource]) -> Result<(), Error> {
        if let Some(first) = targets.first()
            && let Some(second) = targets.iter().find(|target| target.group != first.group)
        {
            return Err(Error::SeveralGroups {
                first: first.group.clone(),
                second: second.group.clone(),
            });
        }
        for target in targets {
            self.ensure_one(target).await?;
        }
        let until = Instant::now() + PATIENCE;
        while let Some(why) = self.why_not_served(targets).await? {
            if Instant::now() >= until {
                return Err(Error::NotServed { why });
            }
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Deletes all clones of the migration, also those of an earlier process, and waits until they are gone.
    ///
    /// # Errors
    ///
    /// [`Error::StillThere`] if that takes too long. Call again.
    pub async fn remove(&self) -> Result<(), Error> {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = self.left().await?;
            let Some(one) = left.first() else {
                return Ok(());
            };
            if Instant::now() >= until {
                return Err(Error::StillThere {
                    what: format!("CRD {one}"),
                });
            }
            for clone in left {
                self.delete(clone).await?;
            }
            sleep(PAUSE).await;
        }
    }

    /// Whether any clone is there.
    pub async fn exist(&self) -> Result<bool, Error> {
        Ok(!self.left().await?.is_empty())
    }

    /// The clones that are there. A CRD elsewhere is never taken for one, whatever label somebody gave it: to delete a CRD
    /// is to delete its objects.
    async fn left(&self) -> Result<Vec<Identity>, Error> {
        let with_label = format!("{DATASTORE_LABEL}={}", self.migration_uid);
        let with_label = ListParams::default().labels(&with_label);
        let mut pages = Pages::of(&self.crds()).metadata().select(&with_label);
        let mut left = Vec::new();
        while let Some(page) = pages.next().await? {
            if page.is_first {
                left.clear();
            }
            left.extend(page.items.iter().map(exuvia_sweep::Item::identity));
        }
        left.retain(|clone| definition::is_in(&clone.name, &self.group));
        Ok(left)
    }

    async fn delete(&self, clone: Identity) -> Result<(), Error> {
        let mut object = DynamicObject::new(&clone.name, &definition::crds());
        object.metadata.uid = clone.uid;
        self.writer
            .delete(&self.crds(), &object, &Delete::default())
            .await?;
        Ok(())
    }

    async fn ensure_one(&self, target: &ApiResource) -> Result<(), Error> {
        let name = format!("{}.{}", target.plural, target.group);
        let api = self.crds();
        let crd = RetryPolicy::default().read(|| api.get_opt(&name)).await;
        let crd = crd.map_err(Error::reading(&name))?;
        let crd = crd.filter(|crd| definition::serves(crd, &target.version));
        let Some(crd) = crd else {
            return Err(Error::NoCrd {
                name,
                version: target.version.clone(),
            });
        };
        let wanted = definition::clone_of(&crd, &self.group, &self.migration_uid);
        let clone = wanted.name_any();
        let until = Instant::now() + PATIENCE;
        loop {
            let found = RetryPolicy::default().read(|| api.get_opt(&clone)).await;
            match found.map_err(Error::reading(&clone))? {
                Some(found) if self.is_ours(&found) => {
                    if definition::is_current(&found, &wanted) {
                        return Ok(());
                    }
                    // Of the CRD as it was, or on its way out.
                    self.delete(Identity::from(&found.metadata)).await?;
                }
                _ => {
                    let ours = |found: &DynamicObject| self.is_ours(found);
                    let made = self.writer.create_or_adopt(&api, &wanted, ours).await?;
                    if matches!(made, Adopted::Created(_)) {
                        return Ok(());
                    }
                }
            }
            if Instant::now() >= until {
                return Err(Error::StillThere {
                    what: format!("CRD {clone}"),
                });
            }
            sleep(PAUSE).await;
        }
    }

    fn is_ours(&self, found: &DynamicObject) -> bool {
        found.labels().get(DATASTORE_LABEL) == Some(&self.migration_uid)
    }

    /// Which server does not serve which clone, and why.
    async fn why_not_served(&self, targets: &[ApiResource]) -> Result<Option<Redacted>, Error> {
        let asked = self
            .servers
            .ask_at_least_one(&self.client, |server| self.unserved(server, targets))
            .await
            .map_err(Error::reading("the list of API servers"))?;
        let why = asked.answers.iter().find_map(|answer| match &answer.said {
            Ok(None) => None,
            Ok(Some(why)) => Some(redacted!("{}: {}", Name(&answer.server), why)),
            Err(no_answer) => Some(redacted!(
                "{} {}",
                Name(&answer.server),
                Redacted::from_error(no_answer)
            )),
        });
        Ok(why)
    }

    async fn unserved(
        &self,
        server: Client,
        targets: &[ApiResource],
    ) -> Result<Option<Redacted>, kube::Error> {
        let asking = targets.iter().map(async |target| {
            let clone = self.resource(target);
            let api: Api<DynamicObject> = Api::all_with(server.clone(), &clone);
            match api.list_metadata(&ListParams::default().limit(1)).await {
                Ok(_) => Ok(None),
                Err(error @ kube::Error::Api(_)) => Ok(Some(redacted!(
                    "{}: {}",
                    Name(&clone.plural),
                    Redacted::from_server(&brief(&error))
                ))),
                Err(error) => Err(error),
            }
        });
        Ok(try_join_all(asking).await?.into_iter().flatten().next())
    }

    fn crds(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &definition::crds())
    }
}
