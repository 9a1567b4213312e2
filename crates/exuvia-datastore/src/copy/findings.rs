//! What a pass over the objects finds: counts by kind, what stands in the way, which targets differ.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use exuvia_api::{Blocker, ConflictStatus, DatastoreProgress, TypeProgress};
use exuvia_write::Redacted;
use kube::api::{DynamicObject, ObjectMeta};

use crate::kinds::{Kind, Kinds};

/// How many blockers and conflicts a status lists. All of them are counted.
pub(crate) const MAX_LISTED: usize = 32;

/// Something that stands in the way of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// A reason from [`exuvia_api::datastore_reason`].
    pub reason: &'static str,
    /// What to do about it.
    pub message: Redacted,
}

impl Problem {
    /// A problem in one sentence.
    pub fn new(reason: &'static str, message: impl Into<Redacted>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }

    /// The same without anything that this object holds: rules, policies and webhooks may quote it in words of their own
    /// (PITFALLS B27).
    pub(crate) fn without_values_of(self, object: &DynamicObject) -> Self {
        Self {
            message: self.message.without_values_of(object, &[]),
            ..self
        }
    }
}

/// What a pass found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Objects by kind.
    pub progress: DatastoreProgress,
    /// What stands in the way: the first ones.
    pub blockers: Vec<Blocker>,
    /// How many there are.
    pub blocked: u64,
    /// Targets that exist and differ: the first ones.
    pub conflicts: Vec<ConflictStatus>,
    /// Objects that no mapping takes.
    pub unmoved: u64,
    /// How long each kind took.
    pub took: BTreeMap<String, Duration>,
    /// Since when the kind in work is.
    since: Option<Instant>,
}

impl Findings {
    /// Nothing yet.
    pub(crate) fn new(kinds: &Kinds) -> Self {
        let mut types: Vec<TypeProgress> = Vec::new();
        for moved in &kinds.moved {
            types.push(TypeProgress {
                kind: moved.source.resource.kind.clone(),
                mapping: moved.mapping_name.clone(),
                ..TypeProgress::default()
            });
        }
        let total = i32::try_from(types.len()).unwrap_or(i32::MAX);
        Self {
            progress: DatastoreProgress {
                total_types: total,
                type_progress: format!("0 / {total}"),
                types,
                ..DatastoreProgress::default()
            },
            ..Self::default()
        }
    }

    /// Something stands in the way of an object.
    pub(crate) fn block(&mut self, kind: &Kind, object: &ObjectMeta, problem: Problem) {
        self.blocked += 1;
        if self.blockers.len() < MAX_LISTED {
            self.blockers.push(Blocker {
                reason: problem.reason.to_owned(),
                kind: kind.shown(),
                namespace: object.namespace.clone().unwrap_or_default(),
                name: object.name.clone().unwrap_or_default(),
                message: problem.message.into_string(),
            });
        }
    }

    /// An object of this kind, moved by this mapping.
    pub(crate) fn count(&mut self, kind: &str, mapping: &str, add: impl Fn(&mut TypeProgress)) {
        let types = &mut self.progress.types;
        if let Some(found) = types
            .iter_mut()
            .find(|found| found.kind == kind && found.mapping == mapping)
        {
            add(found);
        }
        let sum = |part: fn(&TypeProgress) -> i64| types.iter().map(part).sum::<i64>();
        let (total, migrated) = (sum(|t| t.total), sum(|t| t.migrated));
        let (skipped, conflicts) = (sum(|t| t.skipped), sum(|t| t.conflicts));
        self.progress.total = total;
        self.progress.migrated = migrated;
        self.progress.skipped = skipped;
        self.progress.conflicts = conflicts;
    }

    /// A target exists and differs in this field.
    pub(crate) fn conflict(&mut self, target: &Kind, namespace: Option<&str>, name: &str, field: String) {
        if self.conflicts.len() < MAX_LISTED {
            self.conflicts.push(ConflictStatus {
                kind: target.shown(),
                namespace: namespace.unwrap_or_default().to_owned(),
                name: name.to_owned(),
                field,
            });
        }
    }

    /// The kind in work, and how many kinds are done with.
    pub(crate) fn at_kind(&mut self, current: &str, done: usize) {
        let progress = &mut self.progress;
        let now = Instant::now();
        if let Some(since) = self
            .since
            .replace(now)
            .filter(|_| !progress.current_type.is_empty())
        {
            let took = self.took.entry(progress.current_type.clone()).or_default();
            *took += now.saturating_duration_since(since);
        }
        current.clone_into(&mut progress.current_type);
        progress.completed_types = i32::try_from(done).unwrap_or(i32::MAX);
        progress.type_progress = format!("{done} / {}", progress.total_types);
    }
}
