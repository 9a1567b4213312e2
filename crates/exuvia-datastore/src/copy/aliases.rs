//! Under which uids an aggregated API server shows the objects: read all at once, or one by one while it still answers.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use exuvia_api::datastore_reason as reason;
use exuvia_write::{Name, redacted};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::api::{DynamicObject, ObjectMeta, PartialObjectMeta};

use super::Mover;
use super::findings::Problem;
use crate::Error;
use crate::kinds::Kind;
use crate::lock::lock;
use crate::mapping::Output;
use crate::route::Alias;

/// Target kind, namespace and name.
type Place = (String, Option<String>, String);

/// What is known of one object.
#[derive(Clone, Debug)]
struct Known {
    uid: String,
    /// The source that it stands for; `None`: it was in a list, which does not tell.
    source: Option<String>,
}

/// What the aggregated API server calls objects.
#[derive(Debug, Default)]
pub(crate) struct Aliases {
    known: Mutex<HashMap<Place, Known>>,
    /// It still answers, and can be asked.
    pub(crate) can_ask: bool,
    /// CRDs of targets that it does not show at all.
    pub(crate) unshown: HashSet<String>,
}

impl Aliases {
    /// What a list of all objects told.
    pub(crate) fn learn(&self, alias: Alias) {
        let place = (alias.kind, alias.namespace, alias.name);
        let known = Known {
            uid: alias.uid,
            source: None,
        };
        lock(&self.known).insert(place, known);
    }

    /// One of them.
    pub(crate) fn sample(&self) -> Option<Alias> {
        let known = lock(&self.known);
        let ((kind, namespace, name), one) = known.iter().next()?;
        Some(Alias {
            kind: kind.clone(),
            namespace: namespace.clone(),
            name: name.clone(),
            uid: one.uid.clone(),
        })
    }

    /// What the object in this place is called.
    pub(super) fn at(&self, kind: &str, namespace: Option<&str>, name: &str) -> Option<String> {
        let place = (kind.to_owned(), namespace.map(str::to_owned), name.to_owned());
        lock(&self.known).get(&place).map(|known| known.uid.clone())
    }

    /// What a source is called there. One of the same name may have been another object.
    pub(super) fn of(&self, source: &DynamicObject, output: &Output) -> Option<String> {
        let known = lock(&self.known).get(&place(output)).cloned()?;
        let is_it = known.source.is_none() || known.source == source.metadata.uid;
        Some(known.uid).filter(|_| is_it)
    }
}

fn place(output: &Output) -> Place {
    (output.kind.clone(), output.namespace.clone(), output.name.clone())
}

impl Mover {
    /// Asks the aggregated API server what it calls this source, unless that is known of this very object: after the switch
    /// nobody can be asked any more.
    pub(super) async fn learn_alias(
        &self,
        target: &Kind,
        source: &DynamicObject,
        output: &Output,
    ) -> Result<(), Error> {
        let is_shown = self.aliases.can_ask && !self.aliases.unshown.contains(&target.name());
        if !is_shown || output.extra || !target.has_second_version() {
            return Ok(());
        }
        let place = place(output);
        let known = lock(&self.aliases.known).get(&place).cloned();
        if known.is_some_and(|known| known.source.is_some() && known.source == source.metadata.uid) {
            return Ok(());
        }
        let named = ObjectMeta {
            name: Some(output.name.clone()),
            namespace: output.namespace.clone(),
            ..ObjectMeta::default()
        };
        let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(self.client.clone(), &target.resource);
        let shown = self.writer.look(&api, &named).await?;
        let mut known = lock(&self.aliases.known);
        match shown.and_then(|shown| shown.uid) {
            Some(uid) => {
                let source = source.metadata.uid.clone();
                known.insert(place, Known { uid, source });
            }
            None => drop(known.remove(&place)),
        }
        Ok(())
    }

    /// The garbage collector looks at every kind at one version: at the second one, if no other shows the kind. It asks for
    /// owners at the version that a reference names, where the aggregated API server shows them under other uids; so it
    /// would delete such a copy (PITFALLS D20).
    pub(super) fn collected_early(&self, target: &Kind, references: &[OwnerReference]) -> Option<Problem> {
        let is_seen = self.aliases.can_ask && self.aliases.unshown.contains(&target.name());
        let group = format!("{}/", target.resource.group);
        let owner = references
            .iter()
            .find(|owner| is_seen && owner.api_version.starts_with(&group))?;
        Some(Problem::new(
            reason::SECOND_VERSION,
            redacted!(
                "the API server of the APIService does not show {}, so the garbage collector would delete a copy owned by {}: \
                 use mode FreezeAndCopy",
                Name(&target.name()),
                Name(&owner.name)
            ),
        ))
    }
}
