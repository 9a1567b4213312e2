//! Reads what decides about the next step: the record, the locks, the routes.

use std::time::Instant;

use exuvia_api::{
    Blocker, DATASTORE_FINALIZER, DatastoreMigration, DatastoreMigrationStatus, DatastorePhase, FlagSide,
    MigrationMode, RETRY_ANNOTATION, SavedFlag, StatusCopy, datastore_condition as condition,
    datastore_reason as reason, parse_duration,
};
use exuvia_write::ErrorClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ApiResource;
use kube::{Api, CustomResourceExt, ResourceExt};

use super::Engine;
use super::work::Work;
use crate::Error;
use crate::copy::FIELD_MANAGER;
use crate::freeze::{Form, Freeze, Part, PartState, Piece, Scope, Standing, read_flag};
use crate::protocol::{
    Clones as CloneState, Deletion, Denies, Flags, Guard, Locks, Observed, Policy, Record, Route, Stage,
    Undo, Verified, Wants,
};
use crate::route::{self, Clones};

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
        self.look_at_follower(stage);
        let locks = self.locks(stage).await?;
        self.observed.wants.route = self.wants_route(locks.route);
        self.observed.wants.clones = !self.cloned().is_empty();
        self.observed.locks = locks;
        let unsettled = self
            .unsettled_until
            .map(|until| until.saturating_duration_since(Instant::now()));
        self.seen.unsettled = unsettled.filter(|left| !left.is_zero());
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
            // The check refuses it together with an APIService.
            sync: spec.mode == MigrationMode::SyncThenFreeze && spec.cutover.api_service.is_empty(),
            suspend: spec.suspend,
            hold: spec.cutover.hold,
            max_duration: max_duration.filter(|duration| !duration.is_zero()),
            route: false,
            clones: false,
            cleanup: spec.cleanup.source,
        }
    }

    /// An APIService is to be removed if it has a backend, or if it had one that is on record.
    fn wants_route(&self, now: Route) -> bool {
        let is_given = !self.migration.spec.cutover.api_service.is_empty();
        is_given && (now == Route::Backend || self.observed.record.route_saved)
    }

    /// The targets that are tried at clones.
    pub(super) fn cloned(&self) -> Vec<ApiResource> {
        let Some(work) = &self.work else {
            return Vec::new();
        };
        let kinds = &work.mover.kinds;
        if self.observed.wants.route {
            let targets = kinds.targets().into_iter();
            return targets.map(|kind| kind.resource.clone()).collect();
        }
        let mut with_status: Vec<ApiResource> = Vec::new();
        for moved in &kinds.moved {
            let copies = self.migration.spec.mappings[moved.mapping].status == StatusCopy::Copy;
            let resource = &moved.target.resource;
            if copies && moved.target.has_status && !with_status.contains(resource) {
                with_status.push(resource.clone());
            }
        }
        // Clones of several groups would share one: then a status that is refused shows under the freeze.
        let is_one_group = with_status.iter().all(|kind| kind.group == with_status[0].group);
        with_status.retain(|_| is_one_group);
        with_status
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

    async fn locks(&mut self, stage: Stage) -> Result<Locks, Error> {
        if stage == Stage::Idle {
            return Ok(Locks {
                policy: self.locks_without_record().await?,
                clones: self.clone_state().await?,
                route: self.route().await?,
                ..Locks::default()
            });
        }
        // Without policies and without an APIService, which needs a shield, an API server that has no policies is not asked.
        let spec = &self.migration.spec;
        let has_locks = spec.freeze.admission || !spec.cutover.api_service.is_empty();
        let standing = match self.work.as_ref().filter(|_| has_locks) {
            Some(work) => work.freeze.look().await?,
            None => Standing::default(),
        };
        let (policy, shield) = self.policy(&standing);
        if stage == Stage::Moving {
            self.notice_other_locks(&standing);
        }
        Ok(Locks {
            policy,
            shield,
            flags: self.flags(stage).await?,
            guard: self.guard(stage).await?,
            route: self.route().await?,
            clones: CloneState::Absent,
            source: self.has_source().await?,
        })
    }

    /// Our policies where the record says that there are none: somebody may have removed the status. They are known by the
    /// migration's uid alone.
    async fn locks_without_record(&mut self) -> Result<Policy, Error> {
        if !self.observed.record.has_finalizer || !self.migration.spec.freeze.admission {
            return Ok(Policy::Absent);
        }
        let scope = Scope {
            uid: self.uid.clone(),
            migration: self.name.clone(),
            ..Scope::default()
        };
        let freeze = Freeze::new(self.client.clone(), &self.writer, self.servers.clone(), scope);
        let standing = match freeze.look().await {
            Ok(standing) => standing,
            // Without this right, or without policies, it has locked nothing.
            Err(error) if matches!(error.class(), ErrorClass::Denied | ErrorClass::Missing) => {
                return Ok(Policy::Absent);
            }
            Err(error) => return Err(error.into()),
        };
        let found = standing.identities();
        if found.is_empty() {
            return Ok(Policy::Absent);
        }
        let target = freeze.scope().name(Part::Target);
        if found.iter().any(|(name, ..)| *name == target) {
            return Ok(Policy::Frozen);
        }
        self.blockers = vec![Blocker {
            reason: reason::INTERRUPTED.to_owned(),
            message: format!(
                "objects were moved already, and the status that said so was removed: nothing is done any more. The source \
                 stays frozen; if its targets are right, delete {0} and run `exuvia datastore thaw {0}`",
                self.name
            ),
            ..Blocker::default()
        }];
        Ok(Policy::Converged)
    }

    /// Whether a CRD of the source is left: only a clean-up wants to know.
    async fn has_source(&self) -> Result<bool, Error> {
        let Some(work) = self
            .work
            .as_ref()
            .filter(|_| self.observed.record.deletion != Deletion::No)
        else {
            return Ok(false);
        };
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        for kind in work.mover.kinds.sources() {
            let found = crds.get_metadata_opt(&kind.name()).await?;
            if found.is_some_and(|crd| crd.metadata.uid.as_deref() == Some(kind.crd_uid.as_str())) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// They are known by the migration's uid alone: what is left of them is found whatever became of the spec.
    pub(super) fn clones(&self) -> Clones {
        let writer = self.writer.acting_as(FIELD_MANAGER);
        Clones::new(self.client.clone(), writer, self.servers.clone(), &self.uid)
    }

    async fn clone_state(&self) -> Result<CloneState, Error> {
        if !self.observed.record.has_finalizer || !self.clones().exist().await? {
            return Ok(CloneState::Absent);
        }
        Ok(if self.clones_ready {
            CloneState::Ready
        } else {
            CloneState::Partial
        })
    }

    /// Our policies, and whether the shield is up.
    fn policy(&self, standing: &Standing) -> (Policy, bool) {
        let Some(work) = &self.work else {
            return (Policy::Absent, false);
        };
        let in_form = |form| work.freeze.compare(standing, form, true);
        let forms = [Form::Frozen, Form::Committed, Form::Converged].map(in_form);
        let shield = forms.iter().any(|observed| stands(observed, Part::Shield));
        let [frozen, committed, converged] = &forms;
        let policy = if !self.migration.spec.freeze.admission {
            Policy::NotWanted
        } else if is_whole(frozen) {
            Policy::Frozen
        } else if is_whole(committed) {
            Policy::Committed
        } else if is_whole(converged) {
            Policy::Converged
        } else if forms.iter().all(crate::freeze::Observed::is_absent) {
            Policy::Absent
        } else {
            Policy::Partial
        };
        (policy, shield)
    }

    async fn flags(&self, stage: Stage) -> Result<Flags, Error> {
        let saved = self.migration.status.clone().unwrap_or_default().saved.flags;
        let mut flags = Flags::default();
        for (index, flag) in self.migration.spec.freeze.flags.iter().enumerate() {
            // After the commit a flag of the source stays frozen, and the clean-up may have deleted its kind.
            if stage == Stage::After && flag.side == FlagSide::Source {
                continue;
            }
            let saved = saved
                .iter()
                .find(|saved| usize::try_from(saved.index).is_ok_and(|at| at == index));
            // Before the commit there is nothing to freeze: the copy makes the object, as its source is.
            let comes_with_copy = saved.is_some_and(SavedFlag::comes_with_copy);
            if comes_with_copy && stage != Stage::After {
                continue;
            }
            let now = match read_flag(&self.client, flag).await {
                Ok(now) => now,
                // One that is gone holds nobody. On the way to the commit it is missing, which must not keep the rule about
                // maxDuration from being reached.
                Err(error) if is_gone(&error) => {
                    flags.to_set |= stage == Stage::Moving;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let is_frozen = now.value.as_ref() == Some(&flag.frozen);
            flags.to_set |= !is_frozen;
            let Some(saved) = saved else {
                continue;
            };
            let before = Some(&saved.value).filter(|value| !value.is_null());
            flags.changed |= !is_frozen && now.value.as_ref() != before;
            let held = is_frozen && before != Some(&flag.frozen) && (now.uid == saved.uid || comes_with_copy);
            match flag.side {
                FlagSide::Source => flags.source_held |= held,
                FlagSide::Target => flags.target_held |= held,
            }
        }
        Ok(flags)
    }

    async fn guard(&self, stage: Stage) -> Result<Guard, Error> {
        let Some(work) = &self.work else {
            return Ok(Guard::NotNeeded);
        };
        if !self.migration.spec.freeze.admission {
            return Ok(Guard::NotNeeded);
        }
        let wanted = self.migration.spec.freeze.drain == "Auto";
        if stage == Stage::Undoing || stage == Stage::After {
            let exists = work.freeze.is_counting().await?;
            return Ok(if exists { Guard::Ready } else { Guard::NotNeeded });
        }
        if !wanted || !self.can_count {
            return Ok(Guard::NotNeeded);
        }
        Ok(match self.counting_since {
            None => Guard::Absent,
            Some(since) => {
                let left = self.gauges_count_after.saturating_sub(since.elapsed());
                if left.is_zero() {
                    Guard::Ready
                } else {
                    Guard::Young(left)
                }
            }
        })
    }

    /// The way to the target group. A name that is not one of an APIService is the check's matter.
    pub(super) fn route_handle(&self) -> Option<route::Route> {
        let name = self.migration.spec.cutover.api_service.as_str();
        let writer = self.writer.acting_as(FIELD_MANAGER);
        Some(name)
            .filter(|name| !name.is_empty())
            .and_then(|name| route::Route::new(self.client.clone(), writer, self.servers.clone(), name).ok())
    }

    /// Who answers, and the APIService by which it does.
    async fn route(&mut self) -> Result<Route, Error> {
        let Some(route) = self.route_handle() else {
            return Ok(Route::Crds);
        };
        let now = route.observe().await?;
        if self.routed_by.as_deref().is_some_and(|by| by != uid_of(&now)) {
            // What was asked and read before may have been another server's.
            self.routed_by = None;
            self.seen.routed_everywhere = false;
        }
        Ok(match now {
            route::Observed::Backend(_) => Route::Backend,
            _ => Route::Crds,
        })
    }

    /// Policies that are not the ones that were probed are not the lock under which objects were copied.
    fn notice_other_locks(&mut self, standing: &Standing) {
        if !self.locks_probed.is_empty() && standing.identities() != self.locks_probed {
            self.locks_probed.clear();
            self.seen.denies = Denies::NotYet;
        }
    }

    /// Name, uid and generation of each policy and binding of ours.
    pub(super) async fn our_locks(&self) -> Result<Vec<(String, String, Option<i64>)>, Error> {
        Ok(self.work()?.freeze.look().await?.identities())
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

const WHOLE: PartState = PartState {
    policy: Piece::AsWanted,
    binding: Piece::AsWanted,
};

fn stands(observed: &crate::freeze::Observed, part: Part) -> bool {
    observed.parts.get(&part).is_some_and(|state| {
        let is_there = |piece| !matches!(piece, Piece::Absent | Piece::Foreign);
        is_there(state.policy) || is_there(state.binding)
    })
}

/// Whether everything but the shield is as it must be.
fn is_whole(observed: &crate::freeze::Observed) -> bool {
    let parts = observed.parts.iter();
    observed.left_over.is_empty()
        && parts
            .filter(|(part, _)| **part != Part::Shield)
            .all(|(_, state)| *state == WHOLE)
}
