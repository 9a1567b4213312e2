//! What a writer's reports add up to.

use std::{
    borrow::Cow,
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::Mutex,
};

use exuvia_write::{ErrorClass, Outcome, Report};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

use super::{Labels, lock};

/// Failed writes whose next attempt is waited for, at most. Those that are given up stay until there are so many.
const REMEMBERED: usize = 1024;

pub(super) struct WriteMeters {
    requests: Family<Labels<3>, Counter>,
    retries: Family<Labels<1>, Counter>,
    duration: Family<Labels<1>, Histogram>,
    /// Why the last attempt of a write failed: a retry counts under what made it necessary.
    failed: Mutex<HashMap<u64, ErrorClass>>,
    hasher: RandomState,
}

impl WriteMeters {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let writes = Self {
            requests: Family::default(),
            retries: Family::default(),
            duration: Family::new_with_constructor(times),
            failed: Mutex::default(),
            hasher: RandomState::new(),
        };
        registry.register(
            "exuvia_write_requests",
            "Writes by outcome; unsent and gated ones were not sent",
            writes.requests.clone(),
        );
        registry.register(
            "exuvia_write_retries",
            "Writes tried again, by the class of the error before",
            writes.retries.clone(),
        );
        registry.register(
            "exuvia_write_duration_seconds",
            "From sending a write to the end of its answer",
            writes.duration.clone(),
        );
        writes
    }

    pub(super) fn observe(&self, report: &Report<'_>) {
        // A rehearsal is no write: it must not look like one in a dashboard.
        let verb: Cow<'static, str> = if report.dry_run {
            format!("{}_dry_run", report.verb).into()
        } else {
            report.verb.as_str().into()
        };
        let labels = [
            ("verb", verb.clone()),
            ("resource", report.target.resource.clone().into()),
            ("outcome", report.outcome.as_str().into()),
        ];
        self.requests.get_or_create(&labels).inc();
        if matches!(report.outcome, Outcome::Unsent | Outcome::Gated) {
            return;
        }
        self.duration
            .get_or_create(&[("verb", verb)])
            .observe(report.duration.as_secs_f64());
        if let Some(class) = self.retried(report) {
            self.retries
                .get_or_create(&[("class", class.as_str().into())])
                .inc();
        }
    }

    /// Why this attempt was made, if it is not the first one.
    fn retried(&self, report: &Report<'_>) -> Option<ErrorClass> {
        let write = self.hasher.hash_one((report.verb, report.target));
        let mut failed = lock(&self.failed);
        let before = failed.remove(&write).filter(|_| report.attempt > 1);
        if let Outcome::Failed(class) = report.outcome {
            if failed.len() >= REMEMBERED {
                failed.clear();
            }
            failed.insert(write, class);
        }
        before
    }
}

/// 5 ms to 40 s, the longest that a write may take.
fn times() -> Histogram {
    Histogram::new([
        0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0,
    ])
}
