//! Tells of a migration: events, status, log.

use exuvia_api::{Phase, StorageMigration, condition, reason};
use exuvia_runtime::{EventKind, Next};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Resource;

use super::StorageController;
use super::follow::swept;
use super::run::Work;
use super::status::{self, News, Trouble};
use super::words;
use crate::audience::Audience;
use crate::droppable::Outlook;
use crate::forbidden::MissingRule;
use crate::protocol::{Pass, Step};
use crate::report::Report;
use crate::{Error, redact};

/// A server that fails so often in a row is worth a word in the status; once is a hiccup.
const WORTH_A_WORD: u32 = 3;

impl StorageController {
    /// Events first, then the status: whoever crashes in between tells again, and an event that is there stays one.
    /// `outlook` is what is known of the CRD's versions, if anything new is.
    pub(super) async fn tell(
        &self,
        migration: &mut StorageMigration,
        work: &Work,
        step: &Step,
        outlook: Option<Outlook>,
    ) -> Result<(), Error> {
        let news = News {
            outlook,
            ..news(work, step, migration)
        };
        let before = migration.status.as_ref().and_then(|status| status.phase);
        let pass = work.engine.pass();
        match (&news.trouble, news.phase) {
            // One that fails for the same reason as the last time is no news.
            (Some(trouble), Phase::Stalled) if !is_told(migration, trouble) => {
                self.event(
                    migration,
                    pass,
                    EventKind::Warning,
                    trouble.reason,
                    &trouble.message,
                )
                .await;
            }
            (_, Phase::Rewriting) if before != Some(Phase::Rewriting) => {
                let accepted = words::accepted(news.losses.as_ref(), news.phase);
                let note = [format!("rewriting objects at {}", news.storage_version)]
                    .into_iter()
                    .chain(accepted)
                    .collect::<Vec<String>>()
                    .join("; ");
                self.event(migration, pass, EventKind::Normal, "Rewriting", &note)
                    .await;
            }
            (_, Phase::Migrated)
                if before != Some(Phase::Migrated) && pass.is_some_and(|pass| pass.trimmed) =>
            {
                let note = migrated_note(&news);
                self.event(migration, pass, EventKind::Normal, "Migrated", &note)
                    .await;
            }
            _ => {}
        }
        self.publish(migration, &news).await
    }

    pub(super) async fn publish(&self, migration: &mut StorageMigration, news: &News) -> Result<(), Error> {
        let before = migration.status.as_ref().and_then(|status| status.phase);
        self.write_status(migration, news).await?;
        let resource = migration.spec.resource.as_str();
        let trouble = news.trouble.as_ref().map(|trouble| trouble.reason);
        self.own_metrics.phase(resource, news.phase, trouble);
        if before != Some(news.phase) {
            let phase = news.phase.as_str();
            if let Some(trouble) = &news.trouble {
                tracing::warn!(%resource, phase, reason = trouble.reason, "{}", trouble.message);
            } else {
                tracing::info!(%resource, phase, "{}", news.message);
            }
        }
        Ok(())
    }

    /// Writes the status of a migration as the caller knows it: a spec that was changed since is not what `news` is about.
    pub(super) async fn write_status(
        &self,
        migration: &mut StorageMigration,
        news: &News,
    ) -> Result<(), Error> {
        let generation = migration.metadata.generation;
        let written = self
            .writer
            // Locked: a former leader's, decided before it was stopped, must not overwrite its successor's.
            .patch_status_with_retry(&self.migrations(), migration, |migration| {
                news.tell(migration, generation);
            })
            .await
            .map_err(Error::Publish)?;
        *migration = written.object;
        Ok(())
    }

    /// An event about trouble that the status does not tell of yet.
    pub(super) async fn warn(&self, migration: &StorageMigration, trouble: &Trouble) {
        if !is_told(migration, trouble) {
            self.event(
                migration,
                None,
                EventKind::Warning,
                trouble.reason,
                &trouble.message,
            )
            .await;
        }
    }

    pub(super) async fn refuse(
        &self,
        migration: &mut StorageMigration,
        reason: &'static str,
        message: String,
    ) -> Result<Next, Error> {
        let trouble = Trouble {
            reason,
            message: message.clone(),
        };
        self.warn(migration, &trouble).await;
        self.publish(migration, &News::of(Phase::Stalled, message, Some(trouble)))
            .await?;
        Ok(Next::Await)
    }

    /// An event on the migration, and one on its CRD: people look at either.
    pub(super) async fn event(
        &self,
        migration: &StorageMigration,
        pass: Option<&Pass>,
        kind: EventKind,
        reason: &str,
        note: &str,
    ) {
        let about = migration.object_ref(&());
        self.events.publish(&about, kind, reason, "Migrate", note).await;
        if let Some(pass) = pass {
            let crd = ObjectReference {
                api_version: Some(CustomResourceDefinition::api_version(&()).into_owned()),
                kind: Some(CustomResourceDefinition::kind(&()).into_owned()),
                name: Some(migration.spec.resource.clone()),
                uid: Some(pass.uid.clone()),
                ..ObjectReference::default()
            };
            self.events.publish(&crd, kind, reason, "Migrate", note).await;
        }
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
        let trouble = match missing {
            Some(rule) => Trouble {
                reason: reason::FORBIDDEN,
                message: format!("not allowed; add this rule to the role: {rule}"),
            },
            None => Trouble {
                reason: if hopeless {
                    reason::INVALID_SPEC
                } else {
                    reason::SERVER_ERRORS
                },
                message: redact(&error.sentence(Audience::StorageMigration)),
            },
        };
        let before = migration.status.clone().unwrap_or_default();
        let news = News {
            progress: before.progress.map(status::at_rest),
            failures: before.failures,
            losses: before.losses,
            ..News::of(Phase::Stalled, trouble.message.clone(), Some(trouble.clone()))
        };
        self.warn(&migration, &trouble).await;
        // It may well fail for the same reason: then the log is all there is.
        let _ = self.publish(&mut migration, &news).await;
    }
}

/// Whether the status tells of this trouble already.
pub(super) fn is_told(migration: &StorageMigration, trouble: &Trouble) -> bool {
    let conditions = migration.status.iter().flat_map(|status| &status.conditions);
    conditions
        .filter(|condition| condition.type_ == condition::STALLED && condition.status == "True")
        .any(|condition| condition.reason == trouble.reason && condition.message == trouble.message)
}

/// What is to be said before a step is done.
fn news(work: &Work, step: &Step, migration: &StorageMigration) -> News {
    let engine = &work.engine;
    let report = engine.report();
    let phase = status::phase_of(step, engine.pass());
    let trouble = match step {
        Step::Hold(hold) => hold.reason().map(|reason| Trouble {
            reason,
            message: with_names(&engine.sentence(hold), report),
        }),
        _ => None,
    };
    let message = match &trouble {
        Some(trouble) => trouble.message.clone(),
        None => words::sentence(phase, &report.storage_version),
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
        .or_else(|| swept(&work.activity).and_then(|tally| status::finished(&tally)))
        .or(earlier);
    let losses = match &report.losses {
        _ if phase == Phase::Pending => None, // not looked at yet
        Some(losses) => status::losses(losses),
        None => before.losses.filter(|_| same_pass),
    };
    News {
        phase,
        message,
        pass: engine.pass().cloned(),
        storage_version: report.storage_version.clone(),
        stored_after: report.stored_after.clone(),
        progress,
        failures: status::failures(&report.failures)
            .or(before.failures.filter(|_| trouble.is_some() && same_pass)),
        losses,
        trouble,
        outlook: None,
    }
}

/// The first objects that failed, by name, after the sentence that counts them.
pub(super) fn with_names(sentence: &str, report: &Report) -> String {
    let mut text = sentence.to_owned();
    for failure in report.failures.first.iter().take(3) {
        text.push_str(&format!(
            "; {} [{}] {}",
            failure.object(),
            failure.class,
            failure.message
        ));
    }
    text
}

fn migrated_note(news: &News) -> String {
    let mut note = words::sentence(Phase::Migrated, &news.storage_version);
    if let Some(pass) = news.pass.as_ref().filter(|pass| !pass.stored_before.is_empty()) {
        note.push_str(&format!("; storedVersions was {}", pass.stored_before.join(", ")));
    }
    if let Some(outlook) = &news.outlook
        && !outlook.droppable.is_empty()
    {
        note.push_str(&format!("; may be dropped: {}", outlook.droppable.join(", ")));
    }
    if let Some(accepted) = words::accepted(news.losses.as_ref(), news.phase) {
        note.push_str(&format!("; {accepted}"));
    }
    note
}
