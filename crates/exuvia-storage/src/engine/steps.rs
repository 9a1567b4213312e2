//! The steps before the first write: begin, preflight, R0.

use std::time::Instant;

use exuvia_write::{ErrorClass, Redacted, RetryPolicy};

use super::{Engine, Subject};
use crate::Error;
use crate::definition::Definition;
use crate::forbidden::MissingRule;
use crate::preflight::{self, Obstacle};
use crate::protocol::{Blocked, Crd, Hold, Pass, Preflight, StepKind, SweepEnd, Wanted};
use crate::record::Record;
use crate::report::Verified;
use crate::survey::Survey;

impl Engine {
    pub(super) fn begin(&mut self) {
        let pass = match (&self.subject, &self.definition) {
            (Subject::BuiltIn(_), _) => Pass::begin_built_in(),
            (Subject::Crd(_), Some(definition)) => self.begin_for(&definition.crd),
            (Subject::Crd(_), None) => return,
        };
        if pass.patrol_owed {
            self.unsettled_at = Some(Instant::now());
        }
        // What an earlier pass counted is not this one's progress.
        (self.report.rewrite, self.report.verify) = Default::default();
        self.busy(StepKind::Begin, None);
        self.report.stored_before.clone_from(&pass.stored_before);
        self.pass = Some(Pass {
            spec: self.spec.clone(),
            ..pass
        });
        self.trimmed_at = None;
    }

    /// A new pass for the CRD, or the patrol that an earlier one left.
    fn begin_for(&self, crd: &Crd) -> Pass {
        self.owed_by_record().unwrap_or_else(|| {
            let mut pass = Pass::begin(crd, self.pass.as_ref());
            pass.patrol_owed |= self.pass.is_none() && self.owed().is_some();
            pass
        })
    }

    /// What is on record as trimmed and not patrolled, if the patrol is asked for.
    fn owed(&self) -> Option<&Record> {
        let wanted = self.options.patrol && !self.options.always;
        let record = self.record.as_ref().filter(|record| !record.patrolled);
        record.filter(|_| wanted)
    }

    /// The pass that is on record as trimmed and not patrolled: all that is left of it is the patrol, unless there is
    /// something to shed.
    fn owed_by_record(&self) -> Option<Pass> {
        let record = self.owed().filter(|_| self.options.shed.is_empty())?;
        self.pass.is_none().then(|| Pass {
            uid: record.uid.clone(),
            generation: record.generation,
            stored_before: vec![record.storage_version.clone()],
            wanted: true,
            preflight: Some(Preflight::Passed),
            r0: record.r1,
            r0_at: Some(record.at),
            rewrite: Some(SweepEnd::default()),
            verify: Some(SweepEnd::default()),
            r1: record.r1,
            verified_in_full: record.verified == Verified::Full,
            trimmed: true,
            trimmed_at: Some(record.at),
            ..Pass::default()
        })
    }

    pub(super) async fn preflight(&mut self) -> Result<(), Error> {
        self.busy(StepKind::Preflight, None);
        let obstacle = match self.definition.clone() {
            None => self.forbidden_built_in().await?,
            Some(definition) if definition.endpoint().is_none() => Some(Obstacle::NothingServed),
            Some(definition) => match preflight::hidden(&self.client, &definition).await {
                Some(hidden) => Some(hidden),
                None => match self.look_at_objects(&definition).await {
                    Err(Unlisted::Cancelled) => return Ok(()),
                    Err(Unlisted::Because(obstacle)) => Some(obstacle),
                    Ok(None) => return Ok(()), // the rules say so as soon as nothing is wanted
                    Ok(Some(survey)) => {
                        let obstacle = self.obstacle(&definition, &survey).await?;
                        if self.control.is_cancelled() {
                            return Ok(()); // it may not have looked to the end
                        }
                        obstacle
                    }
                },
            },
        };
        let found = match &obstacle {
            None => Preflight::Passed,
            Some(obstacle) => Preflight::Blocked(blocked_by(obstacle)),
        };
        self.report.obstacle = obstacle;
        self.remember(|pass| pass.preflight = Some(found.clone()));
        Ok(())
    }

    /// Looks at objects' metadata, at all of it if that decides whether there is anything to do; `None`: there is not.
    async fn look_at_objects(&mut self, definition: &Definition) -> Result<Option<Survey>, Unlisted> {
        let mut pass = self.pass.clone().unwrap_or_default();
        let insisted = self.options.always || self.options.until_recorded && self.record.is_none();
        let mut why = Wanted {
            insisted,
            has_old_owners: false,
        };
        let survey = if pass.surveyed(&definition.crd, why) && !self.rehearsing {
            let retry = RetryPolicy::default();
            Survey::of_first_page(&self.api(), &retry)
                .await
                .map_err(|error| Unlisted::because(&exuvia_write::brief(&error)))?
        } else {
            let survey = Survey::of(self.sweep()).await.map_err(|error| {
                if error.is_cancelled() {
                    Unlisted::Cancelled
                } else {
                    Unlisted::because(&error.to_string())
                }
            })?;
            self.report.owners = survey.owners.clone();
            why.has_old_owners = !definition.old_among(survey.owners.versions()).is_empty();
            self.survey = Some(survey.clone());
            survey
        };
        let wanted = pass.surveyed(&definition.crd, why);
        self.pass = Some(pass);
        Ok(wanted.then_some(survey))
    }

    async fn obstacle(
        &mut self,
        definition: &Definition,
        survey: &Survey,
    ) -> Result<Option<Obstacle>, Error> {
        self.report.losses = None;
        self.try_etcd(survey.objects).await?;
        if let Some(silent) = preflight::answers(&self.client, &self.writer(), definition, survey).await {
            return Ok(Some(silent));
        }
        match self.try_trim().await {
            Err(Error::Write(error)) if error.class() == ErrorClass::Denied => {
                return Ok(Some(Obstacle::forbidden(&error.to_string())));
            }
            tried => tried?,
        }
        Ok(self.losses(definition, survey).await)
    }

    /// What a rewrite would lose, if that stands in the way.
    async fn losses(&mut self, definition: &Definition, survey: &Survey) -> Option<Obstacle> {
        self.looked_when_settled = self.is_settled;
        let accepted = self.options.accept_pruning;
        let looked = preflight::losses(&self.client, definition, survey, &self.control, accepted).await;
        match looked {
            Err(obstacle) => Some(obstacle),
            Ok(mut losses) => {
                if let Some(losses) = &mut losses {
                    losses.accepted = accepted && losses.holds();
                }
                self.report.losses.clone_from(&losses);
                let held = losses.filter(|losses| losses.holds() && !accepted);
                held.map(Box::new).map(Obstacle::Pruning)
            }
        }
    }

    /// Looks again for what a rewrite would lose: a server that was behind may have shown objects by old schemas. `false`:
    /// something stands in the way now.
    async fn look_again(&mut self) -> Result<bool, Error> {
        let Some(definition) = self.definition.clone() else {
            return Ok(true);
        };
        let api = self.api();
        let survey = Survey::of_first_page(&api, &RetryPolicy::default()).await?;
        let obstacle = self.losses(&definition, &survey).await;
        if self.control.is_cancelled() {
            return Ok(false);
        }
        self.looked_when_settled = true;
        let Some(obstacle) = obstacle else {
            return Ok(true);
        };
        let blocked = Preflight::Blocked(blocked_by(&obstacle));
        self.report.obstacle = Some(obstacle);
        self.remember(|pass| pass.preflight = Some(blocked));
        Ok(false)
    }

    /// Whether we may write to a built-in resource at all, tried on one object: better to know before 10,000 are refused.
    async fn forbidden_built_in(&self) -> Result<Option<Obstacle>, Error> {
        let api = self.api();
        let first = Survey::of_first_page(&api, &RetryPolicy::default()).await?;
        let Some(sample) = first.samples.values().next() else {
            return Ok(None);
        };
        Ok(match self.writer().dry_run().rewrite(&api, sample).await {
            Err(error) if MissingRule::named_in(&error.to_string()).is_some() => {
                Some(Obstacle::forbidden(&error.to_string()))
            }
            _ => None, // any other failure is about that object alone, and shows in the sweep
        })
    }

    /// Whether the CRD itself answers, looked at between the steps: an `APIService` may get a backend at any time. If it does
    /// not, what was swept since the last look may have been another server's objects, and is forgotten.
    pub(super) async fn unless_hidden(&mut self) -> Option<Hold> {
        let definition = self.definition.clone()?;
        let obstacle = preflight::hidden(&self.client, &definition).await?;
        let blocked = blocked_by(&obstacle);
        let is_hidden = matches!(obstacle, Obstacle::Hidden(_));
        self.report.obstacle = Some(obstacle);
        self.remember(|pass| pass.hide(blocked, is_hidden));
        Some(Hold::Blocked(blocked))
    }

    pub(super) async fn take_r0(&mut self) -> Result<(), Error> {
        if self.unless_hidden().await.is_some() {
            return Ok(());
        }
        if !self.looked_when_settled && !self.look_again().await? {
            return Ok(());
        }
        // Before the list: what it shows was written before that moment, or is explained by it.
        let at = self.clock.now();
        let count = self
            .sweep()
            .count()
            .await
            .map_err(|source| Error::unlisted(&self.name, source))?;
        if count.resource_version.is_none() {
            return Err(Error::Incomparable {
                resource: self.name.clone(),
            });
        }
        self.remember(|pass| {
            pass.r0 = count.resource_version;
            pass.r0_at = Some(at);
        });
        Ok(())
    }
}

fn blocked_by(obstacle: &Obstacle) -> Blocked {
    match obstacle {
        Obstacle::Pruning(_) => Blocked::Pruning,
        Obstacle::Forbidden { .. } => Blocked::Forbidden,
        _ => Blocked::Preflight,
    }
}

/// Why objects could not be looked at.
enum Unlisted {
    Cancelled,
    Because(Obstacle),
}

impl Unlisted {
    fn because(text: &str) -> Self {
        Self::Because(match MissingRule::named_in(text) {
            Some(_) => Obstacle::forbidden(text),
            None => Obstacle::NoList {
                message: Redacted::from_server(text),
            },
        })
    }
}
