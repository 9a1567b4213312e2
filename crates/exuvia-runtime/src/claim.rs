//! The claim: whether this process may write now, by a clock that keeps counting while the process or the machine sleeps.

use std::{fmt, sync::Arc, time::Duration};

use exuvia_write::Attempt;
use tokio::sync::watch;

/// Timers stand still while the machine sleeps and the claim's clock does not, so a waiter looks again this often.
const RECHECK: Duration = Duration::from_secs(1);

/// The right to write, for as long as it lasts.
///
/// Cheap to clone; all clones are one claim. [`elect`](crate::elect) extends it with each renewal of the lease, and
/// without one it ends by itself: a process that was stopped and continued no longer holds it, even if it does not know yet.
///
/// ```
/// use exuvia_runtime::Claim;
/// use exuvia_write::Writer;
///
/// let claim = Claim::none(); // nobody has elected us yet
/// let writer = Writer::named("widget-operator").gate(claim.gate());
/// assert!(!claim.holds());
/// assert!(Claim::always().holds());
/// # drop(writer);
/// ```
#[derive(Clone)]
pub struct Claim {
    state: Arc<watch::Sender<ClaimState>>,
    clock: Clock,
}

#[derive(Clone, Copy)]
struct ClaimState {
    /// The claim holds before this instant of its clock.
    until: Duration,
    /// Counts the terms: one ends with the claim, and the next one is another, however soon it begins.
    term: u64,
}

impl Claim {
    /// A claim that never ends, for a process that is alone.
    pub fn always() -> Self {
        Self::new(Duration::MAX, Clock::System)
    }

    /// A claim that does not hold until [`elect`](crate::elect) makes it.
    pub fn none() -> Self {
        Self::new(Duration::ZERO, Clock::System)
    }

    fn new(until: Duration, clock: Clock) -> Self {
        let state = Arc::new(watch::Sender::new(ClaimState { until, term: 0 }));
        Self { state, clock }
    }

    /// Whether it holds now.
    pub fn holds(&self) -> bool {
        let until = self.state.borrow().until;
        // The clock last: a process that is stopped in between then reads the time after the stop.
        self.now() < until
    }

    /// For [`Writer::gate`](exuvia_write::Writer::gate): no request is sent without the claim, dry-runs included.
    pub fn gate(&self) -> impl Fn(&Attempt<'_>) -> Result<(), String> + Send + Sync + 'static {
        let claim = self.clone();
        move |_: &Attempt<'_>| {
            if claim.holds() {
                Ok(())
            } else {
                Err("this process is not the leader, or no longer".to_owned())
            }
        }
    }

    /// Waits until it holds.
    pub async fn gained(&self) {
        let mut states = self.state.subscribe();
        while !self.holds() {
            // It cannot fail: this claim has the sender.
            let _ = states.changed().await;
        }
    }

    /// Waits until it ends: revoked, expired, or ended and begun again since this call.
    pub async fn lost(&self) {
        let mut states = self.state.subscribe();
        let term = states.borrow_and_update().term;
        loop {
            let ClaimState { until, term: current } = *states.borrow_and_update();
            let left = until.saturating_sub(self.now());
            if left.is_zero() || current != term {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(left.min(RECHECK)), if until != Duration::MAX => {}
                _ = states.changed() => {}
            }
        }
    }

    /// The claim's own clock, to take an instant before a request is sent.
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Holds until then. After a gap it is a new term.
    pub(crate) fn extend(&self, until: Duration) {
        let now = self.now();
        self.state.send_modify(|state| {
            if now >= state.until {
                state.term += 1;
            }
            state.until = until;
        });
    }

    /// Ends it now.
    pub(crate) fn revoke(&self) {
        self.state.send_modify(|state| state.until = Duration::ZERO);
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("holds", &self.holds()).finish()
    }
}

#[derive(Clone)]
enum Clock {
    System,
    #[cfg(test)]
    Manual(Arc<std::sync::Mutex<Duration>>),
}

impl Clock {
    fn now(&self) -> Duration {
        match self {
            Self::System => system_now(),
            #[cfg(test)]
            Self::Manual(now) => *now.lock().expect("no test panics while it holds this"),
        }
    }
}

/// Since boot, sleep included: `Instant` is `CLOCK_MONOTONIC`, for which a suspended laptop or a snapshotted virtual
/// machine has lost no time, while its successor has long been elected.
#[cfg(target_os = "linux")]
fn system_now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // Neither part is ever negative.
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

#[cfg(not(target_os = "linux"))]
fn system_now() -> Duration {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Mutex;

    use futures::FutureExt;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A claim of nobody at 100 s, and its clock.
    fn manual() -> (Claim, Arc<Mutex<Duration>>) {
        let clock = Arc::new(Mutex::new(100 * SECOND));
        (
            Claim::new(Duration::ZERO, Clock::Manual(Arc::clone(&clock))),
            clock,
        )
    }

    #[test]
    fn it_ends_by_itself_at_the_very_instant() {
        let (claim, clock) = manual();
        assert!(!claim.holds());
        claim.extend(110 * SECOND);
        assert!(claim.holds());
        *clock.lock().unwrap() = Duration::new(109, 999_999_999);
        assert!(claim.holds());
        *clock.lock().unwrap() = 110 * SECOND;
        assert!(!claim.holds());
        claim.extend(120 * SECOND);
        assert!(claim.holds());
        claim.revoke();
        assert!(!claim.holds());
    }

    /// The machine slept: the claim's clock jumps while timers do not.
    #[tokio::test(start_paused = true)]
    async fn a_waiter_learns_of_the_end_though_no_timer_counted_the_sleep() {
        let (claim, clock) = manual();
        claim.extend(100 * SECOND + 24 * 3600 * SECOND);
        let lost = claim.lost();
        tokio::pin!(lost);
        assert!(lost.as_mut().now_or_never().is_none());
        *clock.lock().unwrap() += 48 * 3600 * SECOND;
        let before = tokio::time::Instant::now();
        lost.await;
        assert!(before.elapsed() <= 2 * RECHECK);
    }

    #[tokio::test(start_paused = true)]
    async fn an_extension_is_not_a_loss_but_a_gap_is_one_even_if_it_is_over() {
        let (claim, clock) = manual();
        claim.extend(110 * SECOND);
        let lost = claim.lost();
        tokio::pin!(lost);
        assert!(lost.as_mut().now_or_never().is_none());
        *clock.lock().unwrap() = 105 * SECOND;
        claim.extend(115 * SECOND);
        assert!(lost.as_mut().now_or_never().is_none());
        *clock.lock().unwrap() = 116 * SECOND; // stopped, and continued
        claim.extend(126 * SECOND);
        assert!(claim.holds());
        assert!(lost.as_mut().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_it_gets_it() {
        let (claim, _clock) = manual();
        let gained = claim.gained();
        tokio::pin!(gained);
        assert!(gained.as_mut().now_or_never().is_none());
        claim.clone().extend(110 * SECOND);
        assert!(gained.now_or_never().is_some());
        assert!(Claim::always().gained().now_or_never().is_some());
        assert!(Claim::always().lost().now_or_never().is_none());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_system_clock_counts_at_least_what_the_monotonic_one_does() {
        let monotonic = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        assert!(system_now() >= Duration::from_secs(u64::try_from(monotonic.tv_sec).unwrap()));
        assert!(system_now() <= system_now());
    }
}
