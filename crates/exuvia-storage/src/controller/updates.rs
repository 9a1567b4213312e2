//! What people are told of a migration: the update of its status, and the events that go with it.

use exuvia_api::{Phase, StorageMigration, reason};
use exuvia_runtime::publish::StallCause;
use exuvia_runtime::{EventKind, Next};
use exuvia_write::{Name, Redacted, redacted};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Resource;
use tokio::sync::watch;

use super::running::swept;
use super::status::{self, StatusUpdate};
use super::words;
use super::{StorageController, lock};
use crate::Error;
use crate::audience::Audience;
use crate::engine::{Activity, Engine};
use crate::forbidden::MissingRule;
use crate::protocol::{self, NextStep, Pass};
use crate::report::MigrationReport;

/// A server that fails so often in a row is worth a word in the status; once is a hiccup.
const WORTH_A_WORD: u32 = 3;

impl StorageController {
    /// Events first, then the status: after a crash in between the same event is published again, which changes nothing.
    pub(super) async fn tell(
        &self,
        migration: &mut StorageMigration,
        update: &StatusUpdate,
    ) -> Result<(), Error> {
        let before = migration.status.as_ref().and_then(|status| status.phase);
        let pass = update.pass.as_ref();
        let crd = crd_of(migration, pass);
        let normal = |reason, note| (EventKind::Normal, reason, note);
        let event = match (&update.stall_cause, update.phase) {
            (Some(cause), Phase::Stalled) => {
                self.publisher.warn(migration, crd.as_ref(), cause).await;
                None
            }
            (_, Phase::Rewriting) if before != Some(Phase::Rewriting) => {
                Some(normal("Rewriting", rewriting_note(update)))
            }
            (_, Phase::Migrated)
                if before != Some(Phase::Migrated) && pass.is_some_and(Pass::is_migrated) =>
            {
                Some(normal("Migrated", migrated_note(update)))
            }
            _ => None,
        };
        if let Some((kind, reason, note)) = event {
            self.publisher
                .event(migration, crd.as_ref(), kind, reason, &note)
                .await;
        }
        self.publish(migration, update).await
    }

    /// Writes the status, and shows it in gauges and log.
    pub(super) async fn publish(
        &self,
        migration: &mut StorageMigration,
        update: &StatusUpdate,
    ) -> Result<(), Error> {
        let published = self.publisher.publish(migration, update).await;
        published.map_err(Error::Publish)
    }

    pub(super) async fn refuse(
        &self,
        migration: &mut StorageMigration,
        reason: &'static str,
        message: Redacted,
    ) -> Result<Next, Error> {
        let cause = StallCause {
            reason,
            message: message.clone(),
        };
        self.publisher.warn(migration, None, &cause).await;
        self.publish(
            migration,
            &StatusUpdate::new(Phase::Stalled, message, Some(cause)),
        )
        .await?;
        Ok(Next::Await)
    }

    /// Puts an error that comes back again and again, or one that no waiting cures, into the status.
    pub(super) async fn tell_of(&self, resource: &str, error: &Error, times: u32) {
        let text = error.to_string();
        let missing = MissingRule::named_in(&text);
        let hopeless = matches!(
            error,
            Error::ProofImpossible | Error::Ambiguous { .. } | Error::NotStored { .. }
        );
        if missing.is_none() && !hopeless && times < WORTH_A_WORD {
            return;
        }
        let Some(seen) = self.world().decide(resource, &self.settings.operator).active else {
            return;
        };
        let Ok(Some(mut migration)) = self.migrations().get_opt(&seen.name).await else {
            return;
        };
        let looked_at = lock(&self.looked_at).get(resource).copied();
        if looked_at.is_some_and(|generation| generation != migration.metadata.generation) {
            return; // the error is about a spec that is no longer; the change has queued the new one
        }
        let cause = match missing {
            Some(rule) => StallCause {
                reason: reason::FORBIDDEN,
                message: redacted!(
                    "not allowed; add this rule to the role: {}",
                    Name(&rule.to_string())
                ),
            },
            None => StallCause {
                reason: if hopeless {
                    reason::INVALID_SPEC
                } else {
                    reason::SERVER_ERRORS
                },
                message: Redacted::from_server(&error.sentence(Audience::StorageMigration)),
            },
        };
        let before = migration.status.clone().unwrap_or_default();
        let update = StatusUpdate {
            progress: before.progress.map(status::at_rest),
            failures: before.failures,
            losses: before.losses,
            ..StatusUpdate::new(Phase::Stalled, cause.message.clone(), Some(cause.clone()))
        };
        self.publisher.warn(&migration, None, &cause).await;
        // It may well fail for the same reason: then the log is all there is.
        let _ = self.publish(&mut migration, &update).await;
    }
}

/// What is to be said before a step is done.
pub(super) fn update(
    engine: &Engine,
    activity: &watch::Receiver<Option<Activity>>,
    next: &protocol::Next,
    migration: &StorageMigration,
) -> StatusUpdate {
    let report = engine.report();
    let phase = status::phase_of(next, engine.pass());
    let cause = match next {
        NextStep::Hold(hold) => hold.reason().map(|reason| StallCause {
            reason,
            message: with_names(engine.sentence(hold), report),
        }),
        _ => None,
    };
    let message = match &cause {
        Some(cause) => cause.message.clone(),
        None => Redacted::ours(words::sentence(phase, &report.storage_version)),
    };
    let before = migration.status.clone().unwrap_or_default();
    let same_pass = status::pass_of(&before)
        .zip(engine.pass())
        .is_some_and(|(before, now)| {
            (before.uid, before.generation, before.r0) == (now.uid.clone(), now.generation, now.r0)
        });
    // What an earlier process counted in this pass is better than nothing, but for a sweep that it did not finish.
    let earlier = before.progress.filter(|_| same_pass).map(status::at_rest);
    let earlier = earlier.filter(|progress| phase != Phase::Migrated || progress.done == progress.total);
    let progress = status::finished(&report.rewrite)
        .or_else(|| status::finished(&report.verify))
        .or_else(|| swept(activity).and_then(|tally| status::finished(&tally)))
        .or(earlier);
    let losses = match &report.losses {
        _ if phase == Phase::Pending => None, // not looked at yet
        Some(losses) => status::losses(losses),
        None => before.losses.filter(|_| same_pass),
    };
    StatusUpdate {
        phase,
        message,
        pass: engine.pass().cloned(),
        storage_version: report.storage_version.clone(),
        stored_after: report.stored_after.clone(),
        progress,
        failures: status::failures(&report.failures)
            .or(before.failures.filter(|_| cause.is_some() && same_pass)),
        losses,
        stall_cause: cause,
        outlook: None,
        looked_at: None,
    }
}

/// The first objects that failed, by name, after the sentence that counts them.
pub(super) fn with_names(mut sentence: Redacted, report: &MigrationReport) -> Redacted {
    for failure in report.failures.first.iter().take(3) {
        sentence = redacted!(
            "{}; {} [{}] {}",
            sentence,
            Name(&failure.object()),
            failure.class,
            &failure.message
        );
    }
    sentence
}

fn rewriting_note(update: &StatusUpdate) -> Redacted {
    let begun = match update.storage_version.as_str() {
        "" => "rewriting objects".to_owned(),
        version => format!("rewriting objects at {version}"),
    };
    let accepted = words::accepted(update.losses.as_ref(), update.phase);
    let parts: Vec<String> = [begun].into_iter().chain(accepted).collect();
    Redacted::ours(parts.join("; "))
}

/// The CRD that a pass is about, for events.
pub(super) fn crd_of(migration: &StorageMigration, pass: Option<&Pass>) -> Option<ObjectReference> {
    let pass = pass.filter(|pass| !pass.is_built_in())?;
    Some(ObjectReference {
        api_version: Some(CustomResourceDefinition::api_version(&()).into_owned()),
        kind: Some(CustomResourceDefinition::kind(&()).into_owned()),
        name: Some(migration.spec.resource.clone()),
        uid: Some(pass.uid.clone()),
        ..ObjectReference::default()
    })
}

fn migrated_note(update: &StatusUpdate) -> Redacted {
    let mut note = words::sentence(Phase::Migrated, &update.storage_version);
    if let Some(pass) = update.pass.as_ref().filter(|pass| !pass.stored_before.is_empty()) {
        note.push_str(&format!("; storedVersions was {}", pass.stored_before.join(", ")));
    }
    if let Some(outlook) = &update.outlook
        && !outlook.droppable.is_empty()
    {
        note.push_str(&format!("; may be dropped: {}", outlook.droppable.join(", ")));
    }
    if let Some(accepted) = words::accepted(update.losses.as_ref(), update.phase) {
        note.push_str(&format!("; {accepted}"));
    }
    Redacted::ours(note)
}
