//! A limit on how many starts there are per second.

use std::{num::NonZeroU32, sync::Mutex, sync::PoisonError, time::Duration};

use tokio::time::{Instant, sleep_until};

/// Spreads starts evenly, and lets some of them come early: as many as fit into the slack, after a rest.
///
/// It is pure and holds one instant, whatever the number of starts: the caller says what time it is, and waits.
///
/// ```
/// use std::{num::NonZeroU32, time::Duration};
/// use exuvia_write::Pace;
/// use tokio::time::Instant;
///
/// let mut pace = Pace::new(NonZeroU32::new(10).unwrap(), Duration::ZERO);
/// let now = Instant::now();
/// assert_eq!(pace.not_before(now), None);
/// pace.take(now);
/// assert_eq!(pace.not_before(now), Some(now + Duration::from_millis(100)));
/// ```
#[derive(Debug, Clone)]
pub struct Pace {
    interval: Duration,
    slack: Duration,
    next: Option<Instant>,
}

impl Pace {
    /// So many starts per second. After a rest, starts may come earlier by `slack` in all: that makes up for a late timer,
    /// or is a burst.
    pub fn new(per_second: NonZeroU32, slack: Duration) -> Self {
        Self {
            interval: Duration::from_secs(1) / per_second.get(),
            slack,
            next: None,
        }
    }

    /// So many starts per second, and `burst` of them at once after a rest.
    pub fn with_burst(per_second: NonZeroU32, burst: NonZeroU32) -> Self {
        let mut pace = Self::new(per_second, Duration::ZERO);
        pace.slack = pace.interval.saturating_mul(burst.get() - 1);
        pace
    }

    /// When the next start may be, if that is later than now.
    pub fn not_before(&self, now: Instant) -> Option<Instant> {
        self.next.filter(|next| *next > now)
    }

    /// A start, now or reserved: the one after it waits for its turn.
    pub fn take(&mut self, now: Instant) {
        let rested = now.checked_sub(self.slack).unwrap_or(now);
        self.next = Some(self.next.map_or(rested, |next| next.max(rested)) + self.interval);
    }

    /// The last start is not counted: it made no request.
    pub fn give_back(&mut self) {
        self.next = self.next.and_then(|next| next.checked_sub(self.interval));
    }
}

/// A pace that all clones of a writer share.
pub(crate) struct SharedPace(Mutex<Pace>);

impl SharedPace {
    pub(crate) fn new(pace: Pace) -> Self {
        Self(Mutex::new(pace))
    }

    /// Waits for this caller's turn.
    pub(crate) async fn turn(&self) {
        if let Some(turn) = self.reserve(Instant::now()) {
            sleep_until(turn).await;
        }
    }

    fn reserve(&self, now: Instant) -> Option<Instant> {
        // The pace is valid at any moment, so a caller that panicked meanwhile does no harm.
        let mut pace = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = pace.not_before(now);
        pace.take(now);
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn number(number: u32) -> NonZeroU32 {
        NonZeroU32::new(number).expect("not zero")
    }

    #[test]
    fn starts_are_spread_evenly() {
        let mut pace = Pace::new(number(10), Duration::ZERO);
        let mut now = Instant::now();
        for _ in 0..5 {
            assert_eq!(pace.not_before(now), None);
            pace.take(now);
            assert_eq!(pace.not_before(now), Some(now + 100 * MS));
            now += 100 * MS;
        }
    }

    #[test]
    fn a_late_timer_is_made_up_for_and_a_long_rest_is_not() {
        let mut pace = Pace::new(number(100), 10 * MS);
        let start = Instant::now();
        pace.take(start);
        pace.take(start);
        pace.take(start + 13 * MS); // 3 ms late
        assert_eq!(pace.not_before(start + 13 * MS), Some(start + 20 * MS));
        let rested = start + 5000 * MS;
        let burst = (0..100)
            .take_while(|_| {
                let may = pace.not_before(rested).is_none();
                pace.take(rested);
                may
            })
            .count();
        assert_eq!(burst, 2, "the one that is due, and the slack");
    }

    #[test]
    fn what_made_no_request_costs_nothing() {
        let mut pace = Pace::new(number(1), Duration::ZERO);
        let now = Instant::now();
        for _ in 0..1000 {
            assert_eq!(pace.not_before(now), None);
            pace.take(now);
            pace.give_back();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_the_rest_is_spread_evenly() {
        let pace = SharedPace::new(Pace::with_burst(number(10), number(3)));
        let now = Instant::now();
        let waits = |now: Instant, count: usize| -> Vec<u128> {
            (0..count)
                .map(|_| pace.reserve(now).map_or(0, |turn| (turn - now).as_millis()))
                .collect()
        };
        assert_eq!(waits(now, 6), [0, 0, 0, 100, 200, 300]);
        // After a rest the burst is there again.
        assert_eq!(waits(now + Duration::from_secs(5), 4), [0, 0, 0, 100]);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_burst_every_request_waits_its_turn() {
        let pace = SharedPace::new(Pace::with_burst(number(2), number(1)));
        let began = Instant::now();
        for _ in 0..3 {
            pace.turn().await;
        }
        assert_eq!(began.elapsed(), Duration::from_secs(1));
    }
}
