//! The handle by which a sweep is cancelled, paused and slowed down from outside.

use std::time::Duration;

use exuvia_write::WriteReport;
use tokio::{sync::watch, time::Instant};

use crate::Pressure;

/// Cancels, pauses and slows down all sweeps that were given a clone of it.
///
/// Each takes effect at the next object: those that are in work are finished. Dropping a sweep's future is the other way
/// to stop it, at once and without a report.
///
/// ```
/// use exuvia_sweep::Control;
///
/// let control = Control::new();
/// let elsewhere = control.clone();
/// elsewhere.pause();
/// assert!(control.is_paused());
/// elsewhere.cancel();
/// control.resume(); // too late
/// assert!(control.is_cancelled());
/// ```
#[derive(Clone, Debug)]
pub struct Control {
    state: watch::Sender<Orders>,
}

/// What sweeps are told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Orders {
    pub(crate) mode: Mode,
    /// The last pressure that was told of, and its number, by which a sweep knows whether it is new to it.
    pub(crate) pressure: (u64, Option<Press>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    #[default]
    Running,
    Paused,
    Cancelled,
}

/// A sign of overload: when the request that met it was sent, and until when the server wants to be left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Press {
    pub(crate) began: Instant,
    pub(crate) until: Option<Instant>,
}

impl Press {
    /// What a request that ends `now` and took so long tells.
    pub(crate) fn of(pressure: Pressure, took: Duration, now: Instant) -> Self {
        Self {
            began: now.checked_sub(took).unwrap_or(now),
            until: pressure.rest().and_then(|rest| now.checked_add(rest)),
        }
    }
}

impl Control {
    /// A handle; nothing is cancelled or paused.
    pub fn new() -> Self {
        Self {
            state: watch::Sender::new(Orders::default()),
        }
    }

    /// No object is started any more, for good. The sweep ends when those in work are finished.
    pub fn cancel(&self) {
        self.state.send_modify(|state| state.mode = Mode::Cancelled);
    }

    /// No object is started, and no page is asked for, until [`resume`](Self::resume).
    pub fn pause(&self) {
        self.change(Mode::Running, Mode::Paused);
    }

    /// Goes on after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.change(Mode::Paused, Mode::Running);
    }

    /// Slows the sweeps down as soon as a writer meets pressure, where a worker's verdict would come later: a writer that
    /// is answered 429 waits and tries again before its caller learns of anything. For
    /// [`Writer::observe`](exuvia_write::Writer::observe):
    ///
    /// ```
    /// use exuvia_sweep::Control;
    /// use exuvia_write::Writer;
    ///
    /// let control = Control::new();
    /// let writer = Writer::named("widget-operator").observe(control.brake());
    /// # drop(writer);
    /// ```
    pub fn brake(&self) -> impl Fn(&WriteReport<'_>) + Send + Sync + 'static {
        let control = self.clone();
        move |report: &WriteReport<'_>| {
            if let exuvia_write::Outcome::Failed(class) = report.outcome
                && let Some(pressure) = Pressure::of(class)
            {
                control.slow_down(pressure, report.duration);
            }
        }
    }

    /// Slows the sweeps down: something met pressure. `took` is how long its request took: a request that was sent before
    /// the pool last gave way says nothing new.
    pub fn slow_down(&self, pressure: Pressure, took: Duration) {
        let new = Press::of(pressure, took, Instant::now());
        self.state.send_modify(|state| {
            let (number, last) = &mut state.pressure;
            *number += 1;
            // Two may come before a sweep looks: what counts is the latest request and the longest rest.
            *last = Some(Press {
                began: last.map_or(new.began, |last| last.began.max(new.began)),
                until: last.and_then(|last| last.until).max(new.until),
            });
        });
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.state.borrow().mode == Mode::Cancelled
    }

    /// Whether it is paused.
    pub fn is_paused(&self) -> bool {
        self.state.borrow().mode == Mode::Paused
    }

    /// Waits until it is cancelled, for anything else that should then stop.
    pub async fn cancelled(&self) {
        // It fails only when all handles are gone, and this is one.
        let _ = self
            .state
            .subscribe()
            .wait_for(|state| state.mode == Mode::Cancelled)
            .await;
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Orders> {
        self.state.subscribe()
    }

    fn change(&self, from: Mode, to: Mode) {
        self.state.send_if_modified(|state| {
            let changes = state.mode == from;
            if changes {
                state.mode = to;
            }
            changes
        });
    }
}

impl Default for Control {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_waiter_is_woken_by_the_end_and_not_held_up_after_it() {
        let control = Control::new();
        let waiting = tokio::spawn({
            let control = control.clone();
            async move { control.cancelled().await }
        });
        control.pause();
        control.cancel();
        assert!(waiting.await.is_ok());
        control.cancelled().await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_rest_and_the_latest_request_count() {
        let control = Control::new();
        let now = Instant::now();
        let seconds = Duration::from_secs;
        control.slow_down(Pressure::Throttled(Some(seconds(7))), seconds(2));
        control.slow_down(Pressure::Timeout, seconds(1));
        control.slow_down(Pressure::Throttled(Some(seconds(3))), seconds(5));
        let (number, last) = control.subscribe().borrow().pressure;
        assert_eq!(number, 3);
        let expected = Press {
            began: now - seconds(1),
            until: Some(now + seconds(7)),
        };
        assert_eq!(last, Some(expected));
    }
}
