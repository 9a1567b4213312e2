//! Targets that exist and differ, with every field in which they do.

use std::sync::{Mutex, PoisonError};

use exuvia_sweep::Verdict;
use exuvia_write::ErrorClass;
use kube::api::DynamicObject;
use serde_json::Value;

use super::{Look, failed};
use crate::Error;
use crate::copy::{annotation, would_be_made_so};
use crate::kinds::Kind;
use crate::lock::lock;
use crate::mapping::Output;

/// How many fields of one target are listed.
const MAX_FIELDS: usize = 100;

/// A target that exists and differs from what its source would become.
#[derive(Clone, Debug, PartialEq)]
pub struct Differing {
    /// The target's kind with its group.
    pub kind: String,
    /// Its namespace, if it has one.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The source's kind with its group.
    pub source_kind: String,
    /// The source's namespace, if it has one.
    pub source_namespace: String,
    /// The source's name.
    pub source_name: String,
    /// In which fields they differ: the first hundred.
    pub differences: Vec<Difference>,
}

/// A field in which a target differs. Its values may be secret.
#[derive(Clone, PartialEq)]
pub struct Difference {
    /// The field.
    pub path: String,
    /// What the source would become; null: the field is absent.
    pub source: Value,
    /// What the target is; null: the field is absent.
    pub target: Value,
}

impl std::fmt::Debug for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Difference")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Look {
    /// All targets that exist, were not made by this migration, and differ; in the order of their kinds and names.
    ///
    /// # Errors
    ///
    /// Not every object could be looked at.
    pub async fn differences(&self) -> Result<Vec<Differing>, Error> {
        let found: Mutex<Vec<Differing>> = Mutex::default();
        for kind in self.kinds.sources() {
            self.each(kind, async |source: DynamicObject| {
                match self.differences_of(kind, &source).await {
                    Ok(differing) => {
                        lock(&found).extend(differing);
                        Verdict::unchanged()
                    }
                    Err(error) => failed(&error),
                }
            })
            .await?;
        }
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.sort_by(|a, b| (&a.kind, &a.namespace, &a.name).cmp(&(&b.kind, &b.namespace, &b.name)));
        Ok(found)
    }

    /// An object that cannot be converted has no target to compare; a plan names it.
    async fn differences_of(&self, kind: &Kind, source: &DynamicObject) -> Result<Vec<Differing>, Error> {
        let Ok(converted) = self.convert(source).await else {
            return Ok(Vec::new());
        };
        let mut differing = Vec::new();
        for output in &converted.outputs {
            let Some(target) = self.kinds.target(&output.group, &output.kind) else {
                continue;
            };
            let live = self
                .read(target, output.namespace.as_deref(), &output.name)
                .await?;
            let Some(live) = live.filter(|live| !self.is_ours(live)) else {
                continue;
            };
            // Who may not write can still see what differs as it stands.
            let (Compared::ByServer(differences) | Compared::AsTheyStand(differences)) =
                self.compared(target, &live, output).await?;
            if !differences.is_empty() {
                differing.push(Differing {
                    kind: target.shown(),
                    namespace: output.namespace.clone().unwrap_or_default(),
                    name: output.name.clone(),
                    source_kind: kind.shown(),
                    source_namespace: source.metadata.namespace.clone().unwrap_or_default(),
                    source_name: source.metadata.name.clone().unwrap_or_default(),
                    differences,
                });
            }
        }
        Ok(differing)
    }

    pub(super) fn is_ours(&self, live: &DynamicObject) -> bool {
        let ours = annotation(live, exuvia_api::MIGRATION_UID_ANNOTATION);
        ours.is_some() && ours == self.migration.metadata.uid.as_deref()
    }

    /// In which fields a live target differs, as the server sees it: with its defaults on both sides (PITFALLS D34).
    pub(super) async fn compared(
        &self,
        target: &Kind,
        live: &DynamicObject,
        output: &Output,
    ) -> Result<Compared, Error> {
        let live_value = serde_json::to_value(live).unwrap_or_default();
        if self.comparison.difference(&live_value, &output.object).is_none() {
            return Ok(Compared::ByServer(Vec::new()));
        }
        let as_stored = self.put_over(target, live, &live_value, &live_value).await?;
        let would_be = self.put_over(target, live, &live_value, &output.object).await?;
        let is_denied = matches!((&as_stored, &would_be), (Put::Denied, _) | (_, Put::Denied));
        let api = target.all(&self.client);
        if !is_denied && would_be_made_so(&self.writer, &api, &self.comparison, live, &output.object).await? {
            return Ok(Compared::ByServer(Vec::new()));
        }
        let mut found = self.comparison.differences(
            &would_be.or_else(|| output.object.clone()),
            &as_stored.or_else(|| live_value.clone()),
        );
        found.truncate(MAX_FIELDS);
        let found = found
            .into_iter()
            .map(|(path, source, target)| Difference { path, source, target })
            .collect();
        Ok(if is_denied {
            Compared::AsTheyStand(found)
        } else {
            Compared::ByServer(found)
        })
    }

    /// What the server would store.
    async fn put_over(
        &self,
        target: &Kind,
        live: &DynamicObject,
        live_value: &Value,
        wanted: &Value,
    ) -> Result<Put, Error> {
        let put = self.comparison.put_over(live_value, wanted);
        let Ok(put) = serde_json::from_value::<DynamicObject>(put) else {
            return Ok(Put::Refused);
        };
        let api = target.all(&self.client);
        match self.writer.rehearse_replace(&api, &live.metadata, &put).await {
            Ok(stored) => Ok(Put::Stored(serde_json::to_value(&stored).unwrap_or_default())),
            Err(error) => match error.class() {
                ErrorClass::Invalid => Ok(Put::Refused),
                ErrorClass::Denied => Ok(Put::Denied),
                _ => Err(error.into()),
            },
        }
    }
}

/// In which fields a target differs.
pub(super) enum Compared {
    /// With the server's defaults on both sides.
    ByServer(Vec<Difference>),
    /// The server was not allowed to say: defaults look like differences.
    AsTheyStand(Vec<Difference>),
}

/// What came of a dry-run replacement.
enum Put {
    Stored(Value),
    /// The object is not valid.
    Refused,
    /// The caller may not write, or a policy is in the way, such as that of a freeze.
    Denied,
}

impl Put {
    fn or_else(self, value: impl FnOnce() -> Value) -> Value {
        match self {
            Self::Stored(value) => value,
            Self::Refused | Self::Denied => value(),
        }
    }
}
