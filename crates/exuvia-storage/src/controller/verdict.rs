//! What becomes of old versions: what is seen of it during a pass, and the verdict at its end.

use exuvia_api::StorageMigration;
use exuvia_write::redacted;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, ResourceExt};

use super::running::Cause;
use super::{StorageController, status};
use crate::Error;
use crate::audience::Audience;
use crate::definition::Definition;
use crate::droppable::{self, Holder, Holds, Look, Outlook, Question, Verdict};
use crate::engine::Engine;
use crate::protocol::{Hold, Next, NextStep, Pass};

/// What holds versions, as far as this engine has looked: enough to say what holds them now, not to call one droppable.
/// `None`: what the status says still holds.
pub(super) fn so_far(engine: &Engine, next: &Next) -> Option<Outlook> {
    let definition = engine.definition()?;
    let is_over = engine.pass().is_some_and(Pass::is_over);
    if is_over && *next == NextStep::Hold(Hold::Suspended) {
        return None; // one that is done and is to do nothing
    }
    let owners = engine.survey().map(|survey| &survey.owners);
    let unproven = match next {
        NextStep::Hold(Hold::Suspended) => {
            Some("this migration is suspended; to go on, set spec.suspend to false".into())
        }
        NextStep::Hold(hold) => hold.reason().map(|reason| {
            let why = match hold {
                Hold::Blocked(_) => "the condition Stalled says what to do".into(),
                hold => engine.sentence(hold),
            };
            redacted!("this migration is stalled ({}): {}", reason, why)
        }),
        _ => None,
    };
    let mut outlook = Outlook::of(definition, owners, Audience::StorageMigration, unproven.as_ref());
    if engine.pass().is_some_and(|pass| pass.trimmed && !pass.patrolled) {
        let why = unproven.clone().unwrap_or("it follows by itself".into());
        let message = redacted!(
            "storedVersions is trimmed, but the patrol was not done yet: {}",
            why
        );
        let holder = Holder::new(Holds::Migration, message);
        let older = droppable::older(definition).map(str::to_owned);
        outlook
            .held
            .extend(older.map(|version| (version, holder.clone())));
    }
    Some(outlook)
}

impl StorageController {
    /// The verdict on each version older than the storage version, once a pass has ended, and again from time to time; `None`:
    /// what the status says was seen a short time ago. It may take minutes, and is cancelled like a sweep when it has become
    /// void.
    pub(super) async fn verdict(
        &self,
        cause: &Cause<'_>,
        migration: &StorageMigration,
        engine: &Engine,
    ) -> Result<Option<Outlook>, Error> {
        let survey = engine.survey();
        let is_fresh =
            !status::looked_again_in(migration, self.settings.look_again).is_none_or(|left| left.is_zero());
        if engine.definition().is_none() || (is_fresh && survey.is_none()) {
            return Ok(None); // a built-in resource has no versions to drop
        }
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let Some(crd) = crds.get_opt(&cause.seen.resource).await? else {
            return Ok(None); // the watch will tell
        };
        let definition = Definition::read(&crd);
        // Each by itself, and then all that may go.
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
            servers: Some(engine.api_servers().clone()),
            watch: None,
            asked_by: Some(migration.name_any()),
            audience: Audience::StorageMigration,
        };
        tokio::select! {
            biased;
            () = self.cancel_when_void(cause) => Ok(None),
            verdicts = droppable::look(&self.client, &questions, &look, &|_| {}) => {
                let mut verdicts = self.in_our_words(verdicts);
                droppable::together(&definition, &mut verdicts);
                Ok(Some(verdicts.into()))
            }
        }
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
