//! Targets that exist and differ, with every field in which they do.

use std::sync::{Mutex, PoisonError};

use exuvia_api::DatastorePhase;
use exuvia_sweep::Verdict;
use kube::api::DynamicObject;
use serde_json::Value;

use super::{Look, failed};
use crate::Error;
use crate::copy::{Compared, annotation, compare, written_by_others};
use crate::kinds::Kind;
use crate::lock::lock;
use crate::mapping::Output;

/// How many fields of one target are listed.
const MAX_FIELDS: usize = 100;

/// What the keys of our own annotations begin with.
const OUR_ANNOTATIONS: &str = "exuvia.dev/";

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
    /// This migration made it, and somebody else has written to it since. Without a source, that one is gone.
    pub is_edited_copy: bool,
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
    /// All targets that exist and differ, and copies that somebody else has written to before the commit; in the order of their
    /// kinds and names.
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
        self.edited_strays(&found).await?;
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
            let Some(live) = live.filter(|live| !self.is_ours(live) || self.is_contested(live)) else {
                continue;
            };
            let is_edited_copy = self.is_ours(&live);
            // Who may not write can still see what differs as it stands.
            let mut fields = match self.compared(target, &live, output).await? {
                Compared::Equal => Vec::new(),
                Compared::Differs(fields) | Compared::AsTheyStand(fields) => fields,
            };
            // A copy has marks that its source has not.
            fields.retain(|(path, ..)| !is_edited_copy || !path.contains(OUR_ANNOTATIONS));
            fields.truncate(MAX_FIELDS);
            if is_edited_copy || !fields.is_empty() {
                let differences = fields
                    .into_iter()
                    .map(|(path, source, target)| Difference { path, source, target })
                    .collect();
                differing.push(Differing {
                    kind: target.shown(),
                    namespace: output.namespace.clone().unwrap_or_default(),
                    name: output.name.clone(),
                    source_kind: kind.shown(),
                    source_namespace: source.metadata.namespace.clone().unwrap_or_default(),
                    source_name: source.metadata.name.clone().unwrap_or_default(),
                    is_edited_copy,
                    differences,
                });
            }
        }
        Ok(differing)
    }

    /// Adds copies that somebody else has written to and that no source becomes any more.
    async fn edited_strays(&self, found: &Mutex<Vec<Differing>>) -> Result<(), Error> {
        for target in self.kinds.targets() {
            self.each(target, async |live: DynamicObject| {
                let (namespace, name) = (live.metadata.namespace.clone(), live.metadata.name.clone());
                let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
                let kind = target.shown();
                let is_listed = |other: &Differing| {
                    (&other.kind, &other.namespace, &other.name) == (&kind, &namespace, &name)
                };
                if self.is_ours(&live) && self.is_contested(&live) && !lock(found).iter().any(is_listed) {
                    lock(found).push(Differing {
                        kind,
                        namespace,
                        name,
                        source_kind: String::new(),
                        source_namespace: String::new(),
                        source_name: String::new(),
                        is_edited_copy: true,
                        differences: Vec::new(),
                    });
                }
                Verdict::unchanged()
            })
            .await?;
        }
        Ok(())
    }

    /// Whether somebody else has written to a copy. After the commit targets are in use, and that is as it should be.
    fn is_contested(&self, live: &DynamicObject) -> bool {
        let phase = self.migration.status.as_ref().and_then(|status| status.phase);
        let is_before_commit = !matches!(phase, Some(DatastorePhase::Converged | DatastorePhase::Complete));
        is_before_commit && written_by_others(&live.metadata)
    }

    pub(super) fn is_ours(&self, live: &DynamicObject) -> bool {
        let ours = annotation(live, exuvia_api::MIGRATION_UID_ANNOTATION);
        ours.is_some() && ours == self.migration.metadata.uid.as_deref()
    }

    /// In which fields a live target differs.
    pub(super) async fn compared(
        &self,
        target: &Kind,
        live: &DynamicObject,
        output: &Output,
    ) -> Result<Compared, Error> {
        let api = target.all(&self.client);
        compare(&self.writer, &api, &self.comparison, live, &output.object).await
    }
}
