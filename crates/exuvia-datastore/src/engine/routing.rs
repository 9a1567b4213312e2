//! The steps that let the target CRDs answer instead of another API server, and back.

use super::Engine;
use super::freezing::BETWEEN_PROBES;
use super::observe::uid_of;
use super::work::Work;
use crate::Error;
use crate::protocol::Synced;
use crate::route::Removed;

impl Engine {
    /// The uids first, then the record: after a crash in between the uids are read again.
    pub(super) async fn save_route(&mut self) -> Result<(), Error> {
        let work = self.work()?;
        let Some(route) = &work.route else {
            return Ok(());
        };
        // What is followed is asked for one by one, up to the switch: a look at all objects would be one under the freeze.
        let is_followed = self.observed.wants.second && self.seen.synced == Synced::Yes;
        if !is_followed {
            Box::pin(read_aliases(work)).await?;
        }
        let saved = route.save().await?;
        self.record(|status, _| status.saved.api_service = saved.clone())
            .await?;
        self.seen.aliases = true;
        Ok(())
    }

    pub(super) async fn remove_route(&mut self) -> Result<(), Error> {
        self.seen.routed_everywhere = false;
        let saved = self.migration.status.clone().unwrap_or_default().saved;
        let Some(route) = &self.work()?.route else {
            return Ok(());
        };
        match route.remove(&saved.api_service).await? {
            Removed::Gone => Ok(()),
            Removed::CameBack => {
                // What came back is what people want back in the end.
                let again = route_value(self.work()?).await?;
                self.record(|status, _| {
                    status.saved.api_service_returned += 1;
                    if let Some(again) = &again {
                        status.saved.api_service = again.clone();
                    }
                })
                .await
            }
            Removed::Changed => {
                let again = route_value(self.work()?).await?;
                self.record(|status, _| {
                    if let Some(again) = &again {
                        status.saved.api_service = again.clone();
                    }
                })
                .await
            }
        }
    }

    pub(super) async fn await_route(&mut self) -> Result<(), Error> {
        let work = self.work()?;
        let Some(route) = &work.route else {
            self.seen.routed(&self.observed.wants);
            return Ok(());
        };
        let by = uid_of(&route.observe().await?).to_owned();
        let aliases = Vec::from_iter(work.mover.aliases.sample());
        let answers = route.answered_by_crds(&routed_kinds(work), &aliases).await?;
        if answers.all_by_crds() && uid_of(&route.observe().await?) == by {
            self.routed_by = Some(by);
            self.seen.routed(&self.observed.wants);
            return Ok(());
        }
        let is_stale = answers.is_discovery_stale();
        let first = answers.not_yet().into_iter().next();
        if is_stale {
            route.refresh_discovery().await?;
        }
        self.message = first;
        tokio::time::sleep(BETWEEN_PROBES).await;
        Ok(())
    }

    pub(super) async fn await_backend(&mut self) -> Result<(), Error> {
        let work = self.work()?;
        let Some(route) = &work.route else {
            self.seen.backend_everywhere = true;
            return Ok(());
        };
        let answers = route.answered_by_crds(&routed_kinds(work), &[]).await?;
        if answers.all_by_backend() {
            self.seen.backend_everywhere = true;
        } else {
            tokio::time::sleep(BETWEEN_PROBES).await;
        }
        Ok(())
    }

    /// Dependents that nobody looks for have no anchor either.
    pub(super) async fn anchor_dependents(&mut self) -> Result<(), Error> {
        if self.migration.spec.references.dependents == exuvia_api::Dependents::Scan {
            self.work()?.mover.anchor_dependents().await?;
        }
        self.seen.anchored = true;
        Ok(())
    }

    pub(super) async fn undo_route(&mut self) -> Result<(), Error> {
        let saved = self.migration.status.clone().unwrap_or_default().saved;
        if let Some(route) = &self.work()?.route {
            route.restore(&saved.api_service).await?;
        }
        Ok(())
    }
}

/// Reads all uids under which the other API server shows objects.
pub(super) async fn read_aliases(work: &Work) -> Result<(), Error> {
    if let Some(route) = &work.route {
        let mut aliases = Vec::new();
        let kinds = routed_kinds(work);
        route.alias_uids(&kinds, |alias| aliases.push(alias)).await?;
        for alias in aliases {
            work.mover.aliases.learn(alias);
        }
    }
    Ok(())
}

/// The target kinds that the APIService answers for.
pub(super) fn routed_kinds(work: &Work) -> Vec<kube::api::ApiResource> {
    let kinds = work.mover.kinds.targets().into_iter();
    kinds.map(|kind| kind.resource.clone()).collect()
}

async fn route_value(work: &Work) -> Result<Option<serde_json::Value>, Error> {
    match &work.route {
        Some(route) => match route.save().await {
            Ok(value) => Ok(Some(value)),
            Err(crate::route::Error::NoBackend { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        },
        None => Ok(None),
    }
}
