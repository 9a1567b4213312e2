//! What is locked in the cluster: the policies, the flags, what counts writers, the APIService, the clones.

use exuvia_api::{Blocker, FlagSide, SavedFlag, datastore_reason as reason};
use exuvia_write::ErrorClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::ApiResource;

use super::Engine;
use super::observe::{is_gone, uid_of};
use crate::Error;
use crate::copy::FIELD_MANAGER;
use crate::freeze::{Form, Freeze, Part, PartState, Piece, Scope, Standing};
use crate::protocol::{Clones as CloneState, Deletion, Denies, Flags, Guard, Locks, Policy, Route, Stage};
use crate::route::{self, Clones};

/// Name, uid and generation of a policy or binding of ours.
pub(super) type LockIdentity = (String, String, Option<i64>);

impl Engine {
    pub(super) async fn locks(&mut self, stage: Stage) -> Result<Locks, Error> {
        if stage == Stage::Idle {
            return Ok(Locks {
                clones: self.clone_state().await?,
                second: Box::pin(self.second_without_record()).await?,
                policy: self.locks_without_record().await?,
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
            second: Box::pin(self.second()).await?,
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
        } else if forms.iter().all(is_absent) {
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
            let now = match self.flag_places.read(&self.client, flag).await {
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

    /// Each policy and binding of ours.
    pub(super) async fn our_locks(&self) -> Result<Vec<LockIdentity>, Error> {
        Ok(self.work()?.freeze.look().await?.identities())
    }

    /// The targets that are tried at clones.
    pub(super) fn tried_at_clones(&self) -> Vec<ApiResource> {
        let Some(work) = &self.work else {
            return Vec::new();
        };
        let cloned = work
            .mover
            .kinds
            .tried_at_clones(&self.migration.spec, self.observed.wants.route);
        cloned.into_iter().map(|kind| kind.resource.clone()).collect()
    }
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

/// Whether nothing but the shield is there.
fn is_absent(observed: &crate::freeze::Observed) -> bool {
    let mut parts = observed.parts.keys();
    observed.left_over.is_empty() && parts.all(|part| *part == Part::Shield || !stands(observed, *part))
}

/// Whether everything but the shield is as it must be.
fn is_whole(observed: &crate::freeze::Observed) -> bool {
    let parts = observed.parts.iter();
    observed.left_over.is_empty()
        && parts
            .filter(|(part, _)| **part != Part::Shield)
            .all(|(_, state)| *state == WHOLE)
}
