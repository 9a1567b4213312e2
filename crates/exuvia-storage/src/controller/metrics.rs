//! What the controller measures. A resource at rest costs one series, so that a thousand clean CRDs cost little.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use exuvia_api::Phase;
use exuvia_runtime::Metrics;
use exuvia_sweep::{Outcome, Progress, Tally};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::STALL_REASONS;

type Labels<const N: usize> = [(&'static str, String); N];
type Durations<const N: usize> = Family<Labels<N>, Histogram, fn() -> Histogram>;

/// 0.1 s to about 7 h: a clean CRD takes a moment, a hundred thousand objects behind a slow webhook take hours.
fn durations() -> Histogram {
    Histogram::new(exponential_buckets(0.1, 4.0, 10))
}

/// What becomes of an object in a rewrite sweep; one that was skipped counts as current.
const COUNTED: [Outcome; 6] = [
    Outcome::Rewritten,
    Outcome::Current,
    Outcome::Skipped,
    Outcome::Gone,
    Outcome::Conflict,
    Outcome::Failed,
];

/// The controller's own metrics.
#[derive(Clone, Debug)]
pub(super) struct StorageMetrics {
    objects: Family<Labels<2>, Counter>,
    remaining: Family<Labels<1>, Gauge>,
    rate: Family<Labels<1>, Gauge<f64, AtomicU64>>,
    steps: Durations<1>,
    passes: Durations<1>,
    phase: Family<Labels<2>, Gauge>,
    stalled: Family<Labels<2>, Gauge>,
}

impl StorageMetrics {
    pub(super) fn register(metrics: &Metrics) -> Self {
        let new = Self {
            objects: Family::default(),
            remaining: Family::default(),
            rate: Family::default(),
            steps: Family::new_with_constructor(durations),
            passes: Family::new_with_constructor(durations),
            phase: Family::default(),
            stalled: Family::default(),
        };
        metrics.register(
            "exuvia_storage_objects",
            "Objects by what came of them in rewrite sweeps",
            new.objects.clone(),
        );
        metrics.register(
            "exuvia_storage_objects_remaining",
            "Objects that the running sweep has not come to; absent while none runs",
            new.remaining.clone(),
        );
        metrics.register(
            "exuvia_storage_objects_per_second",
            "Objects per second in the running sweep, over the last ten seconds; absent while none runs",
            new.rate.clone(),
        );
        metrics.register(
            "exuvia_storage_step_duration_seconds",
            "How long each step of a pass took",
            new.steps.clone(),
        );
        metrics.register(
            "exuvia_storage_pass_duration_seconds",
            "How long a pass took from its beginning to the end of the patrol, waiting included",
            new.passes.clone(),
        );
        metrics.register(
            "exuvia_storage_phase",
            "1 for the phase that a migration is in",
            new.phase.clone(),
        );
        metrics.register(
            "exuvia_storage_stalled",
            "1 while a migration is stalled for this reason",
            new.stalled.clone(),
        );
        new
    }

    pub(super) fn phase(&self, resource: &str, phase: Phase, reason: Option<&'static str>) {
        let others = Phase::ALL.into_iter().filter(|other| *other != phase);
        for other in others {
            self.phase.remove(&with(resource, "phase", other.as_str()));
        }
        self.phase
            .get_or_create(&with(resource, "phase", phase.as_str()))
            .set(1);
        for other in STALL_REASONS.into_iter().filter(|other| Some(*other) != reason) {
            self.stalled.remove(&with(resource, "reason", other));
        }
        if let Some(reason) = reason {
            self.stalled
                .get_or_create(&with(resource, "reason", reason))
                .set(1);
        }
    }

    /// The running sweep.
    pub(super) fn progress(&self, resource: &str, progress: &Progress) {
        let left = progress.total.unwrap_or_default().saturating_sub(progress.done());
        let left = i64::try_from(left).unwrap_or(i64::MAX);
        self.remaining.get_or_create(&of(resource)).set(left);
        self.rate.get_or_create(&of(resource)).set(progress.rate);
    }

    /// No sweep runs any more.
    pub(super) fn at_rest(&self, resource: &str) {
        self.remaining.remove(&of(resource));
        self.rate.remove(&of(resource));
    }

    /// Objects of a rewrite sweep that were seen to their end since the last time.
    pub(super) fn objects(&self, resource: &str, before: Tally, now: Tally) {
        for outcome in COUNTED {
            let more = now.of(outcome).saturating_sub(before.of(outcome));
            let name = match outcome {
                Outcome::Skipped => Outcome::Current.as_str(),
                outcome => outcome.as_str(),
            };
            self.objects
                .get_or_create(&with(resource, "outcome", name))
                .inc_by(more);
        }
    }

    pub(super) fn step(&self, step: &'static str, took: Duration) {
        let label = [("step", step.to_owned())];
        self.steps.get_or_create(&label).observe(took.as_secs_f64());
    }

    pub(super) fn pass(&self, resource: &str, took: Duration) {
        self.passes
            .get_or_create(&of(resource))
            .observe(took.as_secs_f64());
    }

    /// The resource is migrated no more: what it is in would be shown for ever.
    pub(super) fn forget(&self, resource: &str) {
        self.at_rest(resource);
        for phase in Phase::ALL {
            self.phase.remove(&with(resource, "phase", phase.as_str()));
        }
        for reason in STALL_REASONS {
            self.stalled.remove(&with(resource, "reason", reason));
        }
    }

    /// As [`forget`](Self::forget), for every resource: another process leads, and shows what they are in.
    pub(super) fn forget_all(&self) {
        self.remaining.clear();
        self.rate.clear();
        self.phase.clear();
        self.stalled.clear();
    }
}

fn of(resource: &str) -> Labels<1> {
    [("resource", resource.to_owned())]
}

fn with(resource: &str, label: &'static str, value: &str) -> Labels<2> {
    [("resource", resource.to_owned()), (label, value.to_owned())]
}
