//! Asks the server whether an owner exists: by kind, name and uid, as the garbage collector does.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use exuvia_sweep::catalog::{Catalog, Served};
use exuvia_write::{Redacted, Writer, brief};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DynamicObject, ObjectMeta};
use kube::{Api, Client};

use super::rewritten::{Absence, Owner};
use crate::lock::lock;

/// How many answers are kept. One has about 300 bytes.
const MAX_KEPT: usize = 10_000;
/// A kind that is not in discovery is looked for once more after this: a new CRD takes a moment to get there.
const BEFORE_NOT_SERVED: Duration = Duration::from_millis(500);

/// What the server says about an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It exists by kind, name and uid.
    Exists {
        /// Its namespace, if it has one.
        namespace: Option<String>,
    },
    /// It does not exist: the server said so of this very object.
    Missing(Absence),
    /// The kind is namespaced, and the dependent is in no namespace: the reference names nothing.
    Unreachable,
    /// It could not be read. It may exist.
    Unknown(Redacted),
}

impl From<Answer> for Owner {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Exists { namespace } => Self::Exists { namespace },
            Answer::Missing(absence) => Self::Missing(absence),
            Answer::Unreachable => Self::Unreachable,
            Answer::Unknown(why) => Self::Unknown(why),
        }
    }
}

/// Looks owners up. It remembers what it was told, so it is good for one pass: an owner may be deleted after it.
pub struct Lookup {
    client: Client,
    writer: Writer,
    /// By apiVersion and kind; `None`: not served.
    kinds: Mutex<HashMap<(String, String), Option<Served>>>,
    answers: Mutex<HashMap<Owned, Answer>>,
}

/// What an answer is about: apiVersion, kind, name, uid, and the namespace of the dependent.
type Owned = (String, String, String, String, Option<String>);

impl Lookup {
    /// For one pass.
    pub fn new(client: Client, writer: Writer) -> Self {
        Self {
            client,
            writer,
            kinds: Mutex::default(),
            answers: Mutex::default(),
        }
    }

    /// Whether the owner that a reference names exists, for a dependent in `namespace`.
    pub async fn find(&self, reference: &OwnerReference, namespace: Option<&str>) -> Answer {
        let owned = (
            reference.api_version.clone(),
            reference.kind.clone(),
            reference.name.clone(),
            reference.uid.clone(),
            namespace.map(str::to_owned),
        );
        let known = lock(&self.answers).get(&owned).cloned();
        if let Some(answer) = known {
            return answer;
        }
        let answer = self.ask(reference, namespace).await;
        // What is not known may be known the next time.
        if !matches!(answer, Answer::Unknown(_)) {
            let mut answers = lock(&self.answers);
            if answers.len() >= MAX_KEPT {
                answers.clear();
            }
            answers.insert(owned, answer.clone());
        }
        answer
    }

    async fn ask(&self, reference: &OwnerReference, namespace: Option<&str>) -> Answer {
        let served = match self.kind(reference).await {
            Ok(Some(served)) => served,
            Ok(None) => return Answer::Missing(Absence::NotServed),
            Err(error) => return Answer::Unknown(Redacted::from_server(&brief(&error))),
        };
        let namespace = match (served.namespaced, namespace) {
            (true, None) => return Answer::Unreachable,
            (true, Some(namespace)) => Some(namespace.to_owned()),
            (false, _) => None,
        };
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &served.resource);
        let named = ObjectMeta {
            name: Some(reference.name.clone()),
            namespace: namespace.clone(),
            ..ObjectMeta::default()
        };
        match self.writer.look(&api, &named).await {
            Ok(Some(live)) if live.uid.as_deref() == Some(&reference.uid) => Answer::Exists { namespace },
            Ok(Some(_)) => Answer::Missing(Absence::OtherUid),
            Ok(None) => Answer::Missing(Absence::NoObject),
            Err(error) => {
                if error.is_unserved() {
                    // Removed since it was found; the next question finds out.
                    lock(&self.kinds).remove(&kind_of(reference));
                }
                Answer::Unknown(Redacted::from_error(&error))
            }
        }
    }

    /// Where the kind of a reference is served; `None`: at no version.
    async fn kind(&self, reference: &OwnerReference) -> Result<Option<Served>, kube::Error> {
        let key = kind_of(reference);
        let known = lock(&self.kinds).get(&key).cloned();
        if let Some(served) = known {
            return Ok(served);
        }
        let api_version = reference.api_version.as_str();
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let mut served = Catalog::find_kind(&self.client, group, version, &reference.kind).await?;
        if served.is_none() {
            tokio::time::sleep(BEFORE_NOT_SERVED).await;
            served = Catalog::find_kind(&self.client, group, version, &reference.kind).await?;
        }
        let mut kinds = lock(&self.kinds);
        if kinds.len() >= MAX_KEPT {
            kinds.clear();
        }
        kinds.insert(key, served.clone());
        Ok(served)
    }
}

fn kind_of(reference: &OwnerReference) -> (String, String) {
    (reference.api_version.clone(), reference.kind.clone())
}
