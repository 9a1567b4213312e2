//! How many objects may be in work at once: found out by trying, cut in half under pressure. Pure.
//!
//! What is sought is the knee: the least concurrency beyond which the server does not get more done, only later. While
//! latency holds, a pool twice as large gets twice as much done; past the knee nothing grows but the latency, for us and
//! for everybody else. So a limit is judged by what gets done at it, as long as the pool is full, which the latencies
//! tell by Little's law: a pool that waits for pages, or for a rate limit, teaches nothing about the server.

use std::{mem, time::Duration};

use tokio::time::Instant;

use crate::control::Press;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

/// Few enough not to be noticed, enough to have something to measure.
const START: usize = 4;

/// How long a limit is looked at, and never less than two rounds of requests: at a glance where the difference is great,
/// closely where small ones are looked for. Requests differ, and so does what else the server has to do: it takes some
/// hundred requests, or some seconds, to tell 5 % apart.
const GLANCE: Duration = Duration::from_millis(250);
const ROUGH_LOOK: (Duration, u32) = (Duration::from_secs(1), 150);
const CLOSE_LOOK: (Duration, u32) = (Duration::from_secs(4), 500);
const SHORTEST_CLOSE_LOOK: Duration = Duration::from_secs(2);

/// A gain and a loss that a glance can tell.
const GROWING: f64 = 1.25;
const CLEAR: f64 = 0.25;

/// A limit k times as high must get `k^EFFORT` times as much done to be worth it: a doubling 5 % more. On a server with
/// no sharp knee that ends at a little over 90 % of what it can do at all.
const EFFORT: f64 = 0.07;

/// Two doublings that together bring less than this are past the knee for sure: no need to try the cap.
const TWO_DOUBLINGS: f64 = 1.1;

/// Of those limits that got nearly the most done the lowest is taken: a short look cannot tell them apart.
const NEARLY: f64 = 0.95;

/// In doubt the lower limit is right: a higher one must be better by so much.
const DOUBT: f64 = 1.02;

/// Looks between tries: few while they succeed, more with each that does not.
const REST: u32 = 1;
const REST_AFTER_MISS: u32 = 4;
const LONGEST_REST: u32 = 16;

/// From this share of the limit on, a pool counts as full: at the start one in four may be stuck.
const FULL: f64 = 0.7;

/// A server that asks for more than a minute is asked again after one: it may have said so before a restart.
const LONGEST_HOLD: Duration = Duration::from_secs(60);

pub(crate) struct Limiter {
    max: usize,
    limit: usize,
    phase: Phase,
    epoch: Epoch,
    last_cut: Option<Instant>,
    /// How often there was pressure since the doubling last came to its end without.
    cuts: u32,
    hold: Option<Instant>,
}

/// What was measured at a limit.
#[derive(Clone, Copy, Debug)]
struct Rung {
    limit: usize,
    /// What a full pool of this size gets done per second.
    power: f64,
}

impl Rung {
    fn worth(self) -> f64 {
        #[expect(clippy::cast_precision_loss)] // a limit is small
        let effort = (self.limit as f64).powf(EFFORT);
        self.power / effort
    }

    fn is_clearly_above(self, power: f64) -> bool {
        power < (1.0 - CLEAR) * self.power
    }
}

enum Phase {
    /// Doubling until it does not help, the cap, or pressure.
    Ramp(Vec<Rung>),
    /// At a good limit, for so many looks, until the next try.
    Steady { rest: u32, course: Course },
    /// At another limit, to see whether it is better.
    Away { home: Rung, course: Course },
    /// Back again, to see whether it was the limit that made the difference.
    Back { home: Rung, away: Rung, course: Course },
    /// After pressure: one more with each glance, up to where the pressure was.
    Recover { ceiling: usize },
    /// There, for so many looks; then doubling again, as the pressure may be over.
    Wait { rest: u32 },
}

/// Where the next try goes.
#[derive(Clone, Copy, Debug)]
struct Course {
    upward: bool,
    /// Tries since the last one that was better.
    misses: u32,
}

impl Course {
    const UPWARD: Self = Self {
        upward: true,
        misses: 0,
    };
}

/// What got done since the limit was set.
struct Epoch {
    set: Instant,
    /// When the first request came back that was sent at this limit: from then on the limit counts.
    from: Option<Instant>,
    done: u32,
    latency: Duration,
}

impl Epoch {
    fn at(set: Instant) -> Self {
        Self {
            set,
            from: None,
            done: 0,
            latency: Duration::ZERO,
        }
    }

    /// Counts a request; returns how long has been counted.
    fn count(&mut self, latency: Duration, now: Instant) -> Duration {
        let Some(from) = self.from else {
            let sent_since = now.checked_sub(latency).is_some_and(|sent| sent >= self.set);
            self.from = sent_since.then_some(now);
            return Duration::ZERO;
        };
        self.done += 1;
        self.latency += latency;
        now - from
    }

    /// Whether it was looked at for so long, or at so many requests.
    fn has_had(&self, (time, requests): (Duration, u32), counted: Duration) -> bool {
        counted >= time || self.done >= requests
    }

    /// What a pool of this size gets done per second; `None` if the pool was not full, by Little's law: then something
    /// else was the limit, and nothing was learnt about this one.
    #[expect(clippy::cast_precision_loss)] // a limit is small
    fn power(&self, limit: usize, counted: Duration) -> Option<f64> {
        let in_flight = self.latency.as_secs_f64() / counted.as_secs_f64();
        let rate = f64::from(self.done) / counted.as_secs_f64();
        (in_flight >= FULL * limit as f64).then_some(rate)
    }
}

impl Limiter {
    pub(crate) fn new(max: usize, now: Instant) -> Self {
        let max = max.max(1);
        Self {
            max,
            limit: START.min(max),
            phase: Phase::Ramp(Vec::new()),
            epoch: Epoch::at(now),
            last_cut: None,
            cuts: 0,
            hold: None,
        }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// When the next object may begin, if that is later than now.
    pub(crate) fn not_before(&self, now: Instant) -> Option<Instant> {
        self.hold.filter(|hold| *hold > now)
    }

    /// A request was answered after `latency`. Returns the limit.
    pub(crate) fn on_answer(&mut self, latency: Duration, now: Instant) -> usize {
        let counted = self.epoch.count(latency, now);
        if counted < GLANCE || (self.epoch.done as usize) < 2 * self.limit.max(START) {
            return self.limit;
        }
        let power = self.epoch.power(self.limit, counted);
        let enough = match (&self.phase, power) {
            (Phase::Recover { .. }, _) => true,
            (Phase::Ramp(rungs), Some(power))
                if rungs.last().is_none_or(|last| power > GROWING * last.power) =>
            {
                true
            }
            (Phase::Ramp(_), _) => self.epoch.has_had(ROUGH_LOOK, counted),
            (Phase::Away { home, .. }, Some(power)) if home.is_clearly_above(power) => true,
            _ => counted >= SHORTEST_CLOSE_LOOK && self.epoch.has_had(CLOSE_LOOK, counted),
        };
        if enough {
            self.epoch = Epoch::at(now);
            let phase = mem::replace(&mut self.phase, Phase::Ramp(Vec::new()));
            self.phase = match power {
                Some(power) => self.judge(phase, power),
                None => self.call_off(phase),
            };
        }
        self.limit
    }

    /// The server is under pressure. Returns the limit.
    pub(crate) fn on_pressure(&mut self, press: Press, now: Instant) -> usize {
        self.hold = self.hold.max(press.until).min(Some(now + LONGEST_HOLD));
        // All that were under way when the server had enough will say so: that is one sign, not many.
        if self.last_cut.is_none_or(|cut| press.began >= cut) {
            self.phase = Phase::Recover { ceiling: self.limit };
            self.limit = (self.limit / 2).max(1);
            self.last_cut = Some(now);
            self.cuts += 1;
            self.epoch = Epoch::at(now);
        }
        self.limit
    }

    /// What the present limit gets done is known: what now?
    fn judge(&mut self, phase: Phase, power: f64) -> Phase {
        let here = Rung {
            limit: self.limit,
            power,
        };
        match phase {
            Phase::Ramp(rungs) => self.ramp(rungs, here),
            Phase::Recover { ceiling } => self.recover(ceiling),
            Phase::Wait { rest: 0 } => self.ramp(Vec::new(), here),
            Phase::Wait { rest } => Phase::Wait { rest: rest - 1 },
            Phase::Steady { rest: 0, course } => self.set_out(here, course),
            Phase::Steady { rest, course } => Phase::Steady {
                rest: rest - 1,
                course,
            },
            Phase::Away { home, course } if home.is_clearly_above(power) => self.choose(home, here, course),
            Phase::Away { home, course } => {
                self.limit = home.limit;
                Phase::Back {
                    home,
                    away: here,
                    course,
                }
            }
            Phase::Back {
                mut home,
                away,
                course,
            } => {
                home.power = f64::midpoint(home.power, power);
                self.choose(home, away, course)
            }
        }
    }

    /// The pool is not full: a limit cannot be tried now.
    fn call_off(&mut self, phase: Phase) -> Phase {
        match phase {
            Phase::Away { home, course } | Phase::Back { home, course, .. } => {
                self.limit = home.limit;
                Phase::Steady { rest: REST, course }
            }
            other => other,
        }
    }

    fn ramp(&mut self, mut rungs: Vec<Rung>, here: Rung) -> Phase {
        rungs.push(here);
        let most = rungs.iter().map(|rung| rung.power).fold(0.0, f64::max);
        let past_the_knee = match rungs.as_slice() {
            [.., two_before, _, _] => here.power < TWO_DOUBLINGS * two_before.power,
            _ => false,
        };
        if past_the_knee || self.limit == self.max {
            self.cuts = 0;
            let enough = rungs.iter().find(|rung| rung.power >= NEARLY * most);
            self.limit = enough.map_or(here.limit, |rung| rung.limit);
            return Phase::Steady {
                rest: REST,
                course: Course::UPWARD,
            };
        }
        self.limit = (2 * self.limit).min(self.max);
        Phase::Ramp(rungs)
    }

    fn recover(&mut self, ceiling: usize) -> Phase {
        if self.limit + 1 < ceiling {
            self.limit += 1;
            return Phase::Recover { ceiling };
        }
        Phase::Wait {
            rest: (REST << self.cuts.min(5)).min(LONGEST_REST),
        }
    }

    fn set_out(&mut self, home: Rung, mut course: Course) -> Phase {
        if home.limit == self.max {
            course.upward = false;
        } else if home.limit == 1 {
            course.upward = true;
        }
        // Farther away when there was nothing better nearby.
        let (more, less) = if course.misses < 2 { (3, 2) } else { (9, 4) };
        let away = if course.upward {
            (home.limit * more).div_ceil(less)
        } else {
            home.limit * less / more
        };
        self.limit = away.clamp(1, self.max);
        Phase::Away { home, course }
    }

    fn choose(&mut self, home: Rung, away: Rung, course: Course) -> Phase {
        let needed = if course.upward { DOUBT } else { 1.0 };
        if away.worth() > needed * home.worth() {
            self.limit = away.limit;
            return Phase::Steady {
                rest: REST,
                course: Course { misses: 0, ..course },
            };
        }
        self.limit = home.limit;
        Phase::Steady {
            rest: (REST_AFTER_MISS << course.misses.min(5)).min(LONGEST_REST),
            course: Course {
                upward: !course.upward,
                misses: course.misses + 1,
            },
        }
    }
}
