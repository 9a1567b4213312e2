//! Migrations of built-in resources: no CRD, no R0, every object patched twice.

use exuvia_api::{Phase, StorageMigration, reason};
use exuvia_runtime::{EventKind, Next, Signal};
use exuvia_sweep::Control;
use tokio::sync::watch;

use super::StorageController;
use super::follow::Beside;
use super::status::{self, News, Trouble};
use super::tell::{is_told, with_names};
use super::world::SeenMigration;
use crate::report::End;
use crate::{Error, Options, builtin};

impl StorageController {
    /// A built-in resource: every object is patched twice, once per generation of the spec.
    pub(super) async fn migrate_builtin(
        &self,
        seen: &SeenMigration,
        migration: &mut StorageMigration,
        options: &Options,
        signal: &Signal,
    ) -> Result<Next, Error> {
        let generation = migration.metadata.generation;
        let status = migration.status.clone().unwrap_or_default();
        if migration.spec.suspend {
            let message = status::sentence(Phase::Suspended, "");
            self.publish(migration, &News::of(Phase::Suspended, message, None))
                .await?;
            return Ok(Next::Await);
        }
        // A status that is about a CRD tells of one that is gone.
        let done = status.phase == Some(Phase::Migrated)
            && status.observed.is_none()
            && status.observed_generation == migration.metadata.generation;
        if done {
            return Ok(Next::Await);
        }
        let is_crd = |group: &str, plural: &str| self.world().crd(&format!("{plural}.{group}")).is_some();
        let resource = match builtin::find(&self.client, &seen.resource, is_crd).await {
            Err(Error::NotFound { .. }) => {
                let message = format!(
                    "there is no CRD or built-in resource named {}; it is taken up as soon as there is",
                    seen.resource
                );
                self.refuse(migration, reason::NO_SUCH_RESOURCE, message).await?;
                return Ok(Next::Retry); // a CRD would be seen; an aggregated API comes unseen
            }
            found => found?,
        };
        if status.phase != Some(Phase::Stalled) {
            let message = "objects are rewritten".to_owned();
            self.publish(migration, &News::of(Phase::Rewriting, message, None))
                .await?;
        }
        let control = Control::new();
        let writer = self.writer_for(&control);
        let (send, activity) = watch::channel(None);
        let tell = move |activity| {
            send.send_replace(Some(activity));
        };
        let beside = Beside {
            seen,
            pass: None,
            control: &control,
            activity: &activity,
            rewriting: true,
            signal,
        };
        let migrating = builtin::migrate_builtin(&self.client, &writer, &resource, options, &control, &tell);
        let report = Box::pin(self.accompany(&beside, migration, migrating)).await;
        self.own_metrics.at_rest(&seen.resource);
        let report = report?;
        let (phase, trouble) = match &report.end {
            End::Cancelled => return Ok(Next::Await),
            // What was done was done for another spec.
            _ if migration.metadata.generation != generation => return Ok(Next::Await),
            End::Stalled { reason, message } => (
                Phase::Stalled,
                Some(Trouble {
                    reason,
                    message: with_names(message, &report),
                }),
            ),
            _ => (Phase::Migrated, None),
        };
        let message = match &trouble {
            Some(trouble) => trouble.message.clone(),
            None => "every object is stored as the API servers store it now".to_owned(),
        };
        let (kind, event) = match &trouble {
            Some(trouble) => (EventKind::Warning, trouble.reason),
            None => (EventKind::Normal, "Migrated"),
        };
        if trouble
            .as_ref()
            .is_none_or(|trouble| !is_told(migration, trouble))
        {
            self.event(migration, None, kind, event, &message).await;
        }
        let news = News {
            progress: status::finished(&report.rewrite),
            failures: status::failures(&report.failures),
            ..News::of(phase, message, trouble)
        };
        let next = if news.trouble.is_some() {
            Next::Retry
        } else {
            Next::Await
        };
        self.publish(migration, &news).await?;
        Ok(next)
    }
}
