//! A limit on requests per second, shared by all clones of a writer.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Spreads requests evenly once a burst is used up. Holds one instant, whatever the number of callers: the time at which
/// all requests let through so far will have been paid for.
pub(crate) struct Pace {
    interval: Duration,
    slack: Duration,
    paid_until: Mutex<Option<Instant>>,
}

impl Pace {
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second.max(1);
        let slack = interval.saturating_mul(burst.saturating_sub(1));
        Self {
            interval,
            slack,
            paid_until: Mutex::new(None),
        }
    }

    /// Waits for this caller's turn.
    pub(crate) async fn turn(&self) {
        let wait = self.reserve(Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    fn reserve(&self, now: Instant) -> Duration {
        // The instant is valid at any moment, so a caller that panicked meanwhile does no harm.
        let mut paid_until = self.paid_until.lock().unwrap_or_else(PoisonError::into_inner);
        let start = paid_until.map_or(now, |until| until.max(now));
        *paid_until = Some(start + self.interval);
        start.saturating_duration_since(now).saturating_sub(self.slack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_the_rest_is_spread_evenly() {
        let pace = Pace::new(10, 3);
        let now = Instant::now();
        let waits: Vec<u128> = (0..6).map(|_| pace.reserve(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200, 300]);
        // After a rest the burst is there again.
        let later = now + Duration::from_secs(5);
        let waits: Vec<u128> = (0..4).map(|_| pace.reserve(later).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100]);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_burst_every_request_waits_its_turn() {
        let pace = Pace::new(2, 0);
        let began = Instant::now();
        for _ in 0..3 {
            pace.turn().await;
        }
        assert_eq!(began.elapsed(), Duration::from_secs(1));
    }
}
