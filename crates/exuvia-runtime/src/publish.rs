//! Publishes what a controller does about a custom resource: status, events, progress, gauges.
//!
//! A resource says how its status is read ([`Published`]), an update says what becomes of it ([`Update`]); the
//! [`Publisher`] does the rest. Events come before the status: after a crash in between the same event is published again,
//! which changes nothing.

mod gauges;
mod running;
mod summary;

use std::fmt;

use exuvia_write::{Error, Redacted, Writable, Writer};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Api, Resource};

pub use self::gauges::Gauges;
pub use self::running::{Extent, Running};
pub use self::summary::{READY, RECONCILING, STALLED, Summary};
use crate::{EventKind, Events, Metrics};

/// What a publisher must know of a custom resource: implemented by an empty type beside its controller.
pub trait Published: Send + Sync + 'static {
    /// The custom resource.
    type Object: Writable + Resource<DynamicType = ()> + Clone + fmt::Debug + Send + Sync + 'static;

    /// Every phase, for gauges.
    const PHASES: &'static [&'static str];
    /// Whether gauges show the phases that it is not in, too, as 0. For resources of which there are few.
    const SHOWS_EVERY_PHASE: bool = false;
    /// Every reason for which it can be stalled, for gauges.
    const STALL_REASONS: &'static [&'static str];
    /// What the names of its metrics begin with.
    const METRICS: &'static str;
    /// What follows that in the name of the metric that times whole passes.
    const PASS_METRIC: &'static str = "pass_duration_seconds";
    /// What its controller does, in events.
    const ACTION: &'static str;

    /// What the work is about, for logs and the label `resource` of metrics.
    fn subject(object: &Self::Object) -> &str;

    /// The phase that its status shows.
    fn phase(object: &Self::Object) -> Option<&'static str>;

    /// The conditions of its status.
    fn conditions(object: &Self::Object) -> &[Condition];
}

/// Why the work does not go on, as the condition `Stalled` says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StallCause {
    /// One of [`Published::STALL_REASONS`].
    pub reason: &'static str,
    /// One sentence.
    pub message: Redacted,
}

impl StallCause {
    /// Whether the object's status says so already.
    pub fn is_told<P: Published>(&self, object: &P::Object) -> bool {
        P::conditions(object)
            .iter()
            .filter(|condition| condition.type_ == STALLED && condition.status == "True")
            .any(|condition| condition.reason == self.reason && condition.message == self.message)
    }
}

/// What is to be said of an object.
pub trait Update<K>: Sync {
    /// The new phase.
    fn phase(&self) -> &'static str;

    /// One sentence about it, for the log.
    fn message(&self) -> &str;

    /// Why the work does not go on, if it does not.
    fn stall_cause(&self) -> Option<&StallCause>;

    /// Writes it into the status. `generation` is that of the spec which the update is about.
    fn apply(&self, object: &mut K, generation: Option<i64>);
}

/// Publishes what is done about objects of one custom resource.
pub struct Publisher<P: Published> {
    api: Api<P::Object>,
    writer: Writer,
    events: Events,
    gauges: Gauges<P>,
}

impl<P: Published> Publisher<P> {
    /// A publisher whose gauges are among these metrics.
    pub fn new(api: Api<P::Object>, writer: Writer, events: Events, metrics: &Metrics) -> Self {
        Self {
            api,
            writer,
            events,
            gauges: Gauges::register(metrics),
        }
    }

    /// The gauges.
    pub fn gauges(&self) -> &Gauges<P> {
        &self.gauges
    }

    /// Writes the status, and shows it in gauges and log. `object` is as it was written afterwards.
    pub async fn publish(
        &self,
        object: &mut P::Object,
        update: &impl Update<P::Object>,
    ) -> Result<(), Error> {
        let before = P::phase(object);
        self.write_status(object, update).await?;
        let (subject, phase) = (P::subject(object), update.phase());
        let cause = update.stall_cause();
        self.gauges.phase(subject, phase, cause.map(|cause| cause.reason));
        if before != Some(phase) {
            if let Some(cause) = cause {
                let reason = cause.reason;
                tracing::warn!(resource = subject, phase, reason, "{}", cause.message);
            } else {
                tracing::info!(resource = subject, phase, "{}", update.message());
            }
        }
        Ok(())
    }

    /// Writes the status and nothing else. The update is about the spec as the caller knows it, even if it was changed since.
    pub async fn write_status(
        &self,
        object: &mut P::Object,
        update: &impl Update<P::Object>,
    ) -> Result<(), Error> {
        let generation = object.meta().generation;
        let written = self
            .writer
            // Locked: what a former leader decided before it was stopped must not overwrite what its successor wrote.
            .patch_status_with_retry(&self.api, object, |object| update.apply(object, generation))
            .await?;
        *object = written.object;
        Ok(())
    }

    /// An event on the object, and the same on a related one: people look at either.
    pub async fn event(
        &self,
        object: &P::Object,
        related: Option<&ObjectReference>,
        kind: EventKind,
        reason: &str,
        note: &Redacted,
    ) {
        let about = object.object_ref(&());
        for about in [Some(&about), related].into_iter().flatten() {
            self.events.publish(about, kind, reason, P::ACTION, note).await;
        }
    }

    /// A warning, unless the status says so already: a stall for the same reason as before is not told again.
    pub async fn warn(&self, object: &P::Object, related: Option<&ObjectReference>, cause: &StallCause) {
        if !cause.is_told::<P>(object) {
            self.event(object, related, EventKind::Warning, cause.reason, &cause.message)
                .await;
        }
    }
}

impl<P: Published> fmt::Debug for Publisher<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher").finish_non_exhaustive()
    }
}
