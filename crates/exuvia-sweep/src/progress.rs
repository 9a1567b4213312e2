//! How far a sweep is: what bars, status and metrics are made of.

use std::{collections::VecDeque, time::Duration};

use serde::Serialize;
use tokio::time::Instant;

use crate::{ResourceVersion, Tally};

/// The rate is that of the last ten seconds: calm enough for a bar, and a change of pace shows soon.
const WINDOW: Duration = Duration::from_secs(10);

/// How far a sweep is.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Progress {
    /// What came of the objects so far.
    pub tally: Tally,
    /// How many objects there are, revised with each page: an estimate until the last one; `None` while it is not known.
    pub total: Option<u64>,
    /// Objects per second, over the last ten seconds.
    pub rate: f64,
    /// How long it will take at that rate.
    pub eta: Option<Duration>,
    /// How many objects may be in work at once at present.
    pub concurrency: usize,
    /// How many are.
    pub in_flight: usize,
    /// Whether it is paused.
    pub paused: bool,
    /// How often it had to start over. Objects may then be counted twice, in the total as well.
    pub restarts: u32,
    /// The resourceVersion of the first list, from the first page on.
    pub first_list: Option<ResourceVersion>,
}

impl Progress {
    /// Objects that were seen to the end, whatever came of them.
    pub fn done(&self) -> u64 {
        self.tally.done()
    }
}

/// Measures the rate.
#[derive(Default)]
pub(crate) struct Meter {
    /// When so many were done; as many as are asked for within the window.
    samples: VecDeque<(Instant, u64)>,
}

impl Meter {
    /// Objects per second within the window, now that so many are done.
    pub(crate) fn rate(&mut self, done: u64, now: Instant) -> f64 {
        // The oldest that is kept is the last one outside of the window.
        while self.samples.get(1).is_some_and(|(then, _)| now - *then >= WINDOW) {
            self.samples.pop_front();
        }
        self.samples.push_back((now, done));
        let (then, before) = self.samples[0];
        let seconds = (now - then).as_secs_f64();
        #[expect(clippy::cast_precision_loss)] // a rate need not be exact
        let more = (done - before) as f64;
        if seconds > 0.0 { more / seconds } else { 0.0 }
    }

    /// Forgets all: what was before tells nothing about what comes.
    pub(crate) fn reset(&mut self) {
        self.samples.clear();
    }
}

/// How long the rest will take.
pub(crate) fn eta(total: Option<u64>, done: u64, rate: f64) -> Option<Duration> {
    #[expect(clippy::cast_precision_loss)] // an estimate need not be exact
    let left = total?.saturating_sub(done) as f64;
    if left == 0.0 {
        return Some(Duration::ZERO);
    }
    Duration::try_from_secs_f64(left / rate).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_window() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut meter = Meter::default();
        let near = |rate: f64, expected: f64| assert!((rate - expected).abs() < 0.01 * expected, "{rate}");
        assert!(meter.rate(0, start) < f64::EPSILON);
        for tick in 1..=100 {
            near(meter.rate(tick * 10, at(tick * 100)), 100.0);
        }
        // Ten seconds at another pace, and the first ten are forgotten.
        let mut last = 0.0;
        for tick in 101..=200 {
            last = meter.rate(1000 + (tick - 100), at(tick * 100));
        }
        near(last, 10.0);
        assert!(meter.samples.len() <= 102, "{}", meter.samples.len());
        // Then it stalls.
        assert!(meter.rate(1100, at(40_000)) < 1.0);
        meter.reset();
        assert!(meter.rate(1100, at(50_000)) < f64::EPSILON);
    }

    #[test]
    fn what_nobody_knows_is_not_guessed() {
        assert_eq!(eta(None, 5, 1.0), None);
        assert_eq!(eta(Some(10), 5, 0.0), None);
        assert_eq!(eta(Some(10), 5, 2.5), Some(Duration::from_secs(2)));
        assert_eq!(eta(Some(10), 10, 0.0), Some(Duration::ZERO));
        assert_eq!(
            eta(Some(10), 12, 1.0),
            Some(Duration::ZERO),
            "more than were foreseen"
        );
        assert_eq!(eta(Some(u64::MAX), 0, 1e-300), None, "longer than can be said");
    }
}
