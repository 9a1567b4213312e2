//! Reads what decides about the next step: the record and the spec; [`locks`](super::locks) has what is in the cluster.

use std::time::Instant;

use exuvia_api::{
    Blocker, DATASTORE_FINALIZER, DatastoreMigration, DatastoreMigrationStatus, DatastorePhase,
    MigrationMode, RETRY_ANNOTATION, datastore_condition as condition, parse_duration,
};
use exuvia_write::ErrorClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, CustomResourceExt, ResourceExt};

use super::Engine;
use super::work::Work;
use crate::Error;
use crate::protocol::{Copied, Deletion, Locks, Observed, Record, Route, Stage, Undo, Verified, Wants};
use crate::route;

impl Engine {
    /// Reads everything; `false`: the migration does not exist any more.
    pub(super) async fn observe(&mut self) -> Result<bool, Error> {
        let Some(migration) = self.api.get_opt(&self.name).await? else {
            return Ok(false);
        };
        if migration.metadata.uid.as_deref() != Some(self.uid.as_str()) {
            return Ok(false);
        }
        self.migration = migration;
        let deletion = self.deletion().await?;
        self.clock.ask(&self.client).await;
        let record = self.read_record(deletion);
        if std::mem::take(&mut self.is_first_look) && record.has_finalizer {
            // A former process may have left writes under way.
            self.unsettled_until = Some(Instant::now() + self.writes_end_within);
        }
        self.observed = Observed {
            record,
            wants: self.wants(),
            locks: Locks::default(),
            seen: self.seen.clone(),
        };
        // While people thought about it, targets that are not ours could be written.
        let holds = self.observed.wants.hold;
        if self.held_before_cutover && !holds && self.seen.verified == Verified::Yes {
            self.seen.verified = Verified::No;
        }
        self.held_before_cutover = holds;
        let stage = Stage::from_record(&self.observed.record);
        self.prepare(stage).await?;
        self.reach_targets(stage);
        self.look_at_follower(stage);
        let locks = self.locks(stage).await?;
        self.observed.wants.route = self.wants_route(locks.route);
        self.ask_backend(stage, locks.route);
        self.observed.wants.clones = !self.tried_at_clones().is_empty();
        self.observed.locks = locks;
        let unsettled = self
            .unsettled_until
            .map(|until| until.saturating_duration_since(Instant::now()));
        self.seen.unsettled = unsettled.filter(|left| !left.is_zero());
        self.keep_in_step_while_held(stage).await;
        self.observed.seen = self.seen.clone();
        Ok(true)
    }

    async fn deletion(&self) -> Result<Deletion, Error> {
        if self.migration.metadata.deletion_timestamp.is_none() {
            return Ok(Deletion::No);
        }
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let own = crds.get_metadata_opt(DatastoreMigration::crd_name()).await?;
        let leaves = own.is_none_or(|crd| crd.metadata.deletion_timestamp.is_some());
        Ok(if leaves {
            Deletion::WithItsCrd
        } else {
            Deletion::Asked
        })
    }

    fn read_record(&self, deletion: Deletion) -> Record {
        let status = self.migration.status.clone().unwrap_or_default();
        let phase = status.phase.unwrap_or_default();
        let is_asked = self.migration.annotations().contains_key(RETRY_ANNOTATION)
            || status.observed_generation != self.migration.metadata.generation;
        Record {
            deletion,
            has_finalizer: self
                .migration
                .finalizers()
                .iter()
                .any(|held| held == DATASTORE_FINALIZER),
            phase,
            undo: status.undo.as_ref().map(|undo| {
                // One that a later version wrote is undone all the same.
                Undo::from_reason(&undo.reason).unwrap_or(Undo::Refused)
            }),
            retry_asked: is_asked
                && matches!(
                    phase,
                    DatastorePhase::Failed | DatastorePhase::WaitingForConflictResolution
                ),
            frozen_for: status.frozen_at.as_ref().map(|since| self.clock.since(since.0)),
            frozen: is_true(&status, condition::FROZEN),
            routed: is_true(&status, condition::ROUTED),
            flags_saved: status.saved.flags.len() == self.migration.spec.freeze.flags.len(),
            route_saved: !status.saved.api_service.is_null(),
            route_returned: u8::try_from(status.saved.api_service_returned).unwrap_or(u8::MAX),
            retreats: u8::try_from(status.retreats).unwrap_or(u8::MAX),
            copies_left: status.saved.copies_left > 0,
        }
    }

    fn wants(&self) -> Wants {
        let spec = &self.migration.spec;
        let max_duration = parse_duration(&spec.freeze.max_duration).ok();
        Wants {
            sync: spec.mode == MigrationMode::SyncThenFreeze,
            suspend: spec.suspend,
            hold: spec.cutover.hold,
            max_duration: max_duration.filter(|duration| !duration.is_zero()),
            route: false,
            clones: false,
            second: self.second_version().is_some(),
            cleanup: spec.cleanup.source,
        }
    }

    /// An APIService is to be removed if it has a backend, or if it had one that is on record.
    fn wants_route(&self, now: Route) -> bool {
        let is_given = !self.migration.spec.cutover.api_service.is_empty();
        is_given && (now == Route::Backend || self.observed.record.route_saved)
    }

    /// Reads the spec and the cluster, if that was not done for this generation.
    async fn prepare(&mut self, stage: Stage) -> Result<(), Error> {
        let generation = self.migration.metadata.generation;
        let is_current = self
            .work
            .as_ref()
            .is_some_and(|work| work.generation == generation);
        if is_current {
            return Ok(());
        }
        if stage == Stage::Idle {
            // Everything is looked at again for another spec. The check builds what works on it, unless it is blocked.
            if self.checked_generation != generation {
                self.seen = crate::protocol::Seen::default();
                self.work = None;
            }
            return Ok(());
        }
        let (work, invalid) = self.read_spec().await?;
        let mut work = self.timed(work);
        if let Some(former) = self.work.take() {
            if former.mover.kinds.are_as(&work.mover.kinds) {
                work.mover.known = former.mover.known;
            } else {
                (self.seen.copied, self.seen.verified) = (Copied::No, Verified::No);
            }
            work.mover.aliases = former.mover.aliases;
            work.freeze = former.freeze;
        }
        let blockers = if invalid.is_empty() {
            &work.missing
        } else {
            &invalid
        };
        self.refused.clear();
        if stage == Stage::Moving {
            self.refused.clone_from(blockers);
            self.refuse();
        }
        self.invalid = invalid.into_iter().next().map(|first| first.message);
        self.work = Some(work);
        Ok(())
    }

    /// What carries the spec out; also what is wrong with the parts of it that may be changed on the way. These are left out
    /// then: nobody is to stay locked out because of an expression that is not needed to let go.
    async fn read_spec(&self) -> Result<(Work, Vec<Blocker>), Error> {
        let read = async |migration: &DatastoreMigration| {
            Work::new(
                &self.client,
                &self.writer,
                &self.servers,
                &self.control,
                migration,
            )
            .await
        };
        let invalid = match read(&self.migration).await? {
            Ok(work) => return Ok((work, Vec::new())),
            Err(invalid) => invalid,
        };
        let mut reduced = self.migration.clone();
        reduced.spec.references.rewrite.clear();
        reduced.spec.cutover.wait_for.clear();
        match read(&reduced).await? {
            Ok(work) => Ok((work, invalid)),
            Err(invalid) => Err(Error::Invalid(
                invalid
                    .into_iter()
                    .next()
                    .map(|first| first.message)
                    .unwrap_or_default(),
            )),
        }
    }
}

/// The APIService as it is now: another uid is another one.
pub(super) fn uid_of(observed: &route::Observed) -> &str {
    match observed {
        route::Observed::Absent => "",
        route::Observed::Local { object, .. } => object.metadata.uid.as_deref().unwrap_or_default(),
        route::Observed::Backend(backend) => backend.object().metadata.uid.as_deref().unwrap_or_default(),
    }
}

pub(crate) fn is_gone(error: &crate::freeze::Error) -> bool {
    matches!(error.class(), ErrorClass::Gone | ErrorClass::Missing)
}

fn is_true(status: &DatastoreMigrationStatus, type_: &str) -> bool {
    let conditions = status.conditions.iter();
    conditions
        .filter(|condition| condition.type_ == type_)
        .any(|condition| condition.status == "True")
}
