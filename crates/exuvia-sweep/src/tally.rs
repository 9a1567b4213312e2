//! What a sweep counts, and which failures it remembers by name.

use std::collections::BTreeMap;

use exuvia_write::Redacted;
use serde::Serialize;

use crate::{Identity, Outcome, Verdict};

/// How many failures are kept by name: enough to see a pattern, little enough for a status.
const KEPT: usize = 100;

/// How much of a message is kept: with more than 1 KiB in it an Event is refused whole (PITFALLS B11).
const MESSAGE_BYTES: usize = 1024;

/// How many objects had which outcome.
///
/// ```
/// use exuvia_sweep::{Outcome, Tally};
///
/// let mut tally = Tally::default();
/// tally.add(Outcome::Changed);
/// tally.add(Outcome::Conflict);
/// assert_eq!(tally.done(), 2);
/// assert!(!tally.is_clean());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Something was stored.
    pub changed: u64,
    /// The server was asked, and there was nothing to change.
    pub unchanged: u64,
    /// They do not exist any more.
    pub gone: u64,
    /// Another writer was faster: not done.
    pub conflict: u64,
    /// They failed.
    pub failed: u64,
    /// There was no need to ask the server.
    pub skipped: u64,
}

impl Tally {
    /// One object more.
    pub fn add(&mut self, outcome: Outcome) {
        *self.slot(outcome) += 1;
    }

    /// The count of one outcome, for callers that go through all of them.
    pub fn of(mut self, outcome: Outcome) -> u64 {
        *self.slot(outcome)
    }

    /// All objects that are finished, whatever the outcome.
    pub fn done(&self) -> u64 {
        self.changed + self.unchanged + self.gone + self.conflict + self.failed + self.skipped
    }

    /// Whether there was neither a failure nor a conflict.
    pub fn is_clean(&self) -> bool {
        self.failed == 0 && self.conflict == 0
    }

    fn slot(&mut self, outcome: Outcome) -> &mut u64 {
        match outcome {
            Outcome::Changed => &mut self.changed,
            Outcome::Unchanged => &mut self.unchanged,
            Outcome::Gone => &mut self.gone,
            Outcome::Conflict => &mut self.conflict,
            Outcome::Failed => &mut self.failed,
            Outcome::Skipped => &mut self.skipped,
        }
    }
}

/// An object that was not done, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The object's namespace, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The object's name.
    pub name: String,
    /// [`Outcome::Failed`] or [`Outcome::Conflict`].
    pub outcome: Outcome,
    /// What kind of failure, from a bounded set.
    pub class: &'static str,
    /// What the worker said of it, 1 KiB at most.
    pub message: Redacted,
}

impl Failure {
    /// `namespace/name`, or the name alone.
    pub fn object(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{}", self.name),
            None => self.name.clone(),
        }
    }
}

/// What went wrong: all of it counted by class, the first hundred by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Failures {
    /// How many of each class.
    pub by_class: BTreeMap<&'static str, u64>,
    /// The first ones, in the order in which they came.
    pub first: Vec<Failure>,
}

impl Failures {
    /// How many there are, named or not.
    pub fn count(&self) -> u64 {
        self.by_class.values().sum()
    }

    /// Takes note of a verdict on an object, if it is a failure or a conflict.
    pub(crate) fn note(&mut self, object: Identity, verdict: Verdict) {
        if !matches!(verdict.outcome, Outcome::Failed | Outcome::Conflict) {
            return;
        }
        let (class, message) = verdict.cause.unwrap_or_default();
        *self.by_class.entry(class).or_default() += 1;
        if self.first.len() >= KEPT {
            return;
        }
        self.first.push(Failure {
            namespace: object.namespace,
            name: object.name,
            outcome: verdict.outcome,
            class,
            message: message.cut(MESSAGE_BYTES),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Outcome; 6] = [
        Outcome::Changed,
        Outcome::Unchanged,
        Outcome::Gone,
        Outcome::Conflict,
        Outcome::Failed,
        Outcome::Skipped,
    ];

    fn named(name: &str) -> Identity {
        Identity {
            name: name.to_owned(),
            ..Identity::default()
        }
    }

    #[test]
    fn every_outcome_is_counted_once_and_under_its_own_name() {
        for outcome in ALL {
            let mut tally = Tally::default();
            tally.add(outcome);
            assert_eq!((tally.done(), tally.of(outcome)), (1, 1));
            let json = serde_json::json!(tally);
            assert_eq!(json[outcome.as_str()], 1, "{json}");
            let clean = !matches!(outcome, Outcome::Conflict | Outcome::Failed);
            assert_eq!(tally.is_clean(), clean);
        }
    }

    /// PITFALLS B2.
    #[test]
    fn a_conflict_is_named_like_a_failure() {
        let mut failures = Failures::default();
        failures.note(named("a"), Verdict::conflict("three times"));
        failures.note(named("b"), Verdict::changed());
        assert_eq!(failures.count(), 1);
        assert_eq!(
            (failures.first[0].name.as_str(), failures.first[0].class),
            ("a", "conflict")
        );
    }

    #[test]
    fn all_failures_are_counted_and_the_first_are_kept() {
        let mut failures = Failures::default();
        for n in 0..250 {
            let class = if n % 2 == 0 { "denied" } else { "invalid" };
            failures.note(named(&n.to_string()), Verdict::failed(class, "no"));
        }
        assert_eq!(failures.count(), 250);
        assert_eq!(failures.by_class["denied"], 125);
        let names: Vec<_> = failures.first.iter().map(|f| f.name.clone()).collect();
        assert_eq!(names, (0..100).map(|n| n.to_string()).collect::<Vec<_>>());
    }

    /// PITFALLS B11.
    #[test]
    fn a_long_message_is_cut_between_characters() {
        let mut failures = Failures::default();
        failures.note(
            named("a"),
            Verdict::failed("fatal", Redacted::ours(format!("x{}", "é".repeat(4000)))),
        );
        let kept = &failures.first[0].message;
        assert_eq!(kept.len(), 1023, "the 1024th byte is half a character");
        assert!(kept.ends_with('é'));
    }
}
