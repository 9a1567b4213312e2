//! What is read at the moment of a scrape: claims and queues.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeGaugeValue},
    metrics::MetricType,
};

use super::lock;
use crate::{
    Claim,
    queue::{Reading, WorkQueue},
};

/// One collector for all of them: a family may be described only once.
#[derive(Clone, Default)]
pub(super) struct Readings {
    claims: Arc<Mutex<Vec<(String, Claim)>>>,
    queues: Arc<Mutex<Vec<Arc<WorkQueue>>>>,
}

impl Readings {
    pub(super) fn add_claim(&self, lease: &str, claim: &Claim) {
        lock(&self.claims).push((lease.to_owned(), claim.clone()));
    }

    pub(super) fn add_queue(&self, queue: &Arc<WorkQueue>) {
        lock(&self.queues).push(Arc::clone(queue));
    }
}

impl Collector for Readings {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let claims = lock(&self.claims);
        gauges(
            &mut encoder,
            "leader_election_master_status",
            "1 while this replica holds the Lease",
            claims
                .iter()
                .map(|(lease, claim)| (lease.as_str(), i64::from(claim.holds()))),
        )?;
        let readings: Vec<(&'static str, Reading)> = lock(&self.queues)
            .iter()
            .map(|queue| (queue.name(), queue.reading()))
            .collect();
        gauges(
            &mut encoder,
            "workqueue_depth",
            "Keys that wait in the queue",
            readings.iter().map(|(name, reading)| (*name, reading.depth)),
        )?;
        gauges(
            &mut encoder,
            "workqueue_unfinished_work_seconds",
            "How long the running reconciles have taken so far, added up",
            readings
                .iter()
                .map(|(name, reading)| (*name, reading.unfinished.as_secs_f64())),
        )?;
        gauges(
            &mut encoder,
            "workqueue_longest_running_processor_seconds",
            "How long the longest running reconcile has taken so far",
            readings
                .iter()
                .map(|(name, reading)| (*name, reading.longest.as_secs_f64())),
        )
    }
}

impl fmt::Debug for Readings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readings").finish_non_exhaustive()
    }
}

fn gauges<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    family: &str,
    help: &str,
    values: impl Iterator<Item = (&'a str, impl EncodeGaugeValue)>,
) -> fmt::Result {
    let mut values = values.peekable();
    if values.peek().is_none() {
        return Ok(());
    }
    let mut metric = encoder.encode_descriptor(family, help, None, MetricType::Gauge)?;
    for (name, value) in values {
        metric.encode_family(&[("name", name)])?.encode_gauge(&value)?;
    }
    Ok(())
}
