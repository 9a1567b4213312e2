//! Reads what decides about the next step: the record, the locks, the routes.

use std::time::Instant;

use exuvia_api::{
    Blocker, DATASTORE_FINALIZER, DATASTORE_LABEL, DatastoreMigration, DatastoreMigrationStatus,
    DatastorePhase, RETRY_ANNOTATION, datastore_condition as condition, parse_duration,
};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, CustomResourceExt, ResourceExt};

use super::Engine;
use super::work::Work;
use crate::Error;
use crate::copy::FIELD_MANAGER;
use crate::freeze::{Form, Part, PartState, Piece, SCHEMA_COUNTS_AFTER, read_flag};
use crate::protocol::{
    Copied, Deletion, Denies, Drained, Flags, Guard, Locks, Observed, Policy, Record, Route, Stage, Undo,
    Verified, Wants,
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
        self.observed = Observed {
            record,
            wants: self.wants(),
            locks: Locks::default(),
            seen: self.seen.clone(),
        };
        let stage = Stage::of(&self.observed);
        self.prepare(stage).await?;
        let locks = self.locks(stage).await?;
        self.observed.wants.route = self.wants_route(locks.route);
        self.observed.locks = locks;
        self.notice_other_locks().await?;
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
            retry_asked: phase == DatastorePhase::Failed && is_asked,
            frozen_for: status.frozen_at.as_ref().map(|since| self.clock.since(since.0)),
            frozen: is_true(&status, condition::FROZEN),
            routed: is_true(&status, condition::ROUTED),
            flags_saved: status.saved.flags.len() == self.migration.spec.freeze.flags.len(),
            route_saved: !status.saved.api_service.is_null(),
            route_returned: u8::try_from(status.saved.api_service_returned).unwrap_or(u8::MAX),
        }
    }

    fn wants(&self) -> Wants {
        let spec = &self.migration.spec;
        let max_duration = parse_duration(&spec.freeze.max_duration).ok();
        Wants {
            suspend: spec.suspend,
            hold: spec.cutover.hold,
            max_duration: max_duration.filter(|duration| !duration.is_zero()),
            route: false,
            cleanup: spec.cleanup.source,
        }
    }

    /// An APIService is to be removed if it has a backend, or if it had one that is on record.
    fn wants_route(&self, now: Route) -> bool {
        let is_given = self.work.as_ref().is_some_and(|work| work.route.is_some());
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
        let (mut work, invalid) = self.read_spec().await?;
        if let Some(former) = self.work.take() {
            work.mover.aliases = former.mover.aliases;
            work.freeze = former.freeze;
        }
        let blockers = if invalid.is_empty() {
            &work.missing
        } else {
            &invalid
        };
        if stage == Stage::Moving && !blockers.is_empty() {
            self.blockers.clone_from(blockers);
            self.seen.copied = Copied::Refused;
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
                clones: self.observed.record.has_finalizer && self.has_clones().await?,
                route: self.route().await?,
                ..Locks::default()
            });
        }
        let (policy, shield) = self.policy(stage).await?;
        Ok(Locks {
            policy,
            shield,
            flags: self.flags(stage).await?,
            guard: self.guard(stage).await?,
            route: self.route().await?,
            clones: stage == Stage::Undoing && self.has_clones().await?,
        })
    }

    /// They are known by the migration's uid alone: what is left of them is found whatever became of the spec.
    pub(super) fn clones(&self) -> Clones {
        let writer = self.writer.acting_as(FIELD_MANAGER);
        Clones::new(self.client.clone(), writer, self.servers.clone(), &self.uid)
    }

    async fn has_clones(&self) -> Result<bool, Error> {
        Ok(self.clones().exist().await?)
    }

    /// Our policies, and whether the shield is up.
    async fn policy(&self, stage: Stage) -> Result<(Policy, bool), Error> {
        let Some(work) = &self.work else {
            return Ok((Policy::Absent, false));
        };
        if !self.migration.spec.freeze.admission {
            let satisfied = match stage {
                Stage::Moving => Policy::Frozen,
                Stage::After => Policy::Converged,
                Stage::Idle | Stage::Undoing => Policy::Absent,
            };
            let shield = work.freeze.observe(Form::Converged, true).await?;
            return Ok((satisfied, stands(&shield, Part::Shield)));
        }
        // The likely form first: each look is a dozen requests.
        let mut forms = [
            (Form::Frozen, Policy::Frozen),
            (Form::Converged, Policy::Converged),
        ];
        if stage == Stage::After {
            forms.reverse();
        }
        let (mut is_absent, mut shield) = (true, false);
        for (form, policy) in forms {
            let observed = work.freeze.observe(form, true).await?;
            shield = stands(&observed, Part::Shield);
            if is_whole(&observed) {
                return Ok((policy, shield));
            }
            is_absent &= observed.is_absent();
        }
        let policy = if is_absent {
            Policy::Absent
        } else {
            Policy::Partial
        };
        Ok((policy, shield))
    }

    async fn flags(&self, stage: Stage) -> Result<Flags, Error> {
        let flags = &self.migration.spec.freeze.flags;
        let thawed = match stage {
            Stage::Moving => Flags::Frozen,
            Stage::Undoing | Stage::Idle => Flags::Thawed,
            Stage::After => Flags::TargetThawed,
        };
        if flags.is_empty() || (stage != Stage::Moving && self.flags_restored) {
            return Ok(thawed);
        }
        if stage != Stage::Moving {
            return Ok(Flags::Frozen);
        }
        let mut frozen = 0;
        for flag in flags {
            let now = read_flag(&self.client, flag).await?;
            frozen += usize::from(now.value.as_ref() == Some(&flag.frozen));
        }
        Ok(if frozen == flags.len() {
            Flags::Frozen
        } else {
            Flags::Partial
        })
    }

    async fn guard(&self, stage: Stage) -> Result<Guard, Error> {
        let Some(work) = &self.work else {
            return Ok(Guard::NotNeeded);
        };
        let wanted = self.migration.spec.freeze.admission && self.migration.spec.freeze.drain == "Auto";
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
                let left =
                    SCHEMA_COUNTS_AFTER.saturating_sub(Instant::now().saturating_duration_since(since));
                if left.is_zero() {
                    Guard::Ready
                } else {
                    Guard::Young(left)
                }
            }
        })
    }

    async fn route(&self) -> Result<Route, Error> {
        let Some(route) = self.work.as_ref().and_then(|work| work.route.as_ref()) else {
            return Ok(Route::Crds);
        };
        Ok(match route.observe().await? {
            route::Observed::Backend(_) => Route::Backend,
            _ => Route::Crds,
        })
    }

    /// Policies that are not the ones that were probed are not the lock under which objects were copied.
    async fn notice_other_locks(&mut self) -> Result<(), Error> {
        if self.locks_probed.is_empty() || Stage::of(&self.observed) != Stage::Moving {
            return Ok(());
        }
        if self.our_locks().await? != self.locks_probed {
            self.locks_probed.clear();
            self.seen.denies = Denies::NotYet;
            self.seen.drained = Drained::NotYet;
            self.seen.verified = Verified::No;
            if self.seen.copied == Copied::Yes {
                self.seen.copied = Copied::No;
            }
        }
        Ok(())
    }

    /// Name, uid and generation of each policy and binding of ours.
    pub(super) async fn our_locks(&self) -> Result<Vec<(String, String, Option<i64>)>, Error> {
        let ours = ListParams::default().labels(&format!("{DATASTORE_LABEL}={}", self.uid));
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(self.client.clone());
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(self.client.clone());
        let policies = policies.list_metadata(&ours).await?.items.into_iter();
        let bindings = bindings.list_metadata(&ours).await?.items.into_iter();
        let policies = policies.map(|policy| policy.metadata);
        let mut locks: Vec<_> = policies
            .chain(bindings.map(|binding| binding.metadata))
            // The shield comes and goes by itself.
            .filter(|metadata| {
                metadata
                    .name
                    .as_ref()
                    .is_some_and(|name| !name.ends_with("-shield"))
            })
            .map(|metadata| {
                (
                    metadata.name.unwrap_or_default(),
                    metadata.uid.unwrap_or_default(),
                    metadata.generation,
                )
            })
            .collect();
        locks.sort();
        Ok(locks)
    }
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
