//! A second served version of the target CRDs: while a backend hides the targets, they are reached through it (PITFALLS D7, D8).

mod definition;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use exuvia_api::SECOND_VERSION_LABEL;
use exuvia_runtime::servers::ApiServers;
use exuvia_sweep::{Control, Pages, Pressure, Sweep, SweepReport, Verdict};
use exuvia_write::{ErrorClass, Fate, Name, Redacted, RetryPolicy, Writer, brief, plan_move, redacted};
use futures::future::try_join_all;
use kube::api::{ApiResource, DynamicObject, ListParams, PartialObjectMeta};
use kube::{Api, Client, ResourceExt};
use tokio::time::{Instant, sleep};

use super::{Error, resource};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);
/// How long one call waits: a version is served 157 ms after it is added (PITFALLS D7). The caller comes back after it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The second version of the target CRDs of one migration.
///
/// It is known by a label on the CRDs, so that another process finds and removes what this one added.
#[derive(Clone)]
pub struct SecondVersion {
    client: Client,
    writer: Writer,
    servers: ApiServers,
    migration_uid: String,
    group: String,
    version: String,
}

impl fmt::Debug for SecondVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecondVersion")
            .field("group", &self.group)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// A CRD that has our mark, as it was when it was looked at. Another generation is another spec.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Marked {
    /// The CRD's name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its generation.
    pub generation: i64,
}

/// Target CRDs that have the second version, on every API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ensured {
    /// Those that have it.
    pub marked: Vec<Marked>,
    /// Those that did not have it.
    pub added: Vec<String>,
    /// Those of them that have had it before, by their mark: somebody else decides about their versions.
    pub reverted: Vec<String>,
}

impl SecondVersion {
    /// For the targets of this group and version, and the migration with this uid.
    pub fn new(
        client: Client,
        writer: Writer,
        servers: ApiServers,
        migration_uid: &str,
        (group, version): (&str, &str),
    ) -> Self {
        Self {
            client,
            writer,
            servers,
            migration_uid: migration_uid.to_owned(),
            group: group.to_owned(),
            version: version.to_owned(),
        }
    }

    /// What it is called.
    pub fn name(&self) -> String {
        definition::name(&self.version)
    }

    /// As which a target is reached; `None`: nobody hides it.
    pub fn resource(&self, target: &ApiResource) -> Option<ApiResource> {
        let is_hidden = target.group == self.group && target.version == self.version;
        is_hidden.then(|| resource(&self.group, &self.name(), &target.kind, &target.plural))
    }

    /// Which of these targets cannot get a second version, and why. Nothing is stored.
    pub async fn obstacles(&self, targets: &[ApiResource]) -> Result<Vec<(String, Redacted)>, Error> {
        let mut found = Vec::new();
        for target in targets.iter().filter(|target| self.resource(target).is_some()) {
            let name = crd_name(target);
            let Some(crd) = self.read(&name).await? else {
                continue; // said by those who look for kinds
            };
            let why = match self.obstacle(&crd) {
                Some(why) => Some(Redacted::ours(why)),
                None if definition::is_added(&crd, &self.version, &self.migration_uid) => None,
                None => self.refusal(&crd).await?,
            };
            found.extend(why.map(|why| (name, why)));
        }
        Ok(found)
    }

    fn obstacle(&self, crd: &DynamicObject) -> Option<String> {
        definition::obstacle(crd, &self.version, &self.migration_uid)
    }

    /// What the server, or a policy or webhook of somebody, has against the second version.
    async fn refusal(&self, crd: &DynamicObject) -> Result<Option<Redacted>, Error> {
        let add = |crd: &mut DynamicObject| definition::add(crd, &self.version, &self.migration_uid);
        let tried = self
            .writer
            .dry_run()
            .patch_with_retry(&self.crds(), crd, add)
            .await;
        match tried {
            Ok(_) => Ok(None),
            // Rights are looked at by those who can name them.
            Err(error) if matches!(error.class(), ErrorClass::Denied | ErrorClass::Invalid) => {
                Ok(Some(Redacted::from_error(&error)))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Adds it to those of the targets that lack it, and waits until every API server serves all of them.
    ///
    /// # Errors
    ///
    /// [`Error::NoSecondVersion`]: it cannot be added. [`Error::SecondNotServed`] if it takes too long: call again.
    pub async fn ensure(&self, targets: &[ApiResource]) -> Result<Ensured, Error> {
        let mut ensured = Ensured::default();
        let hidden = targets.iter().filter_map(|target| self.resource(target));
        let hidden: Vec<ApiResource> = hidden.collect();
        for target in &hidden {
            let name = crd_name(target);
            let Some(crd) = self.read(&name).await? else {
                return Err(Error::NoCrd {
                    name,
                    version: self.version.clone(),
                });
            };
            if let Some(why) = self.obstacle(&crd) {
                return Err(Error::NoSecondVersion {
                    name,
                    why: Redacted::ours(why),
                });
            }
            if definition::is_added(&crd, &self.version, &self.migration_uid) {
                continue;
            }
            if definition::is_marked(&crd, &self.migration_uid) {
                ensured.reverted.push(name.clone());
            }
            ensured.added.push(name.clone());
            let add = |crd: &mut DynamicObject| definition::add(crd, &self.version, &self.migration_uid);
            let added = self.writer.patch_with_retry(&self.crds(), &crd, add).await;
            match added {
                Ok(_) => {}
                Err(error) if matches!(error.class(), ErrorClass::Denied | ErrorClass::Invalid) => {
                    return Err(Error::NoSecondVersion {
                        name,
                        why: Redacted::from_error(&error),
                    });
                }
                Err(error) => return Err(error.into()),
            }
        }
        // First: what changes while it is waited for is another generation.
        ensured.marked = self.marked().await?;
        let until = Instant::now() + PATIENCE;
        while let Some(why) = self.why_not_served(&hidden).await? {
            if Instant::now() >= until {
                return Err(Error::SecondNotServed { why });
            }
            sleep(PAUSE).await;
        }
        Ok(ensured)
    }

    /// The CRDs that have our mark.
    pub async fn marked(&self) -> Result<Vec<Marked>, Error> {
        let with_label = format!("{SECOND_VERSION_LABEL}={}", self.migration_uid);
        let with_label = ListParams::default().labels(&with_label);
        let mut pages = Pages::of(&self.crds()).metadata().select(&with_label);
        let mut marked = Vec::new();
        while let Some(page) = pages.next().await? {
            if page.is_first {
                marked.clear();
            }
            for item in &page.items {
                let crd: PartialObjectMeta<DynamicObject> = item.read().map_err(|error| Error::Read {
                    what: item.identity().name,
                    source: Box::new(kube::Error::SerdeError(error)),
                })?;
                marked.push(Marked {
                    name: crd.name_any(),
                    uid: crd.uid().unwrap_or_default(),
                    generation: crd.metadata.generation.unwrap_or_default(),
                });
            }
        }
        marked.sort();
        Ok(marked)
    }

    /// Removes it from all CRDs that have our mark, also those of an earlier process. First each object that names it in its
    /// `managedFields` names the version of the target instead: an entry at a version that is gone makes every later apply
    /// fail (PITFALLS A7). That write also tells those who watched the backend what the object is now (D5).
    pub async fn remove(&self, control: &Control) -> Result<(), Error> {
        for marked in self.marked().await? {
            let Some(crd) = self.read(&marked.name).await? else {
                continue;
            };
            // Once more, right before it goes.
            if let Some(kind) = definition::served_as(&crd, &self.version) {
                self.move_entries(&kind, control).await?;
            }
            let api = self.crds();
            let remove =
                |crd: &mut DynamicObject| definition::remove(crd, &self.version, &self.migration_uid);
            match self.writer.patch_with_retry(&api, &crd, remove).await {
                Ok(_) => {}
                Err(error) if error.class() == ErrorClass::Gone => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Lets all objects of these targets name the targets' version, when CRDs answer for it.
    pub async fn move_all_entries(&self, targets: &[ApiResource], control: &Control) -> Result<(), Error> {
        for target in targets.iter().filter(|target| self.resource(target).is_some()) {
            let crd = self.read(&crd_name(target)).await?;
            // Through the second version if it is served: behind it are the objects of the CRD in any case.
            let second = crd.and_then(|crd| definition::served_as(&crd, &self.version));
            self.move_entries(second.as_ref().unwrap_or(target), control)
                .await?;
        }
        Ok(())
    }

    async fn move_entries(&self, kind: &ApiResource, control: &Control) -> Result<(), Error> {
        let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(self.client.clone(), kind);
        let second = format!("{}/{}", self.group, self.name());
        let (to, old) = (
            format!("{}/{}", self.group, self.version),
            BTreeSet::from([second.clone()]),
        );
        let sweep = Sweep::of(self.client.clone(), kind).controlled_by(control);
        let report = sweep
            .run(async |object| {
                let named = object.metadata.managed_fields.iter().flatten();
                let mut versions = named.filter_map(|entry| entry.api_version.as_deref());
                if !versions.any(|version| version == second) {
                    return Verdict::skipped();
                }
                let moved = self
                    .writer
                    .move_ownership(&api, &object.metadata, |entries| {
                        plan_move(entries, &old, &to, |_| Fate::Move)
                    })
                    .await;
                match moved {
                    Ok(_) => Verdict::changed(),
                    Err(error) if error.class() == ErrorClass::Gone => Verdict::gone(),
                    Err(error) => {
                        let class = error.class();
                        Verdict::failed(class.as_str(), Redacted::from_error(&error))
                            .under(Pressure::of(class))
                    }
                }
            })
            .await
            .map_err(|error| Error::Entries {
                kind: kind.plural.clone(),
                why: Redacted::from_error(&error),
            })?;
        all_moved(kind, &report)
    }

    /// Which server does not serve which kind, and why.
    async fn why_not_served(&self, kinds: &[ApiResource]) -> Result<Option<Redacted>, Error> {
        let asked = self
            .servers
            .ask_at_least_one(&self.client, |server| unserved(server, kinds))
            .await
            .map_err(Error::reading("the list of API servers"))?;
        Ok(asked.answers.iter().find_map(|answer| match &answer.said {
            Ok(None) => None,
            Ok(Some(why)) => Some(redacted!("{}: {}", Name(&answer.server), why)),
            Err(no_answer) => Some(redacted!(
                "{} {}",
                Name(&answer.server),
                Redacted::from_error(no_answer)
            )),
        }))
    }

    async fn read(&self, name: &str) -> Result<Option<DynamicObject>, Error> {
        let api = self.crds();
        let read = RetryPolicy::default().read(|| api.get_opt(name)).await;
        read.map_err(Error::reading(name))
    }

    fn crds(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &super::clones::crds())
    }
}

fn crd_name(target: &ApiResource) -> String {
    format!("{}.{}", target.plural, target.group)
}

/// Entries that were left would name a version that is gone.
fn all_moved(kind: &ApiResource, report: &SweepReport) -> Result<(), Error> {
    if report.tally.failed + report.tally.conflict == 0 {
        return Ok(());
    }
    let first = report.failures.first.first();
    Err(Error::Entries {
        kind: kind.plural.clone(),
        why: first.map_or_else(|| "not known".into(), |failure| failure.message.clone()),
    })
}

/// The first of these kinds that a server does not list, and why.
async fn unserved(server: Client, kinds: &[ApiResource]) -> Result<Option<Redacted>, kube::Error> {
    let asking = kinds.iter().map(async |kind| {
        let api: Api<DynamicObject> = Api::all_with(server.clone(), kind);
        match api.list_metadata(&ListParams::default().limit(1)).await {
            Ok(_) => Ok(None),
            Err(error @ kube::Error::Api(_)) => Ok(Some(redacted!(
                "{}: {}",
                Name(&kind.plural),
                Redacted::from_server(&brief(&error))
            ))),
            Err(error) => Err(error),
        }
    });
    Ok(try_join_all(asking).await?.into_iter().flatten().next())
}
