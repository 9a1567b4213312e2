//! The conditions that every tool reads: `Ready`, `Reconciling`, `Stalled`, as kstatus, Flux and Argo CD expect them.

use exuvia_write::{Redacted, conditions};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource;

use super::StallCause;

/// Nothing is left to do, and nothing stands in the way.
pub const READY: &str = "Ready";
/// Work is under way, or waits for a time to pass. Not true of what is stalled, suspended or done.
pub const RECONCILING: &str = "Reconciling";
/// Something stands in the way that somebody should look at.
pub const STALLED: &str = "Stalled";

/// The reason of a condition `Stalled` that is false.
const NOT_STALLED: &str = "NotStalled";

/// How an object stands, in the words that every tool reads.
#[derive(Clone, Copy, Debug)]
pub struct Summary<'a> {
    /// Everything is done.
    pub is_ready: bool,
    /// Work is under way.
    pub is_working: bool,
    /// Why, in one word: mostly the phase.
    pub reason: &'a str,
    /// The same in a sentence.
    pub message: &'a Redacted,
    /// Why the work does not go on, if it does not.
    pub stall_cause: Option<&'a StallCause>,
}

impl Summary<'_> {
    /// The conditions, about the spec of this generation.
    pub fn conditions(&self, object: &impl Resource, generation: Option<i64>) -> [Condition; 3] {
        let cause = self.stall_cause;
        let ready_for = cause.map_or(self.reason, |cause| cause.reason);
        let stalled_for = cause.map_or(NOT_STALLED, |cause| cause.reason);
        let nothing = Redacted::default();
        let why = cause.map_or(&nothing, |cause| &cause.message);
        let doing = if self.is_working { self.message } else { &nothing };
        [
            conditions::new(object, READY, self.is_ready, ready_for, self.message),
            conditions::new(object, RECONCILING, self.is_working, ready_for, doing),
            conditions::new(object, STALLED, cause.is_some(), stalled_for, why),
        ]
        .map(|condition| Condition {
            observed_generation: generation,
            ..condition
        })
    }
}
