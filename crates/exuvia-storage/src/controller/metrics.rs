//! What only a storage migration counts: objects by what came of them. All other metrics are the publisher's.

use exuvia_runtime::Metrics;
use exuvia_runtime::publish::Gauges;
use exuvia_sweep::{Outcome, Tally};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::status::Migrations;
use crate::RewriteTally;

/// What becomes of an object in a rewrite sweep; one that was skipped counts as current.
const COUNTED: [Outcome; 6] = [
    Outcome::Changed,
    Outcome::Unchanged,
    Outcome::Skipped,
    Outcome::Gone,
    Outcome::Conflict,
    Outcome::Failed,
];

/// Counts the objects of rewrite sweeps.
#[derive(Clone, Debug)]
pub(super) struct ObjectCounter(Family<[(&'static str, String); 2], Counter>);

impl ObjectCounter {
    pub(super) fn register(metrics: &Metrics) -> Self {
        let objects = Family::default();
        metrics.register(
            "exuvia_storage_objects",
            "Objects by their outcome in rewrite sweeps: rewritten, current, gone, conflict or failed",
            Family::clone(&objects),
        );
        Self(objects)
    }

    /// Objects that were seen to their end since the last time.
    pub(super) fn add(&self, resource: &str, before: Tally, now: Tally) {
        for outcome in COUNTED {
            let more = now.of(outcome).saturating_sub(before.of(outcome));
            let labels = [
                ("resource", resource.to_owned()),
                ("outcome", RewriteTally::name_of(outcome).to_owned()),
            ];
            self.0.get_or_create(&labels).inc_by(more);
        }
    }
}

impl super::StorageController {
    /// Registers the controller's metrics and shows each of them once, with an example of its labels: see
    /// [`Metrics::describe`].
    pub fn sample_metrics(metrics: &Metrics) {
        let resource = "widgets.example.com";
        Gauges::<Migrations>::sample(metrics, resource, "rewrite");
        ObjectCounter::register(metrics).add(resource, Tally::default(), Tally::default());
    }
}
