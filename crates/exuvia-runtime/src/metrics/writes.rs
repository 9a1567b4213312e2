//! What a writer's reports add up to.

use std::{
    borrow::Cow,
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::Mutex,
    time::Duration,
};

use exuvia_write::{ErrorClass, Outcome, WriteReport};
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
            "Writes by outcome: written, unsent (nothing to change), gated (not the leader), or the class of the error",
            writes.requests.clone(),
        );
        registry.register(
            "exuvia_write_retries",
            "Writes that were tried again, by the class of the error before",
            writes.retries.clone(),
        );
        registry.register(
            "exuvia_write_duration_seconds",
            "Time from sending a write to the end of its answer",
            writes.duration.clone(),
        );
        writes
    }

    pub(super) fn observe(&self, report: &WriteReport<'_>) {
        // A dry-run does not write: a dashboard must not count it as a write.
        let verb: Cow<'static, str> = if report.dry_run {
            format!("{}_dry_run", report.verb).into()
        } else {
            report.verb.as_str().into()
        };
        let sent = !matches!(report.outcome, Outcome::Unsent | Outcome::Gated);
        let retried = sent.then(|| self.retried(report)).flatten();
        self.count(
            verb,
            report.target.resource.clone().into(),
            report.outcome,
            sent.then_some(report.duration),
            retried,
        );
    }

    /// Counts one write; `took` is the time of one that was sent.
    pub(super) fn count(
        &self,
        verb: Cow<'static, str>,
        resource: Cow<'static, str>,
        outcome: Outcome,
        took: Option<Duration>,
        retried: Option<ErrorClass>,
    ) {
        let labels = [
            ("verb", verb.clone()),
            ("resource", resource),
            ("outcome", outcome.as_str().into()),
        ];
        self.requests.get_or_create(&labels).inc();
        if let Some(took) = took {
            let duration = self.duration.get_or_create(&[("verb", verb)]);
            duration.observe(took.as_secs_f64());
        }
        if let Some(class) = retried {
            self.retries
                .get_or_create(&[("class", class.as_str().into())])
                .inc();
        }
    }

    /// Why this attempt was made, if it is not the first one.
    fn retried(&self, report: &WriteReport<'_>) -> Option<ErrorClass> {
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
