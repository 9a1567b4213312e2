//! What a migration's status shows from outside, with the time at which it was seen.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use exuvia_api::{DatastoreMigration, DatastorePhase};
use futures::StreamExt;
use kube::Api;
use kube::api::{WatchEvent, WatchParams};

/// A change of the status.
#[derive(Clone, Debug)]
struct Moment {
    at: Instant,
    phase: DatastorePhase,
    step: String,
    is_frozen: bool,
}

/// The changes of a status in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline(Vec<Moment>);

impl Timeline {
    /// Follows a migration up to this phase. `converged` becomes true as soon as the commit is seen.
    pub(crate) async fn follow(
        api: &Api<DatastoreMigration>,
        name: &str,
        last: DatastorePhase,
        converged: &AtomicBool,
    ) -> anyhow::Result<Self> {
        let mut timeline = Self::default();
        loop {
            let migration = api.get(name).await?;
            if timeline.note(&migration, last, converged)? {
                return Ok(timeline);
            }
            let version = migration.metadata.resource_version.unwrap_or_default();
            let only = WatchParams::default().fields(&format!("metadata.name={name}"));
            let mut events = std::pin::pin!(api.watch(&only, &version).await?);
            while let Some(event) = events.next().await {
                match event {
                    Ok(WatchEvent::Added(migration) | WatchEvent::Modified(migration)) => {
                        if timeline.note(&migration, last, converged)? {
                            return Ok(timeline);
                        }
                    }
                    Ok(WatchEvent::Deleted(_)) => bail!("{name} was deleted"),
                    Ok(WatchEvent::Bookmark(_)) => {}
                    Ok(WatchEvent::Error(_)) | Err(_) => break, // and again from the beginning
                }
            }
        }
    }

    /// Adds what is new; `true`: it was the last.
    fn note(
        &mut self,
        migration: &DatastoreMigration,
        last: DatastorePhase,
        converged: &AtomicBool,
    ) -> anyhow::Result<bool> {
        let Some(status) = &migration.status else {
            return Ok(false);
        };
        let phase = status.phase.unwrap_or_default();
        let has_ended = matches!(
            phase,
            DatastorePhase::Failed | DatastorePhase::WaitingForConflictResolution
        );
        if has_ended || status.undo.is_some() || status.retreats > 0 || !status.blockers.is_empty() {
            bail!(
                "the migration does not go on: {:?}: {}",
                status.phase,
                status.message
            );
        }
        if phase >= DatastorePhase::Converged {
            converged.store(true, Ordering::Relaxed);
        }
        let moment = Moment {
            at: Instant::now(),
            phase,
            step: status.step.clone(),
            is_frozen: status.frozen_at.is_some(),
        };
        let is_new = self.0.last().is_none_or(|before| {
            (before.phase, &before.step, before.is_frozen) != (moment.phase, &moment.step, moment.is_frozen)
        });
        if is_new {
            self.0.push(moment);
        }
        Ok(phase >= last)
    }

    /// For how long this step was shown, in seconds; with `frozen`, only while writers were refused.
    pub(crate) fn seconds_in(&self, step: &str, frozen: bool) -> f64 {
        let shown = self.0.windows(2).filter(|pair| {
            pair[0].step == step
                && pair[0].phase < DatastorePhase::Converged
                && (!frozen || pair[0].is_frozen)
        });
        shown
            .map(|pair| pair[1].at - pair[0].at)
            .sum::<Duration>()
            .as_secs_f64()
    }

    /// From the beginning of the freeze, as the status says it, to the commit.
    pub(crate) fn frozen_seconds(&self) -> Option<f64> {
        let began = self.0.iter().find(|moment| moment.is_frozen)?;
        let phase = DatastorePhase::Converged;
        let ended = self.0.iter().find(|moment| moment.phase >= phase)?;
        Some((ended.at - began.at).as_secs_f64())
    }
}
