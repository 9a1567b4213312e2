//! What becomes of old versions: what is seen of it during a pass, and the verdict at its end.

use exuvia_api::StorageMigration;
use exuvia_runtime::Signal;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, ResourceExt};

use super::StorageController;
use super::follow::Beside;
use super::run::Work;
use super::status;
use super::world::SeenMigration;
use crate::Error;
use crate::audience::Audience;
use crate::definition::Definition;
use crate::droppable::{self, Holder, Holds, Look, Outlook, Question, Verdict};
use crate::engine::Engine;
use crate::protocol::{Hold, Step};

/// What holds versions, as far as this engine has looked: enough to say what holds them now, not to call one droppable.
/// `None`: what the status says still holds.
pub(super) fn so_far(engine: &Engine, step: &Step) -> Option<Outlook> {
    let definition = engine.definition()?;
    let is_over = engine.pass().is_some_and(status::is_over);
    if is_over && *step == Step::Hold(Hold::Suspended) {
        return None; // one that is done and is to do nothing
    }
    let owners = engine.survey().map(|survey| &survey.owners);
    let unproven = match step {
        Step::Hold(Hold::Suspended) => {
            Some("this migration is suspended; to go on, set spec.suspend to false".to_owned())
        }
        Step::Hold(hold) => hold.reason().map(|reason| {
            let why = match hold {
                Hold::Blocked(_) => "the condition Stalled says what to do".to_owned(),
                hold => engine.sentence(hold),
            };
            format!("this migration is stalled ({reason}): {why}")
        }),
        _ => None,
    };
    let mut outlook = Outlook::of(
        definition,
        owners,
        Audience::StorageMigration,
        unproven.as_deref(),
    );
    if engine.pass().is_some_and(|pass| pass.trimmed && !pass.patrolled) {
        let why = unproven.as_deref().unwrap_or("it follows by itself");
        let message = format!("storedVersions is trimmed, but the patrol has not been: {why}");
        let holder = Holder::new(Holds::Migration, message);
        let older = droppable::older(definition).map(str::to_owned);
        outlook
            .held
            .extend(older.map(|version| (version, holder.clone())));
    }
    Some(outlook)
}

impl StorageController {
    /// The verdict on each version older than the storage version, once a pass has ended; `None`: what the status says still
    /// holds. It may take minutes, and is cancelled like a sweep when there is no more reason for it.
    pub(super) async fn verdict(
        &self,
        seen: &SeenMigration,
        migration: &StorageMigration,
        work: &Work,
        signal: &Signal,
    ) -> Result<Option<Outlook>, Error> {
        let said = migration.status.as_ref();
        let is_said = said.is_some_and(|status| status.droppable_versions.is_some());
        let survey = work.engine.survey();
        if work.engine.definition().is_none() || (is_said && survey.is_none()) {
            return Ok(None); // a built-in resource has no versions to drop
        }
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let Some(crd) = crds.get_opt(&seen.resource).await? else {
            return Ok(None); // the watch will tell
        };
        let definition = Definition::read(&crd);
        // Each by itself: the others stay served.
        let questions: Vec<Question> = droppable::older(&definition)
            .map(|version| Question {
                owners: survey.map(|survey| survey.owners.clone()),
                ..Question::new(crd.clone(), vec![version.to_owned()])
            })
            .collect();
        if questions.is_empty() {
            return Ok(Some(Outlook::default()));
        }
        let look = Look {
            references: self.settings.look_at_references,
            servers: self.servers(&work.engine).await?,
            watch: None,
            asked_by: Some(migration.name_any()),
            audience: Audience::StorageMigration,
        };
        let pass = work.engine.pass().cloned();
        let beside = Beside {
            seen,
            pass: pass.as_ref(),
            control: &work.control,
            activity: &work.activity,
            rewriting: false,
            signal,
        };
        tokio::select! {
            biased;
            () = self.cancel_when_void(&beside) => Ok(None),
            verdicts = droppable::look(&self.client, &questions, &look, &|_| {}) => {
                Ok(Some(self.in_our_words(verdicts).into()))
            }
        }
    }

    /// The API servers to ask for their counters: each that is known, or the one that answers us.
    async fn servers(&self, engine: &Engine) -> Result<Vec<(String, Client)>, Error> {
        let mut servers = engine.api_servers().clients(&self.client).await?;
        if servers.is_empty() {
            let url = self.config.cluster_url.to_string();
            servers.push((url.trim_end_matches('/').to_owned(), self.client.clone()));
        }
        Ok(servers)
    }

    /// A verdict speaks of the command's flags; the operator has its own.
    fn in_our_words(&self, mut verdicts: Vec<Verdict>) -> Vec<Verdict> {
        for verdict in verdicts.iter_mut().filter(|_| !self.settings.look_at_references) {
            verdict
                .without_references("not looked at, since this operator runs without --look-at-references");
        }
        verdicts
    }
}
