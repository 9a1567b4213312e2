//! The state of a sweep: what waits, what is counted, and what may happen next. No IO; the caller says what time it is.

use std::{collections::VecDeque, mem, num::NonZeroU32, time::Duration};

use exuvia_write::{Pace, redacted};
use kube::Resource;
use tokio::time::Instant;

use crate::{
    Error, Failures, Identity, Item, ListError, Outcome, Page, Pressure, Progress, Recovery, SweepReport,
    Tally, Verdict,
    control::{Mode, Orders, Press},
    cursor::Lists,
    limit::Limiter,
    progress::{Meter, eta},
};

/// A timer is a millisecond late as a rule: that much may be made up for.
const TIMER_SLACK: Duration = Duration::from_millis(10);

/// Progress is told at most so often, and so often at least while something is in work, so that a rate that falls shows.
const TELL_AT_MOST_EVERY: Duration = Duration::from_millis(100);
const TELL_AT_LEAST_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Plural and group.
    pub(crate) resource: String,
    pub(crate) max_concurrency: usize,
    pub(crate) qps: Option<NonZeroU32>,
}

/// An object that was worked on.
pub(crate) struct Done {
    pub(crate) object: Identity,
    pub(crate) verdict: Verdict,
    pub(crate) took: Duration,
}

pub(crate) struct SweepState<'a> {
    settings: &'a Settings,
    mode: Mode,
    /// The number of the last pressure from outside that was acted on.
    last_pressure: u64,
    lists: Lists,
    /// The rest of the page that is being worked on.
    queue: VecDeque<Item>,
    /// The page after it. There is never a third one.
    ahead: Option<VecDeque<Item>>,
    failure: Option<ListError>,
    limiter: Limiter,
    pace: Option<Pace>,
    tally: Tally,
    failures: Failures,
    peak: usize,
    began: Instant,
    meter: Meter,
    told: Instant,
    anything_new: bool,
}

impl<'a> SweepState<'a> {
    pub(crate) fn new(settings: &'a Settings, orders: Orders, now: Instant) -> Self {
        Self {
            settings,
            mode: orders.mode,
            last_pressure: orders.pressure.0,
            lists: Lists::default(),
            queue: VecDeque::new(),
            ahead: None,
            failure: None,
            limiter: Limiter::new(settings.max_concurrency, now),
            pace: settings.qps.map(|qps| Pace::new(qps, TIMER_SLACK)),
            tally: Tally::default(),
            failures: Failures::default(),
            peak: 0,
            began: now,
            meter: Meter::default(),
            told: now,
            anything_new: true,
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// Does what the handle says.
    pub(crate) fn take_orders(&mut self, orders: Orders, now: Instant) {
        if self.mode != orders.mode {
            self.mode = orders.mode;
            self.meter.reset();
            self.anything_new = true;
        }
        if let (number, Some(press)) = orders.pressure
            && number != self.last_pressure
        {
            self.last_pressure = number;
            self.give_way(press, now);
        }
    }

    fn give_way(&mut self, press: Press, now: Instant) {
        let before = self.limiter.limit();
        let limit = self.limiter.on_pressure(press, now);
        if limit != before {
            self.anything_new = true;
            tracing::debug!(
                resource = self.settings.resource,
                before,
                limit,
                "the server is under pressure"
            );
        }
    }

    /// The next object to start now that `in_flight` are in work, if one may.
    pub(crate) fn begin<T: Resource>(
        &mut self,
        read: fn(&Item) -> Result<T, serde_json::Error>,
        in_flight: usize,
        now: Instant,
    ) -> Option<(T, Identity)> {
        if !self.has_room(in_flight) || self.not_before(now).is_some() {
            return None;
        }
        while let Some(item) = self.pop() {
            match read(&item) {
                Ok(object) => {
                    if let Some(pace) = &mut self.pace {
                        pace.take(now);
                    }
                    self.peak = self.peak.max(in_flight + 1);
                    let identity = Identity::from(object.meta());
                    return Some((object, identity));
                }
                Err(error) => {
                    // What serde says quotes the value (PITFALLS B27).
                    let message = redacted!("it does not fit its type (column {})", error.column());
                    self.note(item.identity(), Verdict::failed("unreadable", message));
                }
            }
        }
        None
    }

    fn has_room(&self, in_flight: usize) -> bool {
        self.mode == Mode::Running && self.failure.is_none() && in_flight < self.limiter.limit()
    }

    /// When the next object may begin, if that is later than now.
    fn not_before(&self, now: Instant) -> Option<Instant> {
        let pace = self.pace.as_ref().and_then(|pace| pace.not_before(now));
        self.limiter.not_before(now).max(pace)
    }

    fn pop(&mut self) -> Option<Item> {
        if self.queue.is_empty() {
            self.queue = self.ahead.take()?;
        }
        self.queue.pop_front()
    }

    /// Whether the next page may be asked for.
    pub(crate) fn wants_page(&self) -> bool {
        self.mode == Mode::Running && self.failure.is_none() && self.ahead.is_none() && !self.lists.complete
    }

    /// A page came, or did not; `lists` is what the pager knows by now.
    pub(crate) fn on_list(&mut self, lists: Lists, answer: Result<Option<Page>, ListError>, now: Instant) {
        self.anything_new = true;
        self.lists = lists;
        match answer {
            Ok(page) => self.ahead = page.map(|page| page.items.into()),
            Err(error) => {
                if let Some(pressure) = Pressure::of(error.class) {
                    self.give_way(Press::of(pressure, Duration::ZERO, now), now);
                }
                if error.recovery == Recovery::GiveUp {
                    self.failure = Some(error);
                }
            }
        }
    }

    pub(crate) fn on_done(&mut self, done: Done, now: Instant) {
        let Done {
            object,
            verdict,
            took,
        } = done;
        match (verdict.pressure, verdict.outcome) {
            (Some(pressure), _) => self.give_way(Press::of(pressure, took, now), now),
            (None, Outcome::Skipped) => {
                if let Some(pace) = &mut self.pace {
                    pace.give_back();
                }
            }
            (None, _) => {
                self.limiter.on_answer(took, now);
            }
        }
        self.note(object, verdict);
    }

    fn note(&mut self, object: Identity, verdict: Verdict) {
        self.anything_new = true;
        self.tally.add(verdict.outcome);
        self.failures.note(object, verdict);
    }

    /// Whether no further object will start: all were seen, or the sweep failed or was cancelled.
    pub(crate) fn is_over(&self) -> bool {
        let all_seen = self.queue.is_empty() && self.ahead.is_none() && self.lists.complete;
        all_seen || self.failure.is_some() || self.mode == Mode::Cancelled
    }

    /// When to look again though nothing happened.
    pub(crate) fn wake(&self, in_flight: usize, now: Instant) -> Option<Instant> {
        let waiting = self.has_room(in_flight) && !(self.queue.is_empty() && self.ahead.is_none());
        let begin = self.not_before(now).filter(|_| waiting);
        let tell = if self.anything_new {
            Some(self.told + TELL_AT_MOST_EVERY)
        } else {
            (in_flight > 0).then(|| self.told + TELL_AT_LEAST_EVERY)
        };
        begin.into_iter().chain(tell).min()
    }

    /// Progress, if it is time to publish it.
    pub(crate) fn progress_if_due(&mut self, in_flight: usize, now: Instant) -> Option<Progress> {
        let after = if self.anything_new {
            TELL_AT_MOST_EVERY
        } else {
            TELL_AT_LEAST_EVERY
        };
        (now - self.told >= after).then(|| self.tell(in_flight, now))
    }

    /// Progress at the end.
    pub(crate) fn final_progress(&mut self, now: Instant) -> Progress {
        self.tell(0, now)
    }

    fn tell(&mut self, in_flight: usize, now: Instant) -> Progress {
        self.told = now;
        self.anything_new = false;
        let lists = self.lists;
        let done = self.tally.done();
        let rate = self.meter.rate(done, now);
        Progress {
            tally: self.tally,
            total: lists.total,
            rate,
            eta: eta(lists.total, done, rate),
            concurrency: self.limiter.limit(),
            in_flight,
            paused: self.mode == Mode::Paused,
            restarts: lists.restarts,
            first_list: lists.first,
        }
    }

    /// The result.
    pub(crate) fn end(mut self, now: Instant) -> Result<SweepReport, Error> {
        let lists = self.lists;
        let report = SweepReport {
            tally: self.tally,
            failures: mem::take(&mut self.failures),
            first_list: lists.first,
            smallest_list: lists.smallest,
            list_requests: lists.requests,
            pages: lists.pages,
            resumed: lists.resumed,
            restarts: lists.restarts,
            peak_concurrency: self.peak,
            last_concurrency: self.limiter.limit(),
            elapsed: now - self.began,
        };
        let resource = self.settings.resource.clone();
        match self.failure {
            _ if self.mode == Mode::Cancelled => Err(Error::Cancelled {
                resource,
                report: Box::new(report),
            }),
            Some(ListError { class, source, .. }) => Err(Error::List {
                resource,
                class,
                source,
                report: Box::new(report),
            }),
            None => Ok(report),
        }
    }
}
