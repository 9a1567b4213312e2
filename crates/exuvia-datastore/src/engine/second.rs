//! The steps about the second version of the target CRDs, and how targets are reached through it until the commit.

use std::time::Instant;

use exuvia_api::{
    Blocker, DatastoreMigration, MigrationMode, datastore_condition as condition, datastore_reason as reason,
};
use exuvia_runtime::servers::ApiServers;
use exuvia_write::{Redacted, Writer, conditions};
use kube::Client;
use kube::api::ApiResource;

use super::Engine;
use super::after::UNDO_PATIENCE;
use super::routing::routed_kinds;
use crate::Error;
use crate::copy::FIELD_MANAGER;
use crate::protocol::{Route, Second, Stage};
use crate::route::{self, SecondVersion};

/// The second version that a migration needs, if it does.
pub(crate) fn second_version(
    client: &Client,
    writer: &Writer,
    servers: &ApiServers,
    migration: &DatastoreMigration,
) -> Option<SecondVersion> {
    let service = migration.spec.cutover.api_service.as_str();
    let is_wanted = migration.spec.mode == MigrationMode::SyncThenFreeze && !service.is_empty();
    let (version, group) = service.split_once('.').filter(|_| is_wanted)?;
    Some(SecondVersion::new(
        client.clone(),
        writer.acting_as(FIELD_MANAGER),
        servers.clone(),
        migration.metadata.uid.as_deref().unwrap_or_default(),
        (group, version),
    ))
}

impl Engine {
    /// The second version that this spec needs: it depends on nothing else, so that every process says the same.
    pub(super) fn second_version(&self) -> Option<SecondVersion> {
        second_version(&self.client, &self.writer, &self.servers, &self.migration)
    }

    /// Up to the commit targets are reached through the second version. Afterwards their own is answered by the CRDs.
    pub(super) fn reach_targets(&mut self, stage: Stage) {
        let second = self.second_version();
        let second = second.filter(|_| matches!(stage, Stage::Moving | Stage::Undoing));
        if let Some(work) = &mut self.work {
            let through = |target: &ApiResource| second.as_ref().and_then(|second| second.resource(target));
            work.mover.kinds.reach_targets(through);
        }
    }

    /// Whether the other API server can be asked what it calls an object.
    pub(super) fn ask_backend(&mut self, stage: Stage, route: Route) {
        let can_ask = self.observed.wants.second
            && route == Route::Backend
            && matches!(stage, Stage::Idle | Stage::Moving);
        if let Some(work) = &mut self.work {
            work.mover.aliases.can_ask = can_ask;
        }
    }

    /// The kinds that the other API server does not show.
    pub(super) async fn look_for_unshown(&mut self) -> Result<(), Error> {
        if self.observed.locks.route != Route::Backend {
            return Ok(());
        }
        let work = self.work()?;
        let Some(route) = &work.route else {
            return Ok(());
        };
        let kinds = routed_kinds(work);
        let unshown = route.unshown(&kinds).await?.into_iter();
        let names = unshown.map(|kind| format!("{}.{}", kind.plural, kind.group));
        let names = names.collect();
        if let Some(work) = &mut self.work {
            work.mover.aliases.unshown = names;
        }
        Ok(())
    }

    /// Whether the CRDs have the second version, as it was when every API server served it.
    pub(super) async fn second(&self) -> Result<Second, Error> {
        let Some(second) = self.second_version() else {
            return Ok(Second::Absent);
        };
        let marked = second.marked().await?;
        Ok(if marked.is_empty() {
            Second::Absent
        } else if marked == self.second_seen {
            Second::Ready
        } else {
            Second::Partial
        })
    }

    /// Where nothing is on record: somebody may have removed the status.
    pub(super) async fn second_without_record(&mut self) -> Result<Second, Error> {
        if !self.observed.record.has_finalizer {
            return Ok(Second::Absent);
        }
        let second = self.second().await?;
        if second != Second::Absent {
            self.blockers = vec![Blocker {
                reason: reason::INTERRUPTED.to_owned(),
                message: format!(
                    "objects were copied already, and the status that said so was removed: nothing is done any more. If the \
                     copies are right, delete {}: they stay, and the second version of their CRDs is removed",
                    self.name
                ),
                ..Blocker::default()
            }];
        }
        Ok(second)
    }

    /// Adds it where it is missing, and waits until it is served everywhere. On the way to the commit somebody who takes it
    /// away is not argued with; on the way back our copies must be reached, for as long as that is of use.
    pub(super) async fn add_version(&mut self) -> Result<(), Error> {
        let Some(second) = self.second_version() else {
            return Ok(());
        };
        let targets = routed_kinds(self.work()?);
        let undoes = Stage::from_record(&self.observed.record) == Stage::Undoing;
        // What this process has seen and is not there any more was taken away, too, with its mark.
        let had_it = std::mem::take(&mut self.second_seen);
        let ensured = match second.ensure(&targets).await {
            Ok(ensured) => ensured,
            Err(error) if undoes => return self.give_up_copies(error.into()).await,
            Err(route::Error::NoSecondVersion { name, why }) => {
                self.refuse_second(&name, why);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let mut had_it = had_it.iter().map(|had| &had.name);
        let lost = had_it.find(|name| ensured.added.contains(name));
        let reverted = lost.or(ensured.reverted.first());
        if let Some(name) = reverted.filter(|_| !undoes).cloned() {
            let why = format!(
                "somebody took version {} away from the CRD {name} again: stop what manages it, or use mode FreezeAndCopy",
                second.name()
            );
            self.refuse_second(&name, Redacted::ours(why));
        }
        self.second_seen = ensured.marked;
        Ok(())
    }

    fn refuse_second(&mut self, crd: &str, why: Redacted) {
        self.blockers = vec![Blocker {
            reason: reason::SECOND_VERSION.to_owned(),
            kind: crd.to_owned(),
            message: why.into_string(),
            ..Blocker::default()
        }];
        self.seen.second_refused = true;
    }

    /// Copies that cannot be reached to be deleted are put on record as left, like those that somebody keeps from it.
    async fn give_up_copies(&mut self, error: Error) -> Result<(), Error> {
        let since = *self.undeletable_since.get_or_insert_with(Instant::now);
        if since.elapsed() < UNDO_PATIENCE || error.may_take_effect() {
            return Err(error);
        }
        self.blockers = vec![Blocker {
            reason: reason::COPIES_LEFT.to_owned(),
            message: Redacted::from_error(&error).into_string(),
            ..Blocker::default()
        }];
        self.record(|status, _| {
            conditions::remove(&mut status.conditions, condition::ROUTED);
            status.saved.copies_left = status.saved.copies_left.max(1);
        })
        .await?;
        self.undeletable_since = None;
        Ok(())
    }

    /// Looks at every target, also where somebody has taken the version away since: what names it must be cured (PITFALLS A7).
    pub(super) async fn retire_version(&mut self) -> Result<(), Error> {
        if let Some(second) = self.second_version() {
            second
                .move_all_entries(&routed_kinds(self.work()?), &self.control)
                .await?;
        }
        self.undo_version().await?;
        self.seen.retired = true;
        Ok(())
    }

    pub(super) async fn undo_version(&mut self) -> Result<(), Error> {
        self.second_seen.clear();
        if let Some(second) = self.second_version() {
            second.remove(&self.control).await?;
        }
        Ok(())
    }
}
