//! A limit on how many objects are begun per second.

use std::{num::NonZeroU32, time::Duration};

use tokio::time::Instant;

/// A timer is a millisecond late as a rule: so much may be made up for, and no more.
const SLACK: Duration = Duration::from_millis(10);

/// Spreads starts evenly. Pure: who asks says what time it is.
pub(crate) struct Pace {
    interval: Duration,
    next: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(per_second: NonZeroU32) -> Self {
        Self {
            interval: Duration::from_secs(1) / per_second.get(),
            next: None,
        }
    }

    /// When the next object may begin, if that is later than now.
    pub(crate) fn not_before(&self, now: Instant) -> Option<Instant> {
        self.next.filter(|next| *next > now)
    }

    /// An object begins.
    pub(crate) fn take(&mut self, now: Instant) {
        let oldest = now.checked_sub(SLACK).unwrap_or(now);
        self.next = Some(self.next.map_or(now, |next| next.max(oldest)) + self.interval);
    }

    /// An object that began made no request.
    pub(crate) fn give_back(&mut self) {
        self.next = self.next.and_then(|next| next.checked_sub(self.interval));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn pace(per_second: u32) -> (Pace, Instant) {
        let per_second = NonZeroU32::new(per_second).expect("not zero");
        (Pace::new(per_second), Instant::now())
    }

    #[test]
    fn starts_are_spread_evenly() {
        let (mut pace, mut now) = pace(10);
        for _ in 0..5 {
            assert_eq!(pace.not_before(now), None);
            pace.take(now);
            assert_eq!(pace.not_before(now), Some(now + 100 * MS));
            now += 100 * MS;
        }
    }

    #[test]
    fn a_late_timer_is_made_up_for_and_a_long_rest_is_not() {
        let (mut pace, start) = pace(100);
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
        let (mut pace, now) = pace(1);
        for _ in 0..1000 {
            assert_eq!(pace.not_before(now), None);
            pace.take(now);
            pace.give_back();
        }
    }
}
