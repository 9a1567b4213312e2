//! Puts on record what must survive a crash: locked writes of the migration's status.

use exuvia_api::{
    DatastoreMigration, DatastoreMigrationStatus, DatastorePhase, UndoState, datastore_condition as condition,
};
use exuvia_write::{ErrorClass, conditions, redacted};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::SignedDuration;

use super::Engine;
use crate::Error;
use crate::protocol::{Stage, Undo};

/// After the first undo that is followed by another try; it doubles with each one.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(5);

/// How often a record is tried again when somebody else wrote the status, such as our own progress.
const MAX_TRIES: usize = 5;

impl Engine {
    /// Writes the status, only if what was decided upon still holds: same spec, phase, undo and deletion.
    pub(super) async fn record(
        &mut self,
        change: impl Fn(&mut DatastoreMigrationStatus, &DatastoreMigration),
    ) -> Result<(), Error> {
        let decided_upon = Basis::of(&self.migration);
        for _ in 0..MAX_TRIES {
            let fresh = self.api.get(&self.name).await?;
            if Basis::of(&fresh) != decided_upon {
                return Err(Error::Changed("the migration was changed"));
            }
            let write = |object: &mut DatastoreMigration| {
                let before = object.clone();
                change(object.status.get_or_insert_default(), &before);
            };
            match self.writer.patch_status_locked(&self.api, &fresh, write).await {
                Ok(written) => {
                    self.migration = written.object;
                    return Ok(());
                }
                Err(error) if error.class() == ErrorClass::Conflict => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Changed(
            "the migration's status was written at the same time",
        ))
    }

    /// Puts a stage on record as a condition, and whatever else belongs to it.
    pub(super) async fn record_stage(
        &mut self,
        condition: &'static str,
        message: &'static str,
        also: impl Fn(&mut DatastoreMigrationStatus),
    ) -> Result<(), Error> {
        self.record(|status, migration| {
            let condition = conditions::new(migration, condition, true, condition, message);
            conditions::set(&mut status.conditions, condition);
            also(status);
        })
        .await
    }

    /// Puts on record that everything is to be undone, and why.
    pub(super) async fn record_undo(&mut self, undo: Undo) -> Result<(), Error> {
        let detail = self.undo_detail(undo);
        let state = UndoState {
            reason: undo.reason().to_owned(),
            message: detail,
            then: undo.then(),
        };
        if Stage::from_record(&self.observed.record) != Stage::Idle {
            return self.record(|status, _| status.undo = Some(state.clone())).await;
        }
        // As `Record::found_locked` has it.
        let now = self.now().await;
        let message = "copies may exist: the status that knew of them was removed";
        self.record_stage(condition::ROUTED, message, |status| {
            status.phase = Some(DatastorePhase::Migrating);
            status.frozen_at = Some(now.clone());
            status.undo = Some(state.clone());
        })
        .await
    }

    /// Why everything is undone, in a sentence.
    fn undo_detail(&self, undo: Undo) -> String {
        match undo {
            Undo::MaxDuration => format!(
                "the freeze lasted longer than freeze.maxDuration ({})",
                self.migration.spec.freeze.max_duration
            ),
            Undo::PolicyRemoved => {
                "somebody removed or changed the policies of the freeze, so writes may have passed".to_owned()
            }
            Undo::RouteContested => format!(
                "somebody puts the APIService {} back again and again: stop what manages it, then run \
                 `exuvia datastore retry`",
                self.migration.spec.cutover.api_service
            ),
            Undo::VerifyFailed => match &self.message {
                Some(first) => {
                    redacted!("targets are not as they were written: {}", first.clone()).into_string()
                }
                None => "targets are not as they were written".to_owned(),
            },
            Undo::Conflict => "targets exist that differ from what would be written".to_owned(),
            Undo::Refused => match self.blockers.first() {
                Some(first) => first.message.clone(),
                None => "objects cannot be copied".to_owned(),
            },
            Undo::Interrupted if Stage::from_record(&self.observed.record) == Stage::Idle => {
                "the status was removed during the freeze; what flags and the APIService were before is not known any more: \
                 look at them"
                    .to_owned()
            }
            Undo::Interrupted => "the process ended during the switch of the APIService".to_owned(),
        }
    }

    /// Puts on record that everything is undone: nothing is locked, and what was saved is back in its place.
    pub(super) async fn record_undone(&mut self) -> Result<(), Error> {
        let blockers = self.blockers.clone();
        let after = self.observed.record.undone();
        // What a dry run does not see is found under the freeze. To freeze again at once would keep writers away for good.
        let doubled = 1 << after.retreats.saturating_sub(1).min(7);
        let not_before = Time(self.now().await.0 + FIRST_PAUSE * doubled);
        self.record(|status, migration| {
            let undo = status.undo.take().unwrap_or_default();
            if undo.reason == Undo::Refused.reason() || status.saved.copies_left > 0 {
                status.blockers.clone_from(&blockers);
            }
            status.phase = Some(after.phase);
            status.retreats = i32::from(after.retreats);
            status.observed_generation = migration.metadata.generation;
            status.started_at = None;
            status.frozen_at = None;
            status.saved = exuvia_api::SavedState {
                copies_left: status.saved.copies_left,
                ..exuvia_api::SavedState::default()
            };
            for stage in exuvia_api::datastore_condition::ALL {
                if stage != exuvia_api::datastore_condition::VALIDATED {
                    conditions::remove(&mut status.conditions, stage);
                }
            }
            let failed = after.phase == DatastorePhase::Failed;
            status.not_before = Some(not_before.clone()).filter(|_| !failed);
            status.message = if status.saved.copies_left > 0 {
                format!(
                    "everything was undone but {}, which somebody keeps from being deleted behind the APIService: {}",
                    exuvia_api::counted(status.saved.copies_left.unsigned_abs(), "copy"),
                    undo.message
                )
            } else if failed {
                format!("everything was undone: {}", undo.message)
            } else {
                undo.message
            };
        })
        .await
    }

    /// Now, by the server's clock.
    pub(super) async fn now(&mut self) -> Time {
        self.clock.ask(&self.client).await;
        Time(self.clock.now())
    }
}

/// What a step was decided upon.
#[derive(PartialEq)]
struct Basis {
    uid: Option<String>,
    generation: Option<i64>,
    is_deleted: bool,
    phase: Option<DatastorePhase>,
    undo: Option<UndoState>,
}

impl Basis {
    fn of(migration: &DatastoreMigration) -> Self {
        let status = migration.status.as_ref();
        Self {
            uid: migration.metadata.uid.clone(),
            generation: migration.metadata.generation,
            is_deleted: migration.metadata.deletion_timestamp.is_some(),
            phase: status.and_then(|status| status.phase),
            undo: status.and_then(|status| status.undo.clone()),
        }
    }
}
