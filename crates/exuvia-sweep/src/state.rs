//! Where a sweep stands: what waits, what is counted, and what may happen next. No IO; who asks says what time it is.

use std::{collections::VecDeque, mem, num::NonZeroU32, time::Duration};

use exuvia_write::RetryPolicy;
use kube::{api::ListParams, core::PartialObjectMeta};
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::{
    Error, Failures, Outcome, Pressure, Progress, Report, Tally, Verdict,
    control::{self, Mode, Press},
    cursor::{Cursor, Next},
    limit::Limiter,
    list::{self, ListFailure, Page},
    pace::Pace,
    progress::{Meter, eta},
    tally::Named,
};

/// Progress is told at most so often, and so often at least while something is in work, so that a rate that falls shows.
const TELL_AFTER: Duration = Duration::from_millis(100);
const TELL_ANYWAY: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Plural and group.
    pub(crate) resource: String,
    pub(crate) page_size: u32,
    pub(crate) max_concurrency: usize,
    pub(crate) qps: Option<NonZeroU32>,
    pub(crate) retry: RetryPolicy,
}

/// An object that was worked on.
pub(crate) struct Done {
    pub(crate) object: Named,
    pub(crate) verdict: Verdict,
    pub(crate) took: Duration,
}

pub(crate) struct State<'a> {
    settings: &'a Settings,
    mode: Mode,
    /// The number of the last pressure from outside that was heeded.
    heeded: u64,
    cursor: Cursor,
    /// When the next page may be asked for.
    list_not_before: Option<Instant>,
    /// The rest of the page that is being worked on.
    queue: VecDeque<Box<RawValue>>,
    /// The page after it. There is never a third one.
    ahead: Option<VecDeque<Box<RawValue>>>,
    failure: Option<ListFailure>,
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

impl<'a> State<'a> {
    pub(crate) fn new(settings: &'a Settings, orders: control::State, now: Instant) -> Self {
        Self {
            settings,
            mode: orders.mode,
            heeded: orders.pressure.0,
            cursor: Cursor::new(settings.page_size, settings.retry.clone()),
            list_not_before: None,
            queue: VecDeque::new(),
            ahead: None,
            failure: None,
            limiter: Limiter::new(settings.max_concurrency, now),
            pace: settings.qps.map(Pace::new),
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

    /// Takes orders.
    pub(crate) fn heed(&mut self, orders: control::State, now: Instant) {
        if self.mode != orders.mode {
            self.mode = orders.mode;
            self.meter.reset();
            self.anything_new = true;
        }
        if let (number, Some(press)) = orders.pressure
            && number != self.heeded
        {
            self.heeded = number;
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

    /// The next object to begin now that so many are in work, if one may.
    pub(crate) fn begin(&mut self, in_flight: usize, now: Instant) -> Option<(PartialObjectMeta, Named)> {
        if !self.has_room(in_flight) || self.not_before(now).is_some() {
            return None;
        }
        while let Some(item) = self.pop() {
            match list::read(&item) {
                Ok(begun) => {
                    if let Some(pace) = &mut self.pace {
                        pace.take(now);
                    }
                    self.peak = self.peak.max(in_flight + 1);
                    self.anything_new = true;
                    return Some(begun);
                }
                Err((object, error)) => {
                    // Not the error's own words, which quote what was found (PITFALLS B27).
                    let message = format!("its metadata cannot be read (column {})", error.column());
                    self.note(object, Verdict::failed("unreadable", message));
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

    fn pop(&mut self) -> Option<Box<RawValue>> {
        if self.queue.is_empty() {
            self.queue = self.ahead.take()?;
        }
        self.queue.pop_front()
    }

    /// The list to ask for next, and not before when.
    pub(crate) fn wants_page(&self) -> Option<(ListParams, Option<Instant>)> {
        let wants = self.mode == Mode::Running && self.failure.is_none() && self.ahead.is_none();
        let params = wants.then(|| self.cursor.next()).flatten()?;
        Some((params, self.list_not_before))
    }

    pub(crate) fn on_list(&mut self, answer: Result<Page, ListFailure>, now: Instant) {
        self.anything_new = true;
        self.list_not_before = None;
        let mut failure = match answer {
            Ok(page) => {
                let items = VecDeque::from(page.items.unwrap_or_default());
                self.cursor.on_page(page.list, items.len());
                self.ahead = Some(items);
                return;
            }
            Err(failure) => failure,
        };
        if let Some(pressure) = Pressure::of(failure.class) {
            self.give_way(Press::of(pressure, Duration::ZERO, now), now);
        }
        let next = self.cursor.on_error(failure.class, failure.fresh.take());
        let resource = &self.settings.resource;
        match next {
            Next::Retry(delay) => {
                tracing::debug!(resource, class = %failure.class, ?delay, "a list failed and is tried again");
                self.list_not_before = Some(now + delay);
            }
            Next::Resume => tracing::debug!(resource, "a continue token expired; going on with another"),
            Next::Restart => tracing::warn!(resource, "a continue token expired; beginning anew"),
            Next::GiveUp => self.failure = Some(failure),
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

    fn note(&mut self, object: Named, verdict: Verdict) {
        self.anything_new = true;
        self.tally.add(verdict.outcome);
        self.failures.note(object, verdict);
    }

    /// Whether nothing more will begin: all was seen, or there is no going on.
    pub(crate) fn is_over(&self) -> bool {
        let all_seen = self.queue.is_empty() && self.ahead.is_none() && self.cursor.next().is_none();
        all_seen || self.failure.is_some() || self.mode == Mode::Cancelled
    }

    /// When to look again though nothing happened.
    pub(crate) fn wake(&self, in_flight: usize, now: Instant) -> Option<Instant> {
        let waiting = self.has_room(in_flight) && !(self.queue.is_empty() && self.ahead.is_none());
        let begin = self.not_before(now).filter(|_| waiting);
        let tell = if self.anything_new {
            Some(self.told + TELL_AFTER)
        } else {
            (in_flight > 0).then(|| self.told + TELL_ANYWAY)
        };
        begin.into_iter().chain(tell).min()
    }

    /// Progress, if it is time to tell.
    pub(crate) fn news(&mut self, in_flight: usize, now: Instant) -> Option<Progress> {
        let after = if self.anything_new {
            TELL_AFTER
        } else {
            TELL_ANYWAY
        };
        (now - self.told >= after).then(|| self.tell(in_flight, now))
    }

    /// Progress in the end.
    pub(crate) fn last_news(&mut self, now: Instant) -> Progress {
        self.tell(0, now)
    }

    fn tell(&mut self, in_flight: usize, now: Instant) -> Progress {
        self.told = now;
        self.anything_new = false;
        let lists = self.cursor.lists();
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

    /// What came of it all.
    pub(crate) fn end(mut self, now: Instant) -> Result<Report, Error> {
        let lists = self.cursor.lists();
        let report = Report {
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
            Some(ListFailure { class, error, .. }) => Err(Error::List {
                resource,
                class,
                source: Box::new(error),
                report: Box::new(report),
            }),
            None => Ok(report),
        }
    }
}
