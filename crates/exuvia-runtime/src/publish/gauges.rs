//! Gauges of what is worked on. A resource at rest costs one series, so that a thousand of them cost little.

use std::marker::PhantomData;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::{Extent, Published};
use crate::Metrics;

type Labels<const N: usize> = [(&'static str, String); N];
type Durations = Family<Labels<1>, Histogram, fn() -> Histogram>;

/// 0.1 s to about 7 h: what is clean takes a moment, a hundred thousand objects behind a slow webhook take hours.
fn durations() -> Histogram {
    Histogram::new(exponential_buckets(0.1, 4.0, 10))
}

/// Phase, stall reason, remaining objects, rate, and how long steps and passes took.
#[derive(Debug)]
pub struct Gauges<P> {
    of: PhantomData<P>,
    remaining: Family<Labels<1>, Gauge>,
    rate: Family<Labels<1>, Gauge<f64, AtomicU64>>,
    steps: Durations,
    passes: Durations,
    phase: Family<Labels<2>, Gauge>,
    stalled: Family<Labels<2>, Gauge>,
}

impl<P: Published> Gauges<P> {
    pub(super) fn register(metrics: &Metrics) -> Self {
        let prefix = P::METRICS;
        let new = Self {
            of: PhantomData,
            remaining: Family::default(),
            rate: Family::default(),
            steps: Family::new_with_constructor(durations),
            passes: Family::new_with_constructor(durations),
            phase: Family::default(),
            stalled: Family::default(),
        };
        metrics.register(
            &format!("{prefix}_objects_remaining"),
            "Objects that the running sweep has not processed yet; absent while no sweep runs",
            new.remaining.clone(),
        );
        metrics.register(
            &format!("{prefix}_objects_per_second"),
            "Objects per second in the running sweep, over the last ten seconds; absent while no sweep runs",
            new.rate.clone(),
        );
        metrics.register(
            &format!("{prefix}_step_duration_seconds"),
            "Duration of each step of a pass",
            new.steps.clone(),
        );
        metrics.register(
            &format!("{prefix}_{}", P::PASS_METRIC),
            "Duration of a pass from its beginning to its end, including the time spent waiting",
            new.passes.clone(),
        );
        metrics.register(
            &format!("{prefix}_phase"),
            "1 for the phase that a migration is in",
            new.phase.clone(),
        );
        metrics.register(
            &format!("{prefix}_stalled"),
            "1 while a migration is stalled for this reason",
            new.stalled.clone(),
        );
        new
    }

    /// Registers the gauges and shows each of them once, with an example of its labels: see [`Metrics::describe`].
    pub fn sample(metrics: &Metrics, subject: &str, step: &'static str) {
        let (own, second) = (Self::register(metrics), Duration::from_secs(1));
        if let Some(phase) = P::PHASES.first() {
            own.phase(subject, phase, P::STALL_REASONS.first().copied());
        }
        let extent = Extent {
            remaining: 0,
            rate: 0.0,
        };
        own.running(subject, extent);
        own.step(step, second);
        own.pass(subject, second);
    }

    pub(super) fn phase(&self, subject: &str, phase: &'static str, reason: Option<&'static str>) {
        let others = |all: &'static [&'static str], kept: Option<&'static str>| {
            all.iter().filter(move |other| Some(**other) != kept)
        };
        for other in others(P::PHASES, Some(phase)) {
            let label = with(subject, "phase", other);
            if P::SHOWS_EVERY_PHASE {
                self.phase.get_or_create(&label).set(0);
            } else {
                self.phase.remove(&label);
            }
        }
        self.phase.get_or_create(&with(subject, "phase", phase)).set(1);
        for other in others(P::STALL_REASONS, reason) {
            self.stalled.remove(&with(subject, "reason", other));
        }
        if let Some(reason) = reason {
            self.stalled
                .get_or_create(&with(subject, "reason", reason))
                .set(1);
        }
    }

    pub(super) fn running(&self, subject: &str, extent: Extent) {
        let left = i64::try_from(extent.remaining).unwrap_or(i64::MAX);
        self.remaining.get_or_create(&of(subject)).set(left);
        self.rate.get_or_create(&of(subject)).set(extent.rate);
    }

    pub(super) fn at_rest(&self, subject: &str) {
        self.remaining.remove(&of(subject));
        self.rate.remove(&of(subject));
    }

    /// A step took so long.
    pub fn step(&self, step: &'static str, took: Duration) {
        let label = [("step", step.to_owned())];
        self.steps.get_or_create(&label).observe(took.as_secs_f64());
    }

    /// A pass took so long.
    pub fn pass(&self, subject: &str, took: Duration) {
        self.passes
            .get_or_create(&of(subject))
            .observe(took.as_secs_f64());
    }

    /// Nobody works on it any more: without this its phase would be shown for ever.
    pub fn forget(&self, subject: &str) {
        self.at_rest(subject);
        for phase in P::PHASES {
            self.phase.remove(&with(subject, "phase", phase));
        }
        for reason in P::STALL_REASONS {
            self.stalled.remove(&with(subject, "reason", reason));
        }
    }

    /// As [`forget`](Self::forget), for everything: another process leads now, and shows it.
    pub fn forget_all(&self) {
        self.remaining.clear();
        self.rate.clear();
        self.phase.clear();
        self.stalled.clear();
    }
}

fn of(subject: &str) -> Labels<1> {
    [("resource", subject.to_owned())]
}

fn with(subject: &str, label: &'static str, value: &str) -> Labels<2> {
    [("resource", subject.to_owned()), (label, value.to_owned())]
}
